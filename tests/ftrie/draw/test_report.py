"""`ftrie report`: what the page says and shows, that it needs nothing else, and what is refused."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ftrie.draw.runs import (
    MOST_POINTS,
    colours,
    curves,
    difference,
    figure_called,
    html_page,
    read_runs,
    slice_values,
    svg_page,
)
from model_store.errors import InputError, UsageError
from tests.ftrie.conftest import Ask, Say
from tests.trainer.learn.metrics_rows import add_log, made_up
from tests.trainer.learn.test_metrics import NAMES, lines_of, windows_of
from trainer.learn.metrics.metrics import ProgressiveMetrics
from trainer.learn.metrics.records import MetricsFile

VOID = {"meta", "br", "hr", "img", "input", "link"}
SVG = "{http://www.w3.org/2000/svg}"


class Page(HTMLParser):
    """Reads a page strictly: every element that begins must end, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.tags, self.attributes, self.said = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.said.append(data)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("metrics") / "run.jsonl"
    windows_of(made_up(600), 50, path)
    return path.read_bytes()


@pytest.fixture
def metrics_file(written: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "run.jsonl"
    path.write_bytes(written)
    return path


@pytest.fixture(scope="module")
def page(written: bytes, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "run.jsonl"
    path.write_bytes(written)
    return html_page(read_runs([path]))


def test_the_page_is_well_formed_and_needs_nothing_else(page: str) -> None:
    read = Page(page)
    assert not {"script", "link", "img", "iframe", "object", "embed"} & set(read.tags)
    names = [name for name, _ in read.attributes]
    assert not [name for name in names if name in ("src", "href", "srcset") or name.startswith("on")]
    assert not re.search(r"https?:|url\(|@import", page)
    pictures = re.findall(r"<svg [^>]*>", page)  # with words for those who hear them
    assert len(pictures) == 5 + 1 + 3
    assert all('role="img"' in each and re.search(r'aria-label="[^"]{20,}"', each) for each in pictures)
    assert len(re.findall(r"<desc>[^<]+</desc>", page)) == len(pictures)


def test_the_page_holds_the_figures_of_the_run(page: str, metrics_file: Path) -> None:
    said = " ".join(Page(page).said)
    (last,) = [line for line in lines_of(metrics_file) if line["kind"] == "window" and line["rows"] == 600]
    for name, metrics in last["total"]["variants"].items():
        assert name in said
        for figure in ("logloss", "auc", "calibration", "normalized_entropy", "mean_prediction"):
            assert f"{metrics[figure]:.5f}" in said
    found = last["total"]["variants"]["plain"]["difference"]
    assert f"{found['logloss']:+.5f} [{found['low']:+.5f}, {found['high']:+.5f}]" in said
    for kind in ("Log-loss", "AUC", "Calibration", "Reliability", "By brand"):
        assert kind in said


def test_text_of_the_log_never_becomes_markup_and_the_pictures_alone_are_one_svg(tmp_path: Path) -> None:
    log = made_up(60)
    for cell in log.cells[:30]:
        cell["brand"] = b"<script>alert(1)</script>\x07&quot;"
    path = tmp_path / "<b>run.jsonl"
    windows_of(log, 50, path)
    read = Page(html_page(read_runs([path])))
    assert "script" not in read.tags and "b" not in read.tags
    assert "<script>alert(1)</script>\N{REPLACEMENT CHARACTER}&quot;" in read.said
    whole = ElementTree.fromstring(svg_page(read_runs([path])))
    assert whole.tag == f"{SVG}svg"
    pictures = whole.findall(f"{SVG}svg")
    ends = [float(each.get("y", "")) + float(each.get("height", "")) for each in pictures]
    assert len(pictures) >= 5 and ends == sorted(ends) and ends[-1] <= float(whole.get("height", ""))


def test_several_runs_are_overlaid_and_told_apart(tmp_path):
    paths = []
    for folder, seed in (("monday", 1), ("tuesday", 2)):
        (tmp_path / folder).mkdir()
        paths.append(tmp_path / folder / "m.jsonl")
        windows_of(made_up(200, seed=seed), 50, paths[-1])
    runs = read_runs(paths)
    assert [run.name for run in runs] == ["monday/m.jsonl", "tuesday/m.jsonl"]
    names = [f"{run.name} · {name}" for run in runs for name in NAMES]
    assert list(dict.fromkeys(row["series"] for row in curves(runs, figure_called("logloss")))) == names
    assert colours(runs) == {name: number for number, name in enumerate(names)}
    drawn = dict.fromkeys(row["series"] for row in curves(runs, difference))
    assert [colours(runs)[name] for name in drawn] == [1, 2, 4, 5]
    assert "tuesday/m.jsonl · lean" in html_page(runs)


def test_a_run_without_slices_or_rows_is_a_page_too(tmp_path):
    log = made_up(20, variants=1)
    for rows in (20, 0):
        with MetricsFile(tmp_path / "m.jsonl") as file:
            metrics = ProgressiveMetrics(["base"], file=file)
            metrics.begin(log.maker.spec)
            add_log(metrics, log._replace(rows=log.rows[:rows]))
            metrics.finish()
        Page(html_page(read_runs([tmp_path / "m.jsonl"])))
    ElementTree.fromstring(svg_page(read_runs([tmp_path / "m.jsonl"])))


def test_a_long_run_is_drawn_by_means_of_windows(tmp_path: Path) -> None:
    windows_of(made_up(2 * MOST_POINTS), 1, tmp_path / "m.jsonl")
    (run_read,) = read_runs([tmp_path / "m.jsonl"])
    rows = [row for row in curves([run_read], figure_called("logloss")) if row["series"] == "base"]
    assert len(rows) == MOST_POINTS
    first = [line.window for line in run_read.windows[:2]]
    weighed = sum(each.weight * each.variants["base"].logloss for each in first)
    expected = weighed / sum(each.weight for each in first)
    assert (rows[0]["x"], rows[0]["value"]) == (2, pytest.approx(expected))


def test_what_is_mostly_chance_is_not_drawn_but_told(tmp_path):
    windows_of(made_up(440), 100, tmp_path / "m.jsonl")
    runs = read_runs([tmp_path / "m.jsonl"])
    assert [row["x"] for row in curves(runs, figure_called("logloss")) if row["series"] == "base"] == [
        100,
        200,
        300,
        400,
    ]
    clicks = {each.value: each.clicks for each in runs[0].detail.slices["brand"]}
    assert set(slice_values(runs, "brand")) == {value for value, count in clicks.items() if count >= 20}
    said = Page(html_page(runs)).said
    assert "" in clicks  # the rows without a value
    assert all((value or "(none)") in said for value in clicks)


def test_a_broken_last_line_is_passed_over_with_a_note_and_one_in_the_middle_refused(
    metrics_file: Path, tmp_path: Path, say: Say
) -> None:
    lines = metrics_file.read_bytes().splitlines(keepends=True)
    metrics_file.write_bytes(b"".join(lines[:5]) + lines[5][:100])
    code, _, said = say("report", metrics_file, "-o", tmp_path / "r.html")
    assert code == 0
    assert "run.jsonl: line 6 is not complete and was skipped" in said
    assert "the run has not ended, or was interrupted: figures up to row 100" in said
    assert "was skipped" in (tmp_path / "r.html").read_text()
    metrics_file.write_bytes(lines[0] + b'{"kind":"window","rows":"many"}\n' + b"".join(lines[1:]))
    with pytest.raises(InputError, match=r"line 2: window\.rows: .*the file is damaged"):
        read_runs([metrics_file])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "is not a metrics file: its first line does not say 'ftrie-metrics'"),
        (b"a,b\n1,2\n", "is not a metrics file"),
        (b'{"format": "ftrie-metrics", "version": 2}\n', "of version 2; this ftrie reads version 1"),
        (b'{"format": "ftrie-metrics", "version": 1}\n', "line 1: model: Field required"),
        (b"\xff\xfe", "is not a metrics file"),
    ],
)
def test_what_is_no_metrics_file_is_refused(text, reason, tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_bytes(text)
    with pytest.raises(InputError, match=reason):
        read_runs([path])


def test_the_answer_as_json_has_the_totals_and_the_slices_and_nothing_read_is_replaced(
    metrics_file: Path, tmp_path: Path, ask: Ask, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "ftrie.draw.runs.save_report", lambda *_: None
    )  # which takes a second, and is tested above
    (only,) = ask("report", metrics_file, "-o", tmp_path / "r.html")["runs"]
    assert (only["name"], only["rows"], only["windows"], only["ended"]) == ("run.jsonl", 600, 12, True)
    assert set(only["total"]["variants"]) == set(NAMES)
    assert {each["value"] for each in only["slices"]["brand"]} >= {"nike", "puma"}

    before = metrics_file.read_bytes()
    assert say("report", metrics_file, "-o", metrics_file)[0] == UsageError.exit_code
    assert metrics_file.read_bytes() == before
    code, _, err = say("report", tmp_path / "nothing.jsonl")
    assert (code, "cannot read" in err) == (3, True)
