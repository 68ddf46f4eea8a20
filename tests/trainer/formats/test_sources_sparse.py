"""Vowpal Wabbit, libsvm and libffm text: what a line means, what is no line, and how columns come about."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from model_store.errors import InputError, SpecError
from model_store.spec.spec import parse_spec
from tests.trainer.formats import sparse_text
from tests.trainer.formats.reading import Everything, read, write
from tests.trainer.inspect.planted import sampled
from trainer.examples.open_log import Log, open_log
from trainer.formats.cells import parse_labels
from trainer.formats.reader import LogReader
from trainer.inspect.guesses import guess_log

HEAD = '[model]\nname = "m"\n[input]\nlabel = "label"\n'


def plain(value: Any) -> Any:
    """A cell as Python has it: bytes as text, a map as pairs."""
    if isinstance(value, list):
        return [(member.decode(), x) for member, x in value]
    return value.decode() if isinstance(value, bytes) else value


def rows_of(everything: Everything, wanted: list[str]) -> list[dict[str, Any]]:
    return [dict(zip(wanted, map(plain, row), strict=True)) for row in everything.rows]


def test_a_vw_line_has_a_label_an_importance_a_tag_and_namespaces(tmp_path: Path) -> None:
    lines = (
        "1 2.5 'first|user age:25 new |ad:0.5 shoes price:3\n-1 | plain |user old\n0 1 0 second|ad x\n+1.0 |\n"
        "1 |user x:2|ad y|user z\tx\r\n"  # one may come twice and need no blank before its bar
    )
    path = write(tmp_path / "log.vw", lines)
    with LogReader([str(path)]) as reader:
        assert reader.columns() == ("label", "importance", "tag", "user", "ad", "features")
    wanted = ["label", "importance", "tag", "features", "user", "ad"]
    assert [tuple(row.values()) for row in rows_of(read(path, wanted), wanted)] == [
        (1, 2.5, "first", [], [("age", 25.0), ("new", 1.0)], [("shoes", 0.5), ("price", 1.5)]),
        (0, None, "", [("plain", 1.0)], [("old", 1.0)], []),
        (0, 1.0, "second", [], [], [("x", 1.0)]),
        (1, None, "", [], [], []),
        (1, None, "", [], [("x", 2.0), ("z", 1.0), ("x", 1.0)], [("y", 1.0)]),
    ]


def test_a_namespace_called_like_another_column_keeps_its_bar(tmp_path: Path) -> None:
    path = write(tmp_path / "log.vw", "1 'id|tag a |features b |label c | d\n")
    wanted = ["tag", "|tag", "|features", "|label", "features"]
    with LogReader([str(path)]) as reader:
        assert reader.columns()[3:] == ("|tag", "|features", "|label", "features")
    [row] = read(path, wanted).rows
    assert row == (b"id", [(b"a", 1.0)], [(b"b", 1.0)], [(b"c", 1.0)], [(b"d", 1.0)])


POSITIVE = "; input.positive names other values that are a click"
NO_LABEL = "before the first |, expected 1, 0 or -1; a word that touches | is the tag"
TOO_MANY = "too many words: got '4', expected at most label, importance, base and 'tag before the first |"
BAD_VW: list[tuple[str | bytes, str]] = [
    *(
        (f"{label} |a x", f"bad label: got '{label}', expected 1, 0 or -1{POSITIVE}")
        for label in ("2", "yes", "nan")
    ),
    *(
        (f"1 |a {each}", f"not a number: got '{each}'")
        for each in ["x:", "x:nan", "x:-inf", "x:1_000", "x:0x1p3", "x:1e", "x:1:2"]
    ),
    ("|a x", f"no label: got '' {NO_LABEL}"),
    ("1|a x", f"no label: got '1' {NO_LABEL}"),
    ("1 a b c", "no namespace: got '1 a b c', expected a | before the features"),
    ("1 2 0 4 |a x", TOO_MANY),
    ("1 heavy |a x", "not a number: got 'heavy'"),
    ("1 1 0.5 |a x", "initial prediction: got '0.5', which is not learned from; expected 0 or none"),
    ("1 |a:big x", "not a number: got 'a:big'"),
    ("1 |:2 x", "not a number: got ':2'"),
    ("1 |a :2", "no feature name: got ':2', expected a name before the colon"),
    (b"1 |a caf\xe9", "invalid UTF-8: a NUL, or no UTF-8, at byte 9 of the line"),
    (b"1 |a \xed\xa0\x80", "invalid UTF-8: a NUL, or no UTF-8, at byte 6 of the line"),
    (b"1 |a x\0y", "invalid UTF-8: a NUL, or no UTF-8, at byte 7 of the line"),
]


def test_a_bad_vw_line_is_rejected_with_its_line_and_reason(tmp_path: Path) -> None:
    for line, reason in BAD_VW:
        bad = line if isinstance(line, bytes) else line.encode()
        path = write(tmp_path / "log.vw", b"1 |a caf\xc3\xa9\n\n \t\n" + bad + b"\n0 |a y:1e3\n")
        everything = read(path, ["label", "a"])
        assert everything.rejects == [(4, reason)] and everything.lines == [1, 5]
        assert everything.rows == [(1, [("café".encode(), 1.0)]), (0, [(b"y", 1000.0)])]


def test_a_libsvm_line_has_a_label_a_query_and_features(tmp_path: Path) -> None:
    path = write(tmp_path / "log.svm", "# made by hand\n+1 qid:7 1:0.5 0020:-2e1 # note: 9:9\n-1 3:1\n0\n")
    with LogReader([str(path)]) as reader:
        assert reader.columns() == ("label", "qid", "features")
    everything = read(path, ["label", "qid", "features"])
    rows = [(1, b"7", [(b"1", 0.5), (b"20", -20.0)]), (0, b"", [(b"3", 1.0)]), (0, b"", [])]
    assert (everything.rows, everything.lines) == (rows, [2, 3, 4])


def test_a_libffm_line_has_one_column_a_field(tmp_path: Path) -> None:
    path = write(tmp_path / "log.ffm", "1 0:12:0.5 11:7:1 0:13:2\n0 011:008:1\n")
    with LogReader([str(path)]) as reader:
        assert reader.columns() == ("label", "0", "11")
    rows = read(path, ["0", "11"]).rows
    assert rows == [([(b"12", 0.5), (b"13", 2.0)], [(b"7", 1.0)]), ([], [(b"8", 1.0)])]


def test_a_bad_line_of_indices_is_rejected(tmp_path: Path) -> None:
    bad = {
        "malformed feature": ("log.svm color:1 -3:1 3 qid:", "log.ffm 3:1 a:1:1 3:b:1"),
        "not a number": ("log.svm 3:x 3:1:1", "log.ffm 3:1: 3:1:inf"),
    }
    for reason, (name, *words) in ((why, each.split()) for why, formats in bad.items() for each in formats):
        good = {"log.svm": "1 3:1", "log.ffm": "1 3:1:1"}[name]
        for word in words:
            everything = read(write(tmp_path / name, f"{good}\n1 {word}\n{good}\n"), ["label"])
            assert (everything.lines, everything.rejects) == ([1, 3], [(2, f"{reason}: got '{word}'")])


NUMBERS = st.one_of(
    st.sampled_from(
        ["1", "0", "-0", "+2.50", ".5", "7.", "1e3", "1E-2", "00012", "1e400", "1e-400", "x", "", "nan"]
    ),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.integers(-(10**25), 10**25).map(str),
    st.tuples(st.integers(0, 10**20), st.integers(0, 10**20), st.integers(-40, 40)).map(
        lambda parts: f"{parts[0]}.{parts[1]}e{parts[2]}"
    ),
)
BLANKS = st.sampled_from([" ", "  ", "\t", " \r"])
LABELS = st.sampled_from(["1", "-1", "0", "+1", "1.0", "2", "", "x", "1e0"])
VW_FEATURE = st.tuples(
    BLANKS,
    st.sampled_from(["x", "y", "ü", "x=1", "", "z" * 9]),
    st.one_of(st.just(""), NUMBERS.map(":{}".format)),
).map("".join)
VW_NAMESPACE = st.tuples(
    st.sampled_from(["|a", "|b", "|", "|tag", " |a", "|other"]),
    st.one_of(st.just(""), NUMBERS.map(":{}".format)),
    st.lists(VW_FEATURE, max_size=4).map("".join),
).map("".join)
VW_LINE = st.tuples(
    LABELS,
    st.lists(st.tuples(BLANKS, NUMBERS).map("".join), max_size=3).map("".join),
    st.sampled_from(["", " ", " 'id", " id", " 'i d "]),
    st.lists(VW_NAMESPACE, max_size=3).map("".join),
).map("".join)
INDEX = st.sampled_from(["0", "1", "007", "12345678901", "a", "", "-1", "qid"])


def index_line(parts: int) -> st.SearchStrategy[str]:
    word = st.tuples(BLANKS, st.lists(INDEX, min_size=parts, max_size=parts).map(":".join), NUMBERS).map(
        lambda found: f"{found[0]}{found[1]}:{found[2]}"
    )
    comment = st.sampled_from(["", " # 3:x", "#", "\r"])
    return st.tuples(LABELS, st.lists(word, max_size=4).map("".join), comment).map("".join)


@pytest.mark.parametrize(
    ("format", "line", "wanted"),
    [
        ("vw", VW_LINE, ["label", "importance", "tag", "features", "a", "b", "|tag"]),
        ("libsvm", index_line(1), ["label", "qid", "features"]),
        ("libffm", index_line(2), ["label", "0", "1", "7"]),
    ],
)
def test_every_line_means_what_the_slow_reading_says_wherever_the_blocks_fall(scratch, format, line, wanted):
    first = {"vw": "1 | f", "libsvm": "1 1:1", "libffm": "1 1:1:1"}[format]
    parse = getattr(sparse_text, format)

    @given(st.lists(line, max_size=8), st.sampled_from([1, 30, 1 << 20]), st.sampled_from(["\n", "\r\n"]))
    @example([" 1e-400 1|a"], 30, "\n")
    def check(lines: list[str], batch_bytes: int, end: str) -> None:
        path = write(scratch / f"log.{format}", end.join([first, *lines]))
        good, bad = [], []
        for number, text in enumerate([first, *lines], 1):
            try:
                row = parse(text)
            except sparse_text.Bad:
                bad.append(number)
                continue
            if row is not None:
                good.append((number, {name: row.get(name, []) for name in wanted}))
        everything = read(path, wanted, batch_bytes=batch_bytes)
        assert [line for line, _ in everything.rejects] == bad
        found = list(zip(everything.lines, rows_of(everything, wanted), strict=True))
        assert repr(found) == repr(good)  # an infinite x times 0 is not a number, which equals nothing

    check()


MEMBERS = st.text(st.characters(exclude_characters=" \t\r\n|:\0", exclude_categories=["Cs"]), min_size=1)
REALS = st.floats(-1e24, 1e24)
WRITTEN = st.fixed_dictionaries(
    {
        "label": st.integers(0, 1),
        "importance": st.floats(0, 1e6),
        "a": st.lists(st.tuples(MEMBERS, REALS)),
        "b": st.lists(st.tuples(MEMBERS, REALS)),
    }
)


@given(st.lists(WRITTEN, min_size=1, max_size=5), st.sampled_from([50, 1 << 20]))
def test_rows_written_as_vw_text_are_read_back_to_the_bit(scratch, rows, batch_bytes):
    lines = []
    for row in rows:
        spaces = ["|" + name + "".join(f" {member}:{x!r}" for member, x in row[name]) for name in "ab"]
        lines.append(f"{row['label']} {row['importance']!r} {' '.join(spaces)}")
    path, wanted = write(scratch / "written.vw", "\n".join(lines)), list(rows[0])
    assert rows_of(read(path, wanted, batch_bytes=batch_bytes), wanted) == rows


VW_TEXT = b"".join(b"%d |site s%d |f x:%d\n" % (i % 2, i % 7, i) for i in range(2000))


@pytest.mark.parametrize(
    ("name", "data"),
    [("log.vw.gz", gzip.compress(VW_TEXT)), ("log", VW_TEXT), ("log.txt", b"\xef\xbb\xbf" + VW_TEXT)],
)
def test_compression_and_format_are_told_apart(tmp_path: Path, name: str, data: bytes) -> None:
    everything = read(write(tmp_path / name, data), ["site"], batch_bytes=10_000)
    assert everything.rows == [([(b"s%d" % (i % 7), 1.0)],) for i in range(2000)]
    assert everything.lines == list(range(1, 2001))


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("-1 0.5 'tag |a b,c:1\n", ("label", "importance", "tag", "a")),
        ("1 1:0.5\t7:1 # c\n", ("label", "qid", "features")),
        ("0 qid:3 1:0.5\n", ("label", "qid", "features")),
        ("# Generated by scikit-learn\n#\n\n1 1:0.5\n0 2:1\n", ("label", "qid", "features")),
        ("#id,clicked\n1,0\n", ("#id", "clicked")),
        ("1 0:1:0.5 1:7:1\n", ("label", "0", "1")),
        ("a|b,c\n1,2\n", ("a|b", "c")),
        ("1 |a\tb\n0\t1\n", ("label", "importance", "tag", "a")),
    ],
)
def test_standard_input_is_told_by_its_first_line(monkeypatch, text: str, columns: tuple[str, ...]) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    with LogReader(["-"]) as reader:
        assert reader.columns() == columns


def test_a_file_without_a_good_line_and_a_column_that_no_row_can_have_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "log.vw", "\nclick,site\n1,2\n")
    with pytest.raises(InputError, match=r"found no row of vw text; line 2: no namespace: got 'click,site'"):
        read(path, ["label"])
    path = write(tmp_path / "log.svm", "1 1:1\n")
    with pytest.raises(SpecError, match="has no column 'site'; it has label, qid, features"):
        read(path, ["site"])


def test_a_namespace_that_comes_late_is_read_if_wanted_and_else_told_once(tmp_path: Path) -> None:
    rows = "\n".join(["1 |a x"] * 100 + ["0 |b y |c z", "1 |c z |d z"])
    paths, notes = [write(tmp_path / name, rows) for name in ("1.vw", "2.vw")], list[str]()
    with LogReader([str(path) for path in paths], batch_bytes=200, on_note=notes.append) as reader:
        assert reader.columns() == ("label", "importance", "tag", "a") and reader.may_have("b")
        found = [value for batch in reader.batches(["a", "b"]) for value in batch.columns["b"].to_pylist()]
    assert [value for value in found if value] == [[(b"y", 1.0)]] * 2
    assert notes == [
        f"{paths[0]}:101 names 'c', which the first rows do not: it is left out, and so are others that come so late; "
        "name them in [fields] to learn from them"
    ]


def test_a_spec_without_fields_takes_namespaces_as_sets_and_the_importance_as_weight(tmp_path: Path) -> None:
    with LogReader([str(write(tmp_path / "log.vw", "1 2 'id|a x |b y\n"))]) as reader:
        spec, ignored = (
            parse_spec(HEAD + more).resolve(reader.columns(), reader.kinds())
            for more in ("", 'ignore = ["importance", "b"]\n')
        )
    assert {name: field.kind for name, field in spec.fields.items()} == {"a": "set", "b": "set"}
    assert spec.input.weight == "importance"
    assert (list(ignored.fields), ignored.input.weight) == (["a"], None)


def test_an_initial_prediction_of_zero_is_one_however_it_is_written(tmp_path: Path) -> None:
    zeros = ["0", "-0", "0.000", "0e9", "0e-400", "00000000000000000000000.0"]
    others = ["1", "1e-400", "0.000000000000000000000000001", "-2e3"]
    path = write(tmp_path / "log.vw", "".join(f"1 1 {base} |a f\n" for base in (*zeros, *others)))
    assert [line for line, _ in read(path, ["label"]).rejects] == [7, 8, 9, 10]


@pytest.mark.parametrize(("suffix", "rest"), [("vw", "|a x"), ("svm", "1:1"), ("ffm", "1:1:1")])
def test_positive_names_the_labels_of_sparse_text_that_are_clicks(
    tmp_path: Path, suffix: str, rest: str
) -> None:
    labels = ["2", "skipped", "+1", "1", "2.0"]
    path = write(tmp_path / f"log.{suffix}", "".join(f"{label} {rest}\n" for label in [*labels, "1:2"]))
    spec = parse_spec(HEAD + 'positive = ["2", "+1"]\n')
    with open_log(Log([str(path)]), spec) as opened:
        (batch,) = opened.batches()
    labels, bad = parse_labels(batch.columns["label"], list(spec.input.positive))
    assert (labels.tolist(), bad) == ([1, 0, 1, 0, 1], [])  # 2.0 spells 2
    assert [(each.line, each.category) for each in batch.rejects] == [(6, "bad label")]
    path = write(tmp_path / f"log.{suffix}", "".join(f"{1 + (row % 3 == 0)} {rest}\n" for row in range(30)))
    sample = sampled(path)
    (label,) = (guess for guess in guess_log(sample) if guess.role == "label")
    assert label.positive == "2"


def test_a_vw_line_to_be_scored_needs_no_label(tmp_path: Path) -> None:
    text = "|a x y\n| z\n'tag |a x\ntag|a y\n  |a q\n1 |a w\n1 2 'kept|a v\nbad |a u\n\n|a s\n"
    path = write(tmp_path / "log.vw", text)
    everything = read(path, ["a", "tag"], unlabelled=True)
    assert ["".join(name.decode() for name, _ in members) for members, _ in everything.rows] == [
        *("xy", "", "x", "y", "q", "w", "v", "s")
    ]
    assert [tag for _, tag in everything.rows if tag] == [b"tag", b"tag", b"kept"]
    assert (everything.lines, everything.rejects[0][0]) == ([1, 2, 3, 4, 5, 6, 7, 10], 8)
    assert len(read(path, ["a"]).rejects) == 7
