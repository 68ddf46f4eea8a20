"""HTML and SVG elements, and the style sheets of the report page and its charts.

Elements are serialized by ElementTree, which escapes all text: no value of a log can become markup.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree.ElementTree import Element, tostring

_CONTROL = re.compile("[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\ud800-\\udfff\\ufffe\\uffff]")

# Colours that colour-blind readers can tell apart, after Okabe and Ito (2008), "Color universal design"; darkened for
# a white background, lightened for a dark one.
_LIGHT = ("#0062a3", "#c04a00", "#00785a", "#a8447c", "#7a5c00", "#2b7fb8", "#5b4bb0", "#444444")
_DARK = ("#5ab0f0", "#f0894a", "#35c79b", "#e58fc0", "#e0b93f", "#8fd0f5", "#a99bf5", "#bbbbbb")
COLOURS = len(_LIGHT)
DASHES = ("", "6 3", "2 3", "8 3 2 3")


def _variables(colours: tuple[str, ...], ink: str, quiet: str, grid: str, ground: str) -> str:
    named = "".join(f"--c{number}:{colour};" for number, colour in enumerate(colours))
    return f"--ink:{ink};--quiet:{quiet};--grid:{grid};--ground:{ground};{named}"


_DARK_RULE = _variables(_DARK, "#e6e6e6", "#a0a0a0", "#3a3a3a", "#161618")

VARIABLES = (
    ":root{color-scheme:light dark;"
    + _variables(_LIGHT, "#1a1a1a", "#5f5f5f", "#dcdcdc", "#ffffff")
    + "}@media (prefers-color-scheme:dark){:root{"
    + _DARK_RULE
    + "}}"
)

PICTURE = (
    "svg.chart{font:12px system-ui,sans-serif}"
    ".chart text{fill:var(--ink)}.chart text.quiet{fill:var(--quiet)}.chart text.name{font-weight:600;font-size:14px}"
    ".chart .grid{stroke:var(--grid);stroke-width:1}.chart .axis{stroke:var(--quiet);stroke-width:1}"
    ".chart .reference{stroke:var(--quiet);stroke-width:1;stroke-dasharray:3 3;fill:none}"
    ".chart .line{fill:none;stroke-width:1.75;stroke-linejoin:round}.chart .band{opacity:.16;stroke:none}"
    ".chart .faint{opacity:.35;stroke-width:1}"
    ".chart .bar{stroke-width:1.25;fill:none}"
    + "".join(
        f".chart .s{number}{{stroke:var(--c{number})}}.chart .f{number}{{fill:var(--c{number})}}"
        for number in range(COLOURS)
    )
)

PAGE = (
    "body{margin:0 auto;max-width:60rem;padding:1.5rem 1rem 4rem;background:var(--ground);color:var(--ink);"
    "font:16px/1.5 system-ui,sans-serif}"
    "h1{font-size:1.6rem;margin:0 0 .2rem}h2{font-size:1.2rem;margin:2.2rem 0 .4rem}"
    "p,ul{margin:.3rem 0 .8rem}.quiet{color:var(--quiet)}"
    "figure{margin:1rem 0}figcaption{color:var(--quiet);font-size:.875rem}"
    "svg.chart{width:100%;height:auto;display:block}"
    ".wide{overflow-x:auto}table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums}"
    "th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid var(--grid);white-space:nowrap}"
    "th:first-child,td:first-child{text-align:left}thead th{color:var(--quiet);font-weight:600}"
    "summary{cursor:pointer}"
    # On a telephone a chart keeps a size at which its words can be read, and scrolls.
    "@media (max-width:40rem){figure{overflow-x:auto}svg.chart{min-width:36rem;font-size:14px}h1{font-size:1.3rem}}"
)


def element(tag: str, *children: Element | str, **attributes: object) -> Element:
    """An element. Attributes: `class_` means class, `_` becomes `-`, floats are rounded to hundredths."""
    made = Element(
        tag, {name.rstrip("_").replace("_", "-"): _text(each) for name, each in attributes.items()}
    )
    for child in children:
        if isinstance(child, Element):
            made.append(child)
        elif len(made):
            made[-1].tail = (made[-1].tail or "") + _printable(child)
        else:
            made.text = (made.text or "") + _printable(child)
    return made


def document(title: str, *children: Element) -> str:
    """An HTML document with this title as its heading."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width,initial-scale=1"),
        element("title", title),
        element("style", VARIABLES + PAGE + PICTURE),
    )
    body = element("body", element("main", element("h1", title), *children))
    return as_html(element("html", head, body, lang="en"))


def captioned(picture: Element, caption: str) -> Element:
    """A picture with its caption."""
    return element("figure", picture, element("figcaption", caption))


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> Element:
    """A table that scrolls where it is wider than the page; columns without any text are left out."""
    filled = [number for number in range(len(heads)) if not rows or any(row[number] for row in rows)]
    heads, rows = [heads[number] for number in filled], [[row[number] for number in filled] for row in rows]
    head = element("thead", element("tr", *(element("th", each, scope="col") for each in heads)))
    body = element("tbody", *(element("tr", *(element("td", cell) for cell in row)) for row in rows))
    whole = element("table", element("caption", caption, class_="quiet"), head, body)
    return element("div", whole, class_="wide", tabindex="0", role="region", aria_label=caption)


def as_html(page: Element) -> str:
    """The page as an HTML document."""
    return "<!DOCTYPE html>\n" + tostring(page, encoding="unicode", method="html") + "\n"


def as_svg(picture: Element) -> str:
    """The picture as an SVG file."""
    return tostring(picture, encoding="unicode", method="xml") + "\n"


def _text(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else _printable(str(value))


def _printable(text: str) -> str:
    """The text without control characters, which XML does not allow even escaped."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
