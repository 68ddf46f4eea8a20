"""How versions hang together: a snapshot stands alone, a delta needs its parent, up to a snapshot. No Redis here."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence

from model_store.artefact.artefact import Artefact, Delta
from model_store.errors import ArtefactError, UnreadableValue
from model_store.redis.connection import StoreConnection
from model_store.redis.redis_keys import ModelKeys
from model_store.versions.manifest import MOST_CHUNKS, Manifest

Parents = Mapping[int, int | None]
"""Each version that is there, and the parent that it needs: None for a snapshot."""


def chain_of(version: int, parents: Parents) -> list[int]:
    """The versions that `version` is put together from, its snapshot first, itself last.

    Raises ArtefactError naming the version that is missing or stands in the wrong order.
    """
    chain = [version]
    while (parent := parents[chain[-1]]) is not None:
        check_parent(chain[-1], parent)
        if parent not in parents:
            raise ArtefactError(
                f"version {version} is a delta and cannot be put together: version {parent}, the parent of "
                f"{chain[-1]}, is gone; publish a snapshot, or go back to a version that is whole"
            )
        chain.append(parent)
    return chain[::-1]


def check_parent(version: int, parent: int) -> None:
    """Raise ArtefactError for a delta whose parent is not an older version."""
    if parent >= version:
        raise ArtefactError(
            f"version {version} is a delta and names version {parent} as its parent; expected an older one"
        )


def is_whole(version: int, parents: Parents) -> bool:
    """True if the version is there with all that it is put together from."""
    try:
        return version in parents and bool(chain_of(version, parents))
    except ArtefactError:
        return False


def needed_by(versions: Iterable[int], parents: Parents) -> set[int]:
    """The versions, and whatever is still there of what they are put together from."""
    needed: set[int] = set()
    for version in versions:
        at: int | None = version
        while at is not None and at in parents and at not in needed:
            needed.add(at)
            at = parents[at]
    return needed


def put_together(snapshot: Artefact, deltas: Sequence[Delta]) -> Artefact:
    """The model that deltas make of a snapshot, one after the other. O(rows + changes). Raises ArtefactError."""
    if not deltas:
        return snapshot
    together = deltas[0]
    for later in deltas[1:]:
        together = together.followed_by(later)
    return snapshot.with_changes(together)


def check_as_announced(read: Artefact | Delta, manifest: Manifest) -> None:
    """Raise ArtefactError unless what was read is what its manifest says, as far as reading has not shown it yet."""
    if isinstance(read, Delta) != manifest.is_delta:
        raise ArtefactError(
            f"version {manifest.version} should be a {manifest.kind}, and its bytes are not; publish it again"
        )
    if isinstance(read, Delta) and (read.parent, read.content) != (manifest.parent, manifest.content):
        raise ArtefactError(
            f"version {manifest.version} should make content {manifest.content} of version {manifest.parent}, and its "
            f"bytes make content {read.content} of version {read.parent}; publish it again"
        )


# --- An artefact's bytes in Redis: cut into chunks, sent, fetched, verified. Nothing here is made visible ---


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
