"""Weighted sets in JSON lines and Parquet: objects and maps that become columns of maps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.errors import SpecError
from tests.trainer.formats.reading import read, write
from trainer.formats.reader import LogReader

FIRST = {"y": 1, "user": {"likes": {"art": 0.5}}, "n": 1}


def write_lines(folder: Path, lines: list[Any]) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    return write(folder / "log.jsonl", "\n".join(texts))


def values_of(path: Path, column: str, **options: Any) -> list[Any]:
    return [value for (value,) in read(path, [column], **options).rows]


def test_an_object_of_numbers_can_be_wanted_by_its_path(tmp_path: Path) -> None:
    users = [{"user": {"likes": likes}} for likes in ({"art": 2, "news": None}, None, {})]
    path = write_lines(tmp_path, [FIRST, *users[:2], {"y": 0}, users[2]])
    with LogReader([str(path)]) as reader:
        assert reader.columns() == ("y", "user.likes.art", "n", "user.likes.news", "user.likes")
        assert reader.may_have("user.likes")
    expected = [[("art", 0.5)], [("art", 2.0), ("news", None)], None, None, []]
    for batch_bytes in (1, 1 << 20):
        assert values_of(path, "user.likes", batch_bytes=batch_bytes) == expected


@pytest.mark.parametrize(
    ("likes", "reason"),
    [
        *(
            (
                f'{{"art": {bad}}}',
                "nested value: column 'user.likes' holds an object, in it 'art', which is no number",
            )
            for bad in ('"much"', "true", "[1]")
        ),
        ('{"art": NaN}', "not a finite number: column 'user.likes' holds nan"),
        (
            '{"art": 1' + "0" * 400 + "}",
            "not a finite number: column 'user.likes' holds a whole number that no double can hold",
        ),
        ('{"\\ud800": 1}', "invalid UTF-8: column 'user.likes' holds half of a surrogate pair"),
    ],
    ids=["text", "boolean", "list", "NaN", "too large", "surrogate"],
)
def test_an_object_with_anything_else_costs_its_row(tmp_path: Path, likes: str, reason: str) -> None:
    path = write_lines(tmp_path, [FIRST, '{"y": 0, "user": {"likes": ' + likes + "}}", FIRST])
    everything = read(path, ["user.likes"])
    assert (everything.lines, everything.rejects) == ([1, 3], [(2, reason)])


def test_a_column_that_is_no_object_at_first_takes_none_later(tmp_path: Path) -> None:
    path = write_lines(tmp_path, [FIRST, {"n": {"a": 1}}])
    assert read(path, ["n"]).rejects == [(2, "nested value: column 'n' holds an object")]
    with pytest.raises(SpecError, match="has no column 'm'"):
        read(path, ["m"])


NUMBER = st.none() | st.integers() | st.floats(-1e24, 1e24)
LIKES = st.none() | st.dictionaries(st.text(max_size=3), NUMBER, max_size=4)


@given(st.lists(LIKES, max_size=6), st.sampled_from([1, 100, 1 << 20]))
def test_objects_are_read_as_json_has_them_wherever_the_blocks_fall(scratch, likes, batch_bytes):
    path = write_lines(scratch, [FIRST, *({"user": {"likes": each}} for each in likes)])
    assert values_of(path, "user.likes", batch_bytes=batch_bytes)[1:] == [
        None if each is None else [(k, None if x is None else float(x)) for k, x in each.items()]
        for each in likes
    ]


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.int32()])
def test_a_parquet_map_to_numbers_is_a_column(tmp_path: Path, kind: pa.DataType) -> None:
    path, x = tmp_path / "log.parquet", 2 if kind == pa.int32() else 0.1  # meant by its digits
    likes = pa.array([[("art", x)], None, [("art", 1), ("art", 3)]], pa.map_(pa.string(), kind))
    tags = pa.array([["a"], [], None])
    texts = pa.array([[("a", "b")]] * 3, pa.map_(pa.string(), pa.string()))
    pq.write_table(pa.table({"y": [0, 1, 1], "likes": likes, "tags": tags, "texts": texts}), path)
    with LogReader([str(path)]) as reader:
        assert reader.columns() == ("y", "likes", "tags")
        assert reader.kinds() == {"likes": "set", "tags": "set"}
    assert values_of(path, "likes") == [[("art", x)], None, [("art", 1.0), ("art", 3.0)]]
