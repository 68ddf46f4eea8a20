"""Compiling the kernels of a spec before its rows come, so that no run's speed or progress bar holds the compiler.

Numba compiles a loop for the learner, the layout, the admission and the number of variants that it meets
(docs/adr/0003). What a spec will meet is found by learning two rows with the same `[learner]`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from model_store.jit import kernels_are_cached, mark_kernels_cached
from model_store.learner_section import Inclusion, LearnerSection
from model_store.spec import ModelSpec
from model_store.spec_sections import FieldSpec, InputSection, ModelSection, Variant
from trainer.rejects import RejectLog
from trainer.train import train

_LOG = 'y,f\n1,a\n0,"b"\n'


def kernels_are_ready(spec: ModelSpec) -> bool:
    """True if the kernels that the spec needs were compiled on this machine before."""
    return kernels_are_cached(_part(spec))


def compile_kernels(spec: ModelSpec) -> None:
    """Compile every kernel that the spec needs; some milliseconds where that was done before."""
    small = ModelSpec(
        model=ModelSection(name="x"),
        input=InputSection(label="y"),
        fields={"f": FieldSpec()},
        variants={"a": Variant(), "b": Variant()} if len(spec.variants) > 1 else {"a": Variant()},
        learner=_without_a_clock(spec),
        calibration=spec.calibration.model_copy(update={"by": None}),
    )
    with tempfile.TemporaryDirectory(prefix="ftrie-") as folder, RejectLog() as rejects:
        log = Path(folder) / "log.csv"
        log.write_text(_LOG, encoding="utf-8")
        run = train(small, [str(log)], rejects=rejects)
        run.model.table.grow()
        run.model.artefact()
    mark_kernels_cached(_part(spec))


def _without_a_clock(spec: ModelSpec) -> LearnerSection:
    """The spec's learner, its admission of the same kind, on a log without times and requests."""
    changes: dict[str, object] = {"subsample": None, "ttl": 10 if spec.learner.ttl is not None else None}
    changes["inclusion"] = Inclusion(kind="poisson", p=0.5) if _admits_by_rule(spec) else Inclusion()
    return spec.learner.model_copy(update=changes)


def _admits_by_rule(spec: ModelSpec) -> bool:
    inclusions = [spec.learner.inclusion, *(rule.inclusion for rule in spec.rules.values())]
    return any(each is not None and each.kind != "none" for each in inclusions)


def _part(spec: ModelSpec) -> str:
    section = spec.learner
    words: list[str] = [
        section.algorithm,
        section.rate,
        section.values,
        section.precision,
        spec.calibration.kind,
    ]
    words += ["several" if len(spec.variants) > 1 else "one", "rules" if _admits_by_rule(spec) else "all"]
    words += ["ttl"] if section.ttl is not None else []
    return "-".join(["train", *words])
