"""What columns tell of one another: the item's attributes, equal columns and times, position bias."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ftrie.cli import run
from model_store.spec.spec import load_spec, parse_spec
from trainer.events.columns import resolve_fields
from trainer.inspect.guesses import Guess, guess_log
from trainer.inspect.profiles import LogSample, profile_of
from trainer.runs.first_spec import SpecDraft

ROWS = 400


def guessed(**columns: Sequence[object]) -> dict[str, Guess]:
    profiles = [profile_of(name, list(values), "category") for name, values in columns.items()]
    return {guess.name: guess for guess in guess_log(LogSample(tuple(profiles)))}


def labels(rows: int = ROWS) -> list[str]:
    draw = random.Random(1)
    return [str(int(draw.random() < 0.2)) for _ in range(rows)]


def items(rows: int = ROWS, kinds: int = 20) -> list[str]:
    draw = random.Random(2)
    return [f"i{draw.randrange(kinds)}" for _ in range(rows)]


def test_an_attribute_that_never_changes_for_an_item_is_the_item_s() -> None:
    draw, shown = random.Random(3), items()
    found = guessed(
        click=labels(),
        item_id=shown,
        colour=[f"c{int(each[1:]) % 4}" for each in shown],
        hour=[str(draw.randrange(24)) for _ in shown],
    )
    assert (found["colour"].side, found["hour"].side) == ("item", "context")
    assert found["colour"].why.endswith("one value for each item_id")


def test_an_attribute_that_changes_once_or_was_not_seen_again_is_not() -> None:
    shown = items()
    colour = [f"c{int(each[1:]) % 4}" for each in shown]
    colour[-1] = "another"
    rare = [f"i{number}" for number in range(ROWS)]
    assert guessed(click=labels(), item_id=shown, colour=colour)["colour"].side == "context"
    few = guessed(click=labels(), item_id=rare[: ROWS - 10] + rare[:10], colour=["a", "b"] * (ROWS // 2))
    assert few["colour"].side == "context"
    constant = guessed(click=labels(), item_id=shown, colour=["a"] * (ROWS - 1) + [""])
    assert constant["colour"].side == "context"


def test_an_attribute_that_is_sometimes_missing_is_the_item_s_all_the_same() -> None:
    shown = items()
    colour = ["" if number % 9 == 0 else f"c{int(each[1:]) % 4}" for number, each in enumerate(shown)]
    assert guessed(click=labels(), item_id=shown, colour=colour)["colour"].side == "item"


def test_of_two_equal_columns_the_first_is_kept() -> None:
    shown = items()
    found = guessed(click=labels(), colour=shown, color=shown, other=shown[1:] + shown[:1])
    assert [found[name].role for name in ("colour", "color", "other")] == ["field", "ignore", "field"]
    assert found["color"].why == "the same as colour in every row"


def test_of_two_time_columns_with_the_same_times_one_is_kept() -> None:
    begin = datetime(2026, 11, 1, tzinfo=UTC)
    times = [begin + timedelta(minutes=number // 2) for number in range(ROWS)]
    epochs = [str(int(each.timestamp())) for each in times]
    later = [str(int(each.timestamp()) + 5) for each in times]
    text = [each.strftime("%Y-%m-%d %H:%M:%S") for each in times]
    found = guessed(click=labels(), ts=epochs, shown_at=text, ended_at=[f"{each[:-1]}5" for each in text])
    assert (found["ts"].role, found["shown_at"].role) == ("timestamp", "ignore")
    assert found["shown_at"].why == "the same times as ts"
    assert guessed(click=labels(), ts=epochs, end_ts=later)["end_ts"].role == "field"
    assert found["ended_at"].role == "field"


@pytest.mark.parametrize(("fall", "warns"), [(True, True), (False, False)])
def test_position_bias_is_a_warning(fall: bool, warns: bool) -> None:
    draw = random.Random(4)
    places = [number % 8 + 1 for number in range(4_000)]
    clicks = [str(int(draw.random() < (0.4 / place if fall else 0.1))) for place in places]
    found = guessed(click=clicks, position=list(map(str, places)), slots=["a", "b"] * 2_000)
    assert bool(found["position"].warning) is warns
    if warns:
        assert "are clicked at 1" in found["position"].why and found["position"].side == "context"
    assert not found["slots"].warning


def test_init_warns_and_the_spec_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw = random.Random(5)
    log, spec = tmp_path / "log.csv", tmp_path / "log.toml"
    rows = []
    for number in range(3_000):
        item, place = draw.randrange(30), number % 6 + 1
        rows.append(f"{int(draw.random() < 0.4 / place)},{item},{item % 3},{place}")
    log.write_text("click,ad_id,colour,position\n" + "\n".join(rows) + "\n")
    assert run(["init", str(log), "-o", str(spec)]) == 0
    assert "position bias: of position" in capsys.readouterr().err
    written = spec.read_text()
    assert 'colour = { side = "item" }' in written and "send none when ranking" in written
    assert 'fields = ["position"' not in written and run(["train", str(spec), str(log)]) == 0


def test_an_attribute_is_the_user_s_if_it_never_changes_for_one_and_the_request_s_if_it_often_does() -> None:
    draw = random.Random(4)
    users = [str(10_000 + draw.randrange(40)) for _ in range(ROWS)]
    found = guessed(
        click=labels(),
        user_id=users,
        plan=[("gold", "free")[int(user) % 2] for user in users],
        device_age=[str(draw.randrange(5)) for _ in users],
        user_city=[f"c{int(user) % 7}" if row != 9 else "moved" for row, user in enumerate(users)],
        buyer=[str(draw.randrange(200)) for _ in users],  # a number, and an id all the same
        buyer_age=[str(draw.randrange(200)) for _ in users],
    )
    sides = {name: each.side for name, each in found.items() if each.role == "field"}
    assert sides == {
        "plan": "user",
        "device_age": "context",
        "user_city": "user",
        "buyer": "context",
        "buyer_age": "context",
    }
    assert found["plan"].why.endswith("one value for each user_id")
    assert found["device_age"].why.endswith("changes for a user_id")
    assert (found["buyer"].kind, found["buyer_age"].kind) == ("category", "number")


def test_a_map_to_numbers_is_one_set_and_a_record_of_numbers_is_not(tmp_path: Path, capsys) -> None:
    log, spec = tmp_path / "log.jsonl", tmp_path / "log.toml"
    rows = [
        {
            "click": row % 2,
            "interests": {f"t{(row + k) % 10}": k + 1 for k in range(3)},
            "at": {"x": row % 9, "y": 1},
        }
        for row in range(200)
    ]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run(["init", str(log), "-o", str(spec), "--quick"]) == 0
    fields = load_spec(spec).fields
    assert fields["interests"].kind == "set" and set(fields) == {"interests", "x"}
    assert run(["train", str(spec), str(log), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rejected"] == 0


@pytest.mark.parametrize("flags", [[], ["--label", "click"]])
def test_a_label_with_a_few_odd_cells_is_one_and_they_are_named(
    flags: list[str], tmp_path: Path, capsys
) -> None:
    log = tmp_path / "log.csv"
    cells = ["" if row == 50 else "maybe" if row == 70 else str(row % 2) for row in range(200)]
    log.write_text("click,a\n" + "".join(f"{cell},k{row % 3}\n" for row, cell in enumerate(cells)))
    assert run(["init", str(log), *flags]) == 0
    out, err = capsys.readouterr()
    assert "2 of 200 rows have no label in click: empty, 'maybe'; training rejects them" in err
    assert parse_spec(out).input.label == "click"


def test_the_trainer_of_a_server_that_sends_no_position_goes_on(tmp_path: Path) -> None:
    draw = random.Random(5)
    slots = [str(1 + row % 4) for row in range(ROWS)]
    found = guessed(
        click=[str(int(draw.random() < 0.2)) for _ in slots], slot=slots, brand=["a", "b"] * (ROWS // 2)
    )
    assert found["slot"].optional and not found["brand"].optional
    shown = {"request_id": "r1", "ts": 1000, "items": [{"id": "a", "features": {"brand": "a"}}]}
    spec = parse_spec(SpecDraft("log.csv", list(found.values())).text())
    assert resolve_fields(spec, json.dumps(shown).encode()).fields["slot"].optional
