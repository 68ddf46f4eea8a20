"""One pass that lays a request's own tokens over a user's stored ones, field by field. What they mean is not known."""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.jit import bare_inline, bare_kernel


@bare_kernel
def overlay(
    given: Any, value_start: Any, begin: Any, x: Any, text: Any,
    stored_places: Any, stored_x: Any, stored_text: Any,
    out_start: Any, out_begin: Any, out_x: Any, out_text: Any,
) -> Any:  # fmt: skip
    """The tokens of each field: the first table's where its bit of `given` is set, else the second's.

    Three tables as `TokenTable` lays them out, of one value a field; the second has value_start and begin in one array,
    int64, and the third has room for all tokens of both.
    """
    tokens, used, fields = np.int64(0), np.int64(0), out_start.size - 1
    for field in range(fields):
        out_start[field] = tokens
        if given >> field & 1:
            for token in range(value_start[field], value_start[field + 1]):
                out_begin[tokens], out_x[tokens] = used, x[token]
                used = _copy(text, begin[token], begin[token + 1], out_text, used)
                tokens += 1
        else:
            for token in range(stored_places[field], stored_places[field + 1]):
                out_begin[tokens], out_x[tokens] = used, stored_x[token]
                at = fields + 1 + token
                used = _copy(stored_text, stored_places[at], stored_places[at + 1], out_text, used)
                tokens += 1
    out_start[fields] = tokens
    out_begin[tokens] = used


@bare_inline
def _copy(text: Any, begin: Any, end: Any, out_text: Any, used: Any) -> Any:
    """Append text[begin:end]; return how much is used then."""
    for i in range(begin, end):
        out_text[used] = text[i]
        used += 1
    return used
