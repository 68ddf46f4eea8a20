"""An artefact's bytes in Redis: cut into chunks, sent, fetched, verified. Nothing here is made visible."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from model_store.connection import StoreConnection
from model_store.errors import ArtefactError, UnreadableValue
from model_store.manifest import MOST_CHUNKS, Manifest
from model_store.redis_keys import ModelKeys

_PROBED = 256
UPLOAD_EXPIRY_S = 3600  # what a publisher leaves that dies before its version is visible

Progress = Callable[[int, int], None]


def upload(
    store: StoreConnection, keys: ModelKeys, manifest: Manifest, data: bytes, on_progress: Progress | None
) -> None:
    """Send the chunks, to expire unless made visible. Calls `on_progress(bytes done, bytes in all)`."""
    view = memoryview(data)
    done = 0
    sizes = manifest.chunk_sizes()
    for key, size in zip(keys.chunks(manifest.version, len(sizes)), sizes, strict=True):
        with store.answers():
            store.client.set(key, bytes(view[done : done + size]), ex=UPLOAD_EXPIRY_S)
        done += size
        if on_progress is not None:
            on_progress(done, manifest.size)


def download(store: StoreConnection, keys: ModelKeys, manifest: Manifest) -> bytes:
    """The artefact's bytes, their sizes and SHA-256 as the manifest says. Raises ArtefactError."""
    sizes = manifest.chunk_sizes()
    parts = []
    for index, key in enumerate(keys.chunks(manifest.version, len(sizes))):
        try:
            with store.answers(key):
                parts.append(store.client.get(key) or b"")
        except UnreadableValue as error:
            raise ArtefactError(f"version {manifest.version} is damaged: {error}") from None
        if len(parts[index]) != sizes[index]:
            raise incomplete(manifest.version, index, sizes[index], len(parts[index]))
    data = b"".join(parts)
    found = hashlib.sha256(data).hexdigest()
    if found != manifest.sha256:
        raise ArtefactError(
            f"version {manifest.version} is damaged: its manifest says SHA-256 {manifest.sha256}, "
            f"its chunks have {found}; publish it again"
        )
    return data


def chunks_there(store: StoreConnection, keys: ModelKeys, version: int) -> int:
    """How many chunks of a version are in the store, by their keys: one more than the last index that is there."""
    count = 0
    for begin in range(0, MOST_CHUNKS, _PROBED):
        probed = keys.chunks(version, begin + _PROBED)[begin:]
        with store.answers(), store.client.pipeline(transaction=False) as pipe:
            for key in probed:
                pipe.exists(key)
            there = [index for index, found in enumerate(pipe.execute()) if found]
        if not there:
            break
        count = begin + there[-1] + 1
    return count


def incomplete(version: int, chunk: int, expected: int, there: int) -> ArtefactError:
    """The error for a chunk that is missing or has the wrong size."""
    return ArtefactError(
        f"version {version} is incomplete: chunk {chunk} should have {expected:,} bytes and has {there:,}; "
        "publish it again"
    )
