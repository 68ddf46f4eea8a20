"""What a trainer learned, as a server scores it: base margins, averaged variants, and their deltas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from model_store.spec.spec import parse_spec
from tests.server.model.models import loaded, served
from tests.server.ranked import options_of, ranked, ranker_of, scores
from tests.worlds import batch_of, learn, model_of
from trainer.publish.delta_chain import DeltaChain

SPEC = """
[model]
name = "residual"
[input]
label = "click"
[fields]
age = { side = "user" }
prior = { kind = "number", fixed_weight = 0.7 }
brand = { side = "item" }
quality = { side = "item", kind = "number", fixed_weight = -5.25 }
[[crosses]]
fields = ["age", "brand"]
[variants]
base = { share = 0.5 }
bare = { share = 0.25, without = ["quality"] }
mean = { share = 0.25, average = "base" }
[learner]
alpha = 0.3
l1 = 0.1
values = "per_variant"
"""
AGES, BRANDS = (b"20", b"30", b""), (b"nike", b"puma", b"")


def rows_of(count: int, seed: int) -> list[dict[str, bytes]]:
    random = np.random.default_rng(seed)
    return [
        {
            "click": b"%d" % random.integers(0, 2),
            "age": random.choice(AGES),
            "prior": b"%.3f" % random.normal() if random.random() < 0.8 else b"",
            "brand": random.choice(BRANDS),
            "quality": b"%.3f" % random.normal(0, 0.2) if random.random() < 0.8 else b"",
        }
        for _ in range(count)
    ]


def values_of(row: dict[str, bytes], names: tuple[str, ...]) -> dict[str, Any]:
    texts = {name: row[name].decode() for name in names if row[name]}
    return {name: float(text) if name in ("prior", "quality") else text for name, text in texts.items()}


@pytest.fixture(scope="module")
def learned() -> Any:
    """A model of 300 rows: what others learn on from, and its snapshot."""
    rows = rows_of(600, 1)
    model = learn(model_of(parse_spec(SPEC), list(rows[0]), keep_seen=True), rows[:300])
    return model, model.artefact(), rows[300:]


def test_a_margin_is_certain(learned: Any) -> None:
    """Its rate is 0: an item with a margin is no more uncertain than one without."""
    _, artefact, _ = learned
    items = [("with", {"brand": "nike", "quality": 3.0}), ("without", {"brand": "nike"})]
    ranker = ranker_of(artefact, items)
    unsure = options_of(objective="uncertainty")
    ranking = ranked(ranker, {"age": "20"}, ["with", "without"], [], 0, options=unsure)
    assert ranking.uncertainties is not None
    one, other = ranking.uncertainties.tolist()
    assert one == other > 0.0
    found = scores(ranking)
    assert found["with"] - found["without"] == pytest.approx(3.0 * -5.25)


def test_a_server_scores_margins_and_averages_as_the_trainer_does(learned: Any) -> None:
    model, snapshot, more = learned
    chain = DeltaChain(model, snapshot, 1)
    learn(model, more)
    items = rows_of(20, 2)
    records = [(f"i{number}", values_of(row, ("brand", "quality"))) for number, row in enumerate(items)]
    live = loaded(snapshot, records)
    live.apply(2, "", chain.change(last=True).delta)
    ranker, state = served(live), {name: array.copy() for name, array in model.state().items()}
    ids = [item_id for item_id, _ in records]
    for request in rows_of(3, 3):
        rated = [request | {name: item[name] for name in ("brand", "quality")} for item in items]
        examples = model.maker.make(batch_of(rated))
        predicted = model.coordinates.predicted(len(rated))
        for row in range(len(rated)):
            # Each candidate is predicted by the model as it was published.
            model.restore(state)
            model.coordinates.learn(examples.hashed, row, row + 1, predicted)
        for variant in range(3):
            ranking = ranked(ranker, values_of(request, ("age", "prior")), ids, [], variant)
            by_place = dict(zip(ranking.order.tolist(), ranking.score, strict=True))
            for place, expected in enumerate(predicted.scores[:, variant].tolist()):
                assert by_place[place] == pytest.approx(expected, rel=1e-5, abs=1e-5)
