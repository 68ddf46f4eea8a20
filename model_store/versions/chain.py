"""Chains of versions and their bytes: a snapshot is complete, a delta needs its parent, back to a snapshot.

The first half works on version numbers and models alone; the second cuts an artefact's bytes into chunks in Redis and
reads them back verified. `publish.lua` makes uploaded chunks visible.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from model_store.errors import ArtefactError, UnreadableValue
from model_store.keys import ModelKeys
from model_store.redis.connection import StoreConnection
from model_store.versions.manifest import MOST_CHUNKS, Manifest

if TYPE_CHECKING:
    from model_store.artefact.artefact import Artefact, Delta

Parents = Mapping[int, int | None]
"""Each existing version with the parent it needs; None for a snapshot."""


def chain_of(version: int, parents: Parents) -> list[int]:
    """The versions needed to load `version`: its snapshot first, itself last.

    Raises ArtefactError naming the version that is missing or out of order.
    """
    chain = [version]
    while (parent := parents[chain[-1]]) is not None:
        check_parent(chain[-1], parent)
        if parent not in parents:
            raise ArtefactError(
                f"version {version} is a delta and cannot be loaded: version {parent}, the parent of "
                f"{chain[-1]}, is gone; publish a snapshot, or roll back to a complete version"
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
    """True if the version and all that it needs exist."""
    try:
        return version in parents and bool(chain_of(version, parents))
    except ArtefactError:
        return False


def needed_by(versions: Iterable[int], parents: Parents) -> set[int]:
    """The versions and everything they need that still exists."""
    needed: set[int] = set()
    for version in versions:
        at: int | None = version
        while at is not None and at in parents and at not in needed:
            needed.add(at)
            at = parents[at]
    return needed


def apply_chain(snapshot: Artefact, deltas: Sequence[Delta]) -> Artefact:
    """The model that a snapshot and its deltas, applied in order, produce. O(rows + changes). Raises ArtefactError."""
    if not deltas:
        return snapshot
    together = deltas[0]
    for later in deltas[1:]:
        together = together.followed_by(later)
    return snapshot.with_changes(together)


def check_matches(read: Artefact | Delta, manifest: Manifest) -> None:
    """Raise ArtefactError unless kind, parent and content are those of the manifest. Reading has checked the rest."""
    from model_store.artefact.artefact import Delta

    if isinstance(read, Delta) != manifest.is_delta:
        raise ArtefactError(
            f"version {manifest.version} should be a {manifest.kind}, but its bytes are not; publish it again"
        )
    if isinstance(read, Delta) and (read.parent, read.content) != (manifest.parent, manifest.content):
        raise ArtefactError(
            f"version {manifest.version} should produce content {manifest.content} from version {manifest.parent}, but "
            f"its bytes produce content {read.content} from version {read.parent}; publish it again"
        )


# -- chunks

_PROBED = 256
UPLOAD_EXPIRY_S = 3600  # removes the chunks of a publisher that dies before its version is visible

Progress = Callable[[int, int], None]


def upload(
    store: StoreConnection, keys: ModelKeys, manifest: Manifest, data: bytes, on_progress: Progress | None
) -> None:
    """Write the chunks; they expire unless made visible. Calls `on_progress(bytes done, bytes in total)`."""
    view = memoryview(data)
    done = 0
    sizes = manifest.chunk_sizes()
    for key, size in zip(keys.chunks(manifest.version, len(sizes)), sizes, strict=True):
        with store.answers():
            store.at(key).set(key, bytes(view[done : done + size]), ex=UPLOAD_EXPIRY_S)
        done += size
        if on_progress is not None:
            on_progress(done, manifest.size)


def download(store: StoreConnection, keys: ModelKeys, manifest: Manifest) -> bytes:
    """The artefact's bytes, sizes and SHA-256 checked against the manifest. Raises ArtefactError."""
    sizes = manifest.chunk_sizes()
    parts = []
    for index, key in enumerate(keys.chunks(manifest.version, len(sizes))):
        try:
            with store.answers(key):
                parts.append(store.at(key).get(key) or b"")
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
    """How many chunks of a version are in the store: one more than the highest index found."""
    count = 0
    for begin in range(0, MOST_CHUNKS, _PROBED):
        probed = keys.chunks(version, begin + _PROBED)[begin:]
        with store.answers(), store.at(keys.versions).pipeline(transaction=False) as pipe:
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
