"""ftrie's learners as a scikit-learn classifier: `from ftrie.sklearn import FTRLClassifier`.

The estimator is a face of the trainer's engine: `trainer.learn` learns, `trainer.examples` hashes, and `model_` is a
model that a server can serve. Rows reach the engine in one of two ways:

- as a matrix (`_MatrixEngine`): numpy arrays, sparse matrices, and tables whose columns are all plain numbers. Every
  column is one key; predictions are one matrix product with `coef_`.
- as a table (`_TableEngine`): tables with categories, texts or lists, with crosses or `fields`. Rows are hashed as
  those of a log.

docs/library.md is the user's page, with those of scikit-learn's own checks that it does not pass.
"""

from __future__ import annotations

import functools
import itertools
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from dataclasses import field as parameter
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ftrie.api.model import Model
from model_store.errors import InputError, SpecError, installing, listed
from model_store.features.features import FeaturePlan
from model_store.normal_kernels import normal_cdfs
from model_store.spec.kinds import Number
from model_store.spec.learner_section import ALGORITHMS, LEAST_HASH_BITS, MOST_HASH_BITS
from model_store.spec.spec import ModelSpec, spec_from_json
from model_store.spec.values import LARGEST_REAL
from trainer.examples.hashing import ExampleMaker
from trainer.examples.learned import with_learned
from trainer.examples.open_log import examples_of
from trainer.formats.batch import NotPlain, Position, RowBatch, is_several, plain
from trainer.formats.cells import number_column
from trainer.formats.tables import arrow_table
from trainer.learn.matrix import MatrixModel
from trainer.learn.metrics.metrics import ProgressiveMetrics
from trainer.learn.model import LearningModel
from trainer.learn.predictions_kernels import SMALLEST_PROBABILITY, probabilities
from trainer.learn.scorer import Scorer

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import check_array, check_consistent_length, check_random_state, column_or_1d
    from sklearn.utils._param_validation import Interval, StrOptions
    from sklearn.utils.class_weight import compute_class_weight
    from sklearn.utils.extmath import safe_sparse_dot
    from sklearn.utils.multiclass import check_classification_targets, type_of_target
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(f"ftrie.sklearn needs scikit-learn 1.6 or later: {installing('sklearn')}") from error

__all__ = ["FTRLClassifier"]

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

_ROWS_AT_ONCE = 1 << 14
_FIRST_ALPHA, _MOST_DOUBLINGS = 0.1, 8
_CHOSEN_ON, _FEWEST_ROWS = 50_000, 200
_LARGE = 1e3
"""A plain number above this is an id, a time, or should be scaled."""
_MOST_FIELDS = 65_000  # a key's feature has 16 bits
_MATRIX_FIELD = "features"
_LEARNER_OPTIONS = (
    *("rate", "precision", "seed", "k", "theta", "shrink"),
    *("prior_ctr", "forgetting", "prune_kl"),
)


def _allows(*constraints: Any) -> dict[str, Any]:
    """What scikit-learn's own check of a parameter lets pass."""
    return {"constraints": [*constraints]}


_NOT_NEGATIVE = Interval(Real, 0, None, closed="left")


# No __eq__, which would take the hash away, and no __repr__: scikit-learn has its own.
@dataclass(kw_only=True, eq=False, repr=False)
class FTRLClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc,unused-ignore]
    """Online logistic regression for two classes by ftrie's learners, FTRL-Proximal by default.

    Parameters
    ----------
    alpha : float or "auto", default="auto"
        The learning rate of a coordinate is alpha / (beta + sqrt(n)), n the sum of its squared gradients. "auto": `fit`
        learns four fifths of the rows, of the first 50,000 in its order, with 0.1 and twice or half of it, as long as
        the log-loss of the other fifth falls, and then all rows with the best; `partial_fit` chooses so on its first
        rows, with one pass. Fewer than 200 rows choose 0.1.
    beta : float, default=1.0
        See alpha.
    l1, l2 : float, default=0.0
        The penalty l1 |w| + l2 w^2 / 2 of FTRL, OGD, FOBOS and RDA. With FTRL `l1` is compared with a sum of gradients,
        so it does not depend on the number of rows: 1 suits a click log of any length.
    algorithm : {"ftrl", "ogd", "truncation", "truncated_gradient", "fobos", "rda", "adpredictor"}, default="ftrl"
        The learner; docs/learners.md describes each. For "adpredictor", alpha is the prior variance of a weight and
        beta the noise, and the link is the normal distribution's instead of the logistic one.
    max_iter : int, default=5
        The most passes over the rows in `fit`: more fit sparse rows too closely. 1 learns as `ftrie train` does.
    tol : float or None, default=1e-3
        Stop after a pass that lowers the mean log-loss by less than this. None: make all passes.
    shuffle : bool, default=True
        Whether `fit` learns the rows of each pass in a random order. `partial_fit` learns them as they come.
    random_state : int, RandomState instance or None, default=None
        For `shuffle`.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes, by which sample weights are multiplied.
    hash_bits : int or None, default=None
        Hash all keys into 2**hash_bits weights. None: each key has its own.
    categorical_features : "from_dtype" or array-like, default="from_dtype"
        Columns to treat as categories, besides those of text, categories and lists: names, numbers or a mask. The
        columns of an array have the names "x0", "x1", ... then.
    fields : dict or None, default=None
        Options of columns by name, as in `[fields]` of a spec: {"age": {"bucket": "log"}, "ad": {"side": "item"}}.
    crosses : list of tuples of column names, or None, default=None
        Conjunctions of two to four columns.
    learner_options : dict or None, default=None
        More of a spec's `[learner]`: rate, precision, seed, k, theta, shrink, prior_ctr, forgetting, prune_kl.
    model_name : str, default="classifier"
        The name under which `model_` is published.

    Attributes
    ----------
    alpha_ : float
        The alpha that was given, or chosen.
    classes_ : ndarray of shape (2,)
        The labels; the second is the click.
    coef_, intercept_ : ndarray of shape (1, n_features_in_) and (1,)
        The weights in float64, if all columns are plain numbers; otherwise an AttributeError names the alternative.
    n_features_in_, feature_names_in_
        As in scikit-learn.
    n_iter_ : int
        The number of passes of `fit`; 1 after `partial_fit` alone.
    loss_curve_ : list of float
        The mean log-loss of each pass of `fit`, each row predicted before it was learned.
    model_ : ftrie.Model
        The model so far, to look at, save and publish.

    A missing number, NaN, adds nothing to the score, as 0; a missing category neither, nor one that was not learned.
    """

    alpha: float | str = parameter(
        default="auto", metadata=_allows(Interval(Real, 0, None, closed="neither"), StrOptions({"auto"}))
    )
    beta: float = parameter(default=1.0, metadata=_allows(_NOT_NEGATIVE))
    l1: float = parameter(default=0.0, metadata=_allows(_NOT_NEGATIVE))
    l2: float = parameter(default=0.0, metadata=_allows(_NOT_NEGATIVE))
    algorithm: str = parameter(default="ftrl", metadata=_allows(StrOptions(set(ALGORITHMS))))
    max_iter: int = parameter(default=5, metadata=_allows(Interval(Integral, 1, None, closed="left")))
    tol: float | None = parameter(default=1e-3, metadata=_allows(_NOT_NEGATIVE, None))
    shuffle: bool = parameter(default=True, metadata=_allows("boolean"))
    random_state: Any = parameter(default=None, metadata=_allows("random_state"))
    class_weight: Any = parameter(default=None, metadata=_allows(StrOptions({"balanced"}), dict, None))
    hash_bits: int | None = parameter(
        default=None,
        metadata=_allows(Interval(Integral, LEAST_HASH_BITS, MOST_HASH_BITS, closed="both"), None),
    )
    categorical_features: Any = parameter(
        default="from_dtype", metadata=_allows(StrOptions({"from_dtype"}), "array-like")
    )
    fields: Mapping[str, Mapping[str, Any]] | None = parameter(default=None, metadata=_allows(dict, None))
    crosses: Sequence[Sequence[str]] | None = parameter(default=None, metadata=_allows(list, tuple, None))
    learner_options: Mapping[str, Any] | None = parameter(default=None, metadata=_allows(dict, None))
    model_name: str = parameter(default="classifier", metadata=_allows(str))

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: N803
        """Forget what was learned, and learn rows X with labels y in up to `max_iter` passes.

        X: array or sparse matrix of shape (rows, columns), or a table. Raises ValueError for invalid parameters, for
        labels of more or fewer than two classes, and for infinite numbers.
        """
        self._validate_params()
        read = self._read(X, None)
        y = self._labels(X, y)
        classes = _two_classes(y)
        labels, weights = self._outcomes(y, classes, sample_weight)
        random = check_random_state(self.random_state)
        # The order of the first pass: alpha is chosen on its first rows.
        first = random.permutation(labels.size) if self.shuffle else None
        order = np.arange(labels.size) if first is None else first
        self.alpha_ = self._alpha(read, labels, weights, order, self.max_iter)
        engine = self._engine_for(read)
        rows = engine.rows(read)
        # Not before the rows were read: until here an error leaves the earlier predictions.
        self.classes_, self._engine = classes, engine
        orders = itertools.chain([first], (random.permutation(labels.size) for _ in itertools.count()))
        metrics = self._learn(
            engine, rows, labels, weights, orders if self.shuffle else itertools.repeat(None)
        )
        entropy = next(iter(metrics.summary().values())).normalized_entropy
        if entropy is not None and entropy > 1.0:
            self._warn_of_large(read, engine)
        return self

    def _learn(
        self,
        engine: _MatrixEngine | _TableEngine,
        rows: Any,
        labels: Floats,
        weights: Floats,
        orders: Iterable[Rows | None],
    ) -> ProgressiveMetrics:
        """Learn the rows in up to `max_iter` passes, each in its order; the metrics of the last."""
        self.loss_curve_, again = [], None
        for number, order in enumerate(itertools.islice(orders, self.max_iter), start=1):
            metrics = engine.learn(rows, labels, weights, order, again)
            self.n_iter_ = number
            self.loss_curve_.append(metrics.logloss() or 0.0)
            before, now = self.loss_curve_[-2:] if number > 1 else (np.inf, 0.0)
            if self.tol is not None and now > before - self.tol:
                break
            # The model's own metrics are those of the first pass, in which no row had been learned before.
            again = ProgressiveMetrics(metrics.variants)
        return metrics

    def _alpha(self, read: Any, labels: Floats, weights: Floats, order: Rows, passes: int) -> float:
        """The alpha given, or the best of 0.1 times powers of two by the last fifth of the first rows in this order."""
        if self.alpha != "auto":
            return float(self.alpha)
        order = order[:_CHOSEN_ON]
        if order.size < _FEWEST_ROWS or np.ptp(labels[order]) == 0.0:
            return _FIRST_ALPHA
        end = order.size * 4 // 5
        learned, judged = order[:end], order[end:]
        of_judged = weights[judged] if weights.size else None

        @functools.cache
        def loss(power: int) -> float:
            # `_spec` reads it.
            self.alpha_ = _FIRST_ALPHA * 2.0**power
            engine, again = self._engine_for(read), None
            rows = engine.rows(read)
            for _ in range(passes):
                metrics = engine.learn(rows, labels, weights, learned, again)
                again = ProgressiveMetrics(metrics.variants)
            scores = engine.scores(_of_rows(rows, judged))
            # A single certain and wrong prediction would make the mean infinite.
            ctr = np.clip(engine.link(scores), SMALLEST_PROBABILITY, 1.0 - SMALLEST_PROBABILITY)
            losses = -np.where(labels[judged] > 0.0, np.log(ctr), np.log1p(-ctr))
            return float(np.average(losses, weights=of_judged))

        # np.average divides by the sum of the weights.
        if of_judged is not None and of_judged.sum() == 0.0:
            return _FIRST_ALPHA
        best, step = 0, 1 if loss(1) < loss(0) else -1
        while abs(best + step) <= _MOST_DOUBLINGS and loss(best + step) < loss(best):
            best += step
        return float(_FIRST_ALPHA * 2.0**best)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:  # noqa: N803
        """Learn rows X with labels y once, in their order.

        classes: both labels, needed in the first call; the first call's table decides what each column is.
        """
        engine = getattr(self, "_engine", None)
        if engine is None:
            self._validate_params()
        if self.class_weight == "balanced":
            raise ValueError(
                "class_weight='balanced' needs all rows at once: give the weights as a dict, such as "
                "compute_class_weight('balanced', classes=classes, y=y) computes them, or call fit"
            )
        found = self._classes_of(classes, engine)
        read = self._read(X, engine)
        labels, weights = self._outcomes(self._labels(X, y), found, sample_weight)
        if engine is None:
            self.alpha_ = self._alpha(read, labels, weights, np.arange(labels.size), 1)
            engine = self._engine_for(read)
            self.n_iter_, self.loss_curve_ = 1, []
        rows = engine.rows(read)
        self.classes_, self._engine = found, engine
        engine.learn(rows, labels, weights)
        return self

    def decision_function(self, X: Any) -> Floats:  # noqa: N803
        """The score of each row, float64[rows]; above 0 the second class is more likely.

        For "adpredictor" it is in standard deviations.
        """
        check_is_fitted(self)
        return self._engine.scores(self._engine.rows(self._read(X, self._engine)))

    def predict(self, X: Any) -> Any:  # noqa: N803
        """The more likely class of each row."""
        scores = self.decision_function(X)
        return self.classes_[(scores > 0.0).astype(np.intp)]

    def predict_proba(self, X: Any) -> Floats:  # noqa: N803
        """The probability of each class: float64[rows, 2]."""
        scores = self.decision_function(X)
        link = self._engine.link
        return np.column_stack([link(-scores), link(scores)])

    def predict_log_proba(self, X: Any) -> Floats:  # noqa: N803
        """The logarithm of the probability of each class: float64[rows, 2]."""
        check_is_fitted(self)
        if self._engine.is_probit:
            with np.errstate(divide="ignore"):
                return np.asarray(np.log(self.predict_proba(X)))
        scores = self.decision_function(X)
        # ln(1 / (1 + exp(-s))): no overflow, and exact where the probability rounds to 1.
        return -np.logaddexp(0.0, np.column_stack([scores, -scores]))

    @property
    def coef_(self) -> Floats:
        """The weight of each column: float64[1, columns]."""
        check_is_fitted(self)
        return self._engine.weights[1:].reshape(1, -1)

    @property
    def intercept_(self) -> Floats:
        """The weight of the bias: float64[1]."""
        check_is_fitted(self)
        return self._engine.weights[:1]

    @property
    def model_(self) -> Model:
        """The model so far as a `ftrie.Model`, with weights in float32, as a server has them."""
        check_is_fitted(self)
        return Model(self._engine.model.artefact())

    def __sklearn_tags__(self) -> Any:
        """Two classes, sparse matrices, missing values."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return getattr(self, "_engine", None) is not None

    def _warn_of_large(self, read: Any, engine: _MatrixEngine | _TableEngine) -> None:
        """Warn of ids and times as plain numbers, where the model predicts worse than the click rate alone."""
        if isinstance(read, dict):
            real = [name for name, field in engine.model.spec.fields.items() if field.is_number]
            largest = {name: float(np.nanmax(np.abs(number_column(read[name])[0]))) for name in real}
        else:
            most = abs(read).max(axis=0)
            values = np.ravel(most if isinstance(most, np.ndarray) else most.toarray())
            names = getattr(self, "feature_names_in_", [f"x{at}" for at in range(values.size)])
            largest = dict(zip(names, values, strict=True))
        large = [f"{name} (up to {x:.3g})" for name, x in largest.items() if x > _LARGE]
        if large:
            _note(
                f"the log-loss, {self.loss_curve_[-1]:.3g}, is worse than that of the click rate alone, and X has "
                f"large numbers in {', '.join(large[:3])}: scale quantities and times, as StandardScaler does, and "
                "list ids in categorical_features"
            )

    def _labels(self, X: Any, y: Any) -> Any:  # noqa: N803
        """The labels of the rows, checked: a vector of two values at most."""
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        y = column_or_1d(y, warn=True)
        check_consistent_length(X, y)
        check_classification_targets(y)
        kind = type_of_target(y, input_name="y", raise_unknown=True)
        if kind != "binary":
            raise ValueError(
                f"Only binary classification is supported. The type of the target is {kind}; for several classes wrap "
                "the classifier into sklearn.multiclass.OneVsRestClassifier"
            )
        return y

    def _read(self, X: Any, engine: _MatrixEngine | _TableEngine | None) -> Any:  # noqa: N803
        """X as Arrow columns by name, or as a float64 matrix without NaN, dense or in compressed sparse rows.

        engine: which has learned; None: X sets the number and the names of the columns.
        """
        first = engine is None
        if _is_table(X):
            if 0 in X.shape:
                check_array(np.empty(X.shape), estimator=self)  # raises scikit-learn's usual error
            return _columns_of(validate_data(self, X, reset=first, skip_check_array=True))
        named = not isinstance(self.categorical_features, str) and len(self.categorical_features) > 0
        # An array with options of columns is taken apart into columns.
        if (named or self.fields or self.crosses) if first else isinstance(engine, _TableEngine):
            X = validate_data(self, X, reset=first, dtype=None, ensure_all_finite=False)  # noqa: N806
            return {f"x{index}": _arrow(column) for index, column in enumerate(X.T)}
        checks = {"accept_sparse": "csr", "dtype": np.float64, "ensure_all_finite": "allow-nan"}
        return _without_nan(validate_data(self, X, reset=first, **checks))

    def _engine_for(self, columns: Any) -> _MatrixEngine | _TableEngine:
        """A new engine for rows as `_read` returns them."""
        if not isinstance(columns, dict):
            return _MatrixEngine(self._spec({_MATRIX_FIELD: {"kind": "set"}}), columns.shape[1])
        if len(columns) > _MOST_FIELDS:
            raise ValueError(
                f"X is a table of {len(columns):,} columns; at most {_MOST_FIELDS:,} can be fields: pass an array or a "
                "sparse matrix"
            )
        kinds: dict[str, Any] = {name: {"kind": _kind_of(name, column)} for name, column in columns.items()}
        for name in self._categorical(list(columns)):
            kinds[name] = {"kind": "category"}
        for name, options in (self.fields or {}).items():
            if name not in kinds:
                raise ValueError(f"fields: X has no column {name!r}; it has {_some(columns)}")
            kinds[name] |= dict(options)
        for name, field in kinds.items():
            if field["kind"] == "moment":
                raise ValueError(
                    f"X: column {name!r} holds times; make numbers of them, or say what to learn from by fields, such "
                    f'as fields={{{name!r}: {{"kind": "time", "part": "hour"}}}}'
                )
        spec = self._spec(kinds)
        if any(field.is_derived for field in spec.fields.values()):
            raise ValueError(
                "fields: ratio, difference, list and history are for logs; compute the column in X"
            )
        if spec.has_to_learn:
            plain = _plain_columns(columns)
            (spec,) = with_learned([spec], [(plain, len(next(iter(plain.values()))))], _note)
        plan = FeaturePlan.of(spec)
        if not plan.crosses and all(
            isinstance(field.kind, Number)
            and field.kind.has_x
            and field.kind.is_unscaled
            and field.spec.missing is None
            and field.spec.fixed_weight is None
            and field.spec.main
            for field in plan.fields
        ):
            return _MatrixEngine(spec, len(columns))
        return _TableEngine(spec)

    def _categorical(self, names: list[str]) -> list[str]:
        """The names of the columns that `categorical_features` lists."""
        if isinstance(self.categorical_features, str):
            return []
        listed = np.asarray(self.categorical_features)
        if listed.dtype == bool and listed.shape == (len(names),):
            return [name for name, is_listed in zip(names, listed, strict=True) if is_listed]
        places = range(-len(names), len(names))
        found = [names[each] if type(each) is int and each in places else each for each in listed.tolist()]
        if absent := [each for each in found if each not in names]:
            raise ValueError(
                f"categorical_features: X has no column {absent[0]!r}; it has {len(names)} columns: {_some(names)}"
            )
        return found

    def _spec(self, fields: Mapping[str, Mapping[str, Any]]) -> ModelSpec:
        """The spec of these fields by the parameters. Raises ValueError for what does not go together."""
        options = dict(self.learner_options or {})
        if others := [name for name in options if name not in _LEARNER_OPTIONS]:
            raise ValueError(
                f"learner_options: got {others[0]!r}; expected some of {listed(_LEARNER_OPTIONS, others[0])}"
            )
        learner = {name: float(getattr(self, name)) for name in ("alpha_", "beta", "l1", "l2")}
        learner["alpha"] = learner.pop("alpha_")
        # A column of X may have this name.
        label = "label"
        while label in fields:
            label += "_"
        document = {
            "model": {"name": self.model_name},
            "input": {"label": label},
            "fields": fields,
            "crosses": [{"fields": [*cross]} for cross in self.crosses or ()],
            "learner": {"algorithm": self.algorithm, **learner, "hash_bits": self.hash_bits, **options},
        }
        try:
            spec = spec_from_json(json.dumps(document, default=_number), type(self).__name__)
            return spec.resolve([label, *fields])
        except SpecError as error:
            raise ValueError(str(error)) from None

    def _classes_of(self, classes: Any, engine: _MatrixEngine | _TableEngine | None) -> Any:
        """The classes of partial_fit: as given, or those of an earlier call."""
        if classes is None:
            if engine is None:
                raise ValueError("classes must be passed on the first call to partial_fit")
            return self.classes_
        given = _two_classes(np.asarray(classes))
        if engine is not None and not np.array_equal(given, self.classes_):
            raise ValueError(f"classes: got {given}, but the first call had {self.classes_}")
        return given

    def _outcomes(self, y: Any, classes: Any, sample_weight: Any) -> tuple[Floats, Floats]:
        """The label of each row as 0.0 or 1.0, and its weight; no weights if all are 1."""
        clicks = y == classes[1]
        if (others := ~clicks & (y != classes[0])).any():
            raise ValueError(f"y holds {y[others][0]!r}; expected the classes {classes.tolist()}")
        weights = np.ones(0)
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, y, dtype=np.float64)
            if (weights < 0.0).any():
                raise ValueError(f"sample_weight: got {weights.min():g}, expected weights >= 0")
        if self.class_weight is not None:
            of_class = compute_class_weight(self.class_weight, classes=classes, y=y)
            weights = of_class[clicks.astype(np.intp)] * (weights if weights.size else 1.0)
        if weights.size and not weights.max() <= LARGEST_REAL:
            raise ValueError(
                f"sample_weight and class_weight: got {weights.max():g}, expected products of at most {LARGEST_REAL:g}"
            )
        return clicks.astype(np.float64), np.ascontiguousarray(weights, np.float64)


# The fields exist once the class has been made.
FTRLClassifier._parameter_constraints = {
    each.name: each.metadata["constraints"] for each in fields(FTRLClassifier)
}


class _Engine:
    """A learning model of one variant, and what its predictions need, which is computed when they are asked for."""

    def __init__(self, spec: ModelSpec) -> None:
        self.model = LearningModel(ExampleMaker(spec))
        self.names = tuple(spec.fields)
        self.is_probit = spec.learner.link == "probit"

    def link(self, scores: Floats) -> Floats:
        """The probability of a click of each score."""
        found = np.empty(scores.size)
        (normal_cdfs if self.is_probit else probabilities)(scores, found)
        return found

    def _learned(self, again: ProgressiveMetrics | None) -> ProgressiveMetrics:
        return self.model.metrics if again is None else again


class _MatrixEngine(_Engine):
    """Learns and scores float64 matrices. The spec is as `MatrixModel` takes it."""

    def __init__(self, spec: ModelSpec, columns: int) -> None:
        super().__init__(spec)
        self._matrix = MatrixModel(self.model, columns)
        self._weights: Floats | None = None
        self._variances: Floats | None = None

    def __getstate__(self) -> dict[str, Any]:
        # The spec and what was learned: what is compiled or computed is made again.
        spec = self.model.spec.to_json()
        return {"spec": spec, "columns": self._matrix.columns, "state": self._matrix.state()}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(spec_from_json(state["spec"]), state["columns"])  # type: ignore[misc]
        self._matrix.restore(state["state"])

    def rows(self, columns: Any) -> Any:
        """A matrix as it is, or columns of numbers as a matrix, 0 for a missing number."""
        if not isinstance(columns, dict):
            return columns
        matrix = np.empty((len(next(iter(columns.values()))), len(columns)))
        for index, (name, column) in enumerate(columns.items()):
            kind = column.type
            if pa.types.is_boolean(kind):
                column = column.cast(pa.int8())
            if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
                numbers = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
            else:
                numbers, bad = number_column(_plain_columns({name: column})[name])
                if bad:
                    raise ValueError(f"X, row {bad[0][0]}: {name}: {bad[0][1]}")
            matrix[:, index] = numbers
        return _without_nan(matrix)

    def learn(
        self,
        matrix: Any,
        labels: Floats,
        weights: Floats,
        order: Rows | None = None,
        again: ProgressiveMetrics | None = None,
    ) -> ProgressiveMetrics:
        """Learn each row once; return the metrics that have its prediction."""
        values = matrix.data if hasattr(matrix, "tocsr") else matrix
        # Without abs, which would copy the matrix.
        if values.size and max(values.max(), -values.min()) > LARGEST_REAL:
            largest = max(values.max(), -values.min())
            raise ValueError(
                f"X holds a number of size {largest:g}; expected at most {LARGEST_REAL:g}: scale X"
            )
        self._weights = self._variances = None
        self._matrix.learn(matrix, labels, weights, order, again)
        return self._learned(again)

    @property
    def weights(self) -> Floats:
        """The weights of the bias and of each column, float64[columns + 1]; not to be changed."""
        if self._weights is None:
            weights = self._matrix.weights()
            # `coef_` is a view of it.
            weights.flags.writeable = False
            self._weights = weights
        return self._weights

    def scores(self, matrix: Any) -> Floats:
        """The score of each row: float64[rows]."""
        scores: Floats = np.asarray(safe_sparse_dot(matrix, self.weights[1:])) + self.weights[0]
        if self.is_probit:
            learner = self.model.spec.learner
            if self._variances is None:
                self._variances = self._matrix.rates(learner.alpha)
            squares = matrix.multiply(matrix).tocsr() if hasattr(matrix, "tocsr") else np.square(matrix)
            spreads = np.asarray(safe_sparse_dot(squares, self._variances[1:])) + self._variances[0]
            scores /= np.sqrt(learner.beta**2 + spreads)
        return scores


class _TableEngine(_Engine):
    """Learns and scores Arrow columns, by the rules for the rows of a log."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self._scorer: Scorer | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"spec": self.model.spec.to_json(), "state": self.model.state()}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(spec_from_json(state["spec"]))  # type: ignore[misc]
        self.model.restore(state["state"])

    @property
    def weights(self) -> Floats:
        """Raises AttributeError: a key is a column and its value."""
        raise AttributeError(
            "coef_ and intercept_ exist only where every column of X is a plain number; with categories, crosses or "
            "transformed numbers a weight belongs to a column's value: model_ has them all"
        )

    def rows(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Columns of plain Arrow types, by the names of the first rows; a field of numbers takes booleans."""
        named = _plain_columns(dict(zip(self.names, columns.values(), strict=True)))
        for name, field in self.model.spec.fields.items():
            if field.kind == "number" and pa.types.is_boolean(named[name].type):
                named[name] = named[name].cast(pa.int64())
        return named

    def learn(
        self,
        columns: Mapping[str, Any],
        labels: Floats,
        weights: Floats,
        order: Rows | None = None,
        again: ProgressiveMetrics | None = None,
    ) -> ProgressiveMetrics:
        """Learn each row once; return the metrics that have its prediction."""
        self._scorer = None
        first = 0
        # One thread hashes while this one learns.
        with examples_of(self._batches(columns, labels, order), self.model.maker, 1) as stream:
            for examples in stream:
                _check_rejects(examples.rejects, order)
                if weights.size:
                    piece = slice(first, first + examples.counts.rows_read)
                    of_rows = weights[piece if order is None else order[piece]]
                    examples = replace(examples, hashed=examples.hashed._replace(weights=of_rows))
                first += examples.counts.rows_read
                self.model.learn(examples, again)
        return self._learned(again)

    def scores(self, columns: Mapping[str, Any]) -> Floats:
        """The score of each row by the model as it is published: float64[rows]."""
        if self._scorer is None:
            # Of the model as it is published, in float32: predictions are those of `model_`.
            self._scorer = Scorer(self.model.artefact())
        maker, found = self.model.maker, []
        for batch in self._batches(columns, np.zeros(len(next(iter(columns.values())))), None):
            examples = maker.make(batch)
            _check_rejects(examples.rejects, None)
            found.append(self._scorer.score(maker, examples).latent[:, 0])
        return np.concatenate(found)

    def _batches(self, columns: Mapping[str, Any], labels: Floats, order: Rows | None) -> Iterator[RowBatch]:
        columns = {**columns, self.model.spec.input.label: pa.array(labels)}
        rows = labels.size if order is None else order.size
        for first in range(0, rows, _ROWS_AT_ONCE):
            size = min(_ROWS_AT_ONCE, rows - first)
            if order is None:
                piece = {name: column.slice(first, size) for name, column in columns.items()}
            else:
                chosen = pa.array(order[first : first + size])
                piece = {name: column.take(chosen) for name, column in columns.items()}
            lines = np.arange(first, first + size, dtype=np.int64)
            yield RowBatch(piece, lines, "X", (), size, Position("X"))


def _of_rows(rows: Any, chosen: Rows) -> Any:
    """Some of the rows of an engine."""
    if isinstance(rows, dict):
        return {name: column.take(pa.array(chosen)) for name, column in rows.items()}
    return rows[chosen]


def _check_rejects(rejects: Sequence[Any], order: Rows | None) -> None:
    if rejects:
        row = rejects[0].line if order is None else order[rejects[0].line]
        raise ValueError(f"X, row {row}: {rejects[0].reason}")


def _is_table(data: Any) -> bool:
    """Whether this is a table with named columns: of pandas, polars, Arrow, or what has Arrow's interface."""
    names = getattr(data, "columns", None)
    return names is not None and hasattr(data, "shape") and not hasattr(data, "tocsr")


def _columns_of(table: Any) -> dict[str, Any]:
    """The columns of a table as Arrow arrays by name."""
    if hasattr(table, "iloc"):
        # By position: two columns may have the same name, which is refused below.
        columns = [(str(name), table.iloc[:, index]) for index, name in enumerate(table.columns)]
    else:
        try:
            arrow = arrow_table(table)
        except InputError as error:
            raise ValueError(f"X: {error}") from None
        columns = list(zip(arrow.column_names, arrow.columns, strict=True))
    found = {name: _arrow(column) for name, column in columns}
    if len(found) < len(columns):
        names = [name for name, _ in columns]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"X has two columns {twice!r}; expected different names")
    return found


def _arrow(column: Any) -> Any:
    """A column as an Arrow array; values of several types become text."""
    if isinstance(column, pa.ChunkedArray):
        return column.combine_chunks()
    try:
        found = pa.array(column, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        missing = [value is None or value != value for value in column]
        texts = [None if absent else str(value) for value, absent in zip(column, missing, strict=True)]
        found = pa.array(texts, pa.string())
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _kind_of(name: str, column: Any) -> str:
    """The kind of field that a column's type suggests; "moment" for times, which no kind fits by itself."""
    kind = column.type
    if pa.types.is_temporal(kind):
        return "moment"
    if is_several(kind):
        return "set"
    numeric = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    if pa.types.is_null(kind) or any(is_of(kind) for is_of in numeric):
        return "number"
    try:
        # None of its values: only the type decides.
        plain(column[:0])
    except NotPlain as error:
        raise ValueError(f"X: column {name!r} has {error}, which cannot be learned") from None
    return "category"


def _plain_columns(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of the types of a log's rows."""
    found = {}
    for name, column in columns.items():
        try:
            if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
                # Libraries other than pandas distinguish NaN from null; here both are a missing number.
                column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
            found[name] = plain(column)
        except (NotPlain, pa.ArrowInvalid) as error:
            raise ValueError(f"X: column {name!r}: {error}") from None
    return found


def _without_nan(matrix: Any) -> Any:
    """The matrix with 0 for NaN; itself if it has none."""
    values = matrix.data if hasattr(matrix, "tocsr") else matrix
    # The sum is NaN if a number is, without a mask in memory; so it is of inf and -inf, hence the second test.
    if np.isnan(values.sum()) and np.isnan(values).any():
        # It is the caller's.
        matrix = matrix.copy()
        np.nan_to_num(matrix.data if hasattr(matrix, "tocsr") else matrix, copy=False, nan=0.0)
    return matrix


def _two_classes(labels: Any) -> Any:
    found = np.unique(labels)
    if found.size != 2:
        raise ValueError(
            f"{FTRLClassifier.__name__} needs rows of two classes; got {found.size} class"
            f"{'es' * (found.size != 1)}: {found.tolist()}"
        )
    return found


def _number(value: Any) -> Any:
    """A number of numpy as one of Python, for JSON."""
    if isinstance(value, np.generic):
        return value.item()
    raise ValueError(f"got {value!r}; expected text, a number, true, false, or a list of them")


def _some(names: Any) -> str:
    listed = [repr(name) for name in names]
    return ", ".join(listed[:10]) + (", ..." if len(listed) > 10 else "")


def _note(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=2)
