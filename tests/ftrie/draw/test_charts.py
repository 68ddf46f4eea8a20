"""The kinds of chart keep the contract of their rows, are read by everyone, and become static pictures and pages."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any
from xml.etree import ElementTree

import pytest

from ftrie.draw.charts import (
    BETTER,
    DARK,
    LIGHT,
    MOST_ROWS,
    MUTED,
    SERIES,
    WORSE,
    Spec,
    bars,
    for_notebook,
    grid,
    histogram,
    intervals,
    lines,
    reliability,
)
from ftrie.draw.pages import COLUMN_WIDTH, document, figure, stacked_svg, svg
from model_store.errors import UsageError
from tests.ftrie.conftest import Say

SVG = "{http://www.w3.org/2000/svg}"


def curves(count: int = 10, *names: str, **options: Any) -> Spec:
    rows = [
        {"x": 10.0 + at, "y": 0.1 * at + 0.1, "low": 0.1 * at, "high": 0.1 * at + 0.2, "series": name}
        for name in names or ("base", "plain")
        for at in range(count)
    ]
    series = list(names or ("base", "plain"))
    return lines(rows, x="x", y="y", x_title="rows", y_title="loss", series=series, **options)


def dots() -> Spec:
    rows = [
        {"name": name, "series": series, "value": 1.0, "low": low, "high": low and 1.5}
        for name, low in (("nike", 0.5), ("(none)", None))
        for series in ("base", "plain")
    ]
    return intervals(rows, value_title="calibration", series=["base", "plain"], reference=1.0)


def diagram() -> Spec:
    rows = [
        {"series": "base", "predicted": p, "observed": o, "low": max(o - 0.05, 0.0), "high": o + 0.05}
        for p, o in ((0.01, 0.0), (0.1, 0.12), (0.3, 0.25))
    ]
    return reliability(rows, series=["base"])


def cells() -> Spec:
    rows = [
        {"name": name, "column": "base", "value": value, "text": text, "badness": value, "rows": 9}
        for name, value, text in (("nike", 0.5, "+50 %"), ("puma", None, "few"))
    ]
    return grid(rows, value_title="difference")


KINDS: dict[str, Callable[[], Spec]] = {
    "lines": curves,
    "marked": lambda: curves(marks=[(12.0, "tastes change")], reference=0.5, x_axis="log", y_log=True),
    "means": lambda: curves(mean="low"),
    "times": lambda: curves(x_axis="time", percent=True, points=True),
    "intervals": dots,
    "lifts": lambda: intervals([{"name": "a", "value": 1.0, "low": 0.5, "high": 2.0}], value_title="lift"),
    "reliability": diagram,
    "bars": lambda: bars(
        [{"name": "a", "value": 1.0}, {"name": "b", "value": -1.0}], value_title="w", signed=True
    ),
    "histogram": lambda: histogram(
        [{"low": at, "high": at + 1, "value": 3 + at} for at in range(4)], x_title="s", y_title="n", log=True
    ),
    "grid": cells,
}


def parts(spec: Any) -> Iterator[dict[str, Any]]:
    if isinstance(spec, dict):
        yield spec
    for each in spec.values() if isinstance(spec, dict) else spec if isinstance(spec, list) else ():
        yield from parts(each)


@pytest.mark.parametrize("kind", KINDS)
def test_a_chart_has_one_data_set_and_words_and_is_drawn(kind: str) -> None:
    spec = KINDS[kind]()
    assert [part["data"]["name"] for part in parts(spec) if "data" in part] == ["rows"]
    assert len(spec["description"]) > 3 and spec["width"] == "container"
    picture = ElementTree.fromstring(svg(spec, 500))
    (inner,) = picture.findall(f"{SVG}svg")
    assert inner.get("role") == "img" and inner.get("aria-label") == spec["description"]
    assert inner.get("viewBox", "").startswith("0 0 500 ")
    assert inner.find(f".//{SVG}path") is not None and "NaN" not in ElementTree.tostring(picture, "unicode")


def test_charts_are_valid_vega_lite() -> None:
    altair = pytest.importorskip("altair")
    for make in KINDS.values():
        altair.LayerChart.from_dict(make(), validate=True)
        chart = for_notebook(make(), "a title")
        altair.LayerChart.from_dict(chart.to_dict(), validate=True)
    assert chart._repr_mimebundle_()["image/png"].startswith(b"\x89PNG"), "without scripts from a network"


def test_a_mark_is_drawn_once_however_many_rows_there_are_up_to_a_limit() -> None:
    picture = ElementTree.fromstring(svg(curves(50, marks=[(12.0, "here")])))
    assert [each.text for each in picture.iter(f"{SVG}text")].count("here") == 1
    curves(MOST_ROWS // 2)
    with pytest.raises(ValueError, match=r"got 2,002 rows for a chart, expected at most 2,000"):
        curves(MOST_ROWS // 2 + 1)


def test_bars_stand_on_the_axis_and_marks_have_their_figures_as_tooltips_unless_there_are_too_many() -> None:
    drawn = figure(KINDS["histogram"](), "caption").iter("path")
    marks = [each.get("d", "") for each in drawn if each.find("title") is not None]
    heights = [float(found[1]) for each in marks if (found := re.search(r"v([\d.]+)", each))]
    assert heights == sorted(heights) and len(heights) == 4 and heights[0] > 60
    titles = [each.text or "" for each in figure(curves(5), "caption").iter("title")]
    assert len(titles) == 10 and "loss: 0.1" in titles[0] and "series: base" in titles[0]
    assert not list(figure(curves(500), "caption").iter("title"))


def test_names_are_drawn_as_they_are_and_a_page_needs_nothing_else_and_follows_the_scheme() -> None:
    names = ["<script>x</script>", r"$\frac$ & \"q\"", "bell\x07\nline"]
    page = document("t", figure(curves(5, *names), "caption"))
    assert "<script>" not in page and "\x07" not in page and "bell\ufffd\ufffdline" in page
    assert r"$\frac$ &amp;" in page
    page = document("t", *(figure(make(), "caption") for make in KINDS.values()))
    assert not re.search(r"https?:|url\(|@import|<script|src=|href=", page)
    assert page.count(f'viewBox="0 0 {COLUMN_WIDTH} ') == len(KINDS)
    assert f'[fill="{LIGHT["text"]}"]{{fill:{DARK["text"]}}}' in page and 'id="' not in page


def test_series_beyond_the_colours_have_dashes_and_keep_their_numbers() -> None:
    rows = [{"x": at, "y": at, "series": name} for name in "ab" for at in range(3)]
    spec = lines(rows, x="x", y="y", x_title="x", y_title="y", series={"a": 1, "b": 9})
    (colours,) = {tuple(p["color"]["scale"]["range"]) for p in parts(spec) if "scale" in p.get("color", {})}
    (dashes,) = [p["strokeDash"]["scale"]["range"] for p in parts(spec) if "scale" in p.get("strokeDash", {})]
    assert colours == (SERIES[1], SERIES[1]) and dashes[0] != dashes[1]


@pytest.mark.parametrize("width", range(300, 720, 60))
def test_no_text_is_cut(width: int) -> None:
    names = ("127.0.0.1:11052", "127.0.0.1:14367", "another name", "more")
    picture = ElementTree.fromstring(svg(curves(5, *names), width)).find(f"{SVG}svg")
    assert picture is not None

    def tops(element: ElementTree.Element, above: float) -> Iterator[float]:
        found = re.search(r"translate\([^,]+,([-\d.]+)\)", element.get("transform", ""))
        at = above + (float(found[1]) if found else 0.0)
        if element.tag == f"{SVG}text":
            yield at
        for child in element:
            yield from tops(child, at)

    drawn = [each.text for each in picture.iter(f"{SVG}text")]
    assert set(names) <= set(drawn)
    assert min(tops(picture, 0.0)) > 5.0 and max(tops(picture, 0.0)) < float(picture.get("height", "0"))


def test_stacked_pictures_do_not_overlap() -> None:
    whole = ElementTree.fromstring(stacked_svg([make() for make in KINDS.values()]))
    pictures = whole.findall(f"{SVG}svg")
    tops = [float(each.get("y", "")) for each in pictures]
    ends = [top + float(each.get("height", "")) for top, each in zip(tops, pictures, strict=True)]
    assert all(end <= top for end, top in zip(ends, tops[1:], strict=False))
    assert ends[-1] <= float(whole.get("height", ""))


def contrast(one: str, other: str) -> float:
    """The contrast of WCAG 2: (L1 + 0.05) / (L2 + 0.05)."""

    def luminance(colour: str) -> float:
        channels = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return sum(c * share for c, share in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))

    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def test_colours_are_told_from_both_backgrounds() -> None:
    for scheme in (LIGHT, DARK):
        ground = scheme["background"]
        assert [c for c in (*SERIES, WORSE, BETTER, MUTED) if contrast(c, ground) < 3.0] == []
        assert all(contrast(scheme[name], ground) >= 4.5 for name in ("text", "soft"))


def test_without_the_extra_a_run_says_so_before_it_begins(monkeypatch: pytest.MonkeyPatch, say: Say) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(UsageError, match=r"pip install 'ftrie\[charts\]'"):
        svg(curves())
    code, _, err = say("live", "--seconds", "600", "--picture", "loop.svg")
    assert (code, "pip install 'ftrie[charts]'" in err) == (UsageError.exit_code, True)


def test_a_label_near_the_end_of_an_axis_ends_there() -> None:
    rows = [{"t": 1.7e12 + 1000.0 * s, "v": s / 3600, "series": "base"} for s in range(0, 3721, 60)]
    chart = lines(rows, x="t", y="v", x_title="time", y_title="v", series=["base"], x_axis="time")
    times = re.findall(r'text-anchor="(\w+)"[^>]*>(\d\d:\d\d)<', svg(chart, 358))
    assert times[0] == ("start", "22:15") and times[-1] == ("end", "23:15")
