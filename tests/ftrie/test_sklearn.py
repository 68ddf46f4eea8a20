"""`ftrie.sklearn.FTRLClassifier`: its weights are those of the definition and of a log of the same rows, whatever holds
the rows; it passes scikit-learn's checks as docs/library.md lists them, and works in scikit-learn's pipelines."""

from __future__ import annotations

import copy
import importlib.util
import json
import pickle
import re
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("sklearn")

import sklearn
from scipy import sparse
from scipy.special import expit
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from ftrie.sklearn import FTRLClassifier
from model_store.spec.spec import spec_from_json
from tests.matrix import slow_except
from trainer.examples.hashing import ExampleMaker
from trainer.formats.batch import Position, RowBatch
from trainer.learn.model import LearningModel
from trainer.learn.scorer import Scorer

ALGORITHMS: dict[str, dict[str, Any]] = {
    "ftrl": {"l1": 0.5, "l2": 0.1},
    "ogd": {"l2": 0.01},
    "truncation": {"learner_options": {"theta": 0.01, "k": 5}},
    "truncated_gradient": {"l1": 0.01, "learner_options": {"theta": 0.5}},
    "fobos": {"l1": 0.01, "l2": 0.01},
    "rda": {"l1": 0.001},
    "adpredictor": {},
}
KNOWS_POLARS = tuple(map(int, sklearn.__version__.split(".")[:2])) >= (1, 9)  # of version 2
ONCE: dict[str, Any] = {"alpha": 0.1, "max_iter": 1, "shuffle": False}
STORED = {
    "csr": sparse.csr_matrix,
    "csc": sparse.csc_matrix,
    "csr_array": sparse.csr_array,
    "float32": lambda X: X.astype(np.float32),
    "int64 indices": lambda X: _with_wide_indices(sparse.csr_matrix(X)),
    "repeats": lambda X: _with_repeats(sparse.csr_matrix(X)),
    "fortran": np.asfortranarray,
}


def _with_wide_indices(X: Any) -> Any:
    X.indices, X.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
    return X


def _with_repeats(X: Any) -> Any:
    """The same matrix with each number as two halves, in descending columns, and a stored 0 in each row."""
    rows = [X.indices[a:b][::-1] for a, b in zip(X.indptr, X.indptr[1:], strict=False)]
    values = [X.data[a:b][::-1] / 2 for a, b in zip(X.indptr, X.indptr[1:], strict=False)]
    indices = np.concatenate([np.concatenate([r, r, [0]]) for r in rows])
    data = np.concatenate([np.concatenate([v, v, [0.0]]) for v in values])
    return sparse.csr_matrix((data, indices, 2 * X.indptr + np.arange(X.indptr.size)), shape=X.shape)


def rows(n: int = 300, columns: int = 6, seed: int = 0) -> tuple[Any, Any]:
    """A matrix, a third of it zeros, whose numbers float32 holds exactly, and labels that depend on it."""
    random = np.random.default_rng(seed)
    X = np.round(random.normal(size=(n, columns)) * 64) / 64 * (random.random((n, columns)) < 0.67)
    chance = 1.0 / (1.0 + np.exp(-(X @ np.linspace(-2.0, 2.0, columns) - 0.5)))
    return X, (random.random(n) < chance).astype(int)


def mixed(n: int = 400) -> tuple[pa.Table, Any]:
    """A table of categories, text, numbers and booleans, some missing; a column is called bias, one label."""
    random = np.random.default_rng(1)
    bias = np.round(random.normal(size=n), 3)
    city = random.choice(["Graz", "Wien*=%", "Linz"], n)
    flag = random.random(n) < 0.5
    maybe = [None if each < 0.2 else float(each) for each in np.round(random.random(n), 3)]
    table = pa.table(
        {
            "bias": bias,
            "city": pa.array(city).dictionary_encode(),
            "label": pa.array([None if each < 0.1 else str(int(10 * each)) for each in random.random(n)]),
            "flag": flag,
            "maybe": maybe,
        }
    )
    y = np.where(2 * bias + 2 * (city == "Graz") - flag + random.normal(size=n) > 0, "click", "none")
    return table, y


def log_model(classifier: FTRLClassifier, X: Any, y: Any, weights: Any) -> LearningModel:
    """A model that has learned the rows as a log: a column of numbers for each column of X, NaN where it is 0."""
    names = ("algorithm", "alpha", "beta", "l1", "l2", "hash_bits")
    learner = {name: getattr(classifier, name) for name in names} | (classifier.learner_options or {})
    fields = {f"c{index}": {"kind": "number"} for index in range(X.shape[1])}
    given = {"label": "label", "weight": "weight"}
    spec = {"model": {"name": "log"}, "input": given, "fields": fields, "learner": learner}
    model = LearningModel(ExampleMaker(spec_from_json(json.dumps(spec))))
    model.learn(model.maker.make(batch_of(fields, X, label=y, weight=weights)))
    return model


def batch_of(names: Iterable[str], X: Any, **more: Any) -> RowBatch:
    """The rows as read from a log, and more columns."""
    numbers = np.where(X == 0.0, np.nan, X).T
    columns = {name: pa.array(x, from_pandas=True) for name, x in zip(names, numbers, strict=True)}
    columns |= {name: pa.array(values) for name, values in more.items()}
    return RowBatch(columns, np.arange(len(X), dtype=np.int64), "log", (), len(X), Position("log"))


def weights_by_column(model: LearningModel, columns: int) -> list[float]:
    """The weights of a log's model: of the bias, and of each column."""
    keys = model.table.keys()
    texts = [keys.data[a:b].tobytes() for a, b in zip(keys.offsets, keys.offsets[1:], strict=False)]
    weights = dict(zip(texts, model.coordinates.weights(keys)[:, 0].tolist(), strict=True))
    return [weights.get(key, 0.0) for key in [b"bias", *(b"c%d=" % index for index in range(columns))]]


def table_of(X: Any) -> pa.Table:
    return pa.table({f"c{index}": column for index, column in enumerate(X.T)})


def all_weights(classifier: FTRLClassifier) -> list[float]:
    return [*classifier.intercept_.tolist(), *classifier.coef_[0].tolist()]


@pytest.mark.parametrize("hash_bits", [None, 8])
@pytest.mark.parametrize("algorithm", slow_except(["ftrl"], ALGORITHMS))
def test_a_matrix_is_learned_as_the_log_of_its_rows(algorithm: str, hash_bits: int | None) -> None:
    X, y = rows()
    weights = np.random.default_rng(3).random(y.size) * 3
    classifier = FTRLClassifier(algorithm=algorithm, hash_bits=hash_bits, **ONCE, **ALGORITHMS[algorithm])
    classifier.fit(table_of(X), y, sample_weight=weights)
    model = log_model(classifier, X, y, weights)
    assert all_weights(classifier) == weights_by_column(model, X.shape[1])
    assert any(all_weights(classifier))


@pytest.mark.parametrize("algorithm", slow_except(["ftrl"], ["ftrl", "adpredictor"]))
def test_the_published_model_predicts_the_same(algorithm: str) -> None:
    X, y = rows()
    classifier = FTRLClassifier(algorithm=algorithm, **ONCE).fit(table_of(X), y)
    artefact = classifier.model_.artefact
    maker = ExampleMaker(artefact.spec)
    scores = Scorer(artefact).score(maker, maker.make(batch_of(maker.spec.fields, X, label=y)))
    assert classifier.predict_proba(table_of(X))[:, 1] == pytest.approx(scores.ctr[:, 0], rel=1e-6)
    assert classifier.decision_function(table_of(X)) == pytest.approx(scores.latent[:, 0], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("stored", STORED)
def test_it_is_the_same_model_whatever_holds_the_matrix(stored: str) -> None:
    X, y = rows()
    options = {"random_state": 5, "max_iter": 3, "tol": None}
    dense, other = FTRLClassifier(**options).fit(X, y), FTRLClassifier(**options).fit(STORED[stored](X), y)
    assert all_weights(other) == all_weights(dense)
    assert other.predict_proba(STORED[stored](X)) == pytest.approx(dense.predict_proba(X), rel=1e-12)


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_matrix], ids=["dense", "csr"])
def test_probabilities_are_those_of_the_weights(make: Any) -> None:
    X, y = rows()
    X[:, 2] *= 1000.0
    classifier = FTRLClassifier(random_state=0).fit(make(X), y)
    expected = expit(make(X) @ classifier.coef_[0] + classifier.intercept_)
    found = classifier.predict_proba(make(X))
    assert np.abs(found[:, 1] - expected).max() <= 1e-12
    assert np.abs(found.sum(axis=1) - 1.0).max() <= 1e-12
    assert np.exp(classifier.predict_log_proba(make(X))) == pytest.approx(found, rel=1e-12)
    assert classifier.coef_.shape == (1, X.shape[1]) and classifier.intercept_.shape == (1,)


def test_parts_give_the_model_of_the_whole() -> None:
    X, y = rows()
    whole, parts = FTRLClassifier(**ONCE).fit(X, y), FTRLClassifier(alpha=0.1)
    for first in range(0, y.size, 37):
        part = slice(first, first + 37)
        parts.partial_fit(sparse.csr_matrix(X[part]), y[part], classes=[0, 1])
    assert all_weights(parts) == all_weights(whole)
    assert parts.n_iter_ == whole.n_iter_ == 1
    table, y = mixed()
    crosses: dict[str, Any] = {"crosses": [("city", "label")]}
    whole, parts = FTRLClassifier(**crosses, **ONCE).fit(table, y), FTRLClassifier(alpha=0.1, **crosses)
    for first in range(0, y.size, 83):
        parts.partial_fit(table.slice(first, 83), y[first : first + 83], classes=["click", "none"])
    assert (parts.predict_proba(table) == whole.predict_proba(table)).all()


@pytest.mark.parametrize("make", [np.asarray, lambda X: mixed_with(X)], ids=["matrix", "table"])
def test_the_learning_rate_is_the_best_for_rows_held_out(make: Any) -> None:
    """Given strong effects, of numbers or of categories, when alpha is not given, then a larger one is chosen."""
    random = np.random.default_rng(4)
    X = random.integers(0, 4, (4000, 6)).astype(float)
    y = (random.random(4000) < expit((X - 1.5) @ [3.0, -3.0, 2.0, -2.0, 1.0, 0.0])).astype(int)
    chosen = FTRLClassifier(random_state=0).fit(make(X), y)
    assert chosen.alpha_ >= 0.2 and chosen.get_params()["alpha"] == "auto"
    given = FTRLClassifier(alpha=chosen.alpha_, random_state=0).fit(make(X), y)
    assert (given.predict_proba(make(X)) == chosen.predict_proba(make(X))).all()
    assert chosen.model_.artefact.spec.learner.alpha == chosen.alpha_
    parts = FTRLClassifier().partial_fit(make(X[:2000]), y[:2000], classes=[0, 1])
    first = parts.alpha_
    assert parts.partial_fit(make(X[2000:]), y[2000:]).alpha_ == first > 0.1
    noise = FTRLClassifier(random_state=0).fit(make(X), random.permutation(y))
    assert noise.alpha_ < 0.1


def test_few_rows_choose_the_textbook_rate() -> None:
    X, y = rows()
    assert FTRLClassifier().fit(X[:100], y[:100]).alpha_ == 0.1
    one_class = FTRLClassifier().partial_fit(X, np.zeros(y.size, int), classes=[0, 1])
    assert one_class.alpha_ == 0.1


def mixed_with(X: Any) -> pa.Table:
    """The columns as categories."""
    return pa.table(
        {f"c{at}": pa.array([f"v{value:g}" for value in column]) for at, column in enumerate(X.T)}
    )


def test_many_rows_are_learned_in_pieces() -> None:
    random = np.random.default_rng(0)
    X = sparse.random(40_000, 10, 0.2, random_state=0, format="csr")
    y = (random.random(40_000) < 0.3).astype(int)
    whole, parts = FTRLClassifier(**ONCE).fit(X, y), FTRLClassifier(alpha=0.1)
    for first in range(0, 40_000, 7_000):
        parts.partial_fit(X[first : first + 7_000], y[first : first + 7_000], classes=[0, 1])
    assert all_weights(parts) == all_weights(whole)
    some = X.toarray()[:20_000]
    table = FTRLClassifier(crosses=[("x0", "x1")], **ONCE).fit(some, y[:20_000])
    assert (table.predict_proba(some)[-5:] == table.predict_proba(some[-5:])).all()


@pytest.mark.parametrize("kind", ["matrix", "table"])
def test_a_copy_goes_on_as_the_original(kind: str) -> None:
    table, y = mixed()
    X = table if kind == "matrix" else rows(y.size)[0]
    classifier = FTRLClassifier(random_state=0, max_iter=2, tol=None).fit(X, y)
    expected = copy.deepcopy(classifier).partial_fit(X, y).predict_proba(X)
    for copied in (pickle.loads(pickle.dumps(classifier)), copy.deepcopy(classifier)):
        assert (copied.predict_proba(X) == classifier.predict_proba(X)).all()
        assert (copied.partial_fit(X, y).predict_proba(X) == expected).all()
    assert not (classifier.predict_proba(X) == expected).all()


def test_passes_end_when_they_help_little_and_class_weights_multiply_sample_weights() -> None:
    X, y = rows()
    few = FTRLClassifier(random_state=0, max_iter=100, tol=1e-2).fit(X, y)
    more = FTRLClassifier(random_state=0, max_iter=100, tol=1e-4).fit(X, y)
    all_of_them = FTRLClassifier(random_state=0, max_iter=7, tol=None).fit(X, y)
    assert 2 <= few.n_iter_ < more.n_iter_ < 100
    assert (len(few.loss_curve_), all_of_them.n_iter_) == (few.n_iter_, 7)
    assert few.loss_curve_[-2] - few.loss_curve_[-1] < 1e-2 <= few.loss_curve_[0] - few.loss_curve_[1]
    weights = np.random.default_rng(3).random(y.size)
    by_class = FTRLClassifier(class_weight={0: 1.0, 1: 3.0}, **ONCE).fit(X, y, sample_weight=weights)
    by_row = FTRLClassifier(**ONCE).fit(X, y, sample_weight=weights * np.where(y == 1, 3.0, 1.0))
    assert all_weights(by_class) == all_weights(by_row)


def test_a_column_called_bias_is_not_the_bias_and_unknown_and_missing_categories_add_nothing() -> None:
    X, y = rows(columns=3)
    table = pa.table({"bias": X[:, 0], "label": X[:, 1], "features": X[:, 2]})
    named, plain = FTRLClassifier(**ONCE).fit(table, y), FTRLClassifier(**ONCE).fit(X, y)
    assert all_weights(named) == all_weights(plain)
    assert named.feature_names_in_.tolist() == ["bias", "label", "features"]
    assert named.coef_[0, 0] != named.intercept_[0]

    table, y = mixed()
    classifier = FTRLClassifier(random_state=0).fit(table, y)
    assert classifier.score(table, y) > 0.75
    with pytest.raises(AttributeError, match="model_ has them all"):
        _ = classifier.coef_
    artefact = classifier.model_.artefact
    keys = {artefact.key(row) for row in range(artefact.rows)}
    assert {b"bias", b"bias=", b"city=Graz", b"city=Wien%2A%3D%25", b"flag="} <= keys

    def score(**values: Any) -> float:
        changed = table.slice(0, 1)
        for name, value in values.items():
            place = changed.column_names.index(name)
            changed = changed.set_column(place, name, pa.array([value], pa.string() if value else pa.null()))
        return float(classifier.decision_function(changed)[0])

    assert score(city="Rom") == score(city=None) != score(city="Graz")
    assert score(city="Rom", label=None) == score(city=None, label="no such")


def test_pandas_and_polars_give_what_arrow_gives() -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    table, y = mixed()
    expected = FTRLClassifier(random_state=0, max_iter=2, tol=None).fit(table, y).predict_proba(table)
    frame = table.to_pandas()
    frame.index = frame.index[::-1] + 7
    for data in (frame, polars.from_arrow(table)):
        classifier = FTRLClassifier(random_state=0, max_iter=2, tol=None).fit(data, y)
        assert (classifier.predict_proba(data) == expected).all()
        if data is frame or KNOWS_POLARS:
            assert classifier.feature_names_in_.tolist() == table.column_names
    numbers = frame[["bias", "flag", "maybe"]]
    plain = FTRLClassifier(random_state=0).fit(numbers, y)
    X = numbers.fillna(0.0).to_numpy(np.float64)
    expected = expit(X @ plain.coef_[0] + plain.intercept_)
    assert plain.predict_proba(numbers)[:, 1] == pytest.approx(expected, abs=1e-12)
    again = FTRLClassifier(random_state=0).fit(polars.from_pandas(numbers), y)
    assert all_weights(again) == all_weights(plain)
    several_types = pandas.DataFrame({"a": pandas.Series([1, "x", None, 2.5] * 20, dtype=object)})
    mixed_types = FTRLClassifier(random_state=0).fit(several_types, [0, 1, 0, 0] * 20)
    assert mixed_types.predict(several_types).tolist() == [0, 1, 0, 0] * 20
    by_number = FTRLClassifier(random_state=0).fit(pandas.DataFrame(X), y)
    assert by_number.coef_.shape == (1, 3) and not hasattr(by_number, "feature_names_in_")


def test_a_missing_number_is_a_zero_and_categories_of_views_are_texts() -> None:
    X, y = rows()
    missing = np.where(X == 0.0, np.nan, X)
    expected = FTRLClassifier(**ONCE).fit(X, y)
    for given in (missing, table_of(missing)):
        classifier = FTRLClassifier(**ONCE).fit(given, y)
        assert all_weights(classifier) == all_weights(expected)
        assert (classifier.predict_proba(given) == expected.predict_proba(X)).all()
    stored = sparse.csr_matrix(missing)
    assert all_weights(FTRLClassifier(**ONCE).fit(stored, y)) == all_weights(expected)
    assert np.isnan(missing).any() and np.isnan(stored.data).any()

    # As polars shares its categories: a dictionary of string views, which Arrow does not decode.
    codes, texts = [1, 0, None, 1] * 20, pa.array(["red", "blue"]).cast(pa.string_view())
    views = pa.table({"colour": pa.DictionaryArray.from_arrays(pa.array(codes, pa.uint8()), texts)})
    plain = pa.table({"colour": [None if code is None else ("red", "blue")[code] for code in codes]})
    labels = [1, 0, 0, 1] * 20
    found = [FTRLClassifier(**ONCE).fit(each, labels).predict_proba(each) for each in (plain, views)]
    assert (found[0] == found[1]).all()
    assert len(np.unique(found[0][:, 1])) == 3


def test_columns_of_an_array_can_be_categories() -> None:
    X = np.tile([[0.5, 1.0], [0.5, 2.0], [0.5, 3.0]], (30, 1))
    y = np.tile([0, 1, 0], 30)
    for listed in ([1], ["x1"], [False, True], [-1]):
        classifier = FTRLClassifier(categorical_features=listed, random_state=0).fit(X, y)
        assert classifier.predict(X).tolist() == y.tolist()
    assert FTRLClassifier(random_state=0).fit(X, y).predict(X).tolist() != y.tolist()


def test_crosses_and_fields_are_those_of_a_spec() -> None:
    random = np.random.default_rng(0)
    X = random.integers(0, 2, (400, 2)).astype(float)
    y = (X[:, 0] != X[:, 1]).astype(int)
    categories = {"categorical_features": [0, 1]}
    assert FTRLClassifier(crosses=[("x0", "x1")], **categories).fit(X, y).score(X, y) == 1.0
    assert FTRLClassifier(**categories).fit(X, y).score(X, y) < 0.8
    numbers = random.normal(size=(400, 1))
    near = (np.abs(numbers[:, 0]) < 0.7).astype(int)
    bucketed = FTRLClassifier(fields={"x0": {"bucket": "quantile:20", "side": "item"}}).fit(numbers, near)
    assert bucketed.score(numbers, near) > 0.9
    spec = bucketed.model_.artefact.spec
    field = spec.fields["x0"]
    assert (field.side, len(field.learned), spec.model.name) == ("item", 19, "classifier")
    given = FTRLClassifier(fields={"x0": {"fixed_weight": -2.0}}, **ONCE).fit(numbers, near)
    scores = given.decision_function([[1.0], [3.0]])
    assert scores[1] - scores[0] == pytest.approx(-4.0)


def test_scikit_learns_own_checks_end_as_the_page_says() -> None:
    path = Path(__file__).resolve().parents[2] / "docs/sklearn_checks.py"
    module_spec = importlib.util.spec_from_file_location("sklearn_checks", path)
    assert module_spec is not None and module_spec.loader is not None
    checks = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(checks)
    outcomes = checks.outcomes()
    assert [each for each in outcomes if each.status == "failed"] == []
    assert sum(each.status == "passed" for each in outcomes) > 50
    version, on_the_page = checks.on_the_page()
    if version != checks.version():
        return  # another version has other checks
    listed = set(re.findall(r"check_\w+", on_the_page))
    others = {each.name for each in outcomes if each.status != "passed"}
    assert {each.name for each in outcomes if each.status == "xfail"} <= listed <= others
    if listed == others:  # none is skipped for want of a package
        assert on_the_page == checks.table(outcomes)


def test_it_works_inside_scikit_learn() -> None:
    pytest.importorskip("pandas")
    X, y = rows()
    pipeline = make_pipeline(StandardScaler(), FTRLClassifier(random_state=0))
    assert cross_val_score(pipeline, X, y, cv=3).min() > 0.7
    options = {"ftrlclassifier__alpha": [1e-6, 0.1], "ftrlclassifier__l1": [0.0, 1.0]}
    assert GridSearchCV(pipeline, options, cv=2).fit(X, y).best_params_["ftrlclassifier__alpha"] == 0.1
    calibrated = CalibratedClassifierCV(FTRLClassifier(random_state=0), cv=3).fit(X, y)
    assert log_loss(y, calibrated.predict_proba(X)) < 0.6
    table, labels = mixed()
    encode = ColumnTransformer([("city", OneHotEncoder(), ["city"])], remainder="drop")
    encoded = make_pipeline(encode, FTRLClassifier(random_state=0)).fit(table.to_pandas(), labels)
    assert encoded.score(table.to_pandas(), labels) > 0.6
    several = OneVsRestClassifier(FTRLClassifier(random_state=0)).fit(X, y + (X[:, 0] > 1))
    assert several.predict_proba(X).shape == (300, 3)


def test_a_clone_has_learned_nothing_and_a_fit_that_fails_leaves_the_model_as_it_was() -> None:
    X, y = rows()
    classifier = FTRLClassifier(l1=2.0, crosses=[("x0", "x1")], random_state=0).fit(X, y)
    cloned = clone(classifier)
    assert cloned.get_params() == classifier.get_params()
    assert cloned.set_params(l1=1.0).l1 == 1.0
    for what in ("coef_", "model_"):
        with pytest.raises(NotFittedError):
            getattr(cloned, what)
    before = classifier.predict_proba(X)
    with pytest.raises(ValueError, match="Only binary"):
        classifier.fit(X, np.arange(y.size) % 3)
    assert (classifier.predict_proba(X) == before).all()
    with pytest.raises(ValueError, match="classes must be passed"):
        cloned.partial_fit(X, y)
    assert cloned.partial_fit(X, y, classes=[0, 1]).predict(X).size == y.size


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.base", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "ftrie.sklearn")
    with pytest.raises(ImportError, match=r"pip install 'ftrie\[sklearn\]'"):
        importlib.import_module("ftrie.sklearn")


def test_a_wrong_parameter_is_named() -> None:
    X, y = rows(20)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"max_iter": 2.5}, "'max_iter' parameter of FTRLClassifier must be an int"),
        ({"l1": "a"}, "'l1' parameter of FTRLClassifier must be a float"),
        ({"alpha": 0.0}, "'alpha'"),
        ({"algorithm": "sgd"}, "'algorithm'"),
        ({"hash_bits": 3}, "'hash_bits'"),
        ({"shuffle": "no"}, "'shuffle'"),
        ({"crosses": "ab"}, "'crosses'"),
        ({"algorithm": "truncation"}, "needs theta"),
        ({"algorithm": "truncation", "l1": 1.0, "learner_options": {"theta": 1.0}}, "l1 does not belong"),
        ({"learner_options": {"ttl": 3}}, "learner_options: got 'ttl'; expected some of rate"),
        ({"crosses": [("x0", "x9")]}, "no field 'x9'"),
        ({"fields": {"x9": {}}}, "fields: X has no column 'x9'; it has 'x0', 'x1'"),
        ({"fields": {"x0": {"kind": "word"}}}, "fields.x0.kind"),
        ({"fields": {"x0": {"ratio": ["x1", "x2"], "kind": "number"}}}, "compute the column in X"),
        ({"categorical_features": ["age"]}, "categorical_features: X has no column 'age'"),
        ({"model_name": "a b"}, "model name 'a b'"),
    ]
    for options, words in wrong:
        with pytest.raises(ValueError, match=re.escape(words)):
            FTRLClassifier(**options).fit(X, y)


@pytest.mark.parametrize("as_table", [False, True])
def test_ids_and_times_as_plain_numbers_are_warned_of(as_table: bool) -> None:
    draw = np.random.default_rng(1)
    good = draw.normal(size=(400, 1))
    y = (good[:, 0] + draw.normal(size=400) > 0).astype(int)
    X = np.column_stack([draw.integers(10_000, 20_000, 400), 1.7e9 + 60.0 * np.arange(400), good])
    rows = pa.table({f"x{at}": X[:, at] for at in range(3)}) if as_table else X
    with pytest.warns(
        UserWarning, match=r"large numbers in x0 \(up to 2e\+04\), x1 \(up to 1.7e\+09\): scale"
    ):
        FTRLClassifier().fit(rows, y)
    if as_table:
        with pytest.warns(UserWarning, match=r"large numbers in x1 "):
            FTRLClassifier(categorical_features=["x0"]).fit(rows, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FTRLClassifier().fit(good, y)
        FTRLClassifier().fit(draw.normal(size=(400, 3)), y)  # nothing to learn, and not for the numbers' size


@pytest.mark.parametrize(
    "given", [{"sample_weight": np.r_[1e300, np.ones(7)]}, {"class_weight": {0: 1.0, 1: 1e300}}]
)
def test_weights_are_bounded_as_those_of_a_log(given: dict[str, Any]) -> None:
    X, y = np.eye(8), np.arange(8) % 2
    of_class = given.pop("class_weight", None)
    with pytest.raises(ValueError, match="got 1e\\+300, expected products of at most 1e\\+24"):
        FTRLClassifier(class_weight=of_class).fit(X, y, **given)


def test_wrong_rows_are_named() -> None:
    table, y = mixed()
    X, labels = rows()
    new, fitted = FTRLClassifier, FTRLClassifier(random_state=0).fit(table, y)
    wrong = table.set_column(0, "bias", pa.array(["0.5", "many"] * 200))
    times = pa.table({"when": pa.array([0] * 400, pa.timestamp("s"))})
    twice = pa.table([X[:, 0], X[:, 1]], names=["a", "a"])
    nothing = r"0 sample\(s\) \(shape=\(0, 5\)\) while a minimum of 1"
    cases: list[tuple[Any, str]] = [
        (lambda: new().fit(table.slice(0, 0), []), nothing),
        (lambda: fitted.predict(table.slice(0, 0)), r"0 sample\(s\)"),
        (lambda: new().fit(times, y), "column 'when' holds times"),
        (lambda: fitted.predict(wrong), "X, row 1: bias: got 'many', expected a number"),
        (lambda: new().fit(X * 1e30, labels), "expected at most 1e\\+24"),
        (lambda: new().fit(X, labels, sample_weight=-np.ones(300)), "sample_weight: got -1"),
        (lambda: new().fit(X, np.ones(300)), "two classes; got 1 class"),
        (lambda: new().partial_fit(X, labels + 1, classes=[0, 1]), "y holds"),
        (lambda: fitted.partial_fit(table, y, classes=["a", "b"]), "the first call had"),
        (lambda: new(class_weight="balanced").partial_fit(X, labels, [0, 1]), "needs all rows at once"),
        (lambda: new().fit(twice, labels), "a"),
    ]
    for call, words in cases:
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(TypeError, match="[Ss]parse"):
        new(crosses=[("x0", "x1")]).fit(sparse.csr_matrix(X), labels)
