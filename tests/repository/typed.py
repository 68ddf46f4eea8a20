"""Commands in documents: finding them, and typing them into a shell as a reader would.

A block of commands is a fenced block without a language in which a line begins with `$ ` or its first line with the
name of a program. Comments before the fence, which readers do not see, may say:

    <!-- not run: REASON -->      this block cannot run in a test
    <!-- slow -->                 only in the slow tests
    <!-- before: COMMAND -->      what the text has the reader do first; may be repeated
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PROGRAM = re.compile(
    r"(?:[A-Z_]+=\S* )*(?:ftrie|make|python|pytest|pip|printf|redis-cli|openssl|docker|kubectl|systemctl) "
)
COMMENT = re.compile(r"<!-- (not run|before|slow)(?:: (.+))? -->")
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
class Block:
    """A block of commands: where it is, what it needs before, why it is not run ("" where it is)."""

    page: str
    line: int
    commands: tuple[Command, ...]
    before: tuple[str, ...]
    not_run: str
    slow: bool

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: str, text: str) -> Iterator[Block]:
    """The blocks of commands of a page, in order."""
    lines = text.splitlines()
    fences = [number for number, line in enumerate(lines) if line.lstrip().startswith("```")]
    for start, end in zip(fences[::2], fences[1::2], strict=True):
        body = lines[start + 1 : end]
        prompted = any(line.startswith("$ ") for line in body)
        if lines[start].strip() not in ("```", "```sh") or not (prompted or PROGRAM.match(body[0])):
            continue
        said = list(_comments_above(lines, start))
        yield Block(
            page,
            start + 1,
            tuple(_prompted(body) if prompted else _plain(body)),
            tuple(what for kind, what in reversed(said) if kind == "before"),
            next((what for kind, what in said if kind == "not run"), ""),
            any(kind == "slow" for kind, _ in said),
        )


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
    """Every line is a command."""
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


class Shell:
    """A shell in one folder in which the commands of a page are typed, one after the other.

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

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        for text, process, output in reversed(self._running):
            self._end(text, process, output)
        self._running.clear()

    def run(self, block: Block) -> None:
        """Type a block; each command must end with 0 and print what the document shows."""
        for text in block.before:
            self.type(text)
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
        deadline = time.monotonic() + TIMEOUT_S
        while not READY.search(printed.read_text("utf-8")):
            if process.poll() is not None or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        ready = READY.search(printed.read_text("utf-8")) is not None
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
