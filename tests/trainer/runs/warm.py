"""Imported once by the server that `children` are forked from: leaves nothing to import or compile for them."""

from __future__ import annotations

import contextlib
import io
import tempfile
from pathlib import Path

from ftrie.cli import run
from tests.trainer.runs.runs import Training, rows, write_log, write_spec

with tempfile.TemporaryDirectory() as _name, contextlib.redirect_stdout(io.StringIO()):
    _folder = Path(_name)
    _log = write_log(_folder / "a.csv", rows(50, 1))
    run(Training(_folder / "t", write_spec(_folder / "shop.toml")).keeping([_log]))
