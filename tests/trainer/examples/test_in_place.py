"""Rows hashed where their cells stand in the log: the same examples, to the bit, as a careful reading gives.

The careful reading is that of the same rows in CSV with every cell in quotes, which Arrow parses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from model_store.spec.spec import ModelSpec, parse_spec
from trainer.examples.hashing import ExampleMaker, Examples
from trainer.formats.batch import LazyColumns, Position
from trainer.formats.cells import CellText, CodedText, padded_lines
from trainer.formats.jsonl import SCALAR, Lines, Paths, parse
from trainer.formats.reader import LogReader
from trainer.formats.tables import TableReader, table_of

HEAD = '[model]\nname = "m"\n[input]\nlabel = "y"\n[fields]\n'
FIELDS = """
a = {}
b = {}
n = { kind = "number" }
s = { kind = "number", scale = "log1p", missing = "key" }
k = { kind = "number", bucket = "log", clip = [-100, 1e6] }
e = { kind = "number", bucket = [0, 0.5, 10], missing = "key" }
t = { kind = "set" }
u = { kind = "set", separator = "|" }
r = { kind = "raw", separator = "|" }
often = { kind = "set", column = "t", scale = "sqrt" }
steps = { kind = "set", column = "u", separator = "|", bucket = [1.5, 3] }
"""
NAMES = ("y", "a", "b", "n", "s", "k", "e", "t", "u", "r")
CROSSES = (
    '[[crosses]]\nfields = ["a", "u"]\n[[crosses]]\nfields = ["k", "b"]\n[[crosses]]\nfields = ["n", "a"]\n'
)


SPEC = parse_spec(HEAD + FIELDS + CROSSES).resolve(NAMES)


@dataclass
class Found:
    """What examples of a log say: hashes by row, x, labels, texts of tokens, and rejects."""

    starts: list[int]
    hashes: list[int]
    features: list[int]
    x: list[str]
    labels: list[float]
    texts: list[list[bytes]]
    rejects: list[tuple[int, str]]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


def examples(
    path: Path, of: ModelSpec = SPEC, wanted: Sequence[str] = NAMES, *, as_arrays: bool = False
) -> Found:
    maker = ExampleMaker(of)
    found = Found([0], [], [], [], [], [[] for _ in maker.plan.fields], [])
    with LogReader([str(path)]) as reader:
        for batch in reader.batches(list(wanted)):
            batch = replace(batch, columns=dict(batch.columns)) if as_arrays else batch
            add(found, maker.make(batch))
    return found


def add(found: Found, made: Examples) -> None:
    hashed = made.hashed
    size = int(hashed.starts[-1])
    found.starts += (hashed.starts[1:] + found.starts[-1]).tolist()
    found.hashes += hashed.hashes[:size].tolist()
    found.features += hashed.features[:size].tolist()
    x = hashed.x[:size] if hashed.x.size else np.ones(size)
    found.x += [each.hex() for each in x.tolist()]
    found.labels += hashed.labels.tolist()
    for field, texts in enumerate(found.texts):
        starts, number = made.tokens.starts, int(made.tokens.list_of[field])
        for row in made.rows.tolist():
            first, stop = (row, row + 1) if number < 0 else starts[number, row : row + 2].tolist()
            texts += [made.texts[field][place].as_py() for place in range(first, stop)]
    found.rejects += [(reject.line, reject.reason) for reject in made.rejects]


def as_csv(rows: Sequence[Sequence[bytes]], ending: bytes = b"\n") -> bytes:
    return (
        b",".join(each.encode() for each in NAMES) + b"\n" + b"".join(b",".join(row) + ending for row in rows)
    )


def assert_same(folder: Path, rows: Sequence[Sequence[bytes]], plain: bytes | None = None) -> Found:
    in_place, careful = folder / "plain.csv", folder / "careful.csv"
    in_place.write_bytes(as_csv(rows) if plain is None else plain)
    careful.write_bytes(as_csv([[b'"' + cell + b'"' for cell in row] for row in rows]))
    found = examples(in_place)
    assert found == examples(careful)
    return found


TEXTS = st.sampled_from(
    [b"", b"a", b"a%*=b", "é".encode(), b"\xff", b"x" * 70, b"z" * 5000, b" ", b"12345678", b"\0"]
)
NUMBERS = st.one_of(
    st.sampled_from(
        b"|0|-0|1|-1|007|1.|.5|-.5|.|-|+1|1e5|1E5|1e-5|1e22|1e23|9007199254740993|0.1|123456789012345678|1e400|-1e400|"
        b"1e-400|nan|inf|x| 1|1 |1_0|0x1|1e|1e+|1.5.5|true|99999999999999999999|0e5|1e25|\xff|2.5e-3"
        b"".split(b"|")
    ),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda number: repr(number).encode()),
    st.decimals(allow_nan=False, allow_infinity=False, places=4).map(lambda number: f"{number:f}".encode()),
)
MEMBERS = st.one_of(
    st.lists(
        st.sampled_from([b"a", b"b", b"", b"a=b", b"%", "ü".encode(), b"cc", b"w" * 9]), max_size=24
    ).map(b"|".join),
    st.sampled_from([b"", b"|", b"[1|2", b"\xff|a", b"v" * 5000, b"{", b"[]", b"a|[b"]),
)
ROWS = st.lists(
    st.tuples(
        st.sampled_from([b"0", b"1", b"-1", b"true", b"x"]), TEXTS, TEXTS, *[NUMBERS] * 4, *[MEMBERS] * 3
    ),
    min_size=1,
    max_size=8,
)


@given(rows=ROWS)
@example(rows=[(b"1", *[b""] * 9)])
def test_cells_give_the_same_examples_as_parsed_columns(scratch: Path, rows: list[tuple[bytes, ...]]) -> None:
    assert_same(scratch, rows)


GOOD = st.tuples(
    st.sampled_from([b"0", b"1"]),
    st.sampled_from([b"", b"a", b"bb", b"x" * 70]),
    st.sampled_from([b"", b"a%", "é".encode()]),
    *[st.sampled_from([b"", b"0", b"1.5", b"-3", b"12.25"])] * 4,
    *[st.lists(st.sampled_from([b"a", b"b", b"", b"cc"]), max_size=20).map(b"|".join)] * 3,
)


@given(rows=st.lists(GOOD, min_size=1, max_size=30))
def test_rows_without_a_fault_are_all_learned_from(scratch: Path, rows: list[tuple[bytes, ...]]) -> None:
    found = assert_same(scratch, rows)
    assert (len(found.labels), found.rejects) == (len(rows), [])


ROW = (b"1", b"ad", b"", b"2.5", b"3", b"4", b"5", b"p;q", b"p|q|p", b"k")


def test_line_ends_and_a_last_line_without_one_change_nothing(tmp_path: Path) -> None:
    for ending in (b"\r\n", b"\n"):
        plain = as_csv([ROW] * 3, ending)
        for text in (plain, plain.removesuffix(ending)):
            assert len(assert_same(tmp_path, [ROW] * 3, text).labels) == 3


def test_long_sets_have_each_member_once(tmp_path: Path) -> None:
    row = (*ROW[:8], b"|".join(b"%d" % (number % 300) for number in range(700)), b"k")
    assert len(assert_same(tmp_path, [row, ROW]).texts[7]) == 300 + 2


JSON_FIELDS = """
a = {}
b = {}
n = { kind = "number", scale = "log1p", missing = "key" }
k = { kind = "number", bucket = "log" }
t = { kind = "set" }
h = { kind = "time", part = "hour" }
"""


JSON_NAMES = ("y", "a", "b", "n", "k", "t", "h")
JSON_SPEC = parse_spec(HEAD + JSON_FIELDS + '[[crosses]]\nfields = ["a", "t"]\n').resolve(JSON_NAMES)
LITERALS = st.sampled_from(
    ['""', '"a"', '"a%*="', '"é"', "null", "true", "false", "0", "-0", "1", "77.0", "0.5", "0.1", "1.50", "-3", "1e-05",
     "1E-400", "0.00001", "0.0001", "123456789012345678", "9007199254740993", "9007199254740993.0", "1e3", "-0.0",
     "1234567890123456789", "12345678901234567890", "0.8444218515250481", "1e999", "NaN", "Infinity", "-Infinity", "01",
     "1.", ".5", "-", "+1", "tru", "nul", '"a\\u00e9b"', '"\\ud800"', "[1]", '["a","b"]', '{"q":1}', '"[1,2]"', '"nan"',
     '"a,b,a"', '"1.5"', '"x y"', '"2026-11-21T18:00:00Z"', "1763700000", '"\t"', '"']
)  # fmt: skip
LABELS = st.sampled_from(["1", "0", "true", "false", '"1"', "1.0", "null", '"x"', "2"])
OTHERS = st.sampled_from(
    ['"z": 1', '"z": [1, {}]', '"z": nul', '"z":"\\\\"', '"a": "again"', '"z": 1, "z": 2', "", "z"]
)


@st.composite
def objects(
    draw: st.DrawFn,
    literals: st.SearchStrategy[str],
    others: st.SearchStrategy[str],
    labels: st.SearchStrategy[str] = LABELS,
) -> str:
    names = draw(st.lists(st.sampled_from(JSON_NAMES[1:]), unique=True))
    parts = [f'"{name}": {draw(literals)}' for name in names]
    parts.append(f'"y"{draw(st.sampled_from([":", " : "]))}{draw(labels)}')
    other = draw(others)
    parts = draw(st.permutations([*parts, other] if other else parts))
    return "{" + draw(st.sampled_from([",", ", ", " , "])).join(parts) + "}"


USUAL = st.sampled_from(['""', '"a"', "null", '"b%"', '"é"', "1", "-20", "0.25"])
NONE = st.just("")


def lines_of(objects: st.SearchStrategy[str], most: int) -> st.SearchStrategy[str]:
    lines = st.tuples(objects, st.sampled_from(["\n", "\r\n", " \n"])).map("".join)
    return st.lists(lines, min_size=1, max_size=most).map("".join)


def json_columns(
    path: Path, wanted: Sequence[str] = JSON_NAMES
) -> tuple[list[list[object]], list[tuple[int, str]]]:
    with LogReader([str(path)]) as reader:
        batches = list(reader.batches(list(wanted)))
    columns = [[each for batch in batches for each in batch.columns[name].to_pylist()] for name in wanted]
    return columns, [(reject.line, reject.reason) for batch in batches for reject in batch.rejects]


def assert_same_objects(folder: Path, text: str) -> Found:
    """The text as it is, and with each line parsed by itself; and with an escape and a blank line in it."""
    head = '{"y": 1, "a": "a", "b": "a", "n": 1, "k": 1, "t": "a", "h": "2026-11-21T18:00:00Z"}\n'
    flat, escaped = folder / "flat.jsonl", folder / "escaped.jsonl"
    flat.write_bytes((head + text).encode())
    escaped.write_bytes((head.replace('"y"', '"\\\\": "\\n", "y"') + text + "\n \n").encode())
    numbered = enumerate((head + text).encode().split(b"\n"), 1)
    careful = parse(numbered, JSON_NAMES, Position(str(flat)))
    columns = [careful.columns[name].to_pylist() for name in JSON_NAMES]
    assert json_columns(flat) == (columns, [(reject.line, reject.reason) for reject in careful.rejects])
    assert json_columns(flat) == json_columns(escaped)
    found, other = (examples(path, JSON_SPEC, JSON_NAMES) for path in (flat, escaped))
    maker = ExampleMaker(JSON_SPEC)
    expected = Found([0], [], [], [], [], [[] for _ in maker.plan.fields], [])
    add(expected, maker.make(careful))
    assert found == other == expected
    return found


@given(text=lines_of(objects(LITERALS, OTHERS), 6) | lines_of(objects(USUAL | LITERALS, NONE), 3))
def test_lines_of_any_kind_give_the_same_examples_as_each_parsed_by_itself(scratch: Path, text: str) -> None:
    assert_same_objects(scratch, text)


@given(text=lines_of(objects(USUAL, NONE, st.sampled_from("01")), 20))
def test_values_of_flat_objects_are_found_where_they_stand(scratch: Path, text: str) -> None:
    assert_same_objects(scratch, text)
    with LogReader([str(scratch / "flat.jsonl")]) as reader:
        [batch] = reader.batches(["y", "a", "t"])
    assert isinstance(batch.columns, LazyColumns) and batch.rows == 1 + text.count("\n")
    assert all(isinstance(batch.columns.stored[name], CellText) for name in batch.columns)


def set_aside(*lines: bytes) -> list[bool]:
    """Which lines the scan leaves to the careful parser, with `y` wanted."""
    starts = np.cumsum([0, *map(len, lines)])
    aside = np.zeros(len(lines), np.bool_)
    Lines(
        padded_lines(np.frombuffer(b"".join(lines), np.uint8))[0], starts, Paths.of({("y",): SCALAR}), aside
    )
    return aside.tolist()


@pytest.mark.parametrize(
    "line",
    ['{"y": 1', '{"y" 1}', '{"y": 1,}', '{,"y": 1}', '{"y": 1}}', '{"y": 1} {"y": 0}', '{y: 1}', "[]", " ", '{"y": "1}',
     '{"y": "\x01"}', '{"y": 01}', '{"y": 1 2}', '{"y": -}', '{"y":1.}', "\ufeff{}", '{"y": 1, "y": 0}', '{"y"}'],
)  # fmt: skip
def test_only_lines_that_are_no_objects_are_set_aside(line: str) -> None:
    good = b'{"y": 1, "a": {"b": ["\\u00e9"]}}\n'
    assert set_aside(good, line.encode() + b"\n", good, line.encode()) == [False, True, False, True]


def test_only_lines_that_are_no_utf8_are_set_aside(tmp_path: Path) -> None:
    lines = [b'{"y": 1, "a": "x"}\n', b'{"y": 0, "a": "\xff"}\n', b'{"y": 0}']
    assert set_aside(*lines) == [False, True, False]
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"".join(lines))
    assert json_columns(path, ["y", "a"])[1] == [(2, "invalid UTF-8: at byte 16 of the line")]


FEATURES = st.sampled_from(
    ["a", "b", "a:2", "a:-2", "b:0", "c=1", "é", "%*", "d:0.1", "w:1e30", "", "x" * 5000]
)


@given(
    lines=st.lists(
        st.tuples(*(st.lists(FEATURES, max_size=most) for most in (14, 3))), min_size=1, max_size=9
    )
)
def test_sparse_text_gives_the_same_examples_as_maps_of_it(scratch, lines):
    path = scratch / "log.vw"
    text = "\n".join(f"1 |f {' '.join(first)} |g:0.5 {' '.join(second)}" for first, second in lines)
    path.write_bytes(f"-1 |f a |g b\n{text}".encode())
    fields = 'f = { kind = "set" }\ng = { kind = "set" }\n[[crosses]]\nfields = ["f", "g"]\n'
    of = parse_spec(HEAD.replace('"y"', '"label"') + fields)
    found = examples(path, of, ["label", "f", "g"])
    assert found == examples(path, of, ["label", "f", "g"], as_arrays=True)


CODED = st.none() | st.sampled_from(["", "a", "b%=", "é", "z" * 5000])


@given(pairs=st.lists(st.tuples(CODED, CODED), min_size=1, max_size=40), pages=st.sampled_from([1, 3, 64]))
def test_dictionaries_give_the_same_examples_as_their_texts(scratch, pairs, pages):
    a, b = (pa.array(values, pa.string()) for values in zip(*pairs, strict=True))
    table, names = pa.table({"y": [1] * len(pairs), "a": a, "b": b}), ["y", "a", "b"]
    of = parse_spec(HEAD + 'a = {}\nb = {}\n[[crosses]]\nfields = ["a", "b"]\n')
    for name, coded in (("coded", True), ("plain", False)):
        pq.write_table(table, scratch / f"{name}.parquet", use_dictionary=coded, row_group_size=pages)
    found = examples(scratch / "coded.parquet", of, names)
    assert found == examples(scratch / "plain.parquet", of, names)
    assert found == examples(scratch / "coded.parquet", of, names, as_arrays=True)
    maker, in_memory = ExampleMaker(of), Found([0], [], [], [], [], [[], []], [])
    coded_table = table.set_column(1, "a", table.column("a").dictionary_encode())
    for batch in TableReader(table_of(coded_table)).batches(names):
        add(in_memory, maker.make(batch))
    assert in_memory == found


def test_a_column_of_dictionaries_is_not_decoded_to_be_hashed(tmp_path: Path) -> None:
    pq.write_table(pa.table({"y": [1, 0] * 50, "a": ["x", "y"] * 50}), tmp_path / "log.parquet")
    with LogReader([str(tmp_path / "log.parquet")]) as reader:
        [batch] = reader.batches(["y", "a"])
    made = ExampleMaker(parse_spec(HEAD + "a = {}\n")).make(batch)
    assert isinstance(made.texts[0], CodedText) and made.texts[0].texts.to_pylist() == [b"x", b"y"]
