"""Compiles the kernels of a run before its first row, so that no progress bar waits for the compiler.

Numba specializes a loop for each learner, slot layout, admission and number of variants (docs/adr/0003). What a run
needs is compiled by learning a few rows with the same `[learner]`, from a small log in each of the run's formats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from model_store.jit import kernels_are_cached, mark_kernels_cached, on_compile
from model_store.spec.learner_section import Inclusion
from model_store.spec.sections import Cross, FieldSpec, InputSection, ModelSection, Variant
from model_store.spec.spec import ModelSpec, parse_spec
from trainer.checkpoint import Checkpoints
from trainer.events.columns import Wanted
from trainer.events.join import Join
from trainer.events.waiting_rows import Segments
from trainer.examples.hashing import ExampleMaker
from trainer.examples.open_log import Log
from trainer.formats.cells import Block, CellText, padded_lines
from trainer.formats.numbers_kernels import read_numbers
from trainer.formats.reader import EVENTS, FORMATS, expand, format_by_name
from trainer.formats.rejects import RejectLog
from trainer.learn.metrics.metrics import MetricsOptions
from trainer.learn.model import LearningModel
from trainer.output import SILENT, Output
from trainer.publish.delta_chain import DeltaChain
from trainer.publish.publisher import BatchPublisher, PublishCounts
from trainer.runs.loop import PassOptions
from trainer.runs.stream import DeadLetterOutbox, EventLoop
from trainer.runs.train import Run, train
from trainer.settings import Every
from trainer.sources.merge import Merger
from trainer.sources.open_sources import kind_of, open_sources

_SCORING, _TRAINER = "evaluate", "trainer"  # names of what is compiled, in the kernel cache
_TEXT = "csv"
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


def formats_of(log: Log, more: Sequence[str] = ()) -> frozenset[str]:
    """The formats that a run over a log and `more` files may meet; all if a name does not tell, as for stdin."""
    inputs, format = [*log.inputs, *more], log.format
    if log.table is not None:
        return frozenset(["parquet"])  # a table in memory comes as Arrow batches, as Parquet does
    if kind_of(inputs, format=format) == EVENTS:
        return frozenset([EVENTS])
    formats = [format or format_by_name(name) for name in expand(inputs)]
    return frozenset(FORMATS if None in formats else filter(None, formats))


def train_compiled(
    spec: ModelSpec,
    log: Log,
    *,
    metrics: MetricsOptions,
    passes: PassOptions,
    publisher: BatchPublisher | None = None,
    output: Output,
    **options: Any,
) -> Run:
    """`train` once the kernels are compiled: its clock counts learning alone. Raises SpecError for such passes."""
    passes.check(spec)
    compiled = {"slices": bool(metrics.slices), "publishes": publisher is not None}
    compile_kernels(spec, formats_of(log), **compiled, output=output)
    return train(spec, log, metrics=metrics, passes=passes, publisher=publisher, output=output, **options)


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

    counts, withheld = PublishCounts(), ""

    def begin(self, model: LearningModel) -> None:
        """Nothing to do."""

    def after_batch(self, model: LearningModel) -> None:
        """Make a snapshot and a delta."""
        DeltaChain(model, model.artefact(), version=1).change()


def _learn(small: ModelSpec, format: str, metrics: MetricsOptions, publishes: bool) -> None:
    with TemporaryDirectory(prefix="ftrie-") as folder, RejectLog() as rejects:
        publisher = _Discarding() if publishes else None
        log = Log(_written(format, Path(folder)), format)
        run = train(small, log, rejects=rejects, metrics=metrics, publisher=publisher)
        run.model.table.grow()
        run.model.artefact()


def _written(format: str, folder: Path) -> list[str]:
    """The small logs of a format, as files."""
    if format == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        sets = pa.array([[("x", 2.0), ("x", 0.5)], [("y", 1.0)]] * _ROWS, pa.map_(pa.string(), pa.float64()))
        named = {"label": [1, 0] * _ROWS, "f": ["a", "b"] * _ROWS, "g": sets, "r": ["q", ""] * _ROWS}
        pq.write_table(pa.table(named), folder / "0")
    for number, text in enumerate(_LOGS[format]):
        (folder / str(number)).write_text(text, "utf-8")
    return sorted(map(str, folder.iterdir()))


def _read_numbers() -> None:
    """The small logs have no field of numbers: `ftrie warmup` does not know whether the spec of a run has one."""
    block = Block.of(*padded_lines(np.frombuffer(b"1\n", np.uint8)), ",", None, 1)
    assert block is not None
    read_numbers(*CellText(block, 0).where, np.empty(1), np.empty(1, np.int32))


def _join_and_learn(spec: ModelSpec) -> None:
    """Read a few events from a file, join them and learn from them."""
    small = _small(parse_spec('[model]\nname = "warm-up"\n[input]\nlabel = "click"\n'))
    small = small.model_copy(update={"crosses": (), "join": spec.join})
    with TemporaryDirectory(prefix="ftrie-") as folder, ExitStack() as stack:
        events = Path(folder) / "events.jsonl"
        events.write_text(_EVENTS, "utf-8")
        sources = open_sources([str(events)], small, None, once=True)
        segments = Segments(Path(folder) / "segments", _SEGMENT_BYTES)
        merger = Merger(sources, Wanted.of(small), segments, once=True)
        stack.callback(merger.close)
        model = LearningModel(ExampleMaker(small))
        # With [join] late = "correct" the state names segments, which a checkpoint has written before it is read back.
        checkpoints = stack.enter_context(Checkpoints(Path(folder) / "state", Every(1, None), small))
        parts = (merger, Join(small.join), segments, model, DeadLetterOutbox(None))
        loop = EventLoop(*parts, checkpoints=checkpoints)
        while not loop.ended:
            loop.step(1.0)
        loop.finish()
        loop.save()
        loop.restore(loop.state())


def _small(spec: ModelSpec, *, has_fields: bool = True) -> ModelSpec:
    """The learner, variants, calibration and requests of `spec`, over the columns of the small logs, without times."""
    learner: dict[str, object] = {"ttl": 10 if spec.learner.ttl is not None else None}
    learner["inclusion"] = Inclusion(kind="poisson", p=0.5) if _admits_by_rule(spec) else Inclusion()
    return ModelSpec(
        model=ModelSection(name="warm-up"),
        input=InputSection(label="label", request="r" if spec.input.request and has_fields else None),
        fields={"f": FieldSpec(), "g": FieldSpec(kind="set")} if has_fields else {},
        crosses=(Cross(fields=("f", "g")),) if has_fields else (),
        variants={"a": Variant(), "b": Variant()} if len(spec.variants) > 1 else {"a": Variant()},
        learner=spec.learner.model_copy(update=learner),
        calibration=spec.calibration.model_copy(update={"by": None}),
        guard=spec.guard,
    )


def _admits_by_rule(spec: ModelSpec) -> bool:
    inclusions = [spec.learner.inclusion, *(rule.inclusion for rule in spec.rules.values())]
    return any(each is not None and each.kind != "none" for each in inclusions)


def _parts(spec: ModelSpec, formats: Iterable[str], slices: bool, publishes: bool) -> list[str]:
    """Names of the kernels that such a run needs, each with its own entry in the cache."""
    section = spec.learner
    chosen = {
        "several": len(spec.variants) > 1,
        "one": len(spec.variants) == 1,
        "rules": _admits_by_rule(spec),
        "all": not _admits_by_rule(spec),
        "buckets": section.buckets is not None,
        "ttl": section.ttl is not None,
        "requests": spec.input.request is not None,
        "sampled": section.subsample is not None,
        "guarded": spec.guard is not None,
        "publishing": publishes,
    }
    kinds = [section.algorithm, section.rate, section.values, section.precision, spec.calibration.kind]
    train = "-".join(["train", *kinds, *(name for name, applies in chosen.items() if applies)])
    read = [f"read-{format}" for format in sorted({*formats} & _LOGS.keys() - {_TEXT})]
    return [train, *read, *(["slices"] if slices else [])]


_NAMES_FIELDS = ("vw", "libsvm", "libffm")
_HEAD = "label,f,g,r\n"
# Blocks with quotes and without, texts and lists, are read by different kernels.
_LOGS: dict[str, tuple[str, ...]] = {
    _TEXT: (
        _HEAD + '1,a,"{""x"": 2.0, ""y"": 1.0}",q\n0,"b","{""x"": 0.5}",\n' * _ROWS,
        _HEAD + "1,a,,q\n0,%,,\n" * _ROWS,
    ),
    "jsonl": (
        '{"label": 1, "f": "a", "g": {"x": 2.0, "y": 1.0}, "r": "q"}\n'
        '{"label": 0, "f": "a", "g": {"x": 0.5}, "r": "q"}\n' * _ROWS,
        '{"label": 1, "f": "a", "g": "x,y", "r": "q"}\n' * _ROWS,
        '{"label": 1, "f": "a", "g": ["x"], "r": "q"}\n' * _ROWS,
    ),
    "parquet": (),
    EVENTS: (
        '{"request_id": "r", "ts": 1, "items": [{"id": "0", "features": {"f": "a", "g": {"x": 2.0, "y": 1.0}}}, '
        '{"id": "1", "features": {"f": "a", "g": {"x": 0.5}}}]}\n{"request_id": "r", "ts": 2, "item": "0"}\n',
    ),
    "vw": ("1 2 't|f a:2 a |g:0.5 b\n-1 |f c\n" * _ROWS,),
    "libsvm": ("1 3:1 5:0.5 3:2\n-1 4:1\n" * _ROWS,),
    "libffm": ("1 0:3:1 1:5:0.5 0:3:2\n0 0:4:1\n" * _ROWS,),
}
_EVENTS = """\
{"request_id": "r", "ts": 1, "items": [{"id": "a", "features": {"f": "x", "g": ["y"]}}, {"id": "b"}]}
{"request_id": "r", "ts": 2, "item": "a"}
{"request_id": "s", "ts": 3, "item": "a"}
"""
