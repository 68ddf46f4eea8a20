"""How `--help` looks: commands in groups, whole sentences, and words in place of Python types."""

from __future__ import annotations

from types import MethodType
from typing import Any

import typer

GROUPS = {
    "Learn": (
        *("init", "doctor", "train", "train-distributed", "trainer", "tune", "checkpoint"),
        "report",
    ),
    "Judge": ("evaluate", "audit", "replay"),
    "Serve": ("serve", "rank", "explain", "feedback", "experiment", "admin", "dashboard"),
    "Store": ("store",),
    "Try it": ("demo", "live", "simulate", "bench", "warmup"),
}
"""The commands of `ftrie` in the groups of its help."""
COMMANDS = tuple(name for names in GROUPS.values() for name in names)
"""Each is a module of its name in `ftrie.commands`."""
_ARTICLES = {"int": "N", "float": "X", "str": "TEXT", "Path": "FILE"}


def plain_help(command: Any, is_root: bool = True) -> None:
    """Make the help of a command, and of all commands below it, plain. Changes them in place."""
    if isinstance(command, typer.core.TyperGroup):
        command.format_commands = MethodType(_write_groups if is_root else _write_commands, command)  # type: ignore[method-assign]
        for child in command.commands.values():
            plain_help(child, False)
    for param in command.params:
        _in_words(param)


def first_sentence(command: Any) -> str:
    """The first sentence of a command's help."""
    paragraph = " ".join((command.help or "").split("\n\n")[0].split())
    sentence, stop, _ = paragraph.partition(". ")
    return sentence + stop.strip()


def _write_groups(group: Any, context: Any, formatter: Any) -> None:
    for title, names in GROUPS.items():
        with formatter.section(title):
            formatter.write_dl([(name, first_sentence(group.commands[name])) for name in names], col_max=20)


def _write_commands(group: Any, context: Any, formatter: Any) -> None:
    rows = [(name, first_sentence(each)) for name, each in group.commands.items() if not each.hidden]
    with formatter.section("Commands"):
        formatter.write_dl(rows, col_max=20)


def _in_words(param: Any) -> None:
    """Name a value by its metavar alone, and a range of numbers by words."""
    if isinstance(param, typer.core.TyperArgument):
        param.display_type_rich = lambda ctx: ""  # type: ignore[method-assign]
    elif isinstance(param, typer.core.TyperOption) and param.metavar is None and not param.is_flag:
        param.metavar = _ARTICLES.get(
            param.bare_type().partition("[")[2].rstrip("]") or param.bare_type(), "TEXT"
        )
    if hasattr(param, "_get_number_range_help_str"):
        param._get_number_range_help_str = lambda: _range(param.min, param.max)


def _range(least: float | None, most: float | None) -> str | None:
    if least is None and most is None:
        return None
    if most is None:
        return f"at least {least:g}"
    return f"at most {most:g}" if least is None else f"from {least:g} to {most:g}"
