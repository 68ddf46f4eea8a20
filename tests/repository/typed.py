"""Code in documents: finding it, and typing it into a shell, or into Python, as a reader would.

`fences_of` finds the fenced blocks of a page; `blocks_of` those that are run: commands (blocks without a language in
which a line begins with `$ ` or the first line with the name of a program; `sh`), `redis` commands, and `python`, whose
blocks of one page share one interpreter. Comments before the fence, which readers do not see, may say:

    <!-- not run: REASON -->      this block cannot run in a test
    <!-- run by: tests/FILE -->   that test runs, or compares, what the block shows
    <!-- slow -->                 only in the slow tests
    <!-- before: COMMAND -->      what the text has the reader do first; may be repeated
    <!-- needs: MODULE -->        only where that Python package is installed
    <!-- file: NAME -->           the block is a file that the reader saves under this name
    <!-- output of: COMMAND -->   the block is what that command prints
    <!-- output -->               the block is what the Python block above it prints
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import eventually

PROGRAM = re.compile(
    r"(?:[A-Z_]+=\S* )*(?:\.venv/bin/)?"
    r"(?:ftrie|make|python|pytest|pip|printf|redis-cli|openssl|docker|kubectl|systemctl) "
)
COMMENT = re.compile(r"<!-- (not run|run by|before|slow|needs|file|output of|output)(?:: (.+))? -->")
IN_BACKGROUND = re.compile(r"(?<!&)&\s*(?:#.*)?$")
STAYS = re.compile(r"ftrie (?:serve|trainer)\b(?!.*--once)")
READY = re.compile(r"^(?:serving |\d[\d,]* events )", re.MULTILINE)
REQUEST_ID = re.compile(r"\b[0-9a-f]{32}\b")
NUMBER = re.compile(r"\d[\d,.]*")
TIMEOUT_S = 150.0


@dataclass(frozen=True)
class Command:
    """One command and the output that the document shows for it, both as written."""

    text: str
    output: tuple[str, ...]


@dataclass(frozen=True)
class Fence:
    """A fenced block as written: where it is, its language, its lines, and the comments above it."""

    page: str
    line: int
    language: str
    body: tuple[str, ...]
    comments: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    def said(self, kind: str) -> list[str]:
        return [what for each, what in self.comments if each == kind]

    @property
    def has_commands(self) -> bool:
        """Whether a line of it is a command of a shell."""
        return any(line.startswith("$ ") for line in self.body) or bool(
            self.body and PROGRAM.match(self.body[0])
        )


@dataclass(frozen=True)
class Block:
    """A block that is run: where it is, what it needs before, why it is not run ("" where it is).

    It is commands, or Python code with the output that is shown for it, or a file that is saved.
    """

    page: str
    line: int
    commands: tuple[Command, ...]
    before: tuple[str, ...]
    not_run: str
    slow: bool
    python: Command | None = None
    file: tuple[str, str] | None = None
    needs: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def fences_of(page: str, text: str) -> list[Fence]:
    lines = text.splitlines()
    marks = [number for number, line in enumerate(lines) if line.lstrip().startswith("```")]
    return [
        Fence(
            page,
            start + 1,
            lines[start].strip().removeprefix("```"),
            tuple(lines[start + 1 : end]),
            tuple(reversed(list(_comments_above(lines, start)))),
        )
        for start, end in zip(marks[::2], marks[1::2], strict=True)
    ]


def blocks_of(page: str, text: str) -> Iterator[Block]:
    """The blocks of a page that are run, in order."""
    fences = fences_of(page, text)
    for number, fence in enumerate(fences):
        commands: list[Command] = []
        python = file = None
        if fence.said("run by"):
            continue
        if fence.said("file"):
            file = fence.said("file")[0], "\n".join((*fence.body, ""))
        elif fence.said("output of"):
            commands = [Command(fence.said("output of")[0], fence.body)]
        elif fence.language == "python":
            after = fences[number + 1] if number + 1 < len(fences) else fence
            shown = after.body if ("output", "") in after.comments else ()
            python = Command("\n".join(fence.body), shown)
        elif fence.language == "redis":
            commands = [Command(_redis(line), ()) for line in fence.body]
        elif fence.language == "sh" and not fence.has_commands:
            commands = [Command("\n".join(fence.body), ())]
        elif fence.language in ("", "sh") and fence.has_commands:
            prompted = any(line.startswith("$ ") for line in fence.body)
            commands = list(_prompted([*fence.body]) if prompted else _plain([*fence.body]))
        if commands or python or file:
            yield Block(
                page,
                fence.line,
                tuple(commands),
                tuple(fence.said("before")),
                next(iter(fence.said("not run")), ""),
                ("slow", "") in fence.comments,
                python,
                file,
                tuple(fence.said("needs")),
            )


def _redis(line: str) -> str:
    return f"redis-cli {shlex.join(line.split())}"


def _comments_above(lines: list[str], fence: int) -> Iterator[tuple[str, str]]:
    for line in reversed(lines[:fence]):
        found = COMMENT.fullmatch(line.strip())
        if found is None:
            return
        yield found[1], found[2] or ""


def _prompted(body: list[str]) -> Iterator[Command]:
    """Commands are the lines after `$ `; what follows is their output."""
    text, output = "", list[str]()
    for line in body:
        if text.endswith("\\"):
            text = f"{text}\n{line}"
        elif line.startswith("$ "):
            if text:
                yield Command(text, tuple(output))
            text, output = line[2:], []
        elif line:
            output.append(line)
    yield Command(text, tuple(output))


def _plain(body: list[str]) -> Iterator[Command]:
    for text in re.split(r"(?<!\\)\n", "\n".join(body)):
        if text.strip():
            yield Command(text, ())


def differences(documented: Iterable[str], real: str) -> list[str]:
    """The documented lines that the output lacks: the first one, but for its numbers, and all that have no number."""
    printed = {_shape(line) for line in real.splitlines()}
    expected = [line for number, line in enumerate(documented) if number == 0 or not NUMBER.search(line)]
    return [line for line in expected if not line.startswith("…") and _shape(line) not in printed]


def _shape(line: str) -> str:
    return " ".join(re.sub("─+", "─", NUMBER.sub("0", REQUEST_ID.sub("0", line))).split())


# A Python that runs blocks in one namespace, as a notebook does: a line of JSON in, a line of JSON out.
INTERPRETER = """
import ast, contextlib, io, json, os, sys, traceback
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
names = {"__name__": "__main__"}
for line in sys.stdin:
    folder, code = json.loads(line)
    os.chdir(folder)
    printed, failed = io.StringIO(), False
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            tree = ast.parse(code)
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, "block", "exec"), names)
            value = None if last is None else eval(compile(ast.Expression(last.value), "block", "eval"), names)
            if value is not None:
                print(value)
        except BaseException:
            failed = True
            traceback.print_exc()
    print(json.dumps([failed, printed.getvalue()]), file=answers, flush=True)
"""


class Shell:
    """A shell in one folder in which the commands of a page are typed, one after the other; and a Python beside it.

    `replaced` maps patterns to what is put in their place: hosts, ports and folders only. Use it as a context; leaving
    it ends what runs in the background with SIGTERM, the last first, and `exits` has how each ended.
    """

    def __init__(
        self, folder: Path, environment: Mapping[str, str], replaced: Mapping[str, str] | None = None
    ) -> None:
        self.folder = self._now = folder
        self.environment = {**environment}
        self.replaced = dict(replaced or {})
        self.exits: list[tuple[str, int]] = []
        self._running: list[tuple[str, subprocess.Popen[bytes], Path]] = []
        self._python: subprocess.Popen[str] | None = None

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        if self._python is not None:
            self._python.communicate(timeout=TIMEOUT_S)
        for text, process, output in reversed(self._running):
            self._end(text, process, output)
        self._running.clear()

    def run(self, block: Block) -> None:
        """Type a block; each command must end with 0, and Python raise nothing; and print what the document shows."""
        if not all(importlib.util.find_spec(name) for name in block.needs):
            return
        for text in block.before:
            code, output = self.type(text)
            assert code == 0, f"exit code {code}: {block}: before: {text}\n{output}"
        if block.file is not None:
            (self._now / block.file[0]).write_text(block.file[1], "utf-8")
        if block.python is not None:
            failed, output = self.python(block.python.text)
            assert not failed, f"{block}:\n{output}"
            assert differences(block.python.output, output) == [], f"{block}:\n{output}"
        for command in block.commands:
            code, output = self.type(command.text)
            where = f"{block}: $ {command.text}\n{output}"
            assert code == 0, f"exit code {code}: {where}"
            assert differences(command.output, output) == [], where
            # What later commands name is the request that was really answered.
            ids = REQUEST_ID.findall("\n".join(command.output)), REQUEST_ID.findall(output)
            self.replaced |= zip(*ids, strict=False)

    def type(self, text: str) -> tuple[int, str]:
        """Type one command; gives its exit code and all that it printed until it ended, or was ready."""
        for pattern, instead in self.replaced.items():
            text = re.sub(pattern, instead, text)
        if IN_BACKGROUND.search(text):
            return self._start(IN_BACKGROUND.sub("", text), stays=True)
        if STAYS.search(text):
            return self._start(text, stays=False)
        place = self.folder / ".now"
        with subprocess.Popen(
            ["bash", "-c", f"{text}\n code=$?; pwd > '{place}'; exit $code"],
            cwd=self._now,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=TIMEOUT_S)
            except BaseException:  # the test's own end, too: what the command started must not stay
                os.killpg(process.pid, signal.SIGTERM)
                raise
        self._now = Path(place.read_text("utf-8").strip())
        return process.returncode, output.decode()

    def python(self, code: str) -> tuple[bool, str]:
        """Run a block of Python; gives whether it raised, and all that it printed. Names stay for the next block."""
        for pattern, instead in self.replaced.items():
            code = re.sub(pattern, instead, code)
        if self._python is None:
            self._python = subprocess.Popen(
                [sys.executable, "-c", INTERPRETER],
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._python.stdin is not None and self._python.stdout is not None
        print(json.dumps([str(self._now), code]), file=self._python.stdin, flush=True)
        answer = self._python.stdout.readline()
        assert answer, f"Python ended while it ran:\n{code}"
        failed, output = json.loads(answer)
        return failed, output

    def _start(self, text: str, *, stays: bool) -> tuple[int, str]:
        """Start what does not end by itself; in the foreground it is ended once it is ready, as by Ctrl-C."""
        printed = self.folder / f".printed-{len(self._running)}-{len(self.exits)}"
        with printed.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {text}"],
                cwd=self._now,
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

        def is_ready() -> bool:
            return READY.search(printed.read_text("utf-8")) is not None

        eventually(
            lambda: is_ready() or process.poll() is not None, f"what {text} prints when ready", TIMEOUT_S
        )
        ready = is_ready()
        if ready and stays:
            self._running.append((text, process, printed))
            return 0, printed.read_text("utf-8")
        self._end(text, process, printed)
        return self.exits[-1][1] if ready else process.returncode or 1, printed.read_text("utf-8")

    def _end(self, text: str, process: subprocess.Popen[bytes], printed: Path) -> None:
        if process.poll() is None:
            process.terminate()
        try:
            self.exits.append((text, process.wait(TIMEOUT_S)))
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)


class OneShell(Shell):
    """The same in one bash with job control, as a terminal has it: `kill %1` there stops what was typed with `&`."""

    def __enter__(self) -> OneShell:
        self._all = self.folder / ".typed"
        with self._all.open("wb") as output:
            self._bash = subprocess.Popen(
                ["bash"],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        self.type("set -m")
        return self

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        self._bash.communicate("kill $(jobs -p) 2> /dev/null; wait\n", TIMEOUT_S)

    def type(self, text: str) -> tuple[int, str]:
        """See Shell."""
        for pattern, instead in self.replaced.items():
            text = re.sub(pattern, instead, text)
        begin, in_background = self._all.stat().st_size, IN_BACKGROUND.search(text)
        if in_background or not STAYS.search(text):
            code = self._line(text, begin)
            if in_background:
                self._until(READY, begin, text)
            return code, self._printed(begin)
        self._line(f"{text} &", begin)
        self._until(READY, begin, text)
        return self._line("kill -INT %%; wait %%", self._all.stat().st_size), self._printed(
            begin
        )  # as Ctrl-C does

    def left(self) -> list[str]:
        """The command lines of the processes started in this shell that still run."""
        mark = f"{self.folder.parent}/".encode()
        found = []
        own = {str(process.pid) for process in (self._bash, self._python) if process is not None}
        for each in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended, or is another user's
                if each.name not in own and mark in (each / "environ").read_bytes():
                    found.append((each / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        return found

    def _line(self, text: str, begin: int) -> int:
        """Type a line, and wait for the exit code of what it runs in the foreground."""
        assert self._bash.stdin is not None
        # `jobs` forgets those that have ended, as a prompt does: the next is %1 again.
        line = f'{text}\ncode=$?; jobs > .jobs; echo " $code typed-{begin}"'
        print(line, file=self._bash.stdin, flush=True)
        return int(self._until(re.compile(rf" (\d+) typed-{begin}\n"), begin, text)[1])

    def _until(self, pattern: re.Pattern[str], begin: int, text: str) -> re.Match[str]:
        found: re.Match[str] | None = None

        def is_printed() -> bool:
            nonlocal found
            found = pattern.search(self._printed(begin))
            return found is not None

        try:
            eventually(is_printed, f"the end of {text}, or what it prints when ready", TIMEOUT_S)
        except AssertionError as error:
            error.add_note(self._printed(begin))
            raise
        assert found is not None
        return found

    def _printed(self, begin: int) -> str:
        return self._all.read_bytes()[begin:].decode()
