"""The n-th failure of commands that change a store or write from it, run as typed: one line says why."""

from __future__ import annotations

import io
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from redis import Redis

from ftrie.cli import run
from model_store.artefact.artefact import Artefact
from model_store.errors import FtrieError
from model_store.features.history import UserHistory
from model_store.files import is_held
from model_store.keys import ModelKeys, history_key
from model_store.redis import embedded
from model_store.redis.embedded import LOCK
from model_store.store import Store
from model_store.streams.event_streams import Letter
from tests.ftrie.commands.test_store_command import PLAN, impression
from tests.sweeps.sweep import Operation, sweep
from tests.sweeps.test_store_sweeps import THIRD, Shop, damaged, publish, publish_and_activate, shop, state
from tests.waiting import eventually

HISTORY = b"%s" % UserHistory().encode(PLAN)
USERS = "cookie,age\nu1,30\nu2,40\n"
ITEMS = "item,brand\ni1,b\ni2,c\n"


class Failed(FtrieError):
    """A command ended with another code than 0: what it wrote to standard error."""


def typed(*words: str) -> None:
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as errors:
        code = run(words)
    if code:
        said = errors.getvalue().strip().splitlines()
        assert said and said[-1].startswith("ftrie: "), said
        raise Failed(said[-1])


COMMANDS: dict[str, Callable[[str, Path], tuple[str, ...]]] = {
    "gc": lambda url, folder: ("gc", "ads", "--keep", "1"),
    "import": lambda url, folder: ("import", "ads", str(folder / "m.arrow")),
    "export": lambda url, folder: ("export", "ads", str(folder / "out.arrow")),
    "load users": lambda url, folder: ("load", "users", str(folder / "users.csv"), "--id-column", "cookie"),
    "load items": lambda url, folder: ("load", "items", str(folder / "items.csv"), "--id-column", "item"),
    "load candidates": lambda url, folder: ("load", "candidates", "top", str(folder / "top.txt")),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_of_the_store(socket_url: str, control: Redis[bytes], tmp_path: Path, name: str) -> None:
    out = tmp_path / "out.arrow"

    @contextmanager
    def world() -> Iterator[Shop]:
        out.unlink(missing_ok=True)
        THIRD.write(tmp_path / "m.arrow")
        (tmp_path / "users.csv").write_text(USERS)
        (tmp_path / "items.csv").write_text(ITEMS)
        (tmp_path / "top.txt").write_text("c\nd\n")
        with shop(socket_url) as made:
            if name == "gc":  # besides the active version, which is kept, and the one before
                made.store.model("ads").publish_and_activate(THIRD)
            yield made

    def found(made: Shop) -> object:
        exported = Artefact.read(out).content if out.exists() else None
        with Store.open(socket_url) as store:
            users = [tuple(sorted(store.records.user(each).items())) for each in ("u1", "u2")]
        return state(made), exported, users

    words = COMMANDS[name](socket_url, tmp_path)
    act: Callable[[Shop], None] = lambda made: typed("store", *words, "--store", socket_url)  # noqa: E731
    between = (publish, publish_and_activate) if name == "import" else ()
    sweep(Operation(name, world, act, found, damaged, between=between, store=control))


@pytest.mark.slow
def test_a_person_is_forgotten(socket_url: str, control: Redis[bytes]) -> None:
    """Whatever fails, the same command forgets the rest: also feedback whose impressions are gone."""
    keys = ModelKeys("ads")
    streams = (keys.impressions, keys.clicks, keys.dead)

    @contextmanager
    def world() -> Iterator[Shop]:
        with shop(socket_url) as made:
            store = made.store
            store.impressions("ads").append([impression("r1", "u1"), impression("r2", "u2")])
            store.clicks("ads").append(
                [b'{"request_id": "r1", "item": "a"}', b'{"request_id": "r2", "item": "a"}']
            )
            store.dead_letters("ads").add(1, [Letter("join", "", "why", b'{"request_id": "r1"}')])
            store.records.put_users([(each, {"age": "25"}) for each in ("u1", "u2")])
            store.records.put_histories("ads", [(b"u1", HISTORY), (b"u2", HISTORY)], 60_000)
            store.model("ads").experiments.change(lambda before: before.pinned({"u1": "base", "u2": "base"}))
            yield made

    def found(made: Shop) -> object:
        with Store.open(socket_url) as store:
            read = [repr([fields for _, fields in store.client.xrange(key)]) for key in streams]
            histories = [store.client.get(history_key("ads", each)) for each in (b"u1", b"u2")]
            return state(made), read, histories, store.records.user("u2")

    steps: list[Callable[[Shop], object]] = [
        lambda made: made.store.model("ads").experiments.change(lambda before: before.unpinned(["u1"])),
        *(lambda made, key=key: remove_first(made, key) for key in streams),
        lambda made: made.store.client.unlink(history_key("ads", b"u1")),
    ]
    between = [
        lambda made, done=done: [step(made) for step in steps[:done]] for done in range(1, len(steps) + 1)
    ]
    act: Callable[[Shop], None] = lambda made: typed("store", "forget", "u1", "--store", socket_url)  # noqa: E731
    sweep(Operation("forget", world, act, found, damaged, between=tuple(between), store=control))


def remove_first(made: Shop, key: str) -> None:
    [(entry, _), *_] = made.store.client.xrange(key)
    made.store.client.xdel(key, entry)


@pytest.mark.slow
def test_an_embedded_store_that_is_opened_used_and_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the server that it starts, which no failure leaves running."""
    monkeypatch.setattr(embedded, "START_TIMEOUT_S", 1.0)
    with tempfile.TemporaryDirectory(prefix="ftrie-") as parent:
        _embedded(Path(parent) / "s")


def _embedded(folder: Path) -> None:

    @contextmanager
    def world() -> Iterator[Path]:
        shutil.rmtree(folder, ignore_errors=True)
        with Store.open(f"embedded:{folder}") as store:
            store.records.put_candidates("top", ["a"])
        yield folder

    def act(folder: Path) -> None:
        with Store.open(f"embedded:{folder}") as store:
            store.records.put_candidates("top", ["b"])

    def found(folder: Path) -> object:
        eventually(lambda: not is_held(folder / LOCK), "the server to end")
        with Store.open(f"embedded:{folder}") as store:
            return store.records.candidates("top")

    sweep(Operation("embedded", world, act, found, is_long=True))
