"""Sorting spans of bytes equals sorting the texts themselves, long ties and NULs among them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from server.model.item_parts import sorted_spans

SHORT = st.binary(max_size=5)
LONG = st.builds(
    lambda head, times, tail: head * times + tail,
    st.sampled_from([b"a", b"\0", b"item-"]),
    st.integers(0, 9),
    SHORT,
)


@given(st.lists(st.one_of(SHORT, LONG), unique=True, max_size=40))
def test_spans_are_in_the_order_of_their_bytes(texts: list[bytes]) -> None:
    data = np.frombuffer(bytearray(b"".join(texts)), np.uint8)
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    spans = np.stack([np.append(0, ends)[:-1], ends], axis=1) if texts else np.empty((0, 2), np.int64)
    order = sorted_spans(data, np.ascontiguousarray(spans))
    assert [texts[row] for row in order.tolist()] == sorted(texts)
