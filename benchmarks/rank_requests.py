"""The requests of the serving benchmarks: candidates drawn by number, users inline or by cookie; and the calls."""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks import rank_model as shop
from benchmarks.processes import LOAD_CORE, ROOT, pin
from ctr.v1.ranking_pb2 import Features, RankRequest
from ftrie.api.client import METHOD
from model_store.artefact.artefact import Artefact
from model_store.store import Store

TOP_K = 10
CONNECTIONS, STREAMS = 4, 8


@dataclass(frozen=True)
class Called:
    """What a run of the load measured. `busy`: the share of its core that the load itself took."""

    calls_per_second: float
    busy: float


def request(number: int, candidates: int, *, inline: bool, cookie: int | None = None) -> RankRequest:
    """Request `number` seeds its draws; the user is number `cookie`, or of the request's number."""
    draw = random.Random(number)
    asked = RankRequest(model=shop.NAME, cookie=f"user-{number if cookie is None else cookie}", top_k=TOP_K)
    asked.item_ids.extend(f"item-{n}" for n in draw.sample(range(shop.ITEMS), candidates))
    for fields, features in (
        (shop.USER_FIELDS if inline else {}, asked.user),
        (shop.CONTEXT_FIELDS, asked.context),
    ):
        for name, size in fields.items():
            features.values[name].text = f"{name}{draw.randrange(size)}"
    return asked


def texts(features: Features) -> dict[str, str]:
    """The features as `request` made them, by name."""
    return {name: value.text for name, value in features.values.items()}


def framed(asked: RankRequest) -> bytes:
    """The message behind its gRPC header, as benchmarks.load takes it."""
    message = asked.SerializeToString()
    return b"\0" + struct.pack(">I", len(message)) + message


def call(address: str, bodies: Path, calls: int) -> Called:
    """One run of benchmarks.load on its core. Raises RuntimeError if a call fails."""
    arguments = [address, METHOD, str(bodies), str(calls), str(CONNECTIONS), str(STREAMS)]
    return loaded("benchmarks.load", *arguments)


def loaded(*arguments: str, core: int = LOAD_CORE) -> Called:
    """Run a load generator, `python -m ARGUMENTS…`, which prints seconds, calls, failed and cpu as JSON."""
    command = ["taskset", "-c", str(core), sys.executable, "-m", *arguments]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if finished.returncode:
        raise RuntimeError(f"{' '.join(arguments)}:\n{finished.stderr[-4000:]}")
    answer = json.loads(finished.stdout)
    if answer["failed"]:
        raise RuntimeError(f"{answer['failed']} calls failed: {' '.join(arguments)}")
    return Called(answer["calls"] / answer["seconds"], answer["cpu"] / answer["seconds"])


def fill(store: Store, users: int = 0, artefact: Artefact | None = None) -> None:
    """Publish the shop's model or another one, load items and users, and move Valkey to the load's core."""
    store.records.put_items(shop.records(shop.ITEM_FIELDS, "item-", shop.ITEMS, seed=1))
    store.records.put_users(shop.records(shop.USER_FIELDS, "user-", users, seed=2))
    versions = store.model(shop.NAME)
    versions.activate(versions.publish(artefact or shop.artefact()))
    pin(store.client.info("server")["process_id"], LOAD_CORE)
