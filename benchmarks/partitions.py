"""Two trainers of one model beside one: a backlog from the store's streams, log-loss, and how soon an event is served.

python -m benchmarks.partitions

The trainers are processes. A backlog is timed from a common start to the end of the slower one, without starting the
processes; its rounds are of a minute of the events' time. Freshness is the time from writing an impression and its
click to the first version that has a key which only they have, with rounds of five seconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np

from benchmarks.common import Spread, report
from benchmarks.loop_trainer import SHOWN, click_line, impression_line
from ftrie.demo.market import CLICK, SPEC, AnsweredVisit, Market, visit
from ftrie.demo.settings import MODEL, Habits
from model_store.spec.spec import load_spec
from model_store.store import Store
from model_store.waiting import StopRequest
from trainer.events.parse import PartitionShare
from trainer.output import SILENT
from trainer.runs.status import Status
from trainer.runs.trainer import Trainer
from trainer.runs.warmup import compile_trainer
from trainer.settings import Every, TrainerOptions

VISITS = 50_000
ROUNDS = 3
HABITS = Habits(rate=250.0)
FRESH_S, FRESH_RATE, FRESH_ROUND_S = 60.0, 20.0, 5
FRESH_SPEC = """[model]
name = "fresh"
[input]
label = "click"
[fields]
tag = { side = "item" }
[learner]
l1 = 0.0
"""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="ftrie-") as folder:
        url = f"embedded:{folder}/store"
        with Store.open(url) as store:
            events = _fill(store)
            rounds = [_round(url, Path(folder) / str(number)) for number in range(ROUNDS)]
        rows: list[tuple[object, ...]] = []
        for name, index in (("one trainer", 0), ("two partitions", 1)):
            seconds = Spread.of([each[index]["seconds"] for each in rounds])
            cpu = Spread.of([each[index]["cpu"] for each in rounds])
            rates = [round(VISITS * SHOWN / s) for s in (seconds.median, seconds.high, seconds.low)]
            rows.append((name, "examples/s", *rates))
            rows.append(
                (name, "CPU s of all trainers", *(round(s, 2) for s in (cpu.median, cpu.low, cpu.high)))
            )
            rows.append((name, "progressive log-loss", *[round(rounds[0][index]["logloss"], 5)] * 3))
        for number, seconds_of in _freshness(Path(folder)).items():
            low, median, high = np.percentile(seconds_of, (5, 50, 95))
            rows.append(
                (
                    f"freshness of partition {number}",
                    "s (5 %, 95 %)",
                    *(round(s, 2) for s in (median, low, high)),
                )
            )
    title = f"{events:,} events ({VISITS * SHOWN:,} examples), by one trainer and by two partitions; {ROUNDS} rounds"
    report("partitions", title, ("what", "of", "median", "low", "high"), rows)


def _round(url: str, folder: Path) -> tuple[dict[str, float], dict[str, float]]:
    """One trainer, then two partitions, over the same backlog."""
    with Store.open(url) as store:
        for key in store.client.scan_iter(f"ftrie:{{{MODEL}}}:*"):
            if key not in (store.impressions(MODEL).key.encode(), store.clicks(MODEL).key.encode()):
                store.client.unlink(key)
    return _learned(url, folder, ["-"]), _learned(url, folder, ["1/2", "2/2"])


def _learned(url: str, folder: Path, partitions: list[str]) -> dict[str, float]:
    """Start a process for each, let them begin together, and add up what they say."""
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.partitions", url, str(folder / name.replace("/", "-")), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in partitions
    ]
    for child in children:
        assert child.stdin is not None and child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    said = [json.loads(child.communicate()[0]) for child in children]
    examples = sum(each["examples"] for each in said)
    assert examples == VISITS * SHOWN
    return {
        "seconds": max(each["seconds"] for each in said),
        "cpu": sum(each["cpu"] for each in said),
        "logloss": sum(each["logloss"] * each["examples"] for each in said) / examples,
    }


def child(url: str, folder: str, partition: str) -> None:
    """One trainer of a backlog, opened and then started by a line on standard input; prints the result."""
    number, slash, count = partition.partition("/")
    options = TrainerOptions(
        store=url, sources=("store",), checkpoint=Path(folder), every=Every.parse("1h"), publish=False, activate=False,
        once=True, say_every_s=1e9,
        partition=(int(number), int(count)) if slash else None,
    )  # fmt: skip
    last: list[Status] = []
    out = sys.stdout
    with (
        redirect_stdout(StringIO()),
        redirect_stderr(StringIO()),
        StopRequest() as stop,
        ExitStack() as stack,
    ):
        trainer = Trainer(load_spec(SPEC), options, stop, last.append)
        trainer.open(stack)
        compile_trainer(load_spec(SPEC), SILENT)
        print("ready", file=out, flush=True)
        sys.stdin.readline()
        began, cpu = time.perf_counter(), time.process_time()
        trainer.begin(stack)
        trainer.go()
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        trainer.end()
    (metrics, *_) = last[-1].variants.values()
    print(
        json.dumps(
            {"seconds": seconds, "cpu": cpu, "examples": last[-1].examples, "logloss": metrics.logloss}
        ),
        file=out,
    )


def _fill(store: Store) -> int:
    """What servers and visitors would have written, each entry at the time at which it would have come."""
    market, began = Market(1), time.time() - VISITS / HABITS.rate - 60.0
    entries: list[tuple[float, str, bytes]] = []
    for number in range(VISITS):
        one = visit(market, HABITS, number)
        seen, at = AnsweredVisit(market, one, np.arange(SHOWN), np.full(SHOWN, 0.1)), began + one.due_s
        entries.append((at, store.impressions(MODEL).key, impression_line(market, seen, at)))
        for each in seen.reactions():
            if each.event == CLICK and at + each.after_s < began + VISITS / HABITS.rate + 30.0:
                entries.append(
                    (
                        at + each.after_s,
                        store.clicks(MODEL).key,
                        click_line(number, each.item, at + each.after_s),
                    )
                )
    entries.sort(key=lambda entry: entry[0])
    for first in range(0, len(entries), 1000):
        with store.client.pipeline(transaction=False) as pipe:
            for at, key, line in entries[first : first + 1000]:
                pipe.xadd(key, {"json": line}, id=f"{int(at * 1000)}-*")
            pipe.execute()
    return len(entries)


def _freshness(folder: Path) -> dict[int, list[float]]:
    """For each partition, the seconds from an event of its to a version that has learned it."""
    (folder / "fresh.toml").write_text(FRESH_SPEC)
    url = f"embedded:{folder}/fresh"
    with Store.open(url) as store:
        command = [sys.executable, "-m", "ftrie", "trainer", "fresh.toml", "--store", url]
        command += ["--reconcile", f"{FRESH_ROUND_S}s"]
        trainers = [
            subprocess.Popen(
                [*command, "--partition", f"{n}/2", "--checkpoint", f"f{n}"],
                cwd=folder,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for n in (1, 2)
        ]
        try:
            return _watched(store)
        finally:
            for each in trainers:
                each.terminate()
                each.wait()


def _watched(store: Store) -> dict[int, list[float]]:
    """Write events at a steady rate, and look at the active version all the time."""
    versions, written = store.model("fresh"), dict[bytes, tuple[int, float]]()
    found: dict[int, list[float]] = {1: [], 2: []}
    number, looked = 0, 0
    while versions.active() is None:  # they start
        _write(store, number)
        number += 1
        time.sleep(0.2)
    began, first = time.time(), number
    while (now := time.time()) < began + FRESH_S + 2 * FRESH_ROUND_S:
        if now < began + FRESH_S and number - first < (now - began) * FRESH_RATE:
            written[f"tag=t{number}".encode()] = _write(store, number), now
            number += 1
        version = versions.active()
        if version is not None and version != looked:
            looked = version
            for key in written.keys() & set(versions.materialise(version).key_array().to_pylist()):
                partition, at = written.pop(key)
                found[partition].append(time.time() - at)
        time.sleep(0.01)
    return found


def _write(store: Store, number: int) -> int:
    """One impression with a tag of its own, and a click; the partition that it belongs to."""
    now = time.time()
    items = [{"id": "a", "features": {"tag": f"t{number}"}}]
    line = json.dumps({"request_id": f"r{number}", "ts": now, "items": items}).encode()
    store.impressions("fresh").append([line])
    store.clicks("fresh").append([json.dumps({"request_id": f"r{number}", "ts": now, "item": "a"}).encode()])
    return 1 if PartitionShare(1, 2).mine(line + b"\n", np.array([0, len(line) + 1], np.int64))[0] else 2


if __name__ == "__main__":
    main() if len(sys.argv) == 1 else child(*sys.argv[1:])
