"""Making HTML and SVG elements. Text is escaped by the writer, so no value of a log can become markup."""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element, tostring

_CONTROL = re.compile("[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\ud800-\\udfff\\ufffe\\uffff]")


def element(tag: str, *children: Element | str, **attributes: object) -> Element:
    """An element; `class_` stands for class, `_` in other names for `-`; numbers are rounded to hundredths."""
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


def as_html(page: Element) -> str:
    """A whole HTML document."""
    return "<!DOCTYPE html>\n" + tostring(page, encoding="unicode", method="html") + "\n"


def as_svg(picture: Element) -> str:
    """A picture as a file of its own."""
    return tostring(picture, encoding="unicode", method="xml") + "\n"


def _text(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else _printable(str(value))


def _printable(text: str) -> str:
    """XML has no place for control characters, not even escaped."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
