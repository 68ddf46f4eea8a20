"""Who has which parts, and when a buffer of values is free to be written again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from server.model.shared_memory import Parts, SharedBlock
from server.sync.distribution import Distribution


class Taker:
    def __init__(self) -> None:
        self.taken: list[tuple[int, int]] = []
        self.told: list[Mapping[str, Any]] = []

    def take(self, parts: Parts, serial: int) -> None:
        self.taken.append((parts.version, serial))

    def tell(self, body: Mapping[str, Any]) -> None:
        self.told.append(body)


def parts(version: int, values: SharedBlock | None = None, name: str = "shop") -> Parts:
    block = SharedBlock.write({}, {"a": np.zeros(1)})
    return Parts(name, version, "", "", 0, block, values or SharedBlock.write({}, {}), None, block, block)


@pytest.fixture
def freed() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def distribution(freed: list[tuple[str, str]]) -> Distribution:
    return Distribution(lambda model, uid: freed.append((model, uid)))


def test_a_new_taker_gets_the_latest_of_everything(distribution: Distribution) -> None:
    for version in (1, 2):
        distribution.deliver(parts(version))
        distribution.tell("shop", {"do": "degraded", "parts": {"model": str(version)}})
    distribution.deliver(parts(7, name="ads"))
    taker = Taker()
    distribution.join(taker)
    assert [version for version, _ in taker.taken] == [2, 7]
    assert [body["parts"] for body in taker.told] == [{"model": "2"}]
    distribution.deliver(parts(3))
    assert taker.taken[-1][0] == 3


def test_a_buffer_is_free_once_each_taker_has_given_it_back_or_is_gone(
    distribution: Distribution, freed: list[tuple[str, str]]
) -> None:
    first, second = Taker(), Taker()
    distribution.join(first)
    distribution.join(second)
    old = parts(1)
    distribution.deliver(old)
    for taker in (first, second):
        distribution.given_back(taker, taker.taken[0][1])
    assert freed == [], "the latest is never free"
    distribution.deliver(late := parts(2))
    assert freed == [("shop", old.values.uid)]
    distribution.deliver(parts(3))
    distribution.given_back(first, first.taken[1][1])
    assert len(freed) == 1
    distribution.leave(second)  # what a taker that is gone had is free
    assert freed[1:] == [("shop", late.values.uid)]
    distribution.given_back(second, second.taken[1][1])
    assert len(freed) == 2


def test_a_buffer_that_two_versions_share_is_free_after_both(
    distribution: Distribution, freed: list[tuple[str, str]]
) -> None:
    taker, shared = Taker(), SharedBlock.write({}, {})
    distribution.join(taker)
    distribution.deliver(parts(1, shared))
    distribution.deliver(parts(1, shared))
    distribution.deliver(parts(2))
    serials = [serial for _, serial in taker.taken]
    distribution.given_back(taker, serials[0])
    assert freed == []
    distribution.given_back(taker, serials[1])
    assert freed == [("shop", shared.uid)]


def test_what_is_borrowed_is_not_free(distribution: Distribution, freed: list[tuple[str, str]]) -> None:
    keeper, old = Taker(), parts(1)
    distribution.deliver(old)
    borrowed = distribution.borrow(keeper, "shop")
    assert borrowed is not None and borrowed[0] is old
    distribution.deliver(parts(2))
    assert freed == []
    distribution.given_back(keeper, borrowed[1])
    assert freed == [("shop", old.values.uid)]
    assert distribution.borrow(keeper, "ads") is None


def test_a_taker_that_refused_the_latest_is_handed_it_again_under_another_number(
    distribution: Distribution, freed: list[tuple[str, str]]
) -> None:
    taker = Taker()
    distribution.join(taker)
    old = parts(1)
    distribution.deliver(old)
    distribution.given_back(taker, taker.taken[0][1])
    distribution.hand_again(taker, "shop")
    assert [version for version, _ in taker.taken] == [1, 1]
    distribution.deliver(parts(2))
    assert freed == []
    distribution.given_back(taker, taker.taken[1][1])
    assert freed == [("shop", old.values.uid)]
    distribution.leave(taker)
    distribution.hand_again(taker, "shop")
    assert len(taker.taken) == 3
