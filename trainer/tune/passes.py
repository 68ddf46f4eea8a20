"""One pass over a log for many models: each batch is read and hashed once, and learned by every model in turn.

Models of one pass differ in the learner alone, so the hashed rows are the same for all of them. `RepeatedLog.learn`
takes a pass from the search's state file where that has it. That file is one JSON document: the format, what the search
is of (log, spec, options), the passes by key, and a SHA-256 of all that. It is replaced as a whole after every pass, so
a pass is in it or not. A key is a digest of everything that the pass depends on beside the log.

All candidates predict the same rows, so the difference of two has far less noise than either loss. Rows near each other
are not independent: a user's rows, a request's candidates and what a learner knows at the time all last for a while.
So a block of consecutive rows counts as one observation. Blocks grow with the log: 16 rows at first; whenever 256 are
full, neighbours are merged, so a log of more than 2,048 rows has 128 to 256.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import PlainSerializer, PlainValidator, TypeAdapter

from model_store.bounded import json_value
from model_store.errors import CheckpointError, InputError
from model_store.features.features import FeaturePlan
from model_store.files import check_writable, write_whole
from model_store.ratios import t_quantile
from model_store.spec.spec import ModelSpec
from trainer.examples.hashing import ExampleMaker, Examples
from trainer.examples.open_log import Log, examples_of, open_log
from trainer.formats.batch import STDIN, RowBatch
from trainer.formats.reader import expand
from trainer.formats.rejects import RejectLog
from trainer.learn.metrics.metrics import MetricsOptions, ProgressiveMetrics
from trainer.learn.metrics.records import VariantMetrics
from trainer.learn.metrics.requests import RequestMeasure, RequestMetrics
from trainer.learn.model import LearningModel, whole_requests
from trainer.learn.predictions_kernels import Predictions
from trainer.tune.candidates import CandidateGroup

# --- The state file ---


STATE_FORMAT = "ftrie-tune"
STATE_VERSION = 1


class SearchState:
    """The finished passes of one search. `kept`: how many of them were found when it was opened.

    identity: what the search is of, by name; a state of something else is refused.
    """

    def __init__(self, path: Path, identity: Mapping[str, str]) -> None:
        """Open the file, or begin it. Raises OutputError, CheckpointError for a damaged file or another search's."""
        check_writable(path)
        self._path, self._identity = path, dict(identity)
        self._passes: dict[str, Any] = _read(path, self._identity) if path.exists() else {}
        self.kept = len(self._passes)

    @staticmethod
    def key(*parts: object) -> str:
        """The key of a pass."""
        return hashlib.sha256(_text(parts)).hexdigest()

    def get(self, key: str) -> Any:
        """The result of a pass, or None."""
        return self._passes.get(key)

    def put(self, key: str, result: Mapping[str, Any]) -> None:
        """Keep the result of a pass; it is on disk when this returns. Raises OutputError."""
        self._passes[key] = result
        body = {"identity": self._identity, "passes": self._passes}
        document = {"format": STATE_FORMAT, "version": STATE_VERSION, "sha256": _digest(body), **body}
        write_whole(self._path, _text(document) + b"\n")


def log_identity(log: Log) -> str:
    """A digest of the log's bytes, those of its side tables, and its format. Raises InputError."""
    digest = hashlib.sha256()
    for name in expand(log.inputs):
        if name == STDIN:
            raise InputError(
                "- (standard input) cannot be read again by a search that goes on: use files, or no --state"
            )
        try:
            with Path(name).open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise InputError(f"cannot read {name}: {error.strerror}") from None
    tables = [(table.name, table.sha256, table.key) for table in log.tables]
    digest.update(_text([log.format, tables]))
    return digest.hexdigest()


def _read(path: Path, identity: Mapping[str, str]) -> dict[str, Any]:
    try:
        found = json_value(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"cannot read the state {path}: {error.strerror}") from None
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.get("format") != STATE_FORMAT:
        raise CheckpointError(f"{path} is not a state of `ftrie tune`; name another file")
    if found.get("version") != STATE_VERSION:
        raise CheckpointError(
            f"{path} is a state of version {found.get('version')}; this ftrie reads version {STATE_VERSION}: delete it"
        )
    body: dict[str, Any] = {name: found.get(name) for name in ("identity", "passes")}
    if found.get("sha256") != _digest(body):
        raise CheckpointError(f"{path} is damaged: its checksum does not match; delete it")
    for name, value in identity.items():
        if body["identity"].get(name) != value:
            raise CheckpointError(
                f"{path} is the state of a search with another {name}; go on with that {name}, or name another file"
            )
    passes: dict[str, Any] = body["passes"]
    return passes


def _digest(document: object) -> str:
    return hashlib.sha256(_text(document)).hexdigest()


def _text(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":"), sort_keys=True, allow_nan=False).encode()


# --- Paired differences ---


FIRST_BLOCK_ROWS = 16
MOST_BLOCKS = 256
LEAST_BLOCKS = 8

Floats = npt.NDArray[np.float64]


class BlockSums:
    """Sums of columns of numbers by blocks of consecutive rows. Memory: 256 numbers a column."""

    def __init__(self, columns: int) -> None:
        self.block_rows = FIRST_BLOCK_ROWS
        self._rows = 0
        self._sums = np.zeros((MOST_BLOCKS, columns))

    def add(self, numbers: Floats) -> None:
        """Add the next rows: float64[rows, columns]."""
        first, end = self._rows, self._rows + numbers.shape[0]
        if first == end:
            return
        while end > self.block_rows * MOST_BLOCKS:
            half = MOST_BLOCKS // 2
            self._sums[:half] = self._sums[::2] + self._sums[1::2]
            self._sums[half:] = 0.0
            self.block_rows *= 2
        blocks = np.arange(first // self.block_rows, (end - 1) // self.block_rows + 1)
        starts = np.maximum(blocks * self.block_rows - first, 0)
        self._sums[blocks] += np.add.reduceat(numbers, starts, axis=0)
        self._rows = end

    def sums(self) -> Floats:
        """The sums of the blocks so far: float64[blocks, columns]."""
        return self._sums[: -(-self._rows // self.block_rows)].copy()


@dataclass(frozen=True)
class PairedDifference:
    """The mean of a paired difference by row, and its standard error over `blocks` blocks; None where too few."""

    mean: float
    error: float | None
    blocks: int

    @classmethod
    def of(cls, one: Floats, other: Floats, weights: Floats) -> PairedDifference:
        """`one` minus `other`, each a sum by block; weights: the sum of each block's weights.

        The error is that of a ratio of sums over clusters, linearised (Cochran 1977, section 6.3).
        """
        total, blocks = float(weights.sum()), int(np.count_nonzero(weights))
        mean = float((one - other).sum()) / total if total else 0.0
        if blocks < LEAST_BLOCKS:
            return cls(mean, None, blocks)
        residuals = one - other - mean * weights
        variance = float(residuals @ residuals) * blocks / (blocks - 1)
        return cls(mean, math.sqrt(variance) / total, blocks)

    def interval(self, level: float = 0.95) -> tuple[float, float] | None:
        """The two-sided confidence interval; None where there are too few blocks."""
        if self.error is None:
            return None
        half = t_quantile(0.5 + level / 2.0, self.blocks - 1) * self.error
        return self.mean - half, self.mean + half

    def is_above_zero(self, error_rate: float) -> bool:
        """Whether the one-sided t test at this error rate says that the mean is above 0."""
        if not self.error:
            return False
        return self.mean / self.error > t_quantile(1.0 - error_rate, self.blocks - 1)

    @property
    def may_be_zero(self) -> bool:
        """True unless the 95 % interval excludes 0."""
        interval = self.interval()
        return interval is None or interval[0] <= 0.0 <= interval[1]

    def as_dict(self) -> dict[str, float | None]:
        """The mean and its 95 % interval."""
        low, high = self.interval() or (None, None)
        return {"mean": self.mean, "low": low, "high": high}


# --- Passes ---


Column = Annotated[
    Floats,
    PlainValidator(lambda numbers: np.array(numbers, np.float64)),
    PlainSerializer(lambda array: array.tolist()),
]
"""Numbers that the state file keeps as a list, without a changed bit."""
Expected = Callable[[int], int | None]
"""An estimate of all rows, of how many were taken."""


@dataclass(frozen=True)
class RepeatedLog:
    """A log that is learned several times. on_progress: receives the rows taken so far and the rows expected.

    state: keeps finished passes, so that they are not repeated.
    """

    log: Log
    threads: int | None = None
    on_progress: Callable[[int, int | None], None] = field(default=lambda rows, expected: None)
    state: SearchState | None = None

    @contextmanager
    def examples(self, spec: ModelSpec) -> Iterator[tuple[ModelSpec, Expected, Iterator[Examples]]]:
        """Open the log and hash its rows by the spec; the spec, resolved, and how many rows to expect beside them."""
        with open_log(self.log, spec) as opened, opened.examples(self.threads) as stream:
            yield opened.spec, opened.expected_rows, stream

    def learn(
        self,
        groups: Sequence[CandidateGroup],
        *,
        rows: int | None = None,
        compare_from: int = 0,
        measure: RequestMeasure | None = None,
        frozen: bool = False,
        ahead: int = 0,
    ) -> Pass:
        """Learn the first `rows` rows (None: all) with the model of each group; compare those from `compare_from` on.

        measure: compare by it instead of the log-loss. Raises SpecError if the log has no requests then. frozen: the
        rows compared by are predicted and not learned, as by a model that was published before them. ahead: every so
        many rows are predicted before any of them is learned, as by models that are made again and again; they are in
        memory. Nothing is learned where the state has this pass.
        """
        state, key = self.state, ""
        if state is not None:
            learning = [[each.spec.to_json(), list(each.candidates), list(each.variants)] for each in groups]
            key = state.key(learning, rows, compare_from, str(measure), frozen, ahead)
            if (kept := state.get(key)) is not None:
                return _KEPT.validate_python(kept)
        models: list[LearningModel] = []
        held: list[Examples] = []
        learned = seen = 0
        rejects = RejectLog()
        with self.examples(groups[0].spec) as (resolved, expected_rows, stream):
            of_log = {"fields": resolved.fields, "input": resolved.input}
            if measure is not None:
                measure.check(resolved.input.request)

            def taken() -> Iterator[Examples]:
                nonlocal learned
                for examples in stream:
                    rejects.add_all(examples.rejects)
                    size = int(examples.hashed.labels.size)
                    if rows is not None and learned + size > rows:
                        examples, size = examples.part(0, rows - learned), rows - learned
                    yield examples
                    learned += size
                    expected = expected_rows(learned)
                    self.on_progress(
                        learned, expected if rows is None or expected is None else min(rows, expected)
                    )
                    if learned == rows:
                        return

            def learn_held() -> None:
                for model in models:
                    for each in held:
                        model.judge(each)
                    for each in held:
                        model.learn_judged(each)
                held.clear()

            whole = measure is not None and not frozen
            pieces = cut(taken(), ahead) if ahead else taken()
            for parts in whole_requests(pieces) if whole else zip(pieces):
                models = models or [
                    LearningModel(
                        # Fields and input are resolved against the log.
                        ExampleMaker(each.spec.model_copy(update=of_log)),
                        LateMetricsOptions(begin=compare_from, measure=measure),
                    )
                    for each in groups
                ]
                if ahead:
                    held += parts
                    if sum(each.rows.size for each in held) >= ahead:
                        learn_held()
                    continue
                to_learn = max(compare_from - seen, 0) if frozen else None
                seen += parts[0].rows.size
                for model in models:
                    if whole:
                        model.learn_requests(parts)
                        continue
                    model.learn(parts[0] if to_learn is None else parts[0].part(0, to_learn))
                    if to_learn is not None:
                        model.judge(parts[0].part(to_learn))
            learn_held()
        outcomes = dict[int, Outcome]()
        for model, group in zip(models, groups, strict=False):
            outcomes |= _outcomes(model, group)
        weights = _late(models[0]).blocks.sums()[:, -1] if models else np.zeros(0)
        made = Pass(learned, max(learned - compare_from, 0), rejects.count, weights, outcomes)
        if state is not None:
            state.put(key, _KEPT.dump_python(made, mode="json"))
        return made


@dataclass(frozen=True)
class Outcome:
    """What a candidate did over the compared rows.

    sums: the sum of weight x log-loss of each block of rows, or of a measure of each block of judged requests; measure:
    its mean over them; nonzero: non-zero weights at the end of the pass; crosses, fields: keys of each in the table.
    """

    metrics: VariantMetrics
    nonzero: int
    sums: Column
    measure: float | None = None
    crosses: Mapping[str, int] = field(default_factory=dict)
    fields: Mapping[str, int] = field(default_factory=dict)

    def figures(self) -> dict[str, float | None]:
        """Log-loss, AUC, non-zero weights, and the measure if there is one, as JSON."""
        found = {"logloss": self.metrics.logloss, "auc": self.metrics.auc, "nonzero": self.nonzero}
        return found if self.measure is None else found | {"measure": self.measure}


@dataclass(frozen=True)
class Pass:
    """The result of a pass: rows learned, compared and rejected, and each candidate's outcome by its index.

    weights: the sum of the weights of each block of compared rows, or its judged requests.
    """

    rows: int
    judged_rows: int
    rejected: int
    weights: Column
    outcomes: dict[int, Outcome]


_KEPT = TypeAdapter(Pass)


def cut(stream: Iterable[Examples], size: int) -> Iterator[Examples]:
    """The same rows, in batches that end at each multiple of `size`."""
    seen = 0
    for examples in stream:
        rows = int(examples.hashed.labels.size)
        ends = [*range(size - seen % size, rows, size), rows]
        for begin, end in pairwise([0, *ends]):
            yield examples.part(begin, end)
        seen += rows


def _outcomes(model: LearningModel, group: CandidateGroup) -> dict[int, Outcome]:
    metrics, measures = list(model.metrics.summary().values()), _late(model).measures()
    sums = _late(model).blocks.sums()
    keys = model.table.keys()
    weights, masks = model.coordinates.weights(keys), model.coordinates.masks_of(keys)
    plan, owners = model.maker.plan, model.maker.feature_rules.owner[keys.features]
    found = {}
    for index, variant in zip(group.candidates, group.variants, strict=True):
        used = (masks >> np.uint32(variant) & np.uint32(1)) != 0
        own = weights[:, variant if weights.shape[1] > 1 else 0]
        by_owner = np.bincount(owners[used], minlength=1 + len(plan.fields) + len(plan.crosses))
        of_crosses = by_owner[1 + len(plan.fields) :].tolist()
        crosses = {cross.name: keys for cross, keys in zip(plan.crosses, of_crosses, strict=True) if keys}
        alone = metrics[variant].model_copy(update={"difference": None})
        nonzero = int(np.count_nonzero(own[used]))
        fields = dict(zip((each.name for each in plan.fields), by_owner[1:].tolist(), strict=False))
        found[index] = Outcome(alone, nonzero, sums[:, variant], measures[variant], crosses, fields)
    return found


def _late(model: LearningModel) -> LateMetrics:
    assert isinstance(model.metrics, LateMetrics)
    return model.metrics


@dataclass(frozen=True)
class LateMetricsOptions(MetricsOptions):
    """Options for metrics that skip the rows before `begin`, counted from 0, and take a measure of requests."""

    begin: int = 0
    measure: RequestMeasure | None = None

    def metrics(self, spec: ModelSpec, plan: FeaturePlan) -> ProgressiveMetrics:
        """Metrics of the rows from `begin` on."""
        return LateMetrics(plan.variants, self.begin, self.measure)


class LateMetrics(ProgressiveMetrics):
    """Progressive metrics without the first `begin` rows, which are learned all the same.

    blocks: the sums of weight x loss of every variant, and in the last column of the weights, by blocks of rows; with a
    measure, those of the measure, and the number of requests, by blocks of judged requests.
    """

    def __init__(self, variants: tuple[str, ...], begin: int, measure: RequestMeasure | None = None) -> None:
        super().__init__(variants)
        self._to_skip = begin
        self.blocks = BlockSums(len(variants) + 1)
        self._measure = measure
        self._requests = RequestMetrics(variants, measure.k, self._add_judged) if measure else None

    def update(self, predictions: Predictions, examples: Examples) -> None:
        """Add the rows of a batch after the skipped ones."""
        rows = int(predictions.labels.size)
        skipped = min(self._to_skip, rows)
        self._to_skip -= skipped
        if skipped < rows:
            late = predictions.after(skipped)
            super().update(late, examples.part(skipped))
            if self._requests is not None:
                self._requests.update_before(late, examples.stop.number)
                return
            weights = late.weights if late.weights.size else np.ones(late.labels.size)
            self.blocks.add(np.column_stack([late.losses * weights[:, None], weights]))

    def measures(self) -> list[float | None]:
        """The measure of every variant; None without one. Ends the open request."""
        if self._requests is None or self._measure is None:
            return [None] * len(self.variants)
        orders = self._requests.report().orders
        return [self._measure.of(orders[name]) for name in self.variants]

    def _add_judged(self, measures: Floats) -> None:
        assert self._measure is not None
        self.blocks.add(np.column_stack([measures[:, :, self._measure.index], np.ones(len(measures))]))


# --- The first rows, kept in memory ---


@dataclass(frozen=True, kw_only=True)
class FirstRows(RepeatedLog):
    """The rows of `batches`, which have the columns of `spec`; specs of passes have fields of it, or some of them.

    spec: resolved. rows: how many there are, rejected ones among them.
    """

    spec: ModelSpec
    batches: Sequence[RowBatch] = ()
    rows: int = 0
    _hashed: dict[str, list[Examples]] = field(default_factory=dict)

    @classmethod
    def read(cls, log: Log, spec: ModelSpec, rows: int, **options: Any) -> FirstRows:
        """Read the first `rows` rows. Raises as `open_log`."""
        kept, left = list[RowBatch](), rows
        with open_log(log, spec) as opened:
            for batch in opened.rows():
                kept.append(batch if batch.rows <= left else batch.part(0, left))
                left -= kept[-1].rows
                if not left:
                    break
            return cls(log=log, spec=opened.spec, batches=kept, rows=rows - left, **options)

    @cached_property
    def learned(self) -> int:
        """How many rows can be learned."""
        with self.examples(self.spec) as (*_, stream):
            return sum(int(each.hashed.labels.size) for each in stream)

    def lacking(self, columns: Sequence[str], begin: int) -> FirstRows:
        """The same rows, but those from row `begin` on, rejected ones counted, without values in these columns."""
        batches = list[RowBatch]()
        for batch in self.batches:
            left = min(max(begin, 0), batch.rows)
            for part in (batch.part(0, left), batch.part(left, batch.rows)):
                begin -= part.rows
                nulls = {name: pa.nulls(part.rows, part.columns[name].type) for name in columns}
                batches.append(part if begin >= 0 else replace(part, columns={**part.columns, **nulls}))
        return replace(self, batches=batches, _hashed={})

    @contextmanager
    def examples(self, spec: ModelSpec) -> Iterator[tuple[ModelSpec, Expected, Iterator[Examples]]]:
        """The kept rows hashed by the spec, which is resolved."""
        maker = ExampleMaker(spec)
        document = spec.model_dump(mode="json", include={"fields", "crosses", "input", "rules"})
        used = (maker.rules.masks != 0).tolist()  # a feature that no variant uses is not hashed
        key = json.dumps([document, used], sort_keys=True)
        if key not in self._hashed:
            self._hashed.clear()  # passes of the same features follow one another
            with examples_of(self.batches, maker, self.threads) as stream:
                self._hashed[key] = list(stream)
        yield spec, lambda rows: self.rows, iter(self._hashed[key])
