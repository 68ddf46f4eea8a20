"""The face of the command line: help, errors, exit codes, the environment."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from ftrie.cli import build, run
from ftrie.help import COMMANDS
from ftrie.terminal import json_output
from model_store.locks import is_held
from model_store.redis.embedded import LOCK, SOCKET

FTRIE = (sys.executable, "-m", "ftrie")
HEAVY = ("numba", "pyarrow", "grpc", "redis", "numpy")


def commands() -> Iterator[tuple[str, typer.core.TyperCommand]]:
    def walk(words: str, command: object) -> Iterator[tuple[str, typer.core.TyperCommand]]:
        if isinstance(command, typer.core.TyperGroup):
            for name, below in command.commands.items():
                yield from walk(f"{words} {name}".strip(), below)
        elif isinstance(command, typer.core.TyperCommand):
            yield words, command

    return walk("", build())


@pytest.mark.parametrize(("words", "command"), [pytest.param(*each, id=each[0]) for each in commands()])
def test_every_command_says_what_it_does_and_gives_an_example(
    words: str, command: typer.core.TyperCommand
) -> None:
    assert command.help
    assert (command.epilog or "").startswith((f"Example: ftrie {words}", f"Examples: ftrie {words}"))
    undocumented = [parameter.name for parameter in command.params if not getattr(parameter, "help", None)]
    assert not undocumented


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; from ftrie.cli import run; run(['--help']); "
        f"sys.exit(', '.join(m for m in {HEAVY} if m in sys.modules) or None)"
    )
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (finished.returncode, finished.stderr) == (0, "")


def test_without_arguments_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    assert "Learn:" in capsys.readouterr().out


def groups(command: object, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield words
    if isinstance(command, typer.core.TyperGroup):
        for name, below in command.commands.items():
            yield from groups(below, (*words, name))


@pytest.mark.parametrize("words", [pytest.param(each, id=" ".join(each)) for each in groups(build())])
def test_help_has_whole_sentences_and_no_types(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run([*words, "--help"]) == 0
    shown = capsys.readouterr().out
    assert not re.search(r"<(int|float|str|path|list|text|bool|tuple)", shown, re.IGNORECASE)
    assert not re.search(r"\w\.\.\.$", shown, re.MULTILINE), "a sentence is cut off"
    assert max(map(len, shown.splitlines())) <= 80


def test_every_command_is_in_one_group_of_the_help_and_only_the_one_that_runs_is_imported() -> None:
    assert sorted(build().commands) == sorted(COMMANDS)
    code = "import sys; from ftrie.cli import run; run(['rank', '--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = {name.replace("_", "-") for name in re.findall(r"ftrie\.commands\.(\w+)", done.stdout)}
    assert imported & {*COMMANDS} == {"rank"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    words = {"bash": {"COMP_WORDS": "ftrie tr", "COMP_CWORD": "1"}}.get(
        shell, {"_TYPER_COMPLETE_ARGS": "ftrie tr", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    )
    variables = {**os.environ, "_FTRIE_COMPLETE": f"complete_{shell}", **words}
    done = subprocess.run([*FTRIE], env=variables, capture_output=True, text=True, check=False)
    assert [name for name in ("train", "trainer", "train-distributed") if name in done.stdout] == [
        *("train", "trainer", "train-distributed")
    ]
    assert "tune" not in done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_installing_completion_writes_for_the_shell_named(shell: str, tmp_path: Path) -> None:
    variables = {**os.environ, "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run(
        [*FTRIE, "--install-completion", shell], env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("ftrie" in path.read_text() for path in written)
    assert all(shell in str(path) or ".zfunc" in str(path) for path in written)


def test_folders_of_the_user_do_not_replace_ours(tmp_path: Path) -> None:
    for name in ("server", "trainer", "model_store", "ctr"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('the user's own')")
    done = subprocess.run([*FTRIE, "--version"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_bench_lists_what_it_can_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "trie" in shown and "FlatTrie beside a dict" in shown
    assert run(["bench", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert all(each["measures"].endswith(".") or each["measures"] for each in listed) and len(listed) > 20


def test_a_domain_error_is_one_message_and_its_exit_code(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["train", str(tmp_path / "none.toml"), "none.csv"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("ftrie: ")
    assert "none.toml" in error
    assert "Traceback" not in error


def test_with_json_the_error_is_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["train", str(tmp_path / "none.toml"), "none.csv", "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert json.loads(captured.err)["error"]["type"] == "SpecError"


def test_the_json_of_one_command_is_not_the_next_ones(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for flags in (["--json"], []):
        assert run(["train", str(tmp_path / "none.toml"), "none.csv", *flags]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("ftrie: ")
    assert not json_output()


def test_a_wrong_flag_is_a_usage_error_that_says_where_to_look(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rank", "ads", "--nope"]) == 2
    assert "`ftrie rank --help`" in capsys.readouterr().err


def test_a_flag_can_be_given_in_the_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FTRIE_RANK_TOP_K", "0")
    assert run(["rank", "ads", "--candidates", "a"]) == 2
    assert "--top-k" in capsys.readouterr().err


def test_the_environment_uses_the_name_of_the_flag_for_one_command_or_the_short_one_for_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["train", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "env var: FTRIE_TRAIN_FORMAT" in text
    assert "env var: FTRIE_TRAIN_STORE, FTRIE_STORE" in text
    assert "env var: FTRIE_TRAIN_JSON, FTRIE_JSON" in text


def test_json_can_be_asked_for_in_the_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FTRIE_JSON", "1")
    assert run(["train", str(tmp_path / "none.toml"), "none.csv"]) == 2
    assert json.loads(capsys.readouterr().err)["error"]["type"] == "SpecError"


def test_a_reader_that_went_away_causes_no_traceback() -> None:
    read, write = os.pipe()
    os.close(read)
    finished = subprocess.run([*FTRIE, "--help"], stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert finished.stderr == b""
    assert finished.returncode != 0


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("ftrie ")


SIGNALLED_IN_LLVM = """
import os, signal, sys
from ftrie.cli import main

number, left = int(sys.argv[1]), int(sys.argv[2])

def watch(frame, event, argument):
    global left
    if event == "call" and frame.f_code.co_name.startswith("_raw_object_cache_"):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), number)

sys.setprofile(watch)
sys.argv[1:] = sys.argv[3:]
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("call", [1, 12])
def test_a_signal_while_llvm_calls_back_ends_the_command(tmp_path: Path, number: int, call: int) -> None:
    # Raised there, an exception is lost (the first call) or ends in SIGSEGV (a later one).
    spec, log = tmp_path / "ads.toml", tmp_path / "log.csv"
    spec.write_text('[model]\nname = "ads"\n[input]\nlabel = "y"\n')
    log.write_text("y,a\n1,x\n" * 50)
    command = [
        sys.executable,
        "-c",
        SIGNALLED_IN_LLVM,
        str(int(number)),
        str(call),
        "train",
        str(spec),
        str(log),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 128 + number, ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_training_that_is_terminated_stops_the_valkey_it_started(tmp_path: Path, number: int) -> None:
    spec, store = tmp_path / "ads.toml", tmp_path / "store"
    spec.write_text('[model]\nname = "ads"\n[input]\nlabel = "y"\n')
    command = [*FTRIE, "train", str(spec), "-", "--store", f"embedded:{store}", "--activate"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as training:
        assert training.stdin is not None
        try:
            training.stdin.write(b"y,a\n1,x\n")
            training.stdin.flush()
            while not (store / SOCKET).exists():
                assert training.poll() is None
            training.send_signal(number)
            assert training.wait(60) == 128 + number
        finally:
            training.kill()
        assert training.stderr is not None
        assert b"Traceback" not in training.stderr.read()
    assert not is_held(store / LOCK)
