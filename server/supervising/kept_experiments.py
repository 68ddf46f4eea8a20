"""The experiments on disk, a file a model: how a server that starts while the store is away divides its traffic.

experiments/<model>.json     the record, checked by a SHA-256 of its own; absent where there is none
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from model_store.errors import ArtefactError, ExperimentError, OutputError
from model_store.experiments import Experiment
from model_store.whole_file import write_whole


class KeptExperiments:
    """A folder of records. Thread safety: any, a model's file being whole at every moment."""

    def __init__(self, folder: Path) -> None:
        """The folder is made when there is something to keep."""
        self._folder = folder

    def save(self, model: str, experiment: str | None) -> None:
        """Keep a record, as `Experiment.to_json` says it, or that there is none. Raises OutputError."""
        path = self._path(model)
        try:
            if experiment is None:
                path.unlink(missing_ok=True)
                return
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise OutputError(f"cannot keep {path}: {error.strerror}") from error
        document = {"check": _digest(experiment), "experiment": experiment}
        write_whole(path, json.dumps(document).encode())

    def load(self, model: str) -> Experiment | None:
        """The record; None if there is none. Raises ArtefactError for a damaged file."""
        path = self._path(model)
        try:
            document = json.loads(path.read_bytes())
            if _digest(document["experiment"]) == document["check"]:
                return Experiment.from_json(document["experiment"])
            problem = "its checksum is not that of its text"
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError, TypeError, AttributeError, ExperimentError) as error:
            problem = str(error)
        raise ArtefactError(f"{path} is damaged: {problem}; traffic is divided by the spec")

    def _path(self, model: str) -> Path:
        return self._folder / f"{model}.json"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
