"""`ftrie.Learner`: learns rows as they come, one or many at a time, and predicts in between."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pyarrow as pa

from ftrie.api.data import Data, Tables, as_given, log_of
from ftrie.api.model import Model
from ftrie.api.output import names_arguments, warn, warn_of_rejects
from ftrie.api.spec import Spec, spec_of
from model_store.errors import OutputError, counted
from trainer.runs.evaluate import of_all_rows
from trainer.runs.online import OnlineModel
from trainer.runs.train import Report
from trainer.runs.warmup import compile_kernels


class Learner:
    """A model of every variant of a spec, for online use. Thread-safe: one call at a time.

    spec: as in `ftrie.train`; model: to start from. After any sequence of `learn` and `learn_one` the model is that of
    `ftrie.train` over the same rows, bit for bit; the rows of one request must come in one call. Raises SpecError for
    a spec with histories of users, or with buckets and scales that have yet to learn: give it a trained model's spec.
    """

    def __init__(
        self, spec: Spec | str | os.PathLike[str] | Mapping[str, Any], model: Model | None = None
    ) -> None:
        given = spec_of(spec).model_spec
        # Rows come as Arrow tables, as those of Parquet do.
        compile_kernels(given, ["parquet"])
        self._online = OnlineModel(given, model.artefact if model is not None else None)

    @names_arguments
    def learn(self, data: Data, **tables: Unpack[Tables]) -> Learner:
        """Learn the rows of a table, or of a log; each is predicted before it is learned. Returns the learner.

        A bad row is counted in `report`, warned of and skipped. Raises SpecError for a missing column.
        """
        rejects = self._online.rejects
        before = rejects.count
        self._online.learn(log_of(data, self._online.spec.input, **tables))
        warn_of_rejects(rejects.count - before, rejects.reasons)
        return self

    def learn_one(self, row: Mapping[str, Any], y: float, weight: float = 1.0) -> None:
        """Learn one row: the values by column, and its label, 1 or 0. A column that it lacks has no value.

        weight: of a spec that names input.weight. Raises InputError for a bad value; then nothing is learned.
        """
        self._online.learn_one(row, y, weight)

    @names_arguments
    def predict(self, data: Data, **tables: Unpack[Tables]) -> Any:
        """The click rate of every row by every variant, as `Model.predict` of the present model. O(features)."""
        log = log_of(data, self._online.spec.input, **tables)
        parts, rejects = [], []
        for rows, scores, examples in self._online.predict(log):
            parts.append(of_all_rows(scores, examples.rows, rows).ctr)
            rejects += [str(each) for each in examples.rejects]
        if rejects:
            warn(f"{counted(len(rejects), 'row')} could not be scored: {'; '.join(rejects[:3])}")
        names = list(self._online.spec.variants)
        ctr = np.concatenate(parts) if parts else np.empty((0, len(names)))
        # from_pandas: NaN, of a row that could not be scored, becomes null.
        answer = {name: pa.array(ctr[:, bit], from_pandas=True) for bit, name in enumerate(names)}
        return as_given(pa.table(answer), data)

    def predict_one(self, row: Mapping[str, Any]) -> dict[str, float]:
        """The click rate of one row by every variant. Raises InputError for a bad value."""
        scores = self._online.predict_one(row)
        return dict(zip(self._online.spec.variants, scores.ctr[0].tolist(), strict=True))

    @property
    def spec(self) -> Spec:
        """The spec; once a table was learned, with every field named."""
        return Spec.of(self._online.spec)

    @property
    def model(self) -> Model:
        """The model of all rows so far. O(keys)."""
        return Model(self._online.artefact(), self._online.withheld)

    @property
    def report(self) -> Report:
        """The figures of all rows so far: rows, rejected, the progressive metrics of every variant."""
        return self._online.report()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the whole state to one file, atomically, for `Learner.load`. Raises OutputError."""
        try:
            self._online.save(Path(path))
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror or error}") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Learner:
        """The learner that `save` wrote, which continues as if it had not stopped. Raises CheckpointError."""
        learner = cls.__new__(cls)
        learner._online = OnlineModel.load(Path(path))
        return learner

    def publish(self, store: Any = None, *, activate: bool = False, force: bool = False) -> int:
        """Put the model of all rows so far into a store, and return its version; see `Model.publish`."""
        return self.model.publish(store, activate=activate, force=force)

    def __repr__(self) -> str:
        return f"Learner({self.spec.name!r}: {self._online.rows:,} rows)"
