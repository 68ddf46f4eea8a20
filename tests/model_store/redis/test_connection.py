"""What a user reads when there is no store behind a URL, or one that goes away, is silent or refuses."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ftrie.demo.processes import free_port
from model_store.errors import StoreError, StoreUnavailable
from model_store.keys import ModelKeys
from model_store.redis.embedded import EmbeddedValkey
from model_store.store import Store
from model_store.store_check import Finding
from model_store.streams.feedback import Event, Reported
from model_store.versions.audit import By
from model_store.versions.experiments import Experiment
from model_store.versions.lease import TrainerLease
from model_store.versions.rounds import PartitionsRecord, contribution
from tests.model_store.models import ROOT, model
from tests.stalling import Line


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[EmbeddedValkey]:
    held = EmbeddedValkey.join(tmp_path)
    yield held
    held.close()


def test_nobody_listening_is_unavailable_and_says_what_to_check_but_no_password() -> None:
    port = free_port()
    says = rf"redis://me:…@127.0.0.1:{port}/0 does not answer .*is it running"
    with pytest.raises(StoreUnavailable, match=says) as caught:
        Store.open(f"redis://me:s3cr3t@127.0.0.1:{port}/0")
    assert "s3cr3t" not in str(caught.value)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(StoreUnavailable, match="Timeout"):
            Store.open(f"redis://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.05)
    for url in ("cluster://127.0.0.1:1,127.0.0.1:2", "sentinel://127.0.0.1:1/shop"):
        with pytest.raises(StoreUnavailable, match="does not answer"):
            Store.open(url)


def test_a_store_that_goes_away_is_unavailable_on_every_path_and_answers_again_when_it_is_back(
    valkey: EmbeddedValkey,
) -> None:
    with Store.open(f"unix://{valkey.socket}") as store, Store.open(f"embedded:{valkey.directory}") as other:
        store.records.put_users([("u", {"age": "25"})])
        assert other.records.user("u") == {"age": "25"}
        other.close()
        valkey.close()
        for ask in (
            store.ping,
            store.model("ads").active,
            lambda: store.records.user("u"),
            lambda: store.records.items(["a"]),
            lambda: list(store.records.scan_items()),
            lambda: store.records.put_users([("u", {})]),
        ):
            with pytest.raises(StoreUnavailable):
                ask()
        again = EmbeddedValkey.join(valkey.directory)
        assert store.records.user("u") == {"age": "25"}
        assert store.model("ads").active() is None
        again.close()


def test_what_the_store_refuses_or_answers_with_an_error_is_said(valkey: EmbeddedValkey) -> None:
    with Store.open(f"unix://{valkey.socket}") as store:
        store.client.set("ftrie:user:u", "no hash")
        with pytest.raises(StoreError, match=r"answered with an error: .*WRONGTYPE"):
            store.records.user("u")
        assert store.records.user("w") == {}
        store.client.config_set("requirepass", "right")
        try:
            with pytest.raises(StoreUnavailable, match="refused the name or password"):
                Store.open(f"unix://:wrong@{valkey.socket}")
        finally:
            store.client.config_set("requirepass", "")


Change = Callable[[Store, str], object]
CHANGES: list[tuple[bytes, Change]] = [
    (b"EVALSHA", lambda store, name: store.model(name).publish(model())),  # publish.lua
    (b"EVALSHA", lambda store, name: store.model(name).activate(1)),  # activate.lua
    (b"EVALSHA", lambda store, name: store.model(name).publish_and_activate(model())),
    (b"EVALSHA", lambda store, name: store.model(name).activate(1)),
    (b"EVALSHA", lambda store, name: store.model(name).activate(2, epoch=store.model(name).begin())),
    (b"EVALSHA", lambda store, name: store.model(name).go_back()),
    (
        b"EVALSHA",
        lambda store, name: store.model(name).experiments.write(Experiment()).revision,
    ),  # experiment.lua
    (b"EVALSHA", lambda store, name: store.model(name).experiments.clear().revision),
    (b"EVALSHA", lambda store, name: _lease(store, name).losses),  # lease.lua
    (b"EVALSHA", lambda store, name: store.model(name).activate(2)),  # pinned
    (b"EVALSHA", lambda store, name: store.model(name).resume()),  # resume.lua
    (b"EVALSHA", lambda store, name: store.model(name).guard.refuse([1, 2, 99], "of a test")),  # refuse.lua
    (b"EVALSHA", lambda store, name: store.model(name).guard.count_refused()),  # guard.lua
    (b"EVALSHA", lambda store, name: store.model(name).guard.note_rollback(2, 1, "of a test")),
    (
        b"EVALSHA",
        lambda store, name: store.model(name).audit.write(By("a tool"), "activate", 1, 2),
    ),  # audit.lua
    (b"EVALSHA", lambda store, name: _round_part(store, name)),  # round.lua
    (b"EVALSHA", lambda store, name: _reported(store, name)),  # feedback.lua
    (b"EXEC", lambda store, name: _collected(store, name)),
    (b"EXEC", lambda store, name: [found.repaired for found in _repaired(store, name)]),
]


def _lease(store: Store, name: str) -> TrainerLease:
    """A trainer's lease that the store has lost and gets again."""
    lease = store.trainer_lease(name, "folder")
    lease.epoch = 7
    lease.renew()
    return lease


def _round_part(store: Store, name: str) -> str:
    record = PartitionsRecord(start=1, partitions=2, every_us=60_000_000, spec="{}")
    lease = store.trainer_lease(name, "another", 2)
    lease.epoch = 8
    return store.rounds(name).put(record, 0, contribution(2), b"bytes", lease)


def _reported(store: Store, name: str) -> Reported:
    feedback = store.feedback()
    try:
        return feedback.report(name, [Event("r1", "a"), Event("r1", "a"), Event("r1", "b")])
    finally:
        feedback.close()


def _collected(store: Store, name: str) -> list[int]:
    versions = [store.model(name).publish(model()) for _ in range(3)]
    gone = store.model(name).gc(keep=1)
    assert gone == versions[:2]
    return gone


def _repaired(store: Store, name: str) -> list[Finding]:
    store.client.hset(ModelKeys(name).experiment, "salt", b"\xff")
    return store.check([name], repair=True)


def _left(store: Store, name: str) -> dict[str, object]:
    """What the changes have left of a model, without times and tokens."""
    versions = store.model(name)
    guard = replace(versions.guard.record(), when_us=0)
    streams = [store.event_stream(getattr(ModelKeys(name), each)) for each in ("events", "clicks", "audit")]
    return {
        "active": (versions.active(), versions.history(), versions.pinned()),
        "versions": [(each.version, each.refused) for each in versions.versions()],
        "experiment": replace(versions.experiment() or Experiment(), updated=None, assigned=None),
        "guard": guard,
        "entries": [len(stream.latest(100)) for stream in streams],
    }


def test_a_change_whose_answer_was_lost_is_made_once_and_gives_its_answer(
    store: Store, store_url: str
) -> None:
    line = Line(f"{store_url.removeprefix('embedded:')}/valkey.sock")
    try:
        with Store.open(line.url) as far:
            for number, (command, change) in enumerate(CHANGES):
                expected, before = change(store, "near"), line.connections
                line.loses = command
                assert change(far, "far") == expected, f"change {number}"
                assert line.loses is None and line.connections > before, f"change {number} lost no answer"
                assert _left(far, "far") == _left(store, "near"), f"change {number}"
    finally:
        line.close()
    # What renumbers a stream is queued in a transaction that watches it.
    scripts = {path.stem for path in ROOT.glob("model_store/**/*.lua")} - {"checks", "once", "renumber"}
    named = set(re.findall(r"# (\w+)\.lua", Path(__file__).read_text()))
    assert named == scripts
