"""Two trainers learn one model, each its partition of the requests: every event once, whatever is killed meanwhile."""

from __future__ import annotations

import json
import random
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftrie.cli import run
from model_store.artefact.artefact import Artefact
from model_store.errors import CheckpointError, StaleEpoch, StoreError
from model_store.spec.spec import parse_spec
from model_store.store import Store
from model_store.versions.rounds import MODEL, PartitionsRecord, contribution, state
from tests.trainer.runs.running import COMPILE_S, NAME, SPEC, Trainer, command_of, once
from tests.waiting import eventually
from tests.worlds import event_logs
from trainer.checkpoint import Description
from trainer.events.events import Chunk
from trainer.events.parse import PartitionShare
from trainer.output import SILENT
from trainer.runs.rounds import MODEL_WAIT_S, Partners, WaitsForPartner
from trainer.sources.redis import StreamSource

REQUESTS = 1000
ROUND = "10m"
ONCE = ("--once", "--reconcile", ROUND, "--every", "1s")


def partition(folder: Path, store_url: str, name: str, *flags: str, state: str) -> Trainer:
    return Trainer(folder, store_url, "--partition", name, *ONCE, *flags, state=state)


def fill(store: Store, requests: int = REQUESTS, more: tuple[bytes, ...] = ()) -> None:
    """Both streams, each entry at the time of its event, as if they had been written then; `more` at the end."""
    logs = event_logs(requests)
    with store.client.pipeline(transaction=False) as pipe:
        for key, lines in (
            (store.impressions(NAME).key, logs.impressions),
            (store.clicks(NAME).key, logs.clicks),
        ):
            for line in lines:
                pipe.xadd(key, {"json": line}, id=f"{json.loads(line)['ts'] * 1000}-*")
        for line in more:
            pipe.xadd(store.impressions(NAME).key, {"json": line}, id="*")
        pipe.execute()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What two partitions learn that nothing disturbs: the model's rows, and the last status of each."""
    folder = tmp_path_factory.mktemp("undisturbed")
    url = f"embedded:{folder / 'store'}"
    with Store.open(url) as store:
        fill(store)
        both = [partition(folder, url, f"{n}/2", "--save", f"{n}.arrow", state=str(n)) for n in (1, 2)]
        last = [each.last() for each in both]
    models = [Artefact.read(folder / f"{n}.arrow").content for n in (1, 2)]
    assert models[0] == models[1]
    for name in ("impressions", "feedback"):  # each request is in one of them
        counts = [status["counts"][name] for status in last]
        assert sum(counts) == REQUESTS and min(counts) > 0.4 * REQUESTS
    for status in last:
        assert status["join"]["joined"] == status["counts"]["feedback"]  # a click is where its impression is
        assert status["join"]["orphans"] == status["join"]["waiting"] == 0
    return {"content": models[0], "last": last}


def same_as(undisturbed: dict[str, Any], folder: Path, last: list[dict[str, Any]]) -> None:
    """The same models and counts. The number of rounds may differ by empty ones, but not between partitions."""
    assert last[0]["round"] == last[1]["round"]
    for number, (status, expected) in enumerate(zip(last, undisturbed["last"], strict=True), 1):
        for name in ("counts", "join", "keys", "dead_letters", "lost"):
            assert status[name] == expected[name], name
        assert Artefact.read(folder / f"{number}.arrow").content == undisturbed["content"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_again_and_again_both_end_with_the_model_of_a_run_in_peace(
    tmp_path: Path, store: Store, store_url: str, undisturbed: dict[str, Any]
) -> None:
    """Of the last that is killed, a spare on another machine takes the partition over."""
    fill(store)
    chance, rounds = random.Random(1), undisturbed["last"][0]["round"]

    def start(number: int, name: str = "", state: str = "") -> Trainer:
        save = ("--save", f"{number}.arrow")
        return partition(tmp_path, store_url, name or f"{number}/2", *save, state=state or str(number))

    both = [start(1), start(2)]
    for left, stop in zip(
        (3, 2, 1, 0), sorted(chance.randrange(1, rounds // 2) for _ in range(4)), strict=True
    ):
        number = chance.randrange(2) if left else 1
        victim = both[number]
        victim.until("round", stop)
        victim.kill()
        both[number] = start(number + 1) if left else start(2, "any/2", "elsewhere")
    same_as(undisturbed, tmp_path, [each.last() for each in both])
    assert [each.name for each in (tmp_path / "elsewhere").glob("partition-*")] == ["partition-2"]


@pytest.mark.slow
def test_a_pair_that_has_ended_ends_again_one_by_one_and_what_it_cannot_merge_is_refused_by_name(
    tmp_path: Path,
    store: Store,
    store_url: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill(store, 100)
    both = [partition(tmp_path, store_url, f"{n}/2", state=str(n)) for n in (1, 2)]
    read = StreamSource.read

    def late(source: StreamSource) -> Chunk | None:  # it began another round before it had read
        time.sleep(0.2)
        return read(source)

    monkeypatch.setattr(StreamSource, "read", late)
    for number, before in enumerate([each.last() for each in both], 1):
        again = once(tmp_path, store_url, *ONCE[1:], "--partition", f"{number}/2", state=str(number))
        assert (again["round"], again["counts"]) == (before["round"], before["counts"])
    for flags, learner, says in (
        (("1/3",), "", "hotels is learned in 2 partitions; to change it, stop all trainers"),
        (("1/2", "--reconcile", "5m"), "", "are merged every 600s"),
        (("1/2",), "[learner]\nalpha = 0.5\n", "learner.alpha was 0.1, is 0.5"),
        (("1/2",), '[learner]\nttl = "7d"\n', "ttl = 7d"),
        (("3/2",), "", "expected I/N or any/N"),
    ):
        command = command_of(tmp_path, store_url, "other", (*ONCE, "--partition", *flags), learner)
        assert run(command) in (2, 3, 7) and says in capsys.readouterr().err


def test_one_starts_where_what_it_needs_cannot_be_deleted_any_more(store: Store) -> None:
    """Once all have written the state of a round, partition 1 deletes what is before it, at any moment."""
    rounds, lease = store.rounds(NAME), store.trainer_lease(NAME, "owner", 2)
    lease.take()
    record = PartitionsRecord(start=1, partitions=2, every_us=1, spec="{}", saved=10, oldest=10)
    rounds.write_record(record)
    second = Partners(store, parse_spec(SPEC), PartitionShare(2, 2), 1, lease, SILENT)

    def has(number: int, part: str) -> None:
        rounds.put(record, number, part, b"", lease)

    assert second._resumable(record, 11) == 11
    has(15, state(2))
    assert second._resumable(record, 11) == 11, "the store has lost what it contributed: it is learned again"
    for number in range(11, 15):
        has(number, contribution(2))
    with pytest.raises(WaitsForPartner, match="partition 2/2 of hotels has learned all before round 15"):
        second._resumable(record, 11)
    has(15, MODEL)
    assert second._resumable(record, 11) == 15
    has(20, state(2))
    rounds.delete(record, 11, [contribution(2)])
    assert second._resumable(record, 11) == 11
    rounds.write_record(replace(record, saved=15))
    with pytest.raises(WaitsForPartner, match="round 20"):
        second._resumable(record, 11)  # it was deleted because all had come to 15
    assert second._resumable(record, 20) == 20


def test_a_state_that_the_store_did_not_take_is_written_again_while_others_are_waited_for(
    store: Store,
) -> None:
    """Else the spare of a lost partition waits for partition 1, and partition 1 for the spare, for ever."""
    rounds, spec = store.rounds(NAME), parse_spec(SPEC)
    record = PartitionsRecord(start=1, partitions=2, every_us=1, spec=spec.to_json())
    rounds.write_record(record)
    leases = [store.trainer_lease(NAME, f"owner {number}", number) for number in (1, 2)]
    for lease in leases:
        lease.take()
    first, second = (
        Partners(store, spec, PartitionShare(number, 2), 1, lease, SILENT)
        for number, lease in enumerate(leases, 1)
    )
    first._record = record
    described = Description("", "", spec.to_json(), spec.to_json(), (), 0, 0, 0.0, ())
    store.client.config_set("maxmemory", "1")
    try:
        with pytest.raises(StoreError, match="maxmemory"):
            first.save(5, described, {}, (), dict)
    finally:
        store.client.config_set("maxmemory", "0")
    for number in range(5):
        rounds.put(record, number, contribution(2), b"", leases[1])
    rounds.put(record, 5, state(2), b"", leases[1])
    with pytest.raises(WaitsForPartner, match="before round 5.*cannot write the model"):
        second._resumable(record, 0)
    # Partition 1 was killed meanwhile, and its own checkpoint is of a later round: it cannot write the model any more.
    rounds.put(record, 5, contribution(1), b"", leases[0])
    second._waits_since_s = time.monotonic() - MODEL_WAIT_S - 1
    assert second._resumable(record, 0) == 0
    first.restore(5)
    assert second._resumable(record, 0) == 5
    rounds.write_record(replace(record, saved=10, oldest=5))
    with pytest.raises(CheckpointError, match="waits in round 7, and the others have gone on from round 10"):
        first.restore(7)
    # ... with another trainer of partition 1, while this one slept: nothing is to be started again.
    leases[0].release()
    store.trainer_lease(NAME, "a spare", 1).take()
    with pytest.raises(StaleEpoch, match="another trainer has taken over hotels"):
        first.restore(7)


@pytest.mark.slow
def test_one_that_slept_beyond_its_lease_contributes_nothing_more(tmp_path, store, store_url, undisturbed):
    fill(store)
    first = partition(tmp_path, store_url, "1/2", "--save", "1.arrow", state="1")
    sleeper = partition(tmp_path, store_url, "2/2", state="2")
    sleeper.until("round", 3)
    sleeper.process.send_signal(signal.SIGSTOP)
    eventually(lambda: bool(first.status()["warnings"]), "a warning of the one that waits", COMPILE_S)
    assert "waiting in round" in first.status()["warnings"][0]
    assert "partition 2" in first.status()["warnings"][0]
    spare = partition(tmp_path, store_url, "any/2", "--save", "2.arrow", state="elsewhere")
    same_as(undisturbed, tmp_path, [first.last(), spare.last()])
    sleeper.process.send_signal(signal.SIGCONT)
    assert sleeper.wait() == 5
    assert "another trainer has taken over partition 2 of hotels" in sleeper.said()


@pytest.mark.slow
def test_dead_letters_and_online_metrics_are_those_of_one_trainer(tmp_path, store: Store, store_url) -> None:
    bad = tuple(b'{"request_id": "bad-%d", "ts": "never"}' % n for n in range(40)) + (b"no event", b"[]")
    fill(store, 300, bad)
    one = once(tmp_path, store_url, state="one")
    letters = {letter.json for _, letter in store.dead_letters(NAME).latest(1000)}
    cells = online_cells(store)
    assert len(letters) == one["dead_letters"] == len(bad)
    store.client.delete(store.dead_letters(NAME).key, *store.client.scan_iter(f"ftrie:{{{NAME}}}:outcomes:*"))
    both = [partition(tmp_path, store_url, f"{n}/2", state=str(n)) for n in (1, 2)]
    last = [each.last() for each in both]
    found = [letter.json for _, letter in store.dead_letters(NAME).latest(1000)]
    assert len(found) == len(bad) and set(found) == letters
    assert sum(status["dead_letters"] for status in last) == len(bad)
    assert all(status["dead_letters"] for status in last) and online_cells(store) == cells
    first, second = (status["outcomes"] for status in last)
    assert any(whole["clicks"] for whole in one["outcomes"].values())
    for name, whole in one["outcomes"].items():
        for count in ("requests", "impressions", "clicks", "conversions"):
            assert sum(each[name][count] for each in (first, second) if name in each) == whole[count]
        assert (first[name]["ctr"], first[name]["calibration"]) == (whole["ctr"], whole["calibration"])
        assert name not in second or second[name]["ctr"] is second[name]["calibration"] is None


def online_cells(store: Store) -> dict[bytes, Any]:
    keys = sorted(store.client.scan_iter(f"ftrie:{{{NAME}}}:outcomes:*"))
    assert keys
    return {key: store.client.hgetall(key) for key in keys}
