"""What the store says of versions that answer: through when they have learned."""

from __future__ import annotations

from collections.abc import Callable

from model_store.errors import FtrieError
from model_store.published_versions import PublishedVersions


def through_of(versions: PublishedVersions) -> Callable[[int], int | None]:
    """Version → through_us of its manifest; None where it has none, is gone, or the store is away."""

    def through_us(version: int) -> int | None:
        try:
            return versions.manifest(version).through_us
        except FtrieError:
            return None

    return through_us
