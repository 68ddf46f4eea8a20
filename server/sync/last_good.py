"""Each model's last good version and its experiment on disk: what a server starts from when the store is away or empty.

models/<model>/last_good.json     the fields of `Parts`, and the file of each block; with a checksum of its own
models/<model>/base-….part, …     one file for each block (`server.model.shared_memory`), verified when it is read
experiments/<model>.json          the experiment's record, with a checksum of its own, and in "earlier" the one in force
                                  where it does not fit; absent if there is none

A block's file is written whole before last_good.json names it, and removed once nothing names it: at every moment the
folder holds one whole model, or none. A block that two versions share is written once.

`LastGoodKeeper` writes from a thread of its own, so that no delta waits for a disk: the first version at once, then one
every half minute at most, and the last when the server ends. If the disk is full or broken, only the copy is lost:
each cause is logged once, and writing is tried again after growing pauses.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from model_store.clock import SYSTEM, Clock
from model_store.errors import ArtefactError, ExperimentError, FtrieError, OutputError
from model_store.versions.experiments import Experiment
from model_store.waiting import Backoff
from server.model.items import bound
from server.model.shared_memory import Parts, SharedBlock
from server.sync.distribution import Distribution
from server.sync.state_folder import MODELS, StateFolder, lower_priority, read_checked, write_checked

SAVE_EVERY_S = 30.0
SAVE_SHARE = 0.1
"""At most this share of the time goes into writing one model."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
"""Between attempts to write to a disk that has failed."""
INDEX = "last_good.json"
SUFFIX = ".part"

_log = structlog.get_logger(__name__)


class LastGoodKeeper(threading.Thread):
    """Takes every model's parts from a `Distribution`, and gives them back once they are on disk."""

    def __init__(
        self, state: StateFolder, models: Sequence[str], distribution: Distribution, clock: Clock = SYSTEM
    ) -> None:
        super().__init__(name="keep last good", daemon=True)
        self._folder = state.folder
        self._folders = {name: LastGood(state.model(name), name) for name in models}
        self._experiments = KeptExperiments(state.experiments)
        self._experiments_due: dict[str, Sequence[str]] = {}
        """By model whose experiment is to be written: its record, and the earlier ones."""
        self._distribution = distribution
        self._clock = clock
        self._changed = threading.Condition()
        self._due: dict[str, float] = {}
        """By model that has changed: when to write it."""
        self._resting: dict[str, float] = {}
        """By model: when it may be written again."""
        self._backoff = {name: Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S) for name in models}
        self._ending = False
        self.problems: dict[str, str] = {}
        """By model, why its copy could not be written or read. Replaced by this thread, or at the start."""

    # -- a taker, called by the thread that delivers

    def take(self, parts: Parts, serial: int) -> None:
        """Note that there is something to write. The latest parts at the time of writing are written."""
        self._distribution.given_back(self, serial)
        with self._changed:
            self._due.setdefault(parts.name, max(self._clock.monotonic(), self._resting.get(parts.name, 0.0)))
            self._changed.notify()

    def tell(self, body: Mapping[str, Any]) -> None:
        """Note an experiment to write; other messages are ignored."""
        if body["do"] == "experiment":
            with self._changed:
                self._experiments_due[body["model"]] = body["experiments"]
                self._changed.notify()

    # -- reading, while a model has nothing to serve yet

    def last_good(self, model: str, sha256: str | None = None) -> Parts | None:
        """The parts on disk, verified. None if they are missing, damaged, or not those of `sha256`, if given."""
        folder = self._folders[model]
        try:
            kept = folder.kept()
            if kept is None or sha256 not in (None, kept["sha256"]):
                return None
            return folder.load(kept)
        except ArtefactError as error:
            self.unusable(model, error)
            return None

    def unusable(self, model: str, error: Exception) -> None:
        """Log and show that the copy on disk cannot be served: while the store is away, there is no other."""
        _log.error("the last good model on disk is of no use", model=model, error=str(error))
        self.problems = {**self.problems, model: f"the copy on disk cannot be served: {error}"}

    def experiments(self, model: str) -> Sequence[Experiment]:
        """The experiment on disk, and the earlier ones; none if it is missing or damaged."""
        try:
            return self._experiments.load(model)
        except ArtefactError as error:
            _log.error("the experiment on disk is of no use", model=model, error=str(error))
            return ()

    # -- the thread

    def run(self) -> None:
        """Write what is due until `close`, then once more what has changed since."""
        lower_priority()
        while (model := self._next()) is not None:
            began_s = time.monotonic()
            self._save(model)
            self._rest(model, time.monotonic() - began_s)

    def close(self, end_at_s: float) -> None:
        """Write what has changed, and end. Waits for the disk until `end_at_s` (on the monotonic clock) at most."""
        began_s = time.monotonic()
        with self._changed:
            self._ending = True
            self._changed.notify()
        if self.is_alive():
            self.join(max(0.0, end_at_s - began_s))
        if self.is_alive():  # a daemon thread: the process ends without it
            _log.error(
                "the disk does not answer: ending without the last changes on it",
                folder=str(self._folder),
                waited_s=round(time.monotonic() - began_s, 1),
            )

    def _next(self) -> str | None:
        """Wait until a model is due; None once `close` was called and nothing is left."""
        with self._changed:
            while True:
                self._save_experiments()
                now = self._clock.monotonic()
                for model, due in self._due.items():
                    if self._ending or due <= now:
                        del self._due[model]
                        return model
                if self._ending:
                    return None
                self._changed.wait(min(self._due.values()) - now if self._due else None)

    def _save_experiments(self) -> None:
        """Write the experiments that are due. Called with `_changed` held; releases it while it writes."""
        while self._experiments_due:
            model, records = self._experiments_due.popitem()
            # Released while it writes: `take` and `tell` are called by the thread that delivers, which must not wait
            # for a disk.
            self._changed.release()
            try:
                self._experiments.save(model, *records)
            except FtrieError as error:
                _log.error("the experiment could not be kept on disk", model=model, error=str(error))
            finally:
                self._changed.acquire()

    def _save(self, model: str) -> None:
        # Lent only while it is written: a buffer must not wait half a minute for the disk.
        lent = self._distribution.borrow(self, model)
        if lent is None:
            return
        parts, serial = lent
        try:
            self._folders[model].save(parts)
            self._note_outcome(model, "")
        except (FtrieError, OSError, MemoryError) as error:
            self._note_outcome(model, str(error))
        finally:
            self._distribution.given_back(self, serial)

    def _rest(self, model: str, took_s: float) -> None:
        """Postpone the next write of a model; if the last one failed, schedule another."""
        failed = bool(self.problems.get(model))
        if failed:
            pause_s = self._backoff[model].failed()
        else:
            self._backoff[model].succeeded()
            pause_s = SAVE_EVERY_S
        with self._changed:
            self._resting[model] = self._clock.monotonic() + max(pause_s, took_s / SAVE_SHARE)
            if failed and not self._ending:
                self._due[model] = self._resting[model]

    def _note_outcome(self, model: str, problem: str) -> None:
        if problem and self.problems.get(model) != problem:
            _log.error("the last good model could not be kept on disk", model=model, error=problem)
        if not problem and self.problems.get(model):
            _log.info("the last good model is kept on disk again", model=model)
        self.problems = {**self.problems, model: problem}


class LastGood:
    """The folder of one model's last good version. For one thread."""

    def __init__(self, folder: Path, model: str) -> None:
        self._folder = folder
        self._model = model
        self._files: dict[str, str] = {}
        """The file of each block that is on disk, by the block's uid."""

    def save(self, parts: Parts) -> None:
        """Replace what was kept by `parts`. O(bytes of the new blocks). Raises OutputError."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise OutputError(f"cannot make {self._folder}: {error.strerror}") from error
        document = parts.to_json(self._written)
        # After the blocks and before the sweep: at every moment the index names files that are there.
        write_checked(self._folder / INDEX, document)
        self._sweep({name for name in document["blocks"].values() if name is not None})

    def kept(self) -> dict[str, Any] | None:
        """The index, before the blocks are read: what `Parts.to_json` returned; None if nothing is kept.

        Raises ArtefactError if it is damaged, of another format or of another model.
        """
        path = self._folder / INDEX
        document: Any = read_checked(path)
        if document is None:
            return None
        if not isinstance(document, dict) or document.get("name") != self._model:
            name = document.get("name") if isinstance(document, dict) else document
            raise ArtefactError(f"{path} holds the model {name!r}, expected {self._model!r}")
        return document

    def load(self, kept: dict[str, Any]) -> Parts:
        """Read and verify every block. O(bytes). Raises ArtefactError for one that is missing or damaged."""

        def loaded(file: str) -> SharedBlock:
            block = SharedBlock.load(self._folder / Path(file).name)
            self._files[block.uid] = file
            return block

        try:
            return Parts.of_json(kept, loaded)
        except (
            AttributeError,
            LookupError,
            TypeError,
        ) as error:  # whole, but not what `Parts.to_json` writes
            raise ArtefactError(f"{self._folder / INDEX} is damaged: {error!r}") from error

    def _written(self, name: str, block: SharedBlock) -> str:
        file = self._files.get(block.uid)
        if file is None or not (self._folder / file).exists():
            file = f"{name}-{block.uid}-{os.urandom(4).hex()}{SUFFIX}"
            block.save(self._folder / file)
        self._files[block.uid] = file
        return file

    def _sweep(self, named: set[str]) -> None:
        """Remove what the index does not name: earlier blocks, and what a crash left half-written."""
        self._files = {uid: file for uid, file in self._files.items() if file in named}
        for path in self._folder.iterdir():
            if path.name not in named and path.name != INDEX:
                path.unlink(missing_ok=True)


def check_state(state: Path) -> dict[str, str]:
    """Read what a server would start from: by model, why this ftrie cannot serve it, or "". O(bytes)."""
    found = {}
    for folder in sorted((state / MODELS).glob("*")):
        last_good = LastGood(folder, folder.name)
        try:
            if (kept := last_good.kept()) is not None:
                found[folder.name] = ""
                bound(last_good.load(kept))
        except (FtrieError, OSError, MemoryError) as error:
            found[folder.name] = str(error)
    return found


class KeptExperiments:
    """The folder of the experiments' records. Thread safety: any method, any thread."""

    def __init__(self, folder: Path) -> None:
        """The folder is created by the first `save`."""
        self._folder = folder

    def save(self, model: str, experiment: str, *earlier: str) -> None:
        """Keep the record that `Experiment.to_json` returned, and earlier ones. Raises OutputError."""
        path = self._path(model)
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise OutputError(f"cannot keep {path}: {error.strerror}") from error
        # Without earlier ones as before there were any, so that an earlier ftrie reads it.
        more = {"earlier": [json.loads(each) for each in earlier]} if earlier else {}
        write_checked(path, json.loads(experiment) | more)

    def load(self, model: str) -> Sequence[Experiment]:
        """The record and the earlier ones; none if there is no file. Raises ArtefactError for a damaged one."""
        path = self._path(model)
        try:
            document = read_checked(path)
            if document is None:
                return ()
            records = [document, *document.pop("earlier", [])]
            return [Experiment.from_json(json.dumps(each)) for each in records]
        except (ArtefactError, AttributeError, ExperimentError, TypeError) as error:
            raise ArtefactError(f"{error}; traffic is divided by the spec") from error

    def _path(self, model: str) -> Path:
        return self._folder / f"{model}.json"
