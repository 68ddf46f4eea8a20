"""docs/degradation.md, "Records and experiments": what others write wrong costs just that."""

from __future__ import annotations

import grpc
import pytest

from ftrie.api.client import RankFailed
from model_store.versions.experiments import Experiment
from tests.degradation.recovered import Recovered
from tests.degradation.whole_shop import SET, WholeShop
from tests.waiting import eventually


def test_user_record_is_of_another_type(whole: WholeShop, recovered: Recovered) -> None:
    cookie = whole.new_user()
    key = f"ftrie:user:{cookie}"
    whole.store.client.delete(key)
    whole.store.client.set(key, "no HASH")
    for _ in range(5):
        (reason,) = whole.degraded(cookie)
        assert reason.startswith("user_features: ") and "WRONGTYPE" in reason
    whole.awaits_whole_answer("u1")
    assert whole.running.healthy()
    eventually(lambda: whole.metric("ftrie_degraded_total", part="user_features") > 0, "the count")
    whole.store.records.put_users([(cookie, whole.users[cookie])])
    recovered.then(lambda: whole.degraded(cookie) == (), "answers are whole")


def test_value_of_a_user_does_not_fit_its_field(whole: WholeShop, recovered: Recovered) -> None:
    cookie = whole.new_user()
    record = whole.users[cookie]
    whole.store.records.put_users([(cookie, {**record, "likes": '["red"'})])
    answer = whole.ask(cookie, known={"age": record["age"]})
    (reason,) = map(str, answer.degraded)
    assert reason.startswith("user_features: left out")
    assert whole.running.healthy()
    whole.store.records.put_users([(cookie, record)])
    recovered.from_now()

    def is_whole() -> bool:
        answer = whole.client.rank(cookie=cookie, candidates=["item-1"], variant="base")
        return not answer.degraded and whole.degraded(cookie) == ()

    recovered.when(is_whole, "answers are whole")


def test_item_record_is_of_another_type(whole: WholeShop, recovered: Recovered) -> None:
    client = whole.store.client
    record = client.hgetall("ftrie:item:item-1")
    client.delete("ftrie:item:item-1")
    client.set("ftrie:item:item-1", "no HASH")
    client.xadd("ftrie:items:changes", {"id": "item-1"})
    asked = {"candidates": ["item-1", "item-2"], "variant": "base"}
    eventually(lambda: whole.client.rank(**asked).unknown_items == ("item-1",), "the item unknown")
    answer = whole.client.rank(**asked)
    scores = {item.id: item.score for item in answer.items}
    possible = whole.scores("item-2", answer.version)
    assert any(scores["item-2"] == pytest.approx(each) for each in possible)
    assert whole.running.healthy()
    assert whole.metric("ftrie_ready", model="shop") == 1
    version = whole.publish(seed=4)
    eventually(lambda: whole.client.rank(**asked).version == version, "a new version all the same")
    client.delete("ftrie:item:item-1")
    client.hset("ftrie:item:item-1", mapping=record)
    client.xadd("ftrie:items:changes", {"id": "item-1"})
    recovered.then(lambda: whole.client.rank(**asked).unknown_items == (), "the item is known")
    assert whole.ask().version == version


def test_stream_of_changed_items_is_of_another_type(whole: WholeShop, recovered: Recovered) -> None:
    client = whole.store.client
    client.delete("ftrie:items:changes")
    client.set("ftrie:items:changes", "no STREAM")
    version = whole.publish(seed=4)
    asked = {"candidates": ["item-1", "new"], "variant": "base"}
    eventually(lambda: whole.client.rank(**asked).version == version, "a new version all the same")
    answer = whole.client.rank(**asked)
    assert answer.unknown_items == ("new",)
    score = {item.id: item.score for item in answer.items}["item-1"]
    assert any(score == pytest.approx(each) for each in whole.scores("item-1", version))
    assert whole.running.healthy()
    assert whole.metric("ftrie_ready", model="shop") == 1
    assert [each.key for each in whole.store.check(repair=True)] == ["ftrie:items:changes"]
    whole.store.records.put_items([("new", {"brand": "b1"})])
    recovered.then(lambda: whole.client.rank(**asked).unknown_items == (), "the item is known")
    whole.store.records.put_items([("new", {})])


def test_candidate_set_is_of_another_type(whole: WholeShop, recovered: Recovered) -> None:
    whole.store.client.set("ftrie:candidates:odd", "no LIST")
    with pytest.raises(RankFailed, match="expected a LIST, SET or ZSET") as failed:
        whole.client.rank(candidate_set="odd")
    assert failed.value.code is grpc.StatusCode.FAILED_PRECONDITION
    eventually(lambda: whole.client.rank(candidate_set=SET).degraded == (), "a whole answer")
    eventually(lambda: whole.metric("ftrie_errors_total", status="FAILED_PRECONDITION") > 0, "the count")
    whole.store.records.put_candidates("odd", ["item-2"])
    recovered.from_now()
    answer = whole.client.rank(candidate_set="odd")
    assert [item.id for item in answer.items] == ["item-2"]
    recovered.when(lambda: answer.degraded == (), "the set is read")


def test_experiment_is_damaged(whole: WholeShop, recovered: Recovered) -> None:
    versions, client = whole.versions, whole.store.client
    versions.experiments.write(Experiment().divided({"plain": 1.0}))
    eventually(lambda: variants(whole) == {"plain"}, "the shares")
    key = versions.keys.experiment
    good = client.hgetall(key)
    client.hset(key, mapping={"shares": "half and half", "revision": 99})
    eventually(lambda: whole.metric("ftrie_experiment_refused", model="shop") == 1, "its refusal")
    assert variants(whole) == {"plain"}
    whole.awaits_whole_answer()
    assert whole.running.healthy()
    client.delete(key)
    client.hset(key, mapping=good)
    recovered.then(lambda: whole.metric("ftrie_experiment_refused", model="shop") == 0, "it is in force")
    versions.experiments.clear()  # a record that is only deleted was lost, and stays in force
    eventually(lambda: variants(whole) == {"base", "plain"}, "the shares of the spec")


def variants(whole: WholeShop) -> set[str]:
    return {whole.client.rank(cookie=f"c{n}", candidates=["item-1"]).variant for n in range(12)}
