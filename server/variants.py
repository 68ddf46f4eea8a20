"""Which variant answers a request: sticky by cookie, proportional to the traffic shares.

A cookie is hashed with the model's name as salt to a point in [0, 1); the variants divide that interval in
their order in the spec. So a cookie stays with its variant while the shares stay, moves only as far as a
border moves, and falls independently in every model. Nothing here knows of scores.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from hashlib import blake2b
from itertools import accumulate

_POINTS = 1 << 64
_DIGEST_BYTES = 8


class VariantChooser:
    """Assigns cookies to variants. Immutable, so any number of threads may use it."""

    def __init__(self, model: str, shares: Sequence[float]) -> None:
        """`shares`: fractions of traffic in the order of the spec; they sum to 1."""
        total = sum(shares)
        borders = [int(_POINTS * (share / total)) for share in accumulate(shares)]
        # The last variant with a share takes what rounding leaves; one without a share gets nothing.
        self._last = max(index for index, share in enumerate(shares) if share > 0)
        self._borders = borders[: self._last]
        self._salted = blake2b(model.encode() + b"\0", digest_size=_DIGEST_BYTES)

    def choose(self, cookie: str) -> int:
        """The variant's bit for `cookie` (of the request's id where there is no cookie). O(log variants)."""
        if not self._borders:
            return self._last
        point = self._salted.copy()
        point.update(cookie.encode("utf-8", "surrogatepass"))
        return bisect_right(self._borders, int.from_bytes(point.digest(), "big"))
