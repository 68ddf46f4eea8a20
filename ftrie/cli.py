"""The `ftrie` command line: registers all commands, and maps errors to one message and an exit code.

Each command is a module of `ftrie.commands` (see `ftrie.command`). Only the module of the command that is run is
imported, all of them for `ftrie --help`, which is why they import numba, pyarrow, grpc and redis inside the command
functions.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from collections.abc import Sequence
from contextvars import copy_context
from functools import cache
from types import FrameType
from typing import Annotated

import typer
from typer.exceptions import TyperException

import ftrie
from ftrie.command import Commands, all_commands, command_named, plain_help
from ftrie.terminal import json_output, set_json_output
from model_store.errors import FtrieError
from model_store.waiting import deferred

# 128 + SIGINT and 128 + SIGPIPE: what a shell reports of a process that ended by these signals.
INTERRUPTED = 130
BROKEN_PIPE = 141
_NEW_OBJECTS = 50_000


def main() -> None:
    """Run `ftrie` with the arguments of this process, and exit with its exit code.

    SIGTERM and SIGHUP end it as Ctrl-C does, so that an embedded Valkey and partly written files are cleaned up;
    `ftrie serve` installs its own handlers.
    """
    # Modules and kernels are a million objects that live as long as the process: with Python's 700 new objects between
    # two collections, a sixth of the time until the first row went into visiting them.
    gc.set_threshold(_NEW_OBJECTS)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):  # not under nohup
            signal.signal(number, _leave)
    # Each library with OpenBLAS starts a thread a core, which spins for a tenth of a second; nothing here needs them.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        sys.exit(run(sys.argv[1:]))
    finally:
        gc.freeze()  # the interpreter collects three times more as it ends: a third of the time of a short run


def _leave(number: int, frame: FrameType | None) -> None:
    # An exception raised inside LLVM or numba's lock would be lost or leave the lock taken: the signal comes again.
    if deferred(number, frame):
        return
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code. No user error ends in a traceback."""
    # In its own context, so that --json does not apply to the next command.
    return copy_context().run(_run, arguments)


def _run(arguments: Sequence[str]) -> int:
    # Before typer parses: a usage error is answered as JSON too.
    set_json_output("--json" in arguments)
    try:
        named = arguments[:1] if arguments and command_named(arguments[0]) else ()
        # Not standalone: typer would word errors and exit by itself.
        code = build(*named)(list(arguments) or ["--help"], prog_name="ftrie", standalone_mode=False)
        # Here, so that a closed pipe is an error inside this block and not at the interpreter's exit.
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except FtrieError as error:
        return _failed(type(error).__name__, str(error), error.exit_code)
    except TyperException as error:
        return _usage_error(error)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # Otherwise Python reports the closed pipe again when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except MemoryError as error:
        return _failed("MemoryError", f"not enough memory{f': {error}' if str(error) else ''}", 1)
    # No `except Exception` below: any other exception is a bug of ftrie and ends in a traceback (ARCHITECTURE.md).
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _failed(type(error).__name__, f"{where}{error.strerror or error}", 1)


@cache
def build(*names: str) -> typer.core.TyperGroup:
    """The command line with the commands of these names, or with all. Made once for each: it never changes."""
    app = Commands(
        "ftrie",
        "Learn click-through rates from logs, publish the models, serve rankings.",
        epilog="Start with `ftrie demo`, or with `ftrie init clicks.csv`.",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name, each in ({name: command_named(name) for name in names} or all_commands()).items():
        if isinstance(each, Commands):
            app.add_typer(each)
        else:
            app.command(name, epilog=each.epilog)(each)
    command = typer.main.get_command(app)
    assert isinstance(command, typer.core.TyperGroup)
    _add_variables(command, ())
    plain_help(command)
    return command


def _add_variables(command: object, words: tuple[str, ...]) -> None:
    """Let the flags of all commands be given in the environment.

    --top-k of `ftrie rank` gets the variable FTRIE_RANK_TOP_K, which precedes the variable of the flag itself.
    """
    if isinstance(command, typer.core.TyperGroup):
        for name, child in command.commands.items():
            _add_variables(child, (*words, name))
    elif isinstance(command, typer.core.TyperCommand):
        for option in command.params:
            if isinstance(option, typer.core.TyperOption):
                flag = max(option.opts, key=len).removeprefix("--")
                variable = "_".join(("ftrie", *words, flag)).upper().replace("-", "_")
                option.envvar = [variable, option.envvar] if isinstance(option.envvar, str) else variable


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"ftrie {ftrie.__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Print the version.",
        ),
    ] = False,
) -> None:
    """Learn click-through rates from logs, publish the models, serve rankings.

    Every flag can also be given in the environment: --port of `ftrie serve` is FTRIE_SERVE_PORT.
    """


def _usage_error(error: TyperException) -> int:
    message = error.format_message()
    if message.startswith("Usage:"):  # a command group without a command
        print(message, file=sys.stderr)
        return error.exit_code
    context: typer.Context | None = getattr(error, "ctx", None)
    hint = f" (see `{context.command_path} --help`)" if context else ""
    return _failed("UsageError", message + hint, error.exit_code)


def _failed(kind: str, message: str, code: int) -> int:
    if json_output():
        print(json.dumps({"error": {"type": kind, "message": message}}, ensure_ascii=False), file=sys.stderr)
    else:
        print(f"ftrie: {message}", file=sys.stderr)
    return code
