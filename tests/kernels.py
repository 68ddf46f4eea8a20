"""The kernels that the fast tests share, compiled before the first one: `python -m tests.kernels`.

Numba compiles a loop for each learner with its rate, slot layout and number of variants (docs/adr/0003): 2 to 5 seconds
each. So the fast tests of all learners use the pairs of FAST alone, which have every algorithm and most layouts once.
FTRL with one variant and with several that share values is compiled for most other tests anyway. Nothing is imported
that only tests need: `make test` compiles while these are installed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from model_store.jit import kernels_are_cached, mark_kernels_cached
from model_store.spec.learner_section import LearnerSection, Rule
from model_store.spec.sections import Variant
from model_store.spec.spec import ModelSpec, parse_spec
from server.ranking.warmup import warm_kernels
from tests.worlds import learn, model_of, shop_rows, shop_spec
from trainer.learn.model import LearningModel
from trainer.runs.warmup import compile_trainer

PARTS = 2
SEED = 5
Section = dict[str, Any]

FTRL: Section = {"algorithm": "ftrl", "alpha": 0.3, "beta": 0.7, "l1": 0.3, "l2": 0.1}
OWN, COARSE = {"values": "per_variant"}, {"precision": "q2.13", "seed": SEED}
FTRL_OWN_COARSE = FTRL | OWN | COARSE | {"rate": "counts"}
TRUNCATION_COARSE = {"algorithm": "truncation", "alpha": 0.3, "beta": 0.7, "k": 3, "theta": 0.05} | COARSE
FOBOS = {"algorithm": "fobos", "rate": "global", "alpha": 0.3, "l1": 0.01, "l2": 0.05}
RDA = {"algorithm": "rda", "alpha": 0.3, "l1": 0.02, "l2": 0.1}
OGD = {"algorithm": "ogd", "rate": "counts", "alpha": 0.3, "beta": 0.7}
TRUNCATED = {"algorithm": "truncated_gradient", "alpha": 0.3, "beta": 0.7, "k": 3, "theta": 0.3, "l1": 0.05}
FIXED = TRUNCATED | {"l1": 0.02, "shrink": "fixed"}

Pairs = dict[str, tuple[Section, int]]
# Name: the learner, and the number of variants. The layout of each is in the comment.
FAST: Pairs = {
    "ftrl": (FTRL, 1),  # Full
    "ftrl of variants": (FTRL, 3),  # Full
    "ftrl of own values": (FTRL | OWN, 3),  # Own
    "ftrl of own coarse values": (FTRL_OWN_COARSE, 3),  # OwnCompactCounts
    "ogd": (OGD, 1),  # FullCounts
    "truncation of coarse values": (TRUNCATION_COARSE, 1),  # Compact
    "truncated gradient": (TRUNCATED | {"rate": "counts"}, 1),  # FullCounts
    "fixed truncated gradient of coarse values": (FIXED | COARSE | {"rate": "counts"}, 1),  # CompactCounts
    "fobos": (FOBOS, 1),  # Full
    "fixed fobos": (FOBOS | {"l2": 0.005, "shrink": "fixed"}, 1),  # Full
    "rda": (RDA, 1),  # Full
    "adpredictor of variants": (
        {"algorithm": "adpredictor", "alpha": 0.3, "beta": 0.7, "forgetting": 0.01, "prior_ctr": 0.1},
        3,
    ),  # Full
}  # fmt: skip


def spec_of(
    section: Mapping[str, Any], variants: int = 3, rules: Mapping[str, Rule] | None = None
) -> ModelSpec:
    """The shop's spec with this learner."""
    learner = LearnerSection.model_validate(dict(section))
    return shop_spec(variants).model_copy(update={"learner": learner, "rules": dict(rules or {})})


def learned(spec: ModelSpec, rows: Sequence[Mapping[str, bytes]], size: int = 10**9) -> LearningModel:
    """A model of these rows, learned in batches of `size`."""
    model: LearningModel = learn(model_of(spec, list(rows[0])), rows, size)
    return model


def compile_learners(part: int, parts: int) -> None:
    """Compile the loops of every `parts`-th pair from `part` on; beside FAST: a rule, an admission, an average."""
    specs = [spec_of(*each) for each in FAST.values()]
    specs += [
        spec_of(FTRL, 1, {"brand=": Rule(alpha=0.9)}),
        spec_of(FTRL | {"inclusion": {"kind": "bloom", "count": 2}}, 1),
    ]
    average = {"base": Variant(share=0.5), "mean": Variant(share=0.5, average="base")}
    specs.append(spec_of(FTRL | OWN).model_copy(update={"variants": average}))
    for spec in specs[part::parts]:
        model = learned(spec, shop_rows(20, 1))
        model.coordinates.weights(model.table.keys())


def compile_servers() -> None:
    """Compile what a server runs."""
    warm_kernels()


def compile_trainers() -> None:
    """Compile what trainers of one and of several variants run."""
    one = '[model]\nname = "m"\n[input]\nlabel = "click"\nrequest = "r"\n'
    for variants in ("", "[variants]\na = { share = 0.5 }\nb = { share = 0.5 }\n"):
        compile_trainer(parse_spec(one + variants))


def main(part: int | None = None) -> int:
    """Compile one part, or all in as many processes; return the exit code."""
    if part is not None:
        (compile_servers, compile_trainers)[part]()
        compile_learners(part, PARTS)
        return 0
    if kernels_are_cached("tests"):
        return 0
    command = [sys.executable, "-m", "tests.kernels"]
    parts = [subprocess.Popen([*command, str(number)]) for number in range(PARTS)]
    code = max(process.wait() for process in parts)
    if code == 0:
        mark_kernels_cached("tests")
    return code


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
