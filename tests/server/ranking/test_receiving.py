"""A request read in our one pass is the request that the protobuf library reads, whatever its bytes are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from ctr.v1.ranking_pb2 import Cap, Exploration, Filter, Item, RankRequest, RankResponse
from ftrie.api.messages import request_of
from model_store.features.features import FeaturePlan
from model_store.spec.keys import escape
from model_store.spec.spec import parse_spec
from server.errors import InvalidRequest
from server.model.columns import IdTable, ItemIds
from server.ranking.answer import ranked_items
from server.ranking.features import PlainReader, UserFields, UserTokens
from server.ranking.request import GivenFeatures, Received, Request

TEXT = st.text(max_size=12)
MESSAGES = st.builds(
    RankRequest,
    model=TEXT,
    request_id=TEXT,
    cookie=TEXT,
    item_ids=st.lists(TEXT, max_size=8),
    items=st.lists(st.builds(Item, id=TEXT), max_size=3),
    candidate_set=TEXT,
    top_k=st.none() | st.integers(-(2**31), 2**31 - 1),
    variant=st.none() | TEXT,
    objective=TEXT,
)

WITHOUT_OPTIONS = {"model", "request_id", "cookie", "user", "context", "item_ids", "top_k", "no_log"}


def assert_read_as_by_the_library(data: bytes) -> None:
    try:
        expected = RankRequest.FromString(data)
    except DecodeError:
        with pytest.raises((DecodeError, InvalidRequest)):
            Received(data).sides()
        return
    message, whole = Received(data), Received.of(expected)
    assert list(message.item_ids) == expected.item_ids[:]
    assert [each.values for each in message.sides()] == [each.values for each in whole.sides()]
    assert [[*each.raw_keys] for each in message.sides()] == [[*each.raw_keys] for each in whole.sides()]
    for name in ("model", "request_id", "cookie", "no_log", "top_k"):
        assert getattr(message, name) == getattr(whole, name)
    if message.extras is None:
        assert {field.name for field, _ in expected.ListFields()} <= WITHOUT_OPTIONS
    else:
        assert whole.extras is not None
        extras = [each.extras._replace(filters=()) for each in (message, whole) if each.extras is not None]
        assert repr(extras[0]) == repr(extras[1])


@given(st.lists(MESSAGES, min_size=1, max_size=3), st.booleans(), st.data())
def test_messages_end_to_end_and_damaged_ones_are_read_alike(
    messages: list[RankRequest], damages: bool, data: st.DataObject
) -> None:
    read = bytearray(b"".join(message.SerializeToString() for message in messages))
    if damages and read:
        read[data.draw(st.integers(0, len(read) - 1))] = data.draw(st.integers(0, 255))
        del read[data.draw(st.integers(0, len(read))) :]
    assert_read_as_by_the_library(bytes(read))


@given(st.binary(max_size=40))
@example(b"\x32\x81\x00a")  # a length in more bytes than it needs
@example(b"\x32\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")  # a length of 2^64 - 1
@example(b"\x32\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01")  # a varint of eleven bytes
@example(b"\x32\x05ab")  # cut short
@example(b"\xb2\x00\x01a")  # field 6 by a tag of two bytes
@example(b"\x33\x34")  # a group
@example(b"\x32\x01\xff")  # not UTF-8
@example(b"\x00\x00")  # field 0
def test_any_bytes_are_read_as_the_library_reads_them(data: bytes) -> None:
    assert_read_as_by_the_library(data)


def test_ids_of_a_large_request_and_of_a_small_one_after_it_do_not_share_their_space() -> None:
    first, second = ids_of([f"item-{n}" for n in range(9000)]), ids_of(["a", "b"])
    assert isinstance(first, ItemIds)
    assert first[8999] == "item-8999"
    assert list(second) == ["a", "b"]
    assert list(first[1:3]) == ["item-1", "item-2"]
    with pytest.raises(IndexError):
        second[2]
    assert not isinstance(ids_of(["ä"]), ItemIds), "what is not ASCII is left to the library"


@given(st.sets(TEXT, max_size=30), st.lists(TEXT, max_size=30))
def test_rows_are_found_for_texts_and_for_ids_in_bytes_alike(known: set[str], asked: list[str]) -> None:
    ids = sorted(known)
    asked = [*asked, *ids[::2]]
    table = IdTable.of(ids)
    rows, unknown = table.rows(asked)
    assert rows.tolist() == [ids.index(item) if item in known else -1 for item in asked]
    assert unknown == sum(item not in known for item in asked)
    assert table.rows(ids_of(asked))[0].tolist() == rows.tolist()


@given(st.lists(TEXT | st.text(st.characters(max_codepoint=127)), max_size=30))
def test_ids_end_to_end_are_those_given_or_left_alone(ids: list[str]) -> None:
    made = ItemIds.of(ids)
    if ids and all(item.isascii() and "\n" not in item for item in ids):
        assert made is not None
        assert list(made) == ids
    else:
        assert made is None
    assert ItemIds.of(["a", 2]) is None  # type: ignore[list-item]


def test_a_request_is_plain_without_options() -> None:
    plain = RankRequest(model="m", request_id="r", cookie="c", item_ids=["a"], top_k=3, no_log=True)
    assert Received(plain.SerializeToString()).extras is None
    for more in (
        RankRequest(items=[Item(id="b")]),
        RankRequest(candidate_set="s"),
        RankRequest(variant="v"),
        RankRequest(objective="ctr"),
        RankRequest(filters=[Filter(field="f")]),
        RankRequest(caps=[Cap(field="f", at_most=1)]),
        RankRequest(exploration=Exploration()),
    ):
        assert Received(plain.SerializeToString() + more.SerializeToString()).extras is not None


PLAIN = st.text("ab7 _-", max_size=5)
ODD = PLAIN | st.text("a*=%ä", max_size=3)
FEATURES = st.dictionaries(
    st.sampled_from(["age", "city", "page", "hour"]), PLAIN, max_size=4
) | st.dictionaries(st.sampled_from(["age", "city", "page", "price", "odd"]), ODD | st.just(1.5), max_size=4)
SPEC = """
model = { name = "plain" }
input = { label = "click" }
[fields]
age = { side = "user" }
city = { side = "user" }
page = {}
hour = {}
price = { kind = "number", bucket = "log" }
brand = { side = "item" }
"""
PLAN = FeaturePlan.of(parse_spec(SPEC))
READER = PlainReader(PLAN)


@given(FEATURES, FEATURES, st.data())
def test_plain_features_have_the_tokens_that_their_fields_make(
    user: dict[str, str | float], context: dict[str, str | float], data: st.DataObject
) -> None:
    parts = data.draw(st.permutations([request_of("", user=user), request_of("", context=context)]))
    plain = READER.read(Received(b"".join(part.SerializeToString() for part in parts)))
    given = READER.read(Request([], GivenFeatures(user), GivenFeatures(context)))
    merged = user | context
    values = [*user.values(), *context.values()]
    texts = [value for value in values if isinstance(value, str)]
    odd = {"price", "odd"} & merged.keys() or len(texts) < len(values)
    if odd or any(escape(text.encode()) != text.encode() or not text.isascii() for text in texts):
        assert plain is None
    else:
        assert plain is not None and given is not None
    for made in (plain, given):  # the latter does not look at a user's value that the context's replaces
        if made is None:
            continue
        starts, begin, x, text = made.tokens
        for bit, field in enumerate(PLAN.request_fields):
            places = range(starts[bit], starts[bit + 1])
            tokens = [text[begin[token] : begin[token + 1] - 1].tobytes() for token in places]
            assert tokens == [token.text for token in field.tokens(merged.get(field.name))]
            assert bool(made.given >> bit & 1) == (field.name in merged)
        assert (x == 1.0).all()
        assert len(x) >= starts[-1]


@given(
    st.sampled_from(["", "u1", "u\n1", "u%", "é"]),
    st.tuples(*[st.none() | ODD | st.sampled_from(["a\nb", "\ud800", "a" * 1024, "a" * 1025])] * 2),
    st.sampled_from([None, "city"]),
    st.booleans(),
)
def test_a_records_plain_values_have_the_tokens_that_their_fields_make(
    cookie: str, values: tuple[str | None, ...], cookie_column: str | None, has_sets: bool
) -> None:
    with_sets = SPEC.replace('city = { side = "user" }', 'city = { side = "user", kind = "set" }')
    wanted = UserFields.of(FeaturePlan.of(parse_spec(with_sets if has_sets else SPEC)), cookie_column)
    named = wanted.named(cookie, values)
    made, expected = UserTokens.of_plain(wanted, cookie, values), UserTokens.of(wanted, named)
    texts = [str(value) for value in named.values()]
    plain = all(text.isascii() and escape(text.encode()) == text.encode() for text in texts)
    if has_sets or not plain or any("\n" in text or len(text) > 1024 for text in texts):
        assert made is None
        return
    assert made is not None
    starts = len(wanted.fields) + 1
    tokens = int(made.places[starts - 1])
    assert made.places[: starts + tokens + 1].tolist() == expected.places.tolist()
    assert made.text[: made.places[starts + tokens]].tobytes() == expected.text.tobytes()
    assert (made.x[:tokens] == 1.0).all()
    assert made.misfits == expected.misfits == ()


@given(st.binary(max_size=30), st.binary(max_size=30))
def test_any_features_are_plain_or_left_to_the_library(user: bytes, context: bytes) -> None:
    data = b"\x22%c%b\x2a%c%b" % (len(user), user, len(context), context)
    if READER.read(Received(data)) is not None:
        Received(data).sides()  # what we take for plain, the library can read


@pytest.mark.parametrize(
    "value",
    [
        b"",  # no kind
        b"\x0a\x01a\x0a\x01b",  # two texts, of which the last counts
        b"\x0a\x01a\x11" + bytes(8),  # a text, then a number
        b"\x0a\x01",  # cut short
        b"\x1a\x00",  # a set
    ],
)
def test_a_value_that_is_not_one_text_is_left_to_the_library(value: bytes) -> None:
    entry = b"\x0a\x03age\x12%c%b" % (len(value), value)
    user = b"\x0a%c%b" % (len(entry), entry)
    assert READER.read(Received(b"\x22%c%b" % (len(user), user))) is None


@given(st.lists(st.text("abc", max_size=200), min_size=1, max_size=20), st.data())
def test_items_written_in_bytes_are_read_by_the_library(ids: list[str], data: st.DataObject) -> None:
    order = data.draw(st.lists(st.integers(0, len(ids) - 1), max_size=len(ids), unique=True))
    numbers = st.lists(st.floats(allow_nan=False), min_size=len(order), max_size=len(order))
    ctr, score = data.draw(numbers), data.draw(numbers)
    item_ids = ids_of(ids)
    assert isinstance(item_ids, ItemIds)
    written = ranked_items(item_ids, np.array(order, np.int64), np.array(ctr, float), np.array(score, float))
    message = RankResponse.FromString(written)
    expected = list(zip([ids[place] for place in order], ctr, score, strict=True))
    assert [(item.id, item.ctr, item.score) for item in message.items] == expected


def ids_of(ids: list[str]) -> Sequence[str]:
    return Received(RankRequest(item_ids=ids).SerializeToString()).item_ids
