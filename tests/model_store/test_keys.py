"""The table of keys and docs/redis_keys.md against what is in Redis after everything that writes has been done."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from model_store.errors import StoreError
from model_store.keys import MAX_ID_BYTES, TABLE, USER, ModelKeys, record_key
from model_store.store import Store
from model_store.streams.event_streams import Letter
from model_store.streams.feedback import Event
from model_store.versions.audit import By
from model_store.versions.experiments import Experiment, Explore
from model_store.versions.rounds import PartitionsRecord, contribution
from tests.model_store.models import ROOT, model
from tests.worlds import online_cell

DOCUMENT = (ROOT / "docs" / "redis_keys.md").read_text()
PARTITIONS = PartitionsRecord(start=1, partitions=2, every_us=60_000_000, spec="{}")


def loop_written(store: Store) -> None:
    """What comes of serving and learning all the time."""
    store.impressions("ads").append([b"{}"])
    feedback = store.feedback()
    feedback.report("ads", [Event("r1", "a")])
    feedback.close()
    store.dead_letters("ads").add(1, [Letter("source", "place", "reason", b"{}")])
    store.trainer_lease("ads", "folder").take()
    second, rounds = store.trainer_lease("ads", "another", 2), store.rounds("ads")
    second.take()
    rounds.write_record(PARTITIONS)
    rounds.put(PARTITIONS, 0, contribution(2), b"bytes", second)


def test_every_key_in_redis_is_in_the_table_with_its_type_and_the_other_way_round(store: Store) -> None:
    ads = store.model("ads")
    for _ in range(2):
        ads.publish_and_activate(model())
    ads.experiments.change(lambda before: before.pinned({"u": "base"}))
    store.records.put_users([("u", {"age": "25"})])
    store.records.put_histories("ads", [(b"u", b"record")], 60_000)
    store.records.put_items([("i", {"brand": "acme"})])
    store.records.put_candidates("home", ["i"])
    store.records.item_changes.state()  # gives the data its epoch
    store.client.incr("ftrie:items:generation")
    ads.guard.watch(1, 0)
    assert ads.audit.write(By("a tool"), "activate", 1, 2)
    ads.online.write({(1, "base"): online_cell(requests=1)})
    ads.online.add_up(range(1))
    store.to_forget("ads").add(1, [2])
    loop_written(store)
    seen = set()
    for found in store.client.scan_iter():
        kind = store.client.type(found).decode()
        keys = [key for key in TABLE if re.fullmatch(key.expression, found.decode())]
        assert len(keys) == 1, found
        assert kind in keys[0].types, found
        seen.add(keys[0])
    assert seen == set(TABLE)


def documented(heading: str, row: str = r"^\| `(\w+)` \|") -> list[str]:
    """The fields of the table below a heading."""
    return re.findall(row, DOCUMENT.partition(f"## {heading}")[2].partition("\n## ")[0], re.MULTILINE)


def test_the_document_lists_each_hash_field_by_field(store: Store) -> None:
    ads, keys = store.model("ads"), ModelKeys("ads")

    def fields(*of: str) -> list[str]:
        return [field.decode() for key in of for field in store.client.hkeys(key)]

    loop_written(store)
    store.client.hset(keys.trainer, "spec", "another one's")
    store.client.hset(keys.trainer, "forgot", "1-0")
    ads.activate(ads.publish(model()))
    ads.resume()
    exploring = {"explore": Explore("ucb", 1.0), "apprentice": True}
    ads.experiments.change(lambda before: replace(before.pinned({"COOKIE": "base"}), **exploring))
    of_experiment = {*fields(keys.experiment)}
    ads.experiments.change(lambda _: Experiment().interleaved(("base", "plain")))
    assert {*fields(keys.manifest(1))} == {*documented("The manifest")}
    assert {*fields(keys.trainer)} == {*documented("The trainer's lease")}
    assert of_experiment | {*fields(keys.experiment)} == {*documented("The experiment", r"^\| ([\w:]+) \|")}
    cells = documented("The partitions", r"^\| (`[^|]+) \|")
    names = [field for cell in cells for field in re.findall(r"`(\w+)`", cell)]
    assert sorted(fields(keys.partitions, keys.round_part(1, 0, "2"))) == sorted(names)
    of_models = [key for key in store.client.scan_iter() if b"{" in key]
    assert of_models and all(b":{ads}:" in key for key in of_models)


def test_an_id_may_be_any_text_up_to_its_limit() -> None:
    assert record_key(USER, "ü{}\udcff\0") == b"ftrie:user:\xc3\xbc{}\xff\0"
    assert len(record_key(USER, "x" * MAX_ID_BYTES)) == len(USER) + 4096
    for bad in ("", "x" * 4097, "é" * 2049):
        with pytest.raises(StoreError, match="expected 1 to 4096"):
            record_key(USER, bad)
