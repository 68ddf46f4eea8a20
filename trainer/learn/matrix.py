"""A model over the columns of a numeric matrix, dense or sparse: each column is one key, each number the x of its key.

In: float64 matrices, from numpy or in compressed sparse rows. A number that is 0 has no key in its row. The keys' text
is made once for each column, never for a number, so a row costs little more than its learning. The model is that of the
same rows as a log; tests compare them bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from model_store.hash_kernels import hash_keys
from model_store.spec.keys import BIAS
from trainer.examples.examples_kernels import HashedRows, TokenLayout
from trainer.examples.hashing import Examples
from trainer.formats.batch import Position
from trainer.formats.rejects import RowCounts
from trainer.learn.metrics.metrics import ProgressiveMetrics
from trainer.learn.model import LearningModel

_NUMBERS_AT_ONCE = 1 << 18
_MOST_ROWS = 1 << 14
_LEAST_ROWS = 64

Array = npt.NDArray[Any]


class MatrixModel:
    """A LearningModel that learns the rows of a matrix of `columns` columns. Not thread-safe.

    The model's spec has a field of kind "number" for each column, in their order; or one field of kind "set", whose
    members are the columns' numbers from 0. It has one variant, no crosses and no inclusion.
    """

    def __init__(self, model: LearningModel, columns: int) -> None:
        """O(columns)."""
        self.model, self.columns = model, columns
        self._fields = [field.prefix for field in model.maker.plan.fields]
        self._of_a_set = model.maker.plan.fields[0].kind.is_list
        self._hashes, self._features = np.empty(columns + 1, np.uint64), np.zeros(columns + 1, np.uint16)
        self._features[1:] = 1 if self._of_a_set else np.arange(1, columns + 1)
        hash_keys(*self._keys(np.arange(columns + 1)), self._hashes)
        self._admitted, self._last = np.zeros(columns + 1, bool), np.empty(columns + 1, np.int64)
        self._order: list[npt.NDArray[np.int64]] = []  # of the table's keys: 0 for the bias, else column + 1

    def learn(
        self,
        matrix: Any,
        labels: npt.NDArray[np.float64],
        weights: npt.NDArray[np.float64],
        order: npt.NDArray[np.int64] | None = None,
        again: ProgressiveMetrics | None = None,
    ) -> None:
        """Predict and then learn each row in turn; `order`: the rows' numbers in that order.

        matrix: finite; labels: 0.0 or 1.0; weights: float64[rows], or empty where all are 1. again: see
        `LearningModel.learn`.
        """

        def make(rows: Any) -> tuple[Any, HashedRows]:
            piece = matrix[rows]
            return piece, self.hashed(piece, labels[rows], weights[rows] if weights.size else weights)

        for piece, hashed in _one_ahead(make, pieces(matrix, order)):
            self._admit(piece)
            self.model.learn(self._examples(hashed), again)

    def hashed(
        self, matrix: Any, labels: npt.NDArray[np.float64], weights: npt.NDArray[np.float64]
    ) -> HashedRows:
        """The rows as learners take them: the bias first, then the columns in ascending order."""
        rows = matrix.shape[0]
        if not hasattr(matrix, "tocsr") and np.count_nonzero(matrix) == matrix.size:
            starts = np.arange(rows + 1, dtype=np.int64) * (self.columns + 1)
            x = np.ones((rows, self.columns + 1))
            x[:, 1:] = matrix
            hashes, features = np.tile(self._hashes, rows), np.tile(self._features, rows)
            return HashedRows(starts, hashes, features, x.reshape(-1), labels, weights)
        lengths, columns, numbers = _entries(matrix)
        starts = np.zeros(rows + 1, np.int64)
        np.cumsum(lengths + 1, out=starts[1:])
        of_numbers = np.ones(int(starts[-1]), bool)
        of_numbers[starts[:-1]] = False
        hashes = np.full(of_numbers.size, self._hashes[0])
        features, x = np.zeros(of_numbers.size, np.uint16), np.ones(of_numbers.size)
        hashes[of_numbers] = self._hashes[1:][columns]
        features[of_numbers] = 1 if self._of_a_set else columns + 1
        x[of_numbers] = numbers
        return HashedRows(starts, hashes, features, x, labels, weights)

    def weights(self) -> npt.NDArray[np.float64]:
        """The weight of the bias, then that of each column: float64[columns + 1]. O(columns)."""
        return self._by_column(self.model.coordinates.weights, 0.0)

    def rates(self, unseen: float) -> npt.NDArray[np.float64]:
        """The learning rates, or variances, as `weights`; `unseen`: of columns that no row has had."""
        return self._by_column(self.model.coordinates.rates, unseen)

    def state(self) -> dict[str, Array]:
        """The model's state, and which columns it has."""
        order = np.concatenate(self._order) if self._order else np.empty(0, np.int64)
        return self.model.state() | {"matrix.order": order}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Restore a `state` of the same spec and number of columns."""
        self.model.restore(state)
        self._order = [np.array(state["matrix.order"])]
        self._admitted[self._order[0]] = True

    def _by_column(self, read: Any, unseen: float) -> npt.NDArray[np.float64]:
        found = np.full(self.columns + 1, unseen)
        if self._order:
            found[np.concatenate(self._order)] = read(self.model.table.keys())[:, 0]
        return found

    def _admit(self, matrix: Any) -> None:
        """Add the keys of these rows that the table lacks."""
        wanted = matrix.indices if hasattr(matrix, "tocsr") else np.flatnonzero((matrix != 0.0).any(axis=0))
        new = wanted[~self._admitted[1:][wanted]].astype(np.int64) + 1
        self._last[new] = np.arange(new.size)
        new = new[self._last[new] == np.arange(new.size)]  # each once
        if not self._admitted[0]:
            new = np.concatenate([np.zeros(1, np.int64), new])
        if new.size:
            self.model.table.add(*self._keys(new), self._features[new])
            self._admitted[new] = True
            self._order.append(new)

    def _keys(self, numbers: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """The bytes of keys, end to end, and where each starts; numbers: 0 for the bias, else column + 1."""
        columns = numbers[numbers > 0] - 1
        if self._of_a_set:
            texts = pc.cast(pa.array(columns), pa.string()).cast(pa.binary())
            texts = pc.binary_join_element_wise(pa.scalar(self._fields[0]), texts, pa.scalar(b""))
        else:
            texts = pa.array(self._fields, pa.binary()).take(pa.array(columns))
        if columns.size < numbers.size:
            texts = pa.concat_arrays([pa.array([BIAS], pa.binary()), texts])  # the bias is always the first
        _, offsets, data = texts.buffers()
        starts = np.frombuffer(offsets, np.int32, numbers.size + 1).astype(np.int64)
        return np.frombuffer(data, np.uint8, int(starts[-1])), starts

    def _examples(self, hashed: HashedRows) -> Examples:
        rows = int(hashed.labels.size)
        nothing = np.empty(0, np.int64)
        tokens = TokenLayout(
            np.empty(0, np.uint64), np.empty(0), nothing, np.int64(0), nothing, np.zeros((1, rows + 1), np.int32),
            self.model.maker.crosses, self.model.maker.feature_rules.owner,
        )  # fmt: skip
        return Examples(
            np.arange(rows, dtype=np.int32), hashed, tokens, (), (), RowCounts(rows), Position("a matrix")
        )


def pieces(table: Any, order: npt.NDArray[np.int64] | None = None) -> Iterator[Any]:
    """The rows in pieces that fit into the processor's cache: slices, or the rows' numbers where `order` is given."""
    rows, columns = table.shape
    numbers = table.nnz if hasattr(table, "nnz") else rows * columns
    size = min(max(_NUMBERS_AT_ONCE * rows // max(numbers, 1), _LEAST_ROWS), _MOST_ROWS)
    for first in range(0, rows, size):
        piece = slice(first, min(first + size, rows))
        yield piece if order is None else order[piece]


def _one_ahead(make: Callable[[Any], Any], inputs: Iterator[Any]) -> Iterator[Any]:
    """What `make` makes of each input, in order; the next is made in a thread while one is used."""
    first, second = next(inputs, None), next(inputs, None)
    if first is None:
        return
    if second is None:
        yield make(first)
        return
    with ThreadPoolExecutor(1, thread_name_prefix="hash") as pool:
        made = pool.submit(make, first)
        for given in chain([second], inputs):
            before, made = made, pool.submit(make, given)
            yield before.result()
        yield made.result()


def _entries(matrix: Any) -> tuple[Array, Array, Array]:
    """The numbers of each row that are not 0: how many int64[rows], their columns, and themselves."""
    if not hasattr(matrix, "tocsr"):
        filled = matrix != 0.0
        return np.count_nonzero(filled, axis=1), np.nonzero(filled)[1], matrix[filled]
    if not matrix.has_canonical_format or not matrix.data.all():
        matrix = matrix.copy()
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
    return np.diff(matrix.indptr), matrix.indices, matrix.data
