"""Kernels that compare the keys of a batch with rules that reach into values; only specs with such rules pay for it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from model_store.jit import bare_inline, bare_kernel
from model_store.kernels import load_u8
from trainer.hashing.kernels import STAR, token_bytes, tokens_of


class ValueRules(NamedTuple):
    """Beginnings of values, by owner: those of owner o stand from first[o] to first[o + 1], the longest first.

    first: int64[owners + 1]; features: uint16, the number of a key that begins so; text: uint8, the beginnings end to
    end; starts: int64, where each begins in it, and its end.
    """

    first: Any
    features: Any
    text: Any
    starts: Any


@bare_kernel
def set_apart(rows: Any, hashed: Any, tokens: Any, places: Any, rules: Any, picked: Any) -> None:
    """Give keys that begin as a value rule says that rule's feature number; the longest rule wins.

    rows: int32[m]; hashed: `HashedRows`, whose features are the owners' and are rewritten; tokens: `TokenLayout`;
    places: `TokenBytes`; rules: `ValueRules`; picked: int64[4], room for a cross's tokens.
    """
    for index in range(rows.size):
        position, stop = hashed.starts[index], hashed.starts[index + 1]
        while position < stop:
            owner = np.int64(hashed.features[position])
            ordinal = 0
            while position < stop and hashed.features[position] == owner:
                if rules.first[owner] < rules.first[owner + 1]:
                    size = tokens_of(tokens, owner, rows[index], ordinal, picked)
                    rule = longest_rule(tokens, owner, picked, size, places, rules)
                    if rule >= 0:
                        hashed.features[position] = rules.features[rule]
                ordinal += 1
                position += 1


@bare_inline
def longest_rule(tokens: Any, owner: Any, picked: Any, size: Any, places: Any, rules: Any) -> Any:
    """The first rule of the owner that the key of these tokens begins with, or -1."""
    for rule in range(rules.first[owner], rules.first[owner + 1]):
        if begins_with(tokens, owner, picked, size, places, rules, rule):
            return rule
    return -1


@bare_inline
def begins_with(tokens: Any, owner: Any, picked: Any, size: Any, places: Any, rules: Any, rule: Any) -> Any:
    """Whether the tokens' bytes, joined by `*`, begin with the rule's text."""
    at, end = rules.starts[rule], rules.starts[rule + 1]
    for part in range(size):
        if at < end and part > 0:
            if rules.text[at] != STAR:
                return False
            at += 1
        address, stop = token_bytes(tokens, owner, part, picked[part], places)
        while at < end and address < stop:
            if rules.text[at] != load_u8(address):
                return False
            at += 1
            address += 1
        if at == end:
            return True
    return False
