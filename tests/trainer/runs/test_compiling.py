"""What is compiled before a run is what the run needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from model_store.spec.spec import parse_spec
from trainer.examples.open_log import Log
from trainer.formats.rejects import RejectLog
from trainer.learn import loops_kernels as loops
from trainer.runs import warmup
from trainer.runs.train import train
from trainer.runs.warmup import compile_kernels, formats_of, kernels_are_ready

HEAD = '[model]\nname = "m"\n[input]\nlabel = "y"\n[fields]\nf = {}\ng = {}\n'


@pytest.mark.slow
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
    compile_kernels(spec, ["csv", "vw"], slices=True)
    assert kernels_are_ready(spec) and kernels_are_ready(spec, ["csv", "vw"], slices=True)
    compiled = set(loop.overloads)
    log = tmp_path / "log.csv"
    log.write_text("y,f,g\n" + "1,a,b\n0,c,d\n" * 50)
    with RejectLog() as rejects:
        run = train(spec, Log([str(log)]), rejects=rejects)
    run.model.artefact()
    assert run.report.rows == 100 and set(loop.overloads) == compiled


SETS = '[model]\nname = "m"\n[input]\nlabel = "y"\n[fields]\nf = { kind = "set" }\n'
TEXT = '[model]\nname = "m"\n[input]\nlabel = "label"\n'
CALIBRATED = "[variants]\na = {}\nb = {}\n[calibration]\nkind = 'isotonic'\nby = 'f'\n"
VISITS = HEAD.replace("[fields]", "request = 'g'\n[fields]") + "[learner]\nsubsample = { unclicked = 0.5 }\n"
ROWS = 600

# Prints which kernels were compiled or loaded for the run that came after all had been said to be ready.
PROGRAM = """
import gc, sys
from pathlib import Path
from numba.core.dispatcher import Dispatcher
from model_store.spec.spec import load_spec
from trainer.runs.warmup import compile_kernels, formats_of
from trainer.examples.open_log import Log
from trainer.formats.rejects import RejectLog
from trainer.runs.train import train
from trainer.learn.metrics.metrics import MetricsOptions

def made():
    kernels = [each for each in gc.get_objects() if isinstance(each, Dispatcher)]
    return {(each.py_func.__qualname__, kinds) for each in kernels for kinds in each.overloads}

spec, log, *slices = sys.argv[1:]
spec = load_spec(Path(spec))
compile_kernels(spec, formats_of(Log([log])), slices=bool(slices))
before = made()
with RejectLog(strict=True) as rejects:
    run = train(spec, Log([log]), rejects=rejects, metrics=MetricsOptions(slices=tuple(slices)))
run.model.artefact()
assert run.failure is None and run.report.rows > 600, (run.failure, run.report)
print(sorted({name for name, _ in made() - before}))
"""


def write_maps(path: Path) -> None:
    maps = pa.array([[("a", 1.0), ("a", 2.0)], [("b", 0.5)]] * ROWS, pa.map_(pa.string(), pa.float64()))
    pq.write_table(pa.table({"y": [1, 0] * ROWS, "f": maps}), path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "name", "rows", "slices"),
    [
        (HEAD + CALIBRATED, "log.csv", 'y,f,g\n1,a,"b"\n' + "0,c,d\n" * 2 * ROWS, ("f", "f*g=")),
        (SETS, "log.parquet", None, ()),
        (SETS, "log.jsonl", '{"y": 1, "f": ["a", "b\\n"]}\n{"y": 0, "f": []}\n{"y": 0}\n' * ROWS, ()),
        (TEXT, "log.vw", "1 1.5 't|f a:2 a |g:0.5 b\n-1 |f c\n" * ROWS, ("f",)),
        (TEXT, "log.ffm", "1 0:3:1 1:5:0.5\n0 0:4:1\n" * ROWS, ()),
        (VISITS, "log.csv", "y,f,g\n" + "1,a,q\n0,c,\n0,b,r\n" * ROWS, ()),
    ],
)
def test_neither_formats_nor_slices_nor_requests_compile_in_the_middle_of_a_run(
    spec, name, rows, slices, tmp_path
):
    (tmp_path / "m.toml").write_text(spec)
    write_maps(tmp_path / name) if rows is None else (tmp_path / name).write_text(rows)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "m.toml"), str(tmp_path / name), *slices]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_a_name_that_does_not_tell_its_format_may_be_of_any(tmp_path):
    (tmp_path / "a.csv.gz").touch()
    (tmp_path / "b.vw").touch()
    assert formats_of(Log([str(tmp_path / "*")])) == {"csv", "vw"}
    assert formats_of(Log(["-"])) > {"csv", "parquet", "libffm"} and formats_of(Log(["-"], "tsv")) == {"tsv"}


def test_the_warmup_of_a_trainer_joins_by_every_rule_for_late_clicks() -> None:
    """With `correct` the join's state names segments of closed windows, which its restore expects on disk."""
    for late in ("correct", "count"):
        join = f'[join]\nwindow = "10s"\nlate = "{late}"\nlate_within = "40s"\n'
        warmup._join_and_learn(parse_spec('[model]\nname = "x"\n[input]\nlabel = "y"\n' + join))
