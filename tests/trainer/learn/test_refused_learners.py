"""Specs whose learner, rules, averages, margins or hashed keys have no meaning: refused, with the reason."""

from __future__ import annotations

import pytest

from model_store.errors import SpecError
from model_store.spec.learner_section import LearnerSection
from model_store.spec.spec import parse_spec

SPEC = """
[model]
name = "m"
[input]
label = "click"
timestamp = "t"
[fields]
age = {}
brand = {}
tags = { kind = "set" }
"""
LEARNER = SPEC + "[learner]\n"
ADPREDICTOR = LEARNER + 'algorithm = "adpredictor"\n'
OGD = LEARNER + 'algorithm = "ogd"\n'
BRAND = '\n[rules."brand="]\n'


def margin(options: str) -> str:
    return SPEC + f'x = {{ kind = "number", {options} }}\n'


def averages(
    base: str = "", recent: str = 'average = "lean"', learner: str = "", values: str = "per_variant"
) -> str:
    """A spec with two variants that learn, `base` and `lean`, and an average of each, with these parameters."""
    return SPEC + (
        f'[variants]\nmean = {{ average = "base" }}\nbase = {{ {base} }}\nrecent = {{ {recent} }}\nlean = {{}}\n'
        f'[learner]\nvalues = "{values}"\n{learner}'
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ADPREDICTOR + "l1 = 1", 'l1 does not belong to algorithm = "adpredictor"'),
        (ADPREDICTOR + 'rate = "counts"', "has no meaning .* it takes posterior"),
        (ADPREDICTOR + "beta = 0", "adpredictor divides by its noise; set beta > 0"),
        (ADPREDICTOR + "prior_ctr = 0", "prior_ctr"),
        (ADPREDICTOR + "forgetting = 1", "forgetting"),
        (ADPREDICTOR + "theta = 1", "theta belong"),
        (LEARNER + "prior_ctr = 0.1", 'prior_ctr belongs to algorithm = "adpredictor"'),
        (LEARNER + "forgetting = 0.1", 'forgetting belongs to algorithm = "adpredictor"'),
        (OGD + "prune_kl = 0.1", 'prune_kl belongs to algorithm = "adpredictor"'),
        (LEARNER + 'rate = "posterior"', "has no meaning"),
        # Rates by prefix, and members that are not there.
        (ADPREDICTOR + BRAND + "alpha = 0.1", "whose rate is a variance"),
        (LEARNER + 'algorithm = "rda"' + BRAND + "alpha = 0.1", 'got rate = "global"'),
        (LEARNER + BRAND + "decay = 0.3", r"rules\.brand=\.decay: no such key; allowed here: .*alpha"),
        (OGD + "l2 = 0.5" + BRAND + "alpha = 3.0", "eta l2 must be below 1"),
        (LEARNER + "warmup = 5", r"learner\.warmup: no such key; allowed here: .*alpha"),
        (LEARNER + 'algorithm = "ftlr"', "got 'ftlr'; input should be 'ogd', .* or 'adpredictor'"),
        (LEARNER + "algorithm = []", r"got \[\]; input should be 'ogd'"),
        # Averaged variants.
        (averages(values="single"), 'values = "per_variant"'),
        (averages(learner='precision = "q2.13"'), "cannot hold an average"),
        (averages(learner='algorithm = "fobos"'), 'expected "ftrl"'),
        (averages(learner='algorithm = "ogd"\nl1 = 0.1'), "ogd"),
        (averages(recent='average = "mean"'), "expected a variant that learns: base, lean"),
        (averages(recent='average = "nobody"'), "got 'nobody'"),
        (averages(recent='average = "lean", alpha = 0.1'), "an average does not learn"),
        (averages(recent='average = "lean", without = ["age"]'), "leave it out"),
        (averages(base="half_life = 3"), "belongs to average"),
        (averages(recent='average = "lean", half_life = 0.5'), "half_life"),
        # Margins.
        (margin("fixed_weight = 0.0"), "other than 0"),
        (margin("fixed_weight = 1e13"), "other than 0"),
        (margin("fixed_weight = 1.0, main = false"), "main = false leaves it out"),
        (margin('fixed_weight = 1.0, bucket = "log"'), "bucket and missing"),
        *(
            (margin(f"fixed_weight = {each}") + '[learner]\nprecision = "q2.13"', r"x\.fixed_weight: .* multiple")
            for each in ("0.7", "4.0", "1e-9")
        ),
        # Hashed keys, and a time to live.
        (LEARNER + 'shrink = "touched"', 'shrink = "touched" belongs to ogd, not to algorithm = "ftrl"'),
        (LEARNER + 'algorithm = "ogd"\nshrink = "fixed"', "belongs to truncated_gradient and fobos"),
        (LEARNER + 'algorithm = "ogd"\nrate = "global"\nl1 = 0.1', 'or shrink = "touched"'),
        (LEARNER + "hash_bits = 7", "hash_bits: got 7"),
        (LEARNER + "hash_bits = 32", "hash_bits: got 32"),
        (LEARNER + "hash_buckets = 255", "hash_buckets: got 255"),
        (LEARNER + "hash_bits = 22\nhash_buckets = 3000001", "both say how many buckets"),
        (LEARNER + "hash_buckets = 3000001\nttl = 5", "hash_buckets = 3000001 does not go with ttl"),
        (LEARNER + 'hash_bits = 22\nttl = "5d"', "hash_bits = 22 does not go with ttl"),
        (
            LEARNER + 'hash_bits = 22\ninclusion = { kind = "bloom", count = 2 }',
            "hash_bits = 22 does not go with inclusion",
        ),
        (
            LEARNER + "hash_bits = 22" + BRAND + 'inclusion = { kind = "poisson", p = 0.5 }',
            r'rules."brand=".inclusion does not go',
        ),
        (LEARNER.replace('timestamp = "t"\n', "") + 'ttl = "30d"', r"set input\.timestamp"),
    ],
)  # fmt: skip
def test_a_learner_without_meaning_is_refused_with_a_reason(text: str, expected: str) -> None:
    with pytest.raises(SpecError, match=expected):
        parse_spec(text)


@pytest.mark.parametrize(
    "section",
    [
        {"algorithm": "rda"},
        {"algorithm": "fobos", "rate": "global"},
        {"algorithm": "ogd", "rate": "global", "l2": 0.1},
    ],
)
def test_learners_that_keep_no_weight_refuse_16_bits(section: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"q2\.13"):
        LearnerSection.model_validate(section | {"precision": "q2.13"})


def test_what_a_spec_does_not_set_is_not_in_its_json() -> None:
    plain = parse_spec(LEARNER + BRAND + "l1 = 0.5").to_json()
    for word in ("average", "half_life", "hash_bits"):
        assert word not in plain
    tuned = parse_spec(LEARNER + "hash_bits = 22" + BRAND + "alpha = 0.5").to_json()
    assert (
        '"hash_bits":22' in tuned and '"rules":{"brand=":{"inclusion":null,"l1":null,"alpha":0.5}}' in tuned
    )
