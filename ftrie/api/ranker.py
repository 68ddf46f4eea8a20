"""`Ranker`: the server's ranking in this process, for programs that embed a model instead of calling a server.

A request is checked by the client's `Asked`, resolved and ranked by `server.ranking`, and answered with the client's
dataclasses, so that an answer is what a server with the same model, items and users would send; no message is made.
Nothing is started: there is no thread, no process, no socket and no shared memory, and what a ranker holds goes with
its last reference.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias, TypeVar, Unpack, cast

from ftrie.api.messages import (
    AnyOf,
    Asked,
    Between,
    Contributions,
    Degradation,
    ExplainedItem,
    Explanation,
    FeatureValues,
    Filter,
    KeyContribution,
    ModelPrediction,
    RankedItem,
    Ranking,
    RankOptions,
)
from ftrie.api.output import warn
from model_store.artefact.artefact import Artefact
from model_store.errors import FieldValueError, UnreadableValue, UsageError
from model_store.features.features import FeaturePlan
from model_store.keys import ITEM, USER, record_key
from model_store.records.lookups import HashFields, Record
from model_store.records.records import Records as StoreRecords
from model_store.spec.spec import ModelSpec
from model_store.store import Store
from model_store.versions.experiments import Experiment
from server.errors import without_address
from server.model.columns import Catalogue, ItemIds
from server.model.model import Model
from server.ranking.candidates import LateItems
from server.ranking.experiments import Assignment
from server.ranking.explain import Group, explained_items, known_fields
from server.ranking.query import Query
from server.ranking.query import Ranking as Ranked
from server.ranking.ranker import Ranker as ServerRanker
from server.ranking.request import Extras, GivenFeatures, GivenFilter, Request
from server.ranking.resolve import Call, Others, Resolver
from server.ranking.select.filters import Cap
from server.ranking.served import ModelHandle, ServedVersion
from server.ranking.store_reads import Holder, Source, StoredReads, no_holder
from server.ranking.users import Users
from trainer.formats.record_files import ITEM_IDS, USER_IDS, cell_text, read_records, records_of
from trainer.formats.tables import arrow_table

__all__ = ["Ranker"]

T = TypeVar("T")
Records: TypeAlias = Any
"""Records by id: a mapping from an id to features, a file or a table with a column of ids, or a Store."""

# 128 random bits, as of a server: ids of any number of processes differ.
REQUEST_ID_BYTES = 16


class Ranker:
    """Ranks candidates with one version of a model at a time. May be used by any number of threads.

    Threads share the model, the items, and a bounded memory of looked-up users, all of which are immutable or guarded;
    each has its own scratch space. The ranking kernels release the GIL; reading a request, exploration's random draws
    and the making of the answer hold it.
    """

    def __init__(
        self,
        model: Any,
        items: Records | None = None,
        users: Records | None = None,
        *,
        version: int | None = None,
        experiment: Experiment | None = None,
        beside: Mapping[str, Ranker] | None = None,
    ) -> None:
        """Build the model's trie, and code the items. O(key bytes + items · fields); the first call compiles kernels.

        model: a Model of ftrie, or its Artefact. items: records by id, of which `rank` names candidates: a mapping from
        an id to features, a path, a table with a column of ids (that of `input.item` in the spec, item, item_id or id),
        or a Store, whose items are read now. users: the same by cookie (`input.cookie`, cookie, user or user_id);
        a mapping and a Store are read when a request names the user, files and tables now. A Store also has candidate
        sets, user histories, and items that came later. It must stay open.

        version: the number in answers; default: the model's, or 0. experiment: divides requests among the variants;
        default: the shares of the spec. beside: rankers of other models by name, which objectives may use, such as
        "ctr * purchase.ctr"; each has its own items and users, and its present version answers.

        Raises SpecError, InputError, FieldValueError for records that cannot be read, StoreError, and ExperimentError
        for an experiment that does not fit the model.
        """
        artefact = _artefact(model)
        name, variants = artefact.spec.model.name, artefact.spec.variants
        Assignment(name, tuple(variants), [each.share for each in variants.values()], experiment)  # checks it
        self._items, self._changing = items, Lock()
        self._resolver, late_items = _resolver(artefact.spec, items, users, partial(_other, beside or {}))
        self._handle = ModelHandle(name, late_items)
        self._handle.serve(_bound(artefact, _version(model, version), _catalogue(artefact.spec, items)))
        self._handle.ask_for(experiment)

    @property
    def model(self) -> str:
        """The model's name."""
        return self._handle.name

    @property
    def version(self) -> int:
        """The number of the version that answers now."""
        return self._served.version

    @property
    def variants(self) -> tuple[str, ...]:
        """The variants of the version that answers now."""
        return self._served.variant_names

    @property
    def problems(self) -> tuple[str, ...]:
        """Values of items that do not fit their field and count as missing: the first 20 of them."""
        return self._served.catalogue.problems

    def __len__(self) -> int:
        """The number of items."""
        return len(self._served.catalogue)

    def __repr__(self) -> str:
        return f"Ranker({self.model!r}, version {self.version}, {len(self):,} items)"

    def rank(
        self,
        user: FeatureValues | str | None = None,
        context: FeatureValues | None = None,
        candidates: Sequence[str] | None = None,
        items: Mapping[str, FeatureValues] | None = None,
        **options: Unpack[RankOptions],
    ) -> Ranking:
        """The best `top_k` of the candidates, best first; all without it.

        Candidates name stored items; items have their features here, over those stored. `ftrie.api.messages.Options`
        describes these and `RankOptions` all others: cookie, candidate_set, top_k, variant, request_id, objective,
        filters, caps, exploration.

        Raises what a server answers with as a status, with the same text: server.errors.InvalidRequest for a broken
        rule or limit, FieldValueError for a value that does not fit its field, CandidateSetNotFound, and
        StoreUnavailable for a candidate set of a Store that is away, all FtrieErrors; TypeError for an unknown keyword.
        """
        asked = Asked.of("", user=user, context=context, candidates=candidates, items=items, **options)
        query, ranking, served = self._ranked(asked, explain=False)
        unsure = None if ranking.uncertainties is None else ranking.uncertainties.tolist()
        head = _head(query, ranking, served)
        return Ranking(**head, cookie=query.cookie, items=tuple(_items(query, ranking, unsure)))

    def explain(
        self,
        user: FeatureValues | str | None = None,
        context: FeatureValues | None = None,
        candidates: Sequence[str] | None = None,
        items: Mapping[str, FeatureValues] | None = None,
        **options: Unpack[RankOptions],
    ) -> Explanation:
        """Rank at most 100 candidates, with the keys that make up each score. Arguments and errors as in `rank`."""
        asked = Asked.of("", user=user, context=context, candidates=candidates, items=items, **options)
        query, ranking, served = self._ranked(asked, explain=True)
        explained = list(explained_items(query, ranking, served))
        plain = _items(query, ranking, [uncertainty for uncertainty, _ in explained])
        return Explanation(
            **_head(query, ranking, served),
            items=tuple(
                ExplainedItem(item, tuple(map(_contributions, groups)))
                for item, (_, groups) in zip(plain, explained, strict=True)
            ),
            known_fields=tuple(known_fields(query, served)),
        )

    def update(self, model: Any, items: Records | None = None, *, version: int | None = None) -> None:
        """Rank with another version from now on; calls that have begun finish with the one before. As `__init__`.

        items: other items; without them, those given before are coded again where the spec has changed. Users,
        candidate sets and the experiment stay; an experiment that does not fit the new version's variants warns, and
        the spec's shares divide. An error leaves everything as it was. Updates take turns.
        """
        with self._changing:
            artefact, before = _artefact(model), self._served
            if artefact.spec.model.name != self.model:
                raise UsageError(
                    f"this ranker is of model {self.model!r}, got a version of {artefact.spec.model.name!r}; make "
                    "another ranker"
                )
            kept = items is None and artefact.spec.sha256 == before.model.spec.sha256
            source = self._items if items is None else items
            catalogue = before.catalogue if kept else _catalogue(artefact.spec, source)
            self._handle.serve(_bound(artefact, _version(model, version), catalogue))
            # After `serve`: an error before it leaves everything as it was.
            self._items = source
            if self._handle.assignment.problem:
                warn(f"the experiment does not fit version {self.version}: {self._handle.assignment.problem}")

    @property
    def _served(self) -> ServedVersion:
        served = self._handle.served
        assert served is not None  # set in __init__
        return served

    def _ranked(self, asked: Asked, explain: bool) -> tuple[Query, Ranked, ServedVersion]:
        """The query, what it got, and the version that ranked it."""
        request = _request(asked)
        request_id = request.request_id or os.urandom(REQUEST_ID_BYTES).hex()
        served = self._served  # read once: one version computes the whole answer
        call = Call(request, request_id, _NO_DEADLINE, self._handle, served, explain)
        query = self._resolver.resolve(call)
        return query, served.ranker.rank(query), served


def _other(beside: Mapping[str, Ranker], name: str) -> tuple[Resolver, ModelHandle] | str:
    """A model that an objective names, see `server.ranking.resolve.Others`."""
    # Not a method: a ranker that its own resolver refers to would outlive its last reference.
    other = beside.get(name)
    return (
        (other._resolver, other._handle) if other else f"beside this ranker are {list(beside) or 'no others'}"
    )


class _NoDeadline:
    """In the place of the context of a gRPC call, of which resolving a request reads the deadline alone."""

    def time_remaining(self) -> None:
        """None: as long as it takes."""


_NO_DEADLINE = _NoDeadline()


def _request(asked: Asked) -> Request:
    """What `Received` reads of the same request's message."""
    ids = ItemIds.of(asked.candidates) if isinstance(asked.candidates, list | tuple) else None
    extras = None
    if (
        asked.items or asked.candidate_set or asked.variant is not None or asked.objective
        or asked.filters or asked.caps or asked.exploration is not None
    ):  # fmt: skip
        extras = Extras(
            items=[(item, GivenFeatures(*features)) for item, features in asked.items],
            candidate_set=asked.candidate_set,
            variant=asked.variant,
            objective=asked.objective,
            filters=map(_given_filter, asked.filters),
            filter_count=len(asked.filters),
            caps=[Cap(field, at_most) for field, at_most in asked.caps],
            exploration=asked.exploration,
        )
    return Request(
        asked.ids() if ids is None else ids,
        GivenFeatures(*asked.user),
        GivenFeatures(*asked.context),
        asked.cookie,
        asked.request_id,
        asked.top_k,
        asked.no_log,
        asked.deferred,
        extras,
    )


def _given_filter(one: Filter) -> GivenFilter:
    if not isinstance(one, Between):
        return GivenFilter(one.field, "any_of" if isinstance(one, AnyOf) else "none_of", one.values)
    least = -math.inf if one.least is None else one.least
    most = math.inf if one.most is None else one.most
    return GivenFilter(one.field, "range", (), least, most)


def _items(
    query: Query, ranking: Ranked, uncertainties: Iterable[float | None] | None
) -> Iterator[RankedItem]:
    """The items of an answer, best first. An objective without a finite value is None."""
    if uncertainties is None and not ranking.has_more:
        return map(RankedItem, ranking.ids, ranking.ctr, ranking.score)
    none: list[float | None] = [None] * len(ranking.order)
    objectives: Iterable[float | None] = none
    if ranking.objectives is not None:
        objectives = [each if math.isfinite(each) else None for each in ranking.objectives.tolist()]
    propensities = none if ranking.propensities is None else ranking.propensities.tolist()
    known = none if uncertainties is None else uncertainties
    models: Iterable[Mapping[str, ModelPrediction] | None] = [None] * len(ranking.order)
    if ranking.others:
        models = [
            {
                name: ModelPrediction(
                    other.version or 0, other.variant, float(other.ctr[at]), float(other.score[at])
                )
                for name, other in ranking.others.items()
            }
            for at in range(len(ranking.order))
        ]
    more = objectives, known, propensities, models
    if query.teams is None or ranking.teams is None or ranking.credits is None:
        return map(RankedItem, ranking.ids, ranking.ctr, ranking.score, *more)
    team = map(query.teams.names.__getitem__, ranking.teams.tolist())
    return map(RankedItem, ranking.ids, ranking.ctr, ranking.score, *more, team, ranking.credits.tolist())


def _contributions(group: Group) -> Contributions:
    keys = (KeyContribution(key.key, key.weight, key.x, key.value, key.rate) for key in group.keys)
    return Contributions(group.name, float(group.sum), tuple(keys))


def _head(query: Query, ranking: Ranked, served: ServedVersion) -> dict[str, Any]:
    """What a ranking and an explanation both have."""
    notes = (*query.degraded, *ranking.notes)
    return {
        "request_id": query.request_id,
        "model": served.name,
        "version": served.version,
        "variant": query.variant_of(served.variant_names),
        # As in a server's answer, which hides the place of the store from callers.
        "degraded": tuple(Degradation(n.kind, n.part, without_address(n.detail)) for n in notes),
        "unknown_items": tuple(query.unknown_items),
        "unknown_fields": tuple(query.unknown_fields),
    }


# -- the model and the items


def _artefact(model: Any) -> Artefact:
    artefact = getattr(model, "artefact", model)
    if not isinstance(artefact, Artefact):
        raise TypeError(
            f"got a {type(model).__name__} as model; expected an ftrie.Model, as ftrie.load returns"
        )
    return artefact


def _version(model: Any, version: int | None) -> int:
    found = getattr(model, "version", None) if version is None else version
    return found if isinstance(found, int) else 0


def _bound(artefact: Artefact, version: int, catalogue: Catalogue) -> ServedVersion:
    """What answers: the model in this process's own memory. O(key bytes + items · fields)."""
    model = Model.build(artefact, version)
    ranker = ServerRanker(model, catalogue)
    return ServedVersion(artefact.spec.model.name, version, "", model, catalogue, ranker, 0)


def _catalogue(spec: ModelSpec, items: Records | None) -> Catalogue:
    """The catalogue of these records. O(values)."""
    store = _store_of(items)
    if store is not None:
        found: Iterable[tuple[str, Record]] = store.records.scan_items()
    elif items is None:
        found = ()
    else:
        found = _records(items, "items", ITEM, (spec.input.item, *ITEM_IDS))
    # Without fields there is no record: Redis has no empty hash, so a server would not know the item.
    catalogue = Catalogue.build(FeaturePlan.of(spec), ((item, record) for item, record in found if record))
    if catalogue.problems:
        warn(f"stored values left out: {'; '.join(catalogue.problems)}")
    return catalogue


# -- records


_LONGEST_S = 3600.0
"""How long a thread waits for another that reads the same user, which takes no time unless the mapping does."""


class _InMemory(Source):
    """Users in memory, read as a store's are. Items are in the catalogue; there are no candidate sets."""

    def __init__(self, users: Mapping[str, Any], histories: Store | None) -> None:
        """histories: the store that has the users' histories, if any does."""
        super().__init__("", _LONGEST_S)
        self._records = cast(StoreRecords, _RecordsInMemory(users, histories))

    def has_lost(self, read_at: float, wait_s: float) -> bool:
        """Never."""
        return False

    def read(self, ask: Callable[[StoreRecords, float], T], wait_s: float, holder: Holder = no_holder) -> T:
        """What `ask` returns."""
        return ask(self._records, wait_s)


class _RecordsInMemory:
    """The reads of `model_store.records.records.Records` that requests make."""

    def __init__(self, users: Mapping[str, Any], histories: Store | None) -> None:
        self._users, self._histories = users, histories

    def user_values(self, cookie: str, wanted: HashFields, wait_s: float) -> list[str | None]:
        """The values of some fields of a user. Raises UnreadableValue for one that no store could hold."""
        record = self._users.get(cookie) or {}
        try:
            return [_text("users", cookie, name, record.get(name)) for name in wanted.names]
        except FieldValueError as error:
            raise UnreadableValue(str(error)) from error

    def user_and_history(
        self, cookie: str, wanted: HashFields, model: str, wait_s: float
    ) -> tuple[list[str | None], bytes | None]:
        """As `user_values`, and the user's history."""
        history = None
        if self._histories is not None:
            _, history = self._histories.records.user_and_history(cookie, HashFields(()), model)
        return self.user_values(cookie, wanted, wait_s), history

    def holder_of_user(self, cookie: str) -> str:
        """Empty: there are not several servers."""
        return ""

    def items(self, ids: Sequence[str], wait_s: float) -> list[None]:
        """None for each: the catalogue has all."""
        return [None] * len(ids)

    def candidates(self, name: str, wait_s: float) -> None:
        """None: there is no such set."""


def _resolver(
    spec: ModelSpec, items: Records | None, users: Records | None, others: Others
) -> tuple[Resolver, LateItems]:
    """What reads the users, and what looks up the items that the catalogue lacks."""
    of_items, of_users = _store_of(items), _store_of(users)
    memory: Mapping[str, Any] = {}
    if users is not None and of_users is None:
        by_id = _is_by_id(users)
        memory = users if by_id else dict(_records(users, "users", USER, (spec.input.cookie, *USER_IDS)))
        if memory:
            # One id: a mapping may be large or compute its values, and is read only for users who are named.
            _checked(USER, next(iter(memory)))
    in_memory = _InMemory(memory, of_users)
    reads = StoredReads.of(
        in_memory if of_items is None else Source.of(of_items),
        in_memory if of_users is None else Source.of(of_users),
    )
    # A mapping is read again for each request, so that what the program changes in it counts at once.
    cache = Users(reads, 0) if of_users is None else Users(reads)
    return Resolver(reads, cache, others=others), LateItems(reads)


def _store_of(records: Any) -> Store | None:
    """The store, open, of a Store of ftrie or of model_store; None for anything else."""
    store = getattr(records, "engine", records)
    return store if isinstance(store, Store) else None


def _is_by_id(records: Any) -> bool:
    """Whether this maps ids to features; else, if it is a mapping, it is a table of columns by name."""
    return isinstance(records, Mapping) and isinstance(next(iter(records.values()), {}), Mapping)


def _records(
    data: Any, what: str, prefix: bytes, usual_ids: Sequence[str | None]
) -> Iterator[tuple[str, Record]]:
    """Each record as text, as a store would hold it. Raises SpecError, InputError, FieldValueError, StoreError."""
    names = [name for name in usual_ids if name]
    if _is_by_id(data):
        for record_id, values in data.items():
            texts = ((name, _text(what, record_id, name, value)) for name, value in values.items())
            yield _checked(prefix, record_id), {name: text for name, text in texts if text is not None}
    else:
        from_file = isinstance(data, str | os.PathLike)
        rows = read_records(Path(data), names) if from_file else records_of(arrow_table(data), what, names)
        for record_id, record in rows:
            yield _checked(prefix, record_id), record


def _checked(prefix: bytes, record_id: str) -> str:
    """The id. Raises StoreError for one that no store would take, empty or too long; TypeError unless it is a text."""
    if not isinstance(record_id, str):
        raise TypeError(f"got the id {record_id!r}, expected a text, such as '{record_id}'")
    record_key(prefix, record_id)
    return record_id


def _text(what: str, record_id: str, name: str, value: Any) -> str | None:
    """A value as a store holds it; None if it is missing. Raises FieldValueError naming the record and the field."""
    if hasattr(value, "tolist"):  # of numpy
        value = value.tolist()
    if value != value:  # NaN, which is pandas' missing value
        return None
    if isinstance(value, tuple | Set):
        # The order of a set differs between processes; sums round by theirs.
        value = sorted(value) if isinstance(value, Set) else list(value)
    try:
        return cell_text(dict(value) if isinstance(value, Mapping) else value)
    except (FieldValueError, TypeError, ValueError) as error:
        raise FieldValueError(f"{what}[{record_id!r}].{name}: {error}") from error
