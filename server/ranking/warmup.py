"""Warm before the first request: kernels compiled, and a new version's memory touched by questions like the latest."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator
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
from server.model.catalogue import Catalogue
from server.model.event_form import Form, Fragments, written_items
from server.model.item_ids import ItemIds
from server.model.live_model import LiveModel
from server.ranking.features import PlainReader, StoredUser, WantedFields
from server.ranking.query import Question
from server.ranking.request import Received
from server.ranking.select.options import Options
from server.ranking.select.propensity import integrated
from server.ranking.served import ServedVersion
from server.ranking.wire import Fields, ranked_items

WARM_CANDIDATES = 64
WARM_S = 1.0
"""No longer, whatever was asked lately: deltas may come each second, and questions may be large."""
KERNELS = "serve"

Array = npt.NDArray[Any]

_log = structlog.get_logger(__name__)


def warm_kernels() -> None:
    """Compile the ranking kernels, or load them from the cache, and say so if it takes seconds."""
    if not kernels_are_cached(KERNELS):
        _log.info("compiling the ranking kernels; this happens once on a machine")
    warm_up()
    mark_kernels_cached(KERNELS)
    # The compiler leaves a million objects that live as long as the process: the collector need not visit them again.
    gc.collect()
    gc.freeze()


def warm(served: ServedVersion, recent: Iterable[Question]) -> ServedVersion:
    """The same, after it was asked what was asked lately, and a few questions that any model can be asked."""
    until = time.monotonic() + WARM_S
    for question in (*_synthetic(served), *recent):
        if time.monotonic() > until:
            break
        try:
            question.ask(served)
        except (FieldValueError, IndexError):
            continue  # a question of the version before need not fit this one
        except Exception:  # whatever a caller has asked, it must not keep a version from being served
            _log.exception("a question to warm with failed", model=served.name, version=served.version)
    return served


def _synthetic(served: ServedVersion) -> list[Question]:
    """Questions that touch a version's memory: known, unknown and spelled-out items, every variant's own weights."""
    ids = list(islice(served.catalogue.ids, WARM_CANDIDATES))
    fields: Fields = {field.name: "1" for field in served.model.plan.request_fields if field.kind != "time"}
    spelled: Fields = {field.name: "1" for field in served.model.plan.item_fields if field.kind != "time"}
    return [
        question
        for variant in range(served.model.base.values.width)
        for question in (
            Question(fields, ids, [("spelled out", spelled)], variant, top_k=10),
            Question({}, [*ids, "no such item"], [], variant, top_k=None),
        )
    ]


# --- Compiling every kernel of the server before the first request does: a small model, built, changed and
# asked ---


_SPEC = """
model = { name = "warm-up" }
input = { label = "click" }
crosses = [{ fields = ["hour", "brand"] }]
[fields]
hour = {}
brand = { side = "item" }
"""
_KEYS = (b"bias", b"brand=nike", b"hour*brand=7*nike", b"hour=7")
_FRESH = (b"hour*brand=8*nova",)


def warm_up() -> None:
    """Compile all kernels of trie, layers and ranker, or load them from the cache. Seconds the first time."""
    before, after = _artefact(_KEYS), _artefact(tuple(sorted(_KEYS + _FRESH)))
    plan = FeaturePlan.of(before.spec)
    items = Catalogue.build(plan, [("shoe", {"brand": "nike"})], Form(before.spec, plan))
    model = LiveModel("warm-up")
    model.load(1, "", before, items)
    model.apply(2, "", after.changes_since(before, version=1))
    _ask(ServedVersion.bind(model.parts))
    _ask(ServedVersion.bind(model.rebuild()))
    warm_up_approximation()
    _receive(FeaturePlan.of(before.spec))


def _ask(served: ServedVersion) -> None:
    trie = served.model.base.trie
    trie.get(b"hour=7")
    ranking = served.ranker.rank({"hour": "7"}, ["shoe", "unknown"], [("boot", {"brand": "nike"})])
    _write_line(served, ranking.rows[ranking.order], ranking.ctrs)
    served.ranker.rank({"hour": "7"}, ["shoe"], shadows=(0,))
    for options in options_for_warming():
        served.ranker.rank({"hour": "7"}, ["shoe", "unknown"], [], top_k=1, options=options)


def _write_line(served: ServedVersion, rows: Array, ctrs: Array) -> None:
    """Put the items of an impression's line together."""
    known = served.catalogue.fragments
    assert known is not None
    rows[rows < 0] = -1
    written_items(known, Fragments.of([b'"id":"unknown"']), rows, ctrs, np.empty(0))


def _receive(plan: FeaturePlan) -> None:
    """Read a request from its bytes, lay its features over those of a user, and write an answer."""
    request = RankRequest(item_ids=["shoe"])
    request.context.values["hour"] = "7"
    received = Received(request.SerializeToString())
    given, ids = PlainReader(plan).read(received), received.item_ids
    assert given is not None and isinstance(ids, ItemIds)
    ranked_items(ids, np.zeros(1, np.int64), np.zeros(1), np.zeros(1))
    wanted = WantedFields.of(plan, None)
    user = StoredUser("warm-up", ["8"] * len(wanted.hash_fields.names), 0.0)
    user.tokens(wanted).under(given, user)


def _artefact(keys: tuple[bytes, ...]) -> Artefact:
    return Artefact.from_columns(
        key_data=np.frombuffer(b"".join(keys), np.uint8),
        key_offsets=np.cumsum([0, *map(len, keys)], dtype=np.int64),
        weight=np.ones(len(keys), np.float32),
        variants=np.ones(len(keys), np.uint32),
        rate=np.ones(len(keys), np.float32),
        spec=parse_spec(_SPEC),
        metrics={},
    )


# --- Compiling the selection kernels: requests whose options lead through every one of them ---


def warm_up_approximation() -> None:
    """Compile what only thousands of candidates need."""
    few = np.zeros(3), np.ones(3), lambda score: score, np.arange(1), 1
    integrated(*few, exact_up_to=0)


def options_for_warming() -> Iterator[Options]:
    """Options for a request with two candidates or more; together they call every other kernel of selection."""
    thompson = {"thompson": {"width": 1.0}}
    caps = [{"field": "brand", "at_most": 1}]
    for message in (
        RankRequest(exploration=thompson),
        RankRequest(exploration=thompson, caps=caps, objective="ctr"),
    ):
        options = Options.of(message, "", "warm-up")
        if options is not None:
            yield options
