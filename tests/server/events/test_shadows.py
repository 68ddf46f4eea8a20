"""Shadow variants: scored from the same walk as the answer, and only logged, in whole lines that no call waits for."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from ftrie.api.client import Client
from ftrie.api.messages import Ranking
from model_store.errors import OutputError
from model_store.metrics import Family
from model_store.spec.spec import parse_spec
from model_store.store import Store
from model_store.versions.experiments import Experiment
from server.events.shadows import SHADOW_DROPPED, SHADOW_LOGGED, ShadowLog, ShadowRecord
from server.ranking.query import ShadowRanking
from tests.server import shop
from tests.server.one_process import Server
from tests.waiting import eventually

ASKED: dict[str, Any] = {"cookie": "u1", "candidates": list(shop.ITEMS), "context": {"hour": shop.HOURS[0]}}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "shadows.jsonl"


@pytest.fixture
def client(shop_store: Store, start: Callable[..., Server], log: Path) -> Iterator[Client]:
    """A client of a server with a shadow log, whose shop has `plain` as a shadow."""
    stored = shop_store.model(shop.NAME).experiments.change(lambda e: replace(e, shadows=("plain",)))
    server = start(shadow_log=str(log))
    assert server.ready.wait(180)
    eventually(lambda: server.current.assignment.experiment == stored)
    with Client(server.address, timeout_s=20.0) as connected:
        yield connected
    assert sum(n for _, n in server.totals.samples()[SHADOW_LOGGED.name]) <= len(log.read_text().splitlines())


def logged(log: Path, count: int = 1) -> list[dict[str, object]]:
    """The log's lines, once there are so many."""
    eventually(lambda: len(log.read_text().splitlines()) >= count)
    return [json.loads(line) for line in log.read_text().splitlines()]


def scores(ranking: Ranking) -> dict[str, float]:
    return {item.id: item.score for item in ranking.items}


def test_a_shadow_is_logged_bit_for_bit_as_it_had_answered_and_the_answer_stays_the_same(
    client: Client, log: Path
) -> None:
    others: dict[str, Any] = {"candidates": ["item-1", "nobody knows", "item-2"]}
    for n, asked in enumerate((ASKED, ASKED | {"top_k": 3}, ASKED | others)):
        answer = client.rank(**asked, request_id=f"r{n}", variant="base")
        forced = client.rank(**asked, request_id="forced", variant="plain")
        whole = scores(client.rank(**{**asked, "top_k": None}, request_id="whole", variant="plain"))
        line = logged(log, n + 1)[-1]
        ids = [item.id for item in answer.items]
        assert line == {
            "time": line["time"],
            "request_id": f"r{n}",
            "model": "shop",
            "version": 1,
            "variant": "base",
            "ids": ids,
            "scores": [item.score for item in answer.items],
            "shadows": {
                "plain": {
                    "ids": [item.id for item in forced.items],
                    "scores": [item.score for item in forced.items],
                    "shown_scores": [whole[item] for item in ids],
                }
            },
        }
        example = {"device": "u1", **shop.USERS["u1"], "hour": shop.HOURS[0]}
        for item in answer.items:
            expected = shop.expected_score({**example, **shop.ITEMS.get(item.id, {})}, 0)
            assert item.score == pytest.approx(expected, abs=1e-5)
    assert len(logged(log)) == 3


def test_an_order_by_an_objective_is_shadowed_by_scores_and_without_shadows_nothing_is_logged(
    client: Client, shop_store: Store, log: Path
) -> None:
    experiments = shop_store.model(shop.NAME).experiments
    plain = client.rank(**ASKED, variant="plain", top_k=2)
    best = client.rank(**ASKED, variant="base", top_k=1).items[0].id
    experiments.change(lambda e: replace(e, objective="-score"))
    eventually(lambda: client.rank(**ASKED, variant="base").items[-1].id == best)
    answer = client.rank(**ASKED, request_id="r", variant="base", top_k=2)
    eventually(lambda: '"r"' in log.read_text())
    line: Any = next(line for line in logged(log) if line["request_id"] == "r")
    assert line["ids"] == [item.id for item in answer.items]
    assert line["shadows"]["plain"]["ids"] == [item.id for item in plain.items]

    experiments.change(lambda e: replace(e, shadows=(), shares={"plain": 1.0}))
    # By the spec it is base.
    eventually(lambda: client.rank(cookie="u1", candidates=["item-1"]).variant == "plain")
    client.rank(**ASKED, variant="base", request_id="without")
    experiments.change(lambda e: replace(e, shadows=("plain",)))

    def is_logged_again() -> bool:
        client.rank(**ASKED, variant="base", request_id="with")
        return '"with"' in log.read_text()

    eventually(is_logged_again)  # lines come in the order of the answers, and a moment after them
    assert '"without"' not in log.read_text()


def test_beside_interleaved_variants_a_third_one_is_logged_and_the_list_stays_the_same(
    client: Client, shop_store: Store, log: Path
) -> None:
    third = shop.SPEC.replace("0.5", "0.4") + 'lean = { share = 0.2, without = ["price"] }\n'
    keys = [key.split(b"=")[0] for key in shop.masks()]
    artefact = shop.artefact()
    masks = artefact.variants | np.array([0 if b"price" in key else 4 for key in keys], np.uint32)
    parsed = parse_spec(third)
    spec = parsed.resolve(["click", "device", *parsed.fields])
    versions = shop_store.model(shop.NAME)
    versions.publish_and_activate(replace(artefact, spec=spec, variants=masks))
    both = Experiment(interleave=("base", "plain"))
    versions.experiments.change(lambda _: both)
    eventually(lambda: client.rank(**ASKED).variant == "base+plain")
    before = client.rank(**ASKED, request_id="r", top_k=4)
    versions.experiments.change(lambda _: replace(both, shadows=("lean", "plain")))

    def is_logged() -> bool:
        client.rank(**ASKED, request_id="r", top_k=4)
        return '"r"' in log.read_text()

    eventually(is_logged)
    answer = client.rank(**ASKED, request_id="r", top_k=4)
    assert answer.items == before.items and len({item.team for item in answer.items}) == 2
    whole = client.rank(**ASKED, variant="lean")
    line = next(line for line in logged(log) if line["request_id"] == "r")
    ids = [item.id for item in answer.items]
    assert (line["variant"], line["ids"]) == ("base+plain", ids)
    assert line["scores"] == [item.score for item in answer.items], "each by the variant that placed it"
    assert line["shadows"] == {
        "lean": {
            "ids": [item.id for item in whole.items[:4]],
            "scores": [item.score for item in whole.items[:4]],
            "shown_scores": [scores(whole)[item] for item in ids],
        }
    }, "but none of those that answer"


def a_record(request_id: str = "r1") -> ShadowRecord:
    shadow = ShadowRanking(1, ["b", "\udcff"], [0.25, -1.5], [0.1, 0.25])
    return ShadowRecord(1e9, request_id, "ads", 7, ("base", "plain"), 0, ["a", "b"], [0.5, 1 / 3], [shadow])


class Counts(Counter[Family]):
    """Counts as the meter does."""

    def __call__(self, family: Family, model: str) -> None:
        assert model == "ads"
        self[family] += 1


def read(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_disk_that_hangs_costs_lines_that_are_counted_and_no_caller_waits(tmp_path: Path) -> None:
    fifo = tmp_path / "hanging"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)  # nobody reads: the pipe fills, and the writer hangs
    counts = Counts()
    log = ShadowLog(fifo, counts, waiting=3)
    for n in range(2000):
        log.offer(a_record(f"r{n}"))
    assert counts[SHADOW_DROPPED] > 0
    os.close(reader)
    log.close()


def test_what_a_full_disk_does_not_take_is_counted_told_once_and_got_over(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    counts = Counts()
    log = ShadowLog(folder / "shadows.jsonl", counts)
    (folder / "shadows.jsonl").unlink()
    folder.rmdir()
    with capture_logs() as told:
        for n in range(3):
            log.offer(a_record())
            eventually(lambda n=n: counts[SHADOW_DROPPED] == n + 1)  # type: ignore[misc]
    assert [line["event"] for line in told] == ["shadow log not written"]
    folder.mkdir()
    log.offer(a_record())
    log.close()
    (line,) = read(folder / "shadows.jsonl")
    shadow = {"ids": ["b", "\udcff"], "scores": [0.25, -1.5], "shown_scores": [0.1, 0.25]}
    assert (line["time"], line["shadows"]) == ("2001-09-09T01:46:40.000Z", {"plain": shadow})
    assert counts == {SHADOW_DROPPED: 3, SHADOW_LOGGED: 1}


def test_many_threads_offer_at_once(tmp_path: Path) -> None:
    log = ShadowLog(tmp_path / "log", Counts(), waiting=10_000, max_bytes=50_000, kept=100)

    def offer(name: str) -> None:
        for n in range(100):
            log.offer(a_record(f"{name}{n}"))

    threads = [threading.Thread(target=offer, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    written = [line["request_id"] for path in tmp_path.iterdir() for line in read(path)]
    assert sorted(written) == sorted(f"{name}{n}" for name in "abcd" for n in range(100))  # type: ignore[type-var]


def test_the_sample_is_a_fraction_of_requests_chosen_by_their_ids(tmp_path: Path) -> None:
    ids = [f"request {n}" for n in range(2_000)]
    for sample in (0.0, 0.25, 1.0):
        one, other = (ShadowLog(tmp_path / "log", Counts(), sample=sample) for _ in range(2))
        wanted = [one.wants(each) for each in ids]
        assert wanted == [other.wants(each) for each in ids]
        assert abs(sum(wanted) - sample * len(ids)) <= 70  # 3.5 standard deviations
        one.close()
        other.close()
    with pytest.raises(OutputError, match=r"cannot write the shadow log .*nowhere"):
        ShadowLog(tmp_path / "nowhere" / "log", Counts())
