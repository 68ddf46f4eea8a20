"""Making the arrays that the watching kernels sum into."""

from __future__ import annotations

import numpy as np

from trainer.watching.kernels import BLOCK, COUNTS, SUMS, Room, Tally


def new_tally(groups: int, variants: int, buckets: int) -> Tally:
    """Sums of so many groups, all 0; `buckets` divide the scores from -16 to 16."""
    return Tally(
        counts=np.zeros((groups, COUNTS)),
        sums=np.zeros((groups, SUMS, variants)),
        positives=np.zeros((groups, variants, buckets)),
        negatives=np.zeros((groups, variants, buckets)),
        requests=np.zeros(groups, np.uint64),
    )


def room_for(variants: int) -> Room:
    """A kernel's room for a block of rows."""
    each = (np.zeros((variants, BLOCK)) for _ in range(3))
    return Room(np.zeros(BLOCK), *each)
