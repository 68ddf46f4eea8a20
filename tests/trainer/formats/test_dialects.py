"""Logs in the dialects of other writers: the model of the same rows, and the dialect said and kept in a spec."""

from __future__ import annotations

import csv
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest

from model_store.spec.spec import parse_spec
from tests.trainer.formats.reading import read, write
from tests.trainer.inspect.planted import sampled
from trainer.examples.open_log import Log
from trainer.formats.dialect import Dialect
from trainer.formats.rejects import RejectLog
from trainer.formats.row_file import Header
from trainer.inspect.guesses import guess_log
from trainer.runs.first_spec import SpecDraft
from trainer.runs.train import train

SPEC = """
[model]
name = "m"
[input]
label = "y"
[fields]
text = {}
vip = {}
price = { kind = "number", bucket = "log" }
[learner]
l1 = 0.0
"""
TEXTS = [
    "home, garden",
    'toys "new"',
    '5" pipes',
    "a\\b path",
    "Bücher; x",
    "two\tcells",
    None,
    "it's|so",
    "plain",
]
ROWS: dict[str, list[Any]] = {
    "y": [1, 0, 0, 1, 0] * 18,
    "text": TEXTS * 10,
    "vip": [True, False, None] * 30,
    "price": [1234.5, 30.0, None, 0.25, 7.75, -2.5, 1000000.5, 12.0, 3.5] * 10,
}
TABLE = pa.table(ROWS)


def learned(path: Path, spec: str = SPEC) -> tuple[str, list[str]]:
    """The artefact's SHA-256, and the notes; no row may be rejected."""
    notes: list[str] = []
    rejects = RejectLog()
    trained = train(parse_spec(spec), Log([str(path)], on_note=notes.append), rejects=rejects)
    assert rejects.count == 0, notes
    return trained.model.artefact().sha256, notes


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("log") / "rows.parquet"
    importlib.import_module("pyarrow.parquet").write_table(TABLE, path)
    return learned(path)[0]


def by_csv(path: Path, *, null: str = "", encoding: str = "utf-8", **options: Any) -> None:
    with path.open("w", newline="", encoding=encoding) as file:
        writer = csv.writer(file, **options)
        writer.writerow(ROWS)
        writer.writerows(
            [null if each is None else each for each in row] for row in zip(*ROWS.values(), strict=True)
        )


def by_arrow(path: Path, **options: Any) -> None:
    pyarrow.csv.write_csv(TABLE, path, pyarrow.csv.WriteOptions(**options))


def by_pandas(path: Path, **options: Any) -> None:
    importlib.import_module("pandas").DataFrame(ROWS).to_csv(path, index=False, **options)


def by_polars(path: Path, **options: Any) -> None:
    importlib.import_module("polars").DataFrame(ROWS).write_csv(path, **options)


def by_duckdb(path: Path, options: str) -> None:
    connection = importlib.import_module("duckdb").connect()
    connection.register("rows_", TABLE)
    connection.execute(f"COPY (SELECT * FROM rows_) TO '{path}' (FORMAT csv, HEADER, {options})")


WRITERS: dict[Callable[..., None], list[dict[str, Any]]] = {
    by_csv: [
        {},
        {"quoting": csv.QUOTE_ALL},
        {"quoting": csv.QUOTE_NONNUMERIC},
        {"quotechar": "'"},
        {"delimiter": ";"},
        {"delimiter": "|"},
        {"delimiter": "\t"},
        {"delimiter": "\t", "quoting": csv.QUOTE_ALL},
        {"lineterminator": "\n"},
        {"encoding": "utf-8-sig"},
        {"null": "\\N"},
        {"null": "<NA>"},
        {"null": "-"},
        {"escapechar": "\\", "doublequote": False},
        {"escapechar": "\\", "quoting": csv.QUOTE_NONE},
        {"escapechar": "\\", "quoting": csv.QUOTE_NONE, "delimiter": "\t", "null": "\\N"},
    ],
    by_arrow: [
        {},
        {"delimiter": ";"},
        {"delimiter": "\t"},
        {"quoting_style": "all_valid"},
    ],
    by_pandas: [
        {},
        {"sep": ";", "decimal": ","},
        {"sep": "\t", "quoting": csv.QUOTE_ALL},
        {"na_rep": "NULL"},
        {"quotechar": "'"},
        {"escapechar": "\\", "doublequote": False},
        {"escapechar": "\\", "quoting": csv.QUOTE_NONE},
        {"decimal": ","},
        {"lineterminator": "\r\n"},
        {"float_format": "%.2f"},
        {"compression": "gzip"},
    ],
    by_polars: [
        {},
        {"separator": ";", "decimal_comma": True},
        {"quote_style": "always"},
        {"quote_style": "non_numeric"},
        {"null_value": "<NA>"},
        {"line_terminator": "\r\n"},
        {"include_bom": True},
        {"quote_char": "'"},
        {"float_precision": 3},
    ],
    by_duckdb: [
        {"options": "DELIMITER ','"},
        {"options": "DELIMITER ';'"},
        {"options": "DELIMITER '|'"},
        {"options": "DELIMITER '\t'"},
        {"options": "FORCE_QUOTE *"},
        {"options": "ESCAPE '\\'"},
        {"options": "NULLSTR 'NULL'"},
        {"options": "QUOTE '''', ESCAPE ''''"},
    ],
}


@pytest.mark.parametrize("extension", ["csv", "tsv"])
@pytest.mark.parametrize(
    ("writer", "options"),
    [
        pytest.param(writer, options, id=f"{writer.__name__}-{options}")
        for writer, all_options in WRITERS.items()
        for options in all_options
    ],
)
def test_a_log_in_any_dialect_is_the_log(
    writer: Callable[..., None], options: dict[str, Any], extension: str, expected: str, tmp_path: Path
) -> None:
    if writer not in (by_csv, by_arrow):
        pytest.importorskip(writer.__name__.removeprefix("by_"))
    path = tmp_path / f"log.{extension}"
    writer(path, **options)
    assert learned(path)[0] == expected


@pytest.mark.parametrize(
    ("cells", "plain"),
    [
        (["1.234,56", "0,5", "-12,0"], [b"1234.56", b"0.5", b"-12.0"]),
        (["1,234.56", "-1,000", "7"], [b"1234.56", b"-1000", b"7"]),
        (["$3.50", "-$2.25", "$10"], [b"3.50", b"-2.25", b"10"]),
        (["3,50 €", "2,25 €", "-", ""], [b"3.50", b"2.25", b"", b""]),
        (["1 234,5", "7,25"], [b"1234.5", b"7.25"]),
        (["1,234", "5,678"], [b"1,234", b"5,678"]),  # a thousand or one
        (["1,2,3", "4,5", "6"], [b"1,2,3", b"4,5", b"6"]),
        (["007", "1e3", "NA"], [b"007", b"1e3", b""]),
        (["a", "-", "NA"], [b"a", b"-", b"NA"]),
    ],
)
def test_numbers_as_people_write_them(cells: list[str], plain: list[bytes], tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", "".join(f"{cell};x;y\n" for cell in ["price", *cells]))
    for batch_bytes in (8, 4096):
        found = read(path, ["price"], batch_bytes=batch_bytes, header=Header(known=frozenset({"price"})))
        assert [row for (row,) in found.rows] == plain


def test_a_dialect_is_said_and_kept_in_the_guessed_spec(tmp_path: Path) -> None:
    lines = ["y;text;price\n", *(f"{n % 2};'a;{n % 3}';1.23{n % 10},5\n" for n in range(50)), "1;b;-\n"]
    path, notes = write(tmp_path / "log.csv", "".join(lines)), list[str]()
    sample = sampled(path, on_note=notes.append)
    assert "read with separator ';', quote \"'\", nulls ('-',), decimal ',', grouping '.'" in notes[0]
    given = parse_spec(SpecDraft(str(path), guess_log(sample, "y"), dialect=sample.dialect).text()).input
    assert (given.separator, given.quote, given.escape, given.nulls) == (";", "'", None, ("-",))
    # The spec's dialect holds where the first lines tell another one, or nothing.
    short = write(tmp_path / "short.csv", "y;text;price\n1;'x;y';-\n0;z;2,5\n")
    header = Header(dialect=Dialect.of(given))
    assert read(short, ["text", "price"], header=header).rows == [(b"x;y", b""), (b"z", b"2.5")]
    assert read(short, ["text"]).rejects == [(2, "wrong number of columns: got 4, expected 3")]


def test_a_quote_in_tsv_is_a_byte_unless_cells_are_quoted(tmp_path: Path) -> None:
    path = write(tmp_path / "log.tsv", 'y\ta\n1\t"hello" she said\n0\t"open\n1\t5"\n')
    assert read(path, ["a"]).rows == [(b'"hello" she said',), (b'"open',), (b'5"',)]
    path = write(tmp_path / "log.tsv", '"y"\t"a"\n1\t"x\ty"\n0\t"say ""hi"""\n')
    assert read(path, ["a"]).rows == [(b"x\ty",), (b'say "hi"',)]


def test_a_first_cell_may_be_long(tmp_path: Path) -> None:
    path = write(tmp_path / "log.tsv", f"1\t{'word ' * 30_000}\ta1\n" + "0\tword\ta1\n" * 20)
    assert len(read(path, ["c2"], header=Header(is_absent=True)).rows) == 21


def test_escapes_at_the_ends_of_blocks(tmp_path: Path) -> None:
    rows = [(b"1", b"a,\\b"), (b"0", b'q"\n"'), (b"1", b""), (b"0", b"\\N!")] * 3
    escaped = {b"\\": b"\\\\", b",": b"\\,", b'"': b'\\"', b"\n": b"\\\n"}
    text = b"y,a\n"
    for label, cell in rows:
        cell = b"".join(escaped.get(bytes([byte]), bytes([byte])) for byte in cell) or b"\\N"
        text += label + b"," + cell + b"\n"
    path = write(tmp_path / "log.csv", text)
    for batch_bytes in (1, 7, 30, 4096):
        assert read(path, ["y", "a"], batch_bytes=batch_bytes).rows == rows
