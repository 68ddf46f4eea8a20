"""The catalogue taken apart and put together again: the same items, and nothing per item in Python."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.errors import ArtefactError
from model_store.features.features import FeaturePlan
from model_store.spec.values import Value
from server.model.columns import Catalogue, number_of
from server.model.layers import sorted_spans
from server.model.shared_memory import SharedBlock
from tests.server import shop

Records = Mapping[str, Mapping[str, Value]]
PLAN = FeaturePlan.of(shop.spec())
TEXT = st.text(max_size=6)
RECORDS = st.dictionaries(
    st.text(min_size=1, max_size=6),
    st.fixed_dictionaries(
        {}, optional={"brand": TEXT, "tags": st.lists(TEXT, max_size=3), "price": st.just("4.5"), "bid": TEXT}
    ),
    max_size=8,
)


def through_shared_memory(catalogue: Catalogue) -> Catalogue:
    block = SharedBlock.write(*catalogue.pack())
    return Catalogue.unpack(PLAN, block.head, block.arrays)


@given(RECORDS)
def test_a_catalogue_in_shared_memory_is_the_one_that_was_built(records: Records) -> None:
    built = Catalogue.build(PLAN, records.items())
    opened = through_shared_memory(built)
    ids = list(records)
    assert (list(opened.ids), len(opened), opened.ids[1:3]) == (ids, len(ids), ids[1:3])
    rows, unknown = opened.rows.rows([*records, "no such item"])
    assert (rows.tolist(), unknown) == ([*range(len(records)), -1], 1)
    with pytest.raises(IndexError):
        opened.ids[len(ids)]
    assert opened.problems == built.problems
    for row, record in enumerate(records.values()):
        for column, field in enumerate(PLAN.item_fields):
            assert opened.tokens_at(row, column) == field.tokens(record.get(field.name))
    assert opened.columns.keys() == built.columns.keys()


def test_a_catalogue_for_other_fields_is_refused() -> None:
    head, arrays = Catalogue.build(PLAN, shop.ITEMS.items()).pack()
    with pytest.raises(ArtefactError, match="built for the item fields \\['colour'\\]"):
        Catalogue.unpack(PLAN, {**head, "fields": ["colour"]}, arrays)


@given(RECORDS, RECORDS)
def test_an_item_spelled_out_has_its_own_features_and_for_the_rest_those_of_the_catalogue(
    records: Records, spelled: Records
) -> None:
    catalogue = Catalogue.build(PLAN, records.items())
    for _ in range(2):  # made, then remembered
        for item_id, features in catalogue.under(list(spelled.items())):
            together = {**records.get(item_id, {}), **spelled[item_id]}
            assert features.keys() == spelled[item_id].keys()
            for field in PLAN.item_fields:
                assert field.tokens(features.get(field.name)) == field.tokens(together.get(field.name))
            for name in ("brand", "tags", "price", "bid"):
                texts = catalogue.members(name, features.get(name))
                assert set(texts) == set(catalogue.members(name, together.get(name)))
                assert str(number_of(features.get(name))) == str(number_of(together.get(name)))


SHORT = st.binary(max_size=5)
LONG = st.builds(
    lambda head, times, tail: head * times + tail,
    st.sampled_from([b"a", b"\0", b"item-"]),
    st.integers(0, 9),
    SHORT,
)


@given(st.lists(st.one_of(SHORT, LONG), unique=True, max_size=40))
def test_spans_of_item_parts_are_in_the_order_of_their_bytes(texts: list[bytes]) -> None:
    data = np.frombuffer(bytearray(b"".join(texts)), np.uint8)
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    spans = np.stack([np.append(0, ends)[:-1], ends], axis=1) if texts else np.empty((0, 2), np.int64)
    order = sorted_spans(data, np.ascontiguousarray(spans))
    assert [texts[row] for row in order.tolist()] == sorted(texts)
