"""Several trainers, one model: each learns the requests of its partition, and at the end of a round all are merged.

A round ends at a time of the events' own clock, so at the same event in every run. Each partition then writes what it
has learned to the store, waits for the others, and continues from the merge of all. A checkpoint is of the beginning of
a round; so a trainer that was killed learns its part of the round again, and one that takes a partition over, on
another machine, starts from the state that the store holds. docs/distributed.md.

`Partners` is a partition's exchange with the others through the store; `RoundLoop` is its learning loop; `Reconciler`
is the merge: of each partition the keys that it has changed, and their state, to one state for each of these keys, the
same to the bit in every partition. docs/distributed.md compares its rule with others.

A key that one partition has changed gets that partition's state. For one that several have changed, with their weights
w_i and the growth d_i of n in each:

    n = n0 + sum d_i          w = sum c_i w_i          c_i = |d_i| / sum |d_j|, in the order of the partitions

n grows as if one trainer had seen all examples, so the learning rate falls as it does there; the weight is an average,
so N partitions that each make the same step make it once, and not N times. FTRL's z follows from w and n; where w is 0,
z is the average of the partitions' z, which is within l1.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.errors import (
    CheckpointError,
    InputError,
    LeaseHeld,
    SourceUnavailable,
    SpecError,
    StaleEpoch,
    StoreError,
    StoreUnavailable,
    UnreadableValue,
)
from model_store.hash_kernels import hash_keys
from model_store.spec.spec import ModelSpec, spec_from_json
from model_store.store import Store
from model_store.versions.lease import TrainerLease
from model_store.versions.rounds import MODEL, PartitionsRecord, contribution, state
from model_store.waiting import Backoff
from trainer.checkpoint import Checkpoint, Description, file
from trainer.checkpoint.folder import check_same_spec, description_from_json
from trainer.events.events import NEVER_US
from trainer.events.parse import PartitionShare
from trainer.events.waiting_rows import import_packs
from trainer.examples.hashing import ExampleMaker
from trainer.learn.coordinates import Coordinates
from trainer.learn.learners.registry import untouched_stay
from trainer.learn.model import LearningModel
from trainer.learn.table import part_of
from trainer.output import Output
from trainer.publish.delta_chain import NumberedKeys
from trainer.runs.loop import Arrays
from trainer.runs.stream import ONLINE_PART, EventLoop
from trainer.sources.merge import BEFORE_ALL_US
from trainer.sources.open_sources import known_as

SAVE_EVERY = 5
"""Rounds between two states in the store: a trainer that takes a partition over learns at most that many again."""
SEARCHED = 1_000
"""How many rounds after a checkpoint are searched for a later state in the store."""
MODEL_WAIT_S = 30.0
"""How long partition 1, if it is past a round, may take to write that round's model, which it does again and again."""
POLL_S = 0.02
SAY_AFTER_S = 5.0
"""After so long without a partition's contribution, a warning names the partition."""
PUBLISHER = 1
_FIRST_LIMIT_US = BEFORE_ALL_US + 1
_TABLE = "coordinates.table."

Array = npt.NDArray[Any]
Numbers = npt.NDArray[np.float64]


class WaitsForPartner(SourceUnavailable):
    """The trainer of another partition has to do something first. Waited for without a limit, as in each round."""


@dataclass(frozen=True)
class Contribution:
    """What a partition has learned in a round. next_us: the time of its next event, or a time before it."""

    next_us: int
    letters: Sequence[Any]
    arrays: Arrays


class Partners:
    """One partition's exchange with the others, through the store. For one thread.

    missing: the partitions whose contribution to the present round is not there yet.
    """

    def __init__(
        self,
        store: Store,
        spec: ModelSpec,
        share: PartitionShare,
        every_us: int,
        lease: TrainerLease,
        output: Output,
    ) -> None:
        self.share = share
        self.missing: tuple[int, ...] = ()
        self.others = tuple(each for each in range(1, share.count + 1) if each != share.number)
        self._store, self._spec, self._every_us = store, spec, every_us
        self.now = store.clock.monotonic
        self._name = spec.model.name
        self._rounds = store.rounds(self._name)
        self._lease, self._output = lease, output
        self._record: PartitionsRecord | None = None
        self._starts = False
        self._written: dict[int, bytes] = {}
        self._unsaved: dict[tuple[int, str], bytes] = {}
        self._waits_since_s: float | None = None

    @property
    def publishes(self) -> bool:
        """True for the partition that publishes the model."""
        return self.share.number == PUBLISHER

    @property
    def record(self) -> PartitionsRecord:
        """How the partitions started; after `resume` or `begin`."""
        assert self._record is not None
        return self._record

    # -- starting

    def resume(
        self, local: Checkpoint | None, folder: Path, segments: Path, sources: Sequence[str]
    ) -> Checkpoint | None:
        """The checkpoint to start from: the local one, or the state in the store if that is later or there is no other.

        None for the publisher of a model whose partitions have never started. folder: of the local checkpoints; what it
        holds is replaced by what the store holds. Raises WaitsForPartner until the publisher has started, and while it
        is behind what this partition has in the store; InputError, CheckpointError if the partitions were started
        otherwise; StoreError.
        """
        stream = local.description.stream if local is not None else None
        record, own = self._rounds.record(), (stream or {}).get("round")
        if record is None:
            return self._without_record(local, own)
        self._check(record)
        self._record = record
        if own is not None and own["start"] != record.start:
            raise CheckpointError(
                f"{folder} holds a partition that was started as {own['start']}, and the partitions of {self._name} in "
                f"the store as {record.start}; start this trainer with another --checkpoint"
            )
        has_local = own is not None and own["number"] >= record.saved
        earliest = own["number"] if own is not None and has_local else record.saved
        number = earliest if self.publishes else self._resumable(record, earliest)
        if has_local and number == earliest:
            return local
        if local is not None or number:
            self._output.note(f"partition {self.share}: starting from round {number:,} in the store")
        return self._from_store(number, folder, segments, [known_as(name) for name in sources])

    def begin(self, describe: Callable[[], Description], arrays: Arrays, model: Arrays) -> None:
        """By the publisher of partitions that have never started: the others start from here. Raises StoreError."""
        if self._record is None:
            spec = self._spec.to_json()
            self._record = PartitionsRecord(self._lease.epoch, self.share.count, self._every_us, spec)
            self._starts = True
        if self._starts:
            self._put(self.record, 0, MODEL, file.dumps({}, model))
            self._put(self.record, 0, state(PUBLISHER), _state_bytes(describe(), arrays, ()))
            self._rounds.write_record(self.record)
            self._starts = False

    def _without_record(self, local: Checkpoint | None, own: Mapping[str, int] | None) -> Checkpoint | None:
        if not self.publishes:
            raise WaitsForPartner(
                f"the partitions of {self._name} are not started: the trainer of partition 1/{self.share.count} "
                "does that"
            )
        if own is not None:
            spec = self._spec.to_json()
            number = own["number"]
            self._record = PartitionsRecord(
                own["start"], self.share.count, self._every_us, spec, saved=number, oldest=number
            )
            self._rounds.write_record(self._record)
        return local

    def _check(self, record: PartitionsRecord) -> None:
        remedy = (
            "to change it, stop all trainers of the model, delete the key "
            f"'ftrie:{{{self._name}}}:partitions', and start them with new folders and --init-from active"
        )
        if record.partitions != self.share.count:
            raise InputError(
                f"--partition {self.share}: {self._name} is learned in {record.partitions} partitions; {remedy}"
            )
        if record.every_us != self._every_us:
            raise InputError(
                f"--reconcile {self._every_us / 1e6:g}s: the partitions of {self._name} are merged every "
                f"{record.every_us / 1e6:g}s; {remedy}"
            )
        check_same_spec(self._spec, record.spec, f"the partitions of {self._name}")

    def _resumable(self, record: PartitionsRecord, earliest: int) -> int:
        """The round, from `earliest` on, whose successors' contributions stay until this partition has learned them.

        Once all have written a state, the publisher deletes the rounds before it. So if an earlier life of this
        partition has written a state, those before it may be deleted at any moment.
        """
        states = range(earliest - earliest % SAVE_EVERY + SAVE_EVERY, earliest + SEARCHED, SAVE_EVERY)
        later = max(self._rounds.there(record, states, state(self.share.number)), default=earliest)
        before = range(earliest, later)
        whole = len(self._rounds.there(record, before, contribution(self.share.number))) == len(before)
        if later == earliest or self._rounds.there(record, [later], MODEL):
            return later
        if not whole and self._rounds.record() == record:
            return (
                earliest  # the publisher waits for what the store has lost: it is learned, and written, again
            )
        self._waits_since_s = self._waits_since_s or self.now()
        if self.now() - self._waits_since_s > MODEL_WAIT_S and self._rounds.there(
            record, [later], contribution(PUBLISHER)
        ):
            # It is past that round, may be waiting for this partition, and has lost the model that it could not write.
            self._output.warn(
                f"partition {PUBLISHER} of {self._name} has not written the model of round {later:,}: learning again "
                f"from round {earliest:,}"
            )
            return earliest
        raise WaitsForPartner(
            f"partition {self.share} of {self._name} has learned all before round {later:,}; the trainer of "
            f"partition {PUBLISHER}/{self.share.count} has not, or cannot write the model, and is waited for"
        )

    def _from_store(self, number: int, folder: Path, segments: Path, sources: list[str]) -> Checkpoint:
        """The state of this partition in the store at the beginning of a round, as a checkpoint."""
        record = self.record
        part = state(self.share.number if number else PUBLISHER)
        where = f"round {number} of {self._name} in the store"
        _, merged = file.loads(self._rounds.get(record, number, MODEL), where)
        written, held = file.loads(self._rounds.get(record, number, part), where)
        description = description_from_json(written, where)
        if description.stream is None:
            raise CheckpointError(f"{where} is not a state of a partition")
        if not number:
            description.stream.update(sources=sources, places=[])
        import_packs(segments, [held[name].tobytes() for name in held if name.startswith(_PACK)])
        for path in folder.glob("*.checkpoint"):
            path.unlink()
        model = LearningModel(ExampleMaker(spec_from_json(description.resolved, where)))
        Reconciler(model.coordinates).merge([merged])
        table = {name: array for name, array in model.state().items() if name.startswith(_TABLE)}
        arrays = {name: array for name, array in held.items() if not name.startswith(_PACK)}
        return Checkpoint(Path(where), description, arrays | table)

    # -- rounds

    def exchange(self, number: int, data: bytes) -> list[Contribution] | None:
        """Contribute to a round; the contributions of all, in order, once all are there. Raises StoreError."""
        record, parts = self.record, [contribution(each) for each in range(1, self.share.count + 1)]
        self._written = {each: written for each, written in self._written.items() if each >= number - 1}
        self._written[number] = data
        infos = self._rounds.infos(record, number, parts)
        own = contribution(self.share.number)
        if infos[own] is None:
            self._put(record, number, own, data)
            infos = self._rounds.infos(record, number, parts)
        self.missing = tuple(int(part) for part in parts if infos[part] is None)
        if self.missing:
            return None
        info = infos[own]
        same = info is not None and info.sha256 == hashlib.sha256(data).hexdigest()
        return [self._read(number, part, data if same and part == own else None) for part in parts]

    def check_lease(self) -> None:
        """Raise StaleEpoch if another trainer has taken the partition. Raises StoreUnavailable."""
        self._lease.renew()

    def contribution(self, number: int, found: Contribution) -> bytes:
        """A contribution's bytes: the same whenever the round is learned again."""
        described = {"round": number, "partition": self.share.number, "next_us": found.next_us}
        return file.dumps({**described, "letters": list(found.letters)}, found.arrays)

    def save(
        self,
        number: int,
        description: Description,
        arrays: Arrays,
        packs: Sequence[bytes],
        whole: Callable[[], Arrays],
    ) -> None:
        """Write this partition's state at the beginning of a round, and the publisher the model. Raises StoreError."""
        held = {name: array for name, array in arrays.items() if not name.startswith(_TABLE)}
        self._unsaved = {(number, state(self.share.number)): _state_bytes(description, held, packs)}
        if self.publishes:
            self._unsaved[number, MODEL] = file.dumps({}, whole())
        self.save_again()

    def save_again(self) -> None:
        """Write what `save` could not: a partition that is taken over may wait for it. Raises StoreError."""
        for (number, part), data in list(self._unsaved.items()):
            self._put(self.record, number, part, data)
            del self._unsaved[number, part]

    def tidy(self, number: int) -> None:
        """By the publisher: delete the rounds that no partition can resume from any more. Raises StoreError."""
        latest, record = number - number % SAVE_EVERY, self.record
        everyone = range(1, record.partitions + 1)
        states = [MODEL, *map(state, everyone)]
        if not self.publishes or latest <= record.saved:
            return
        if None in self._rounds.infos(record, latest, states).values():
            return
        saved = replace(record, saved=latest, oldest=record.oldest)
        self._rounds.write_record(saved)
        for old in range(record.oldest, latest):
            self._rounds.delete(record, old, [*map(contribution, everyone), *states])
        self._record = replace(saved, oldest=latest)
        self._rounds.write_record(self._record)

    def restore(self, number: int) -> None:
        """Write again what the others wait for, in case the store does not have it. Raises StoreError.

        number: of the round in which this partition waits. Raises CheckpointError if the others are past it, StaleEpoch
        if they are so with another trainer of this partition.
        """
        record = self._rounds.record()
        if record is None and self.publishes:
            self._rounds.write_record(self.record)
        elif record is not None and record.saved > number:
            self.check_lease()
            raise CheckpointError(
                f"partition {self.share} of {self._name} waits in round {number:,}, and the others have gone on from "
                f"round {record.saved:,}, whose state is in the store; start this trainer again to continue from there"
            )
        self.save_again()
        for number, data in self._written.items():
            self._put(self.record, number, contribution(self.share.number), data)

    def describe_missing(self, number: int) -> str:
        """Whose contribution is missing, and whether a trainer has that partition. Raises StoreError."""
        found = []
        for each in self.missing:
            lease = self._store.trainer_lease(self._name, "", each)
            try:
                lease.refuse_while_held()
                found.append(
                    f"partition {each}, which has no trainer: start one with --partition {each}/{self.share.count} "
                    f"or any/{self.share.count}"
                )
            except LeaseHeld as error:
                found.append(f"partition {each} ({str(error).partition(', last seen')[0]})")
        return f"waiting in round {number:,} for {', and for '.join(found)}; nothing is learned meanwhile"

    def _put(self, record: PartitionsRecord, number: int, part: str, data: bytes) -> None:
        self._rounds.put(record, number, part, data, self._lease)

    def _read(self, number: int, part: str, own: bytes | None) -> Contribution:
        """A contribution, as the store has it: this partition, before a restart, may have written its own.

        Raises UnreadableValue if it is not one, or of another round or partition.
        """
        where = f"the contribution of partition {part} to round {number} of {self._name}"
        data = own if own is not None else self._rounds.get(self.record, number, part)
        try:
            written, arrays = file.loads(data, where)
            if (written["round"], written["partition"]) != (number, int(part)):
                raise ValueError(f"it is of round {written['round']}, partition {written['partition']}")
            return Contribution(int(written["next_us"]), list(written["letters"]), arrays)
        except (CheckpointError, KeyError, TypeError, ValueError) as error:
            raise UnreadableValue(
                f"{where} cannot be read: {error}; delete its key, and the trainer of its partition writes it again"
            ) from error


class RoundLoop(EventLoop):
    """The learning loop of one partition: that of its events, in rounds. number: of the round that is being learned."""

    def __init__(self, partners: Partners, *parts: Any, once: bool, **more: Any) -> None:
        """parts, more: of the EventLoop; once: see the merger."""
        super().__init__(*parts, **more)
        before = self._saved.round
        self.number = before["number"] if before is not None else 0
        self.writes_online = partners.publishes
        self._partners, self._once = partners, once
        self._limit_us = before["limit_us"] if before is not None else _FIRST_LIMIT_US
        self.merger.limit_us = self._limit_us
        self._had_ended = self.number > 0 and self._limit_us == _FIRST_LIMIT_US
        self._at_boundary, self._is_finished, self._all_ended = True, False, False
        self._mine: bytes | None = None
        self._complete_s = 0.0
        self._backoff = Backoff(first_s=0.1, longest_s=5.0)
        self._not_before_s = 0.0
        self._problem, self._problem_at_s = "", 0.0
        self._pause = threading.Event()

    def step(self, wait_s: float = 0.0) -> bool:
        """Learn from the next events of the round; at its end, exchange and merge. Raises StaleEpoch."""
        if self._all_ended:
            return False
        if self._mine is None:
            _ = self._reconciler  # what the model is now, all partitions have
            next_us, every_us = self.merger.next_us, self._partners.record.every_us
            # Not before events were read: those before a restart are in earlier rounds.
            if self.merger.has_stepped_back and next_us is not None and next_us < self._limit_us - every_us:
                # The round would last until the clock is where it was.
                self._limit_us = self.merger.limit_us = (next_us // every_us + 1) * every_us
            self.merger.has_stepped_back = False
            if super().step(wait_s):
                self._at_boundary = False
                return True
            if not self.merger.at_limit:
                return False
            if self._had_ended and not self.merger.has_released:
                if self.merger.ended:  # as it had when it was killed: the others need not be there any more
                    self._all_ended = True
                    return False
                if not self.merger.has_read:  # there may be nothing to begin another round with
                    self._pause.wait(min(wait_s, POLL_S))
                    return False
            self._mine = self._close()
            self._complete_s = self._partners.now()
        return self._exchange(wait_s)

    def finish(self) -> None:
        """The last round has closed every window."""

    @property
    def ended(self) -> bool:
        """True once every source of every partition has ended, and all are merged."""
        return self._all_ended

    @property
    def round(self) -> dict[str, int]:
        """The round that begins, and the time at which it ends."""
        return {"start": self._partners.record.start, "number": self.number, "limit_us": self._limit_us}

    @property
    def resumable(self) -> bool:
        """True at the beginning of a round."""
        return self._at_boundary

    @property
    def waiting_s(self) -> float:
        """For how long it has waited for other partitions; 0 while it learns."""
        return self._partners.now() - self._complete_s if self._mine is not None else 0.0

    def of_partition(self) -> dict[str, Any]:
        """The partition, its round, and how long it has waited in it."""
        waiting_s = round(self.waiting_s, 1)
        return {"partition": str(self._partners.share), "round": self.number, "waiting_s": waiting_s}

    def problem(self) -> str:
        """What this partition waits for, after a few seconds; otherwise empty. Asks the store every few seconds.

        Raises CheckpointError, StaleEpoch if it can never continue.
        """
        if self._mine is None or self.waiting_s < SAY_AFTER_S:
            return self._problem
        if self._partners.now() - self._problem_at_s >= SAY_AFTER_S:
            self._problem_at_s = self._partners.now()
            try:
                self._partners.restore(self.number)
                if self._partners.missing:
                    self._problem = self._partners.describe_missing(self.number)
            except StaleEpoch:
                raise
            except StoreError:
                pass  # the exchange reports it
        return self._problem

    @cached_property
    def _reconciler(self) -> Reconciler:
        return Reconciler(self.model.coordinates)

    def begin(self) -> None:
        """Start the partitions, if they have never been started, from this loop's state. Raises StoreError."""
        arrays = {name: array for name, array in self.state().items() if not name.startswith(_TABLE)}
        self._partners.begin(self.description, arrays, self._reconciler.whole())

    def _close(self) -> bytes:
        """The end of the round: what was learned in it."""
        if self.merger.ended and not self._is_finished:
            self._at_boundary = False
            super().finish()
            self._is_finished = True
        next_us = self.merger.next_us
        assert next_us is not None  # or it would not be at the limit
        arrays = self._reconciler.changes()
        letters: Sequence[Any] = ()
        if not self._partners.publishes:
            online = self.online.take()
            arrays |= {f"{ONLINE_PART}{name}": array for name, array in online.items()}
            letters = self.dead_letters.take()
        return self._partners.contribution(self.number, Contribution(next_us, letters, arrays))

    def _exchange(self, wait_s: float) -> bool:
        """Merge if all have contributed; else wait a little."""
        assert self._mine is not None
        pause_s = self._not_before_s - self._partners.now()
        if pause_s > 0:
            self._pause.wait(min(wait_s, pause_s))
            return False
        try:
            found = self._partners.exchange(self.number, self._mine)
        except StaleEpoch:
            raise
        except StoreError as error:
            if isinstance(error, UnreadableValue):
                with suppress(StoreUnavailable):
                    self._partners.check_lease()  # the one that has it now may have deleted the round
                if self._once:
                    raise
            self._problem = f"round {self.number:,} waits for the store: {error}"
            self._not_before_s = self._partners.now() + self._backoff.failed()
            return False
        self._backoff.succeeded()
        if found is None:
            self._not_before_s = self._partners.now() + (
                POLL_S if self.waiting_s < SAY_AFTER_S else 10 * POLL_S
            )
            return False
        self._merge(found)
        return True

    def _merge(self, found: Sequence[Contribution]) -> None:
        self._reconciler.merge([each.arrays for each in found])
        if self._partners.publishes:
            for other in self._partners.others:
                self.online.absorb(part_of(found[other - 1].arrays, ONLINE_PART))
                self.dead_letters.forward(found[other - 1].letters)
        next_us = min(each.next_us for each in found)
        self._all_ended = next_us == NEVER_US
        every_us = self._partners.record.every_us
        self._limit_us = _FIRST_LIMIT_US if self._all_ended else (next_us // every_us + 1) * every_us
        self.merger.limit_us = self._limit_us
        self.number += 1
        self._mine, self._problem, self._at_boundary = None, "", True
        self._save_in_store()

    def _save_in_store(self) -> None:
        """Write the state to the store every SAVE_EVERY rounds. A failure only makes taking over slower."""
        partners = self._partners
        try:
            if self.number % SAVE_EVERY == 0:
                packs = self.segments.export(self.join.segments())
                partners.save(self.number, self.description(), self.state(), packs, self._reconciler.whole)
            partners.tidy(self.number)
        except StaleEpoch:
            raise
        except StoreError as error:
            self._problem = f"the state of round {self.number:,} is not in the store: {error}"


_PACK = "pack."


def _state_bytes(description: Description, arrays: Arrays, packs: Sequence[bytes]) -> bytes:
    held = {f"{_PACK}{index}": np.frombuffer(data, np.uint8) for index, data in enumerate(packs)}
    return file.dumps(description.to_json(), {**arrays, **held})


# --- The merge ---


DATA, OFFSETS, FEATURES, VALUES = "keys.data", "keys.offsets", "keys.features", "keys.values"
"""The arrays of changed keys: their bytes end to end; int64[keys + 1]; uint16[keys]; float64[keys, 2 own], the state a
of every variant with values of its own, then n of each. In the order of the keys' hashes."""


def check_mergeable(spec: ModelSpec) -> None:
    """Raise SpecError, naming the settings, for a model that several partitions cannot learn."""
    section = spec.learner
    for name, variant in spec.variants.items():
        if variant.average is not None:
            raise SpecError(
                f"variants.{name}.average: --partition cannot merge averages; leave the variant out, or use one trainer"
            )
    settings = {
        f'algorithm = "{section.algorithm}", rate = "{section.rate}", l1 = {section.l1:g}, l2 = {section.l2:g}': (
            not untouched_stay(spec)
        ),
        'rate = "counts"': section.rate == "counts",
        f'precision = "{section.precision}"': section.precision != "f64",
        section.hashing: section.buckets is not None,
        f"ttl = {section.ttl}": section.ttl is not None,
    }
    histories = [name for name, field in spec.fields.items() if field.history is not None]
    if spec.join.positive == "view":
        raise SpecError(
            'join.positive = "view": --partition divides events by request, which a view has not; use one trainer'
        )
    if histories:
        raise SpecError(
            f"fields.{histories[0]}: --partition divides events by request, so no partition sees all events of a "
            "user, which history needs; use one trainer, or leave the field out"
        )
    wrong = [name for name, applies in settings.items() if applies]
    if wrong:
        raise SpecError(
            f"[learner] {'; '.join(wrong)}: --partition cannot merge such models; expected ftrl, adpredictor, or ogd "
            'without penalties or with shrink = "touched"; precision = "f64"; a rate of "gradients" or "constant"; '
            "neither hash_bits, hash_buckets nor ttl"
        )


class Reconciler:
    """The keys of one partition's model, and their state at the last round. For the model's thread.

    Memory: 16 bytes a key and variant with values of its own, and the index of `NumberedKeys`.
    """

    def __init__(self, coordinates: Coordinates) -> None:
        """The model as it is now is that of all partitions; its slots store when they were touched."""
        self._coordinates = coordinates
        self._table = coordinates.table
        self._keys = NumberedKeys(self._table)
        _, keys = self._keys.touched(0)
        self._base = self._table.read(keys.slots)
        self._since = coordinates.examples + 1

    def changes(self) -> dict[str, Array]:
        """The keys that this partition has changed since the last round, and their state."""
        numbers, keys = self._keys.touched(self._since)
        now, base = self._table.read(keys.slots), self._base_of(numbers)
        differs = (now.view(np.uint64) != base.view(np.uint64)).any(axis=1) | (numbers >= len(self._base))
        return self._described(numbers[differs], keys.slots[differs])

    def whole(self) -> dict[str, Array]:
        """All keys and their state, in the same form: `merge` into an empty model gives this one."""
        numbers, keys = self._keys.touched(0)
        return self._described(numbers, keys.slots)

    def merge(self, changes: Sequence[Arrays]) -> int:
        """Continue with the model of all partitions; changes: of each, its own included. Returns the keys changed."""
        hashes = [_hashes(each[DATA], each[OFFSETS]) for each in changes]
        union, first = np.unique(np.concatenate(hashes), return_index=True)
        features = np.concatenate([each[FEATURES] for each in changes])[first]
        slots = self._slots_of(changes, union, features, first)
        numbers = self._keys.numbers_of(slots)
        places = [np.searchsorted(union, each) for each in hashes]
        merged = self._merged(features, self._base_of(numbers), places, [each[VALUES] for each in changes])
        self._table.write(slots, merged, self._coordinates.examples + 1)
        base, self._base = self._base, np.zeros((self._table.count, merged.shape[1]))
        self._base[: len(base)] = base
        self._base[numbers] = merged
        self._since = self._coordinates.examples + 1
        return int(union.size)

    def _slots_of(self, changes: Sequence[Arrays], union: Array, features: Array, first: Array) -> Array:
        """The slots of the keys with these hashes; new keys are admitted in the order of their hashes.

        first: where each is in the concatenation of all changes, of the first partition that has it.
        """
        slots = self._table.find(union, features)
        new = np.flatnonzero(slots < 0)
        if not new.size:
            return slots
        data = np.concatenate([each[DATA] for each in changes])
        shifts = np.cumsum([0, *(each[DATA].size for each in changes)])
        starts = np.concatenate([each[OFFSETS][:-1] + s for each, s in zip(changes, shifts, strict=False)])
        lengths = np.concatenate([np.diff(each[OFFSETS]) for each in changes])[first[new]]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        bytes_at = np.repeat(starts[first[new]] - offsets[:-1], lengths) + np.arange(offsets[-1])
        self._table.add(data[bytes_at], offsets, features[new])
        return self._table.find(union, features)

    def _merged(
        self, features: Array, base: Numbers, places: Sequence[Array], values: Sequence[Numbers]
    ) -> Numbers:
        """The merged state of keys with these features; places: of each partition's keys among them."""
        changed_by, merged = np.zeros(features.size, np.int64), base.copy()
        for place, value in zip(places, values, strict=True):
            changed_by[place] += 1
            merged[place] = value
        several = changed_by > 1
        rank, parts = np.cumsum(several) - 1, []
        for place, value in zip(places, values, strict=True):
            shared = several[place]
            parts.append((rank[place[shared]], value[shared]))
        own = self._coordinates.own
        for v in range(own):
            of_variant = [(at, value[:, v], value[:, own + v]) for at, value in parts]
            n0 = base[several, own + v]
            merged[several, v], merged[several, own + v] = self._averaged(
                features[several], v, n0, of_variant
            )
        return merged

    def _averaged(
        self, features: Array, v: int, n0: Numbers, parts: Sequence[tuple[Array, Numbers, Numbers]]
    ) -> tuple[Numbers, Numbers]:
        """a and n in variant v of keys that several partitions changed; parts: which of them, and their a and n."""
        coordinates, size = self._coordinates, features.size
        n, moved, sharing = n0.copy(), np.zeros(size), np.zeros(size)
        for at, _, own_n in parts:
            n[at] += own_n - n0[at]
            moved[at] += np.abs(own_n - n0[at])
            sharing[at] += 1.0
        n = np.maximum(n, 0.0)  # forgetting lowers it in every partition
        weight, within = np.zeros(size), np.zeros(size)
        for at, own_a, own_n in parts:
            some = moved[at] > 0.0
            share = np.where(some, np.abs(own_n - n0[at]), 1.0) / np.where(some, moved[at], sharing[at])
            weight[at] += share * coordinates.weight_of_state(v, features[at], own_a, own_n)
            within[at] += share * own_a
        return coordinates.state_of_weight(v, features, weight, n, within), n

    def _base_of(self, numbers: Array) -> Numbers:
        """The state at the last round; 0 for keys admitted since."""
        known, base = numbers < len(self._base), np.zeros((numbers.size, self._base.shape[1]))
        base[known] = self._base[numbers[known]]
        return base

    def _described(self, numbers: Array, slots: Array) -> dict[str, Array]:
        keys = self._keys.of(numbers, slots)
        order = np.argsort(_hashes(keys.data, keys.offsets), kind="stable")
        keys = self._keys.of(numbers[order], slots[order])
        values = self._table.read(keys.slots)
        return {DATA: keys.data, OFFSETS: keys.offsets, FEATURES: keys.features, VALUES: values}


def _hashes(data: Array, offsets: Array) -> Array:
    hashes = np.empty(offsets.size - 1, np.uint64)
    hash_keys(np.ascontiguousarray(data), np.ascontiguousarray(offsets), hashes)
    return hashes
