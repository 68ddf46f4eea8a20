"""What the demo does, in order: learn a day, serve it, rank, learn the next day, watch the server follow."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import numpy as np

from ftrie.client.client import Client
from ftrie.client.messages import Ranking
from ftrie.demo import demo_output as telling
from ftrie.demo import market as shop
from ftrie.demo.demo_output import VARIANTS, LearnedDay, ShownItem, Visit, tell
from ftrie.demo.market import Shop, User
from ftrie.terminal import DEFAULT_STORE, json_asked, note
from model_store.errors import FtrieError, ServerError
from model_store.jit import kernels_are_cached
from model_store.store import Store
from server.ranking.warmup import KERNELS as SERVER_KERNELS

AGES_SHOWN = ("18-24", "35-49", "50+")
DEVICE = "mobile"
SWITCH_TIMEOUT_S = 30.0


def run(rows: int, seed: int, keep: Path | None) -> None:
    """Play the demo and print it, or with `--json` print what happened. Leaves no process, and files only in `keep`."""
    began = time.monotonic()
    # Holding the store here lets it outlive the single commands, and ends it with this block.
    with _terminated_as_interrupted(), _folder(keep) as folder, Store.open(_store_in(folder)):
        _Demo(Shop(seed), folder, rows).play(began)


class _Demo:
    """One play of the story, in one folder, with whatever it needs at hand."""

    def __init__(self, the_shop: Shop, folder: Path, rows: int) -> None:
        self.shop, self.folder, self.rows = the_shop, folder, rows
        self.commands = Commands(folder)

    def play(self, began: float) -> None:
        telling.tell_opening(self.shop)
        shutil.copy(shop.SHOP_SPEC, self.folder)
        first = self._learn(day=1)
        self._load_records()
        with self.commands.serving(shop.SHOP) as address, Client(address) as client:
            visitors = [next(user for user in self.shop.users if user.age == age) for age in AGES_SHOWN]
            visits = [self._visit(client, user, day=1) for user in visitors]
            for visit in visits:
                telling.tell_visit(self.shop, visit)
            telling.tell("\nThen tastes change: books and games trade places, and so do coffee and shoes.")
            second = self._learn(day=2)
            switch_s = self._await_version(client, second.version)
            after = self._visit(client, visitors[0], day=2)
            telling.tell_change(visits[0], after)
        telling.tell_end([first, second], [*visits, after], switch_s, time.monotonic() - began)

    def _learn(self, day: int) -> LearnedDay:
        """Simulate a day of clicks, train both variants on it in one pass, publish and activate the model."""
        log, report = self.folder / f"day-{day}.csv", self.folder / f"day-{day}.json"
        clicks = self.shop.clicks(day, self.rows)
        shop.write_shop_log(clicks, log)
        self.commands.run(
            "train", shop.SHOP_SPEC.name, log.name, "--publish", "--activate", "--report", report.name
        )
        learned = json.loads(report.read_text("utf-8"))
        logloss = {name: learned["variants"][name]["logloss"] for name in VARIANTS}
        result = LearnedDay(
            day,
            learned["version"],
            learned["rows"],
            int(clicks.clicked.sum()),
            {**logloss, "truth": clicks.best_logloss()},
        )
        telling.tell_learned(result)
        return result

    def _load_records(self) -> None:
        users, items = self.folder / "users.csv", self.folder / "items.csv"
        self.shop.write_records(users, items)
        self.commands.run("store", "load", "users", users.name)
        self.commands.run("store", "load", "items", items.name)

    def _visit(self, client: Client, user: User, day: int) -> Visit:
        """Ask the server, which knows the visitor only by cookie, for every variant's ranking."""
        ranked = {variant: self._rank(client, user, variant) for variant in VARIANTS}
        ctr = {variant: {item.id: item.ctr for item in ranking.items} for variant, ranking in ranked.items()}
        truth = self._truth(user, day)
        items = tuple(
            ShownItem(item.id, truth[item.id], {variant: ctr[variant][item.id] for variant in VARIANTS})
            for item in ranked["base"].items
        )
        return Visit(user.cookie, ranked["base"].version, items)

    def _truth(self, user: User, day: int) -> dict[str, float]:
        """Item id to true CTR, for one visitor with DEVICE."""
        items = np.arange(len(self.shop.items))
        who = np.full_like(items, self.shop.users.index(user))
        rates = self.shop.true_ctr(day, who, items, np.full_like(items, shop.DEVICES.index(DEVICE)))
        return {item.id: float(rate) for item, rate in zip(self.shop.items, rates, strict=True)}

    def _rank(self, client: Client, user: User, variant: str) -> Ranking:
        return client.rank(
            shop.SHOP,
            cookie=user.cookie,
            candidates=[item.id for item in self.shop.items],
            context={"device": DEVICE},
            variant=variant,
        )

    def _await_version(self, client: Client, version: int) -> float:
        """Keep asking until answers come from `version`; each answer on the way must be good. Seconds."""
        began = time.monotonic()
        while self._rank(client, self.shop.users[0], "base").version != version:
            if time.monotonic() - began > SWITCH_TIMEOUT_S:
                raise ServerError(
                    f"the server did not switch to version {version} in {SWITCH_TIMEOUT_S:.0f} s"
                )
            time.sleep(0.01)
        return time.monotonic() - began


def _store_in(folder: Path) -> str:
    """The default store of commands that run in `folder`."""
    scheme, _, name = DEFAULT_STORE.partition(":")
    return f"{scheme}:{folder.resolve() / name}"


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """The folder to keep, or one that is gone afterwards."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="ftrie-demo-") as name:
            yield Path(name)
    else:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM end this process as Ctrl-C does, so that what was begun is taken down."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


READY_TIMEOUT_S = 180.0  # a first run compiles the kernels
STOP_TIMEOUT_S = 15.0
_FTRIE = (sys.executable, "-m", "ftrie")


@dataclass(frozen=True)
class Commands:
    """`ftrie` in one folder, which also holds the store: embedded:.ftrie, the default."""

    folder: Path

    def run(self, *words: str) -> None:
        """Run a command to its end, its output on this terminal. Raises FtrieError if it fails."""
        tell(f"\n  $ ftrie {' '.join(words)}")
        # With --json this process prints one answer, and a command's own answer is not it.
        output = subprocess.DEVNULL if json_asked() else None
        finished = subprocess.run(
            [*_FTRIE, *words, *_json_flag()], cwd=self.folder, env=_environment(), stdout=output, check=False
        )
        if finished.returncode != 0:
            raise FtrieError(f"ftrie {words[0]} failed with exit code {finished.returncode}; see above")

    @contextmanager
    def serving(self, model: str) -> Iterator[str]:
        """Run `ftrie serve` on a free port while the block runs; gives its address. Raises ServerError."""
        tell(f"\n  $ ftrie serve {model} --port 0 &")
        if not kernels_are_cached(SERVER_KERNELS):
            note("the server compiles its kernels for the first time; some seconds, once")
        log = self.folder / "server.telemetry.log"
        with (
            log.open("wb") as errors,
            subprocess.Popen(
                [*_FTRIE, "serve", model, "--port", "0", "--json"],
                cwd=self.folder,
                env=_environment(),
                stdout=subprocess.PIPE,
                stderr=errors,
            ) as process,
        ):
            try:
                yield _address(process, log)
            finally:
                _stop(process)


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Wait for the line with which the server says that it is ready."""
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], READY_TIMEOUT_S)
    line = process.stdout.readline() if readable else b""
    if not line:
        why = f"stopped; its log ends: {log.read_text('utf-8')[-600:]}" if readable else "did not get ready"
        raise ServerError(f"the server {why}")
    address: str = json.loads(line)["address"]
    return address


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _json_flag() -> tuple[str, ...]:
    return ("--json",) if json_asked() else ()


def _environment() -> dict[str, str]:
    """This environment without FTRIE_… flags, which are meant for other models and stores than the demo's."""
    return {name: value for name, value in os.environ.items() if not name.startswith("FTRIE_")}
