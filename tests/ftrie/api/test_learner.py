"""ftrie.Learner: batches of any size, single rows and saved states give the model of ftrie.train, bit for bit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import ftrie
from model_store.errors import CheckpointError, InputError, SpecError
from tests.ftrie.api.logs import ALL_KINDS, all_kinds_rows, bare
from tests.matrix import slow_except

ROWS = 400


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    return all_kinds_rows(ROWS)


def ready(rows: pa.Table, spec: ftrie.Spec = ALL_KINDS) -> ftrie.Spec:
    """The spec, with what its fields learn from the rows."""
    return ftrie.train(spec, rows, progress=False).model.spec


SPECS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "shared values": {"learner": {"values": None}, "variants": {"plain": {"alpha": None}}},
    "one variant": {"variants": None, "learner": {"values": None}},
    "q2.13": {"learner": {"precision": "q2.13"}, "fields": {"quality": None}},
    "buckets": {"learner": {"hash_bits": 8}},
    "counts": {"learner": {"rate": "counts"}, "fields": {"quality": None}},
    "adpredictor": {"learner": {"algorithm": "adpredictor", "l1": None}, "calibration": None},
    "averages": {
        "learner": {"l1": 0.0},
        "variants": {"plain": {"alpha": None, "average": "base", "without": None}},
    },
    "admission": {"learner": {"inclusion": {"kind": "poisson", "p": 0.3}}},
    "times to live": {"learner": {"ttl": "100s"}},
    "a margin": {"fields": {"quality": {"scale": None, "fixed_weight": 0.25}}},
    "a global rate": {"learner": {"algorithm": "ogd", "rate": "global", "l1": None}},
}


@pytest.fixture(scope="module")
def spec(rows: pa.Table) -> ftrie.Spec:
    """The spec of all kinds, with what its fields learn from the rows."""
    return ready(rows)


QUICK = ("as it is", "one variant", "averages", "times to live", "buckets")
"""Whose kernels other tests use too."""


@pytest.mark.parametrize("name", slow_except(QUICK, SPECS))
def test_batches_and_rows_are_one_run(name: str, rows: pa.Table, tmp_path: Path) -> None:
    spec = ready(rows, ALL_KINDS.merge(**SPECS[name]))
    whole = ftrie.train(spec, rows, progress=False)
    learner = ftrie.Learner(spec)
    random, first = np.random.default_rng(1), 0
    while first < ROWS:
        size = int(random.integers(1, 60))
        part = rows.slice(first, size)
        if size % 3 == 0:
            for row in part.to_pylist():
                learner.learn_one({name: row[name] for name in row if name != "click"}, row["click"])
        else:
            learner.learn(part)
        if size % 5 == 0:
            learner.save(tmp_path / "state")
            learner = ftrie.Learner.load(tmp_path / "state")
        first += part.num_rows
    assert learner.model.artefact.to_bytes() == whole.model.artefact.to_bytes()
    report, expected = learner.report.as_dict(), whole.report.as_dict()
    for figure in ("rows", "rejected", "keys", "nonzero", "labels", "variants", "calibration", "evicted"):
        assert report[figure] == expected[figure]
    saved = learner.model
    assert learner.predict(rows) == saved.predict(rows)
    for row in rows.slice(0, 20).to_pylist():
        one = saved.predict([row]).to_pylist()[0]
        assert learner.predict_one(row) == one


@pytest.mark.parametrize(
    "change",
    [
        {"learner": {"subsample": {"unclicked": 0.5}}},
        {"fields": {"nth": {"list": "rank", "of": "price", "kind": "number", "side": "item"}}},
    ],
)
def test_whole_requests_in_each_call(change: dict[str, Any], rows: pa.Table) -> None:
    spec = ready(rows, ALL_KINDS.merge(**change))
    learner = ftrie.Learner(spec)
    for first in range(0, ROWS, 40):
        learner.learn(rows.slice(first, 40))
    assert learner.model == ftrie.train(spec, rows, progress=False).model


def test_columns_as_fields_weights_and_a_model_to_start_from(rows: pa.Table) -> None:
    spec, plain = bare("click"), rows.drop_columns(["request", "ts", "tags"])
    learner = ftrie.Learner(spec)
    with pytest.raises(InputError, match="nothing was learned yet, and the spec names no fields"):
        learner.learn_one({"age": "1"}, 1)
    learner.learn(plain.slice(0, 100)).learn(plain.slice(100))
    first = ftrie.train(spec, plain, progress=False).model
    assert learner.model == first
    again = ftrie.Learner(first.spec, first).learn(plain)
    assert again.model == ftrie.train(first.spec, plain, initial=first, progress=False).model
    weighted = bare(fields={"f": {}}, weight="w")
    data = {"y": [1, 0, 1], "w": [2.0, 0.5, 1.0], "f": list("aba")}
    learner = ftrie.Learner(weighted)
    for y, w, f in zip(*data.values(), strict=True):
        learner.learn_one({"f": f}, y, weight=w)
    assert learner.model == ftrie.train(weighted, data, progress=False).model


def test_bad_rows_and_what_needs_the_whole_log_are_refused(spec: ftrie.Spec, rows: pa.Table) -> None:
    learner = ftrie.Learner(spec)
    row = {name: value for name, value in rows.to_pylist()[0].items() if name != "click"}
    price, tags = "price: got 'much', expected a number", "tags: got"
    for bad, message in (({"price": "much"}, price), ({"tags": [[1]]}, tags)):
        with pytest.raises(InputError, match=message):
            learner.learn_one({**row, **bad}, 1)
        with pytest.raises(InputError, match=message):
            learner.predict_one({**row, **bad})
    with pytest.raises(InputError, match="click: got"):
        learner.learn_one(row, 7)
    with pytest.raises(SpecError, match="names no input.weight"):
        learner.learn_one(row, 1, weight=2.0)
    assert learner.report.rows == 0
    learner.learn({**{name: [value] * 2 for name, value in row.items()}, "click": [1, 7]})
    assert (learner.report.rows, learner.report.rejected) == (1, 1)
    needed = r"fields quality learn their buckets or scales .*Learner\(run\.model\.spec\)"
    with pytest.raises(SpecError, match=needed):
        ftrie.Learner(ALL_KINDS)
    seen = {"side": "user", "history": "seen", "of": "ad", "measure": "count", "within": "1h"}
    with pytest.raises(SpecError):
        ftrie.Learner(ALL_KINDS.merge(fields={"seen": {**seen, "kind": "number"}, "quality": None}))


def test_damaged_states(spec: ftrie.Spec, rows: pa.Table, tmp_path: Path) -> None:
    ftrie.Learner(spec).learn(rows.slice(0, 40)).save(tmp_path / "s")
    data = bytearray((tmp_path / "s").read_bytes())
    for place in (0, len(data) // 2, len(data) - 3):
        broken = bytearray(data)
        broken[place] ^= 0xFF
        (tmp_path / "broken").write_bytes(broken)
        with pytest.raises(CheckpointError):
            ftrie.Learner.load(tmp_path / "broken")
    with pytest.raises(CheckpointError):
        ftrie.Learner.load(tmp_path / "missing")


def test_publish_and_threads(spec: ftrie.Spec, rows: pa.Table, tmp_path: Path) -> None:
    learner = ftrie.Learner(spec)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(learner.learn, [rows.slice(0, 100)] * 4))
    assert learner.report.rows == 400 and "400 rows" in repr(learner)
    with ftrie.Store(f"embedded:{tmp_path}") as store:
        assert learner.publish(store, activate=True) == 1
        assert store.load("kinds") == learner.model


@pytest.mark.parametrize(
    ("labels", "why"), [(["maybe"] * 9, "100 % of those"), ([1, 0] * 4 + ["?"], "11.1 % of"), ([], "no row")]
)
def test_what_the_command_would_not_publish_is_published_only_by_force(
    tmp_path: Path, labels: list[Any], why: str
) -> None:
    rows = {"y": pa.array(map(str, labels), pa.string()), "user": pa.array(["u"] * len(labels), pa.string())}
    table = pa.table(rows)
    with ftrie.Store(f"embedded:{tmp_path}") as store:
        if any(label in (0, 1) for label in labels):
            said = r"^1 row rejected: table:9: y: got '\?'"
            with pytest.warns(ftrie.FtrieWarning, match=said):
                trains = [ftrie.train(bare(), table, progress=False)]
            with pytest.warns(ftrie.FtrieWarning, match=said):
                trains.append(ftrie.Learner(bare()).learn(table))
            with pytest.warns(ftrie.FtrieWarning, match=said):
                trains[0].model.evaluate(table, progress=False)
        else:
            with pytest.raises(InputError, match="no row could be learned from"):
                ftrie.train(bare(), table, progress=False)
            trains = [ftrie.Learner(bare()).learn(table)]
        for trained in trains:
            for publish in (trained.model.publish, store.publish):
                with pytest.raises(InputError, match=why) as error:
                    publish(*([trained.model] if publish == store.publish else [store]))
                assert "--force" not in str(error.value)
            assert store.publish(trained.model, force=True) > 0


@pytest.mark.parametrize("count", [5_000, pytest.param(60_000, marks=pytest.mark.slow)])
def test_a_table_may_change_once_it_is_learned(count: int) -> None:
    # Another thread writes the bytes of many new keys; what it reads is the caller's memory.
    texts = np.array([b"%08d" % number for number in range(count)]).view(np.uint8)
    offsets = pa.py_buffer(np.arange(count + 1, dtype=np.int32) * 8)
    column = pa.StringArray.from_buffers(count, offsets, pa.py_buffer(texts))
    learner = ftrie.Learner(bare()).learn(pa.table({"y": np.arange(count) % 2, "user": column}))
    texts[:] = ord("x")
    loop = learner._online._loop
    assert loop is not None
    keys = loop.model.table.keys()
    found = {keys.data[a:b].tobytes() for a, b in zip(keys.offsets, keys.offsets[1:], strict=False)}
    assert found == {b"bias", *(b"user=%08d" % number for number in range(count))}
