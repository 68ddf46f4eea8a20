"""`ftrie estimate` and `ftrie.estimate`: tables of every form, and what is refused."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ftrie
from model_store.errors import InputError, NoSupport, SpecError, UsageError
from tests.ftrie.conftest import Ask, Say

ACTIONS = ["a", "b", "c"]
LOGGING, TARGET = np.array([0.5, 0.3, 0.2]), {"a": 0.2, "b": 0.2, "c": 0.6}
EARNS = {"a": 1.0, "b": -2.0, "c": 4.0}
QUIET = ("--bootstrap", "0")


def table(rows: int = 400, per_list: int = 1, **more: Any) -> dict[str, Any]:
    """Actions drawn by LOGGING, which earn about EARNS; TARGET as a number and as an object. more: other columns."""
    random = np.random.default_rng(2)
    action, number = random.choice(ACTIONS, rows, p=LOGGING), np.arange(rows)
    return {
        "action": action.tolist(),
        "reward": np.array([EARNS[each] for each in action]) + random.normal(0.0, 0.5, rows),
        "propensity": LOGGING[[ACTIONS.index(each) for each in action]],
        "chance": np.array([TARGET[each] for each in action]),
        "target": [json.dumps(TARGET)] * rows,
        "age": random.integers(18, 80, rows),
        "list": number // per_list,
        "position": number % per_list + 1,
        **{name: value if isinstance(value, np.ndarray) else [value] * rows for name, value in more.items()},
    }


def written(path: Path, columns: dict[str, Any]) -> Path:
    """The table as a file of the format of its name."""
    table = pa.table(columns)
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, table.column_names)
            writer.writeheader()
            writer.writerows(table.to_pylist())
    return path


def values(found: dict[str, Any], name: str) -> dict[str, float]:
    (policy,) = (each for each in found["policies"] if each["name"] == name)
    return {key: each["value"] for key, each in policy["estimates"].items()}


def test_a_table_gives_the_same_estimates_in_every_form(tmp_path: Path, ask: Ask) -> None:
    """Given the target as objects, columns and one number, and the table in three formats, all are the definitions."""
    columns = table()
    bare = {name: column for name, column in columns.items() if name != "target"}
    wide = {f"target.{each}": [TARGET[each]] * 400 for each in ACTIONS}
    logs = [
        written(tmp_path / "t.csv", columns),
        written(tmp_path / "t.parquet", columns),
        written(tmp_path / "wide.csv", bare | wide),
        written(tmp_path / "t.jsonl", bare | {"target": [TARGET] * 400}),
    ]
    flags = ("--context", "age", "--reward-model", *QUIET)
    first, *others = (values(ask("estimate", log, *flags), "target") for log in logs)
    weight = columns["chance"] / columns["propensity"]
    assert first["ips"] == pytest.approx((weight * columns["reward"]).mean())
    assert first["snips"] == pytest.approx((weight * columns["reward"]).sum() / weight.sum())
    assert first["dr"] == pytest.approx(sum(TARGET[each] * EARNS[each] for each in ACTIONS), abs=0.2)
    assert others == [pytest.approx(first)] * 3
    number = values(ask("estimate", logs[0], "--target", "chance", *flags), "chance")
    assert number == pytest.approx({name: first[name] for name in ("ips", "clipped", "snips")})


def test_lists_and_clusters_of_a_table(tmp_path: Path, ask: Ask) -> None:
    """Given lists of two, whose rows may be in any order, RIPS multiplies from the top; a cluster holds many lists."""
    columns = table(400, per_list=2, visitor=np.arange(400) // 20)
    log = written(tmp_path / "t.csv", {name: column[::-1] for name, column in columns.items()})
    found = ask("estimate", log, "--request", "list", "--reward-model", *QUIET)
    weight, reward = (
        (columns["chance"] / columns["propensity"]).reshape(-1, 2),
        columns["reward"].reshape(-1, 2),
    )
    got = values(found, "target")
    assert got["rips"] == pytest.approx((weight.cumprod(axis=1) * reward).sum(axis=1).mean())
    assert got["item_position"] == pytest.approx((weight * reward).sum(axis=1).mean())
    assert {"dr", "cascade_dr"} <= got.keys() and found["requests"] == 200
    wider = ask("estimate", log, "--request", "list", "--cluster", "visitor", *QUIET)
    assert values(wider, "target")["rips"] == pytest.approx(got["rips"])
    errors = [each["policies"][0]["estimates"]["rips"]["error"] for each in (found, wider)]
    assert errors[0] != pytest.approx(errors[1])


def test_marginal_probabilities_are_those_of_item_position_alone(tmp_path: Path, ask: Ask) -> None:
    columns = table(400, per_list=2, p_alone=0.5, t_alone=0.25)
    log = written(tmp_path / "t.csv", columns)
    flags = ("--request", "list", "--marginal-propensity", "p_alone", "--marginal-target", "t_alone", *QUIET)
    got = values(ask("estimate", log, *flags), "target")
    assert got["item_position"] == pytest.approx(0.5 * 2 * columns["reward"].mean())


def test_the_library_takes_a_table_in_memory_and_a_model(tmp_path: Path, ask: Ask) -> None:
    """Given a table in memory and a model of clicks on actions, the library gives what the command prints."""
    columns = table(2000)
    columns["click"] = (columns["reward"] > 2.0).astype(int)
    log, model = written(tmp_path / "t.csv", columns), str(tmp_path / "offers.arrow")
    spec = {
        "model": {"name": "offers"},
        "input": {"label": "click"},
        "fields": {"age": {"side": "user", "kind": "number", "bucket": "log"}, "action": {"side": "item"}},
        "learner": {"l1": 0.0},
    }
    ftrie.train(spec, pa.table(columns), progress=False).model.save(model)
    how, flags = {"choose": ["epsilon:0.3"], "bootstrap": 0}, ("--choose", "epsilon:0.3", *QUIET)
    found = ftrie.estimate(pa.table(columns), [model, "uniform"], progress=False, **how)
    printed = ask("estimate", log, "--policy", model, "--policy", "uniform", *flags)
    assert json.loads(json.dumps(asdict(found))) == printed
    order, by = ("ctr - 2 * offers.ctr", {"offers": f"{model}@base"})
    found_by = ftrie.estimate(
        pa.table(columns),
        [model],
        objective=order,
        beside=by,
        progress=False,
        choose=["epsilon:0.3"],
        bootstrap=0,
    )
    flags = ("--objective", order, "--beside", f"offers={by['offers']}", *flags)
    assert json.loads(json.dumps(asdict(found_by))) == ask("estimate", log, "--policy", model, *flags)
    assert found_by.policies[0].name == f"offers.arrow@base by {order} epsilon:0.3"
    assert found_by.policies[0].estimates["ips"] != found.policies[0].estimates["ips"]
    best = 0.7 * EARNS["c"] + 0.3 * sum(EARNS.values()) / 3
    assert found.policies[0].estimates["snips"].value == pytest.approx(best, abs=0.3)


@pytest.mark.parametrize(
    ("change", "flags", "error", "said"),
    [
        ({"propensity": 1.0}, (), NoSupport, "every propensity is 1"),
        ({"target": "nothing"}, (), InputError, "target: got 'nothing', expected a probability"),
        ({"target": '{"a": 0.5}'}, (), InputError, "add up to 0.5, expected 1 (400 such rows)"),
        ({"target": '{"a": 1.5}'}, (), InputError, "expected an object of probabilities"),
        ({"reward": "much"}, (), InputError, "no row"),
        ({}, ("--target", "goal"), SpecError, "no column 'goal' in the table"),
        ({}, ("--context", "size"), SpecError, "no column 'size' in the table"),
        ({}, ("--reward", "money"), SpecError, "no column 'money'"),
        ({}, ("--marginal-target", "chance"), SpecError, "belong together"),
        ({}, ("--objective", "ctr *"), UsageError, "at character 6: got the end"),
        ({}, ("--objective", "ctr"), UsageError, "expected one as --policy"),
        ({}, ("--objective", "ctr", "--choose", "softmax:1"), UsageError, "expected greedy or epsilon:E"),
        (
            {},
            ("--policy", "m.arrow", "--objective", "a.ctr", "--beside", "b=c"),
            UsageError,
            "expected NAME=MODEL",
        ),
    ],
)
def test_a_table_that_cannot_be_judged_is_refused_by_name(
    tmp_path: Path, say: Say, change: dict[str, Any], flags: tuple[str, ...], error: type[Any], said: str
) -> None:
    code, _, err = say("estimate", written(tmp_path / "t.csv", table(**change)), "--reward-model", *flags)
    assert (code, said in err) == (error.exit_code, True), err


def test_broken_rows_are_left_out_and_counted(tmp_path: Path, ask: Ask) -> None:
    """Given rows without a reward, an action or a propensity, the estimates are those of the other rows."""
    columns = table()
    whole = {name: column[6:] for name, column in columns.items()}
    broken = columns | {"reward": ["", "inf", *map(str, columns["reward"][2:])]}
    broken["action"][2:4] = ["", ""]
    broken["propensity"][4:6] = 0.0, 2.0
    first, second = (ask("estimate", written(tmp_path / "t.csv", each), *QUIET) for each in (whole, broken))
    assert values(second, "target") == pytest.approx(values(first, "target"))
    assert (second["rows"], second["rejected"], second["unusable"]) == (394, 4, 2)
    assert [note.split(" ")[0] for note in second["notes"]] == ["4", "2"]


def test_a_target_that_the_log_does_not_support_is_refused(tmp_path: Path, say: Say) -> None:
    """Given a target that shows an action which was shown five times, it has no estimates and the reason is printed."""
    columns = table(target='{"d": 1}')
    columns["action"][:5], columns["propensity"][:5] = ["d"] * 5, 0.01
    code, out, err = say("estimate", written(tmp_path / "t.csv", columns), *QUIET)
    assert (code, "refused" in out) == (NoSupport.exit_code, True)
    assert "effective sample is 5.0 of 400 rows" in err and "would help" in err
    unknown = table(target=json.dumps({"a": 0.5, "b": 0.3, "never": 0.2}))
    code, _, err = say("estimate", written(tmp_path / "t.csv", unknown), *QUIET)
    assert (code, "20.0% of the items it shows are never shown" in err) == (NoSupport.exit_code, True)
