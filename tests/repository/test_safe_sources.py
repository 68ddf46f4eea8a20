"""No source of the packages turns data into code: nothing is unpickled, evaluated or given to a shell."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("ftrie", "model_store", "server", "trainer", "proto")
MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "marshal",
    "shelve",
    "dill",
    "cloudpickle",
    "joblib",
    "code",
    "codeop",
}
CALLS = {"eval", "exec", "compile", "__import__"}
ARGUMENTS = {"allow_pickle", "shell"}


def findings(source: str) -> Iterator[str]:
    """What in a source could run data, as "line: what"."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found = [alias.name for alias in names if alias.name.partition(".")[0] in MODULES]
            case ast.ImportFrom(module=str(module)):
                found = [module] if module.partition(".")[0] in MODULES else []
            case ast.Call(func=ast.Name(id=name)) if name in CALLS:
                found = [f"{name}(…)"]
            case ast.keyword(arg=str(name), value=value) if name in ARGUMENTS:
                found = [] if isinstance(value, ast.Constant) and value.value is False else [f"{name}="]
            case _:
                continue
        yield from (f"{getattr(node, 'lineno', '?')}: {what}" for what in found)


# What `findings` looks for stands in the text; a source without any of it is not parsed.
WORDS = re.compile(
    rf"\b(?:{'|'.join(MODULES)})\b.*|\b(?:{'|'.join(CALLS)})\s*\(|\b(?:{'|'.join(ARGUMENTS)})\s*="
)


def test_no_source_unpickles_or_evaluates() -> None:
    sources = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    assert len(sources) > 50
    texts = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in sources}
    found = {path: list(findings(text)) for path, text in texts.items() if WORDS.search(text)}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_the_search_finds_what_it_is_for_and_leaves_the_innocent_alone() -> None:
    for source in (
        "import pickle",
        "import os, marshal",
        "from pickle import loads",
        "eval('1')",
        "f = lambda x: exec(x)",
        "compile(text, '', 'eval')",
        "__import__('os')",
        "np.load(path, allow_pickle=True)",
        "subprocess.run(text, shell=True)",
    ):
        assert list(findings(source)) and WORDS.search(source)
    for source in (
        "re.compile('a')",
        "self.eval(1)",
        "run(shell=False)",
        "import pickles",
        "def evaluate(): pass",
    ):
        assert not list(findings(source))
