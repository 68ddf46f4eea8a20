"""A trainer that begins before its events are what they will be."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from ftrie.cli import run
from model_store.errors import SpecError, Stopped
from model_store.spec.spec import parse_spec
from model_store.store import Store
from model_store.waiting import StopRequest
from tests.trainer.runs.running import COMPILE_S, NAME, Trainer, command_of
from tests.waiting import eventually
from tests.worlds import event_logs
from trainer.runs.first_events import resolve_by_impressions


@pytest.mark.slow
def test_a_field_that_the_first_impressions_lack_is_waited_for(store: Store, store_url, tmp_path) -> None:
    lines = event_logs(20).impressions
    without = json.loads(lines[0])
    del without["context"]["device"]
    stream = store.impressions(NAME)
    stream.append([json.dumps(without).encode()])
    trainer = Trainer(tmp_path, store_url)
    eventually(lambda: "waiting" in trainer.said(), "it waits", COMPILE_S)
    assert "fields.device: no impression so far has 'device'" in trainer.said()
    stream.append(lines[1:])
    trainer.until("events", 20)
    trainer.terminate()


def test_a_field_that_a_hundred_impressions_lack_is_a_mistake_and_a_file_that_is_not_there_is_named(
    store: Store, store_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = [json.loads(line) for line in event_logs(120).impressions]
    for each in shown:
        del each["context"]["device"]
    store.impressions(NAME).append([json.dumps(each).encode() for each in shown])
    assert run(command_of(tmp_path, store_url)) == 2
    assert "fields.device: no impression so far has 'device'; they have: " in capsys.readouterr().err
    assert run(command_of(tmp_path, store_url, flags=("--from", "typo.jsonl", "--once"))) == 3
    assert "typo.jsonl: there is no such file" in capsys.readouterr().err


def test_long_impressions_are_enough_before_they_are_a_hundred(store: Store, tmp_path: Path) -> None:
    """One look at a file brings about a MiB of it: a hundred of these would never be seen."""
    shown = {
        "request_id": "r",
        "ts": 1_700_000_000,
        "items": [{"id": "a"}],
        "context": {"text": "x" * 30_000},
    }
    log = tmp_path / "events.jsonl"
    log.write_text((json.dumps(shown) + "\n") * 60)
    spec = parse_spec('[model]\nname = "x"\n[input]\nlabel = "click"\n[fields]\ncolour = {}\n')
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGTERM)  # to wait is to end
        with pytest.raises(SpecError, match="no impression so far has 'colour'"):
            resolve_by_impressions(spec, [str(log)], store, stop)


def test_fields_learn_from_the_first_items_shown(store: Store, tmp_path: Path) -> None:
    """Of both sources in the order of time; a trainer waits for enough of them, and not with `once`."""
    events = [
        {"request_id": f"r{n}", "ts": 1_700_000_000 + n, "items": [{"id": i, "price": n} for i in "ab"]}
        for n in range(600)
    ]
    logs = [tmp_path / "even.jsonl", tmp_path / "odd.jsonl"]
    for number, log in enumerate(logs):
        log.write_text("".join(f"{json.dumps(event)}\n" for event in events[number::2]))
    spec = parse_spec(
        '[model]\nname = "x"\n[input]\nlabel = "click"\n'
        '[fields]\nprice = { side = "item", kind = "number", bucket = "quantile:3" }\n'
    )
    with StopRequest() as stop:
        resolved = resolve_by_impressions(spec, [str(log) for log in logs], store, stop)
        assert resolved.fields["price"].learned == (200.0, 400.0)
        logs[0].write_text(f"{json.dumps(events[0])}\n{json.dumps(events[7])}\n")
        known = resolve_by_impressions(spec, [str(logs[0])], store, stop, known=[resolved])
        assert known == resolved
        few = resolve_by_impressions(spec, [str(logs[0])], store, stop, once=True)
        assert few.fields["price"].learned == (7.0,)
        signal.raise_signal(signal.SIGTERM)  # to wait is to end
        with pytest.raises(Stopped):
            resolve_by_impressions(spec, [str(logs[0])], store, stop)
