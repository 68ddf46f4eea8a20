"""AdPredictor beyond `test_learners.py`: importance weights, real x, priors, forgetting, and what is published."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from model_store.errors import SpecError
from model_store.normal_kernels import normal_cdfs
from model_store.spec.spec import parse_spec
from tests.kernels import learned
from tests.matrix import slow_except
from tests.trainer.learn.pairs import assert_same
from tests.trainer.oracles.trial import by_kernel, by_textbook, weights_of
from tests.worlds import batch_of, model_of, shop_rows, shop_spec
from trainer.examples.hashing import ExampleMaker
from trainer.learn.scorer import Scorer, scoring_spec

PHI = NormalDist().cdf
HEAD = """
[model]
name = "m"
[input]
label = "click"
weight = "importance"
[fields]
a = { kind = "category" }
s = { kind = "set" }
x = { kind = "number" }
[[crosses]]
fields = ["a", "x"]
[variants]
base = { share = 0.5 }
lean = { share = 0.5, without = ["s"] }
"""
SPEC = HEAD + '[learner]\nalgorithm = "adpredictor"\nalpha = 0.7\nbeta = 0.8\n'


def rows_of(*rows):
    names = ("click", "importance", "a", "s", "x")
    return [dict(zip(names, row, strict=True)) for row in rows]


def drawn(size, seed):
    """Random rows, of real x, and of importances that are whole, fractions and 0."""
    random = np.random.default_rng(seed)
    return rows_of(
        *(
            (
                random.choice([b"0", b"1"]),
                random.choice([b"1", b"0", b"30", b"2.5", b"%.17g" % random.uniform(0, 40)]),
                random.choice([b"", b"p", b"q", b"r"]),
                random.choice([b"", b"u", b"u|v", b"v"]),
                b"%.17g" % (random.uniform(-1.0, 1.0) * 10.0 ** random.integers(-3, 1)),
            )
            for _ in range(size)
        )
    )


@pytest.mark.parametrize(
    "more", ["", "forgetting = 0.01\n", "prior_ctr = 0.02\nforgetting = 0.3\n", "forgetting = 0.999\n"]
)
def test_random_streams_with_real_x_weights_and_forgetting_equal_plain_python(more):
    spec = parse_spec(SPEC + more)
    for seed in range(8):
        rows = drawn(40, seed)
        assert_same(spec, rows)
        model, (_, _, oracle) = learned(spec, rows), by_textbook(spec, rows)
        keys = model.table.keys()
        data, variances = keys.data.tobytes(), model.coordinates.rates(keys)
        for index, variance in enumerate(variances[:, 0]):
            key = data[keys.offsets[index] : keys.offsets[index + 1]]
            assert variance == pytest.approx(oracle.variance(key, 0), rel=1e-9), key


@pytest.mark.parametrize("importance", [b"1000", b"1001", b"1e9", b"0.001"])
def test_a_large_or_fractional_importance_equals_plain_python(importance):
    rows = rows_of(*[(b"1", importance, b"p", b"u", b"3"), (b"0", b"1", b"p", b"", b"0.1")] * 3)
    assert_same(parse_spec(SPEC), rows)


def test_a_fraction_of_an_importance_lies_between_the_whole_ones_and_weighs_less_the_larger_it_is():
    def mean(importance):
        return weights_of(learned(parse_spec(SPEC), rows_of((b"1", importance, b"p", b"", b""))))[b"a=p"][0]

    means = [mean(b"%g" % importance) for importance in (0.5, 1, 16.6, 17, 17.3, 18, 1000, 1000.5, 1e6)]
    assert means == sorted(set(means)) and means[4] - means[3] < 0.01 and means[-1] < 4.0


@pytest.mark.parametrize("prior", [0.001, 0.9])
def test_the_first_example_has_the_prior_click_rate(prior):
    spec = parse_spec(SPEC.replace('[[crosses]]\nfields = ["a", "x"]\n', "") + f"prior_ctr = {prior}\n")
    scores, _ = by_kernel(spec, rows_of((b"0", b"1", b"p", b"u", b"1")))
    assert PHI(scores[0, 0]) == pytest.approx(prior, rel=1e-12)


def published(spec, rows):
    return learned(spec, rows).artefact()


@pytest.mark.parametrize("values", slow_except(["single"], ["single", "per_variant"]))
def test_what_is_published_is_the_mean_and_the_variance_and_gives_the_click_rate(values):
    own = {"plain": {"beta": 1.5}} if values == "per_variant" else {}
    spec = shop_spec(3).model_copy(update={"learner": parse_spec(SPEC + f'values = "{values}"\n').learner})
    spec = spec.model_copy(
        update={"variants": {n: v.model_copy(update=own.get(n, {})) for n, v in spec.variants.items()}}
    )
    rows = shop_rows(400, 3)
    _, _, oracle = by_textbook(spec, rows)
    artefact = published(spec, rows)
    maker = ExampleMaker(scoring_spec(artefact.spec))
    unseen = shop_rows(50, 9)
    for row in unseen:
        row["brand"] = b"never seen"
    found = Scorer(artefact).score(maker, maker.make(batch_of(unseen)))
    for row, of_row in enumerate(unseen):
        for variant in range(len(spec.variants)):
            keys = [(key, x) for key, x, mask in maker.plan.keys(of_row) if mask >> variant & 1]
            prior = oracle.priors[variant if values == "per_variant" else 0]
            known = [(oracle.coordinates.get(key), x) for key, x in keys]
            place = variant if values == "per_variant" else 0
            score = sum(x * each.beliefs[place].mean for each, x in known if each)
            variance = sum(
                x * x * (each.beliefs[place].variance if each else prior.variance) for each, x in known
            )
            latent = score / math.sqrt(oracle.priors[variant].noise ** 2 + variance)
            assert found.score[row, variant] == pytest.approx(score, rel=1e-5, abs=1e-6)
            assert found.uncertainty[row, variant] == pytest.approx(math.sqrt(variance), rel=1e-6)
            assert found.predicted[row, variant] == pytest.approx(PHI(latent), abs=1e-6)


def test_keys_close_to_their_prior_are_not_published():
    rows = rows_of(*[(b"1", b"1", b"p", b"", b"1")] * 30, (b"0", b"0.001", b"rare", b"", b""))
    whole, pruned = (published(parse_spec(SPEC + f"prune_kl = {kl}\n"), rows) for kl in (0.0, 1e-4))
    assert set(whole.key_list()) - set(pruned.key_list()) == {b"a=rare"}
    kept = np.isin(whole.key_list(), pruned.key_list())
    assert (whole.weight[kept] == pruned.weight).all() and (whole.rate[kept] == pruned.rate).all()
    assert published(parse_spec(SPEC + "prune_kl = 1e9\n"), rows).rows == 0


def test_a_model_starts_from_a_published_one_with_its_means_and_variances():
    spec = parse_spec(SPEC + "prior_ctr = 0.1\nforgetting = 0.01\n")
    rows = rows_of(*[(b"1", b"1", b"p", b"u", b"0.3"), (b"0", b"1", b"q", b"v", b"2")] * 20)
    artefact, begun = published(spec, rows), model_of(spec, list(rows[0]))
    assert begun.warm_start(artefact) == artefact.rows
    again = begun.artefact()
    assert again.key_list() == artefact.key_list()
    np.testing.assert_allclose(again.weight, artefact.weight, rtol=1e-6)
    np.testing.assert_allclose(again.rate, artefact.rate, rtol=1e-6)


@pytest.mark.parametrize(("of_model", "of_spec"), [(SPEC, HEAD), (HEAD, SPEC)])
def test_a_model_with_another_link_cannot_be_started_from(of_model, of_spec):
    rows = rows_of(*[(b"1", b"1", b"p", b"u", b"1")] * 20)
    begun = model_of(parse_spec(of_spec), list(rows[0]))
    with pytest.raises(SpecError, match="adpredictor starts from adpredictor"):
        begun.warm_start(published(parse_spec(of_model), rows))


@pytest.mark.slow
def test_16_bit_means_predict_nearly_the_same():
    rows = [row | {"price": b""} for row in shop_rows(2000, 4)]
    exact, rounded = (
        by_kernel(
            shop_spec(3).model_copy(update={"learner": parse_spec(SPEC + f'precision = "{p}"\n').learner}),
            rows,
        )
        for p in ("f64", "q2.13")
    )
    assert np.abs(exact[0] - rounded[0]).max() < 0.05


def test_the_normal_distribution_is_exact_far_into_its_tails():
    t = np.concatenate([np.linspace(-37.0, 37.0, 2001), [-0.0, 1e300, -1e300]])
    found = np.empty(t.size)
    normal_cdfs(t, found)
    expected = [0.5 * math.erfc(-each / math.sqrt(2.0)) for each in t]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-307)
