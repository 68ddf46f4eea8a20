"""One pass that lays a request's own tokens over a user's stored ones, field by field. What they mean is not known."""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.jit import bare_inline, bare_kernel


@bare_kernel
def overlay(
    given: Any, value_start: Any, begin: Any, x: Any, text: Any,
    stored_start: Any, stored_begin: Any, stored_x: Any, stored_text: Any,
    out_start: Any, out_begin: Any, out_x: Any, out_text: Any,
) -> Any:  # fmt: skip
    """The tokens of each field: the first table's where its bit of `given` is set, else the second's.

    Three tables as `TokenTable` lays them out, of one value a field; the third has room for all tokens of both.
    """
    tokens, used = np.int64(0), np.int64(0)
    for field in range(out_start.size - 1):
        out_start[field] = tokens
        if given >> field & 1:
            tokens, used = _copy(value_start, begin, x, text, field, out_begin, out_x, out_text, tokens, used)
        else:
            tokens, used = _copy(
                stored_start, stored_begin, stored_x, stored_text, field,
                out_begin, out_x, out_text, tokens, used,
            )  # fmt: skip
    out_start[out_start.size - 1] = tokens
    out_begin[tokens] = used


@bare_inline
def _copy(
    value_start: Any, begin: Any, x: Any, text: Any, field: Any,
    out_begin: Any, out_x: Any, out_text: Any, tokens: Any, used: Any,
) -> Any:  # fmt: skip
    """Append one field's tokens; return how many tokens and bytes there are then."""
    for token in range(value_start[field], value_start[field + 1]):
        out_begin[tokens] = used
        out_x[tokens] = x[token]
        for i in range(begin[token], begin[token + 1]):
            out_text[used] = text[i]
            used += 1
        tokens += 1
    return tokens, used
