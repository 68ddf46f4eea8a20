"""Whole runs over logs with an x for each feature: the format, the blocks and the spelling change nothing learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from model_store.artefact.artefact import Artefact
from model_store.spec.spec import parse_spec
from tests.matrix import slow_except
from trainer.examples.open_log import Log
from trainer.formats.rejects import RejectLog
from trainer.runs.train import Run, train

ROWS = 500
FIELDS = """
[fields]
user = { side = "user", kind = "set" }
ad = { side = "item", kind = "set" }
[[crosses]]
fields = ["user", "ad"]
"""
HEAD = '[model]\nname = "m"\n[input]\nlabel = "label"\nweight = "importance"\n'
LEARNER = "[learner]\nalpha = 0.1\nbeta = 1.0\nl1 = 0.01\n"
SPEC = HEAD + FIELDS + LEARNER


def rows(count: int = ROWS) -> list[dict[str, Any]]:
    random = np.random.default_rng(7)
    made = []
    for _ in range(count):
        user = {
            f"u{n}": round(float(random.normal()), int(random.integers(1, 17)))
            for n in random.integers(30, size=3)
        }
        ad = {f"ad {random.integers(9)}".replace(" ", ""): 1.0, "price": float(random.integers(1, 100)) / 8}
        made.append(
            {
                "label": int(random.random() < 0.3),
                "importance": float(random.integers(1, 4)),
                "user": {name: x for name, x in user.items() if x},
                "ad": ad,
            }
        )
    return made


def as_vw(each: dict[str, Any]) -> str:
    spaces = (
        f"|{name} " + " ".join(member if x == 1 else f"{member}:{x!r}" for member, x in each[name].items())
        for name in ("user", "ad")
    )
    return f"{each['label'] or -1} {each['importance']} {' '.join(spaces)}"


def write(folder: Path, format: str, made: list[dict[str, Any]]) -> Path:
    path = folder / f"log.{format}"
    if format == "vw":
        path.write_text("\n".join(map(as_vw, made)))
    elif format == "jsonl":
        path.write_text("\n".join(map(json.dumps, made)))
    elif format == "tsv":
        lines = ["\t".join(made[0]), *("\t".join(map(json.dumps, row.values())) for row in made)]
        path.write_text("\n".join(lines))
    else:
        weighted = pa.map_(pa.string(), pa.float64())
        columns: dict[str, Any] = {name: [row[name] for row in made] for name in ("label", "importance")}
        columns |= {n: pa.array([list(row[n].items()) for row in made], weighted) for n in ("user", "ad")}
        pq.write_table(pa.table(columns), path)
    return path


def run(spec: str, *paths: Path, threads: int | None = None, **options: Any) -> Run:
    with RejectLog() as rejects:
        done = train(
            parse_spec(spec), Log([str(path) for path in paths], **options), rejects=rejects, threads=threads
        )
    assert done.failure is None
    return done


def weights(artefact: Artefact) -> dict[bytes, float]:
    return dict(zip(artefact.key_list(), artefact.weight.tolist(), strict=True))


def test_neither_the_format_nor_blocks_nor_threads_change_what_is_learned(tmp_path: Path) -> None:
    made = rows()
    notes: list[str] = []  # a map that every row of JSON lines has is not taken for missing
    whole, *others = (
        run(SPEC, write(tmp_path, format, made), threads=1, on_note=notes.append).model.artefact()
        for format in ("jsonl", "vw", "tsv", "parquet")
    )
    assert whole.rows > 100 and notes == []
    others.append(run(SPEC, tmp_path / "log.vw", threads=3, batch_bytes=3000).model.artefact())
    assert {each.sha256 for each in others} == {whole.sha256}


def test_a_field_may_name_a_namespace_that_comes_late_or_in_one_file_only(tmp_path: Path) -> None:
    first, second = tmp_path / "1.vw", tmp_path / "2.vw"
    first.write_text("1 |user a\n" * 50)
    second.write_text("0 |ad b\n" * 50)
    notes: list[str] = []
    done = run(SPEC, first, second, on_note=notes.append)
    assert {b"user=a", b"ad=b"} <= weights(done.model.artefact()).keys()
    assert notes == ["no row at the log's beginning has ad: without a value until one does"]
    assert done.absent == ()


THREE_LINES = '[model]\nname = "m"\n[input]\nlabel = "label"\n[learner]\nl1 = 0.0\n'


def test_a_spec_of_three_lines_learns_what_the_log_names(tmp_path: Path) -> None:
    path = tmp_path / "log.libffm"
    path.write_text("1 0:3:1 1:7:0.5\n0 0:4:1 1:7:1\n" * 40)
    assert weights(run(THREE_LINES, path).model.artefact()).keys() == {b"bias", b"0=3", b"0=4", b"1=7"}


@pytest.mark.parametrize("features", slow_except([20_000], [20_000, 200_000]))
def test_a_row_of_many_features_costs_what_its_features_cost(tmp_path: Path, features: int) -> None:
    """No time is measured: looking each key's row through again would take a quarter of a minute with the most."""
    names, path = [f"f{n}" for n in range(features)], tmp_path / "log.vw"
    path.write_text(f"1 |user {' '.join(names[::2])} |ad b\n0 |user {' '.join(names)} |ad b c\n")
    keys = run(THREE_LINES, path).model.artefact().key_list()
    assert set(keys) == {b"bias", b"ad=b", b"ad=c", *(f"user={name}".encode() for name in names)}


def progressive_loss_of_vw(path: Path, arguments: str) -> float:
    """Vowpal Wabbit's own average loss over one pass, each row predicted before it is learned from."""
    vowpalwabbit = pytest.importorskip("vowpalwabbit")
    workspace = vowpalwabbit.Workspace(f"--quiet --loss_function logistic --ftrl {arguments}")
    lines = path.read_text().splitlines()
    total = weight = 0.0
    for line in lines:
        example = workspace.example(line)
        y, importance = example.get_simplelabel_label(), example.get_simplelabel_weight()
        total += importance * float(np.log1p(np.exp(-y * workspace.predict(example))))
        weight += importance
        workspace.learn(example)
        workspace.finish_example(example)
    workspace.finish()
    return total / weight


def test_the_loss_is_that_of_vowpal_wabbit_on_the_same_text(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    taste = {f"u{n}": float(random.normal()) for n in range(30)}
    made = rows(4000)
    for row in made:
        score = sum(taste[name] * x for name, x in row["user"].items()) - 1.0
        row |= {"label": int(random.random() < 1 / (1 + np.exp(-score))), "importance": 1.0}
    path = write(tmp_path, "vw", made)
    ours = run(HEAD + FIELDS + LEARNER.replace("l1 = 0.01", "l1 = 0.0"), path).report.variants["base"].logloss
    assert ours is not None and 0.4 < ours < 0.62
    theirs = progressive_loss_of_vw(path, "--ftrl_alpha 0.1 --ftrl_beta 1.0 --l1 0 --l2 0 -q ua")
    assert ours == pytest.approx(theirs, rel=5e-3)
