"""A request read in our one pass is the request that the protobuf library reads, whatever its bytes are."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from ctr.v1.ranking_pb2 import Item, RankRequest
from server.interning.ids import IdTable
from server.receiving.item_ids import ItemIds, received

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


def assert_read_as_by_the_library(data: bytes) -> None:
    try:
        expected = RankRequest.FromString(data)
    except DecodeError:
        assert isinstance(received(data), DecodeError)
        return
    answer = received(data)
    assert not isinstance(answer, DecodeError)
    request, item_ids = answer
    assert list(item_ids) == expected.item_ids[:]
    del request.item_ids[:]
    del expected.item_ids[:]
    assert request == expected


@given(st.lists(MESSAGES, min_size=1, max_size=3))
def test_messages_and_messages_end_to_end_are_read_alike(messages: list[RankRequest]) -> None:
    assert_read_as_by_the_library(b"".join(message.SerializeToString() for message in messages))


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


@given(MESSAGES, st.data())
def test_damaged_messages_are_read_as_the_library_reads_them(
    message: RankRequest, data: st.DataObject
) -> None:
    damaged = bytearray(message.SerializeToString() or b"\0")
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    assert_read_as_by_the_library(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))


def test_a_large_request_and_a_small_one_after_it_do_not_share_their_space() -> None:
    first = received(RankRequest(item_ids=[f"item-{n}" for n in range(9000)]).SerializeToString())
    second = received(RankRequest(item_ids=["a", "b"]).SerializeToString())
    assert not isinstance(first, DecodeError)
    assert not isinstance(second, DecodeError)
    assert isinstance(first[1], ItemIds)
    assert first[1][8999] == "item-8999"
    assert list(second[1]) == ["a", "b"]
    assert list(first[1][1:3]) == ["item-1", "item-2"]


@given(st.sets(TEXT, max_size=30), st.lists(TEXT, max_size=30))
def test_rows_are_found_for_texts_and_for_ids_in_bytes_alike(known: set[str], asked: list[str]) -> None:
    ids = sorted(known)
    asked = [*asked, *ids[::2]]
    table = IdTable.of(ids)
    rows, unknown = table.rows(asked)
    assert rows.tolist() == [ids.index(item) if item in known else -1 for item in asked]
    assert unknown == sum(item not in known for item in asked)
    answer = received(RankRequest(item_ids=asked).SerializeToString())
    assert not isinstance(answer, DecodeError)
    assert table.rows(answer[1])[0].tolist() == rows.tolist()


def test_ids_that_are_not_ascii_are_left_to_the_library() -> None:
    answer = received(RankRequest(item_ids=["ä"]).SerializeToString())
    assert not isinstance(answer, DecodeError)
    assert not isinstance(answer[1], ItemIds)


def test_an_index_beyond_the_ids_is_an_index_error() -> None:
    answer = received(RankRequest(item_ids=["a"]).SerializeToString())
    assert not isinstance(answer, DecodeError)
    with pytest.raises(IndexError):
        answer[1][1]
