"""Compiling the kernels of a run before its rows come, so that its progress bar never holds the compiler.

Numba compiles a loop for the learner, the layout, the admission and the number of variants that it meets
(docs/adr/0003). What a run will meet is found by learning a few rows with the same `[learner]`, read from a log of each
of the run's formats.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from model_store.jit import kernels_are_cached, mark_kernels_cached
from model_store.spec.learner_section import Inclusion, LearnerSection
from model_store.spec.sections import Cross, FieldSpec, InputSection, ModelSection, Variant
from model_store.spec.spec import ModelSpec
from trainer.examples.open_log import Log
from trainer.learn.metrics.metrics import MetricsOptions
from trainer.learn.model import LearningModel
from trainer.logs.batch import expand
from trainer.logs.reader import FORMATS, format_by_name
from trainer.logs.rejects import RejectLog
from trainer.output import Output
from trainer.publish.delta_chain import DeltaChain
from trainer.publish.publisher import PublishCounts
from trainer.runs.train import train

_SCORING = "evaluate"
_TEXT = "csv"
_SETS = ({"x": 2.0, "y": 1.0}, {"x": 0.5})
_ROWS = 20


def formats_of(inputs: Sequence[str], format: str | None = None) -> frozenset[str]:
    """The formats that a run over `inputs` may meet: all of them where a name does not tell, as for standard input."""
    formats = [format or format_by_name(name) for name in expand(inputs)]
    return frozenset(FORMATS if None in formats else filter(None, formats))


def kernels_are_ready(
    spec: ModelSpec, formats: Iterable[str] = (), *, slices: bool = False, publishes: bool = False
) -> bool:
    """True if the kernels of such a run were compiled on this machine before."""
    return all(kernels_are_cached(part) for part in _parts(spec, formats, slices, publishes))


def compile_kernels(
    spec: ModelSpec, formats: Iterable[str] = (), *, slices: bool = False, publishes: bool = False
) -> None:
    """Compile every kernel that a run of `spec` over logs of these formats needs; fast where that was done before.

    slices: the run watches slices; publishes: it publishes while it learns.
    """
    metrics = MetricsOptions(window=1, slices=("f",) if slices else ())
    _learn(_small(spec), _TEXT, metrics, publishes)
    for format in sorted({*formats} & _LOGS.keys() - {_TEXT}):
        _learn(_small(spec, has_fields=format not in _NAMES_FIELDS), format, MetricsOptions(), publishes)
    for part in _parts(spec, formats, slices, publishes):
        mark_kernels_cached(part)


def announce_scoring(output: Output) -> None:
    """Note that the kernels that score a log must be compiled first, if they must."""
    if not kernels_are_cached(_SCORING):
        output.note("compiling kernels for the first time; some seconds, once")


def mark_scoring() -> None:
    """Remember that the kernels that score a log were compiled."""
    mark_kernels_cached(_SCORING)


class _Rehearsal:
    """Makes what a publisher makes, and publishes none of it."""

    def __init__(self) -> None:
        self.counts = PublishCounts()
        self.withheld = ""

    def begin(self, model: LearningModel) -> None:
        """Nothing is learned yet."""

    def after_batch(self, model: LearningModel) -> None:
        """Make a snapshot, and a delta of it."""
        chain = DeltaChain(model, model.artefact(), version=1)
        chain.change()


def _learn(small: ModelSpec, format: str, metrics: MetricsOptions, publishes: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="ftrie-") as folder, RejectLog() as rejects:
        log = Path(folder) / "log"
        _LOGS[format](log)
        publisher = _Rehearsal() if publishes else None
        run = train(small, Log([str(log)], format), rejects=rejects, metrics=metrics, publisher=publisher)
        run.model.table.grow()
        run.model.artefact()


def _small(spec: ModelSpec, *, has_fields: bool = True) -> ModelSpec:
    """What `spec` has of learner, variants, calibration and requests, over the columns of the small logs."""
    return ModelSpec(
        model=ModelSection(name="x"),
        input=InputSection(label="label", request="r" if spec.input.request and has_fields else None),
        fields={"f": FieldSpec(), "g": FieldSpec(kind="set")} if has_fields else {},
        crosses=(Cross(fields=("f", "g")),) if has_fields else (),
        variants={"a": Variant(), "b": Variant()} if len(spec.variants) > 1 else {"a": Variant()},
        learner=_without_a_clock(spec),
        calibration=spec.calibration.model_copy(update={"by": None}),
        guard=spec.guard,
    )


def _without_a_clock(spec: ModelSpec) -> LearnerSection:
    """The spec's learner, its admission of the same kind, on a log without times."""
    changes: dict[str, object] = {"ttl": 10 if spec.learner.ttl is not None else None}
    changes["inclusion"] = Inclusion(kind="poisson", p=0.5) if _admits_by_rule(spec) else Inclusion()
    return spec.learner.model_copy(update=changes)


def _admits_by_rule(spec: ModelSpec) -> bool:
    inclusions = [spec.learner.inclusion, *(rule.inclusion for rule in spec.rules.values())]
    return any(each is not None and each.kind != "none" for each in inclusions)


def _parts(spec: ModelSpec, formats: Iterable[str], slices: bool, publishes: bool) -> list[str]:
    """Names of what is compiled, each remembered for itself."""
    read = [f"read-{format}" for format in sorted({*formats} & _LOGS.keys() - {_TEXT})]
    return [_part(spec) + ("-publishing" if publishes else ""), *read, *(["slices"] if slices else [])]


def _part(spec: ModelSpec) -> str:
    section = spec.learner
    words: list[str] = [
        section.algorithm,
        section.rate,
        section.values,
        section.precision,
        spec.calibration.kind,
    ]
    words += ["several" if len(spec.variants) > 1 else "one", "rules" if _admits_by_rule(spec) else "all"]
    words += ["ttl"] if section.ttl is not None else []
    words += ["requests"] if spec.input.request is not None else []
    words += ["sampled"] if section.subsample is not None else []
    words += ["guarded"] if spec.guard is not None else []
    return "-".join(["train", *words])


def _write_csv(log: Path) -> None:
    cells = [json.dumps(each).replace('"', '""') for each in _SETS]
    rows = f'1,a,"{cells[0]}",q\n0,"b","{cells[1]}",\n'
    log.write_text("label,f,g,r\n" + rows * _ROWS, encoding="utf-8")


def _write_jsonl(log: Path) -> None:
    rows = [{"label": y, "f": "a", "g": each, "r": "q"} for y, each in zip((1, 0), _SETS, strict=True)]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows) * _ROWS, encoding="utf-8")


def _write_parquet(log: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    repeated = pa.array([[("x", 2.0), ("x", 0.5)], [("y", 1.0)]] * _ROWS, pa.map_(pa.string(), pa.float64()))
    named = {"label": [1, 0] * _ROWS, "f": ["a", "b"] * _ROWS, "g": repeated, "r": ["q", ""] * _ROWS}
    pq.write_table(pa.table(named), log)


def _write_text(rows: str) -> Callable[[Path], None]:
    def write(log: Path) -> None:
        log.write_text(rows * _ROWS, encoding="utf-8")

    return write


_NAMES_FIELDS = ("vw", "libsvm", "libffm")
_LOGS: dict[str, Callable[[Path], None]] = {
    _TEXT: _write_csv,
    "jsonl": _write_jsonl,
    "parquet": _write_parquet,
    "vw": _write_text("1 2 't|f a:2 a |g:0.5 b\n-1 |f c\n"),
    "libsvm": _write_text("1 3:1 5:0.5 3:2\n-1 4:1\n"),
    "libffm": _write_text("1 0:3:1 1:5:0.5 0:3:2\n0 0:4:1\n"),
}
