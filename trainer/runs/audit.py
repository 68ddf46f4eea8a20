"""Explains the score of one row: each of its keys, what the model knows of the key, and what it contributes.

In: an artefact and a row of a log. Out: a `RowAudit`. Keys come from the slow reference implementation
(`FeaturePlan.keys`), not from the hashing kernels, so that an audit also checks the kernels.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa

from model_store.artefact.artefact import Artefact
from model_store.artefact.calibration import Calibration
from model_store.artefact.inspection import OTHER, PrefixRules
from model_store.errors import FieldValueError, InputError, SpecError, listed
from model_store.features.features import FeaturePlan
from model_store.normal_kernels import normal_probability
from model_store.spec.values import Value
from trainer.examples.open_log import Log, open_log
from trainer.formats.batch import RowBatch
from trainer.learn.predictions_kernels import probability
from trainer.learn.scorer import scoring_spec, unseen_rates
from trainer.output import SILENT, Output
from trainer.runs.warmup import compiling_scorer


@dataclass(frozen=True)
class KeyAudit:
    """One key of a row: contribution = weight * x. A key that the model lacks has weight None and contributes 0.

    learning_rate: the key's, or that of an unseen key if the model lacks it; None if unknown.
    """

    key: str
    x: float
    weight: float | None
    contribution: float
    learning_rate: float | None


@dataclass(frozen=True)
class FieldAudit:
    """The keys of one field or cross in a row, and the sum of their contributions."""

    name: str
    contribution: float
    keys: tuple[KeyAudit, ...]


@dataclass(frozen=True)
class RowAudit:
    """A row's score as the sum of its fields' contributions. predicted: the click rate before calibration.

    link: "logit" or "probit"; for probit a key's learning_rate is the variance of its weight, and uncertainty the
    standard deviation of the score.
    """

    file: str
    line: int
    variant: str
    link: str
    score: float
    predicted: float
    ctr: float
    uncertainty: float | None
    fields: tuple[FieldAudit, ...]


def audit(
    artefact: Artefact,
    log: Log,
    row: int,
    variant: str | None = None,
    without: Sequence[str] = (),
    output: Output = SILENT,
) -> RowAudit:
    """Explain the score of the log's `row`-th row, from 1; unreadable rows are not counted.

    without: fields and crosses to leave out. Raises InputError if there is no such row or one of its values does not
    fit its field, SpecError for an unknown variant.
    """
    names = list(artefact.spec.variants)
    name = names[0] if variant is None else variant
    if name not in names:
        raise SpecError(f"no variant {name!r}; the model has: {listed(names, name)}")
    with compiling_scorer(output), open_log(log, scoring_spec(artefact.spec, tuple(without))) as opened:
        seen = 0
        for batch in opened.rows():
            if row <= seen + batch.rows:
                at = row - seen - 1
                plan = FeaturePlan.of(opened.spec)
                auditor = RowAuditor(artefact, plan, names.index(name))
                return auditor.of(example_of(plan, batch, at), batch.file, int(batch.lines[at]))
            seen += batch.rows
    raise InputError(f"row {row}: the log has only {seen:,} rows")


def example_of(plan: FeaturePlan, batch: RowBatch, row: int) -> dict[str, Value]:
    """The values of a batch's row by field, in the form of `FeaturePlan.keys`."""
    found = {}
    for field in plan.fields:
        column = batch.columns[field.column]
        value = column[row].as_py()
        if pa.types.is_map(column.type) and value is not None:  # repeated members are summed
            weighted: dict[Any, float] = {}
            for member, x in value:
                weighted[member] = weighted.get(member, 0.0) + (x or 0.0)
            value = weighted
        found[field.name] = cast(Value, value)
    return found


class RowAuditor:
    """Looks up one variant's keys in an artefact. `plan`: of the spec that the log is read by."""

    def __init__(self, artefact: Artefact, plan: FeaturePlan, variant: int) -> None:
        self._artefact, self._plan, self._variant = artefact, plan, variant
        self._owners = PrefixRules.of(plan)
        self._unseen = float(unseen_rates(artefact)[variant]) if artefact.source is None else None
        learner = artefact.spec.learner
        own = artefact.spec.variants[plan.variants[variant]].own_parameters
        self._link = learner.link
        self._noise = own.get("beta", learner.beta) if learner.link == "probit" else None

    def of(self, example: Mapping[str, Value], file: str, line: int) -> RowAudit:
        """The audit of one example."""
        try:
            keys = self._plan.keys(example)
        except FieldValueError as error:
            raise InputError(f"{file}:{line}: {error}") from None
        found: dict[str, list[KeyAudit]] = {}
        for key, x, mask in keys:
            if mask >> self._variant & 1:
                found.setdefault(self._owners.owner(key) or OTHER, []).append(self._key(key, x))
        fields = tuple(
            FieldAudit(name, sum(each.contribution for each in audits), tuple(audits))
            for name, audits in found.items()
        )
        every = [each for field in fields for each in field.keys]
        score = sum(each.contribution for each in every)
        rates = [(each.learning_rate or 0.0, abs(each.x)) for each in every]
        if self._noise is None:
            predicted = float(probability(score))
            uncertainty = sum(rate * size for rate, size in rates)
        else:
            uncertainty = math.sqrt(sum(rate * size * size for rate, size in rates))
            predicted = float(normal_probability(score / math.hypot(self._noise, uncertainty)))
        name = self._plan.variants[self._variant]
        ctr = _calibrated(self._artefact.calibration, self._plan, name, example, predicted)
        known = None if self._unseen is None else uncertainty
        return RowAudit(file, line, name, self._link, score, predicted, ctr, known, fields)

    def _key(self, key: bytes, x: float) -> KeyAudit:
        """O(log keys of the model)."""
        text, artefact = key.decode("utf-8", "backslashreplace"), self._artefact
        row = bisect_left(range(artefact.rows), key, key=artefact.key)
        known = row < artefact.rows and artefact.key(row) == key
        if not known or not int(artefact.variants[row]) >> self._variant & 1:
            return KeyAudit(text, x, None, 0.0, self._unseen)
        at = (row, self._variant) if artefact.per_variant else row
        weight = float(artefact.weight[at])
        rate = None if self._unseen is None else float(artefact.rate[at])
        return KeyAudit(text, x, weight, weight * x, rate)


def _calibrated(
    calibration: Calibration | None,
    plan: FeaturePlan,
    variant: str,
    example: Mapping[str, Value],
    predicted: float,
) -> float:
    if calibration is None:
        return predicted
    field = plan.field(calibration.by) if calibration.by is not None else None
    tokens = field.tokens(example.get(field.name)) if field is not None else ()
    curve = calibration.curve(variant, tokens[0].text if tokens else None)
    return predicted if curve is None else float(curve.apply(np.array([predicted]))[0])
