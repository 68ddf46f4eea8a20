"""Static pictures and pages: charts as SVG, alone, stacked in one file, or in an HTML page with texts and tables.

Nothing here needs a browser, scripts or a network. Pictures and pages follow the reader's light or dark scheme.
Elements are serialized by ElementTree, which escapes all text: no value of a log can become markup.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, fromstring, tostring

from ftrie.draw.charts import DARK, FONT, LIGHT, PLOT_WIDTH, ROWS, Spec, config, require_charts
from model_store.files import write_whole

WIDTH = 720
COLUMN_WIDTH = 456
"""Pixels of a chart of a page, where two are side by side; at 420 px its text is still read."""
MOST_TIPS = 400
_AXIS_WIDTH = 100
"""Pixels of a plot's vertical axis with its title, at most."""

_CONTROL = re.compile("[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\ud800-\\udfff\\ufffe\\uffff]")
_DIGITS = re.compile(r"-?\d+\.\d{2,}(?:e-?\d+)?")
_UNUSED = {"role", "class", "pointer-events", "font-family", "stroke-miterlimit"}
_USUAL = {("opacity", "1"), ("stroke-width", "1"), ("x2", "0"), ("y2", "0"), ("transform", "translate(0,0)")}
_MARKS = {"point", "circle", "bar", "rect mark", "rule mark"}
_DARK_PICTURE = "".join(
    f'[{what}="{LIGHT[name]}"]{{{what}:{DARK[name]}}}'
    for name in ("text", "soft", "grid", "background")
    for what in ("fill", "stroke")
)
_PICTURE = f"@media (prefers-color-scheme:dark){{{_DARK_PICTURE}}}"


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{colour};" for name, colour in colours.items())


_PAGE = (
    f":root{{color-scheme:light dark;{_variables(LIGHT)}}}"
    f"@media (prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}{_PICTURE}"
    "body{margin:0 auto;max-width:60rem;padding:1.5rem 1rem 4rem;background:var(--background);color:var(--text);"
    f"font:16px/1.5 {FONT}}}"
    "h1{font-size:1.6rem;margin:0 0 .2rem}h2{font-size:1.2rem;margin:2.2rem 0 .4rem}"
    "p,ul{margin:.3rem 0 .8rem;overflow-wrap:anywhere}.quiet{color:var(--soft)}"
    "figure{margin:1rem 0;vertical-align:top}figcaption{color:var(--soft);font-size:.875rem}"
    "figure svg{width:100%;height:auto;display:block}"
    "@media (min-width:50rem){figure{display:inline-block;width:calc(50% - 1rem);margin-right:1rem}}"
    ".wide{overflow-x:auto}table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums}"
    "th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid var(--grid);white-space:nowrap}"
    "th:first-child,td:first-child{text-align:left}thead th{color:var(--soft);font-weight:600}"
    "caption{text-align:left}summary{cursor:pointer;overflow-wrap:anywhere}"
    "@media (max-width:40rem){h1{font-size:1.3rem}}"
)


def svg(chart: Spec, width: int = WIDTH) -> str:
    """A chart as an SVG file, `width` pixels wide. Raises UsageError without the extra `charts`."""
    return stacked_svg([chart], width)


def stacked_svg(charts: Sequence[Spec], width: int = WIDTH) -> str:
    """Charts one below another as one SVG file on a background."""
    total = 0.0
    whole = element("svg", element("style", _PICTURE), xmlns="http://www.w3.org/2000/svg")
    whole.append(element("rect", width="100%", height="100%", fill=LIGHT["background"]))
    for chart in charts:
        picture = _picture(chart, width, tips=False)
        height = float(picture.get("viewBox", "").split()[-1])
        for name, value in (("y", total), ("width", width), ("height", height)):
            picture.set(name, f"{value:.0f}")
        whole.append(picture)
        total += height + 16.0
    whole.attrib.update(width=f"{width}", height=f"{total:.0f}", viewBox=f"0 0 {width} {total:.0f}")
    return tostring(whole, encoding="unicode", method="xml") + "\n"


def save_page(path: Path, html: Callable[[], str], svg: Callable[[], str]) -> None:
    """Write a report: as SVG, the charts alone, where the path ends so, else as HTML. Raises OutputError."""
    write_whole(path, (svg if path.suffix == ".svg" else html)().encode())


def document(title: str, *children: Element) -> str:
    """An HTML document with this title as its heading."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width,initial-scale=1"),
        element("title", title),
        element("style", _PAGE),
    )
    body = element("body", element("main", element("h1", title), *children))
    page = element("html", head, body, lang="en")
    return "<!DOCTYPE html>\n" + tostring(page, encoding="unicode", method="html") + "\n"


def quiet(text: str) -> Element:
    """A remark about what is shown."""
    return element("p", text, class_="quiet")


def note(text: str) -> Element:
    """What a reader must know of the data."""
    return element("p", f"Note: {text}.", role="note")


def folded(summary: str, *children: Element) -> Element:
    """Parts that are hidden until a reader opens them."""
    return element("details", element("summary", summary), *children)


def figure(chart: Spec, caption: str) -> Element:
    """A chart of a page with its caption."""
    return element("figure", _picture(chart, COLUMN_WIDTH, tips=True), element("figcaption", caption))


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> Element:
    """A table that scrolls where it is wider than the page; columns without any text are left out."""
    filled = [number for number in range(len(heads)) if not rows or any(row[number] for row in rows)]
    heads, rows = [heads[number] for number in filled], [[row[number] for number in filled] for row in rows]
    head = element("thead", element("tr", *(element("th", each, scope="col") for each in heads)))
    body = element("tbody", *(element("tr", *(element("td", cell) for cell in row)) for row in rows))
    whole = element("table", element("caption", caption, class_="quiet"), head, body)
    return element("div", whole, class_="wide", tabindex="0", role="region", aria_label=caption)


def element(tag: str, *children: Element | str, **attributes: object) -> Element:
    """An element. Attributes: `class_` means class, `_` becomes `-`."""
    made = Element(
        tag, {name.rstrip("_").replace("_", "-"): _printable(str(each)) for name, each in attributes.items()}
    )
    for child in children:
        if isinstance(child, Element):
            made.append(child)
        elif len(made):
            made[-1].tail = (made[-1].tail or "") + _printable(child)
        else:
            made.text = (made.text or "") + _printable(child)
    return made


def _picture(chart: Spec, width: int, *, tips: bool) -> Element:
    """A chart as an `svg` element with words for screen readers; tips: its marks have their figures as tooltips."""
    require_charts()
    import vl_convert

    rows = [{name: _short(value) for name, value in row.items()} for row in chart["datasets"][ROWS]]
    look = config()
    look |= {
        "font": "sans-serif",
        # `config` hides marks from screen readers; here their words are needed, as tooltips.
        "mark": {},
        "axis": look["axis"] | {"labelLimit": width // 3},
        "padding": {"left": 2, "right": 12, "top": 2, "bottom": 4},
    }
    spec = chart | {
        "datasets": {ROWS: rows},
        "width": width,
        "autosize": {"type": "fit-x", "contains": "padding"},
        # Drawn once, the plot's own width would be known too late.
        "params": [{"name": PLOT_WIDTH, "value": width - _AXIS_WIDTH}],
        "config": look,
    }
    picture = fromstring(vl_convert.vegalite_to_svg(spec))
    words = chart.get("description", "")
    for each in picture.iter():
        # Without namespaces, which ElementTree would write as prefixes.
        each.tag = each.tag.rpartition("}")[2]
    _clean(picture, tips and len(rows) <= MOST_TIPS)
    own = {
        "role": "img",
        "aria-label": words,
        "viewBox": picture.get("viewBox", ""),
        "font-family": "sans-serif",
    }
    picture.attrib.clear()
    picture.attrib.update(own)
    picture.insert(0, element("desc", words))
    return picture


def _short(value: Any) -> Any:
    """A number with the digits that a tooltip shows."""
    return float(f"{value:.6g}") if isinstance(value, float) and abs(value) < 1e6 else value


def _clean(picture: Element, tips: bool) -> None:
    """Drop what is not seen; turn the words of marks into tooltips."""
    # Listed first, since the loop changes the tree.
    for parent, child in list(_pairs(picture)):
        ground = child.get("class") == "background" and child.get("fill") is None
        label, kind = child.get("aria-label"), child.get("aria-roledescription")
        for name, value in list(child.attrib.items()):
            if name.startswith("aria-") or name in _UNUSED or (name, value) in _USUAL:
                del child.attrib[name]
            elif name in ("d", "transform"):
                # A tenth of a pixel is not seen, and most of an SVG is digits.
                child.set(name, _DIGITS.sub(lambda found: f"{float(found[0]):.1f}", value))
        unseen = ground or child.get("display") == "none" or child.get("d") in ("", "M0,0h0v0h0Z")
        if unseen or (child.get("opacity") == "0" and not tips):
            parent.remove(child)
        elif label and kind in _MARKS and tips:
            child.append(element("title", label))


def _pairs(parent: Element) -> Iterator[tuple[Element, Element]]:
    for child in parent:
        yield parent, child
        yield from _pairs(child)


def _printable(text: str) -> str:
    """The text without control characters, which XML does not allow even escaped."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
