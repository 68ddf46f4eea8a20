"""Model files that nobody wrote: damaged artefacts and deltas, any JSON. A domain error, or the same model again."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.artefact import json_model
from model_store.artefact.artefact import Artefact, Delta
from model_store.errors import ArtefactError, FtrieError, SpecError
from model_store.model_files import infer_spec
from model_store.spec.spec import parse_spec
from tests.matrix import examples
from tests.model_store.models import SPEC_TEXT, large_model, model, own_model

BEFORE, AFTER = large_model(60, seed=1), large_model(60, seed=2)
ARTEFACT = AFTER.to_bytes()
DELTA = AFTER.changes_since(BEFORE, version=1).to_bytes()
JSON = json_model.render(model())
SPLICES = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 40), st.binary(max_size=40)), min_size=1, max_size=4
)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(("list", "type", "fid", "key", "value", "")), inner, max_size=4)
    ),
    max_leaves=12,
)


def spliced(data: bytes, splices: list[tuple[float, int, bytes]]) -> bytes:
    """`data` with pieces of it replaced by others of another length."""
    for part, length, piece in splices:
        at = int(part * len(data))
        data = data[:at] + piece + data[at + length :]
    return data


def read(data: bytes) -> tuple[bytes, str] | None:
    """What an artefact or a delta of AFTER is read as, and the content it leads to; None where it is refused."""
    with suppress(ArtefactError):
        model = Artefact.from_bytes(data)
        return model.to_bytes(), model.content
    with suppress(ArtefactError):
        delta = Delta.from_bytes(data)
        return delta.to_bytes(), BEFORE.with_changes(delta).content
    return None


@pytest.mark.parametrize("data", [ARTEFACT, DELTA], ids=["artefact", "delta"])
@examples(200)
@given(splices=SPLICES)
def test_a_damaged_file_is_refused_or_the_same(data: bytes, splices: list[tuple[float, int, bytes]]) -> None:
    assert read(spliced(data, splices)) in (None, (data, AFTER.content))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "data"),
    list(enumerate([ARTEFACT, DELTA, own_model().to_bytes()])),
    ids=["artefact", "delta", "own"],
)
def test_a_flipped_bit_is_refused_or_lies_in_padding(first: int, data: bytes) -> None:
    """Of every third byte one, in each file of other ones."""
    refused, whole = 0, read(data)
    for position in range(first, len(data), 3):
        flipped = bytearray(data)
        flipped[position] ^= 1 << position % 8
        found = read(bytes(flipped))
        assert found in (None, whole), position
        refused += found is None
    assert refused > len(data) / 6


@given(st.binary(max_size=300))
def test_any_bytes_are_no_artefact_and_no_delta(data: bytes) -> None:
    for kind in (Artefact, Delta):
        with pytest.raises(ArtefactError):
            kind.from_bytes(data)


def imported(data: bytes) -> Artefact | None:
    """The model of these bytes, or None where they are refused with a domain error."""
    with suppress(FtrieError):
        parsed = json_model.parse(data)
        return json_model.to_artefact(parsed, infer_spec("ads", parsed.keys))
    return None


@examples(200)
@given(ANY_JSON | st.lists(ANY_JSON, max_size=4).map(lambda entries: {"type": "x", "list": entries}))
def test_any_json_is_a_model_or_refused(document: Any) -> None:
    imported(json.dumps(document).encode())


@examples(200)
@given(SPLICES)
def test_a_damaged_json_model_is_a_model_or_refused(splices: list[tuple[float, int, bytes]]) -> None:
    imported(spliced(JSON, splices))


@examples(200)
@given(SPLICES)
def test_a_damaged_spec_is_a_spec_or_refused(splices: list[tuple[float, int, bytes]]) -> None:
    text = spliced(SPEC_TEXT.encode(), splices).decode("utf-8", "replace")
    with suppress(SpecError):
        parse_spec(text)
