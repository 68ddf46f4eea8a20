"""The hash of keys as docs/formats/keys.md describes it, with the constants of that page, one byte string at a time."""

from __future__ import annotations

from tests.repository.pages import tables

ALL = (1 << 64) - 1
DOCUMENTED = {
    row[0]: int(row[1], 16) for row in tables("formats/keys.md") if len(row) == 2 and row[1].startswith("0x")
}
SEED, LENGTH, WORD = DOCUMENTED["SEED"], DOCUMENTED["LENGTH"], DOCUMENTED["WORD"]
PART, SEPARATOR = DOCUMENTED["PART"], DOCUMENTED["SEPARATOR"]


def digest(text: bytes) -> int:
    state = SEED ^ (len(text) * LENGTH) & ALL
    for at in range(0, len(text), 8):
        state = (state ^ int.from_bytes(text[at : at + 8], "little")) * WORD & ALL
        state ^= state >> 32
    state = state * PART & ALL
    return (state ^ state >> 29) or 1


def combine(state: int, part: int, separator: int) -> int:
    state = (state ^ part ^ (separator * SEPARATOR & ALL)) * WORD & ALL
    state = (state ^ state >> 32) * PART & ALL
    return (state ^ state >> 29) or 1


def whole_key(text: bytes) -> int:
    """Of a key, by its parts and the separators between them."""
    state, start = SEED, 0
    for at, byte in enumerate(text):
        if byte in b"*=":
            state, start = combine(state, digest(text[start:at]), byte), at + 1
    return combine(state, digest(text[start:]), 0)
