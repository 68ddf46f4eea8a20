"""Deals a log to workers: which files or blocks each one reads, and which rows are held out.

In: a spec, a log, and the number of workers. Out: a `ShardPlan` for each worker, plain data that every process can make
the same shard from, as often as needed. The driver resolves the spec once, so all workers have one set of fields.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from model_store.errors import InputError, SpecError, shown
from model_store.spec.spec import ModelSpec
from trainer.examples.open_log import ONLY_WHOLE, Log, RunStart, open_log
from trainer.examples.side_tables import side_tables
from trainer.formats.batch import STDIN
from trainer.formats.reader import BATCH_BYTES, EVENTS, expand
from trainer.settings import HeldOutRows
from trainer.sources.open_sources import kind_of

_BLOCKS = 256
_SMALLEST_BLOCK = 64 * 1024
_UNEVEN = 1.5


@dataclass(frozen=True)
class LogFiles:
    """The files of a log as a run was started with them, and where a worker's part of them is.

    files: absolute paths, sizes: their bytes, names: as given; mine: the numbers of those that the worker reads;
    reader, readers: of them, every `readers`-th block from number `reader` on. block_bytes: of a block of text.
    """

    files: tuple[str, ...]
    sizes: tuple[int, ...]
    names: tuple[str, ...]
    mine: tuple[int, ...]
    reader: int = 0
    readers: int = 1
    block_bytes: int = BATCH_BYTES

    @property
    def bytes(self) -> int:
        """The bytes of this worker's part."""
        return sum(self.sizes[number] for number in self.mine) // self.readers

    def check(self) -> None:
        """Raise InputError unless this worker's files are there, as they were when the run was started."""
        for number in self.mine:
            path, size = self.files[number], self.sizes[number]
            try:
                found = os.path.getsize(path)
            except OSError as error:
                raise InputError(
                    f"{path}: {error.strerror} on the host of this worker; every worker reads its part of the log "
                    "by the same path: share the folder, or copy the file to every host"
                ) from None
            if found != size:
                raise InputError(
                    f"{path} has {found:,} bytes on the host of this worker, and had {size:,} where and when the run "
                    "was started; every worker must read the same file, which must not change during the run"
                )


@dataclass(frozen=True)
class ShardPlan:
    """All that worker number `worker` of `workers` needs to make its shard. Picklable.

    start: has the spec, resolved against the whole log; held_share: of the log's requests to hold out; held: the files
    held out; items, users: the side tables' files; memory_bytes: rows are in temporary files, and about so many bytes
    of them are handled at once; None: they are in memory; strict: the first bad row is an error; threads: that hash;
    cache: keeps the rows of each worker, whose number follows its name.
    """

    worker: int
    workers: int
    start: RunStart
    log: LogFiles
    format: str | None = None
    held_share: float = 0.0
    held: LogFiles | None = None
    items: Path | None = None
    users: Path | None = None
    memory_bytes: int | None = None
    strict: bool = False
    threads: int = 1
    cache: Path | None = None


def check_distributable(spec: ModelSpec) -> None:
    """Raise SpecError for a setting that several workers cannot keep: each key needs its state where it occurs."""
    for setting, why in _unfit(spec):
        raise SpecError(f"{setting} does not go with several workers: {why}, or use ftrie train")


def _unfit(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    """The settings that several workers cannot keep, each with the reason and the remedy."""
    section, inclusion, calibration = spec.learner, spec.learner.inclusion.kind, spec.calibration.kind
    by_key = "no worker sees all occurrences of a key; leave it out"
    if section.algorithm != "ftrl":
        remedy = 'the workers minimise the objective of FTRL-Proximal; take algorithm = "ftrl"'
        yield f'learner.algorithm = "{section.algorithm}"', remedy
    if section.buckets is not None:
        yield f"learner.{section.hashing}", "workers match keys exactly, by their whole hashes; leave it out"
    if section.precision != "f64":
        remedy = 'rounding belongs to learning row by row; take precision = "f64"'
        yield f'learner.precision = "{section.precision}"', remedy
    if inclusion != "none":
        yield f'learner.inclusion.kind = "{inclusion}"', f"{by_key}, and raise l1 for fewer keys"
    if section.ttl is not None:
        remedy = (
            "every row counts the same, whenever it was; leave it out, and leave old files out of the inputs"
        )
        yield f"learner.ttl = {section.ttl!r}", remedy
    if calibration != "none":
        remedy = (
            "curves are fitted to predictions made while learning row by row; leave it out, as the minimum of "
            "the log-loss is calibrated"
        )
        yield f'calibration.kind = "{calibration}"', remedy
    for name, rule in spec.rules.items():
        if rule.inclusion is not None and rule.inclusion.kind != "none":
            yield f'rules."{name}".inclusion', by_key
        if rule.alpha is not None:
            yield f'rules."{name}".alpha', "the minimum does not depend on a key's rate; leave it out"
    for name, field in spec.fields.items():
        if field.history is not None:
            remedy = "write the values into the log, as its column, and leave it out"
            yield (
                f'fields.{name}.history = "{field.history}"',
                f"no worker sees all events of a user; {remedy}",
            )
        if field.fixed_weight is not None:
            remedy = "the workers minimise over the weights of all keys; leave it out"
            yield f"fields.{name}.fixed_weight", remedy
    for name, variant in spec.variants.items():
        if variant.average is not None:
            remedy = "there are no weights after each example to average; leave the variant out"
            yield f"variants.{name}.average", remedy


def check_inputs(inputs: Sequence[str], format: str | None, label: str) -> None:
    """Raise InputError for standard input, which only one worker could read, and for events, which one joins."""
    if STDIN in inputs:
        raise InputError(
            "- is standard input, which several workers cannot read; write the log to a file, and name that"
        )
    if kind_of(inputs, label, format) == EVENTS:
        raise InputError(f"{inputs[0]} {ONLY_WHOLE}")


def plan_shards(
    spec: ModelSpec,
    log: Log,
    workers: int,
    *,
    held_out: HeldOutRows | None = None,
    known: Sequence[ModelSpec] = (),
    memory_bytes: int | None = None,
    strict: bool = False,
    threads: int = 1,
) -> list[ShardPlan]:
    """A plan for each worker. known: see `open_log`; for the others see `ShardPlan`. Raises SpecError, InputError.

    With as many files as workers or more, each worker gets whole files, of about the same bytes in all; with fewer,
    each reads all files and takes every `workers`-th block of rows.
    """
    check_distributable(spec)
    given = held_out or HeldOutRows()
    check_inputs([*log.inputs, *given.inputs], log.format, spec.input.label)
    with open_log(log, spec, known=known) as opened:
        start = opened.start
    parts = _deal(log, log.inputs, workers)
    held = _deal(log, given.inputs, workers) if given.inputs else [None] * workers
    _check_sample(start.resolved, parts[0], workers)
    for part in (parts, held):
        _note_uneven(log, [each for each in part if each is not None])
    tables = {table.name: table.path for table in log.tables}
    plan = ShardPlan(
        *(0, workers, start, parts[0]),
        format=log.format,
        held_share=given.share,
        items=tables.get("items"),
        users=tables.get("users"),
        memory_bytes=memory_bytes,
        strict=strict,
        threads=threads,
        cache=log.cache,
    )
    return [
        replace(plan, worker=worker, log=part, held=other)
        for worker, (part, other) in enumerate(zip(parts, held, strict=True))
    ]


def open_part(plan: ShardPlan, files: LogFiles) -> Log:
    """The log that a worker reads of these files. Raises InputError, SpecError."""
    files.check()
    tables = side_tables(plan.items, plan.users, plan.start.resolved.input)
    for table in tables:
        if plan.start.sides.get(table.name) != table.sha256:
            raise InputError(
                f"{table.path} on the host of this worker is not the file of {table.name} that the run was started "
                "with; every worker must read the same"
            )
    part = f"{'held-' if files is plan.held else ''}{plan.worker + 1}-of-{plan.workers}"
    return Log(
        [files.files[number] for number in files.mine],
        format=plan.format,
        tables=tables,
        batch_bytes=files.block_bytes,
        reader=files.reader,
        readers=files.readers,
        cache=plan.cache and plan.cache.with_name(f"{plan.cache.name}.{part}"),
        same_batches=True,
    )


def _deal(log: Log, inputs: Sequence[str], workers: int) -> list[LogFiles]:
    """Each worker's part of the files. The blocks' size does not depend on the number of workers."""
    names = expand(inputs)
    files = tuple(os.path.abspath(name) for name in names)
    sizes = tuple(os.path.getsize(name) for name in names)
    block = min(log.batch_bytes, max(_SMALLEST_BLOCK, sum(sizes) // _BLOCKS))
    whole = LogFiles(files, sizes, names, tuple(range(len(files))), block_bytes=block)
    if len(files) < workers:
        return [replace(whole, reader=worker, readers=workers) for worker in range(workers)]
    return [replace(whole, mine=mine) for mine in deal_files(files, sizes, workers)]


def deal_files(files: Sequence[str], sizes: Sequence[int], workers: int) -> list[tuple[int, ...]]:
    """The numbers of each worker's files: the largest file first, each to the worker with the fewest bytes so far."""
    loads, mine = [0] * workers, [list[int]() for _ in range(workers)]
    for number in sorted(range(len(files)), key=lambda number: (-sizes[number], files[number], number)):
        worker = min(range(workers), key=lambda each: (loads[each], len(mine[each]), each))
        loads[worker] += sizes[number]
        mine[worker].append(number)
    return [tuple(sorted(each)) for each in mine]


def _check_sample(spec: ModelSpec, part: LogFiles, workers: int) -> None:
    """Requests may not be cut where they are sampled."""
    subsample = spec.learner.subsample
    sampled = subsample is not None and subsample.unclicked < 1.0 and spec.input.request is not None
    listed = [name for name, field in spec.fields.items() if field.list is not None]
    if (sampled or listed) and part.readers > 1:
        what = "learner.subsample" if sampled else f"fields.{listed[0]}"
        raise SpecError(
            f"{what} needs the rows of each request on one worker, but {len(part.files)} files for "
            f"{workers} workers are dealt by blocks, which cut requests: write the log as {workers} files or more, "
            f"each with whole requests, or leave {what} out"
        )


def _note_uneven(log: Log, parts: Sequence[LogFiles]) -> None:
    loads = [part.bytes for part in parts]
    if loads and max(loads) > _UNEVEN * sum(loads) / len(loads):
        log.on_note(
            f"the largest part of the files has {shown(max(loads))} bytes, the mean {shown(sum(loads) // len(loads))}: "
            "the other workers wait for that one; files of similar size, or fewer files than workers, are dealt evenly"
        )
