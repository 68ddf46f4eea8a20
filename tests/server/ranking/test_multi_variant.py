"""Several variants, and the uncertainty, from one walk: what a rank of each gives, and what the definition says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from model_store.artefact.artefact import Artefact
from model_store.features.features import FeaturePlan
from model_store.spec.spec import ModelSpec
from model_store.spec.values import Value
from server.ranking.ranker import Ranker
from tests.matrix import examples
from tests.server.model.models import VARIANTS, Run, follow, loaded, runs
from tests.server.ranked import options_of, ranked, ranker_of
from tests.server.slow_ranker import artefact_of

UNSURE = options_of(objective="uncertainty")


def with_rates(artefact: Artefact, step: int) -> Artefact:
    """Rates that tell keys apart, and change from step to step."""
    rates = np.arange(1, artefact.rate.size + 1, dtype=np.float32).reshape(artefact.rate.shape) / 7 + step
    return replace(artefact, rate=rates)


def followed(run: Run) -> tuple[Ranker, Artefact]:
    """A ranker that came to the run's last version by deltas, and that version's snapshot."""
    artefacts = [with_rates(artefact_of(run.spec, step), number) for number, step in enumerate(run.steps)]
    return follow(loaded(artefacts[0], run.records), artefacts), artefacts[-1]


@examples(50)
@given(runs())
def test_a_shadow_is_a_rank_with_its_variant_bit_for_bit(run: Run) -> None:
    ranker, _ = followed(run)
    for request in run.requests:
        for variant in range(VARIANTS):
            others = [v for v in range(VARIANTS) if v != variant]
            candidates = request, [*run.ids, "unknown"], run.records[:1]
            asked = (*candidates, variant, 3)
            plain, shadowed = ranked(ranker, *asked), ranked(ranker, *asked, shadows=others)
            assert (shadowed.ids, shadowed.score, shadowed.ctr) == (plain.ids, plain.score, plain.ctr)
            for shadow in shadowed.shadows:
                alone = ranked(ranker, *candidates, shadow.variant)
                assert (shadow.ids, shadow.score) == (alone.ids[:3], alone.score[:3])
                by_place = dict(zip(alone.order.tolist(), alone.score, strict=True))
                assert shadow.shown == [by_place[place] for place in shadowed.order.tolist()]
            assert [shadow.variant for shadow in shadowed.shadows] == others


@examples(50)
@given(runs())
def test_uncertainty_is_the_sum_of_the_rates_of_the_keys_used_also_after_deltas(run: Run) -> None:
    ranker, artefact = followed(run)
    fresh, rates = ranker_of(artefact, run.records), rates_of(artefact)
    for request in run.requests:
        for variant in range(VARIANTS):
            asked: Any = (request, run.ids, run.records, variant)
            plain, ranking = ranked(ranker, *asked), ranked(ranker, *asked, options=UNSURE)
            assert ranking.uncertainties is not None
            for place, found in zip(ranking.order.tolist(), ranking.uncertainties.tolist(), strict=True):
                item = run.records[place % len(run.records)][1]
                expected = slow_uncertainty(run.spec, rates, {**request, **item}, variant)
                assert found == pytest.approx(expected)
            explored = ranked(ranker, *asked, options=options_of(exploration={"ucb": {"width": 0.0}}))
            assert (explored.ids, explored.score, explored.ctr) == (plain.ids, plain.score, plain.ctr)
            snapshot = ranked(fresh, *asked, options=UNSURE)
            assert snapshot.uncertainties is not None
            assert ranking.ids == snapshot.ids
            assert ranking.uncertainties.tolist() == snapshot.uncertainties.tolist()


def rates_of(artefact: Artefact) -> dict[bytes, list[float]]:
    """Each key's rate for every variant, 0 where it does not use the key."""
    columns = [artefact.rates_of(variant).tolist() for variant in range(VARIANTS)]
    return dict(zip(artefact.key_list(), map(list, zip(*columns, strict=True)), strict=True))


def slow_uncertainty(
    spec: ModelSpec, rates: Mapping[bytes, list[float]], example: Mapping[str, Value], variant: int
) -> float:
    total = 0.0
    for key, x, mask in FeaturePlan.of(spec).keys(example):
        if mask >> variant & 1 and key in rates:
            total += rates[key][variant] * abs(x)
    return total
