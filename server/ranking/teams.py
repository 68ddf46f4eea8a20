"""The variants that one answer interleaves, as requests need them: bound once, when the experiment comes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from model_store.versions.experiments import TEAM, Experiment


class Teams(NamedTuple):
    """The variants that are interleaved in one answer: their bits, and what the answer has as its variant's name.

    which: the bits again, for kernels. is_team_draft: else probabilistic. shadows: the variants scored beside them.
    answer: the field `variant` of an answer, as bytes; fields: the field `team` of an item by each of them, end to end,
    from field_start on.
    """

    variants: tuple[int, ...]
    which: npt.NDArray[np.int64]
    names: tuple[str, ...]
    together: str
    is_team_draft: bool
    shadows: tuple[int, ...]
    answer: bytes
    fields: npt.NDArray[np.uint8]
    field_start: npt.NDArray[np.int64]

    @classmethod
    def of(cls, live: Experiment, bits: tuple[int, ...], shadows: Sequence[int]) -> Teams:
        """Those of a running experiment."""
        fields = [_text_field(_TEAM_FIELD, name) for name in live.interleave]
        return cls(
            bits,
            np.array(bits, np.int64),
            live.interleave,
            live.together,
            live.draft == TEAM,
            tuple(bit for bit in shadows if bit not in bits),
            _text_field(_VARIANT_FIELD, live.together),
            np.frombuffer(bytearray(b"".join(fields)), np.uint8),
            np.array([0, *accumulate(map(len, fields))], np.int64),
        )


_VARIANT_FIELD, _TEAM_FIELD = 5, 7


def _text_field(number: int, text: str) -> bytes:
    """A field of a message of ctr.v1 that is a text, as bytes (protobuf, "Encoding")."""
    encoded = text.encode()
    length, size = b"", len(encoded)
    while size >= 128:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + encoded
