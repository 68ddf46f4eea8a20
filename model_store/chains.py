"""How versions hang together: a snapshot stands alone, a delta needs its parent, up to a snapshot. No Redis here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from model_store.artefact import Artefact
from model_store.delta import Delta
from model_store.errors import ArtefactError
from model_store.manifest import Manifest

Parents = Mapping[int, int | None]
"""Each version that is there, and the parent that it needs: None for a snapshot."""


def chain_of(version: int, parents: Parents) -> list[int]:
    """The versions that `version` is put together from, its snapshot first, itself last.

    Raises ArtefactError naming the version that is missing or stands in the wrong order.
    """
    chain = [version]
    while (parent := parents[chain[-1]]) is not None:
        if parent >= chain[-1]:
            raise ArtefactError(
                f"version {chain[-1]} is a delta and names version {parent} as its parent; expected an older one"
            )
        if parent not in parents:
            raise ArtefactError(
                f"version {version} is a delta and cannot be put together: version {parent}, the parent of "
                f"{chain[-1]}, is gone; publish a snapshot, or go back to a version that is whole"
            )
        chain.append(parent)
    return chain[::-1]


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
