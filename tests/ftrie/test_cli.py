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

from ftrie.cli import build
from ftrie.command import all_commands
from ftrie.terminal import json_output
from model_store.files import is_held
from model_store.redis.embedded import LOCK, SOCKET
from tests.ftrie.conftest import Ask, Say
from tests.matrix import slow_except
from tests.waiting import eventually

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


def test_every_command_says_what_it_does_and_gives_an_example() -> None:
    for words, command in commands():
        assert command.help, words
        assert (command.epilog or "").startswith((f"Example: ftrie {words}", f"Examples: ftrie {words}"))
        undocumented = [each.name for each in command.params if not getattr(each, "help", None)]
        assert not undocumented, words


def test_every_command_is_in_one_group_of_the_help_and_only_the_one_that_runs_is_imported() -> None:
    assert sorted(build().commands) == sorted(all_commands())
    script = (
        "import sys; from ftrie.cli import run; run(['rank', '--help']); print(*sys.modules); run(['--help']); "
        f"heavy = [m for m in {HEAVY} if m in sys.modules]; assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Learn:" in done.stdout
    imported = {name.replace("_", "-") for name in re.findall(r"ftrie\.commands\.(\w+)", done.stdout)}
    assert imported & {*all_commands()} == {"rank"}


def test_import_ftrie_and_what_asks_a_server_or_lists_versions_import_only_what_they_need() -> None:
    closed = ["--address", "127.0.0.1:1", "--timeout", "0.1"]
    for call, less in (
        (["rank", "ads", "--candidates", "a", *closed], {"grpc"}),
        (["store", "versions", "ads", "--store", "redis://127.0.0.1:1"], {"redis", "numpy"}),
        (["experiment", "show", "ads", "--store", "redis://127.0.0.1:1"], {"redis", "numpy"}),
        ([], set()),
    ):
        script = (
            f"import sys, ftrie; from ftrie.cli import run; {call} and run({call}); "
            f"print([m for m in {[*HEAVY, 'structlog', 'pandas']} if m in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        imported = set(re.findall(r"'(\w+)'", done.stdout.splitlines()[-1]))
        assert imported <= less, call


def groups(command: object, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield words
    if isinstance(command, typer.core.TyperGroup):
        for name, below in command.commands.items():
            yield from groups(below, (*words, name))


def test_help_has_whole_sentences_and_no_types(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for words in groups(build()):
        code, shown, _ = say(*words, "--help")
        assert code == 0
        assert not re.search(r"<(int|float|str|path|list|text|bool|tuple)", shown, re.IGNORECASE), words
        assert not re.search(r"\w\.\.\.$", shown, re.MULTILINE), f"a sentence is cut off: {words}"
        assert max(map(len, shown.splitlines())) <= 80, words
    assert say()[:2] == say("--help")[:2]


@pytest.mark.parametrize("shell", slow_except(["bash"], ["bash", "zsh", "fish"]))
def test_completion_is_installed_for_the_shell_named(shell: str, tmp_path: Path) -> None:
    words = {"bash": {"COMP_WORDS": "ftrie tr", "COMP_CWORD": "1"}}.get(
        shell, {"_TYPER_COMPLETE_ARGS": "ftrie tr", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    )
    variables = {**os.environ, "_FTRIE_COMPLETE": f"complete_{shell}", **words}
    done = subprocess.run([*FTRIE], env=variables, capture_output=True, text=True, check=False)
    names = ["train", "trainer", "train-distributed"]
    assert [name for name in names if name in done.stdout] == names
    assert "tune" not in done.stdout

    variables = {**os.environ, "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    install = [*FTRIE, "--install-completion", shell]
    done = subprocess.run(install, env=variables, capture_output=True, text=True, check=False)
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
    assert done.stdout.startswith("ftrie ")


def test_bench_lists_what_it_can_run(ask: Ask, say: Say) -> None:
    code, shown, _ = say("bench", "--help")
    assert code == 0 and "trie" in shown and "FlatTrie beside a dict" in shown
    listed = ask("bench", "list")
    assert all(each["measures"] for each in listed) and len(listed) > 20


def test_an_error_is_one_message_or_json_and_an_exit_code(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = ["train", str(tmp_path / "none.toml"), "none.csv"]

    def is_json() -> bool:
        code, out, err = say(*failing, "--json")
        assert (code, out) == (2, "")
        return bool(json.loads(err)["error"]["type"] == "SpecError")

    assert is_json()
    code, _, err = say(*failing)  # the JSON of one command is not the next one's
    assert code == 2 and not json_output()
    assert err.splitlines()[-1].startswith("ftrie: ")
    assert "none.toml" in err and "Traceback" not in err
    monkeypatch.setenv("FTRIE_JSON", "1")
    assert json.loads(say(*failing)[2])["error"]["type"] == "SpecError"


def test_a_wrong_flag_is_a_usage_error_and_a_flag_can_be_given_in_the_environment(
    say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = say("rank", "ads", "--nope")
    assert (code, "`ftrie rank --help`" in err) == (2, True)
    monkeypatch.setenv("FTRIE_RANK_TOP_K", "0")
    code, _, err = say("rank", "ads", "--candidates", "a")
    assert (code, "--top-k" in err) == (2, True)
    # Under the name of the flag for one command, or the short one for all.
    text = " ".join(say("train", "--help")[1].split())
    assert "env var: FTRIE_TRAIN_FORMAT" in text
    assert "env var: FTRIE_TRAIN_STORE, FTRIE_STORE" in text
    assert "env var: FTRIE_TRAIN_JSON, FTRIE_JSON" in text


def test_a_reader_that_went_away_causes_no_traceback() -> None:
    read, write = os.pipe()
    os.close(read)
    finished = subprocess.run([*FTRIE, "--help"], stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert finished.returncode != 0
    assert finished.stderr == b""


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


@pytest.mark.parametrize(
    ("number", "call"), [(signal.SIGTERM, 12), pytest.param(signal.SIGINT, 1, marks=pytest.mark.slow)]
)
def test_a_signal_while_llvm_calls_back_ends_the_command(tmp_path: Path, number: int, call: int) -> None:
    # Raised there, an exception is lost (the first call) or ends in SIGSEGV (a later one).
    spec, log = tmp_path / "ads.toml", tmp_path / "log.csv"
    spec.write_text('[model]\nname = "ads"\n[input]\nlabel = "y"\n')
    log.write_text("y,a\n1,x\n" * 50)
    watched = [sys.executable, "-c", SIGNALLED_IN_LLVM, str(int(number)), str(call)]
    command = [*watched, "train", str(spec), str(log)]
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
            eventually((store / SOCKET).exists)
            training.send_signal(number)
            assert training.wait(60) == 128 + number
        finally:
            training.kill()
        assert training.stderr is not None
        assert b"Traceback" not in training.stderr.read()
    assert not is_held(store / LOCK)
