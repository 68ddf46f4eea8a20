"""`--since` and `--until`: which rows of a log become examples, and what the others still do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model_store.errors import SpecError
from model_store.spec.spec import ModelSpec, parse_spec
from trainer.examples.hashing import Examples
from trainer.examples.open_log import Log, open_log

LOG = """ts,u,i,c
2026-01-01T00:00:00Z,a,x,1
2026-01-01T06:00:00Z,a,y,0
,a,z,1
2026-01-02T00:00:00Z,a,x,1
2026-01-02T06:00:00+02:00,b,x,0
"""
SPEC = """
[model]
name = "m"
[input]
label = "c"
timestamp = "ts"
cookie = "u"
item = "i"
[fields]
i = {}
"""
CLICKED = 'n = { side = "user", kind = "number", history = "clicked", measure = "count", bucket = [1] }\n'


def examples(
    folder: Path, spec: ModelSpec, since: str | None, until: str | None, text: str = LOG
) -> Examples:
    """The examples of the log's only batch."""
    path = folder / "log.csv"
    path.write_text(text, encoding="utf-8")
    with open_log(Log([str(path)], since=since, until=until), spec) as opened, opened.examples(1) as stream:
        (found,) = stream
    return found


@pytest.mark.parametrize(
    ("since", "until", "labels"),
    [
        (None, "2026-01-02", [1, 0]),
        ("2026-01-01T06:00:00Z", None, [0, 1, 0]),
        ("2026-01-01T06:00:00Z", "2026-01-02T04:00:00Z", [0, 1]),
        ("2026-02-01", None, []),
    ],
)
def test_rows_from_one_time_on_and_before_another(
    tmp_path: Path, since: str | None, until: str | None, labels: list[int]
) -> None:
    found = examples(tmp_path, parse_spec(SPEC), since, until)
    assert found.hashed.labels.tolist() == labels
    (reject,) = found.rejects
    assert reject.line == 4
    assert "ts: got no value" in reject.reason


def test_bounds_may_be_written_as_the_log_writes_times(tmp_path: Path) -> None:
    spec = parse_spec(SPEC + 'hour = { kind = "time", part = "hour", format = "%y%m%d%H", column = "ts" }\n')
    text = "ts,u,i,c\n14102100,a,x,1\n14102101,a,x,0\n14102102,a,x,0\n"
    for bound in ("14102101", "2014-10-21T01:00:00Z"):
        assert examples(tmp_path, spec, bound, None, text).hashed.labels.size == 2


def test_earlier_rows_are_history(tmp_path: Path) -> None:
    spec = parse_spec(SPEC + CLICKED)
    text = LOG.replace(",a,z,1\n", "")
    whole, last = (examples(tmp_path, spec, since, None, text) for since in (None, "2026-01-02T00:00:00Z"))
    kept = whole.hashed.hashes[whole.hashed.starts[2] :]
    assert np.array_equal(last.hashed.hashes, kept)


def test_wrong_bounds_say_what_would_be_right(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="--since: got 'noon', expected a time such as"):
        examples(tmp_path, parse_spec(SPEC), "noon", None)
    with pytest.raises(SpecError, match=r"set input\.timestamp"):
        examples(tmp_path, parse_spec(SPEC.replace('timestamp = "ts"\n', "")), None, "2026-01-01")
