"""A chain of versions of a model that learns: each delta makes, bit for bit, the model that a snapshot would be."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from model_store.artefact.artefact import Artefact, Delta
from model_store.artefact.rows import Q213_STEP
from model_store.spec.spec import ModelSpec, parse_spec
from tests.matrix import slow_except
from tests.worlds import SPEC, batch_of, learn, model_of, shop_rows, shop_spec
from trainer.learn.model import LearningModel
from trainer.publish.delta_chain import DeltaChain

LEARNERS = {
    "ftrl": "",
    "rates by counts": 'rate = "counts"',
    "own values": 'values = "per_variant"',
    "q2.13 by counts": 'precision = "q2.13"\nrate = "counts"',
    "own values in 16 bits": 'values = "per_variant"\nprecision = "q2.13"\nrate = "counts"',
    "bloom": 'inclusion = { kind = "bloom", count = 3, keys = 10000 }',
    "ogd": 'algorithm = "ogd"\nvalues = "per_variant"',
    "rda": 'algorithm = "rda"\nl1 = 0.0001',
    "fobos at a global rate": 'algorithm = "fobos"\nl1 = 0.0001\nl2 = 0.01\nrate = "global"',
    "truncated gradient": 'algorithm = "truncated_gradient"\nvalues = "per_variant"\nl1 = 0.001\nk = 7\ntheta = 1.0',
    "buckets": "hash_bits = 8",
    "adpredictor": 'algorithm = "adpredictor"\nforgetting = 0.01\nprune_kl = 0.01',
    "calibration": '[calibration]\nkind = "isotonic"',
}


@cache
def rows() -> list[dict[str, bytes]]:
    return shop_rows(2400, seed=1)


def spec_of(name: str) -> ModelSpec:
    text = LEARNERS[name]
    head = SPEC[: SPEC.index("[learner]")] + "[learner]\nalpha = 0.1\n" if "algorithm" in text else SPEC
    return parse_spec(head + text)


def begun(spec: ModelSpec, count: int) -> tuple[LearningModel, Artefact, DeltaChain]:
    model = learn(model_of(spec, tuple(rows()[0]), keep_seen=True), rows()[:count])
    snapshot = model.artefact()
    return model, snapshot, DeltaChain(model, snapshot, version=1)


def weights(artefact: Artefact) -> dict[bytes, Any]:
    return dict(zip(artefact.key_list(), artefact.weight.astype(np.float64), strict=True))


@pytest.mark.parametrize("name", slow_except(["ftrl"], LEARNERS))
def test_every_delta_makes_the_snapshot_bit_for_bit(name: str) -> None:
    draw = random.Random(name)
    model, served, chain = begun(spec_of(name), 1000)
    begin, version = 1000, 1
    while begin < len(rows()):
        end = begin + draw.choice([1, 3, 40, 300])
        learn(model, rows()[begin:end], size=draw.choice([7, 20, 1000]))
        if draw.random() < 0.2:
            model.table.grow()
        if draw.random() < 0.8:
            change = chain.change(last=draw.random() < 0.2)
            served = served.with_changes(Delta.from_bytes(change.delta.to_bytes()))
            assert change.delta.parent == version and change.keys == served.rows
            assert served.to_bytes() == model.artefact().to_bytes()
            version += 1
            chain.mark_published(change, version)
        begin = end
    weight = pa.ipc.open_file(served.to_bytes()).schema.field("weight").type
    is_in_16_bits = served.spec.learner.precision == "q2.13"
    assert (weight.value_type if served.per_variant else weight) == (
        pa.int16() if is_in_16_bits else pa.float32()
    )
    if is_in_16_bits:
        steps = served.weight / np.float32(Q213_STEP)
        assert (steps == np.rint(steps)).all()
        assert served.weight.reshape(served.rows, -1).any(axis=1).all()


@pytest.mark.parametrize("name", slow_except(["ftrl"], ["ftrl", "q2.13 by counts"]))
def test_a_delta_that_could_not_be_published_is_in_the_next_one(name: str) -> None:
    model, served, chain = begun(spec_of(name), 1000)
    learn(model, rows()[1000:1100])
    chain.change()
    learn(model, rows()[1100:1101])
    assert served.with_changes(chain.change().delta).to_bytes() == model.artefact().to_bytes()


def test_following_a_model_does_not_change_what_it_learns() -> None:
    alone = learn(model_of(shop_spec(), tuple(rows()[0])), rows())
    followed, _, chain = begun(shop_spec(), 1000)
    for begin in range(1000, len(rows()), 100):
        learn(followed, rows()[begin : begin + 100])
        chain.mark_published(chain.change(threshold=0.01), chain.version + 1)
    assert followed.artefact().to_bytes() == alone.artefact().to_bytes()
    for name, array in alone.state().items():
        assert (followed.state()[name] == array).all(), name


@pytest.mark.slow
def test_where_slots_do_not_say_when_they_were_touched_all_keys_are_looked_at() -> None:
    model = learn(model_of(spec_of("q2.13 by counts"), tuple(rows()[0])), rows()[:1000])
    served, chain = model.artefact(), DeltaChain(model, model.artefact(), version=1)
    learn(model, rows()[1000:1010])
    assert served.with_changes(chain.change().delta).to_bytes() == model.artefact().to_bytes()


@pytest.mark.parametrize(
    "name", slow_except(["ftrl"], ["ftrl", "own values", "rates by counts", "q2.13 by counts"])
)
def test_only_touched_keys_are_looked_at(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, chain = begun(spec_of(name), 2000)
    looked_at = []
    published = model.published

    def watched(keys: Any) -> Any:
        looked_at.append(keys.slots.size)
        return published(keys)

    monkeypatch.setattr(model, "published", watched)
    learn(model, rows()[2000:2001])
    change = chain.change()
    touched = int(np.diff(model.maker.make(batch_of(rows()[2000:2001])).hashed.starts)[0])
    assert change.delta.rows <= sum(looked_at) <= touched < model.table.used / 2
    looked_at.clear()
    chain.mark_published(change, 2)
    chain.change()
    assert looked_at == [0]


@pytest.mark.parametrize("name", slow_except(["ftrl"], ["ftrl", "own values", "fobos at a global rate"]))
def test_no_weight_is_ever_farther_from_what_is_served_than_the_threshold(name: str) -> None:
    threshold = 0.05
    model, served, chain = begun(spec_of(name), 1000)
    held_back = 0
    for begin in range(1000, 2000, 50):
        learn(model, rows()[begin : begin + 50])
        change = chain.change(threshold)
        served = served.with_changes(change.delta)
        chain.mark_published(change, chain.version + 1)
        now, then = weights(model.artefact()), weights(served)
        distance = {key: np.abs(now.get(key, 0.0) - then.get(key, 0.0)).max() for key in {*now, *then}}
        assert max(distance.values()) <= threshold
        held_back += sum(each > 0.0 for each in distance.values())
    assert held_back > 0
    last = chain.change(threshold, last=True)
    assert served.with_changes(last.delta).to_bytes() == model.artefact().to_bytes()


def test_what_was_held_back_and_not_touched_again_goes_out_at_last() -> None:
    model, served, chain = begun(shop_spec(), 1000)
    learn(model, rows()[1000:1010])
    held = chain.change(threshold=100.0)
    assert held.delta.rows == 0
    chain.mark_published(held, 2)
    assert chain.change(threshold=0.0).delta.rows == 0  # nothing was touched since
    last = chain.change(threshold=100.0, last=True)
    assert last.delta.rows > 0
    assert served.with_changes(last.delta).to_bytes() == model.artefact().to_bytes()


def drifting_rows(size: int, seed: int) -> list[dict[str, bytes]]:
    """Values of f come, go, and some of them come again; g has a few that stay."""
    draw = np.random.default_rng(seed)
    return [
        {
            "click": b"%d" % draw.integers(2),
            "f": b"%d" % (row // 300 % 40 + draw.integers(20)),
            "g": b"%d" % draw.integers(5),
        }
        for row in range(size)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("learner", "every"),
    [
        ("", 37),
        ("", 6000),
        ('values = "per_variant"\n', 37),
        ('precision = "q2.13"\nrate = "counts"\n', 6000),
    ],
)
def test_evicted_keys_are_taken_out_and_may_come_back(learner: str, every: int) -> None:
    spec = parse_spec(
        '[model]\nname = "m"\n[input]\nlabel = "click"\n[fields]\nf = {}\ng = {}\n[variants]\na = { share = 0.5 }\n'
        f'b = {{ share = 0.5, without = ["g"] }}\n[learner]\nttl = 1500\nl1 = 0.01\n{learner}'
    )
    drifting = drifting_rows(20_000, seed=every)
    model = learn(model_of(spec, tuple(drifting[0])), drifting[:5000])
    served = model.artefact()
    chain = DeltaChain(model, served, version=1)
    taken_out = 0
    for begin in range(5000, len(drifting), every):
        learn(model, drifting[begin : begin + every])
        change = chain.change()
        taken_out += int((change.delta.variants == 0).sum())
        served = served.with_changes(change.delta)
        chain.mark_published(change, chain.version + 1)
        assert served.content == chain.content == model.artefact().content
        assert change.keys == served.rows
    assert model.evicted > 50 and taken_out > 20
    assert served.to_bytes() == model.artefact().to_bytes()


def test_an_evicted_key_is_taken_out_and_if_it_is_back_before_a_publication_published_as_it_is_now() -> None:
    spec = parse_spec(
        '[model]\nname = "m"\n[input]\nlabel = "click"\n[fields]\nf = {}\n[learner]\nttl = 5000\nl1 = 0.0\n'
    )
    come_back, other = {"click": b"1", "f": b"a"}, {"click": b"0", "f": b"b"}
    model = learn(model_of(spec, tuple(other)), [come_back, other])
    served = model.artefact()
    chain = DeltaChain(model, served, version=1)
    learn(model, [other] * 12_000)
    assert model.evicted == 1
    delta = chain.change().delta  # which is not published
    assert delta.variants[delta.key_list().index(b"f=a")] == 0
    assert served.with_changes(delta).to_bytes() == model.artefact().to_bytes()
    learn(model, [come_back] * 2)
    delta = chain.change().delta
    assert delta.key_list().count(b"f=a") == 1
    assert delta.variants[delta.key_list().index(b"f=a")] != 0
    assert served.with_changes(delta).to_bytes() == model.artefact().to_bytes()
