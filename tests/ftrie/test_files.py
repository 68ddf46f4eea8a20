"""No output of a command names an input, whichever command and however the two are spelled; each has a place."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftrie.command import Parameter, check_outputs
from model_store.errors import OutputError, UsageError
from tests.ftrie.conftest import Say
from tests.ftrie.test_cli import commands

COMMANDS: dict[str, dict[str, Parameter]] = {
    words: command.callback.__dict__["parameters"] for words, command in commands()
}
LOG = "click,age\n1,25\n0,31\n"
NAMES_FILES = re.compile(r"FILE|PATH|DIR|TOML|SPEC|SOURCE|SINK|INPUT|LOG\b|METRICS")
WRITTEN, READ = ("writes", "keeps"), ("reads", "follows")
PAIRS = [
    (words, out.name, read.name)
    for words, parameters in COMMANDS.items()
    for out in parameters.values()
    for read in parameters.values()
    if out.flag.file in WRITTEN and read.flag.file in READ
]


def refused(words: str, **values: Any) -> str:
    with pytest.raises(UsageError) as error:
        check_outputs(COMMANDS[words], values)
    return str(error.value)


def test_every_parameter_that_names_a_file_is_known_as_written_or_read() -> None:
    for words, parameters in COMMANDS.items():
        for each in parameters.values():
            names_a_file = "Path" in str(each.kind) or NAMES_FILES.search(each.flag.metavar or "")
            assert each.flag.file or not names_a_file, f"say file=… in the Flag of {each.shown} of {words!r}"


def linked(path: Path, how: Callable[[Path, Path], None]) -> str:
    other = path.with_name("other")
    how(path, other)
    return str(other)


SPELLINGS: dict[str, Callable[[Path], str]] = {
    "same": str,
    "relative": lambda path: os.path.relpath(path),
    "dotted": lambda path: str(path.parent / "." / "x" / ".." / path.name),
    "link": lambda path: linked(path, os.symlink),
    "hard-link": lambda path: linked(path, os.link),
    "glob": lambda path: str(path.parent / "*.csv"),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_an_output_that_is_an_input_is_refused_in_every_command(tmp_path: Path, spelling: str) -> None:
    (tmp_path / "x").mkdir()
    log = tmp_path / "a.csv"
    log.write_text(LOG)
    name = SPELLINGS[spelling](log)
    for words, out, read in PAIRS:
        message = refused(words, **{out: log, read: [name]})
        assert (
            str(log) in message
            and f"is an input of this run ({COMMANDS[words][read].shown} {name})" in message
        )
        assert message.startswith(COMMANDS[words][out].shown)


def test_prefixes_and_suffixes_of_names_are_understood_and_two_outputs_are_two_files(tmp_path: Path) -> None:
    log, new = tmp_path / "a.jsonl", tmp_path / "new"
    log.write_text("")
    for name in (f"rows={log}", f"clicks={log}", f"{log}#clicks"):
        assert "is an input" in refused("trainer", save=log, sources=[name])
    assert "is an input" in refused("replay", save=log, policy=[f"{log}@base"])
    assert "is an input" in refused("serve", impressions=[f"file:{log}"], tokens=str(log))
    assert "is an input" in refused("trainer", save=new, sources=[str(new)])
    assert "is an input" in refused("trainer", save=new, sources=[str(tmp_path)])
    message = refused("train", report=new, rejects=new)
    assert message == f"--report {new} and --rejects {new} name the same file; write to two files"


def test_other_files_devices_and_names_of_models_are_no_inputs(tmp_path: Path) -> None:
    log, new, null = tmp_path / "a.csv", tmp_path / "new", Path(os.devnull)
    log.write_text(LOG)
    values: list[tuple[str, dict[str, Any]]] = [
        ("evaluate", {"inputs": [str(log), "-", "c/*.csv"], "predictions": new, "rejects": None}),
        ("evaluate", {"inputs": [str(log)], "predictions": null, "rejects": null}),
        ("evaluate", {"model": str(new), "predictions": new}),
        ("trainer", {"sources": [str(tmp_path)], "checkpoint": tmp_path / "state"}),
    ]
    for words, given in values:
        check_outputs(COMMANDS[words], given)


OUTPUTS = [
    (words, each.name)
    for words, parameters in COMMANDS.items()
    for each in parameters.values()
    # A cache that cannot be written stops no run.
    if words != "serve" and each.flag.file == "writes" and each.flag.metavar != "DIR"
]


@pytest.mark.parametrize(("words", "name"), OUTPUTS)
def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    words: str, name: str, tmp_path: Path
) -> None:
    for path in (tmp_path, tmp_path / "none" / "page.html"):
        with pytest.raises(OutputError, match=f"cannot write {path}: "):
            check_outputs(COMMANDS[words], {name: path})


def test_nothing_is_truncated_before_the_check(tmp_path: Path, monkeypatch: Any, say: Say) -> None:
    monkeypatch.chdir(tmp_path)
    log = Path("c/a.csv")
    log.parent.mkdir()
    log.write_text(LOG)
    for words in (
        "evaluate m.arrow c/*.csv --rejects c/a.csv",
        "replay s.toml c/a.csv --rejects c/a.csv",
        "replay s.toml c/a.csv --report c/a.csv",
        "trainer s.toml --from c/a.csv --save c/a.csv",
        "tune s.toml c/a.csv -o c/a.csv --force",
    ):
        code, _, err = say(*words.split())
        assert (code, "c/a.csv is an input of this run" in err) == (2, True), words
        assert log.read_text() == LOG
