"""The kernels that find and digest cells, against Python that splits the same bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.spec.values import category_text
from tests.model_store.features.documented_hash import digest, whole_key
from trainer.formats.cells import Block, CellText, CodedText, canonical_texts, padded_lines, text_places
from trainer.formats.cells_kernels import digest_texts

TEXT = st.binary(max_size=20).map(lambda text: text.translate(None, b'\t\n\r"'))
TABLE = st.integers(1, 20).flatmap(
    lambda columns: st.lists(st.lists(TEXT, min_size=columns, max_size=columns))
)


def block_of(rows: list[list[bytes]], junk: bytes = b"") -> Block | None:
    text = b"".join(b"\t".join(row) + b"\n" for row in rows)
    data, _ = padded_lines(np.frombuffer(text + junk, np.uint8))
    return Block.of(data, len(text), "\t", None, len(rows[0]))


@given(TABLE.filter(bool), st.sampled_from([b"", b"x\ty\n", b'"%\xff\r\n\n']))
def test_cells_are_those_of_the_lines_whatever_follows(rows: list[list[bytes]], junk: bytes) -> None:
    block = block_of(rows, junk)
    columns = range(len(rows[0]))
    if block is None:
        assert rows == [[row[0]] for row in rows] and any(not row[0] for row in rows)  # a blank line
        return
    assert [CellText(block, place).to_pylist() for place in columns] == [
        list(each) for each in zip(*rows, strict=True)
    ]
    assert block.longest == max(len(text) for row in rows for text in row)
    odd = [b"".join(row[place] for row in rows) for place in columns]
    assert block.are_plain == [text.isascii() and not set(text) & set(b"%*=") for text in odd]


SPELLED = st.sampled_from(
    [b"True", b"FALSE", b"30.0", b"-0", b"-0.000", b"7." + b"0" * 70, b"1.50", b"100", b"-3", b"The"]
)
CELLS = st.one_of(SPELLED, st.text("0.-TrueFals", max_size=70).map(str.encode))


@given(st.lists(st.lists(CELLS, min_size=3, max_size=3), min_size=1, max_size=30))
def test_columns_with_other_spellings_of_a_value_are_found(rows: list[list[bytes]]) -> None:
    block, found = block_of(rows), []
    assert block is not None and block.spelled is not None
    for place in range(3):
        texts = pa.array([row[place] for row in rows], pa.binary())
        spelled = [category_text(row[place]) for row in rows]
        assert canonical_texts(texts).to_pylist() == spelled
        found.append(spelled != texts.to_pylist())
    # What only may be one is looked at again, which takes time, so that it must be rare.
    at_once, one_by_one = block.has_spellings(range(3)), replace(block, spelled=None).has_spellings(range(3))
    for each in (at_once, one_by_one):
        assert not any(is_one and not said for is_one, said in zip(found, each, strict=True))
    assert not block_of([[b"100", b"1.50", b"-3"], [b"The", b"0.05", b"t"]] * 40).spelled.any()


@pytest.mark.parametrize("line", [b"a", b"a\tb\tc", b"a\tb\rc", b"", b"a\tb\nc", b"a\tb\tc\nd"])
def test_lines_of_another_number_of_cells_or_with_a_carriage_return_are_refused(line: bytes) -> None:
    text = b"1\t2\n" * 40 + line + b"\n" + b"3\t4\n" * 40
    assert Block.of(*padded_lines(np.frombuffer(text, np.uint8)), "\t", None, 2) is None
    quoted = Block.of(*padded_lines(np.frombuffer(b'1\t"2"\n', np.uint8)), "\t", '"', 2)
    assert quoted is None


@given(TABLE.filter(bool), st.data())
def test_digests_are_those_of_each_text(rows: list[list[bytes]], data: st.DataObject) -> None:
    block, columns = block_of(rows), len(rows[0])
    if block is None:
        return
    kinds = data.draw(st.lists(st.sampled_from("ccav"), min_size=columns, max_size=columns))
    raw = np.array(data.draw(st.lists(st.integers(0, 1), min_size=columns, max_size=columns)), np.uint8)
    texts: list[object] = []
    for place, kind in enumerate(kinds):
        array = pa.array([row[place] for row in rows], pa.binary())
        coded = array.dictionary_encode()
        codes = coded.indices.to_numpy().astype(np.int32)
        by_kind = {"c": CellText(block, place), "a": array, "v": CodedText(coded.dictionary, codes)}
        texts.append(by_kind[kind])
    places, out = text_places(texts), np.empty((len(rows), columns), np.uint64)
    size = data.draw(st.sampled_from([24, 64]))
    scratch = np.empty(columns + 1, np.int64), np.empty(int(places.counts.sum()), np.uint64)
    digest_texts(places, raw, *scratch, np.empty(size, np.uint64), np.empty(size, np.int32), out)
    hashed = [whole_key if each else digest for each in raw]
    expected = [[hashed[place](text) if text else 0 for place, text in enumerate(row)] for row in rows]
    assert out.tolist() == expected
