"""Parts: one version of a model as processes hand it to each other, as blocks of shared memory.

Most blocks outlive a version: a delta replaces values and items, and the fresh layer if it has keys that the base
lacks. docs/layers.md has a table of what each block holds. Nothing here builds or binds them.
"""

from __future__ import annotations

from dataclasses import dataclass

from server.mapped import Mapped


@dataclass(frozen=True, eq=False)
class Parts:
    """All that a worker needs to answer with one version.

    sha256: that of the version as stored. content: the digest of its rows (`model_store.content`).

    base: spec, trie, item halves; no values. values: weights, variants and rates by the base's slots; the block is
    written again for a later version, under another uid, once nobody reads it. fresh: keys that the base lacks, with
    their values; None where there are none. items: what this version knows of the catalogue's items; its calibration.
    catalogue: the items.
    """

    name: str
    version: int
    sha256: str
    content: str
    items_generation: int
    base: Mapped
    values: Mapped
    fresh: Mapped | None
    items: Mapped
    catalogue: Mapped
