"""A learner is one file and one row of the spec's table: CONTRIBUTING's diff, applied and trained."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from model_store.jit import CACHE_FOLDER

ROOT = Path(__file__).resolve().parents[3]

# In a process of its own, with its own cache of kernels: another one could not load what is cached for the new class.
PROGRAM = """
import sys
from model_store.spec.learner_section import ALGORITHMS, Traits
from trainer.learn import learners

ALGORITHMS |= eval("{" + sys.argv[2] + "}")
learners.__path__.append(sys.argv[1])

import math
from tests.kernels import learned, spec_of
from tests.trainer.oracles.dense import Learner
from tests.trainer.oracles.trial import by_kernel, by_textbook
from tests.worlds import shop_rows
from tests.trainer.learn.pairs import assert_equal, gappy_rows

rows, sign = gappy_rows(200, 3), Learner(
    lambda value, n, t, p: value,
    lambda value, w, g, at, p: w - at.eta * ((g > 0.0) - (g < 0.0)),
)
spec = spec_of({"algorithm": "sign", "alpha": 0.2}, 1)
scores, weights, _ = by_textbook(spec, rows, sign)
assert_equal(by_kernel(spec, rows), (scores, weights))
artefact = learned(spec, rows).artefact()
assert artefact.rows > 20 and spec.learner.l1 == 0.0
print(artefact.spec.learner.algorithm)
"""


@pytest.mark.slow
def test_the_learner_of_contributing_is_trained_and_equals_its_formula(tmp_path: Path) -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    (diff,) = re.findall(r"```diff\n(--- a/model_store/spec/learner_section.py\n.+?)```", text, re.DOTALL)
    row, file = diff.split("+++ b/trainer/learn/learners/sign.py\n")
    added = [[line[1:] for line in part.splitlines() if re.match(r"\+(?!\+)", line)] for part in (row, file)]
    (tmp_path / "sign.py").write_text("\n".join(added[1]) + "\n")
    shutil.copytree(CACHE_FOLDER, tmp_path / "cache" / CACHE_FOLDER.name)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), added[0][0]],
        capture_output=True,
        text=True,
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")},
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "sign\n"), done.stderr
