"""The compiled part of `values.category_text`: which texts it may change."""

from __future__ import annotations

from typing import Any

from model_store.hash_kernels import load_u8
from model_store.jit import bare_inline


@bare_inline
def is_spelling(address: Any, length: Any) -> Any:
    """Whether a text ends with a point and zeros, is -0, or has the first two bytes and the length of True or False."""
    if length < 2:
        return False
    first, second, last = load_u8(address), load_u8(address + 1) | 32, load_u8(address + length - 1)
    if last != 48:
        return (first == 84 and second == 114 and length == 4) or (
            first == 70 and second == 97 and length == 5
        )
    at = length - 2
    while at > 0 and load_u8(address + at) == 48:
        at -= 1
    byte = load_u8(address + at)
    return (byte == 46 and at > 0) or (byte == 45 and length == 2)
