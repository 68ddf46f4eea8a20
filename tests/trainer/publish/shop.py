"""A shop whose clicks follow the brand, rows of it gone wrong, and a run that publishes under a guard."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from model_store.spec.spec import parse_spec
from model_store.versions.model_versions import ModelVersions
from tests.worlds import learn, model_of
from trainer.learn.model import LearningModel
from trainer.publish.publisher import Publisher, PublishOptions
from trainer.settings import Every

SPEC = """
[model]
name = "shop"
[input]
label = "click"
[fields]
brand = { side = "item" }
user = { side = "user" }
[learner]
l1 = 0.0
[guard]
examples = 300
min_examples = 200
"""
EVERY = 200
LIKED = (b"acorn", b"birch")
Row = dict[str, bytes]


def rows(count: int, seed: int, *, wrong: bool = False) -> list[Row]:
    """Rows in which liked brands get a click of two shows, others one of twenty; `wrong`: the other way round."""
    random = np.random.default_rng(seed)
    brands = random.choice([*LIKED, b"cedar", b"dogwood"], count).tolist()
    users = random.integers(0, 4_000, count).tolist()
    chance = random.random(count).tolist()
    return [
        {
            "click": b"1" if drawn < (0.5 if (brand in LIKED) != wrong else 0.05) else b"0",
            "brand": brand,
            "user": b"%d" % user,
        }
        for brand, user, drawn in zip(brands, users, chance, strict=True)
    ]


class GuardedRun:
    """Learns and publishes every EVERY rows; `warnings` are those it gave."""

    def __init__(self, versions: ModelVersions, spec: str = SPEC, *, keep: int = 0) -> None:
        self.versions = versions
        self.warnings: list[str] = []
        self.model: LearningModel = model_of(parse_spec(spec), ("click", "brand", "user"), keep_seen=True)
        how = PublishOptions(every=Every(EVERY, None), snapshot_every=5, activate=True, keep=keep)
        self.publisher = Publisher(versions, how, self.warnings.append)
        self.publisher.begin(self.model)

    def learn(self, log: Sequence[Row]) -> None:
        """Learn in batches of EVERY rows, publishing after each."""
        for begin in range(0, len(log), EVERY):
            learn(self.model, log[begin : begin + EVERY])
            self.publisher.after_batch(self.model)

    @property
    def refused(self) -> list[int]:
        return [info.version for info in self.versions.versions() if info.refused]
