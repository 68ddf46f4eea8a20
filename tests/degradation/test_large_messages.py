"""docs/degradation.md, "Load": requests, answers, reports and versions as large as may be, and larger."""

from __future__ import annotations

import grpc
import pytest

from ftrie.api.client import RankFailed
from ftrie.api.feedback import Feedback
from model_store.errors import StoreUnavailable
from tests.degradation.recovered import Recovered
from tests.degradation.test_short_of_memory import large
from tests.degradation.whole_shop import WholeShop
from tests.server import shop
from tests.waiting import eventually

MOST = 10_000
MIB = 1 << 20
LONGEST = 4096


@pytest.mark.slow
def test_messages_larger_than_their_limit(whole: WholeShop, recovered: Recovered) -> None:
    fits = ["x" * 1600 + f"{n:05}" for n in range(MOST)]
    answer = whole.client.rank(candidates=fits, top_k=1, timeout_s=60)
    assert len(answer.items) == 1
    with pytest.raises(RankFailed, match="larger than max") as asked:
        whole.client.rank(candidates=["x" * 1700 + each for each in fits], timeout_s=60)
    name = whole.new_name()
    whole.store.records.put_candidates(name, ("y" * 1700 + each for each in fits))
    # The store may take longer than its budget for the set, which is kept once it was read.
    eventually(lambda: is_read(whole, name), "an answer", within_s=60)
    with pytest.raises(RankFailed, match="larger than max") as answered:
        whole.client.rank(candidate_set=name, timeout_s=60)
    assert asked.value.code is answered.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    recovered.then(lambda: whole.degraded("u1") == (), "answers are whole")


def is_read(whole: WholeShop, candidate_set: str) -> bool:
    try:
        return len(whole.client.rank(candidate_set=candidate_set, top_k=10, timeout_s=60).items) == 10
    except RankFailed as error:
        if error.code is not grpc.StatusCode.UNAVAILABLE:
            raise
        return False


@pytest.mark.slow
def test_largest_report_is_taken_once(whole: WholeShop, recovered: Recovered) -> None:
    request = "r" * LONGEST
    events = [Feedback(request, "i" * (LONGEST - 4) + f"{n:04}") for n in range(1000)]
    before = whole.store.clicks(shop.NAME).info().added
    first, second = (whole.client.feedback(shop.NAME, events, timeout_s=60) for _ in range(2))
    assert (first.accepted, second.duplicates) == (1000, 1000)
    assert whole.store.clicks(shop.NAME).info().added == before + 1000
    recovered.then(lambda: whole.degraded("u1") == (), "answers are whole")


@pytest.mark.slow
def test_version_larger_than_the_store_takes(whole: WholeShop, recovered: Recovered) -> None:
    client, served = whole.store.client, whole.ask().version
    limit = client.config_get("proto-max-bulk-len")["proto-max-bulk-len"]
    client.config_set("proto-max-bulk-len", MIB)
    with pytest.raises(StoreUnavailable, match="proto-max-bulk-len"):
        whole.versions.publish(large(2_000_000))
    assert whole.ask().version == served and whole.running.healthy()
    client.config_set("proto-max-bulk-len", limit)
    version = whole.publish(seed=3)
    recovered.then(lambda: whole.serves(version), "a new version is published and served")
    eventually(
        lambda: not [info for info in whole.versions.versions() if info.size > MIB], "nothing of the other"
    )
