"""Labels of any two values, and clicks of views: the same examples as a log of plain labels and weights gives."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrie.cli import run
from model_store.errors import SpecError
from model_store.spec.sections import InputSection
from model_store.spec.spec import ModelSpec, parse_spec
from trainer.examples.hashing import Examples
from trainer.examples.open_log import Log, open_log
from trainer.formats.cells import clicked, label_columns, parse_counts, parse_labels
from trainer.formats.rejects import RejectLog
from trainer.runs.train import Run, train

FIELDS = "[fields]\nad = {}\nsites = { kind = 'set' }\n[[crosses]]\nfields = ['ad', 'sites']\n"


PLAIN, WEIGHTED = 'label = "y"', 'label = "y"\nweight = "w"'
GIVEN = 'label = "clicks"\nviews = "views"'


def toml(given: str, learner: str = "l1 = 0.1") -> str:
    return f'[model]\nname = "m"\n[input]\n{given}\n{FIELDS}[learner]\n{learner}\n'


def spec(given: str, learner: str = "l1 = 0.1") -> ModelSpec:
    return parse_spec(toml(given, learner))


def learned(log: Path, given: str, rejected: Path | None = None) -> Run:
    with RejectLog(rejected) as rejects:
        return train(spec(given), Log([str(log)]), rejects=rejects, threads=2)


def figures(ran: Run) -> tuple[Any, ...]:
    artefact = ran.model.artefact()
    weights = artefact.key_data.tobytes(), artefact.key_offsets.tolist(), artefact.weight.tolist()
    return weights, ran.report.rows, ran.report.labels, ran.report.variants


def examples(log: Path, given: str, learner: str = "l1 = 0.1") -> list[Examples]:
    with open_log(Log([str(log)]), spec(given, learner)) as opened, opened.examples(1) as stream:
        return list(stream)


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_values_that_are_a_click_are_named_all_others_are_none() -> None:
    column = pa.array([b"clicked", b"skipped", b"", b"Clicked", b"bought"], pa.binary())
    assert parse_labels(column, "clicked")[0].tolist() == [1, 0, 0, 0, 0]
    labels, bad = parse_labels(column, ("clicked", "bought"))
    assert (labels.tolist(), bad) == ([1, 0, 0, 0, 1], [])
    assert [row for row, _ in parse_labels(pa.array([["a"], ["b"]]), "a")[1]] == [0, 1]  # a list is no label


def test_a_value_is_compared_by_its_text_in_any_type() -> None:
    words = pa.array(["yes", "no", None, "yes"])
    for column, positive in (
        (pa.array([2, 1, None, 2]), "2"),
        (pa.array([2.0, 1.0, None, 2.0]), "2"),
        (pa.array([True, False, None, True]), "true"),
        (words, "yes"),
        (words.dictionary_encode(), "yes"),
    ):
        assert parse_labels(column, positive) == (pytest.approx([1, 0, 0, 1]), [])


def test_an_unknown_label_names_the_column_the_value_and_the_remedy(tmp_path: Path) -> None:
    log = write(tmp_path / "log.csv", "outcome,ad,sites", "1,a,x", "clicked,b,y")
    ran = learned(log, 'label = "outcome"', tmp_path / "rejects")
    (reject,) = map(json.loads, (tmp_path / "rejects").read_text().splitlines())
    assert ran.report.reasons == {"outcome": 1}
    assert reject["reason"] == (
        "outcome: got 'clicked', expected 1, 0, -1, true or false; input.positive names other values that are a click"
    )


def test_a_log_of_two_values_teaches_what_one_of_1_and_0_does(tmp_path: Path) -> None:
    random, logs = np.random.default_rng(3), []
    rows = [(random.random() < 0.3, f"a{random.integers(5)}") for _ in range(200)]
    for name, words in (("plain", "01"), ("words", ("viewed", "bought"))):
        lines = [f'{words[y]},{ad},"x,y"' for y, ad in rows]
        logs.append(write(tmp_path / f"{name}.csv", "y,ad,sites", *lines))
    positive = 'label = "y"\npositive = ["clicked", "bought"]'
    assert figures(learned(logs[1], positive)) == figures(learned(logs[0], PLAIN))


def test_a_value_that_never_occurs_is_warned_of_and_an_empty_one_is_no_click(tmp_path: Path) -> None:
    log = write(tmp_path / "log.csv", "y,ad,sites", "viewed,a,x", "clicked,b,y")
    (warning, *_) = learned(log, 'label = "y"\npositive = "click"').report.warnings
    assert warning == "no row is a click: input.positive = 'click' occurs in none of 2 rows of column 'y'"
    for empty in ('positive = ""', "positive = []", 'positive = ["a", ""]'):
        with pytest.raises(SpecError, match="positive: expected values that are not empty"):
            spec(f'label = "y"\n{empty}')


COUNTS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 3)), max_size=20)


@given(rows=COUNTS)
def test_a_row_of_counts_is_its_clicks_and_its_other_views(rows, tmp_path_factory):
    """Against rows written out one by one: same order, labels, weights and hashes."""
    counted, written = counts(tmp_path_factory.getbasetemp(), rows)
    found = examples(counted, GIVEN + '\nweight = "w"')
    got = [each.hashed for each in found]
    expected = [each.hashed for each in examples(written, WEIGHTED)]
    for name in ("labels", "weights", "hashes"):
        assert [getattr(e, name).tolist() for e in got] == [getattr(e, name).tolist() for e in expected]
    assert sum(e.counts.doubled for e in found) == sum(
        clicks > 0 and others > 0 for clicks, others, _ in rows
    )


def test_a_click_weighs_by_how_few_look_where_it_was_and_a_position_that_is_none_rejects_its_row(
    tmp_path: Path,
) -> None:
    given = 'label = "y"\nweight = "w"\nposition = "p"\nexamination = [1.0, 0.5, 0.25]'
    lines = ["1,1,1", "0,1,2", "1,3,2", "1,1,7", "0,1,", "1,1,0", "1,1,1.5", "1,1,", "1,1,x"]
    log = write(tmp_path / "log.csv", "y,w,p,ad,sites", *(f"{line},a,s" for line in lines))
    (found,) = examples(log, given)
    assert found.hashed.weights.tolist() == [1.0, 1.0, 6.0, 4.0, 1.0]
    assert [each.reason for each in found.rejects] == [
        *(f"p: got {value}, expected a position: 1, 2, …" for value in ("0", "1.5")),
        "p: missing, expected a position: 1, 2, …",
        "p: got 'x', expected a number",
    ]
    counted = write(tmp_path / "counts.csv", "clicks,views,p,ad,sites", "2,5,2,a,s")
    (found,) = examples(counted, GIVEN + '\nposition = "p"\nexamination = [1.0, 0.5]')
    assert (found.hashed.labels.tolist(), found.hashed.weights.tolist()) == ([1.0, 0.0], [4.0, 3.0])


def counts(folder: Path, rows: Iterable[tuple[int, int, int]]) -> tuple[Path, Path]:
    """Rows of clicks, other views and a weight as a log of counts, and written out as a log of weighted labels."""
    short, long = ["clicks,views,w,ad,sites"], ["y,w,ad,sites"]
    for number, (clicks, others, weight) in enumerate(rows):
        features = f"a{number % 9},s{number % 4}"
        short.append(f"{clicks},{clicks + others},{weight},{features}")
        if clicks:
            long.append(f"1,{clicks * weight},{features}")
        if others or not clicks:
            long.append(f"0,{others * weight},{features}")
    return write(folder / "counts.csv", *short), write(folder / "written.csv", *long)


def write_counts(folder: Path) -> tuple[Path, Path]:
    random = np.random.default_rng(5)
    views = random.integers(0, 40, 200)
    clicks = random.binomial(views, 0.2)
    return counts(folder, [(int(c), int(v - c), 1) for c, v in zip(clicks, views, strict=True)])


def test_counts_teach_and_are_judged_like_weighted_rows(tmp_path: Path) -> None:
    counted, written = write_counts(tmp_path)
    assert figures(learned(counted, GIVEN)) == figures(learned(written, WEIGHTED))


def test_counts_that_cannot_be_are_rejected_with_the_reason() -> None:
    clicks, views = pa.array([b"3", b"1", b"", b"-1", b"1.5", b"2"]), pa.array([2, 1, 5, 5, 5, None])
    got, shown, bad_clicks, bad_views = parse_counts(clicks, views)
    assert dict(bad_clicks) == {
        0: "got 3 clicks of 2 views, expected at most as many as views",
        2: "got no value, expected a whole number >= 0",
        3: "got -1, expected a whole number >= 0",
        4: "got 1.5, expected a whole number >= 0",
    }
    assert dict(bad_views) == {5: "got no value, expected a whole number >= 0"}
    assert (got[1], shown[1]) == (1.0, 1.0)


def test_rejected_counts_are_named_by_their_column(tmp_path: Path) -> None:
    lines = ("clicks,views,ad,sites", "1,3,a,x", "5,3,b,y", "many,3,b,y", "1,x,b,y")
    ran = learned(write(tmp_path / "log.csv", *lines), GIVEN)
    assert ran.report.reasons == {"clicks": 2, "views": 1}
    assert ran.withheld.startswith("3 rows were rejected, 75 % of those read")


def test_a_run_over_counts_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    counted, _ = write_counts(tmp_path)
    lines = counted.read_text().splitlines()
    given, begun = write(tmp_path / "spec.toml", toml(GIVEN)), tmp_path / "growing.csv"

    def learn(checkpoints: str, save: str) -> bytes:
        flags = [f"--checkpoint={tmp_path / checkpoints}", "--resume", f"--save={tmp_path / save}"]
        assert run(["train", str(given), str(begun), *flags]) == 0
        return (tmp_path / save).read_bytes()

    write(begun, *lines[:100])
    learn("parts", "part.arrow")
    write(begun, *lines)
    assert learn("parts", "resumed.arrow") == learn("whole", "whole.arrow")


def test_predictions_have_one_line_for_each_row_of_counts(tmp_path: Path) -> None:
    predicted = []
    for section, log in zip((GIVEN, WEIGHTED), write_counts(tmp_path), strict=True):
        spec, model, out = (tmp_path / f"{log.stem}.{end}" for end in ("toml", "arrow", "out"))
        write(spec, toml(section))
        assert run(["train", str(spec), str(log), f"--save={model}"]) == 0
        assert run(["evaluate", str(model), str(log), f"--predictions={out}"]) == 0
        predicted.append([cells(log), cells(out)])
    (counted, got), (written, expected) = predicted
    assert got[0] == ['"file"', '"line"', '"label"', '"views"', '"score"', '"ctr"', '"uncertainty"']
    assert [line[2:4] for line in got[1:]] == [row[:2] for row in counted[1:]]
    by_features = {tuple(row[2:]): line[3] for row, line in zip(written[1:], expected[1:], strict=True)}
    assert [line[4] for line in got[1:]] == [by_features[tuple(row[3:])] for row in counted[1:]]


def cells(log: Path) -> list[list[str]]:
    return [line.split(",") for line in log.read_text().splitlines()]


ITEMS = [{"id": "p", "ad": "a1", "sites": ["x"]}, {"id": "q", "ad": "a2", "sites": ["y"]}]


@pytest.mark.parametrize("given", ["", 'positive = ["bought", "b"]', 'views = "shown"'])
def test_joined_rows_are_labelled_as_a_log_of_the_spec_would_be(given: str, tmp_path: Path) -> None:
    impressions = [{"request_id": f"r{n}", "ts": 1000 + n, "items": ITEMS} for n in range(3)]
    events = [*impressions, {"request_id": "r1", "ts": 1003, "item": "q"}]
    (made,) = examples(write(tmp_path / "events.jsonl", *map(json.dumps, events)), f"{PLAIN}\n{given}")
    assert made.hashed.labels.tolist() == [0, 0, 0, 1, 0, 0]
    assert made.hashed.weights.tolist() in ([], [1.0] * 6) and made.counts.doubled == 0


def test_labels_are_read_as_they_are_written() -> None:
    for way in ({}, {"positive": ("yes", "si")}, {"views": "v"}):
        section = InputSection(label="y", **way)
        for clicks in ([], [True], [False, True, True, False]):
            assert clicked(label_columns(section, np.array(clicks, bool)), section).tolist() == clicks


def test_a_log_of_counts_may_be_sampled_by_requests(tmp_path: Path) -> None:
    """A request with any click is kept whole."""
    counted, _ = write_counts(tmp_path)
    sampled = examples(counted, GIVEN, "subsample = { unclicked = 0.1 }")
    assert sum(each.counts.subsampled for each in sampled)
    kept = sum(float(each.hashed.weights[each.hashed.labels == 1].sum()) for each in sampled)
    assert kept == sum(int(row[0]) for row in cells(counted)[1:])
