"""The artefact: sorted, checked, and read back bit for bit or refused."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.artefact import arrow_format
from model_store.artefact.artefact import Artefact, Delta
from model_store.errors import ArtefactError, OutputError
from tests.model_store.models import KEYS, ROOT, large_model, model

# Few letters, so that keys are often prefixes of each other; zero and high bytes, which sort as unsigned.
KEY = st.binary(min_size=1, max_size=6) | st.text("a=*\0", min_size=1, max_size=4).map(str.encode)
FLOAT32 = st.floats(allow_nan=False, allow_infinity=False, width=32)
ROWS = st.dictionaries(KEY, st.tuples(FLOAT32, st.integers(0, 3), FLOAT32), max_size=30)
DATA = Path(__file__).with_name("data")
METRICS = st.dictionaries(
    st.text(max_size=5), st.dictionaries(st.text(max_size=5), st.floats(allow_infinity=False))
)


def same(one: Artefact, other: Artefact) -> bool:
    return (
        one.key_list() == other.key_list()
        and all(
            getattr(one, name).tobytes() == getattr(other, name).tobytes()
            for name in ("key_offsets", "weight", "variants", "rate")
        )
        and one.spec == other.spec
    )


@given(ROWS, st.randoms())
def test_any_keys_in_any_order_are_sorted_and_read_back_exactly(
    rows: dict[bytes, tuple[float, int, float]], shuffler: random.Random
) -> None:
    items = list(rows.items())
    shuffler.shuffle(items)
    artefact = model(
        [key for key, _ in items],
        weights=[row[0] for _, row in items],
        variants=np.array([row[1] for _, row in items], np.uint32),
        rate=np.array([row[2] for _, row in items], np.float32),
    )
    back = Artefact.from_bytes(artefact.to_bytes())
    assert back.key_list() == sorted(rows)
    assert same(artefact, back)
    by_key = {
        key: (w, v, r)
        for key, w, v, r in zip(
            back.key_list(), back.weight.tolist(), back.variants.tolist(), back.rate.tolist(), strict=True
        )
    }
    assert by_key == {
        key: tuple(np.float32(x) if i != 1 else x for i, x in enumerate(row)) for key, row in rows.items()
    }


@given(METRICS)
def test_metrics_survive_undefined_ones_as_nan(metrics: dict[str, dict[str, float]]) -> None:
    back = Artefact.from_bytes(model(metrics=metrics).to_bytes()).metrics
    assert back.keys() == metrics.keys()
    for variant, values in metrics.items():
        assert {n: str(v) for n, v in back[variant].items()} == {n: str(float(v)) for n, v in values.items()}


def test_the_same_content_gives_the_same_bytes_in_any_row_order() -> None:
    assert model(KEYS, [1, 2, 3, 4, 5]).sha256 == model(KEYS[::-1], [5, 4, 3, 2, 1]).sha256


def test_another_weight_gives_another_digest() -> None:
    assert model(KEYS, [1, 2, 3, 4, 5]).sha256 != model(KEYS, [1, 2, 3, 4, 6]).sha256


def test_arrays_read_from_bytes_are_writable_and_contiguous_like_those_built() -> None:
    back = Artefact.from_bytes(model().to_bytes())
    for name in ("key_data", "key_offsets", "weight", "variants", "rate"):
        flags = getattr(back, name).flags
        assert flags.writeable, name
        assert flags.c_contiguous, name


def test_a_model_of_several_batches_is_read_back_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    artefact = large_model(1000)
    whole = artefact.to_bytes()
    monkeypatch.setattr(arrow_format, "BATCH_ROWS", 300)
    monkeypatch.setattr(arrow_format, "BATCH_KEY_BYTES", 2500)
    cut = artefact.to_bytes()
    assert pa.ipc.open_file(cut).num_record_batches == 5
    assert cut != whole
    assert same(Artefact.from_bytes(cut), artefact)


def test_an_empty_model_is_a_model() -> None:
    assert Artefact.from_bytes(model([]).to_bytes()).rows == 0


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"keys": [b"a=1", b"a=2", b"a=1"]}, r"b'a=1' \(row 0\) occurs twice"),
        ({"keys": [b"a", b""]}, "key 1 has 0 bytes; expected 1 to 4096"),
        ({"keys": [b"a" * 4097]}, "has 4097 bytes"),
        ({"weights": [1, 2, math.nan, 4, 5]}, "expected finite numbers"),
        ({"rate": np.full(5, np.inf)}, "expected finite numbers"),
        ({"variants": np.full(5, 4)}, "beyond the 2 of the spec"),
        ({"variants": np.ones(4)}, "5 weights, but 4 values in column 'variants'"),
    ],
)
def test_columns_that_break_an_invariant_are_refused(change: dict[str, object], complaint: str) -> None:
    with pytest.raises(ArtefactError, match=complaint):
        model(**change)  # type: ignore[arg-type]


def test_bytes_out_of_order_are_refused_though_their_digest_is_right() -> None:
    sound = model([b"a=1", b"a=2"])
    unsorted = replace(sound, key_data=np.frombuffer(b"a=2a=1", np.uint8))
    with pytest.raises(ArtefactError, match="keys must ascend"):
        Artefact.from_bytes(unsorted.to_bytes())


def test_every_truncation_is_refused() -> None:
    data = model().to_bytes()
    for size in range(len(data)):
        with pytest.raises(ArtefactError):
            Artefact.from_bytes(data[:size])


@pytest.mark.slow
def test_a_flipped_bit_is_refused_or_lies_in_padding() -> None:
    artefact = large_model(200)
    data = artefact.to_bytes()
    refused = 0
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << position % 8
        try:
            assert same(Artefact.from_bytes(flipped), artefact), position
        except ArtefactError:
            refused += 1
    assert refused > len(data) / 2


def test_a_newer_format_is_named_and_the_remedy_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(arrow_format, "SNAPSHOT_FORMAT", Delta.FORMAT + 1)
        data = model().to_bytes()
    with pytest.raises(ArtefactError, match=r"format 4, newer than the 3 this ftrie reads: upgrade ftrie"):
        Artefact.from_bytes(data)


@pytest.mark.parametrize("data", [b"", b"PK\3\4", b"ARROW1\0\0", b'{"list": [], "type": "x"}'])
def test_what_is_no_model_file_is_refused(data: bytes) -> None:
    with pytest.raises(ArtefactError):
        Artefact.from_bytes(data)


def test_another_arrow_file_is_refused() -> None:
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"key": [b"a"]})
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with pytest.raises(ArtefactError, match="not a model"):
        Artefact.from_bytes(sink.getvalue().to_pybytes())


def test_a_file_is_written_whole_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "ads.arrow"
    model().write(path)
    model(KEYS[:2]).write(path)
    assert Artefact.read(path).rows == 2
    assert [each.name for each in tmp_path.iterdir()] == ["ads.arrow"]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ads.arrow"
    path.write_bytes(model().to_bytes()[:-9])
    with pytest.raises(ArtefactError, match=r"ads\.arrow: the model file is truncated"):
        Artefact.read(path)
    with pytest.raises(ArtefactError, match=r"cannot read .*No such file"):
        Artefact.read(tmp_path / "none.arrow")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "ads.arrow"
    path.mkdir()
    with pytest.raises(OutputError, match="cannot write"):
        model().write(path)
    assert [each.name for each in tmp_path.iterdir()] == ["ads.arrow"]


def test_the_document_describes_the_columns_and_metadata_there_are() -> None:
    text = (ROOT / "docs" / "artefact.md").read_text()
    rows = re.findall(r"^\| `([\w.]+)` \| `(.+?)` \|", text, re.MULTILINE)
    columns = {name: kind for name, kind in rows if not name.startswith("ftrie.")}
    metadata = {name for name, _ in rows if name.startswith("ftrie.")}
    fields = arrow_format.COLUMNS + arrow_format.JSON_COLUMNS
    described = {field.name: str(field.type) for field in fields}
    described["weight"] += f"` or `{arrow_format.COMPACT_WEIGHT.type}"
    assert columns == described
    assert f"`{arrow_format.list_of(pa.float32(), 7)}`".replace("7", "V") in text
    assert metadata == {
        name.decode()
        for name in (
            arrow_format.FORMAT,
            arrow_format.ROWS,
            arrow_format.SPEC,
            arrow_format.SPEC_SHA256,
            arrow_format.METRICS,
            arrow_format.JSON_TYPE,
            arrow_format.CALIBRATION,
            arrow_format.KIND,
            arrow_format.PARENT,
            arrow_format.PARENT_CONTENT,
            arrow_format.CONTENT,
            arrow_format.SHA256,
        )
    }


def test_an_artefact_of_the_first_release_is_read_though_specs_have_more_keys_now() -> None:
    artefact = Artefact.read(DATA / "format_1.arrow")
    assert artefact.rows == 18
    assert artefact.key(0) == b"age*brand=20*acme"
    assert artefact.spec.learner.precision == "f64"
    assert artefact.calibration is None
    assert same(Artefact.from_bytes(artefact.to_bytes()), artefact)


def test_a_spec_changed_within_the_file_is_refused() -> None:
    data = (DATA / "format_1.arrow").read_bytes()
    assert data.count(b'"alpha":0.5') == 2  # the schema stands at both ends of an Arrow file
    with pytest.raises(ArtefactError, match="its spec does not match its hash"):
        Artefact.from_bytes(data.replace(b'"alpha":0.5', b'"alpha":0.6'))
