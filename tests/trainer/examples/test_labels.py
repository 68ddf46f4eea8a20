"""Labels of any two values, and clicks of views: the same examples as a log of plain labels and weights gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrie.cli import run
from model_store.errors import SpecError
from model_store.features.cells import clicked, label_columns, parse_counts, parse_labels
from model_store.spec.sections import InputSection
from model_store.spec.spec import ModelSpec, parse_spec
from trainer.examples.hashing import ExampleMaker, Examples
from trainer.examples.open_log import Log, open_log
from trainer.learn.model import LearningModel
from trainer.logs.rejects import RejectLog
from trainer.runs.train import Run, train

FIELDS = "[fields]\nad = {}\nsites = { kind = 'set' }\n[[crosses]]\nfields = ['ad', 'sites']\n"
LEARNER = "[learner]\nl1 = 0.1\n"


def spec(given: str) -> ModelSpec:
    return parse_spec(f'[model]\nname = "m"\n[input]\n{given}\n{FIELDS}{LEARNER}')


def learned(log: Path, given: str, **options: Any) -> Run:
    with RejectLog() as rejects:
        return train(spec(given), Log([str(log)], **options), rejects=rejects, threads=2)


def figures(ran: Run) -> tuple[Any, ...]:
    artefact = ran.model.artefact()
    weights = artefact.key_data.tobytes(), artefact.key_offsets.tolist(), artefact.weight.tolist()
    return weights, ran.report.rows, ran.report.labels, ran.report.variants


# --- Two values ---


def test_values_that_are_a_click_are_named_all_others_are_none() -> None:
    column = pa.array([b"clicked", b"skipped", b"", b"Clicked", b"bought"], pa.binary())
    assert parse_labels(column, "clicked")[0].tolist() == [1, 0, 0, 0, 0]
    labels, bad = parse_labels(column, ("clicked", "bought"))
    assert (labels.tolist(), bad) == ([1, 0, 0, 0, 1], [])


@pytest.mark.parametrize(
    ("column", "positive"),
    [
        (pa.array([2, 1, None, 2]), "2"),
        (pa.array([2.0, 1.0, None, 2.0]), "2"),
        (pa.array([True, False, None, True]), "true"),
        (pa.array(["yes", "no", None, "yes"]), "yes"),
        (pa.array(["yes", "no", None, "yes"]).dictionary_encode(), "yes"),
    ],
)
def test_a_value_is_compared_by_its_text_in_any_type(column: Any, positive: str) -> None:
    assert parse_labels(column, positive) == (pytest.approx([1, 0, 0, 1]), [])


def test_a_list_is_no_label() -> None:
    assert [row for row, _ in parse_labels(pa.array([["a"], ["b"]]), "a")[1]] == [0, 1]


def test_an_unknown_label_names_the_column_the_value_and_the_remedy(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("outcome,ad,sites\n1,a,x\nclicked,b,y\n")
    ran = learned(log, 'label = "outcome"')
    with RejectLog(tmp_path / "rejects") as rejects:
        train(spec('label = "outcome"'), Log([str(log)]), rejects=rejects)
    (reject,) = map(json.loads, (tmp_path / "rejects").read_text().splitlines())
    assert ran.report.reasons == {"outcome": 1}
    assert reject["reason"] == (
        "outcome: got 'clicked', expected 1, 0, -1, true or false; input.positive names other values that are a click"
    )


def test_a_log_of_two_values_teaches_what_one_of_1_and_0_does(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    rows = [(int(random.random() < 0.3), f"a{random.integers(5)}", "x,y") for _ in range(500)]
    plain, words = tmp_path / "plain.csv", tmp_path / "words.csv"
    plain.write_text("y,ad,sites\n" + "".join(f'{y},{ad},"{sites}"\n' for y, ad, sites in rows))
    words.write_text(
        "y,ad,sites\n" + "".join(f'{"bought" if y else "viewed"},{ad},"{sites}"\n' for y, ad, sites in rows)
    )
    positive = 'label = "y"\npositive = ["clicked", "bought"]'
    assert figures(learned(words, positive)) == figures(learned(plain, 'label = "y"'))


def test_a_value_that_never_occurs_is_warned_of(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("y,ad,sites\nviewed,a,x\nclicked,b,y\n")
    (warning, *_) = learned(log, 'label = "y"\npositive = "click"').report.warnings
    assert warning == "no row is a click: input.positive = 'click' occurs in none of 2 rows of column 'y'"


@pytest.mark.parametrize("given", ['positive = ""', "positive = []", 'positive = ["a", ""]'])
def test_an_empty_value_is_no_click(given: str) -> None:
    with pytest.raises(SpecError, match="positive: expected values that are not empty"):
        spec(f'label = "y"\n{given}')


# --- Clicks of views ---

COUNTS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 3)), max_size=20)


@given(rows=COUNTS)
def test_a_row_of_counts_is_its_clicks_and_its_other_views(
    rows: list[tuple[int, int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Against rows written out one by one: same order, labels, weights and hashes."""
    folder = tmp_path_factory.getbasetemp()
    counted, written = folder / "counts.csv", folder / "written.csv"
    with counted.open("w") as short, written.open("w") as long:
        short.write("clicks,views,w,ad,sites\n")
        long.write("y,w,ad,sites\n")
        for number, (clicks, others, weight) in enumerate(rows):
            features = f"a{number % 3},s{number % 2}"
            short.write(f"{clicks},{clicks + others},{weight},{features}\n")
            if clicks:
                long.write(f"1,{clicks * weight},{features}\n")
            if others or not clicks:
                long.write(f"0,{others * weight},{features}\n")
    got = examples(counted, 'label = "clicks"\nviews = "views"\nweight = "w"')
    expected = examples(written, 'label = "y"\nweight = "w"')
    assert [e.hashed.labels.tolist() for e in got] == [e.hashed.labels.tolist() for e in expected]
    assert [e.hashed.weights.tolist() for e in got] == [e.hashed.weights.tolist() for e in expected]
    assert [e.hashed.hashes.tolist() for e in got] == [e.hashed.hashes.tolist() for e in expected]
    assert sum(e.doubled for e in got) == sum(clicks > 0 and others > 0 for clicks, others, _ in rows)


def examples(log: Path, given: str) -> list[Examples]:
    with open_log(Log([str(log)]), spec(given)) as opened, opened.examples(1) as stream:
        return list(stream)


def write_counts(folder: Path, rows: int = 300) -> tuple[Path, Path]:
    random = np.random.default_rng(5)
    counted, written = folder / "counts.csv", folder / "written.csv"
    with counted.open("w") as short, written.open("w") as long:
        short.write("clicks,views,ad,sites\n")
        long.write("y,w,ad,sites\n")
        for _ in range(rows):
            views = int(random.integers(0, 40))
            clicks = int(random.binomial(views, 0.2))
            features = f"a{random.integers(9)},s{random.integers(4)}"
            short.write(f"{clicks},{views},{features}\n")
            if clicks:
                long.write(f"1,{clicks},{features}\n")
            if views > clicks or not clicks:
                long.write(f"0,{views - clicks},{features}\n")
    return counted, written


GIVEN = 'label = "clicks"\nviews = "views"'


def test_counts_teach_and_are_judged_like_weighted_rows(tmp_path: Path) -> None:
    counted, written = write_counts(tmp_path)
    assert figures(learned(counted, GIVEN)) == figures(learned(written, 'label = "y"\nweight = "w"'))


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
    log = tmp_path / "log.csv"
    log.write_text("clicks,views,ad,sites\n1,3,a,x\n5,3,b,y\nmany,3,b,y\n1,x,b,y\n")
    with RejectLog(tmp_path / "rejects") as rejects:
        ran = train(spec(GIVEN), Log([str(log)]), rejects=rejects)
    assert ran.report.reasons == {"clicks": 2, "views": 1}
    assert ran.withheld.startswith("3 rows were rejected, 75 % of those read")


def test_a_run_over_counts_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    counted, _ = write_counts(tmp_path)
    head, *lines = counted.read_text().splitlines(keepends=True)
    toml = tmp_path / "spec.toml"
    toml.write_text(f'[model]\nname = "m"\n[input]\n{GIVEN}\n{FIELDS}{LEARNER}')
    begun = tmp_path / "growing.csv"

    def learn(checkpoints: str, save: str) -> bytes:
        flags = [f"--checkpoint={tmp_path / checkpoints}", "--resume", f"--save={tmp_path / save}"]
        assert run(["train", str(toml), str(begun), *flags]) == 0
        return (tmp_path / save).read_bytes()

    begun.write_text(head + "".join(lines[:100]))
    learn("parts", "part.arrow")
    begun.write_text(head + "".join(lines))
    assert learn("parts", "resumed.arrow") == learn("whole", "whole.arrow")


def test_predictions_have_one_line_for_each_row_of_counts(tmp_path: Path) -> None:
    counted, written = write_counts(tmp_path)
    for name, section, log in (("c", GIVEN, counted), ("w", 'label = "y"\nweight = "w"', written)):
        toml = tmp_path / f"{name}.toml"
        toml.write_text(f'[model]\nname = "m"\n[input]\n{section}\n{FIELDS}{LEARNER}')
        model, out = tmp_path / f"{name}.arrow", tmp_path / f"{name}.csv"
        assert run(["train", str(toml), str(log), f"--save={model}"]) == 0
        assert run(["evaluate", str(model), str(log), f"--predictions={out}"]) == 0
    got = [line.split(",") for line in (tmp_path / "c.csv").read_text().splitlines()]
    assert got[0] == ['"file"', '"line"', '"label"', '"views"', '"score"', '"ctr"', '"uncertainty"']
    rows = [line.split(",") for line in counted.read_text().splitlines()[1:]]
    assert [line[2:4] for line in got[1:]] == [row[:2] for row in rows]
    by_features = {
        tuple(row.split(",")[2:]): line.split(",")[3]
        for row, line in zip(
            written.read_text().splitlines()[1:],
            (tmp_path / "w.csv").read_text().splitlines()[1:],
            strict=True,
        )
    }
    assert all(line[4] == by_features[tuple(row[2:])] for line, row in zip(got[1:], rows, strict=True))


# --- Rows joined from events, whose outcome is a click or none ---

ITEMS = [{"id": "p", "ad": "a1", "sites": ["x"]}, {"id": "q", "ad": "a2", "sites": ["y"]}]


@pytest.mark.parametrize(
    "given", ['label = "y"', 'label = "y"\npositive = ["bought", "b"]', 'label = "y"\nviews = "shown"']
)
def test_joined_rows_are_labelled_as_a_log_of_the_spec_would_be(given: str, tmp_path: Path) -> None:
    impressions = [{"request_id": f"r{n}", "ts": 1000 + n, "items": ITEMS} for n in range(3)]
    log = tmp_path / "events.jsonl"
    events = [*impressions, {"request_id": "r1", "ts": 1003, "item": "q"}]
    log.write_text("".join(json.dumps(event) + "\n" for event in events))
    (made,) = examples(log, given)
    assert made.hashed.labels.tolist() == [0, 0, 0, 1, 0, 0]
    assert made.hashed.weights.tolist() in ([], [1.0] * 6)
    assert made.doubled == 0


@given(clicks=st.lists(st.booleans(), max_size=6), way=st.sampled_from(["plain", "positive", "views"]))
def test_labels_are_read_as_they_are_written(clicks: list[bool], way: str) -> None:
    ways: dict[str, dict[str, Any]] = {"positive": {"positive": ("yes", "si")}, "views": {"views": "v"}}
    section = InputSection(label="y", **ways.get(way, {}))
    assert clicked(label_columns(section, np.array(clicks, bool)), section).tolist() == clicks


def test_a_log_of_counts_may_be_sampled_by_requests(tmp_path: Path) -> None:
    """A request with any click is kept whole."""
    counted, _ = write_counts(tmp_path)
    sampled = spec(GIVEN).model_copy(
        update={
            "learner": parse_spec(
                '[model]\nname = "m"\n[input]\nlabel = "y"\n[learner]\nsubsample = { unclicked = 0.1 }\n'
            ).learner
        }
    )
    with open_log(Log([str(counted)]), sampled) as opened, opened.examples(1) as stream:
        model = LearningModel(ExampleMaker(opened.spec))
        for each in stream:
            model.learn(each)
    clicks = sum(int(line.split(",")[0]) for line in counted.read_text().splitlines()[1:])
    assert model.metrics.total().clicks == clicks
