"""What a trainer's checkpoint holds beside the model: places in the sources, the join, and all that was counted.

The arrays and this JSON are one file, whole or absent, so that they are always of the same moment. The rows that the
join still waits for stand in segment files, which are on the disk before a checkpoint names them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from model_store.errors import CheckpointError, InputError
from model_store.spec.spec import ModelSpec
from model_store.versions.manifest import now
from model_store.whole_file import write_whole
from trainer.checkpoint import Checkpoint, Checkpoints
from trainer.checkpoint.description import Description
from trainer.events.events import SourcePosition
from trainer.events.open_sources import known_as
from trainer.learn.model import LearningModel
from trainer.runs.dead_letters import Letters
from trainer.runs.resume import of_another_layout
from trainer.runs.stream import Counts

OWNER = "owner"
SEGMENTS = "segments"


class Saved:
    """What an earlier run has kept; of a first run, nothing. `counts`: what became of the events so far."""

    def __init__(self, earlier: Checkpoint | None, sources: Sequence[str]) -> None:
        """Raises CheckpointError for one of a run over logs or of another layout, InputError for other sources."""
        self.checkpoint = earlier
        self.stream: Mapping[str, Any] = {}
        self.counts = Counts()
        if earlier is None:
            return
        if earlier.description.stream is None:
            raise CheckpointError(
                f"{earlier.path} is of a run of `ftrie train`; give --checkpoint another folder"
            )
        self.stream = earlier.description.stream
        try:
            self.counts = Counts(**self.stream.get("counts", {}))
            before = list(self.stream["sources"])
        except (KeyError, TypeError) as error:
            raise of_another_layout(earlier, error) from error
        names = [known_as(name) for name in sources]
        if names != before:
            raise InputError(
                f"{earlier.path} was made with --from {' --from '.join(before)}, got "
                f"{' --from '.join(names)}; give the same, or begin anew with another --checkpoint"
            )

    @property
    def positions(self) -> list[SourcePosition]:
        """Where each source was read to."""
        return list(self.stream.get("places", ()))

    def part(self, name: str) -> Any:
        """What `name` has kept; None of a first run."""
        return self.stream.get(name)


class Saving:
    """Writes the checkpoints of one trainer. `failed` counts those that could not be written."""

    def __init__(
        self,
        keeper: Checkpoints,
        spec: ModelSpec,
        resolved: ModelSpec,
        sources: Sequence[str],
        letters: Letters,
        seconds: Callable[[], float],
        initial: str | None,
    ) -> None:
        self._keeper = keeper
        self._spec = spec
        self._resolved = resolved
        self._sources = [known_as(name) for name in sources]
        self._letters = letters
        self._seconds = seconds
        self._initial = initial

    def is_due(self, rows: int) -> bool:
        """True if a checkpoint should be written by now."""
        return self._keeper.is_due(rows)

    def save(
        self,
        model: LearningModel,
        arrays: Mapping[str, Any],
        positions: Sequence[SourcePosition],
        counts: Counts,
        parts: Mapping[str, Any],
    ) -> bool:
        """Write a checkpoint; True if it was. One that cannot be written is told of and counted by the keeper."""
        stream = {
            "sources": self._sources,
            "places": list(positions),
            "counts": asdict(counts),
            "letters": self._letters.state(),
            **parts,
        }
        description = Description(
            ftrie=version("ftrie"),
            created=now().isoformat(),
            spec=self._spec.to_json(),
            resolved=self._resolved.to_json(),
            columns=(),
            rows=model.rows,
            keys=model.table.used,
            seconds=self._seconds(),
            read=(),
            rows_read=counts.examples + counts.bad_rows + counts.subsampled,
            subsampled=counts.subsampled,
            reject_counts=dict(self._letters.reasons),
            initial=self._initial,
            stream=stream,
        )
        return self._keeper.save(description, dict(arrays))


def owner_of(folder: Path) -> str:
    """The name under which this folder's trainer holds its lease: made once, random, kept in the folder.

    Raises CheckpointError if it cannot be read.
    """
    path = folder / OWNER
    try:
        owner = path.read_text("ascii").strip()
    except FileNotFoundError:
        owner = secrets.token_hex(8)
        write_whole(path, owner.encode())
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"{path}: {error}; expected a name in ASCII: delete it, and a new one is made"
        ) from error
    if not owner:
        raise CheckpointError(f"{path} is empty; expected a name in ASCII: delete it, and a new one is made")
    return owner
