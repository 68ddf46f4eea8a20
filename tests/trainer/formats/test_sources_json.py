"""JSON lines: the same values and rejects whichever way a block is read, and no line crashes the parser."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from model_store.errors import InputError, SpecError
from tests.trainer.formats.reading import Everything, read, write
from trainer.formats.batch import LazyColumns
from trainer.formats.cells import CellText
from trainer.formats.reader import LogReader

TEXT = st.sampled_from(["", "x", "é", "7", "2019-01-01", "2019-01-01 10:00:00", "true", 'q"}{', "a\\", "\0"])
NUMBER = st.one_of(
    st.integers(-5, 5),
    st.sampled_from([2**53, 2**53 + 1, 2**63, 12345678901234567890, -(2**63), -(2**63) - 1]),
    st.sampled_from([0.5, -0.0, 1.0, 0.1, 1e22, 1e23, 9007199254740993.0, 5e-324]),
)
SCALAR = st.one_of(st.none(), st.booleans(), TEXT, NUMBER)
VALUE = st.one_of(SCALAR, st.lists(SCALAR, max_size=3))
OBJECT = st.fixed_dictionaries(
    {}, optional={"a": VALUE, "b": st.fixed_dictionaries({}, optional={"c": SCALAR})}
)
ODD_LINES = rb"""
null
5
[1]
"x"
{"a":1}{"a":2}
{"a":1}null{"a":2}
{"a":1} 5
{"a":
}
{"a":NaN}
{"a":-Infinity}
{"z":NaN}
{"a":1e999}
{"z":1e999}
{"a":"\ud800"}
{"a":1,"a":2}
{"z":1,"z":2,"a":3}
{"a":{"d":1}}
{"a":[[1]]}
{"a":[{"d":1}]}
{"b":7}
{"b":{"c":[1]}}
{"a":"	"}
{"a":01}
{"a":"\
{"a":"\\
""".splitlines()
ODD_LINES += [b"  ", b'{"a":"\xff"}', b'{"z":"\xff"}', b'{"a":1}\r']
ODD_LINES += [b'{"a":' + b"[" * 100 + b"]" * 100 + b"}", b'{"z":' * 80 + b"1" + b"}" * 80]
ODD_LINE = st.sampled_from(ODD_LINES)
# The same kinds line after line let whole blocks take the fast way.
UNIFORM = st.sampled_from(["x", "7", 1, 2**53 + 1, 0.5, True, None, ["x"], "2019-01-01"]).flatmap(
    lambda value: st.lists(st.just({"a": value}), max_size=6)
)


def naive(data: bytes) -> Everything:
    """Columns a and b.c as texts, each line read by itself; rejects as (line, category)."""
    everything = Everything([], [], [])
    for line, text in enumerate(data.split(b"\n"), 1):
        if text.strip():
            value, fault = naive_row(text)
            if fault:
                everything.rejects.append((line, fault))
            else:
                everything.rows.append(tuple(map(texts, value)))
                everything.lines.append(line)
    return everything


def naive_row(text: bytes) -> tuple[list[Any], str]:
    try:
        row = json.loads(text.decode())
    except UnicodeDecodeError:
        return [], "invalid UTF-8"
    except ValueError:
        return [], "malformed JSON"
    if not isinstance(row, dict):
        return [], "not a JSON object"
    values = [row.get("a"), row["b"].get("c") if isinstance(row.get("b"), dict) else None]
    for each in (member for value in values for member in (value if isinstance(value, list) else [value])):
        if isinstance(each, dict | list):
            return [], "nested value"
        if isinstance(each, float) and not math.isfinite(each):
            return [], "not a finite number"
        if isinstance(each, str) and "\ud800" in each:
            return [], "invalid UTF-8"
    return values, ""


def texts(value: Any) -> list[str | None] | None:
    """One value as learning sees it: a scalar is a list of one, a list may stand in text, a number has one spelling."""
    if value is None:
        return None
    if isinstance(value, str) and value.startswith("["):
        value = json.loads(value)
    return [spelling(each) for each in (value if isinstance(value, list) else [value])]


def spelling(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return None if value is None else str(value)


def learnt(everything: Everything) -> Everything:
    rows = [tuple(map(texts, row)) for row in everything.rows]
    rejects = [(line, why.partition(":")[0]) for line, why in everything.rejects]
    return Everything(rows, everything.lines, rejects)


LINES = st.lists(st.one_of(OBJECT.map(lambda row: json.dumps(row).encode()), ODD_LINE), max_size=12)
RUNS = st.lists(UNIFORM, max_size=5).map(
    lambda runs: [json.dumps(row).encode() for run in runs for row in run]
)


@given(lines=LINES | RUNS, batch_bytes=st.sampled_from([1, 16, 40, 60, 200, 1 << 20]))
@example(lines=[b"null"], batch_bytes=1 << 20)
@example(lines=[b'{"a":1}null{"a":2}'], batch_bytes=1 << 20)
def test_each_line_means_the_same_wherever_the_blocks_fall(scratch, lines, batch_bytes):
    # The first line shows the columns; as wide as it is, the first block may hold nothing else.
    data = b"\n".join([b'{"a":"first","b":{"c":1}}', *lines])
    path = write(scratch / "log.jsonl", data)
    assert learnt(read(path, ["a", "b.c"], batch_bytes=batch_bytes)) == naive(data)


def test_values_keep_their_types(tmp_path: Path) -> None:
    path = write(
        tmp_path / "log.jsonl",
        b'{"s":"x","i":1,"f":0.5,"t":true,"l":["p","q"],"d":"2019-01-01"}\n'
        b'{"s":"y","i":2,"f":1.5,"t":false,"l":[],"d":"2019-01-02"}\n',
    )
    with LogReader([str(path)]) as reader:
        (batch,) = reader.batches(reader.columns())
    types = {name: str(column.type).partition("<")[0] for name, column in batch.columns.items()}
    assert types == {"s": "string", "i": "int64", "f": "double", "t": "bool", "l": "list", "d": "string"}
    assert batch.columns["d"].to_pylist() == ["2019-01-01", "2019-01-02"]


def test_columns_are_paths_to_values_that_can_be_learnt_and_a_list_leaves_scalars_as_they_are(tmp_path):
    path = write(
        tmp_path / "log.json", b'{"a":1,"c":{"x":1,"y":{"z":2}}}\n{"items":[{"id":1}],"tags":["t"]}\n'
    )
    assert LogReader([str(path)]).columns() == ("a", "c.x", "c.y.z", "tags")
    path = write(tmp_path / "log.jsonl", b'{"a":"p,q"}\n{"a":["r",1.0]}\n{"a":2.0}\n{"a":null}\n')
    assert [row for (row,) in read(path, ["a"]).rows] == ["p,q", '["r", 1.0]', "2", None]


def test_files_without_a_column_or_an_object_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", b'{"a":1}\n{"b":1}\n')
    with pytest.raises(SpecError, match=r"log\.jsonl has no column 'c'; it has a, b"):
        read(path, ["c"])
    for data in (b"\n \n", b"[1]\n", b"null\n"):
        with pytest.raises(InputError, match="found no JSON object"):
            read(write(path, data), ["a"])


def test_a_column_that_only_later_blocks_have_is_null_before(tmp_path: Path) -> None:
    rows = [b'{"a":1}'] * 20 + [b'{"a":2,"b":"x"}']
    # Both columns are in the first block, then b is away for some blocks, and comes back as another type.
    path = write(tmp_path / "log.jsonl", b"\n".join([b'{"a":0,"b":1}', *rows]))
    assert read(path, ["a", "b"], batch_bytes=16).rows == [(0, 1)] + [(1, None)] * 20 + [(2, "x")]


def test_reasons_say_what_is_wrong_and_where(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", b'{"a":1}\n{"a":}\n[]\n{"a":{"b":1}}\n{"a":NaN}\n{"a":"\xff"}\n')
    assert read(path, ["a"]).rejects == [
        (2, "malformed JSON: Expecting value at character 6"),
        (3, "not a JSON object: got a list"),
        (4, "nested value: column 'a' holds an object"),
        (5, "not a finite number: column 'a' holds nan"),
        (6, "invalid UTF-8: at byte 7 of the line"),
    ]


def test_nesting_deep_enough_to_exhaust_a_stack_is_a_reject(tmp_path: Path) -> None:
    deep = b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    # The byte order mark and the ends of Windows are no part of a line.
    got = read(write(tmp_path / "log.jsonl", b'\xef\xbb\xbf{"a":1}\r\n' + deep + b'\n{"a":2}\r\n'), ["a"])
    assert (got.rows, got.lines, [line for line, _ in got.rejects]) == ([(1,), (2,)], [1, 3], [2])


def test_the_line_after_a_blank_piece_is_counted_from_the_line_ends(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", b'{"a":1}\n{"a":2}\n  ')
    with LogReader([str(path)]) as reader:
        (batch,) = reader.batches(["a"])
    # The piece may go on as line 3 when the file grows.
    assert (batch.stop.offset, batch.stop.line, batch.lines.tolist()) == (18, 3, [1, 2])


def test_a_path_means_the_same_beside_a_member_whose_own_name_has_dots(tmp_path: Path) -> None:
    lines = [b'{"b":{"c":1}}', b'{"b.c":2}', b'{"b.c":null,"b":{"c":3}}', b'{"b":7}']
    path = write(tmp_path / "log.jsonl", b"\n".join(lines) + b"\n")
    assert [row for (row,) in read(path, ["b.c"]).rows] == [1, 2, None, None]
    assert [row for (row,) in read(path, ["b.c"], batch_bytes=1).rows] == [1, 2, None, None]


def test_a_bad_line_leaves_the_others_where_they_stand(tmp_path: Path) -> None:
    good = [json.dumps({"a": n, "s": f"text {n}"}).encode() for n in range(50)]
    lines = [line for n, line in enumerate(good) for line in ([b"{", line, b""] if n % 7 == 0 else [line])]
    path = write(tmp_path / "log.jsonl", b"\n".join(lines))
    with LogReader([str(path)]) as reader:
        (batch,) = reader.batches(["a", "s"])
    assert batch.columns["a"].to_pylist() == list(range(50)) and len(batch.rejects) == 8
    assert isinstance(batch.columns, LazyColumns) and isinstance(batch.columns.stored["s"], CellText)


def test_a_name_with_many_dots_is_found_as_a_path_or_as_it_is(tmp_path: Path) -> None:
    name = "a.b.c.d.e.f.g.h"
    nested = '{"a":{"b.c":{"d":{"e.f.g":{"h":%s}}}}}'
    path = write(
        tmp_path / "log.jsonl", "\n".join([json.dumps({name: 0}), nested % 1, '{"a":7}', nested % '"x"'])
    )
    assert [row for (row,) in read(path, [name], batch_bytes=1).rows] == [0, 1, None, "x"]
