"""Generates docs/commands.md from the commands themselves, and the tables of other pages from what the code declares.

`python docs/generate.py` writes the pages; `--check` compares them and fails if one differs (`make check`). In
docs/commands.md the text below `<!-- notes -->` in a section is written by hand and kept: links, members of JSON
answers, what needs a paragraph. In any other page only the text between `<!-- generated: NAME -->` and
`<!-- end of generated -->` is replaced, by what BLOCKS has under this NAME.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

import ftrie
import server
from ftrie.cli import build
from model_store.keys import ROLES, TABLE
from model_store.metrics import Family
from server.telemetry import meter
from trainer.learn.metrics.figures import METRICS
from trainer.runs import status

PAGE = Path(__file__).with_name("commands.md")
NOTES = "<!-- notes -->"
COMMON = {"--store", "--json", "--help"}
"""Flags that the page's introduction explains once."""


def metrics_table(families: Iterable[Family], *, without: str = "") -> str:
    """A row for each metric, and the buckets of the histograms. without: a label that the page's text has for all."""
    families = list(families)
    rows = ["| name | kind | labels | counts |", "|---|---|---|---|"]
    for each in families:
        labels = ", ".join(f"`{label}`" for label in each.labels if label != without)
        rows.append(f"| `{each.name}` | {each.kind} | {labels or '—'} | {each.help} |")
    buckets = [
        f"The buckets of `{each.name}` end at {', '.join(each.bounds[:-1])} s."
        for each in families
        if each.buckets
    ]
    return "\n".join(rows) + "".join(f"\n\n{sentence}" for sentence in buckets)


def server_metrics() -> str:
    """Every metric of a server, of whatever module."""
    for module in pkgutil.walk_packages(server.__path__, "server."):
        # The first needs an extra, the second is a program. A metric is declared when its module is imported.
        if module.name not in ("server.telemetry.tracing", "server.serve.worker_main"):
            importlib.import_module(module.name)
    return metrics_table(each for _, each in sorted(meter.FAMILIES.items()))


def keys() -> str:
    """The table of docs/redis_keys.md."""
    rows = [
        f"| `{key.pattern}` | {' or '.join(key.types)} | {key.holds} | {key.written} | {key.read} | {key.kept} |"
        for key in TABLE
    ]
    head = ["| key | type | holds | written by | read by | lifetime |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *rows])


def rules() -> str:
    """The rules of docs/operating.md, which its test takes from the same place."""
    lines = [role.rule for role in ROLES]
    return "\n".join(["<!-- run by: tests/server/serve/test_store_access.py -->", "```", *lines, "```"])


def classifier_parameters() -> str:
    """The parameters of FTRLClassifier by its docstring, read without scikit-learn."""
    tree = ast.parse(Path(ftrie.__file__).with_name("sklearn.py").read_text("utf-8"))
    (found,) = (
        each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == "FTRLClassifier"
    )
    section = (
        (ast.get_docstring(found) or "").split("Parameters\n----------\n")[1].split("\n\nAttributes\n")[0]
    )
    rows = ["| parameter | type | default | meaning |", "|---|---|---|---|"]
    for entry in re.split(r"\n(?=\S)", section):
        head, *lines = entry.splitlines()
        names, _, kind = head.partition(" : ")
        meaning = " ".join(line.strip() for line in lines).replace("|", "\\|").replace("**", "^")
        kind, default = kind.split(", default=")
        called = ", ".join(f"`{name}`" for name in names.split(", "))
        rows.append(f"| {called} | {kind} | `{default}` | {meaning} |")
    return "\n".join(rows)


def run_metrics() -> str:
    """The metrics of a run, with their formulas."""
    rows = [f"| {each.label} | {each.formula} | {each.better or '—'} |" for each in METRICS.values()]
    return "\n".join(["| metric | formula | better |", "|---|---|---|", *rows])


def figures() -> str:
    """The members of a variant's figures in a metrics file."""
    rows = [f"| `{name}` | {each.label} |" for name, each in METRICS.items()]
    return "\n".join(["| field | holds |", "|---|---|", *rows, "| `difference` | null for the base |"])


BLOCKS: Mapping[str, Callable[[], str]] = {
    "classifier parameters": classifier_parameters,
    "figures of a variant": figures,
    "keys": keys,
    "rules": rules,
    "run metrics": run_metrics,
    "server metrics": server_metrics,
    "trainer metrics": lambda: metrics_table(status.FAMILIES, without="model"),
}
"""By the name in the markers, the Markdown between them."""
_BLOCK = re.compile(
    r"^(<!-- generated: ([^\n]+) -->\n).*?^(<!-- end of generated -->)$", re.MULTILINE | re.DOTALL
)
_SECTION = re.compile(r"^## (ftrie(?: [a-z-]+)*)$", re.MULTILINE)


def commands() -> Iterator[tuple[str, TyperCommand]]:
    """Every command by the words that call it, in the order of `ftrie --help`."""

    def walk(words: str, command: object) -> Iterator[tuple[str, TyperCommand]]:
        if isinstance(command, TyperGroup):
            for name, below in command.commands.items():
                yield from walk(f"{words} {name}", below)
        elif isinstance(command, TyperCommand):
            yield words, command

    return walk("ftrie", build())


def page(before: str) -> str:
    """The whole page; introduction and notes are those of `before`."""
    pieces = _SECTION.split(before)
    sections = dict(zip(pieces[1::2], pieces[2::2], strict=True))
    made = [pieces[0].rstrip()]
    for words, command in commands():
        _, marker, notes = sections.get(words, "").partition(NOTES)
        made.append(_section(words, command))
        if marker:
            made.append(f"{NOTES}\n\n{notes.strip()}")
    return "\n\n".join(made) + "\n"


def _section(words: str, command: TyperCommand) -> str:
    """What a command says of itself."""
    arguments = [each for each in command.params if isinstance(each, TyperArgument)]
    options = [each for each in command.params if isinstance(each, TyperOption)]
    usage = [words, *(_argument(each) for each in arguments)]
    parts = [f"## {words}", f"`{' '.join(usage)}`", _paragraphs(command.help or "")]
    if any(each.help for each in arguments):
        parts.append(
            "\n".join(f"- `{_argument(each)}`: {_sentence(each.help)}" for each in arguments if each.help)
        )
    rows = [_row(each) for each in options if not COMMON & {*each.opts}]
    if rows:
        parts.append("\n".join(["| flag | default | meaning |", "|---|---|---|", *rows]))
    common = [f"`{each.opts[0]}`" for each in options if {*each.opts} & (COMMON - {"--help"})]
    if common:
        parts.append(
            f"{'Also' if rows else 'Flags:'} {' and '.join(common)}, [as for every command](#commands)."
        )
    if command.epilog:
        parts.append(f"Example: `{command.epilog.removeprefix('Example: ')}`")
    return "\n\n".join(parts)


def _argument(argument: TyperArgument) -> str:
    name = argument.metavar or (argument.name or "").upper()
    return name if argument.required else f"[{name}]"


def _row(option: TyperOption) -> str:
    names = [*option.opts, *option.secondary_opts]
    names.sort(key=lambda name: not name.startswith("--"))
    value = f" {option.metavar}" if option.metavar and not option.is_flag else ""
    flags = ", ".join([f"`{names[0]}{value}`", *(f"`{name}`" for name in names[1:])]).replace("|", "\\|")
    return f"| {flags} | {_default(option)} | {_sentence(option.help)} |"


def _default(option: TyperOption) -> str:
    default = option.default
    if default is None or default is False or default is ... or default == [] or callable(default):
        return ""
    if default is True:
        return f"`{option.opts[0]}`" if option.secondary_opts else "on"
    return f"`{default}`".replace("|", "\\|")


def _sentence(text: str | None) -> str:
    """Help as the page has it: without the full stop at the end, and with brackets that make no link."""
    return " ".join((text or "").split()).removesuffix(".").replace("|", "\\|").replace("][", "]\\[")


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(each.split()) for each in text.split("\n\n"))


def with_blocks(before: str) -> str:
    """A page with its generated blocks as the code declares them now. Raises KeyError for an unknown name."""
    return _BLOCK.sub(lambda found: f"{found[1]}\n{BLOCKS[found[2]]().strip()}\n\n{found[3]}", before)


def main() -> int:
    """Write the pages, or with --check say which are not up to date."""
    differ = 0
    for path in sorted(PAGE.parent.rglob("*.md")):
        before = path.read_text("utf-8")
        made = page(before) if path == PAGE else with_blocks(before)
        if made == before:
            continue
        if "--check" not in sys.argv:
            path.write_text(made, "utf-8")
        else:
            print(f"docs/{path.name} differs from what the code says; run: make docs", file=sys.stderr)
            differ = 1
    return differ


if __name__ == "__main__":
    sys.exit(main())
