"""Checkpoints of a distributed run: how far it is, and the state of each reducer.

A file is written with one reducer's arrays in memory at a time, and read memory-mapped, so the driver never holds all
keys. Files are named by the number of iterations, over all problems (`trainer.checkpoint.folder` keeps the last three).
Workers have no state of their own: they read their rows again, and take the weights from the reducers.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import numpy.typing as npt
from pydantic import TypeAdapter, ValidationError

from model_store.errors import CheckpointError
from model_store.spec.spec import ModelSpec
from model_store.versions.manifest import now
from trainer.checkpoint.file import Arrays
from trainer.checkpoint.folder import CheckpointFolder, check_empty, check_same_spec
from trainer.distributed.methods import Iteration, MemberLost, MethodState, Replies
from trainer.learn.table import part_of

ReducerArrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class InputFile:
    """A file of the log as the run found it."""

    path: str
    bytes: int
    modified_ns: int

    @classmethod
    def of(cls, path: str) -> Self:
        """The file now."""
        found = os.stat(path)
        return cls(os.path.abspath(path), found.st_size, found.st_mtime_ns)


@dataclass(frozen=True)
class RunSettings:
    """What a resumed run must have in common with the first one, by the flags that set it."""

    workers: int
    reducers: int
    method: str
    rho: float
    held_out: str | None
    format: str | None
    consensus: str = "general"
    loss: str = "rows"
    penalties: str | None = None
    sides: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ProblemResult:
    """A problem that is solved, or how far one is: its name, its iterations, whether it has converged.

    kept: the number of the iteration that is the solution, -1 for the last; objective: there.
    """

    name: str
    iterations: tuple[Iteration, ...] = ()
    converged: bool = False
    objective: float = math.inf
    kept: int = -1

    @property
    def is_last(self) -> bool:
        """True if the last iteration is the solution."""
        return self.solution is self.iterations[-1]

    @property
    def solution(self) -> Iteration:
        """The iteration that is the solution."""
        return self.iterations[self.kept]


@dataclass(frozen=True)
class RunState:
    """How far a run is.

    problems: those that are solved and, last, the present one; progress: of the present one; seconds: of all resumed
    runs; recoveries: iterations that were repeated.
    """

    spec: str
    resolved: str
    settings: RunSettings
    inputs: tuple[InputFile, ...]
    problems: tuple[ProblemResult, ...]
    progress: MethodState
    seconds: float = 0.0
    recoveries: int = 0
    ftrie: str = field(default_factory=lambda: version("ftrie"))
    created: str = field(default_factory=lambda: now().isoformat())

    @property
    def iterations(self) -> int:
        """Iterations made, for all problems."""
        return sum(len(each.iterations) for each in self.problems)

    @property
    def where(self) -> str:
        """For a message: variant base, iteration 12."""
        return f"problem {self.problems[-1].name}, iteration {self.progress.iteration}"

    def check(
        self, spec: ModelSpec, settings: RunSettings, inputs: Sequence[InputFile], path: Path
    ) -> list[str]:
        """Raise CheckpointError unless a run of these may go on from this state; returns remarks for the user."""
        check_same_spec(spec, self.spec, str(path))
        for name, before in asdict(self.settings).items():
            if (given := asdict(settings)[name]) != before:
                flag = "--items or --users" if name == "sides" else f"--{name.replace('_', '-')}"
                raise CheckpointError(
                    f"{path} was made with {flag} {_shown(before)}, and this run has {_shown(given)}: give the same, "
                    "or start again with another folder"
                )
        found = {each.path: each for each in inputs}
        known = {each.path: each for each in self.inputs}
        if list(found) != list(known):
            raise CheckpointError(
                f"{path} was made from other inputs ({', '.join([*known][:3])}): the rows of a distributed run "
                "are fixed; give the same files in the same order, or start again with another folder"
            )
        remarks = []
        for name, each in found.items():
            if each.bytes != known[name].bytes:
                raise CheckpointError(
                    f"{name} had {known[name].bytes:,} bytes when {path} was made, and has {each.bytes:,}: the rows of "
                    "a distributed run are fixed; restore the file, or start again with another folder"
                )
            if each.modified_ns != known[name].modified_ns:
                remarks.append(f"{name} was written again since the checkpoint, with the same size")
        return remarks


_ADAPTER = TypeAdapter(RunState)


@dataclass(frozen=True)
class EarlierRun:
    """A checkpoint to resume from: its file, the run's state, the arrays of all reducers."""

    path: Path
    state: RunState
    arrays: Arrays

    @property
    def saved(self) -> Replies:
        """The arrays of each reducer, in the mapped file, as a `Minimiser` takes them."""
        reducers = range(self.state.settings.reducers)
        return Replies((), [[part_of(self.arrays, f"{number}.") for number in reducers]], 0)


class DistributedCheckpoints(CheckpointFolder):
    """The checkpoints of one run, in a folder that it locks; every `every` iterations.

    With `resume`, `earlier` is the newest sound checkpoint, None if there is none; without, the folder must hold none.
    `failed` and `damaged` count checkpoints that could not be written or read.
    """

    def __init__(
        self,
        folder: Path,
        every: int,
        *,
        resume: bool = False,
        on_warning: Callable[[str], None] = lambda text: None,
    ) -> None:
        super().__init__(folder, on_warning)
        self._every, self._last = every, 0
        self.earlier: EarlierRun | None = None
        self.failed = self.damaged = 0
        try:
            if not resume:
                check_empty(folder)
            elif (found := self.newest()) is not None:
                path, written, arrays, self.damaged = found
                self.earlier = EarlierRun(path, state_from_json(written, path), arrays)
                self._last = self.earlier.state.iterations
        except BaseException:
            self.close()
            raise

    def is_due(self, iterations: int) -> bool:
        """True if a checkpoint should be written now that the run has made so many iterations."""
        return iterations - self._last >= self._every

    def save(self, state: RunState, fetch: Callable[[int], ReducerArrays]) -> bool:
        """Write a checkpoint; `fetch` gives one reducer's arrays. True if it was written, or is there already.

        A failure to write is counted and reported, and the run goes on.
        """
        if state.iterations == self._last:
            return True
        self._last = state.iterations
        try:
            description = {"distributed": _ADAPTER.dump_python(state, mode="json")}
            # Each reducer's arrays are fetched when those before are written.
            arrays = (
                (f"{number}.{name}", array)
                for number in range(state.settings.reducers)
                for name, array in fetch(number).items()
            )
            self.write(state.iterations, description, arrays)
        except (OSError, MemberLost) as error:
            self.failed += 1
            why = error.strerror if isinstance(error, OSError) else error
            self._warn(
                f"the checkpoint of iteration {state.iterations:,} could not be written to {self.path}: {why}; the run "
                "goes on, earlier checkpoints are kept"
            )
            return False
        return True


def state_from_json(written: Mapping[str, Any], path: Path) -> RunState:
    """The state in a checkpoint's description. Raises CheckpointError for that of another run."""
    try:
        return _ADAPTER.validate_python(written["distributed"])
    except KeyError:
        raise CheckpointError(
            f"{path} is a checkpoint of `ftrie train` or `ftrie trainer`, not of `ftrie train-distributed`; "
            "give another folder"
        ) from None
    except ValidationError as error:
        raise CheckpointError(f"{path} is not a checkpoint of this ftrie: {error}") from None


def _shown(value: object) -> str:
    return "none" if value in (None, {}) else str(value)
