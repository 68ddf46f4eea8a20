"""Rank against an empty handler: the same grpc server, the same requests, one process after the other on one core.

    python -m benchmarks.rank

The server has core 0 to itself; the load (benchmarks/load.py) and Valkey, on a unix socket, share core 1. The empty
handler parses the request and answers an empty response. "inline" sends the user's features in the request; "stored"
sends a cookie, another one in each request, whose record the server reads from Valkey.
"""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import rank_model as shop
from benchmarks.common import ROUNDS, alternate, ratio, report
from ctr.v1.ranking_pb2 import RankRequest
from ftrie.client import METHOD, Client
from model_store.store import Store

SERVER_CORE, LOAD_CORE = 0, 1
CALLS = {10: 8000, 200: 6000, 1000: 2500}
USERS = max(CALLS.values())
TOP_K = 10
CONNECTIONS, STREAMS = 4, 8
ROOT = Path(__file__).resolve().parents[1]


def body(number: int, candidates: int, *, inline: bool) -> bytes:
    """One request behind its gRPC header; `number` is the user's, and seeds the candidates."""
    draw = random.Random(number)
    request = RankRequest(model=shop.NAME, cookie=f"user-{number}", top_k=TOP_K)
    request.item_ids.extend(f"item-{n}" for n in draw.sample(range(shop.ITEMS), candidates))
    for fields, features in (
        (shop.USER_FIELDS if inline else {}, request.user),
        (shop.CONTEXT_FIELDS, request.context),
    ):
        for name, size in fields.items():
            features.values[name] = f"{name}{draw.randrange(size)}"
    message = request.SerializeToString()
    return b"\0" + struct.pack(">I", len(message)) + message


@contextmanager
def process(*arguments: str) -> Iterator[str]:
    """A server process on the server's core; yields its address, the last word of its first line."""
    pinned = ["taskset", "-c", str(SERVER_CORE), sys.executable, "-m", *arguments]
    with subprocess.Popen(
        pinned, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as running:
        assert running.stdout is not None
        try:
            yield running.stdout.readline().split()[-1]
        finally:
            running.terminate()


def calls_per_second(address: str, bodies: Path, calls: int) -> float:
    """One run of the load on its core."""
    arguments = [address, METHOD, str(bodies), str(calls), str(CONNECTIONS), str(STREAMS)]
    command = ["taskset", "-c", str(LOAD_CORE), sys.executable, "-m", "benchmarks.load", *arguments]
    answer = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)
    if answer["failed"]:
        raise RuntimeError(f"{answer['failed']} calls failed at {address}")
    return float(answer["calls"] / answer["seconds"])


def measure(address: str, bodies: Path, calls: int) -> Callable[[], float]:
    return lambda: calls_per_second(address, bodies, calls)


def fill(store: Store) -> None:
    """Publish the model, load items and users, and move Valkey to the load's core."""
    store.records.put_items(shop.records(shop.ITEM_FIELDS, "item-", shop.ITEMS, seed=1))
    store.records.put_users(shop.records(shop.USER_FIELDS, "user-", USERS, seed=2))
    versions = store.model(shop.NAME)
    versions.activate(versions.publish(shop.artefact()))
    for task in Path(f"/proc/{store.client.info('server')['process_id']}/task").iterdir():
        os.sched_setaffinity(int(task.name), {LOAD_CORE})


def check(address: str) -> None:
    """Both kinds of request are answered whole, or the figures mean nothing."""
    with Client(address) as client:
        answer = client.rank(shop.NAME, cookie="user-1", candidates=["item-1", "item-2"])
    assert not answer.degraded
    assert not answer.unknown_items
    assert not answer.unknown_fields


def main() -> None:
    rows = []
    with tempfile.TemporaryDirectory(prefix="ftrie-") as folder:
        url = f"embedded:{folder}/store"
        with (
            Store.open(url) as store,
            process("benchmarks.empty_server") as empty,
        ):
            fill(store)
            with process("ftrie", "serve", shop.NAME, "--store", url, "--port", "0") as ranking:
                check(ranking)
                for user in ("inline", "stored"):
                    for candidates, calls in CALLS.items():
                        bodies = Path(folder) / f"{user}-{candidates}"
                        made = (body(n, candidates, inline=user == "inline") for n in range(calls))
                        bodies.write_bytes(b"".join(made))
                        rows.append(_row(user, candidates, empty, ranking, bodies, calls))
                        bodies.unlink()
    report(
        "rank",
        f"Rank, calls/s on one core, top {TOP_K}; {shop.KEYS:,} keys, {shop.ITEMS:,} items, 8 + 6 fields, "
        f"{len(shop.CROSSES)} crosses; medians of {ROUNDS} alternating rounds; load: benchmarks/load.py",
        ("user", "candidates", "empty calls/s", "Rank calls/s", "ratio", "ratio low", "ratio high"),
        rows,
    )


def _row(
    user: str, candidates: int, empty: str, ranking: str, bodies: Path, calls: int
) -> tuple[object, ...]:
    contestants = {"empty": measure(empty, bodies, calls), "rank": measure(ranking, bodies, calls)}
    for warm in contestants.values():
        warm()
    measures = alternate(contestants)
    spread = ratio(measures, "rank", "empty")
    medians = [round(sorted(measures[name])[len(measures[name]) // 2]) for name in contestants]
    return user, candidates, *medians, round(spread.median, 3), round(spread.low, 3), round(spread.high, 3)


if __name__ == "__main__":
    main()
