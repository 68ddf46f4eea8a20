"""Compiles the kernels of a run before its first row, so that no progress bar waits for the compiler.

Numba specializes a loop for each learner, slot layout, admission and number of variants (docs/adr/0003). What a run
needs is compiled by learning a few rows with the same `[learner]`, from a small log in each of the run's formats.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from model_store.features.cells import Block, CellText, padded_lines
from model_store.features.numbers_kernels import read_numbers
from model_store.jit import kernels_are_cached, mark_kernels_cached, on_compile
from model_store.spec.learner_section import Inclusion, LearnerSection
from model_store.spec.sections import Cross, FieldSpec, InputSection, ModelSection, Variant
from model_store.spec.spec import ModelSpec
from trainer.events.columns import Wanted
from trainer.events.join import Join
from trainer.events.waiting_rows import Segments
from trainer.examples.hashing import ExampleMaker
from trainer.examples.open_log import Log
from trainer.formats.reader import EVENTS, FORMATS, expand, format_by_name
from trainer.formats.rejects import RejectLog
from trainer.learn.metrics.metrics import MetricsOptions
from trainer.learn.model import LearningModel
from trainer.output import SILENT, Output
from trainer.publish.delta_chain import DeltaChain
from trainer.publish.publisher import PublishCounts
from trainer.runs.dead_letters import DeadLetterOutbox
from trainer.runs.stream import EventLoop
from trainer.runs.train import train
from trainer.sources.log_files import holds_events
from trainer.sources.merge import Merger
from trainer.sources.open_sources import open_sources

_SCORING, _TRAINER = "evaluate", "trainer"  # names of what is compiled, in the kernel cache
_TEXT = "csv"
_SETS = ({"x": 2.0, "y": 1.0}, {"x": 0.5})
_ROWS = 20
_SEGMENT_BYTES = 1 << 20
_LEARNING_KERNELS, _FORMAT_KERNELS, _JOIN_KERNELS = 105, 15, 80
"""About how many kernels are compiled: for learning from CSV, for another format, for events and their join."""


def compile_kernels(
    spec: ModelSpec,
    formats: Iterable[str] = (),
    *,
    slices: bool = False,
    publishes: bool = False,
    output: Output = SILENT,
) -> None:
    """Compile the kernels of a training run of `spec` over logs of these formats; fast if all are cached.

    slices: the run has metrics of slices; publishes: it publishes while it learns.
    """
    metrics = MetricsOptions(window=1, slices=("f",) if slices else ())
    steps: list[Callable[[], None]] = [partial(_learn, _small(spec), _TEXT, metrics, publishes)]
    for format in sorted({*formats} & _LOGS.keys() - {_TEXT}):
        small = _small(spec, has_fields=format not in _NAMES_FIELDS)
        steps.append(partial(_learn, small, format, MetricsOptions(), publishes))
    steps.append(_read_numbers)
    ready = kernels_are_ready(spec, formats, slices=slices, publishes=publishes)
    with _compiling(SILENT if ready else output, _LEARNING_KERNELS + _FORMAT_KERNELS * (len(steps) - 1)):
        for step in steps:
            step()
    for part in _parts(spec, formats, slices, publishes):
        mark_kernels_cached(part)


def kernels_are_ready(
    spec: ModelSpec, formats: Iterable[str] = (), *, slices: bool = False, publishes: bool = False
) -> bool:
    """True if the kernels of such a run are in this machine's cache."""
    return all(kernels_are_cached(part) for part in _parts(spec, formats, slices, publishes))


def formats_of(inputs: Sequence[str], format: str | None = None) -> frozenset[str]:
    """The formats that a run over `inputs` may meet: all if a name does not tell, as for standard input."""
    if holds_events(inputs, format):
        return frozenset([EVENTS])
    formats = [format or format_by_name(name) for name in expand(inputs)]
    return frozenset(FORMATS if None in formats else filter(None, formats))


def compile_trainer(spec: ModelSpec, output: Output = SILENT) -> None:
    """Compile the kernels of `ftrie trainer`: those of reading and joining events, and those of learning."""
    compile_kernels(spec, publishes=True, output=output)
    if not kernels_are_cached(_TRAINER):
        with _compiling(output, _JOIN_KERNELS):
            _join_and_learn(spec)
        mark_kernels_cached(_TRAINER)


@contextmanager
def compiling_scorer(output: Output) -> Iterator[None]:
    """Show that scoring a log compiles kernels, if it does; record that they are cached once the context ends."""
    if not kernels_are_cached(_SCORING):
        output.note("compiling the kernels that score logs: some seconds, once a machine")
    yield
    mark_kernels_cached(_SCORING)


@contextmanager
def _compiling(output: Output, estimate: int) -> Iterator[None]:
    """Show how many kernels were compiled, of about `estimate`, and the present one; nothing if all are cached."""
    done = 0
    with output.progress("compiling, once a machine", estimate, "kernels") as bar:

        def compiled(name: str) -> None:
            nonlocal done
            done += 1
            bar.update(done, total=max(estimate, done + 1), now=name)

        with on_compile(compiled):
            yield


class _Discarding:
    """A publisher that makes a snapshot and a delta, and discards them."""

    def __init__(self) -> None:
        self.counts = PublishCounts()
        self.withheld = ""

    def begin(self, model: LearningModel) -> None:
        """Nothing to do."""

    def after_batch(self, model: LearningModel) -> None:
        """Make a snapshot and a delta."""
        chain = DeltaChain(model, model.artefact(), version=1)
        chain.change()


def _learn(small: ModelSpec, format: str, metrics: MetricsOptions, publishes: bool) -> None:
    with TemporaryDirectory(prefix="ftrie-") as folder, RejectLog() as rejects:
        _LOGS[format](Path(folder) / "log")
        names = sorted(map(str, Path(folder).iterdir()))
        publisher = _Discarding() if publishes else None
        run = train(small, Log(names, format), rejects=rejects, metrics=metrics, publisher=publisher)
        run.model.table.grow()
        run.model.artefact()


def _read_numbers() -> None:
    """The small logs have no field of numbers: `ftrie warmup` does not know whether the spec of a run has one."""
    block = Block.of(*padded_lines(np.frombuffer(b"1\n", np.uint8)), ",", None, 1)
    assert block is not None
    read_numbers(*CellText(block, 0).where, np.empty(1), np.empty(1, np.int32))


def _join_and_learn(spec: ModelSpec) -> None:
    """Read a few events from a file, join them and learn from them."""
    small = ModelSpec(
        model=ModelSection(name="warm-up"),
        input=InputSection(label="click"),
        fields={"f": FieldSpec(), "s": FieldSpec(kind="set")},
        join=spec.join,
    )
    with TemporaryDirectory(prefix="ftrie-") as folder:
        events = Path(folder) / "events.jsonl"
        events.write_text("".join(json.dumps(event) + "\n" for event in _EVENTS), "utf-8")
        sources = open_sources([str(events)], small, None, once=True)
        segments = Segments(Path(folder) / "segments", _SEGMENT_BYTES)
        merger = Merger(sources, Wanted.of(small), segments, once=True)
        loop = EventLoop(
            merger, Join(small.join), segments, LearningModel(ExampleMaker(small)), DeadLetterOutbox(None)
        )
        while not loop.ended:
            loop.step(1.0)
        loop.finish()
        loop.before_checkpoint()  # with [join] late = "correct" the state names segments, which must be on disk
        loop.restore(loop.state())
        merger.close()


def _small(spec: ModelSpec, *, has_fields: bool = True) -> ModelSpec:
    """The learner, variants, calibration and requests of `spec`, over the columns of the small logs."""
    return ModelSpec(
        model=ModelSection(name="warm-up"),
        input=InputSection(label="label", request="r" if spec.input.request and has_fields else None),
        fields={"f": FieldSpec(), "g": FieldSpec(kind="set")} if has_fields else {},
        crosses=(Cross(fields=("f", "g")),) if has_fields else (),
        variants={"a": Variant(), "b": Variant()} if len(spec.variants) > 1 else {"a": Variant()},
        learner=_without_times(spec),
        calibration=spec.calibration.model_copy(update={"by": None}),
        guard=spec.guard,
    )


def _without_times(spec: ModelSpec) -> LearnerSection:
    """The spec's learner with the same kind of admission, for a log without times."""
    changes: dict[str, object] = {"ttl": 10 if spec.learner.ttl is not None else None}
    changes["inclusion"] = Inclusion(kind="poisson", p=0.5) if _admits_by_rule(spec) else Inclusion()
    return spec.learner.model_copy(update=changes)


def _admits_by_rule(spec: ModelSpec) -> bool:
    inclusions = [spec.learner.inclusion, *(rule.inclusion for rule in spec.rules.values())]
    return any(each is not None and each.kind != "none" for each in inclusions)


def _parts(spec: ModelSpec, formats: Iterable[str], slices: bool, publishes: bool) -> list[str]:
    """Names of the kernels that such a run needs, each with its own entry in the cache."""
    read = [f"read-{format}" for format in sorted({*formats} & _LOGS.keys() - {_TEXT})]
    return [_part(spec) + ("-publishing" if publishes else ""), *read, *(["slices"] if slices else [])]


def _part(spec: ModelSpec) -> str:
    section = spec.learner
    names: list[str] = [
        section.algorithm,
        section.rate,
        section.values,
        section.precision,
        spec.calibration.kind,
    ]
    names += ["several" if len(spec.variants) > 1 else "one", "rules" if _admits_by_rule(spec) else "all"]
    names += ["buckets"] if section.buckets is not None else []
    names += ["ttl"] if section.ttl is not None else []
    names += ["requests"] if spec.input.request is not None else []
    names += ["sampled"] if section.subsample is not None else []
    names += ["guarded"] if spec.guard is not None else []
    return "-".join(["train", *names])


def _write_csv(log: Path) -> None:
    cells = [json.dumps(each).replace('"', '""') for each in _SETS]
    rows = f'1,a,"{cells[0]}",q\n0,"b","{cells[1]}",\n'
    log.write_text("label,f,g,r\n" + rows * _ROWS, encoding="utf-8")
    # Blocks without quotes are read by other kernels.
    log.with_name("plain").write_text("label,f,g,r\n" + "1,a,,q\n0,%,,\n" * _ROWS, encoding="utf-8")


def _write_jsonl(log: Path) -> None:
    rows = [{"label": y, "f": "a", "g": each, "r": "q"} for y, each in zip((1, 0), _SETS, strict=True)]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows) * _ROWS, encoding="utf-8")
    # Flat objects are read by other kernels.
    flat = json.dumps({**rows[0], "g": "x,y"}) + "\n"
    log.with_name("plain").write_text(flat * _ROWS, encoding="utf-8")


def _write_parquet(log: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    repeated = pa.array([[("x", 2.0), ("x", 0.5)], [("y", 1.0)]] * _ROWS, pa.map_(pa.string(), pa.float64()))
    named = {"label": [1, 0] * _ROWS, "f": ["a", "b"] * _ROWS, "g": repeated, "r": ["q", ""] * _ROWS}
    pq.write_table(pa.table(named), log)


def _write_events(log: Path) -> None:
    shown = [{"id": str(number), "features": {"f": "a", "g": each}} for number, each in enumerate(_SETS)]
    events = [
        event
        for number in range(_ROWS)
        for event in (
            {"request_id": number, "ts": number, "items": shown},
            {"request_id": number, "ts": number, "item": "0"},
        )
    ]
    log.write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")


def _write_text(rows: str) -> Callable[[Path], None]:
    def write(log: Path) -> None:
        log.write_text(rows * _ROWS, encoding="utf-8")

    return write


_NAMES_FIELDS = ("vw", "libsvm", "libffm")
_LOGS: dict[str, Callable[[Path], None]] = {
    _TEXT: _write_csv,
    "jsonl": _write_jsonl,
    "parquet": _write_parquet,
    EVENTS: _write_events,
    "vw": _write_text("1 2 't|f a:2 a |g:0.5 b\n-1 |f c\n"),
    "libsvm": _write_text("1 3:1 5:0.5 3:2\n-1 4:1\n"),
    "libffm": _write_text("1 0:3:1 1:5:0.5 0:3:2\n0 0:4:1\n"),
}
_IMPRESSION = {
    "request_id": "r",
    "ts": 1,
    "items": [{"id": "a", "features": {"f": "x", "s": ["y"]}}, {"id": "b"}],
}
_EVENTS = (
    _IMPRESSION,
    {"request_id": "r", "ts": 2, "item": "a"},
    {"request_id": "s", "ts": 3, "item": "a"},
)
