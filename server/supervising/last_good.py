"""The last good model on disk, one folder a model: what a server starts from when the store is away or its model lost.

    last_good.json           version, SHA-256 and content, and the file of each block; checked by a SHA-256 of its own
    base-….part, values-….part, …   one file a block (`server.mapped`), verified when it is read

A block's file is written whole before last_good.json names it, and removed after none names it any more: at every
moment the folder holds one whole model, or none. A block that two versions share is written once.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model_store.errors import ArtefactError, OutputError
from model_store.whole_file import write_whole
from server.layers.parts import Parts
from server.mapped import Mapped
from server.supervising.messages import BLOCKS

FORMAT = 1
INDEX = "last_good.json"
SUFFIX = ".part"


@dataclass(frozen=True)
class Kept:
    """What the folder says it holds, before the blocks are read."""

    version: int
    sha256: str
    document: dict[str, Any]


class LastGood:
    """The folder of one model. For one thread."""

    def __init__(self, folder: Path, model: str) -> None:
        self._folder = folder
        self._model = model
        self._files: dict[str, str] = {}
        """The file of each block that is on disk, by the block's uid."""

    def save(self, parts: Parts) -> None:
        """Keep `parts` in place of what was kept. O(bytes of the blocks that are new). Raises OutputError."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise OutputError(f"cannot make {self._folder}: {error.strerror}") from error
        files = {name: self._written(name, getattr(parts, name)) for name in BLOCKS}
        document = {
            "format": FORMAT,
            "model": parts.name,
            "version": parts.version,
            "sha256": parts.sha256,
            "content": parts.content,
            "items_generation": parts.items_generation,
            "blocks": files,
        }
        text = json.dumps(document, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()
        write_whole(self._folder / INDEX, json.dumps({"check": digest, "last_good": text}).encode())
        self._sweep({name for name in files.values() if name is not None})

    def kept(self) -> Kept | None:
        """What is kept; None if nothing is. Raises ArtefactError if the index is damaged or of another format."""
        path = self._folder / INDEX
        try:
            outer = json.loads(path.read_bytes())
            text = outer["last_good"]
            if hashlib.sha256(text.encode()).hexdigest() != outer["check"]:
                raise ArtefactError(f"{path} is damaged: its checksum is not that of its text")
            document = json.loads(text)
            if document["format"] != FORMAT:
                raise ArtefactError(f"{path} has format {document['format']}, expected {FORMAT}")
            if document["model"] != self._model:
                raise ArtefactError(f"{path} holds the model {document['model']!r}, expected {self._model!r}")
            return Kept(int(document["version"]), str(document["sha256"]), document)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ArtefactError(f"cannot read {path}: {error.strerror}") from error
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ArtefactError(f"{path} is damaged: {error}") from error

    def load(self, kept: Kept) -> Parts:
        """Read and verify every block. O(bytes). Raises ArtefactError for one that is missing or damaged."""
        document = kept.document
        blocks: dict[str, Any] = {}
        for name in BLOCKS:
            file = document["blocks"].get(name)
            if file is None:
                blocks[name] = None
                continue
            block = blocks[name] = Mapped.load(self._folder / Path(file).name)
            self._files[block.uid] = file
        return Parts(
            name=self._model,
            version=kept.version,
            sha256=kept.sha256,
            content=document["content"],
            items_generation=document["items_generation"],
            **blocks,
        )

    def _written(self, name: str, block: Mapped | None) -> str | None:
        if block is None:
            return None
        file = self._files.get(block.uid)
        if file is None or not (self._folder / file).exists():
            file = f"{name}-{block.uid}-{os.urandom(4).hex()}{SUFFIX}"
            block.save(self._folder / file)
        self._files[block.uid] = file
        return file

    def _sweep(self, named: set[str]) -> None:
        """Remove what the index does not name: the blocks before, and what a crash left half-written."""
        self._files = {uid: file for uid, file in self._files.items() if file in named}
        for path in self._folder.iterdir():
            if path.name not in named and path.name != INDEX:
                path.unlink(missing_ok=True)
