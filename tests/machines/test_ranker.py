"""The ranker as a server builds it, after any order of versions, deltas, rebuilds, restarts and changes of items.

The model is `World`: versions as dicts of weights, items as dicts of text. A score is Σ weight·x over the keys that
`FeaturePlan.keys` makes. Weights and numbers are binary fractions, so that a sum is exact in any order: scores must be
equal, not close, and ties are ties.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from model_store.features.features import FeaturePlan
from model_store.keys import CANDIDATES, DELTA, ITEM, ITEMS_CHANGES, SNAPSHOT, record_key
from model_store.spec.values import Value
from model_store.store import Store
from server.model import values
from server.model.live_model import AllEqual
from server.model.shared_memory import Parts
from server.ranking.candidates import FRESH_S, CandidateSets
from server.ranking.explain import explained_items
from server.ranking.query import Query, Ranking
from server.ranking.served import ServedVersion
from server.ranking.store_reads import Source, StoredReads
from server.sync.distribution import Distribution
from server.sync.last_good import LastGood
from server.sync.model_builder import ModelBuilder
from tests.clocks import ManualClock
from tests.server.model.models import FIELDS, VARIANTS, parse
from tests.server.slow_ranker import artefact_of

NAME = "m"
Item = Mapping[str, str]
Entry = tuple[float | tuple[float, ...], int]
Weights = dict[bytes, Entry]

SHARES = {"base": {"share": 1}, "plain": {"share": 0, "without": ["age*brand", "tags"]}}
BY_SKU = {**FIELDS, "sku": {"side": "item", "column": "item"}}
SPECS = [
    parse(
        BY_SKU,
        [["age", "brand"], ["hour=*%", "sku"], ["likes", "tags"], ["age", "likes"], ["brand", "tags"]],
        variants={**SHARES, "lean": {"share": 0, "without": ["sku"]}},
    ),
    parse(
        FIELDS,
        [["age", "brand"], ["age", "score", "tags", "price"], ["brand", "size"]],
        variants={**SHARES, "lean": {"share": 0, "without": ["brand"]}},
        learner={"values": "per_variant"},
    ),
]
REQUESTS: list[dict[str, Value]] = [
    {},
    {"age": "a", "likes": ["a", "b"], "score": 2, "hour=*%": "7"},
    {"age": "a*b", "likes": {"a": 0.5}, "score": -0.5, "user_keys": ["bias", "P_1"]},
]
IDS = ["i0", "i1", "i2", "i3"]
RECORDS: list[Item] = [
    {"never used": "x"},
    {"brand": "a", "tags": '["a", "b"]', "price": "0.5"},
    {"brand": "b", "tags": '{"b": -2.0}', "size": "3"},
    {"brand": "a*b", "price": "-4", "item_keys": '["P_1", "age=a"]'},
    {"brand": "a", "size": "10"},
]
NOTHING = 0
"""The record of an item that nothing is known of."""
INLINE_IDS = [f"inline {record}" for record in range(len(RECORDS))]
CANDIDATE_IDS = [*IDS[::-1], "unknown"]
RECORD = st.integers(0, len(RECORDS) - 1)
FEW = st.lists(st.sampled_from(IDS), min_size=1, max_size=3, unique=True)


# -- the model: what a version is, what the server should know, and what an answer should be


class Version(NamedTuple):
    """parent: None for a snapshot."""

    number: int
    spec: int
    weights: Weights
    parent: Version | None = None

    def deltas_from(self, served: Version | None) -> bool:
        """Whether deltas alone lead from what is served to this version."""
        if self.parent is None or served is None:
            return False
        # By content, since a store that was flushed numbers from 1 again.
        return self.parent[:3] == served[:3] or self.parent.deltas_from(served)


@cache
def keys_of(spec: int, request: int, record: int, item: str) -> list[tuple[bytes, float, int]]:
    own = {"sku": item} if "sku" in SPECS[spec].fields else {}
    return FeaturePlan.of(SPECS[spec]).keys({**REQUESTS[request], **RECORDS[record], **own})


def score_of(version: Version, request: int, record: int, item: str, variant: int) -> float:
    """The definition."""
    total = 0.0
    for key, x, mask in keys_of(version.spec, request, record, item):
        weight, bits = version.weights.get(key, (0.0, 0))
        if (mask & bits) >> variant & 1:
            total += (weight[variant] if isinstance(weight, tuple) else weight) * x
    return total


@cache
def pool(spec: int) -> list[bytes]:
    """All keys that any candidate of any request has, and some of none."""
    asked = itertools.product(range(len(REQUESTS)), range(len(RECORDS)), [*CANDIDATE_IDS, *INLINE_IDS])
    made = {key for request, record, item in asked for key, _, _ in keys_of(spec, request, record, item)}
    crosses = FeaturePlan.of(SPECS[spec]).crosses
    return sorted(made | {cross.prefix + rest for cross in crosses for rest in (b"", b"a*", b"a*b*a*b*a")})


def entries_of(spec: int) -> st.SearchStrategy[Entry]:
    """A variant's own weight is 0 where it does not use the key."""
    own = SPECS[spec].learner.values == "per_variant"

    def entry(weight: float, bits: int) -> Entry:
        return (tuple(weight * (v + 1) * (bits >> v & 1) for v in range(VARIANTS)) if own else weight), bits

    return st.builds(entry, st.sampled_from([-2.0, -0.5, 0.25, 1.0]), st.integers(1, 2**VARIANTS - 1))


def changes_of(spec: int, weights: Weights) -> st.SearchStrategy[dict[bytes, Entry | None]]:
    """Of keys that the model has, and of new ones; None removes a key."""
    keys = (
        st.sampled_from(sorted(weights)) | st.sampled_from(pool(spec))
        if weights
        else st.sampled_from(pool(spec))
    )
    return st.dictionaries(keys, st.none() | entries_of(spec), max_size=6)


SNAPSHOTS = st.integers(0, len(SPECS) - 1).flatmap(
    lambda spec: st.tuples(
        st.just(spec), st.dictionaries(st.sampled_from(pool(spec)), entries_of(spec), max_size=12)
    )
)


class World:
    """The items in the store, and what a server knows of them; records by their number in RECORDS."""

    def __init__(self) -> None:
        self.there: dict[str, int] = {}
        self.has_stream = False
        self.restart({})

    def restart(self, on_disk: dict[str, int]) -> None:
        """A server that has read nothing yet, and has the items of its disk until the store has one."""
        self.read: dict[str, int] = {}
        self.kept, self.noted, self.on_disk = set[str](), set[str](), on_disk
        self.first, self.lost, self.ordered, self.missed, self.knows_stream = True, False, False, False, False

    def flush(self) -> None:
        self.there, self.noted, self.has_stream = {}, set(), False
        self.lost, self.ordered, self.missed = True, False, False

    def look(self) -> dict[str, int]:
        """The items that a server serves once it has looked."""
        is_new = self.has_stream and not self.knows_stream
        if self.ordered and not self.first:  # at the first look no order is known to be new
            self.on_disk, self.kept, self.read = {}, set(), dict(self.there)
        elif self.lost and not self.first:
            self.kept = {*self.read} - {*self.there}
            self.read = self.read | self.there
        elif self.first or self.missed or is_new:
            self.kept -= {*self.there}
            self.read = {item: self.read[item] for item in self.kept} | self.there
        else:
            self.kept -= self.noted
            self.read = {item: record for item, record in self.read.items() if item not in self.noted}
            self.read |= {item: self.there[item] for item in self.noted if item in self.there}
        self.first = self.lost = self.ordered = self.missed = False
        self.knows_stream, self.noted = self.has_stream, set()
        if self.read:
            self.on_disk = {}
        return dict(self.read or self.on_disk)


# -- what a server is made of, and what its answers are compared with


class Held(NamedTuple):
    """What a request holds while it ranks, and what its answer is made of, however late it ends."""

    served: ServedVersion
    version: Version
    items: Mapping[str, int]


class Taker:
    """A worker in this process: binds what is delivered, and gives it back once nothing reads it."""

    def __init__(self, distribution: Distribution) -> None:
        self._distribution = distribution
        self.served: ServedVersion

    def take(self, parts: Parts, serial: int) -> None:
        self.served = ServedVersion.bind(parts)
        self.served.on_released(lambda: self._distribution.given_back(self, serial))

    def tell(self, body: Mapping[str, Any]) -> None:
        pass


class Patient:
    """A call without a deadline."""

    def time_remaining(self) -> None:
        return None


def scores_of(held: Held, request: int, variant: int) -> list[float]:
    """By the definition, of CANDIDATE_IDS and then of INLINE."""
    _, version, items = held
    named = [(items.get(item, NOTHING), item) for item in CANDIDATE_IDS]
    candidates = [*named, *((record, item) for record, item in enumerate(INLINE_IDS))]
    return [score_of(version, request, record, item, variant) for record, item in candidates]


def check(held: Held, turn: int) -> None:
    """An answer is that of one version over one set of items: scores, order, the best few, shadows, explanations."""
    served, version, items = held
    ids = [*CANDIDATE_IDS, *INLINE_IDS]
    candidates = served.ranker.candidates(CANDIDATE_IDS, list(zip(INLINE_IDS, RECORDS, strict=True)))
    assert candidates.unknown == [item for item in CANDIDATE_IDS if item not in items]
    assert served.version == version.number and len(served.catalogue) == len(items)
    for request, fields in enumerate(REQUESTS):
        features = served.ranker.features(fields)
        of_variants = [scores_of(held, request, variant) for variant in range(VARIANTS)]
        for variant, scores in enumerate(of_variants):
            # `sorted` is stable: equal scores keep the order of the request.
            order = sorted(range(len(ids)), key=lambda at: -scores[at])
            for top_k in (None, 3):
                query = Query(features, candidates, variant, top_k)
                ranking = served.ranker.rank(query)
                best = order[:top_k]
                assert (ranking.ids, ranking.score) == ([ids[at] for at in best], [scores[at] for at in best])
                assert ranking.ctr == pytest.approx([1 / (1 + math.exp(-scores[at])) for at in best])
            others = [other for other in range(VARIANTS) if other != variant]
            shadowed = served.ranker.rank(Query(features, candidates, variant, 3, shadows=others))
            assert (shadowed.ids, shadowed.score) == (ranking.ids, ranking.score)
            for shadow in shadowed.shadows:
                assert shadow.score == sorted(of_variants[shadow.variant], reverse=True)[:3]
            if (turn + request) % VARIANTS == variant:
                check_explained(held, query, ranking, request)


def check_explained(held: Held, query: Query, ranking: Ranking, request: int) -> None:
    """The keys of an explanation are those of the definition, and their values add up to the score."""
    _, version, items = held
    found = explained_items(query, ranking, held.served)
    for item, score, (_, groups) in zip(ranking.ids, ranking.score, found, strict=True):
        record = INLINE_IDS.index(item) if item in INLINE_IDS else items.get(item, NOTHING)
        shown = [key for group in groups for key in group.keys]
        made = keys_of(version.spec, request, record, item)
        known = [
            key for key, _, mask in made if (mask & version.weights.get(key, (0, 0))[1]) >> query.variant & 1
        ]
        assert [key.key for key in shown] == known  # no rounding: sums are exact
        assert sum(key.value for key in shown) == score


class Machine(RuleBasedStateMachine):
    """A store, and one server of it: the thread that follows the store, by single steps, and a worker."""

    def __init__(self, store: Store, clock: ManualClock, folder: Path) -> None:
        super().__init__()
        store.client.flushall()
        self.store, self.clock, self.folder = store, clock, folder
        self.versions = store.model(NAME)
        self.world = World()
        self.published: list[Version] = []
        self.source = Source.of(store)
        self.sets = CandidateSets(StoredReads.of(self.source, self.source))
        self.set: list[str] | None = None
        self.set_read: tuple[list[str] | None, float, bool] | None = None
        self.turn, self.may_differ = 0, False
        self.start()

    def start(self) -> None:
        self.free: list[str] = []
        self.held: list[Held] = []
        self.served: Held | None = None
        self.rebuild: Callable[[], None] | None = None
        self.has_run = False
        self.builder = ModelBuilder(NAME, clock=self.clock)
        self.builder.opened(self.store)
        free = self.free  # of this server: what a request of an earlier one releases is no longer of interest
        self.distribution = Distribution(lambda model, uid: free.append(uid))
        self.taker = Taker(self.distribution)
        self.distribution.join(self.taker)

    def deliver(self, version: Version, items: Mapping[str, int]) -> None:
        assert self.builder.parts is not None
        self.may_differ = True
        self.served = None  # the last reference to what the worker drops now
        self.distribution.deliver(self.builder.parts)
        self.served = Held(self.taker.served, version, items)

    def tells_nothing_apart(self, version: Version, items: Mapping[str, int]) -> bool:
        """Whether no request could tell these items apart."""
        pairs = [(request, variant) for request in range(len(REQUESTS)) for variant in range(VARIANTS)]
        return all(
            len({score_of(version, request, record, item, variant) for item, record in items.items()}) < 2
            for request, variant in pairs
        )

    # -- versions

    @initialize(made=SNAPSHOTS, items=st.dictionaries(st.sampled_from(IDS), RECORD))
    def begin(self, made: tuple[int, Weights], items: dict[str, int]) -> None:
        self.put_items(items)
        self.publish_snapshot(made)
        self.follow(0, False)

    @rule(made=SNAPSHOTS)
    def publish_snapshot(self, made: tuple[int, Weights]) -> None:
        spec, weights = made
        number = self.versions.publish(artefact_of(SPECS[spec], weights))
        self.published.append(Version(number, spec, weights))

    @precondition(lambda self: self.served and self.published)
    @rule(number=st.integers(2, 4), data=st.data())
    def follow_deltas(self, number: int, data: st.DataObject) -> None:
        """One after the other, by a server whose requests of the version before last have ended."""
        for _ in range(number):
            self.publish_delta(0, data)
            self.take_notes()
            self.follow(0, True)

    @precondition(lambda self: self.published)
    @rule(back=st.integers(0, 2), data=st.data())
    def publish_delta(self, back: int, data: st.DataObject) -> None:
        parent = self.published[-1 - back % len(self.published)]
        changes = data.draw(changes_of(parent.spec, parent.weights))
        weights = {key: entry for key, entry in {**parent.weights, **changes}.items() if entry is not None}
        before, after = (artefact_of(SPECS[parent.spec], each) for each in (parent.weights, weights))
        number = self.versions.publish(after.changes_since(before), parent=parent.number)
        self.published.append(Version(number, parent.spec, weights, parent))

    @precondition(lambda self: self.published)
    @rule(back=st.integers(0, 3), forced=st.booleans())
    def follow(self, back: int, forced: bool) -> None:
        """Come to one of the latest versions, as after an activation or a rollback."""
        version = self.published[-1 - back % len(self.published)]
        manifest = replace(self.versions.manifest(version.number), forced=forced)
        before = self.builder.parts
        if before is not None and (before.version, before.sha256) == (manifest.version, manifest.sha256):
            return
        served = self.served
        self.may_differ = True  # also of a version that is refused: its values have been written
        by_delta = version.deltas_from(served and served.version)
        try:
            kind = self.builder.bring_to(self.versions, manifest)
        except AllEqual:
            assert served is not None and not forced and self.builder.parts is before
            # A snapshot looks at the items first, whatever comes of it.
            items = served.items if by_delta else self.items_under(version)
            assert self.tells_nothing_apart(version, items)
            # Under other fields, items that the store no longer has cannot be compared.
            if version.spec == served.version.spec:
                assert self.tells_nothing_apart(version, served.items)
            return
        assert kind == (DELTA if by_delta else SNAPSHOT)
        items = served.items if served is not None and by_delta else self.items_under(version)
        if not by_delta:
            self.rebuild = None
            if self.builder.items_refused:
                assert served is not None and self.tells_nothing_apart(version, items)
                items = served.items
            if not items:
                self.world.on_disk = {}
        self.deliver(version, items)

    def items_under(self, version: Version) -> dict[str, int]:
        """The items after a look; those of the disk are tokens of fields, which a version with other fields lacks."""
        items = self.world.look()
        is_other = self.served is not None and self.served.version.spec != version.spec
        return {} if self.world.on_disk and is_other else items

    # -- requests, buffers, rebuilds, restarts

    @precondition(lambda self: self.served and len(self.held) < 3)
    @rule()
    def begin_a_request(self) -> None:
        self.held.append(self.served)

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 2))
    def end_a_request(self, which: int) -> None:
        del self.held[which % len(self.held)]

    @rule()
    def take_notes(self) -> None:
        while self.free:
            self.builder.buffer_free(self.free.pop())

    @precondition(lambda self: self.served and self.rebuild is None)
    @rule()
    def begin_rebuild(self) -> None:
        self.rebuild, self.has_run = self.builder._live.begin_rebuild(), False

    @precondition(lambda self: self.rebuild and not self.has_run)
    @rule()
    def run_rebuild(self) -> None:
        """In a thread of its own this is at any moment; its buffer of values is held until then."""
        self.rebuild()
        self.has_run = True

    @precondition(lambda self: self.rebuild)
    @rule()
    def end_rebuild(self) -> None:
        assert self.builder.rebuilt() == self.has_run
        if self.has_run:
            self.rebuild = None
            self.deliver(self.served.version, self.served.items)

    @precondition(lambda self: self.served)
    @rule()
    def restart(self) -> None:
        """With what is on disk, as `ModelSync` does."""
        before, disk = self.served, LastGood(self.folder, NAME)
        assert before is not None
        disk.save(self.builder.parts)
        self.start()
        self.world.restart(dict(before.items))
        self.builder.restore(disk.load(disk.kept()))
        self.deliver(before.version, before.items)

    # -- items

    @rule(items=st.dictionaries(st.sampled_from(IDS), RECORD, min_size=1, max_size=3))
    def put_items(self, items: dict[str, int]) -> None:
        self.store.records.put_items([(item, RECORDS[record]) for item, record in items.items()])
        self.world.there |= items
        self.note(items)

    @rule(items=FEW)
    def remove_items(self, items: list[str]) -> None:
        self.store.records.put_items([(item, {}) for item in items])
        self.world.there = {item: record for item, record in self.world.there.items() if item not in items}
        self.note(items)

    def note(self, items: Iterable[str]) -> None:
        self.world.noted |= {*items}
        self.world.has_stream |= bool([*items])

    @rule(item=st.sampled_from(IDS), record=RECORD)
    def another_system_writes_an_item(self, item: str, record: int) -> None:
        self.store.client.delete(record_key(ITEM, item))
        self.store.client.hset(record_key(ITEM, item), mapping=dict(RECORDS[record]))
        self.world.there[item] = record

    @rule(item=st.sampled_from(IDS))
    def an_item_expires(self, item: str) -> None:
        self.store.client.pexpire(record_key(ITEM, item), 0)
        self.world.there.pop(item, None)

    @rule(items=FEW)
    def requests_find_items(self, items: list[str]) -> None:
        self.builder.items_found(items)
        self.world.noted |= {*items}

    @rule()
    def order_all_items(self) -> None:
        self.store.records.only_these_items()
        self.world.ordered = True

    @precondition(lambda self: self.world.has_stream and self.world.knows_stream)
    @rule()
    def trim_the_stream(self) -> None:
        self.store.client.xtrim(ITEMS_CHANGES, maxlen=0, approximate=False)
        self.world.has_stream, self.world.missed = False, True

    @rule()
    def flush(self) -> None:
        self.store.client.flushall()
        self.world.flush()
        self.published.clear()
        self.set = None
        if self.set_read is not None:
            self.set_read = (*self.set_read[:2], True)

    @precondition(lambda self: self.served)
    @rule(forced=st.booleans())
    def follow_items(self, forced: bool) -> None:
        served = self.served
        assert served is not None
        self.clock.advance(1_000.0)  # since the last catalogue was built
        moved, items = self.builder.items_moved(), self.world.look()
        if not moved:
            assert items == served.items or self.builder.items_refused
        elif self.builder.with_new_items(allow_equal=forced):
            self.deliver(served.version, items)
        else:
            assert self.tells_nothing_apart(served.version, items) and not forced

    # -- candidate sets

    @rule(ids=st.none() | st.lists(st.sampled_from(IDS), max_size=3))
    def change_the_set(self, ids: list[str] | None) -> None:
        if ids:
            self.store.records.put_candidates("page", ids)
        else:
            self.store.client.delete(record_key(CANDIDATES, "page"))
        self.set = ids or None

    @rule(after_s=st.sampled_from([0.0, 0.5, 2.0]))
    def read_the_set(self, after_s: float) -> None:
        self.clock.advance(after_s)
        found, notes = self.sets.members("page", Patient())
        now, expected, is_stale = self.clock.monotonic(), self.set, False
        if self.set_read is not None:
            ids, read_s, was_lost = self.set_read
            if now - read_s < FRESH_S:
                assert (found, notes) == (ids, [])
                return
            is_stale = was_lost and bool(ids) and self.set is None
            expected = ids if is_stale else self.set
        assert (found, bool(notes)) == (expected, is_stale)
        if not is_stale:
            self.set_read = self.set, now, False

    # -- what holds after each step

    @invariant()
    def every_answer_is_that_of_its_version(self) -> None:
        if not self.may_differ:
            return
        self.turn, self.may_differ = self.turn + 1, False
        for held in [*self.held, *filter(None, [self.served])]:
            check(held, self.turn)


@pytest.fixture
def machines(
    valkey_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], Machine]]:
    monkeypatch.setattr(values, "_COPY_ALL", 1)  # models are too small for a buffer to catch up by slots
    clock, numbers = ManualClock(), itertools.count()
    with Store.open(valkey_url, clock=clock) as store:
        yield lambda: Machine(store, clock, tmp_path / str(next(numbers)))


@pytest.mark.parametrize(
    ("examples", "steps"), [(12, 30), pytest.param(60, 30, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_ranker(machines: Callable[[], Machine], examples: int, steps: int) -> None:
    how = settings(max_examples=examples, stateful_step_count=steps, deadline=None)
    run_state_machine_as_test(machines, settings=how)


SOME: tuple[int, Weights] = 0, {b"brand=a": (1.0, 7), b"sku=i1": (-0.5, 7)}


def test_a_restart_takes_items_that_were_written_without_a_notice(machines: Callable[[], Machine]) -> None:
    machine = machines()
    machine.begin(SOME, {"i0": 1, "i1": 2})
    machine.another_system_writes_an_item("i0", 2)
    machine.restart()
    machine.follow_items(False)
    machine.every_answer_is_that_of_its_version()


def test_a_store_that_is_emptied_twice_takes_no_items_of_the_disk(machines: Callable[[], Machine]) -> None:
    machine = machines()
    machine.begin(SOME, {"i0": 1, "i1": 2})
    machine.flush()
    machine.restart()
    machine.follow_items(False)
    machine.flush()
    machine.follow_items(False)
    machine.every_answer_is_that_of_its_version()
