"""How a setting is declared: once, as a field or parameter `name: Annotated[type, Flag(…)] = default`.

The command line makes flags of such fields (`ftrie.command`), and the server and the library take the same dataclasses;
so this module is below all of them, and imports nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

FileRole = Literal["reads", "follows", "writes", "keeps"]
"""What a command does with the files that a flag names: `follows` reads a source that may not exist yet; `keeps` writes
a cache, without which the command works too. No written file may be another flag's file."""

DEFAULT_STORE = "embedded:.ftrie"
"""The store if neither an argument nor FTRIE_STORE names one."""


@dataclass(frozen=True)
class Flag:
    """How the command line offers a setting, named like the field without its unit. A value out of range is refused.

    default, type: of the flag, where they are not those of the setting. unit: of the flag's whole numbers in those of
    the setting. parse: makes the setting of the flag's text; `default` is a text too, or there is none.
    names: where they are not that of the field, such as "--output -o"; a bool has no `--no-…` unless it is named.
    env: a variable beside FTRIE_COMMAND_FLAG. file: what is done with the files that the value names. exists: the value
    is a file that must exist. callback: called with the value as soon as it is parsed.
    """

    help: str
    metavar: str | None = None
    min: float | None = None
    max: float | None = None
    default: Any = None
    type: Any = None
    unit: float | None = None
    parse: Callable[[str], Any] | None = None
    names: str = ""
    env: str | None = None
    file: FileRole | None = None
    exists: bool = False
    callback: Callable[..., Any] | None = None


@dataclass(frozen=True)
class Argument(Flag):
    """A setting that is given by its position, without a name."""


StoreOption = Annotated[
    str,
    Flag(
        "redis://…, rediss://…, unix://…, cluster://HOST:PORT,…, sentinel://HOST:PORT,…/MASTER (+tls), or "
        "embedded:DIR, which starts or joins a Valkey in DIR.",
        "URL",
        default=DEFAULT_STORE,
        env="FTRIE_STORE",
    ),
]
