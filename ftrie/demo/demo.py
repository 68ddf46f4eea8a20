"""`ftrie demo`: learn a day of the simulated shop, serve it, rank, learn the next day, watch the server follow.

Prints a story with tables, or with --json one object of what happened.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ftrie import terminal
from ftrie.api.client import Client
from ftrie.api.messages import Ranking
from ftrie.demo.market import AGES, DEVICES, GENDERS, SHOP, SHOP_SPEC, Shop
from ftrie.demo.processes import Process, free_port, run_ftrie
from ftrie.terminal import json_output, print_json, print_table
from ftrie.warmup import BESIDE_TRAINING, SERVING, Compilation
from model_store.errors import ServerError
from model_store.flags import DEFAULT_STORE
from model_store.store import Store

VARIANTS = ("base", "plain")
AGES_SHOWN = ("18-24", "35-49", "50+")
TOP = 5
DEVICE = "mobile"
SWITCH_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0


@dataclass(frozen=True)
class LearnedDay:
    """One day learned and published. logloss: of each variant, and as `truth` of the true rates."""

    day: int
    version: int
    rows: int
    clicks: int
    logloss: dict[str, float]


@dataclass(frozen=True)
class ShownItem:
    """One item as ranked for one visitor: its true rate, and each variant's prediction."""

    id: str
    true_ctr: float
    ctr: dict[str, float]


@dataclass(frozen=True)
class RankedVisit:
    """One visitor's items, best first, as `version` ranks them."""

    cookie: str
    version: int
    items: tuple[ShownItem, ...]


def run(rows: int, seed: int, keep: Path | None, watch: Callable[[str, str], None] | None = None) -> None:
    """Play the demo and print it. Leaves no process, and files only in `keep`. Raises FtrieError.

    watch: called at the end, while the server still runs, with the store's URL and the address of the server's metrics.
    """
    began = time.monotonic()
    # The store lives while this connection is open, across the commands that use it.
    with _folder(keep) as folder, Store.open(_store_in(folder)):
        _Demo(Shop(seed), folder, rows, watch).play(began)


class _Demo:
    """One play of the story, in one folder."""

    def __init__(
        self, shop: Shop, folder: Path, rows: int, watch: Callable[[str, str], None] | None = None
    ) -> None:
        self.shop, self.folder, self.rows, self.watch = shop, folder, rows, watch
        # Chosen here: the line of a server that is ready does not name this port.
        self.metrics_port = free_port()

    def play(self, began: float) -> None:
        _print(
            f"A simulated shop: {self.shop.users} visitors, {self.shop.items} items, known click rates.\n"
            "Age and category decide together. The variant `base` may cross the two, `plain` may not."
        )
        shutil.copy(SHOP_SPEC, self.folder)
        with Compilation(BESIDE_TRAINING) as compilation:
            days, visits, switch_s = self._two_days(compilation)
        _print_end(days, visits, switch_s, time.monotonic() - began)

    def _two_days(self, compilation: Compilation) -> tuple[list[LearnedDay], list[RankedVisit], float]:
        """Learn, serve and rank, and again when tastes have changed. Returns the seconds until the server switched."""
        first = self._learn(day=1)
        self.shop.write_records(self.folder / "users.csv", self.folder / "items.csv")
        self._run("store", "load", "users", "users.csv")
        self._run("store", "load", "items", "items.csv")
        compilation.wait_for(SERVING, terminal)
        with self._serving() as address, Client(address) as client:
            visitors = [int(np.argmax(self.shop.age == AGES.index(age))) for age in AGES_SHOWN]
            visits = [self._visit(client, user, day=1) for user in visitors]
            for user, visit in zip(visitors, visits, strict=True):
                _print_visit(self.shop, user, visit)
            _print("\nThen tastes change: books and games trade places, and so do coffee and shoes.")
            second = self._learn(day=2)
            switch_s = self._await_version(client, second.version)
            after = self._visit(client, visitors[0], day=2)
            _print_change(visits[0], after)
            compilation.wait_for(BESIDE_TRAINING, terminal)
            if self.watch is not None:
                self.watch(_store_in(self.folder), f"127.0.0.1:{self.metrics_port}")
        return [first, second], [*visits, after], switch_s

    def _learn(self, day: int) -> LearnedDay:
        """Simulate a day of clicks, train both variants on it in one pass, publish and activate the model."""
        log, report = self.folder / f"day-{day}.csv", self.folder / f"day-{day}.json"
        clicks = self.shop.clicks(day, self.rows)
        clicks.write(log)
        self._run("train", SHOP_SPEC.name, log.name, "--publish", "--activate", "--report", report.name)
        learned = json.loads(report.read_text("utf-8"))
        base, plain = (learned["variants"][name]["logloss"] for name in VARIANTS)
        truth = clicks.best_logloss()
        _print(
            f"\n  Log-loss: plain {plain:.4f}, base {base:.4f}; the true rates themselves score {truth:.4f}."
        )
        return LearnedDay(
            day,
            learned["version"],
            learned["rows"],
            int(clicks.clicked.sum()),
            {"base": base, "plain": plain, "truth": truth},
        )

    def _run(self, *arguments: str) -> None:
        """Run a command; with --json its own answer is dropped, since this process prints one."""
        _print(f"\n  $ ftrie {' '.join(arguments)}")
        if json_output():
            run_ftrie((*arguments, "--json"), self.folder, subprocess.DEVNULL)
        else:
            run_ftrie(arguments, self.folder)

    @contextmanager
    def _serving(self) -> Iterator[str]:
        """Run `ftrie serve` on a free port during the block; yields its address. Raises ServerError."""
        _print(f"\n  $ ftrie serve {SHOP} --port 0 &")
        watched = ("--metrics-port", str(self.metrics_port)) if self.watch is not None else ()
        words = ("serve", SHOP, "--port", "0", "--json", *watched)
        server = Process("server", lambda: words, self.folder)
        server.start()
        try:
            while not server.is_ready():
                time.sleep(0.02)
            yield server.last_line["address"]
        finally:
            server.stop(STOP_TIMEOUT_S)

    def _visit(self, client: Client, user: int, day: int) -> RankedVisit:
        """Ask the server, which knows the visitor only by cookie, for every variant's ranking."""
        rankings = {variant: self._rank(client, user, variant) for variant in VARIANTS}
        ctr = {name: {item.id: item.ctr for item in ranking.items} for name, ranking in rankings.items()}
        rates = self.shop.true_ctr(day, user, np.arange(self.shop.items), DEVICES.index(DEVICE))
        truth = dict(zip(self.shop.skus, rates.tolist(), strict=True))
        items = tuple(
            ShownItem(item.id, truth[item.id], {variant: ctr[variant][item.id] for variant in VARIANTS})
            for item in rankings["base"].items
        )
        return RankedVisit(self.shop.cookies[user], rankings["base"].version, items)

    def _rank(self, client: Client, user: int, variant: str) -> Ranking:
        return client.rank(
            SHOP,
            cookie=self.shop.cookies[user],
            candidates=self.shop.skus,
            context={"device": DEVICE},
            variant=variant,
        )

    def _await_version(self, client: Client, version: int) -> float:
        """Rank until an answer comes from `version`; every call must succeed. Returns the seconds it took."""
        began = time.monotonic()
        while self._rank(client, 0, "base").version != version:
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
    """The folder to keep, or a temporary one."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="ftrie-demo-") as name:
            yield Path(name)
    else:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep


def _print(text: str) -> None:
    if not json_output():
        print(text, flush=True)


def _print_visit(shop: Shop, user: int, visit: RankedVisit) -> None:
    who = f"age {AGES[shop.age[user]]}, {GENDERS[shop.gender[user]]}"
    _print(f"\nFor {visit.cookie} ({who}) version {visit.version} ranks:")
    rows = [
        (rank, item.id, *map(_percent, (item.true_ctr, item.ctr["base"], item.ctr["plain"])))
        for rank, item in enumerate(visit.items[:TOP], 1)
    ]
    _print_table(("rank", "item", "true CTR", "base", "plain"), rows)


def _print_change(before: RankedVisit, after: RankedVisit) -> None:
    """How one visitor's ranking moved from one version to the next."""
    _print(f"\nThe running server now answers from version {after.version}, without a restart.")
    _print(f"For {after.cookie}, the ranks by version {before.version} and by version {after.version}:")
    rank_before = {item.id: rank for rank, item in enumerate(before.items, 1)}
    rows = [
        (rank_before[item.id], rank, item.id, _percent(item.true_ctr), _percent(item.ctr["base"]))
        for rank, item in enumerate(after.items[:TOP], 1)
    ]
    _print_table(("then", "now", "item", "true CTR", "base"), rows)


def _print_end(
    days: Sequence[LearnedDay], visits: Sequence[RankedVisit], switch_s: float, seconds: float
) -> None:
    _print(f"\nThe whole loop took {seconds:.0f} s. The server and the store have stopped.")
    if json_output():
        print_json(
            {
                "days": [asdict(day) for day in days],
                "visits": [asdict(visit) for visit in visits],
                "switch_seconds": switch_s,
                "seconds": seconds,
            }
        )


def _percent(rate: float) -> str:
    return f"{100 * rate:5.1f} %"


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    if not json_output():
        print_table(columns, rows)
