"""Warmup before the first request: kernels are compiled, and a new version's memory is touched by recent queries."""

from __future__ import annotations

import gc
import time
from collections.abc import MutableSequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import structlog

from ctr.v1.ranking_pb2 import RankRequest
from model_store.artefact.artefact import Artefact
from model_store.errors import FieldValueError
from model_store.features.features import FeaturePlan
from model_store.jit import kernels_are_cached, mark_kernels_cached
from model_store.spec.spec import parse_spec
from model_store.versions.experiments import Experiment
from server.model.columns import Catalogue, ItemIds, StoredItem, id_tokens
from server.model.event_form import Form
from server.model.live_model import LiveModel
from server.ranking.answer import ranked_items, team_items
from server.ranking.features import PlainReader, StoredUser, UserFields
from server.ranking.query import Candidates, Query, Ranking
from server.ranking.ranker import Ranker
from server.ranking.request import Received, read_options
from server.ranking.scoring_kernels import FIRST_INLINE
from server.ranking.select.exploration import integrated
from server.ranking.served import ServedVersion
from server.ranking.teams import Teams

WARM_CANDIDATES = 64
WARM_S = 1.0
"""The longest that one version is warmed: deltas may come each second, and queries may be large."""
KERNELS = "serve"

Array = npt.NDArray[Any]

_log = structlog.get_logger(__name__)


def warm(served: ServedVersion, recent: MutableSequence[Query]) -> ServedVersion:
    """`served`, after it has ranked a few queries that any model can rank, and the `recent` ones.

    Each recent query is replaced by one that is bound to `served`, so that none keeps an earlier catalogue in memory.
    """

    until = time.monotonic() + WARM_S
    _rank_any(served)
    # A copy, since calls append to it meanwhile.
    for place, query in enumerate(list(recent)):
        if time.monotonic() > until:
            break
        try:
            recent[place] = ours = _bound(query, served)
            served.ranker.rank(ours)
        except (FieldValueError, IndexError):
            continue  # a query of an earlier version need not fit this one
        except Exception:  # no query may keep a version from being served
            _log.exception("a query to warm with failed", model=served.name, version=served.version)
    return served


def _bound(query: Query, served: ServedVersion) -> Query:
    """A query of an earlier version, bound to this one. Raises FieldValueError, and IndexError for another variant."""
    beside = query.teams.variants if query.teams is not None else ()
    if max(query.variant, *query.shadows, *beside, 0) >= len(served.variant_names):
        raise IndexError(query.variant)
    candidates, named, inline = query.candidates, query.candidates.ids, []
    if candidates.items:
        rows = candidates.rows.tolist()
        named = [item_id for item_id, row in zip(named, rows, strict=True) if row > FIRST_INLINE]
        inline = [
            (item_id, features.given if isinstance(features, StoredItem) else features)
            for item_id, features in candidates.items
        ]
    ranker = served.ranker
    return query._replace(
        features=ranker.features(query.features.values()),
        candidates=ranker.candidates(named, served.catalogue.under(inline) if inline else ()),
    )


def _rank_any(served: ServedVersion) -> None:
    """Rank known, unknown and inline items, with every variant that has weights of its own."""
    ids = list(islice(served.catalogue.ids, WARM_CANDIDATES))
    plan, ranker = served.model.plan, served.ranker
    # Of the fields that take "1".
    fields = {field.name: "1" for field in plan.request_fields if id_tokens(field, "1")}
    inline = {field.name: "1" for field in plan.item_fields if id_tokens(field, "1")}
    for variant in range(served.model.base.values.width):
        ranker.rank(ranker.query(fields, ids, [("inline", inline)], variant, top_k=10))
        ranker.rank(ranker.query({}, [*ids, "no such item"], (), variant))


# -- compiling every kernel: a small model is built, changed and asked

_SPEC = """
model = { name = "warm-up" }
input = { label = "click" }
crosses = [{ fields = ["hour", "brand"] }]
[fields]
hour = {}
brand = { side = "item" }
"""
# Python's own, which the command line raises while it imports and compiles.
_COLLECTED_AFTER = (700, 10, 10)
_ADPREDICTOR = '[learner]\nalgorithm = "adpredictor"\n'
_TEAMS = Teams.of(Experiment(interleave=("a", "b")), (0, 0), ())
_KEYS = (b"bias", b"brand=nike", b"hour*brand=7*nike", b"hour=7")
_FRESH = (b"hour*brand=8*nova",)


def warm_kernels() -> None:
    """Compile the server's kernels, or load them from the cache, and log it if compiling takes seconds."""
    if not kernels_are_cached(KERNELS):
        _log.info("compiling the ranking kernels; this happens once on a machine")
    run_kernels()
    mark_kernels_cached(KERNELS)
    # The compiler leaves a million objects that live as long as the process: the collector need not visit them again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTED_AFTER)  # fewer, longer collections would delay calls


def run_kernels() -> None:
    """Call every kernel of trie, layers, ranker and selection. Seconds if they are not compiled yet."""
    for learner in ("", _ADPREDICTOR):
        before, after = (_artefact(learner, keys) for keys in (_KEYS, tuple(sorted(_KEYS + _FRESH))))
        model = _live_model(before)
        model.apply(2, "", after.changes_since(before, version=1))
        _rank(ServedVersion.bind(model.parts))
        _rank(ServedVersion.bind(model.rebuild()))
    run_request_kernels()


def run_variant_kernels() -> None:
    """Call the kernels of several variants, the largest, in a process that compiles beside `run_kernels`."""
    ranker = ServedVersion.bind(_live_model(_artefact("", _KEYS)).parts).ranker
    ranker.rank(ranker.query({"hour": "7"}, ["shoe"], shadows=(0,)))
    _interleave(ranker)


def _interleave(ranker: Ranker) -> None:
    """Rank with interleaved variants, in the plain order and with options."""
    caps = RankRequest(caps=[{"field": "brand", "at_most": 1}])
    for options in (None, read_options(Received.of(caps).extras, "")):
        query = ranker.query({"hour": "7"}, ["shoe", "unknown"], top_k=1, options=options)
        ranker.rank(query._replace(teams=_TEAMS))


def run_request_kernels() -> None:
    """Call the kernels that read requests and write answers, and those that integrate chances."""
    integrated(np.zeros(3), np.ones(3), lambda score: score, np.arange(1), 1, exact_up_to=0)
    _read_and_write(FeaturePlan.of(parse_spec(_SPEC)))


def _live_model(artefact: Artefact) -> LiveModel:
    plan = FeaturePlan.of(artefact.spec)
    model = LiveModel("warm-up")
    model.load(
        1, "", artefact, Catalogue.build(plan, [("shoe", {"brand": "nike"})], Form(artefact.spec, plan))
    )
    return model


def _rank(served: ServedVersion) -> None:
    ranker = served.ranker
    served.model.base.trie.get(b"hour=7")
    ranking = ranker.rank(ranker.query({"hour": "7"}, ["shoe", "unknown"], [("boot", {"brand": "nike"})]))
    _write_line(served, ranking.candidates.rows[ranking.order], ranking.ctrs)
    ranker.rank(ranker.query({"hour": "7"}, ["shoe"], shadows=(0,)))
    _interleave(ranker)
    thompson = {"thompson": {"width": 1.0}}
    caps = [{"field": "brand", "at_most": 1}]
    for request in (
        RankRequest(exploration=thompson),
        RankRequest(exploration=thompson, caps=caps, objective="ctr"),
    ):
        query = ranker.query(
            {"hour": "7"}, ["shoe", "unknown"], top_k=1, options=read_options(Received.of(request).extras, "")
        )
        ranker.rank(query)


def _write_line(served: ServedVersion, rows: Array, ctrs: Array) -> None:
    """Write the items of an impression's line."""
    known = served.catalogue.fragments
    assert known is not None
    rows[rows < 0] = -1
    known.written([b'"id":"unknown"'], rows, ctrs, np.empty(0))


def _read_and_write(plan: FeaturePlan) -> None:
    """Read a request from its bytes, lay its features over a user's, and write an answer."""
    request = RankRequest(item_ids=["shoe"])
    request.context.values["hour"].text = "7"
    received = Received(request.SerializeToString())
    plain, ids = PlainReader(plan).read(received), received.item_ids
    assert plain is not None and isinstance(ids, ItemIds)
    zero, zeros = np.zeros(1, np.int64), np.zeros(1)
    ranked_items(ids, zero, zeros, zeros)
    candidates = Candidates(ids, np.zeros(1, np.int32))
    team_items(
        ids, Ranking(candidates, zero, zeros, zeros, propensities=zeros, teams=zero, credits=zeros), _TEAMS
    )
    wanted = UserFields.of(plan, None)
    StoredUser("warm-up", ["8"] * len(wanted.hash_fields.names), 0.0).tokens(wanted).under(plain)


def _artefact(learner: str, keys: tuple[bytes, ...]) -> Artefact:
    return Artefact.from_columns(
        key_data=np.frombuffer(b"".join(keys), np.uint8),
        key_offsets=np.cumsum([0, *map(len, keys)], dtype=np.int64),
        weight=np.ones(len(keys), np.float32),
        variants=np.ones(len(keys), np.uint32),
        rate=np.ones(len(keys), np.float32),
        spec=parse_spec(_SPEC + learner),
        metrics={},
    )
