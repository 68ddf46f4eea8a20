"""Feature hashing: buckets against the dense textbook on hashed rows, collisions, publishing, checkpoints."""

from __future__ import annotations

import math

import numpy as np
import pytest

from model_store.errors import SpecError
from model_store.spec.keys import BIAS
from model_store.spec.learner_section import MOST_HASH_BITS, Rule
from tests.kernels import FAST, FTRL, OWN, learned, spec_of
from tests.trainer.learn.pairs import (
    CASES,
    EVERY,
    RATES,
    assert_equal,
    assert_same_bits,
    gappy_rows,
    hash_of,
    kinds,
    resumed,
    section_of,
)
from tests.trainer.oracles.trial import Recorder, by_kernel, by_textbook
from tests.worlds import batch_of, learn, model_of, shop_rows
from trainer.examples.hashing import ExampleMaker
from trainer.learn.buckets import Buckets, any_collision, expected_rate
from trainer.learn.model import LearningModel
from trainer.learn.scorer import Scorer, scoring_spec
from trainer.learn.slots_kernels import CompactCounts, Full, Own, OwnCompact
from trainer.learn.table import ValueTable

HASHED = FTRL | {"l1": 0.05, "hash_bits": 8}
ONE_OR_EACH = pytest.mark.parametrize("more", [{}, OWN], ids=["single", "per_variant"])


def by_buckets(spec, rows):
    """The textbook with `group, hash mod buckets` in place of each key, and the sum of x in each."""
    of_key = {}

    def bucket(key, mask):
        if key == BIAS and spec.learner.algorithm == "adpredictor":  # has a prior of its own
            return BIAS
        rule = max((prefix for prefix in spec.rules if key.startswith(prefix.encode())), key=len, default="")
        return b"%s\0used by %d: %d" % (rule.encode(), mask, hash_of(key) % spec.learner.buckets)

    def placed(keys):
        sums = {}
        for key, x, mask in keys:
            of_key[key] = bucket(key, mask)
            sums[of_key[key]] = (sums.get(of_key[key], (0.0,))[0] + x, mask)
        return [(each, x, mask) for each, (x, mask) in sums.items()]

    scores, weights, _ = by_textbook(spec, rows, placed=placed)
    return scores, {key: weights[each] for key, each in of_key.items()}


def assert_same(spec, rows):
    assert_equal(by_kernel(spec, rows), by_buckets(spec, rows))


def many_keys(rows, seed):
    """Rows of so many keys that two in one row often share one of 256 buckets."""
    random = np.random.default_rng(seed)
    log = gappy_rows(rows, seed)
    for row in log:
        row["tags"] = b"|".join(b"t%d" % tag for tag in random.choice(200, random.integers(0, 25), False))
    return log


@pytest.mark.parametrize(
    ("section", "variants"),
    [
        *(
            pytest.param(*each, id=name)
            for name, each in FAST.items()
            if name.startswith(("ftrl", "adpredictor")) and "coarse" not in name
        ),
        *(
            pytest.param(sections[0], 1, marks=pytest.mark.slow)
            for algorithm, rate, sections in kinds()
            if rate == RATES.get(algorithm, EVERY)[0] and algorithm not in ("ftrl", "adpredictor")
        ),
        *(
            pytest.param(section, 3, marks=pytest.mark.slow)
            for section in (
                section_of("ftrl", "counts", CASES["ftrl"][0]),
                section_of("truncated_gradient", "global", CASES["truncated_gradient"][0]) | OWN,
                section_of("fobos", "global", CASES["fobos"][0]) | OWN,
            )
        ),
    ],
)
def test_buckets_equal_the_textbook_on_hashed_rows(section, variants):
    """Rows are folded into buckets before a loop has them: each learner at one rate, each kind of loop, and counts."""
    assert_same(spec_of(section | {"hash_bits": 8}, variants), many_keys(100, 3))


@pytest.mark.parametrize(
    "buckets",
    [{"hash_bits": 9}, {"hash_bits": None, "hash_buckets": 256}, {"hash_bits": None, "hash_buckets": 3_001}],
)
def test_random_streams_equal_the_textbook_on_hashed_rows(buckets):
    for seed, variants in ((9, 1), (109, 3)):
        assert_same(spec_of(HASHED | buckets, variants), many_keys(40, seed))


@pytest.mark.parametrize(
    ("algorithm", "more"),
    [("ftrl", {}), ("ftrl", OWN), pytest.param("fobos", OWN, marks=pytest.mark.slow)],
)
def test_keys_with_another_l1_share_no_bucket(algorithm, more):
    section = {"algorithm": algorithm, "alpha": 0.3, "beta": 0.7} | CASES[algorithm][0] | {"l1": 0.001}
    rules = {"brand=": Rule(l1=0.05), "tags=t1": Rule(l1=0.007), "age*brand=": Rule(l1=0.2)}
    assert_same(spec_of(section | more | {"hash_bits": 8}, 3, rules), many_keys(80, 5))


@ONE_OR_EACH
def test_buckets_without_a_collision_change_no_bit(more):
    rows, found = many_keys(300, 8), []
    for bits in (None, 28):
        model = model_of(spec_of(HASHED | more | {"hash_bits": bits}), list(rows[0]))
        model.metrics = Recorder(3)
        learn(model, rows, size=70)
        keys = model.table.keys()
        published = [part.tobytes() for part in model.published(keys)]
        found.append((model.metrics.scores.tobytes(), keys.data.tobytes(), published))
    assert model.table.collisions().rate == 0.0 and found[0] == found[1]


def test_batches_and_a_resume_change_no_bit_of_a_hashed_model():
    rows, spec = many_keys(150, 9), spec_of(HASHED | {"hash_bits": 9})
    whole = learned(spec, rows)
    for other in (*(learned(spec, rows, size) for size in (1, 64)), resumed(spec, rows, 90)):
        other.table._check()
        assert_same_bits(other, whole)
        assert other.table.collisions() == whole.table.collisions()


def test_keys_that_were_only_predicted_are_still_new_when_they_are_learned():
    rows, spec = many_keys(60, 11), spec_of(HASHED, 1)
    model = model_of(spec, list(rows[0]))
    examples = model.maker.make(batch_of(rows))
    model.judge(examples)
    assert model.table.count == 0
    model.learn_judged(examples)
    model.table._check()
    assert model.table.keys().data.tobytes() == learned(spec, rows).table.keys().data.tobytes()


def test_fobos_settles_each_bucket_once_when_its_lazy_state_is_rebased():
    section = {"algorithm": "fobos", "rate": "global", "alpha": 1000.0, "l1": 1e-5, "l2": 10.0}
    assert_same(spec_of(section | {"hash_bits": 8}, 1), many_keys(100, 8))


@ONE_OR_EACH
def test_a_served_score_is_the_trainers_for_keys_it_has_seen(more):
    rows = many_keys(200, 6)
    model = learned(spec_of(HASHED | more | {"l1": 0.0}), rows)
    artefact = model.artefact()
    maker = ExampleMaker(scoring_spec(artefact.spec))
    scores = Scorer(artefact).score(maker, maker.make(batch_of(rows))).score
    model.metrics = Recorder(3)
    learn(model, [row | {"importance": b"0"} for row in rows])  # predicts each row, and learns nothing
    np.testing.assert_allclose(scores, model.metrics.scores, rtol=1e-5, atol=1e-5)


def numbers_by_bucket(artefact):
    """The weights and rates of the keys of each bucket."""
    found = {}
    for key, *numbers in zip(
        artefact.key_list(), artefact.weight.tolist(), artefact.rate.tolist(), strict=True
    ):
        found.setdefault(hash_of(key) % 256, []).append(tuple(numbers))
    return found


def test_the_keys_of_a_bucket_are_published_with_its_weight_and_start_with_it():
    rows, spec = many_keys(300, 4), spec_of(HASHED, 1)
    model = learned(spec, rows)
    artefact = model.artefact()
    assert model.nonzero() == artefact.rows > model.table.used
    buckets = numbers_by_bucket(artefact)
    assert all(len(set(numbers)) == 1 for numbers in buckets.values())
    assert len(buckets) <= model.table.used <= 256
    begun = model_of(spec, list(rows[0]))
    assert begun.warm_start(artefact) == artefact.rows
    begun.table._check()
    np.testing.assert_allclose(begun.artefact().weight, artefact.weight, rtol=1e-6)
    np.testing.assert_allclose(begun.artefact().rate, artefact.rate, rtol=1e-6)


def test_a_bucket_starts_with_the_mean_of_its_keys_weights():
    rows = many_keys(200, 3)
    exact = learned(spec_of(HASHED | {"hash_bits": None}, 1), rows).artefact()
    model = model_of(spec_of(HASHED, 1), list(rows[0]))
    model.warm_start(exact)
    expected, found = numbers_by_bucket(exact), numbers_by_bucket(model.artefact())
    assert any(len(numbers) > 1 for numbers in expected.values())
    for bucket, numbers in found.items():
        mean = np.mean([weight for weight, _ in expected[bucket]])
        assert all(weight == pytest.approx(mean, rel=1e-5) for weight, _ in numbers)


def test_the_measured_rate_is_that_of_the_hashes_and_near_the_expected_one():
    hashes = np.unique(np.random.default_rng(1).integers(1, 2**63, 50_000).astype(np.uint64))
    for size in (2**10, 2**16, 2**20, 3_000_001):
        buckets = Buckets(size, f"hash_buckets = {size}", np.zeros(1, np.int64))
        features = np.zeros(hashes.size, np.uint16)
        assert buckets.enter(hashes, features, 0, hashes.size).size == hashes.size
        assert buckets.enter(hashes, features, 0, hashes.size).size == 0
        used = np.unique(hashes % np.uint64(size)).size
        found = buckets.collisions(used)
        assert found.rate == (hashes.size - used) / hashes.size
        assert found.rate == pytest.approx(found.expected, rel=0.05)
        assert f"{found.rate:.3%}" in str(found)
        enough = [expected_rate(2 ** (found.enough_bits - less), [hashes.size]) for less in (0, 1)]
        assert enough[0] <= 0.001 < enough[1]
        assert f"hash_bits = {found.enough_bits}" in found.warning


def test_a_rate_below_a_thousandth_is_no_warning():
    buckets = Buckets(2**20, "hash_bits = 20", np.zeros(1, np.int64))
    buckets.enter(np.arange(1, 1001, dtype=np.uint64), np.zeros(1000, np.uint16), 0, 1000)
    assert buckets.collisions(999).warning == ""
    assert "0.20% of the 1,000 keys" in buckets.collisions(998).warning
    assert "set hash_bits = 21" in buckets.collisions(998).warning  # by chance: 20 would do for most keys


def test_the_probability_of_a_64_bit_collision_is_the_birthday_bound():
    assert any_collision(1) == 0.0 and any_collision(2) == pytest.approx(2.0**-64)
    assert any_collision(33_000_000) == pytest.approx(33e6**2 / 2**65, rel=1e-4)
    assert any_collision(10**11) == pytest.approx(1.0 - math.exp(-(10.0**22) / 2**65))


def test_a_model_warns_when_too_many_keys_collide():
    rows = many_keys(100, 3)
    for bits, warns in ((8, True), (28, False)):
        model = learned(spec_of(HASHED | {"hash_bits": bits}), rows)
        assert any("learner.hash_bits" in warning for warning in model.warnings.finish()) == warns


@pytest.mark.parametrize(("layout", "bits"), [(Full, 10), (CompactCounts, 8), (Own, 8), (OwnCompact, 8)])
def test_a_table_of_all_buckets_is_full_and_still_finds_every_key(layout, bits):
    table = ValueTable(
        layout,
        variants=2,
        keep_seen=True,
        capacity=64,
        buckets=Buckets(2**bits, f"hash_bits = {bits}", np.arange(3)),
    )
    for start in range(0, 30_000, 5_000):
        names = [b"f=%d" % number for number in range(start, start + 5_000)]
        offsets = np.cumsum([0, *(len(name) for name in names)]).astype(np.int64)
        slots = table.add(
            np.frombuffer(b"".join(names), np.uint8), offsets, (np.arange(5_000) % 3).astype(np.uint16)
        )
        assert table.keys().slots[start:].tolist() == slots.tolist()
        table._check()
    assert table.count == 30_000 and table.used == 3 * 2**bits
    assert table.slots.size == 4 * 2**bits  # bits for three groups


def test_groups_that_would_need_too_many_bits_are_refused():
    spec = spec_of(HASHED | {"hash_bits": MOST_HASH_BITS})
    with pytest.raises(SpecError, match=f"hash_bits = {MOST_HASH_BITS - 2} or lower"):
        LearningModel(ExampleMaker(spec.resolve(list(shop_rows(1, 1)[0]))))
