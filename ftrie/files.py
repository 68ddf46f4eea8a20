"""The files that each command reads and writes, and the check that an output can be written and names no input.

Truncating an input cannot be undone, and a run cannot be had back whose result has no place, so the check runs before
the command opens anything. It compares resolved paths and inodes after expanding globs. A test compares FILES with the
parameters of all commands.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path
from typing import Any

import typer

from model_store.errors import UsageError
from model_store.whole_file import check_writable


@dataclass(frozen=True)
class Files:
    """The parameters of a command that name files or folders it writes or reads."""

    writes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()


_LOG = ("inputs", "items", "users", "spec")
_ACCESS = ("tls_ca", "tls_cert", "tls_key")

FILES = {
    "init": Files(("output",), ("inputs",)),
    "doctor": Files((), _LOG),
    "train": Files(("report", "metrics", "rejects", "save", "checkpoint", "cache"), (*_LOG, "init_from")),
    "train-distributed": Files(("report", "rejects", "save", "checkpoint", "cache"), (*_LOG, "held_out")),
    "trainer": Files(("checkpoint", "save"), ("spec", "more", "sources", "init_from")),
    "checkpoint": Files((), ("folder",)),
    "tune": Files(("output", "report", "state", "cache"), _LOG),
    "report": Files(("output",), ("metrics",)),
    "evaluate": Files(("predictions", "report", "rejects"), (*_LOG, "model")),
    "audit": Files((), (*_LOG, "model")),
    "warmup": Files((), ("state",)),
    "replay": Files(("rejects", "save", "report"), ("spec", "logs", "policy", "items", "users")),
    "store import": Files((), ("file", "spec")),
    "store export": Files(("file",)),
    "store load users": Files((), ("file",)),
    "store load items": Files((), ("file",)),
    "store load candidates": Files((), ("file",)),
    "serve": Files(
        ("state", "shadow_log", "record", "impressions"), ("tls_cert", "tls_key", "tls_client_ca", "tokens")
    ),
    "rank": Files((), _ACCESS),
    "explain": Files((), _ACCESS),
    "feedback": Files((), (*_ACCESS, "file")),
    "admin status": Files((), _ACCESS),
    "admin versions": Files((), _ACCESS),
    "admin activate": Files((), _ACCESS),
    "admin rollback": Files((), _ACCESS),
    "admin reload": Files((), _ACCESS),
    "demo": Files(("keep",)),
    "dashboard": Files((), ("log", "password_file", "tls_cert", "tls_key")),
    "live": Files(("folder", "picture")),
    "simulate": Files((), _ACCESS),
    "bench serve": Files((), (*_ACCESS, "requests")),
}
# Prefixes of a path in sources of `ftrie trainer` and `ftrie replay` and in sinks of `ftrie serve`.
_PREFIXES = ("rows=", "impressions=", "clicks=", "file:")
_MAY_BE_MISSING = ("sources", "more")  # parameters whose files may not exist yet


def checked(words: str, command: typer.core.TyperCommand) -> Callable[..., Any]:
    """The command's callback, preceded by `check_outputs`."""
    assert command.callback is not None
    callback, files = command.callback, FILES[words]

    @functools.wraps(callback)
    def check_and_call(**values: Any) -> Any:
        check_outputs(command, files, values)
        return callback(**values)

    return check_and_call


def check_outputs(command: typer.core.TyperCommand, files: Files, values: dict[str, Any]) -> None:
    """Raise OutputError if an output cannot be written, UsageError if it names the file of an input or another output.

    An output inside a folder that is read is refused too: it would be read as a log.
    """
    options = {option.name: option for option in command.params}
    written: list[tuple[str, str, Path]] = []
    for name in files.writes:
        # A cache that cannot be written costs time alone: the run says so and goes on.
        if isinstance(values.get(name), Path) and options[name].metavar != "DIR" and name != "cache":
            check_writable(values[name])
        for text, path in _paths(values.get(name)):
            if path.exists() and not (path.is_file() or path.is_dir()):
                continue  # a device or a pipe
            flag = f"{_flag(options[name])} {text}"
            for read_name in files.reads:
                for read_text, read in _paths(values.get(read_name)):
                    in_folder = path.parent == read and read.is_dir() and options[name].metavar != "DIR"
                    is_new = path == read and read_name in _MAY_BE_MISSING
                    if _same(path, read) or in_folder or is_new:
                        raise UsageError(
                            f"{flag}: {text} is an input of this run ({_flag(options[read_name])} {read_text}); "
                            "write to another file"
                        )
            for other_flag, _, other in written:
                if path == other or _same(path, other):
                    raise UsageError(f"{other_flag} and {flag} name the same file; write to two files")
            written.append((flag, text, path))


def _paths(value: Any) -> Iterator[tuple[str, Path]]:
    """The files that a parameter's value may name, each as given and as a resolved path."""
    for given in value if isinstance(value, list | tuple) else [value]:
        text = str(given) if given is not None else ""
        for prefix in _PREFIXES:
            text = text.removeprefix(prefix)
        if text in ("", "-") or "\0" in text:
            continue
        names = {text, text.partition("@")[0], text.partition("#")[0]} - {""}
        if has_magic(text):
            names.update(glob(text, recursive=True))
        for name in sorted(names):
            yield str(given), Path(name).resolve()


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False  # one of them does not exist


def _flag(option: Any) -> str:
    """A parameter's name in messages: --rejects, or INPUT."""
    if isinstance(option, typer.core.TyperOption):
        return str(max(option.opts, key=len))
    return str(option.metavar or option.name.upper()).rstrip("…")
