"""A first spec: what it chooses on logs whose truth is known; its figures are those of `train` and `evaluate`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pytest

import ftrie
from ftrie.cli import run
from model_store.spec.spec import load_spec

ROWS = 6000
Random = np.random.Generator
Columns = dict[str, Sequence[object]]


def shop(random: Random, *, taste: float = 0.0, own: float = 0.0) -> Columns:
    """Forty users see twenty items. taste: of some users for some items; own: some users click more."""
    user, item = random.integers(0, 40, ROWS), random.integers(0, 20, ROWS)
    likes = random.normal(0.0, 1.0, (40, 20))
    score = -0.5 + 0.5 * random.normal(0.0, 1.0, 20)[item] + taste * likes[user, item]
    score += own * random.normal(0.0, 1.0, 40)[user]
    click = random.random(ROWS) < 1.0 / (1.0 + np.exp(-score))
    return {
        "click": click.astype(int),
        "user_id": [f"u{u}" for u in user],
        "item_id": [f"i{i}" for i in item],
    }


def write(path: Path, columns: Columns) -> Path:
    rows = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Write a log, run `ftrie init` on it; what was measured, the spec's path in `spec`."""

    def run_init(columns: Columns, *flags: str) -> Any:
        log = write(tmp_path / "log.csv", columns)
        capsys.readouterr()
        assert run(["init", str(log), "-o", str(tmp_path / "log.toml"), "--force", "--json", *flags]) == 0
        return json.loads(capsys.readouterr().out)["measured"]

    return run_init


def test_a_taste_is_found_as_a_cross_and_the_figures_are_those_of_train_and_evaluate(
    measured: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = shop(np.random.default_rng(1), taste=2.0)
    found = measured(columns)
    assert found["crosses_in"] == [["user_id", "item_id"]] and not found["doubtful"]
    assert found["steps"][-1]["step"] == "with crosses"
    textbook, best = (found["steps"][at]["logloss"] for at in (0, -1))
    assert best < 0.9 * textbook
    end = found["rows"]
    parts = [{name: each[own] for name, each in columns.items()} for own in (slice(0, end), slice(end, None))]
    first, after = (write(tmp_path / f"{name}.csv", part) for name, part in zip("ab", parts, strict=True))
    model = str(tmp_path / "m.arrow")
    assert run(["train", str(tmp_path / "log.toml"), str(first), "--save", model, "--json"]) == 0
    capsys.readouterr()
    assert run(["evaluate", model, str(after), "--json"]) == 0
    (variant,) = json.loads(capsys.readouterr().out)["variants"].values()
    assert variant["logloss"] == pytest.approx(best, abs=2e-6)
    chosen = load_spec(tmp_path / "log.toml").chosen
    assert chosen is not None and (chosen.rows, chosen.judged_rows) == (end, ROWS - end)
    assert (chosen.steps[0].logloss, chosen.steps[-1].logloss) == (round(textbook, 5), round(best, 5))
    metrics, page = tmp_path / "m.jsonl", tmp_path / "m.html"
    assert run(["train", str(tmp_path / "log.toml"), str(first), "--metrics", str(metrics), "--json"]) == 0
    assert run(["report", str(metrics), "-o", str(page), "--json"]) == 0
    assert "How the spec was chosen" in page.read_text() and f"{round(best, 5)}" in page.read_text()


def test_a_user_is_a_field_where_users_differ_and_is_none_where_they_do_not(
    measured: Callable[..., Any], tmp_path: Path
) -> None:
    assert measured(shop(np.random.default_rng(2), own=1.5))["fields_in"] == ["user_id"]
    assert "user_id" in load_spec(tmp_path / "log.toml").fields
    assert measured(shop(np.random.default_rng(3)))["fields_in"] == []
    assert "user_id" not in load_spec(tmp_path / "log.toml").fields
    assert "# user_id = " in (tmp_path / "log.toml").read_text()


def test_a_number_whose_size_matters_is_cut_into_quantiles_or_taken_as_a_size(
    measured: Callable[..., Any], tmp_path: Path
) -> None:
    random = np.random.default_rng(4)
    size = 1e6 + random.random(ROWS)  # buckets of powers of two cannot tell them apart
    click = random.random(ROWS) < size - 1e6
    found = measured({"click": click.astype(int), "amount": [f"{each:.6f}" for each in size]})
    assert found["numbers"] in ("quantiles", "quantiles and size")
    field = load_spec(tmp_path / "log.toml").fields["amount"]
    assert field.bucket == "quantile:20" and found["steps"][-1]["auc"] > 0.75


def test_where_crosses_may_or_may_not_help_both_are_learned_and_compared(
    measured: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random = np.random.default_rng(5)
    columns = shop(random, taste=2.0)
    end = ROWS * 8 // 10
    columns["click"] = [*columns["click"][:end], *random.permutation(columns["click"][end:])]
    found = measured(columns)
    assert found["doubtful"] and found["crosses_in"]
    spec = load_spec(tmp_path / "log.toml")
    assert set(spec.variants) == {"base", "crosses"} and spec.variants["base"].without == ("user_id*item_id",)
    capsys.readouterr()
    assert run(["train", str(tmp_path / "log.toml"), str(tmp_path / "log.csv"), "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["variants"]) == {"base", "crosses"}


def test_the_same_rows_give_the_same_spec_from_a_file_a_table_and_on_one_thread(
    measured: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = shop(np.random.default_rng(6), taste=1.0, own=1.0)
    measured(columns)
    text = (tmp_path / "log.toml").read_text()
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    measured(columns)
    assert (tmp_path / "log.toml").read_text() == text
    monkeypatch.undo()
    table = pyarrow.csv.read_csv(tmp_path / "log.csv")
    assert ftrie.Spec.infer(table, name="log", progress=False).to_dict() == ftrie.Spec(text).to_dict()


def test_quick_measures_nothing(measured: Callable[..., Any], tmp_path: Path) -> None:
    assert measured(shop(np.random.default_rng(7), taste=2.0), "--quick") is None
    quick = (tmp_path / "log.toml").read_text()
    assert "alpha = 0.1 " in quick and "# To learn each user individually" in quick
    inferred = ftrie.Spec.infer(tmp_path / "log.csv", quick=True)
    assert inferred.text == quick


@pytest.mark.parametrize(
    ("clicks", "reason"),
    [
        ([0, 1] * 20, "40 rows are too few to choose by; 200 are needed"),
        ([1] + [0] * 499, "1 of 500 rows are clicked, too few to choose by"),
    ],
)
def test_what_cannot_be_measured_is_said(
    clicks: list[int], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write(
        tmp_path / "log.csv", {"click": clicks, "brand": [f"b{row % 7}" for row in range(len(clicks))]}
    )
    assert run(["init", str(log)]) == 0
    said = capsys.readouterr()
    assert f"nothing was measured: {reason}; the spec has a textbook rate" in said.err
    assert "alpha = 0.1 " in said.out


def test_of_lists_the_place_the_rank_of_a_price_and_earlier_clicks_are_proposed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Given lists in which the first places, the cheapest item and items clicked before are clicked."""
    random = np.random.default_rng(8)
    liked: dict[str, set[str]] = {}
    shown, clicked = list[str](), list[str]()
    for number in range(1500):
        cookie, ts = f"u{random.integers(0, 60)}", 1_700_000_000 + 700 * number
        items = [f"i{each}" for each in random.permutation(30)[:8]]
        base = 20.0 * (1 + random.integers(0, 5))  # the level of a list says nothing; the order in it does
        prices = base * (1.0 + random.permutation(8) / 8.0)
        score = -0.5 * np.arange(8.0) - 0.5 * np.argsort(np.argsort(prices))
        score += [2.0 * (each in liked.setdefault(cookie, set())) for each in items]
        chosen = items[int(np.argmax(score + random.gumbel(size=8)))]
        liked[cookie].add(chosen)
        rows = [
            {"id": item, "position": place, "features": {"price": round(float(price), 2)}}
            for place, (item, price) in enumerate(zip(items, prices, strict=True), start=1)
        ]
        shown.append(json.dumps({"request_id": f"r{number}", "ts": ts, "cookie": cookie, "items": rows}))
        clicked.append(json.dumps({"request_id": f"r{number}", "ts": ts + 5, "item": chosen}))
    logs = [tmp_path / "impressions.jsonl", tmp_path / "clicks.jsonl"]
    for log, lines in zip(logs, (shown, clicked), strict=True):
        log.write_text("\n".join(lines) + "\n")
    spec, model = tmp_path / "lists.toml", str(tmp_path / "m.arrow")
    assert run(["init", *map(str, logs), "-o", str(spec), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["measured"]
    assert {"position", "price_rank", "clicked_before"} <= {*found["fields_in"]}
    steps = {each["step"]: each["measure"] for each in found["steps"]}
    assert steps["with fields"] > steps["chosen rate"] + 0.1
    assert found["unknown"]["step"] == "without position"
    assert found["unknown"]["measure"] < found["steps"][-1]["measure"]
    assert run(["train", str(spec), *map(str, logs), "--save", model, "--json"]) == 0
    assert run(["evaluate", model, *map(str, logs), "--json"]) == 0


def test_of_many_fields_the_pairs_that_matter_are_among_those_that_are_learned(
    measured: Callable[..., Any], tmp_path: Path
) -> None:
    """Given 14 fields, so 91 pairs, more than are learned; a pair of values and one of a set and a value matter."""
    random = np.random.default_rng(9)
    fields = {f"f{number}": random.integers(0, 6, ROWS) for number in range(13)}
    tags = [sorted({*random.integers(0, 8, 3)}) for _ in range(ROWS)]
    score = np.where(fields["f3"] == fields["f10"], 2.5, -1.0)
    score += [2.5 * (value in own) for value, own in zip(fields["f5"], tags, strict=True)]
    click = random.random(ROWS) < 1.0 / (1.0 + np.exp(1.0 - score))
    columns: Columns = {"click": click.astype(int)}
    columns |= {name: [f"v{value}" for value in values] for name, values in fields.items()}
    columns["tags"] = ["|".join(f"v{tag}" for tag in own) for own in tags]
    found = measured(columns)
    assert {*map(tuple, found["crosses_in"])} == {("f3", "f10"), ("f5", "tags")}
    assert len(found["crosses"]) < 91


@pytest.mark.parametrize("flags", [(), ("--quick",)])
@pytest.mark.parametrize("column", ["user_id", "ts"])
def test_a_log_without_a_certain_field_gets_a_spec_that_trains(
    measured: Callable[..., Any], tmp_path: Path, column: str, flags: tuple[str, ...]
) -> None:
    """Given a user or a time alone, which say nothing, when a spec is made of it, then it has a field all the same."""
    random = np.random.default_rng(10)
    values = {"user_id": [f"u{row % 40}" for row in range(ROWS)]}
    values["ts"] = [f"2024-05-0{1 + row % 5} {row % 24:02d}:00:00" for row in range(ROWS)]
    measured({"click": random.integers(0, 2, ROWS), column: values[column]}, *flags)
    assert load_spec(tmp_path / "log.toml").fields
    assert run(["train", str(tmp_path / "log.toml"), str(tmp_path / "log.csv"), "--json"]) == 0


def test_the_base_of_two_variants_lacks_the_ids_that_came_with_the_crosses(
    measured: Callable[..., Any], tmp_path: Path
) -> None:
    random = np.random.default_rng(11)
    columns = shop(random, taste=2.0)
    end = ROWS * 8 // 10
    columns["click"] = [*columns["click"][:end], *random.permutation(columns["click"][end:])]
    found = measured(columns)
    spec = load_spec(tmp_path / "log.toml")
    ids = {name for name in ("user_id",) if name not in found["fields_in"] and spec.fields[name].main}
    assert found["doubtful"] and {*spec.variants["base"].without} == {"user_id*item_id", *ids}
