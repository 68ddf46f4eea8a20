"""`--since` and `--until`: which rows of a log become examples, and what the others still do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model_store.errors import SpecError
from model_store.spec.spec import parse_spec
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


def examples(folder: Path, spec: str, since: str | None, until: str | None, text: str = LOG) -> Examples:
    path = folder / "log.csv"
    path.write_text(text, encoding="utf-8")
    log = Log([str(path)], since=since, until=until)
    with open_log(log, parse_spec(spec)) as opened, opened.examples(1) as stream:
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
def test_rows_from_one_time_on_and_before_another(tmp_path, since, until, labels) -> None:
    found = examples(tmp_path, SPEC, since, until)
    assert found.hashed.labels.tolist() == labels
    (reject,) = found.rejects
    assert reject.line == 4 and "ts: got no value" in reject.reason


def test_bounds_may_be_written_as_the_log_writes_times_and_wrong_ones_say_what_is_right(tmp_path) -> None:
    spec = SPEC + 'hour = { kind = "time", part = "hour", format = "%y%m%d%H", column = "ts" }\n'
    text = "ts,u,i,c\n14102100,a,x,1\n14102101,a,x,0\n14102102,a,x,0\n"
    for bound in ("14102101", "2014-10-21T01:00:00Z"):
        assert examples(tmp_path, spec, bound, None, text).hashed.labels.size == 2
    with pytest.raises(SpecError, match="--since: got 'noon', expected a time such as"):
        examples(tmp_path, SPEC, "noon", None)
    with pytest.raises(SpecError, match=r"set input\.timestamp"):
        examples(tmp_path, SPEC.replace('timestamp = "ts"\n', ""), None, "2026-01-01")


def test_earlier_rows_are_history(tmp_path: Path) -> None:
    text = LOG.replace(",a,z,1\n", "")
    whole, last = (
        examples(tmp_path, SPEC + CLICKED, since, None, text).hashed for since in (None, "2026-01-02")
    )
    assert np.array_equal(last.hashes, whole.hashes[whole.starts[2] :])
