"""Experiments changed in the store while a server runs: visible in its answers, without a restart."""

from __future__ import annotations

from dataclasses import replace

from structlog.testing import capture_logs

from ftrie.api.client import Client
from model_store.store import Store
from model_store.versions.experiments import Experiment
from server.ranking.experiments import Assignment
from tests.server import shop
from tests.server.one_process import Server, serving
from tests.waiting import eventually

COOKIES = [f"c{n}" for n in range(30)]


def variants(client: Client) -> dict[str, str]:
    return {c: client.rank(cookie=c, candidates=["item-1"]).variant for c in COOKIES}


def change(store: Store, **parts: object) -> Experiment:
    return store.model(shop.NAME).experiments.change(lambda before: replace(before, **parts))  # type: ignore[arg-type]


def in_force(server: Server, wanted: Experiment) -> None:
    eventually(lambda: server.current.assignment.experiment == wanted)


def test_shares_pins_salt_and_a_winner_take_effect_while_it_runs(
    store: Store, server: Server, client: Client
) -> None:
    before = variants(client)
    assert set(before.values()) == {"base", "plain"}
    pinned = {"c1": "base", "c2": "plain"}
    for parts in (
        {"shares": {"base": 1.0}},
        {"shares": {"base": 0.2, "plain": 0.8}, "pins": pinned},
        {"salt": "another"},
        {"shares": {}, "salt": "", "pins": {}},
    ):
        wanted = change(store, **parts)
        in_force(server, wanted)
        expected = Assignment(shop.NAME, shop.VARIANTS, (0.5, 0.5), wanted)
        assert variants(client) == {c: shop.VARIANTS[expected.choose(c)] for c in COOKIES}
    assert variants(client) == before
    for request_id in COOKIES:  # divides a request without a cookie
        answer = client.rank(request_id=request_id, candidates=["item-1"])
        assert answer.variant == shop.VARIANTS[expected.choose(request_id)]
    in_force(server, change(store, objective="-score"))
    answers = [client.rank(candidates=list(shop.ITEMS), objective=text).items for text in ("", "score")]
    down, up = ([item.score for item in items] for items in answers)
    assert (down, up) == (sorted(down), sorted(up, reverse=True)), "where the request names none"
    in_force(server, store.model(shop.NAME).experiments.change(lambda before: before.stopped("plain")))
    assert set(variants(client).values()) == {"plain"}
    assert client.rank(cookie="c1", candidates=["item-1"], variant="base").variant == "base", "forced"


def test_a_record_that_does_not_fit_or_cannot_be_read_is_refused_aloud_and_the_last_good_one_stays(
    store: Store, server: Server, client: Client
) -> None:
    good = change(store, shares={"plain": 1.0}, apprentice=True)
    in_force(server, good)
    with capture_logs() as logs:
        change(store, shares={"other": 1.0}, apprentice=False)
        eventually(lambda: "no variant 'other'" in server.current.assignment.problem)
        eventually(lambda: any(line["event"] == "experiment refused" for line in logs))
    refused = next(line for line in logs if line["event"] == "experiment refused")
    assert (refused["log_level"], refused["in_force"]) == ("error", good.revision)
    assert server.current.assignment.experiment == good
    assert set(variants(client).values()) == {"plain"}
    callers = list(shop.ITEMS)[::-1]
    assert [item.id for item in client.rank(cookie="u1", candidates=callers).items] == callers, (
        "still an apprentice"
    )
    in_force(server, change(store, shares={"base": 1.0}))
    assert server.current.assignment.problem == ""

    experiments = store.model(shop.NAME).experiments
    with capture_logs() as logs:
        store.client.hset(store.model(shop.NAME).keys.experiment, "shares", '{"base": 0.5}')
        eventually(lambda: any("sum to 0.5" in str(line.get("error")) for line in logs))
    assert set(variants(client).values()) == {"base"}
    in_force(server, experiments.clear())
    assert set(variants(client).values()) == {"base", "plain"}


def test_each_model_has_an_experiment_of_its_own_which_is_in_force_from_the_first_answer(
    shop_store: Store, store_url: str
) -> None:
    other = "other-shop"
    shop_store.model(other).publish_and_activate(shop.artefact())
    wanted = change(shop_store, shares={"plain": 1.0})
    shop_store.model(other).experiments.change(lambda before: before.divided({"base": 1.0}))
    with serving(store_url, shop.NAME, other) as server, Client(server.address, timeout_s=20.0) as client:
        for model, variant in ((shop.NAME, "plain"), (other, "base")):
            answers = [client.rank(model, cookie=c, candidates=["item-1"]) for c in COOKIES]
            assert {(a.model, a.variant) for a in answers} == {(model, variant)}
        assert server.current.assignment.experiment == wanted
