"""One run of `ftrie live`: bootstrap → open → watch → close, a method each."""

from __future__ import annotations

import tempfile
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ftrie.demo.live_crew import Crew, LiveOptions, bootstrap, freeze
from ftrie.demo.live_output import SETTLED_S, Lines, LiveResult, Windows, write_picture
from ftrie.demo.market import MODEL, Market, Tastes
from ftrie.demo.simulate import StoppedBySignals
from ftrie.draw.charts import require_charts
from model_store.errors import StoreError, installing
from model_store.jit import kernels_are_cached
from server.ranking.warmup import KERNELS as SERVER_KERNELS

FRAME_EVERY_S = 0.5
FREEZE_BEFORE_S = 1.5


def run(options: LiveOptions, kept: Path | None) -> LiveResult:
    """Run the loop until its seconds are over or a signal comes, and end every process. Raises FtrieError.

    It works in the folder `kept`, or in a temporary one, which replaces options.folder.
    """
    if options.picture is not None:
        require_charts()
    with _folder(kept) as folder:
        live = Live(replace(options, folder=folder), Lines())
        with StoppedBySignals(live.stop):
            live.bootstrap()
            try:
                live.open()
                live.watch()
            finally:
                result = live.close()
    if options.picture is not None and result.windows:
        write_picture(result.windows, options.change_at, options.picture)
    return result


class Live:
    """One run. `stop` may be called from a signal handler, all else from the main thread."""

    def __init__(self, options: LiveOptions, lines: Lines) -> None:
        self._options, self._lines = options, lines
        self._stopped = threading.Event()
        self._windows = Windows()
        self._crew = Crew(options, self._windows.add)
        self._frozen_version: int | None = None
        self._must_freeze = bool(options.frozen)
        self._url = ""

    def stop(self) -> None:
        """End the run in good order."""
        self._stopped.set()

    def bootstrap(self) -> None:
        """Start the store and give it users, items and a first model."""
        options = self._options
        self._lines.note(
            f"working in {options.folder}; a missing first model is learned from a simulated day"
        )
        store = self._crew.store.start()
        try:
            market = Market(options.seed, Tastes(change_at=options.change_at))
            self._frozen_version = bootstrap(options, market, store)
        except BaseException:
            self._crew.store.stop()
            raise

    def open(self) -> None:
        """Start the other processes."""
        self._lines.note("starting servers and trainer; traffic starts when both servers are ready")
        if not kernels_are_cached(SERVER_KERNELS):
            self._lines.note("compiling the kernels: half a minute, once on this machine")
        self._crew.open(self._stopped)
        if self._crew.dashboard is None:
            self._lines.note(f"to watch it in a browser: {installing('dashboard')}")

    def watch(self) -> None:
        """Show the loop, restart what dies, freeze a copy of the model before tastes change."""
        while not self._stopped.wait(FRAME_EVERY_S) and not self._windows.summary:
            self._tell_url()
            for message in self._crew.keep_alive():
                self._lines.note(message)
            self._freeze_in_time()
            self._lines.show(self._crew, self._windows)

    def _tell_url(self) -> None:
        url = self._crew.dashboard_url
        if url and url != self._url:
            self._url = url
            self._lines.note(f"watch it in a browser: {url}")
            if self._options.open_browser:
                webbrowser.open(url)

    def close(self) -> LiveResult:
        """End all processes, in order."""
        seconds = self._crew.second
        codes = self._crew.close(self._lines.note)
        windows, change_at, second = self._windows, self._options.change_at, self._windows.second
        changed_at = change_at if second > change_at else 0.0
        return LiveResult(
            seconds=seconds,
            change_at=change_at,
            windows=windows.all(),
            traffic=windows.summary,
            before=_as_json(windows, change_at - SETTLED_S, changed_at),
            last=_as_json(windows, max(changed_at, second - SETTLED_S), second),
            trainer=self._crew.trainer.last_line,
            restarts={"store": self._crew.store.restarts}
            | {process.name: max(0, process.restarts) for process in self._crew.processes},
            exit_codes=codes,
            frozen_version=self._frozen_version,
        )

    def _freeze_in_time(self) -> None:
        """Once, shortly before the change, replace the frozen model, until then the bootstrap's."""
        if not self._must_freeze or self._crew.second < self._options.change_at - FREEZE_BEFORE_S:
            return
        self._must_freeze = False
        store = self._crew.store.store
        try:
            active = store.model(MODEL).active()
            if active is not None:
                freeze(store, active)
                self._frozen_version = active
                self._lines.note(f"tastes are about to change; version {active} is now the frozen model")
        except StoreError as error:
            self._lines.note(f"the model could not be frozen: {error}")


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
