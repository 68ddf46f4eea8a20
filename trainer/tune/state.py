"""The state file of a search: the results of finished passes, so that a killed search goes on where it was.

One JSON document: the format, what the search is of (log, spec, options), the passes by key, and a SHA-256 of all that.
It is replaced as a whole after every pass, so a pass is in it or not. A key is a digest of everything that the pass
depends on beside the log.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_store.bounded import json_value
from model_store.errors import CheckpointError, InputError
from model_store.files import check_writable, write_whole
from trainer.examples.open_log import Log
from trainer.formats.batch import STDIN
from trainer.formats.reader import expand

FORMAT = "ftrie-tune"
VERSION = 1


class State:
    """The finished passes of one search. `kept`: how many of them were found when it was opened.

    identity: what the search is of, by name; a state of something else is refused.
    """

    def __init__(self, path: Path, identity: Mapping[str, str]) -> None:
        """Open the file, or begin it. Raises OutputError, CheckpointError for a damaged file or another search's."""
        check_writable(path)
        self._path, self._identity = path, dict(identity)
        self._passes: dict[str, Any] = _read(path, self._identity) if path.exists() else {}
        self.kept = len(self._passes)

    @staticmethod
    def key(*parts: object) -> str:
        """The key of a pass."""
        return hashlib.sha256(_text(parts)).hexdigest()

    def get(self, key: str) -> Any:
        """The result of a pass, or None."""
        return self._passes.get(key)

    def put(self, key: str, result: Mapping[str, Any]) -> None:
        """Keep the result of a pass; it is on disk when this returns. Raises OutputError."""
        self._passes[key] = result
        body = {"identity": self._identity, "passes": self._passes}
        document = {"format": FORMAT, "version": VERSION, "sha256": _digest(body), **body}
        write_whole(self._path, _text(document) + b"\n")


def log_identity(log: Log) -> str:
    """A digest of the log's bytes, those of its side tables, and its format. Raises InputError."""
    digest = hashlib.sha256()
    for name in expand(log.inputs):
        if name == STDIN:
            raise InputError(
                "- (standard input) cannot be read again by a search that goes on: use files, or no --state"
            )
        try:
            with Path(name).open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise InputError(f"cannot read {name}: {error.strerror}") from None
    tables = [(table.name, table.sha256, table.key) for table in log.tables]
    digest.update(_text([log.format, tables]))
    return digest.hexdigest()


def _read(path: Path, identity: Mapping[str, str]) -> dict[str, Any]:
    try:
        found = json_value(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"cannot read the state {path}: {error.strerror}") from None
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not a state of `ftrie tune`; name another file")
    if found.get("version") != VERSION:
        raise CheckpointError(
            f"{path} is a state of version {found.get('version')}; this ftrie reads version {VERSION}: delete it"
        )
    body: dict[str, Any] = {name: found.get(name) for name in ("identity", "passes")}
    if found.get("sha256") != _digest(body):
        raise CheckpointError(f"{path} is damaged: its checksum does not match; delete it")
    for name, value in identity.items():
        if body["identity"].get(name) != value:
            raise CheckpointError(
                f"{path} is the state of a search with another {name}; go on with that {name}, or name another file"
            )
    passes: dict[str, Any] = body["passes"]
    return passes


def _digest(document: object) -> str:
    return hashlib.sha256(_text(document)).hexdigest()


def _text(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":"), sort_keys=True, allow_nan=False).encode()
