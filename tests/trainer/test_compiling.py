"""What is compiled before a run is what the run needs."""

from __future__ import annotations

import pytest

from model_store.spec import parse_spec
from trainer.compiling import compile_kernels, kernels_are_ready
from trainer.learners import loops
from trainer.rejects import RejectLog
from trainer.train import train

HEAD = '[model]\nname = "m"\n[input]\nlabel = "y"\n[fields]\nf = {}\ng = {}\n'


@pytest.mark.parametrize(
    ("more", "loop"),
    [
        ("", loops.learn_one),
        ("[variants]\na = {}\nb = {}\nc = {}\n[learner]\nalgorithm = 'rda'\n", loops.learn_shared),
        (
            "[variants]\na = {}\nb = {}\n[learner]\nvalues = 'per_variant'\nrate = 'counts'\nttl = 5\n"
            "inclusion = { kind = 'bloom', count = 2 }\n",
            loops.learn_own,
        ),
        ("[rules.'f=']\ninclusion = { kind = 'poisson', p = 0.5 }\n", loops.learn_one),
    ],
)
def test_a_run_compiles_nothing_once_its_kernels_are_ready(more, loop, tmp_path):
    spec = parse_spec(HEAD + more)
    compile_kernels(spec)
    assert kernels_are_ready(spec)
    compiled = set(loop.overloads)
    log = tmp_path / "log.csv"
    log.write_text("y,f,g\n" + "1,a,b\n0,c,d\n" * 50)
    with RejectLog() as rejects:
        run = train(spec, [str(log)], rejects=rejects)
    run.model.artefact()
    assert run.report.rows == 100
    assert set(loop.overloads) == compiled
