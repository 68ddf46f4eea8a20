"""Shards of a log: together they hold exactly what `ftrie train` reads, however the log is dealt."""

from __future__ import annotations

import gzip
import json
import pickle
import resource
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from model_store.errors import InputError, OutputError, SpecError
from model_store.spec.spec import ModelSpec, parse_spec
from trainer.distributed import shard as shard_module
from trainer.distributed.dealing import (
    ShardPlan,
    check_distributable,
    deal_files,
    plan_shards,
)
from trainer.distributed.shard import Shard, ShardKeys, build_shard, collect_rejects
from trainer.distributed.shard_kernels import ShardRows
from trainer.examples.open_log import Log, open_log
from trainer.examples.side_tables import side_tables
from trainer.formats.rejects import RejectLog
from trainer.learn.model import LearningModel
from trainer.settings import HeldOutRows

Row = tuple[float, float, tuple[tuple[bytes, float], ...]]
SPEC = """
[model]
name = "ads"
[input]
label = "click"
[fields]
site = {}
user = { side = "user" }
price = { kind = "number" }
tags = { kind = "set", separator = "|" }
[[crosses]]
fields = ["site", "tags"]
"""
OF_ADS = parse_spec(SPEC)
PLAIN = '[model]\nname = "ads"\n[input]\nlabel = "click"\n'
BLOCK = 3_000


def rows_of(rows: int = 1_200, seed: int = 1) -> list[dict[str, object]]:
    draw = np.random.default_rng(seed)
    return [
        {
            "click": int(draw.random() < 0.2),
            "site": f"s{draw.zipf(1.4) % 50}",
            "user": f"u{draw.integers(400)}",
            "price": round(float(draw.uniform(0, 3)), 2),
            "tags": [f"t{tag}" for tag in draw.integers(9, size=draw.integers(4))],
        }
        for _ in range(rows)
    ]


def delimited(rows: list[dict[str, object]], delimiter: str) -> str:
    lines = [delimiter.join(("click", "site", "user", "price", "tags"))]
    for row in rows:
        lines.append(delimiter.join("|".join(v) if isinstance(v, list) else str(v) for v in row.values()))
    return "\n".join(lines) + "\n"


def write(path: Path, rows: list[dict[str, object]]) -> str:
    kinds = path.name.split(".")[1:]
    if kinds[0] == "parquet":
        table = pa.Table.from_pylist(rows)
        pq.write_table(table, path, row_group_size=int(kinds[1]) if len(kinds) > 1 else len(rows))
        return str(path)
    if kinds[0] == "jsonl":
        text = "".join(json.dumps(row) + "\n" for row in rows)
    elif kinds[0] == "vw":
        text = "".join(
            f"{row['click']} |site {row['site']} |user {row['user']} |tags {' '.join(row['tags'])}\n"  # type: ignore[arg-type]
            for row in rows
        )
    else:
        text = delimited(rows, "\t" if kinds[0] == "tsv" else ",")
    path.write_bytes(gzip.compress(text.encode()) if kinds[-1] == "gz" else text.encode())
    return str(path)


def texts(keys: ShardKeys) -> list[bytes]:
    data = keys.data.tobytes()
    return [data[first:end] for first, end in zip(keys.offsets[:-1], keys.offsets[1:], strict=True)]


def contents(keys: ShardKeys, rows: ShardRows) -> Iterator[Row]:
    """Every row as a value: its label, its weight, its keys in order with their x."""
    names = texts(keys)
    for row in range(rows.labels.size):
        part = slice(rows.starts[row], rows.starts[row + 1])
        x = rows.x[part].tolist() if rows.x.size else [1.0] * (part.stop - part.start)
        weight = float(rows.weights[row]) if rows.weights.size else 1.0
        yield (
            float(rows.labels[row]),
            weight,
            tuple(zip((names[i] for i in rows.ids[part]), x, strict=True)),
        )


def learned(spec: ModelSpec, log: Log) -> tuple[LearningModel, list[Row]]:
    """What `ftrie train` reads: the model, and each row as above."""
    with open_log(log, spec) as opened:
        model = LearningModel(opened.maker)
        found = list[tuple[float, float, list[int], list[float]]]()
        with opened.examples(1) as stream:
            for examples in stream:
                model.learn(examples)
                hashed = examples.hashed
                for row in range(hashed.labels.size):
                    part = slice(hashed.starts[row], hashed.starts[row + 1])
                    x = hashed.x[part].tolist() if hashed.x.size else [1.0] * (part.stop - part.start)
                    weight = float(hashed.weights[row]) if hashed.weights.size else 1.0
                    found.append((float(hashed.labels[row]), weight, hashed.hashes[part].tolist(), x))
    keys = model.table.keys()
    *_, hashes = model.table._arena_content(model.table.count)
    data = keys.data.tobytes()
    names = {int(h): data[a:b] for h, a, b in zip(hashes, keys.offsets[:-1], keys.offsets[1:], strict=True)}
    return model, [
        (label, weight, tuple((names[h], x) for h, x in zip(hashed, xs, strict=True)))
        for label, weight, hashed, xs in found
    ]


def plans_of(spec: ModelSpec, inputs: list[str], workers: int, **options: object) -> list[ShardPlan]:
    return plan_shards(spec, Log(inputs, batch_bytes=BLOCK), workers, **options)  # type: ignore[arg-type]


def assert_transposed(shard: Shard) -> None:
    rows, columns = shard.rows, shard.columns
    keys = shard.keys.hashes.size
    by_row = np.repeat(np.arange(rows.labels.size), np.diff(rows.starts))
    order = np.argsort(rows.ids, kind="stable")
    assert np.array_equal(np.diff(columns.starts), np.bincount(rows.ids, minlength=keys))
    assert np.array_equal(columns.rows, by_row[order]) and columns.x.size == rows.x.size
    if rows.x.size:
        assert np.array_equal(columns.x, rows.x[order])
    assert np.array_equal(shard.keys.counts, np.bincount(rows.ids, minlength=keys).astype(float))


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("log") / "log.csv", rows_of())


@pytest.fixture(scope="module")
def trained(log: str) -> tuple[LearningModel, list[Row]]:
    return learned(OF_ADS, Log([log]))


@pytest.mark.parametrize(
    ("name", "workers"),
    [
        ("log.csv", 1),
        ("log.csv", 3),
        ("log.tsv.gz", 2),
        ("log.jsonl", 3),
        ("log.vw", 3),
        ("log.parquet", 2),
        ("log.parquet.1100", 3),
    ],
)
def test_shards_hold_the_rows_and_keys_that_train_reads(tmp_path: Path, name: str, workers: int) -> None:
    spec = OF_ADS
    if ".vw" in name:
        spec = parse_spec('[model]\nname = "ads"\n[input]\nlabel = "label"\nignore = ["importance", "tag"]\n')
    rows = 5_000 if "parquet" in name else 1_200  # a Parquet batch has 1,024 rows or more
    inputs = [write(tmp_path / name, rows_of(rows))]
    model, expected = learned(spec, Log(inputs))
    shards = shards_of(spec, inputs, workers)
    assert all_contents(shards) == Counter(expected)
    assert all(shard.rows.labels.size > rows / workers / 3 for shard in shards)
    assert len({key for shard in shards for key in texts(shard.keys)}) == model.table.count
    for shard in shards:
        assert_transposed(shard)


def test_one_shard_has_the_rows_keys_and_weights_of_train_in_their_order(log, trained):
    model, expected = trained
    (shard,) = shards_of(OF_ADS, [log], 1)
    keys = model.table.keys()
    assert list(contents(shard.keys, shard.rows)) == expected
    assert np.array_equal(shard.keys.data, keys.data)
    assert np.array_equal(shard.keys.features, keys.features)
    assert np.array_equal(shard.first, model.coordinates.weights(keys))
    assert shard.summary.progressive.metrics(("base",)) == model.metrics.total()


@pytest.mark.parametrize(("name", "workers"), [("log.csv", 1), ("log.jsonl", 3)])
def test_a_plan_makes_the_same_shard_again_after_it_was_sent_and_from_the_cache(tmp_path, name, workers):
    inputs, cache = [write(tmp_path / name, rows_of())], tmp_path / "rows.cache"
    with open(inputs[0], "a", encoding="utf-8") as file:
        file.write("{\n" if name.endswith("jsonl") else "1,too,few\n")
        file.write(Path(write(tmp_path / f"more-{name}", rows_of(300, 2))).read_text().partition("\n")[2])
    for plan in plans_of(OF_ADS, inputs, workers, held_out=HeldOutRows(share=0.3)):
        expected = build_shard(plan)
        assert_equal(build_shard(pickle.loads(pickle.dumps(plan))), expected)
        for _ in range(2):
            assert_equal(build_shard(replace(plan, cache=cache)), expected)
    assert len(list(tmp_path.glob("rows.cache.*"))) == workers


def assert_equal(first: Shard, second: Shard) -> None:
    for name, array in vars(first.keys).items():
        assert np.array_equal(array, getattr(second.keys, name)), name
    for part in ("rows", "columns", "held"):
        for name, array in getattr(first, part)._asdict().items():
            assert np.array_equal(array, getattr(getattr(second, part), name)), (part, name)
    assert np.array_equal(first.first, second.first)


def shards_of(spec: ModelSpec, inputs: list[str], workers: int, **options: object) -> list[Shard]:
    return [build_shard(plan) for plan in plans_of(spec, inputs, workers, **options)]


def all_contents(shards: list[Shard], part: str = "rows") -> Counter[Row]:
    return Counter(row for shard in shards for row in contents(shard.keys, getattr(shard, part)))


def test_as_many_files_as_workers_are_dealt_whole(tmp_path: Path) -> None:
    inputs = [write(tmp_path / f"{part}.csv", rows_of(100 * (part + 1), part)) for part in range(5)]
    plans = plans_of(OF_ADS, inputs, 2)
    assert [plan.log.mine for plan in plans] == [(1, 4), (0, 2, 3)]
    _, expected = learned(OF_ADS, Log(inputs))
    assert all_contents([build_shard(plan) for plan in plans]) == Counter(expected)
    for gone in plans[1].log.mine:
        Path(inputs[gone]).unlink()
    build_shard(plans[0])  # reads none of the others
    with pytest.raises(InputError, match=r"0.csv: No such file .* on the host of this worker"):
        build_shard(plans[1])
    with Path(inputs[1]).open("a") as file:
        file.write("0,s1,u1,1.0,t1\n")
    with pytest.raises(InputError, match="must read the same file, which must not change"):
        build_shard(plans[0])


def test_files_go_to_the_least_loaded_worker_by_size_then_name() -> None:
    assert deal_files(["b", "a", "c", "d"], [5, 5, 9, 1], 2) == [(2, 3), (0, 1)]
    assert deal_files(["c", "b", "a"], [0, 0, 0], 3) == [(2,), (1,), (0,)]


@pytest.mark.parametrize("files", [1, 2])
def test_every_worker_has_the_numbers_that_train_learns_from_the_first_rows(tmp_path, files: int) -> None:
    rows = rows_of(600)
    inputs = [write(tmp_path / f"{n}.csv", rows[n * 300 :][: 600 // files]) for n in range(files)]
    spec = parse_spec(SPEC.replace('kind = "number"', 'kind = "number", bucket = "quantile:6"'))
    with open_log(Log(inputs), spec) as opened:
        expected = opened.spec
    assert len(expected.fields["price"].learned or ()) > 1
    assert [plan.start.resolved for plan in plans_of(spec, inputs, 2)] == [expected] * 2


def test_fields_are_those_of_the_first_file_for_every_worker(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"click": 1, "site": "s"}\n')
    (tmp_path / "b.jsonl").write_text('{"site": "t", "late": 1, "click": 0}\n' * 9)
    shards = shards_of(parse_spec(PLAIN), [str(tmp_path / "*.jsonl")], 2)
    assert {key for shard in shards for key in texts(shard.keys)} == {b"bias", b"site=s", b"site=t"}


@pytest.mark.parametrize("workers", [1, 3])
def test_bad_rows_keep_their_lines_and_are_counted_once(tmp_path: Path, workers: int) -> None:
    lines = delimited(rows_of(900), ",").splitlines()
    bad = {40: "1,too,few", 41: "", 333: "maybe,s1,u1,1.0,t1", 700: '0,"s\n2",u1,x,t1'}
    for line, text in bad.items():
        lines[line - 1] = text
    path = tmp_path / "log.csv"
    path.write_text("\n".join(lines) + "\n")
    (tmp_path / "held.csv").write_text("click,site,user,price,tags\nmaybe,s,u,1,t\n")
    held = HeldOutRows(inputs=(str(tmp_path / "held.csv"),))
    plans = plans_of(OF_ADS, [str(path)], workers, held_out=held)
    shards = [build_shard(plan) for plan in plans]
    rejects = RejectLog(tmp_path / "rejects.jsonl")
    collect_rejects([shard.summary for shard in shards], plans[0], rejects)
    found = [json.loads(line) for line in (tmp_path / "rejects.jsonl").read_text().splitlines()]
    assert [(each["line"], each["reason"].partition(":")[0]) for each in found] == [
        (40, "wrong number of columns"),
        (333, "click"),
        (700, "price"),
        (2, "click"),
    ]
    assert found[0]["file"] == str(path) and sum(shard.summary.log.rejected for shard in shards) == 3
    assert sum(shard.summary.held_files.rejected for shard in shards) == 1
    assert (
        sum(shard.summary.log.rows.rows_read for shard in shards) == 898
    )  # of 900 lines one is blank, one unreadable
    with pytest.raises(InputError, match=r"log.csv:40: wrong number .* because of --strict"):
        shards_of(OF_ADS, [str(path)], workers, strict=True)


def test_rejects_beyond_those_listed_are_still_counted(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(shard_module, "MOST_LISTED", 2)
    path = tmp_path / "log.csv"
    path.write_text("click,site\n1,a\n" + "maybe,a\n" * 7)
    plans = plans_of(parse_spec(PLAIN), [str(path)], 1)
    rejects = RejectLog()
    collect_rejects([build_shard(plans[0]).summary], plans[0], rejects)
    assert (rejects.count, len(rejects.first)) == (7, 1)


def test_more_workers_than_rows_leave_shards_empty(tmp_path: Path) -> None:
    inputs = [write(tmp_path / "log.csv", rows_of(3))]
    for options in ({}, {"memory_bytes": 1}):
        shards = shards_of(OF_ADS, inputs, 3, **options)
        assert sorted(shard.rows.labels.size for shard in shards) == [0, 0, 3]
        empty = min(shards, key=lambda shard: shard.rows.labels.size)
        assert empty.keys.hashes.size == empty.columns.rows.size == 0
        assert empty.rows.starts.tolist() == empty.columns.starts.tolist() == [0]
        assert empty.first.shape == (0, 1) and empty.summary.rows == 0
        assert empty.keys.texts(np.empty(0, np.int64))[1].tolist() == [0]


@pytest.mark.parametrize("by_request", [False, True])
def test_a_held_out_share_is_the_same_for_any_number_of_workers(tmp_path: Path, by_request: bool) -> None:
    spec = parse_spec(SPEC.replace("[fields]", 'request = "user"\n[fields]')) if by_request else OF_ADS
    inputs = [write(tmp_path / f"{part}.csv", rows_of(400, part)) for part in range(2)]
    _, everything = learned(spec, Log(inputs))
    found = []
    for workers in (1, 2, 3):  # by whole files, and by blocks
        shards = shards_of(spec, inputs, workers, held_out=HeldOutRows(share=0.25))
        held, kept = all_contents(shards, "held"), all_contents(shards)
        assert held + kept == Counter(everything)
        found.append(held)
    assert found[0] == found[1] == found[2] and 120 < found[0].total() < 280
    if by_request:
        users = [
            {key for _, _, keys in part for key, _ in keys if key.startswith(b"user=")}
            for part in (held, kept)
        ]
        assert not users[0] & users[1]


def test_a_held_out_row_is_not_learned(tmp_path, log: str, trained: tuple[LearningModel, list[Row]]) -> None:
    (shard,) = shards_of(OF_ADS, [log], 1, held_out=HeldOutRows(share=0.5))
    names = texts(shard.keys)
    kept = {key for _, _, keys in contents(shard.keys, shard.rows) for key, _ in keys}
    only_held = np.array([name not in kept for name in names])
    assert only_held.any() and np.array_equal(only_held, shard.keys.counts == 0)
    assert not shard.first[only_held].any()
    header, *lines = Path(log).read_text().splitlines(keepends=True)
    held = all_contents([shard], "held")
    lines = [line for line, row in zip(lines, trained[1], strict=True) if not held[row]]
    assert len(lines) == shard.rows.labels.size
    (tmp_path / "kept.csv").write_text(header + "".join(lines))
    (alone,) = shards_of(OF_ADS, [str(tmp_path / "kept.csv")], 1)
    assert list(contents(alone.keys, alone.rows)) == list(contents(shard.keys, shard.rows))
    of_alone = dict(zip(texts(alone.keys), alone.first[:, 0], strict=True))
    assert of_alone == {
        name: w for name, w, out in zip(names, shard.first[:, 0], only_held, strict=True) if not out
    }


def test_files_held_out_are_dealt_to_the_workers_and_their_keys_come_last(tmp_path, log, trained):
    held = [write(tmp_path / f"held{part}.jsonl", rows_of(300, 7 + part)) for part in range(2)]
    _, expected = learned(OF_ADS, Log(held))
    for workers in (1, 3):
        shards = shards_of(OF_ADS, [log], workers, held_out=HeldOutRows(inputs=tuple(held)))
        assert all_contents(shards, "held") == Counter(expected)
        assert all_contents(shards) == Counter(trained[1])
        for shard in shards:
            counts = shard.keys.counts
            assert counts[: np.count_nonzero(counts)].all()


def test_a_shard_spilled_to_files_equals_one_in_memory(tmp_path, monkeypatch) -> None:
    inputs = [write(tmp_path / "log.csv", rows_of(2_000))]
    options = {"held_out": HeldOutRows(share=0.1)}
    (plain,) = shards_of(OF_ADS, inputs, 1, **options)
    folder = tmp_path / "spilled"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    (spilled,) = shards_of(OF_ADS, inputs, 1, memory_bytes=20_000, **options)
    assert_equal(plain, spilled)
    assert_transposed(spilled)
    assert plain.summary.disk_bytes == 0
    parts = (
        *spilled.rows,
        *spilled.held,
        spilled.columns.rows,
        spilled.columns.x,
    )
    assert spilled.summary.disk_bytes == sum(array.nbytes for array in parts)
    assert list(folder.iterdir()) == []  # the files have no names
    assert spilled.rows.ids.flags.writeable == plain.rows.ids.flags.writeable  # kernels are compiled once


def test_a_full_disk_names_the_folder_and_the_remedy(tmp_path, monkeypatch) -> None:
    inputs = [write(tmp_path / "log.csv", rows_of(4_000))]
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (plan,) = plans_of(OF_ADS, inputs, 1, memory_bytes=10_000)
    build_shard(plan)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for most in (30_000, 150_000):  # while rows are written, and where the columns are to be
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
        try:
            with pytest.raises(OutputError, match=f"temporary file in {tmp_path}: .*; TMPDIR names another"):
                build_shard(plan)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(("most", "what"), [(300, "keys"), (900, "rows")])
def test_a_shard_beyond_int32_asks_for_more_workers(log: str, monkeypatch, most: int, what: str) -> None:
    monkeypatch.setattr(shard_module, "MOST", most)
    with pytest.raises(InputError, match=f"more than {most} {what}; use more workers"):
        shards_of(OF_ADS, [log], 1)


def test_weights_and_x_are_kept_only_where_they_are_not_1(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    spec = parse_spec(
        '[model]\nname = "ads"\n[input]\nlabel = "click"\nweight = "w"\n[fields]\np = { kind = "number" }\n'
    )
    ones = "1,1,1\n" * 500
    path.write_text("click,w,p\n" + ones)
    (shard,) = shards_of(spec, [str(path)], 1)
    assert shard.rows.x.size == shard.columns.x.size == shard.rows.weights.size == 0
    path.write_text("click,w,p\n" + ones + "0,2.5,3\n" + ones)
    (shard,) = shards_of(spec, [str(path)], 1)
    assert Counter(shard.rows.weights.tolist()) == {1.0: 1000, 2.5: 1}
    assert Counter(shard.rows.x.tolist()) == {1.0: 2001, 3.0: 1}
    assert_transposed(shard)


def test_variants_with_values_of_their_own_have_first_weights_each(log: str) -> None:
    spec = parse_spec(
        SPEC
        + '[variants.base]\n[variants.lean]\nwithout = ["tags"]\nl1 = 0.1\n[learner]\nvalues = "per_variant"\n'
    )
    (shard,) = shards_of(spec, [log], 1)
    model, _ = learned(spec, Log([log]))
    keys = model.table.keys()
    assert shard.first.shape == (keys.slots.size, 2)
    assert np.array_equal(shard.first, model.coordinates.weights(keys))


def test_side_tables_are_joined_by_every_worker(tmp_path: Path) -> None:
    text = "".join(f"{row['click']},{row['site']},{row['user']}\n" for row in rows_of(400))
    (tmp_path / "log.csv").write_text("click,site,user\n" + text)
    users = tmp_path / "users.jsonl"
    users.write_text("".join(f'{{"cookie": "u{user}", "age": "{user % 7}"}}\n' for user in range(400)))
    spec = parse_spec(
        '[model]\nname = "ads"\n[input]\nlabel = "click"\ncookie = "user"\n'
        '[fields]\nsite = {}\nage = { side = "user" }\n'
    )
    log = Log([str(tmp_path / "log.csv")], tables=side_tables(None, users, spec.input), batch_bytes=BLOCK)
    _, expected = learned(spec, log)
    plans = plan_shards(spec, log, 2)
    assert all_contents([build_shard(pickle.loads(pickle.dumps(plan))) for plan in plans]) == Counter(
        expected
    )
    users.write_text('{"cookie": "u1", "age": "1"}\n')
    with pytest.raises(InputError, match=r"users.jsonl on the host of this worker is not the file of users"):
        build_shard(plans[0])


SAMPLED = SPEC.replace("[fields]", 'request = "user"\n[fields]') + "[learner.subsample]\nunclicked = 0.3\n"


def test_sampled_requests_of_whole_files_are_those_of_train(tmp_path: Path) -> None:
    spec = parse_spec(SAMPLED)
    inputs = []
    for part in range(3):
        rows = sorted(rows_of(400, part), key=lambda row: str(row["user"]))
        inputs.append(write(tmp_path / f"{part}.csv", rows))
    _, expected = learned(spec, Log(inputs))
    shards = shards_of(spec, inputs, 2)
    assert all_contents(shards) == Counter(expected)
    assert sum(shard.summary.log.rows.subsampled for shard in shards) == 1_200 - len(expected) > 300


def test_logs_that_cannot_be_dealt_are_refused(log: str) -> None:
    refusal = r"learner.subsample .* 1 files for 2 workers .* write the log as 2 files"
    with pytest.raises(SpecError, match=refusal):  # sampled requests are not cut into blocks
        plans_of(parse_spec(SAMPLED), [log], 2)
    with pytest.raises(InputError, match=r"several workers cannot read; write the log to a file"):
        plan_shards(OF_ADS, Log(["-"]), 2)


def test_files_of_very_different_sizes_are_noted(tmp_path: Path) -> None:
    inputs = [write(tmp_path / f"{rows}.csv", rows_of(rows)) for rows in (10, 1_000)]
    notes: list[str] = []
    plan_shards(OF_ADS, Log(inputs, on_note=notes.append), 2)
    assert len(notes) == 1 and "the other workers wait for that one" in notes[0]


@pytest.mark.parametrize(
    ("section", "setting"),
    [
        ('[learner]\nalgorithm = "rda"\n', 'learner.algorithm = "rda"'),
        ("[learner]\nhash_bits = 20\n", "learner.hash_bits = 20"),
        ('[learner]\nprecision = "q2.13"\n', 'learner.precision = "q2.13"'),
        ('[learner.inclusion]\nkind = "bloom"\ncount = 2\n', 'learner.inclusion.kind = "bloom"'),
        ("[learner]\nttl = 1000\n", "learner.ttl = 1000"),
        ('[calibration]\nkind = "power"\n', 'calibration.kind = "power"'),
        ('[rules."site=".inclusion]\nkind = "poisson"\np = 0.5\n', 'rules."site=".inclusion'),
    ],
)
def test_a_setting_that_workers_cannot_keep_is_named_with_the_remedy(section: str, setting: str) -> None:
    with pytest.raises(SpecError) as error:
        check_distributable(parse_spec(SPEC + section))
    assert str(error.value).startswith(f"{setting} does not go with several workers: ")
    assert str(error.value).endswith("or use ftrie train")
    check_distributable(OF_ADS)


def test_each_worker_has_caches_of_its_own_for_the_log_and_for_files_held_out(tmp_path: Path) -> None:
    inputs = [write(tmp_path / f"{part}.csv", rows_of(40, part)) for part in range(4)]
    log = Log(inputs[:2], cache=tmp_path / "kept")
    for plan in plan_shards(OF_ADS, log, 2, held_out=HeldOutRows(inputs=tuple(inputs[2:]))):
        build_shard(plan)
    names = {f"kept.{part}{number}-of-2" for part in ("", "held-") for number in (1, 2)}
    assert names == {path.name for path in tmp_path.glob("kept*")}
