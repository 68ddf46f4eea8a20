"""Several variants and the uncertainty from one walk: what a rank of each gives, and what the definition says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from model_store.artefact.artefact import Artefact
from model_store.features.features import FeaturePlan
from model_store.features.values import Value
from model_store.spec.spec import ModelSpec
from server.model.catalogue import Catalogue
from server.model.live_model import LiveModel
from server.ranking.ranker import Ranker
from server.ranking.served import ServedVersion
from tests.matrix import examples
from tests.server.model.models import Records, runs
from tests.server.ranked import options_of, ranked
from tests.server.ranking.test_ranker import VARIANTS
from tests.server.slow_ranker import Weights, artefact_of

Run = tuple[ModelSpec, list[Weights], list[dict[str, Value]], Records]
UNSURE = options_of(objective="uncertainty")


def with_rates(artefact: Artefact, step: int) -> Artefact:
    """Rates that tell keys apart, and change from step to step."""
    rates = np.arange(1, artefact.rate.size + 1, dtype=np.float32).reshape(artefact.rate.shape) / 7 + step
    return replace(artefact, rate=rates)


def followed(run: Run) -> tuple[Ranker, Artefact]:
    """A ranker that came to the run's last version by deltas, and that version's snapshot."""
    spec, steps, _, records = run
    model = LiveModel("m")
    artefacts = [with_rates(artefact_of(spec, step), number) for number, step in enumerate(steps)]
    model.load(1, "", artefacts[0], Catalogue.build(FeaturePlan.of(spec), records))
    for version, (before, after) in enumerate(pairwise(artefacts), start=2):
        model.apply(version, "", after.changes_since(before, version=version - 1))
    return ServedVersion.bind(model.parts).ranker, artefacts[-1]


@examples(50)
@given(runs())
def test_a_shadow_is_a_rank_with_its_variant_bit_for_bit(run: Run) -> None:
    _, _, requests, records = run
    ranker, _ = followed(run)
    ids = [item_id for item_id, _ in records]
    for request in requests:
        for variant in range(VARIANTS):
            others = [v for v in range(VARIANTS) if v != variant]
            asked = (request, [*ids, "unknown"], records[:1], variant, 3)
            plain, shadowed = ranked(ranker, *asked), ranked(ranker, *asked, shadows=others)
            assert (shadowed.ids, shadowed.score, shadowed.ctr) == (plain.ids, plain.score, plain.ctr)
            for shadow in shadowed.shadows:
                alone = ranked(ranker, request, [*ids, "unknown"], records[:1], shadow.variant)
                assert (shadow.ids, shadow.score) == (alone.ids[:3], alone.score[:3])
                scores = dict(zip(alone.order.tolist(), alone.score, strict=True))
                assert shadow.shown == [scores[place] for place in shadowed.order.tolist()]
            assert [shadow.variant for shadow in shadowed.shadows] == others


@examples(50)
@given(runs())
def test_uncertainty_is_the_sum_of_the_rates_of_the_keys_used(run: Run) -> None:
    spec, _, requests, records = run
    ranker, artefact = followed(run)
    rates = rates_of(artefact)
    for request in requests:
        for variant in range(VARIANTS):
            ranking = ranked(ranker, request, [i for i, _ in records], records, variant, options=UNSURE)
            assert ranking.uncertainties is not None
            for place, found in zip(ranking.order.tolist(), ranking.uncertainties.tolist(), strict=True):
                item = records[place % len(records)][1]
                assert found == pytest.approx(slow_uncertainty(spec, rates, {**request, **item}, variant))


@examples(30)
@given(runs())
def test_uncertainty_after_deltas_is_the_snapshots_bit_for_bit(run: Run) -> None:
    _, _, requests, records = run
    ranker, artefact = followed(run)
    model = LiveModel("m")
    model.load(1, "", artefact, Catalogue.build(FeaturePlan.of(artefact.spec), records))
    other = ServedVersion.bind(model.parts).ranker
    for request in requests:
        asked: Any = (request, [i for i, _ in records], records, 1)
        one, two = ranked(ranker, *asked, options=UNSURE), ranked(other, *asked, options=UNSURE)
        assert one.uncertainties is not None and two.uncertainties is not None
        assert (one.ids, one.uncertainties.tolist()) == (two.ids, two.uncertainties.tolist())


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
