"""`make soak MINUTES=30`: the whole loop under load, kills and churn; nothing may grow.

A Valkey, a trainer, two servers and visitors run as processes of their own (tests/chaos/loop.py). An operator puts
items that come and go, sets experiments, activates, rolls back and resumes; new users ask over connections that are
opened for one call; processes are killed with SIGKILL. Every few seconds the size of everything that could grow is
sampled. Through each figure of the last two thirds a least-squares line is fitted: a slope that is neither within its
noise nor small over that time is an error, as is an entry of a stream that was not learned from exactly once, or a
finding of `ftrie store check`.

What ftrie keeps for a bounded time has its bound set low, or the run would have to last as long: closed requests,
streams, cached users; and the ids of reported feedback, whose day has no setting: the operator lets them expire after
two minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from redis.exceptions import RedisError

from ftrie.api.access import CallFailed
from ftrie.api.client import Client
from ftrie.api.feedback import Feedback
from model_store.errors import StoreError, StoreUnavailable
from model_store.store import Store
from tests.chaos.loop import FTRIE, MODEL, WINDOW_S, Process, WholeLoop, begin, learned
from tests.chaos.test_chaos import balance, settle
from tests.waiting import eventually

EVERY_S = 5.0
TICK_S = 0.5
KNOWN_MS = 120_000
"""How long the ids of feedback are kept here."""
SHORT = 'late_within = "1m"\n[learner]\nttl = "1m"'
"""How long the trainer remembers closed requests (an hour) and keys that are not seen (for good)."""
SEASONAL = 40
"""Items that are there at once beside the market's own; each is removed when as many have come after it."""
SHARE = 0.05
"""A growth over the measured time below this share of the mean is no growth."""
GRAIN = {
    "rss_mib": 3.0,
    "descriptors": 5.0,
    "threads": 2.0,
    "memory_mib": 1.0,
    "keys": 300.0,
    "length": 150.0,
    "disk_mib": 2.0,
}
"""Nor is one below this: Redis trims streams in blocks of 100 entries, and kept versions are whole snapshots."""
ERRORS = 3.0
"""Nor is one within so many standard errors of the slope."""
MOST_ALIKE = 0.9
"""Of consecutive samples. More, and one step that stays would be noise."""
FILLING = frozenset({("valkey", "descriptors"), ("traffic", "rss_mib")})
"""What has a bound that such a run does not reach: a connection of each thread of the servers, which they open one by
one and where they are measured too; the newest 200,000 delays, which `ftrie simulate` keeps for its summary."""
LOGS = frozenset({"audit", "events", "changes", "dead"})
"""Streams with a fixed bound above what such a run writes (docs/redis_keys.md). Their memory counts."""

# When each of these is killed, as shares of the run: what lives long shows what grows. The others die all the time.
KILLS = {
    "valkey": (0.03, 0.12, 0.25, 0.32, 0.6, 0.8),
    "trainer": (0.06, 0.18, 0.3, 0.66),
    "traffic": (0.1, 0.28, 0.7),
}
OFTEN_S = 15.0

Points = list[tuple[float, float]]


# -- what grows


@dataclass(frozen=True)
class Slope:
    """One figure of one part over the measured time. growth: the slope times that time; lives: processes measured."""

    part: str
    figure: str
    mean: float
    per_hour: float
    growth: float
    error: float
    lives: int

    @property
    def allowed(self) -> float:
        return max(SHARE * self.mean, GRAIN[self.figure], ERRORS * self.error)

    @property
    def is_flat(self) -> bool:
        return self.growth <= self.allowed


class Series:
    """Samples, each a line of this file: who holds them in memory grows with them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.unlink(missing_ok=True)

    def add(self, at_s: float, part: str, life: int, figures: Mapping[str, float]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps([at_s, part, life, figures]) + "\n")

    def slopes(self, from_s: float, to_s: float) -> list[Slope]:
        """Of each figure of each part. A process that was started again is another life of its part."""
        points = defaultdict[tuple[str, str], defaultdict[int, Points]](lambda: defaultdict(list))
        for line in self.path.read_text().splitlines():
            at_s, part, life, figures = json.loads(line)
            for figure, value in figures.items():
                points[part, figure][life].append((at_s, value))
        found = [slope_of(*name, lives.values(), from_s, to_s) for name, lives in sorted(points.items())]
        return [slope for slope in found if slope is not None]


def slope_of(part: str, figure: str, lives: Iterable[Points], from_s: float, to_s: float) -> Slope | None:
    """One slope through all lives, each with a mean of its own; None if none was long enough.

    A process grows when it starts: the first third of each life is left out.
    """
    span_s = to_s - from_s
    values, xs, ys = [], [], []
    for points in lives:
        begun_s = points[0][0] + (points[-1][0] - points[0][0]) / 3
        within = [point for point in points if max(from_s, begun_s) <= point[0] <= to_s]
        if len(within) < 8 or within[-1][0] - within[0][0] < span_s / 8:
            continue
        x, y = np.array(within).T
        values.append(y)
        xs.append(x - x.mean())
        ys.append(y - y.mean())
    if not xs:
        return None
    x, y = np.concatenate(xs), np.concatenate(ys)
    slope = float(x @ y / (x @ x))
    rest = y - slope * x
    error = float(np.sqrt(rest @ rest / max(1, len(x) - 2) / (x @ x)))
    # Samples resemble the one before: r is by how much, and the error is larger accordingly.
    r = float(rest[1:] @ rest[:-1] / (rest @ rest)) if rest.any() else 0.0
    r = min(max(r, 0.0), MOST_ALIKE)
    error *= float(np.sqrt((1 + r) / (1 - r)))
    mean = float(np.concatenate(values).mean())
    return Slope(part, figure, mean, slope * 3600, slope * span_s, error * span_s, len(xs))


def usage(pid: int) -> dict[str, float]:
    """What a process holds. Raises OSError or ProcessLookupError if it is gone."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {
        "rss_mib": int(status["VmRSS"].split()[0]) / 1024,
        "descriptors": float(len(os.listdir(f"/proc/{pid}/fd"))),
        "threads": float(status["Threads"]),
    }


def children(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            yield int(child)
            yield from children(int(child))


def disk_mib(folder: Path) -> float:
    """The bytes of all files that exist while they are counted."""
    total = 0
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += file.stat().st_blocks * 512 if file.is_file() else 0
    return total / 2**20


def store_figures(store: Store) -> dict[str, dict[str, float]]:
    client = store.client
    figures = {
        "store": {
            "memory_mib": client.info("memory")["used_memory"] / 2**20,
            "keys": float(client.dbsize()),
        }
    }
    for kind, length in (("stream", client.xlen), ("list", client.llen)):
        for key in client.scan_iter(count=1000, _type=kind):
            if key.decode().rpartition(":")[2] not in LOGS:
                figures[key.decode()] = {"length": float(length(key))}
    return figures


class Sampler:
    """Samples the loop and this process, which has the clients, in a thread of its own."""

    def __init__(self, whole: WholeLoop, series: Series, began_s: float) -> None:
        self._whole, self._series, self._began_s = whole, series, began_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.samples = 0
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(EVERY_S):
            self._sample(time.monotonic() - self._began_s)
            self.samples += 1

    def _sample(self, at_s: float) -> None:
        self._process(at_s, "operator", os.getpid())
        for process in self._whole.everything():
            self._process(at_s, process.name, process.pid)
            if process in self._whole.servers:
                with suppress(OSError, ValueError):
                    for child in children(process.pid):
                        self._process(at_s, f"{process.name}'s worker", child)
        for folder in ("state", "serve-0", "serve-1", "impressions"):
            self._series.add(at_s, folder, 0, {"disk_mib": disk_mib(self._whole.folder / folder)})
        # While it is away or loads its file there is no sample of the store.
        with suppress(StoreError, RedisError), Store.open(self._whole.valkey.url, timeout_s=2.0) as store:
            for part, figures in store_figures(store).items():
                self._series.add(at_s, part, 0, figures)

    def _process(self, at_s: float, name: str, pid: int) -> None:
        with suppress(OSError, KeyError):  # it has just been killed
            self._series.add(
                at_s, name, pid, {k: v for k, v in usage(pid).items() if (name, k) not in FILLING}
            )


# -- what happens meanwhile


class Operator:
    """Changes what an operator changes, one thing at each step, and asks as a user who has never been here."""

    def __init__(self, whole: WholeLoop, chance: random.Random) -> None:
        self._chance = chance
        self._store = Store.open(whole.valkey.url, timeout_s=2.0)
        self._addresses = [f"127.0.0.1:{port}" for port in whole.ports]
        self._balanced = Client(",".join(self._addresses), 2.0)
        self._numbers = count()
        self.done: Counter[str] = Counter()
        self._steps: list[Callable[[int], object]] = [
            self._season,
            self._new_user,
            self._experiment,
            self._new_user,
            self._roll_back,
            self._new_user,
            self._resume,
            self._new_user,
            self._activate,
            self._forget,
        ]

    def step(self) -> None:
        number = next(self._numbers)
        step = self._steps[number % len(self._steps)]
        name = getattr(step, "__name__", "").strip("_")
        try:
            step(number)
        except (StoreUnavailable, RedisError):
            self.done[f"{name}: store away"] += 1
        except CallFailed as error:
            self.done[f"{name}: {error.code.name}"] += 1
        except StoreError as error:
            # A version that was deleted or refused between its reading and its activation.
            self.done[f"{name}: {type(error).__name__}"] += 1
        else:
            self.done[name] += 1

    def end(self) -> None:
        """Nothing pinned, no experiment: the last version becomes active."""
        versions = self._store.model(MODEL)
        versions.experiments.clear()
        versions.resume()
        self._balanced.close()
        self._store.close()

    def _season(self, number: int) -> None:
        record = {"brand": "season", "category": "books", "price": str(number % 90 + 1)}
        new, old = f"season-{number}", f"season-{number - SEASONAL * len(self._steps)}"
        self._store.records.put_items([(new, {"sku": new, **record}), (old, {})])

    def _new_user(self, number: int) -> None:
        cookie, item = f"new-{number}", f"season-{number // len(self._steps) * len(self._steps)}"
        self._store.records.put_users([(cookie, {"age": "30", "gender": "f"})])
        # The record stays with the servers for as long as they cache it.
        self._store.client.expire(f"ftrie:user:{cookie}", 60)
        with Client(self._chance.choice(self._addresses), 2.0) as client:
            for asked in (client, self._balanced):
                answer = asked.rank(
                    MODEL, cookie=cookie, candidates=[item], context={"device": "phone"}, timeout_s=2.0
                )
                asked.feedback(MODEL, [Feedback(answer.request_id, item)])

    def _experiment(self, _: int) -> None:
        share = self._chance.choice((0.1, 0.5, 0.9))
        self._store.model(MODEL).experiments.change(
            lambda before: before.divided({"base": share, "plain": 1 - share})
        )

    def _roll_back(self, _: int) -> None:
        self._store.model(MODEL).rollback()

    def _resume(self, _: int) -> None:
        self._store.model(MODEL).resume()

    def _activate(self, _: int) -> None:
        versions = self._store.model(MODEL)
        versions.activate(self._chance.choice(versions.versions()[-3:]).version)
        versions.resume()

    def _forget(self, _: int) -> None:
        client = self._store.client
        for key in client.scan_iter(f"ftrie:{{{MODEL}}}:feedback:*", count=1000):
            if client.pttl(key) > KNOWN_MS:
                client.pexpire(key, KNOWN_MS)


def disturb(
    whole: WholeLoop, seconds: float, chance: random.Random, say: Callable[[str], None]
) -> Counter[str]:
    """Go through the run: an operator's step at each tick, and a kill when it is due. Returns what was done."""
    operator, began_s = Operator(whole, chance), time.monotonic()
    due = sorted((share * seconds, name) for name, shares in KILLS.items() for share in shares)
    by_name: dict[str, Process] = {process.name: process for process in whole.everything()}
    often_s, starts = OFTEN_S, list[tuple[float, Process]]()
    try:
        while (now_s := time.monotonic() - began_s) < seconds:
            operator.step()
            for start in [start for start in starts if start[0] <= now_s]:
                starts.remove(start)
                start[1].start()
            if due and due[0][0] <= now_s:
                victim = by_name[due.pop(0)[1]]
                victim.kill()
                starts.append((now_s + chance.uniform(0.5, 3), victim))
                say(f"{now_s:.0f} s: killed {victim.name}")
            if often_s <= now_s:
                often_s += chance.uniform(0.5, 1.5) * OFTEN_S
                one = whole.servers[1]
                if chance.random() < 0.5:
                    one.kill_worker()
                elif not any(process is one for _, process in starts):
                    one.kill()
                    starts.append((now_s + chance.uniform(0.5, 3), one))
            for process in whole.everything():
                down = any(process is each for _, each in starts)
                assert down or not process.ended_by_itself, process.said()
            time.sleep(TICK_S)
        for _, process in starts:
            process.start()
        eventually(lambda: whole.valkey.ended_by_itself is False, "the store")
        operator.end()
    except BaseException:
        whole.take_down()
        raise
    return operator.done


def soak(folder: Path, minutes: float, rate: float, seed: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Run it all. Returns the figures; `wrong` names what is not as it should be."""
    seconds, chance = 60 * minutes, random.Random(seed)
    # Streams are full after a sixth of the run, and hold at least what arrives while a trainer starts.
    length = max(1000, int(rate * min(seconds / 6, 300)))
    impressions = ["--impressions", f"file:{folder / 'impressions' / 'log.jsonl'}"]
    flags = ["--impressions-size", "1", "--impressions-kept", "2", "--impressions-length", str(length)]
    flags += ["--feedback-length", str(length), "--user-cache", "200", "--user-ttl", "5", *impressions]
    (folder / "impressions").mkdir()
    whole = WholeLoop(folder, rate, ["--keep", "5"], flags)
    series = Series(folder / "samples.jsonl")
    try:
        whole.valkey.start()
        with redirect_stdout(sys.stderr):  # what `ftrie train` prints
            begin(folder, whole.valkey.url, WINDOW_S, SHORT)
        for process in (*whole.servers, whole.trainer):
            process.start()
        for server in whole.servers:
            server.await_up()
        whole.traffic.start()
        began_s = time.monotonic()
        sampler = Sampler(whole, series, began_s)
        try:
            done = disturb(whole, seconds, chance, say)
        finally:
            sampler.stop()
        settle(whole)
        status = learned(folder, whole.valkey.url, "state")
        wrong = []
        try:
            balance(whole, status)
        except AssertionError as error:
            wrong.append(f"counts: {error}; {status}")
        checked = subprocess.run(
            [*FTRIE, "store", "check", "--store", whole.valkey.url], capture_output=True, text=True
        )
        if checked.returncode:
            wrong.append(f"ftrie store check: {checked.stdout}{checked.stderr}")
    finally:
        whole.take_down()
    slopes = series.slopes(seconds / 3, seconds)
    wrong += [
        f"{each.part} grows: {each.figure} {each.per_hour:+.2f} an hour"
        for each in slopes
        if not each.is_flat
    ]
    return {
        "minutes": minutes,
        "rate": rate,
        "seed": seed,
        "samples": sampler.samples,
        "kills": {process.name: process.kills for process in whole.everything()},
        "operator": dict(done),
        "counts": status["counts"],
        "join": status["join"],
        "slopes": [{**asdict(each), "allowed": each.allowed, "flat": each.is_flat} for each in slopes],
        "wrong": wrong,
    }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="The loop under load, kills and churn: nothing may grow.")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=20.0, help="visits a second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--folder", type=Path, help="work here, and keep it")
    given = parser.parse_args(arguments)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="ftrie-soak-") as made:
        folder = given.folder or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        found = soak(folder, given.minutes, given.rate, given.seed, say)
    if given.json:
        print(json.dumps(found))
    else:
        print(f"{'part':40} {'figure':12} {'mean':>10} {'per hour':>10} {'growth':>10} {'allowed':>10}")
        for each in found["slopes"]:
            row = f"{each['part']:40} {each['figure']:12} {each['mean']:10.2f} {each['per_hour']:+10.2f}"
            print(f"{row} {each['growth']:+10.2f} {each['allowed']:10.2f}{'' if each['flat'] else '  GROWS'}")
        for name in ("kills", "operator", "counts", "join"):
            print(f"{name}: {found[name]}")
    for text in found["wrong"]:
        say(text)
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
