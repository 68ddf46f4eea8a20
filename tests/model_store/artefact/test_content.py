"""The content digest against the page that describes it, and against itself: order, parts, every bit."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.artefact.artefact import Artefact
from model_store.artefact.rows import Content, ModelRows
from model_store.errors import ArtefactError
from tests.model_store.models import KEYS, large_model, model, own_model

MASK = (1 << 64) - 1
S = 0xA0761D6478BD642F


def finalized(state: int) -> int:
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & MASK
    state = (state ^ state >> 27) * 0x94D049BB133111EB & MASK
    return state ^ state >> 31


def described(rows: ModelRows) -> str:
    """The digest as docs/formats/artefact.md describes it, one row after the other."""
    sums = [0, 0]
    for row in range(rows.rows):
        if not rows.variants[row]:
            continue
        key = rows.key(row)
        weights = rows.weight[row].reshape(-1).view(np.uint32).tolist()
        rates = rows.rate[row].reshape(-1).view(np.uint32).tolist()
        words = [int.from_bytes(key[at : at + 8], "little") for at in range(0, len(key), 8)]
        words += [weight + (rate << 32) for weight, rate in zip(weights, rates, strict=True)]
        first = len(key) + (int(rows.variants[row]) << 32)
        a = finalized(0x9E3779B97F4A7C15 ^ first)
        b = finalized((0xC4CEB9FE1A85EC53 + first * S) & MASK)
        for word in words:
            a, b = finalized(a ^ word), finalized((b + word * S) & MASK)
        sums = [(sums[0] + a) & MASK, (sums[1] + b) & MASK]
    return f"{sums[0]:016x}{sums[1]:016x}"


@pytest.mark.parametrize("artefact", [model([]), model(), own_model(), large_model(300)], ids="abcd")
def test_it_is_what_the_page_says(artefact: Artefact) -> None:
    assert artefact.content == described(artefact)


@given(st.binary(min_size=1, max_size=40))
def test_keys_of_every_length_are_taken_whole(key: bytes) -> None:
    one = model([key])
    assert one.content == described(one)


def test_the_digest_of_parts_is_the_digest_of_the_whole() -> None:
    whole = large_model(100)
    rows = list(range(100))
    random.Random(3).shuffle(rows)
    parts = []
    for some in (rows[:40], rows[40:41], rows[41:]):
        columns = {name: getattr(whole, name)[some] for name in ("weight", "rate", "variants")}
        parts.append(model([whole.key(row) for row in some], **columns))
    assert str(sum((part.rows_content() for part in parts), Content())) == whole.content
    assert whole.rows_content() - parts[0].rows_content() == parts[1].rows_content() + parts[2].rows_content()


def test_every_bit_of_a_row_tells() -> None:
    one = model([b"age=25"])
    found = {one.content}
    for name in ("weight", "rate", "variants", "key_data"):
        column = getattr(one, name)
        for bit in range(column.nbytes * 8):
            changed = column.copy()
            changed.view(np.uint8)[bit // 8] ^= np.uint8(1 << bit % 8)
            found.add(replace(one, **{name: changed}).content)
    assert len(found) == 1 + 32 * 3 + 6 * 8
    assert model([]).content in found  # variants without its only bit


def test_rows_that_no_variant_uses_do_not_count_and_zero_and_minus_zero_differ() -> None:
    unused = model(KEYS, variants=np.array([1, 0, 1, 0, 1], np.uint32))
    used = model([KEYS[row] for row in (0, 2, 4)], [0.5, 2.5, 4.5])
    assert unused.content == used.content
    assert model([b"a"], [0.0]).content != model([b"a"], [-0.0]).content
    content = Content(1, MASK)
    assert Content.parse(str(content)) == content
    for bad in ("", "12", "g" * 32, "0" * 33):
        with pytest.raises(ArtefactError, match="expected 32 hexadecimal digits"):
            Content.parse(bad)
