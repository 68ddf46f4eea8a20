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
from tests.model_store.models import KEYS, OWN, ROOT, large_model, model, own_model

# Few letters, so that keys are often prefixes of each other; zero and high bytes, which sort as unsigned.
KEY = st.binary(min_size=1, max_size=6) | st.text("a=*\0", min_size=1, max_size=4).map(str.encode)
FLOAT32 = st.floats(allow_nan=False, allow_infinity=False, width=32)
OF_EACH = st.tuples(FLOAT32, FLOAT32, FLOAT32)
ROWS = st.dictionaries(KEY, st.tuples(OF_EACH, st.integers(0, 7), OF_EACH), max_size=30)
METRICS = st.dictionaries(
    st.text(max_size=5), st.dictionaries(st.text(max_size=5), st.floats(allow_infinity=False))
)


def same(one: Artefact, other: Artefact) -> bool:
    arrays = [
        [(each := getattr(artefact, name)).tobytes(), each.shape]
        for artefact in (one, other)
        for name in ("key_data", "key_offsets", "weight", "variants", "rate")
    ]
    return one.spec == other.spec and arrays[:5] == arrays[5:]


@given(ROWS, st.randoms(), st.booleans())
def test_any_keys_in_any_order_are_sorted_and_read_back_exactly(
    rows: dict[bytes, tuple[tuple[float, ...], int, tuple[float, ...]]],
    shuffler: random.Random,
    per_variant: bool,
) -> None:
    """One weight of a key for all variants, or one for each of three."""
    items = list(rows.items())
    shuffler.shuffle(items)
    keys, used = [key for key, _ in items], np.array([row[1] for _, row in items], np.uint32)
    weight = np.array([row[0] for _, row in items], np.float32).reshape(-1, 3)
    rate = np.array([row[2] for _, row in items], np.float32).reshape(-1, 3)
    if per_variant:
        weight = np.where(used[:, None] >> np.arange(3) & 1, weight, 0)
        artefact = own_model(keys, weight, variants=used, rate=rate)
    else:
        artefact = model(keys, weight[:, 0].tolist(), variants=used & 3, rate=rate[:, 0])
    back = Artefact.from_bytes(artefact.to_bytes())
    assert same(artefact, back)
    assert (back.per_variant, back.key_list()) == (per_variant, sorted(rows))
    for row, key in enumerate(back.key_list()):
        weights, bits, rates = rows[key]
        if not per_variant:
            assert (back.weight[row], back.variants[row], back.rate[row]) == (weights[0], bits & 3, rates[0])
            continue
        assert back.variants[row] == bits
        assert back.rate[row].tolist() == list(rates)
        for bit in range(3):
            assert back.weights_of(bit)[row] == (weights[bit] if bits >> bit & 1 else 0)
            assert back.rates_of(bit)[row] == (rates[bit] if bits >> bit & 1 else 0)


@given(METRICS)
def test_metrics_survive_undefined_ones_as_nan(metrics: dict[str, dict[str, float]]) -> None:
    back = Artefact.from_bytes(model(metrics=metrics).to_bytes()).metrics
    assert back.keys() == metrics.keys()
    for variant, values in metrics.items():
        assert {n: str(v) for n, v in back[variant].items()} == {n: str(float(v)) for n, v in values.items()}


def test_the_digest_is_of_the_content_in_any_row_order() -> None:
    assert model(KEYS, [1, 2, 3, 4, 5]).sha256 == model(KEYS[::-1], [5, 4, 3, 2, 1]).sha256
    assert model(KEYS, [1, 2, 3, 4, 5]).sha256 != model(KEYS, [1, 2, 3, 4, 6]).sha256


@pytest.mark.parametrize("artefact", [model(), model([]), own_model(), own_model([], OWN[:0])], ids="abcd")
def test_arrays_read_from_bytes_are_writable_and_contiguous_like_those_built(artefact: Artefact) -> None:
    back = Artefact.from_bytes(artefact.to_bytes())
    for name in ("key_data", "key_offsets", "weight", "variants", "rate"):
        array = getattr(back, name)
        assert array.shape == getattr(artefact, name).shape
        assert (array.flags.writeable, array.flags.c_contiguous) == (True, True), name


def test_a_model_of_several_batches_is_read_back_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = np.random.default_rng(1).normal(size=(1000, 3)).astype(np.float32)
    artefacts = large_model(1000), own_model([b"age=%08d" % row for row in range(1000)], weights)
    whole = [artefact.to_bytes() for artefact in artefacts]
    monkeypatch.setattr(arrow_format, "BATCH_ROWS", 300)
    monkeypatch.setattr(arrow_format, "BATCH_KEY_BYTES", 2500)
    for artefact, before in zip(artefacts, whole, strict=True):
        cut = artefact.to_bytes()
        assert pa.ipc.open_file(cut).num_record_batches == 5
        assert cut != before
        assert same(Artefact.from_bytes(cut), artefact)


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


def test_bytes_out_of_order_with_a_right_digest_and_another_spec_are_refused() -> None:
    unsorted = replace(model([b"a=1", b"a=2"]), key_data=np.frombuffer(b"a=2a=1", np.uint8))
    with pytest.raises(ArtefactError, match="keys must ascend"):
        Artefact.from_bytes(unsorted.to_bytes())
    data = model().to_bytes()
    alpha = b'"alpha":%s' % str(model().spec.learner.alpha).encode()
    assert data.count(alpha) == 2  # the schema stands at both ends of an Arrow file
    with pytest.raises(ArtefactError, match="its spec does not match its hash"):
        Artefact.from_bytes(data.replace(alpha, alpha[:-1] + b"7"))


def test_every_truncation_is_refused() -> None:
    for data in (model().to_bytes(), own_model().to_bytes()):
        for size in range(len(data)):
            with pytest.raises(ArtefactError):
                Artefact.from_bytes(data[:size])


def test_a_newer_format_is_named_and_the_remedy_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(arrow_format, "SNAPSHOT_FORMAT", Delta.FORMAT + 1)
        data = model().to_bytes()
    with pytest.raises(ArtefactError, match=r"format 4, newer than the 3 this ftrie reads: upgrade ftrie"):
        Artefact.from_bytes(data)


def test_what_is_no_model_file_is_refused() -> None:
    for data in (b"", b"PK\3\4", b"ARROW1\0\0", b'{"list": [], "type": "x"}'):
        with pytest.raises(ArtefactError):
            Artefact.from_bytes(data)
    sink, batch = pa.BufferOutputStream(), pa.record_batch({"key": [b"a"]})
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with pytest.raises(ArtefactError, match="not a model"):
        Artefact.from_bytes(sink.getvalue().to_pybytes())


def test_a_file_is_written_whole_and_read_back_or_named(tmp_path: Path) -> None:
    path = tmp_path / "ads.arrow"
    model().write(path)
    model(KEYS[:2]).write(path)
    assert Artefact.read(path).rows == 2
    path.write_bytes(model().to_bytes()[:-9])
    with pytest.raises(ArtefactError, match=r"ads\.arrow: the model file is truncated"):
        Artefact.read(path)
    with pytest.raises(ArtefactError, match=r"cannot read .*No such file"):
        Artefact.read(tmp_path / "none.arrow")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match="cannot write"):
        model().write(tmp_path / "folder")
    assert {each.name for each in tmp_path.iterdir()} == {"ads.arrow", "folder"}


def test_the_document_describes_the_columns_and_metadata_there_are() -> None:
    text = (ROOT / "docs" / "formats" / "artefact.md").read_text()
    rows = re.findall(r"^\| `([\w.]+)` \| `(.+?)` \|", text, re.MULTILINE)
    columns = {name: kind for name, kind in rows if not name.startswith("ftrie.")}
    metadata = {name for name, _ in rows if name.startswith("ftrie.")}
    fields = arrow_format.COLUMNS + arrow_format.JSON_COLUMNS
    described = {field.name: str(field.type) for field in fields}
    described["weight"] += f"` or `{arrow_format.COMPACT_WEIGHT.type}"
    assert columns == described
    assert f"`{arrow_format.list_of(pa.float32(), 7)}`".replace("7", "V") in text
    constants = [each for each in vars(arrow_format).values() if isinstance(each, bytes)]
    assert metadata == {each.decode() for each in constants if each.startswith(b"ftrie.")}
