"""FlatTrie against pygtrie.CharTrie, and its invariants."""

from __future__ import annotations

import itertools

import numpy as np
import pygtrie
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.errors import ArtefactError
from model_store.trie.trie import MAX_KEY_BYTES, FlatTrie

# Few letters make long shared prefixes; NUL and 0xFF are the ends of the byte range.
crowded = st.lists(st.sampled_from([b"a", b"b", b"ab", b"\x00", b"\xff", b"age=", b"*"]), max_size=8).map(
    b"".join
)
keys_of_every_kind = st.one_of(crowded, st.binary(max_size=6))
key_sets = st.sets(keys_of_every_kind, max_size=60).map(sorted)


def oracle_of(keys: list[bytes]) -> pygtrie.CharTrie:
    return pygtrie.CharTrie((key.decode("latin-1"), slot) for slot, key in enumerate(keys))


@given(key_sets, st.lists(keys_of_every_kind, max_size=20))
def test_get_finds_every_key_and_no_other(keys: list[bytes], probes: list[bytes]) -> None:
    trie, oracle = FlatTrie.of(keys), oracle_of(keys)
    trie._check()
    assert len(trie) == len(keys)
    assert [trie.key(slot) for slot in range(len(keys))] == keys
    wanted = keys + probes
    expected = [oracle.get(key.decode("latin-1"), -1) for key in wanted]
    assert [trie.get(key) for key in wanted] == expected
    offsets = np.cumsum([0, *map(len, wanted)])
    assert trie.get_many(np.frombuffer(b"".join(wanted), np.uint8), offsets).tolist() == expected


@given(key_sets, keys_of_every_kind)
def test_prefix_iteration_and_presence_equal_the_oracle(keys: list[bytes], prefix: bytes) -> None:
    trie, oracle = FlatTrie.of(keys), oracle_of(keys)
    text = prefix.decode("latin-1")
    found = sorted(oracle.iteritems(text)) if oracle.has_node(text) else []
    below = [(key.encode("latin-1"), slot) for key, slot in found]
    assert list(trie.items(prefix)) == below
    assert [(trie.key(slot), slot) for _, slot in below] == below
    data, offsets = trie.keys(prefix)
    assert data.tobytes() == b"".join(key for key, _ in below)
    assert offsets.tolist() == np.cumsum([0, *(len(key) for key, _ in below)]).tolist()
    # pygtrie's root is there even in an empty trie; a prefix under which no key lies is none of ours.
    assert trie.has_prefix(prefix) == bool(below)


@given(key_sets, keys_of_every_kind, keys_of_every_kind)
def test_a_cursor_continues_where_it_stopped(keys: list[bytes], half: bytes, rest: bytes) -> None:
    trie = FlatTrie.of(keys)
    cursor = trie.cursor(half)
    onward = trie.cursor(rest, cursor) if cursor else None
    assert onward == trie.cursor(half + rest)
    assert (trie.slot(onward) if onward else -1) == trie.get(half + rest)


@given(key_sets, keys_of_every_kind)
def test_prefix_statistics_weigh_what_lies_below(keys: list[bytes], prefix: bytes) -> None:
    weights = np.linspace(-1, 2, len(keys), dtype=np.float32)
    below = [float(w) for key, w in zip(keys, weights, strict=True) if key.startswith(prefix)]
    found = FlatTrie.of(keys).statistics(prefix, weights)
    assert (found.keys, found.nonzero) == (len(below), sum(w != 0 for w in below))
    assert found.weight_sum == pytest.approx(sum(below))
    assert found.absolute_sum == pytest.approx(sum(map(abs, below)))


@given(key_sets, keys_of_every_kind)
def test_branches_partition_the_keys_under_a_prefix(keys: list[bytes], prefix: bytes) -> None:
    trie = FlatTrie.of(keys)
    below = [key for key in keys if key.startswith(prefix)]
    found = list(trie.branches(prefix))
    assert [trie.key(slot) for _, begin, stop in found for slot in range(begin, stop)] == below
    for branch, begin, stop in found:
        inside = [trie.key(slot) for slot in range(begin, stop)]
        assert all(key.startswith(branch) for key in inside)
        assert len(inside) == 1 or len({key[len(branch) : len(branch) + 1] for key in inside}) > 1


def test_a_node_may_have_a_child_for_each_byte_and_a_trie_many_keys() -> None:
    brands = sorted(f"age*brand={a}*{b}".encode() for a, b in itertools.product(range(30), range(40)))
    trie = FlatTrie.of(brands)
    trie._check()
    assert trie.statistics(b"age*brand=25*", np.ones(len(brands))).keys == 40
    keys = sorted([b"k", *(b"k" + bytes([byte]) for byte in range(256))])
    trie = FlatTrie.of(keys)
    trie._check()
    assert [trie.get(key) for key in keys] == list(range(257))


def test_the_longest_key_allowed_fits_and_a_trie_may_be_as_deep_as_a_key_is_long() -> None:
    key = b"x" * MAX_KEY_BYTES
    trie = FlatTrie.of([key[:-2], key])
    assert (trie.get(key), trie.key(1), list(trie.items(key))) == (1, key, [(key, 1)])
    keys = [b"x" * length for length in range(3_000)]
    assert [key for key, _ in FlatTrie.of(keys).items()] == keys


def test_bad_keys_offsets_and_slots_are_refused() -> None:
    for keys, message in [
        ([b"b", b"a"], r"row 1: key b'a' must be greater than the one before, b'b'"),
        ([b"a", b"b", b"b"], r"row 2: key b'b' must be greater"),
        ([b"a", b"x" * (MAX_KEY_BYTES + 1)], r"row 1: a key of 65536 bytes; the limit is 65535"),
    ]:
        with pytest.raises(ArtefactError, match=message):
            FlatTrie.of(keys)
    for offsets in ([0, 2, 1, 3], [1, 3], [0, 4], []):
        with pytest.raises(ArtefactError, match="offsets"):
            FlatTrie.build(np.frombuffer(b"abc", np.uint8), np.array(offsets, np.int64))
    for slot in (-1, 1):
        with pytest.raises(IndexError, match=f"slot {slot}: the trie has slots 0 to 0"):
            FlatTrie.of([b"a"]).key(slot)
