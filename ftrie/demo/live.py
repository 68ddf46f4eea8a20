"""One run of `ftrie live`: bootstrap → open → watch → close, a method each."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ftrie.demo.live_output import Screen, look_at
from ftrie.demo.live_processes import Crew, LiveOptions, bootstrap, freeze
from ftrie.demo.live_windows import SETTLED_S, Whole, Windows, write_picture
from ftrie.demo.market import MODEL, Market, Tastes
from ftrie.demo.simulate import StoppedBySignals
from model_store.errors import StoreError
from model_store.jit import kernels_are_cached
from server.ranking.warmup import KERNELS as SERVER_KERNELS

LOOK_EVERY_S = 0.5
FREEZE_BEFORE_S = 1.5


def run(options: LiveOptions, kept: Path | None) -> Whole:
    """Run the loop until its seconds are over or a signal comes. Nothing is left running. Raises FtrieError.

    It works in the folder `kept`, or in one that is gone afterwards; options.folder is not looked at.
    """
    with _folder(kept) as folder, Screen() as screen:
        placed = replace(options, folder=folder)
        live = Live(placed, screen)
        with StoppedBySignals(live.stop):
            live.bootstrap()
            try:
                live.open()
                live.watch()
            finally:
                whole = live.close()
    if options.picture is not None and whole.windows:
        write_picture(whole.windows, options.change_at, options.picture)
    return whole


class Live:
    """One run. `stop` may be called from a signal handler; all else is the main thread's."""

    def __init__(self, options: LiveOptions, screen: Screen) -> None:
        self._options, self._screen = options, screen
        self._stopped = threading.Event()
        self._windows = Windows()
        self._crew = Crew(options, self._windows.hear)
        self._frozen_version: int | None = None
        self._frozen_anew = not options.frozen

    def stop(self) -> None:
        """End it in good order."""
        self._stopped.set()

    def bootstrap(self) -> None:
        """Start the store and give it users, items and a first model."""
        options = self._options
        self._screen.note(
            f"working in {options.folder}; what is not there yet is learned from the day before"
        )
        store = self._crew.store.start()
        try:
            market = Market(options.seed, Tastes(change_at=options.change_at))
            self._frozen_version = bootstrap(options, market, store)
        except BaseException:
            self._crew.store.stop()
            raise

    def open(self) -> None:
        """Start the others."""
        self._screen.note("servers and trainer begin; visitors come when both servers are ready")
        if not kernels_are_cached(SERVER_KERNELS):
            self._screen.note(
                "they compile their kernels for the first time; half a minute, once on a machine"
            )
        self._crew.open(self._stopped)

    def watch(self) -> None:
        """Show the loop, keep it alive, freeze a copy of the model before tastes change."""
        while not self._stopped.wait(LOOK_EVERY_S) and not self._windows.summary:
            for sentence in self._crew.keep_alive():
                self._screen.note(sentence)
            self._freeze_in_time()
            self._screen.show(look_at(self._options, self._crew, self._windows))

    def close(self) -> Whole:
        """End all, in order; returns what came of it."""
        seconds = self._crew.second
        codes = self._crew.close(self._screen.note)
        windows, change_at, second = self._windows, self._options.change_at, self._windows.second
        changed = second > change_at
        return Whole(
            seconds=seconds,
            change_at=change_at,
            windows=windows.all(),
            traffic=windows.summary,
            before=_as_json(windows, change_at - SETTLED_S, change_at if changed else 0.0),
            last=_as_json(windows, max(change_at if changed else 0.0, second - SETTLED_S), second),
            trainer=self._crew.trainer.said,
            restarts={"store": self._crew.store.restarts}
            | {process.name: max(0, process.restarts) for process in self._crew.processes},
            exit_codes=codes,
            frozen_version=self._frozen_version,
        )

    def _freeze_in_time(self) -> None:
        """Once, just before the change: until then the frozen model is the bootstrap's."""
        if self._frozen_anew or self._crew.second < self._options.change_at - FREEZE_BEFORE_S:
            return
        self._frozen_anew = True
        store = self._crew.store.store
        try:
            active = store.model(MODEL).active()
            if active is not None:
                freeze(store, active)
                self._frozen_version = active
                self._screen.note(f"tastes are about to change; version {active} is frozen beside the loop")
        except StoreError as error:
            self._screen.note(f"no copy of the model could be frozen: {error}")


def _as_json(windows: Windows, from_s: float, to_s: float) -> dict[str, Any]:
    return {name: rates.as_json() for name, rates in windows.between(from_s, to_s).items()}


@contextmanager
def _folder(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="ftrie-live-") as name:
        yield Path(name)
