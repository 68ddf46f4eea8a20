"""`ftrie experiment …` as an operator types it; `ftrie store audit` after changes with every tool; dead letters."""

from __future__ import annotations

import json
from typing import Any

import pytest

import ftrie
from model_store.store import Store
from model_store.streams.event_streams import Letter
from model_store.versions.audit import operator
from model_store.versions.experiments import Experiment, Explore
from tests.ftrie.conftest import Ask, Say
from tests.model_store.models import model

pytestmark = pytest.mark.usefixtures("ads")


def record(store: Store) -> Experiment:
    stored = store.model("ads").experiment()
    assert stored is not None
    return stored


def test_set_says_what_is_in_force_and_how_many_cookies_move(say: Say, ask: Ask, store: Store) -> None:
    code, out, _ = say("experiment", "show", "ads")
    assert (code, "no experiment; the shares are those of the spec" in out) == (0, True)
    assert ask("experiment", "show", "ads") == {
        "model": "ads",
        "experiment": None,
        "in_force": {"base": 0.5, "plain": 0.5},
        "problem": None,
        "moves": None,
    }
    answer = ask("experiment", "set", "ads", "base=0.9", "plain=0.1")
    assert answer["in_force"] == {"base": 0.9, "plain": 0.1}
    assert answer["moves"] == pytest.approx(0.4)
    assert ask("experiment", "set", "ads", "--salt", "autumn")["moves"] == pytest.approx(1 - 0.81 - 0.01)
    code, out, _ = say("experiment", "set", "ads", "plain=1", "--objective", "ctr * bid")
    assert code == 0
    assert [line.split() for line in out.splitlines()[2:4]] == [
        ["base", "0.00000", "0.50000", "0", "no"],
        ["plain", "1.00000", "0.50000", "0", "no"],
    ]
    rest = "revision 3, running, 0 pins\nsalt: autumn\nobjective: ctr * bid\nmoves 90.0% of the cookies"
    assert rest in out
    assert (record(store).shares, record(store).salt) == ({"plain": 1.0}, "autumn")
    assert ask("experiment", "set", "ads", "--salt", "", "--objective", "")["experiment"]["salt"] == ""


def test_pins_come_and_go_and_a_cookie_may_hold_an_equals_sign(ask: Ask, store: Store) -> None:
    ask("experiment", "pin", "ads", "u1=plain", "a=b=base")
    ask("experiment", "pin", "ads", "u2=plain")
    assert record(store).pins == {"u1": "plain", "a=b": "base", "u2": "plain"}
    ask("experiment", "unpin", "ads", "u1", "never pinned")
    assert record(store).pins == {"a=b": "base", "u2": "plain"}
    ask("experiment", "unpin", "ads", "--all")
    assert record(store).pins == {}


def test_variants_are_interleaved_until_shares_divide_them(say: Say, ask: Ask, store: Store) -> None:
    made = ask("experiment", "set", "ads", "--interleave", "base,plain", "--draft", "probabilistic")
    assert (record(store).interleave, record(store).draft) == (("base", "plain"), "probabilistic")
    assert made["moves"] == 1.0
    _, out, _ = say("experiment", "show", "ads")
    assert "interleaved, probabilistic draft: base and plain" in out
    assert ask("experiment", "pin", "ads", "u=base")["moves"] == 0.0
    assert ask("experiment", "set", "ads", "base=1")["moves"] == 1.0
    assert record(store).interleave == ()
    for words, complaint in (
        ("--interleave base,other", "interleave: no variant 'other' in the model; it has: base, plain"),
        ("--interleave base", "interleave: got base; expected 2 to 4 variants, each once"),
        ("--interleave base,plain base=1", "shares end an interleaving"),
        ("--draft team", "--draft is of --interleave"),
    ):
        code, _, err = say("experiment", "set", "ads", *words.split())
        assert (code != 0, complaint in " ".join(err.split())) == (True, True), err
    assert record(store).interleave == ()


def test_shadows_a_winner_and_back_to_the_spec(ask: Ask, store: Store) -> None:
    ask("experiment", "shadow", "ads", "plain")
    assert record(store).shadows == ("plain",)
    ended = ask("experiment", "stop", "ads", "--winner", "plain")
    assert (ended["in_force"], ended["experiment"]["state"]) == ({"base": 0.0, "plain": 1.0}, "stopped")
    again = ask("experiment", "set", "ads", "base=1")
    assert (again["in_force"], again["experiment"]["state"]) == ({"base": 1.0, "plain": 0.0}, "running")
    ask("experiment", "shadow", "ads", "--off")
    assert record(store).shadows == ()
    assert ask("experiment", "clear", "ads")["in_force"] == {"base": 0.5, "plain": 0.5}
    assert record(store).revision == 5


def test_exploration_and_apprentice_mode_are_set_part_by_part_and_ended(say: Say, store: Store) -> None:
    def set_(*words: str) -> str:
        code, out, err = say("experiment", "set", "ads", *words)
        assert (code, err) == (0, "")
        return out

    assert "explores: thompson:1, at most 1 of the requests" in set_("--explore", "thompson:1")
    set_("--explore-share", "0.25", "--apprentice")
    out = set_("--explore-cost", "0.02", "--new-items", "0.2:30")
    assert (
        "at most 0.25 of the requests, at most 0.02 of the clicks, 0.2 of the places for items below 30"
        in out
    )
    assert "apprentice: candidates are answered in the order in which they come" in out
    assert record(store).explore == Explore("thompson", 1.0, 0.25, 0.02, 0.2, 30.0)
    assert record(store) == Experiment.from_json(record(store).to_json())
    assert store.client.hget(store.model("ads").keys.experiment, "format") == b"2", "older servers refuse it"
    set_("--explore", "", "--no-apprentice")
    assert (record(store).explore, record(store).apprentice) == (None, False)
    assert store.client.hget(store.model("ads").keys.experiment, "format") == b"1"


def test_a_mistake_is_told_and_nothing_changes(say: Say, store: Store) -> None:
    for words, code, message in (
        ("set ads base=0.9", 2, "base sum to 0.9; expected 1"),
        ("set ads base=0.5 other=0.5", 2, "no variant 'other' in the model; it has: base, plain"),
        ("set ads base=all", 2, "got 'base=all', expected VARIANT=SHARE with a number"),
        ("set ads base", 2, "got 'base', expected VARIANT=SHARE"),
        ("set ads base=0.5 plain=0.4 plain=0.5", 2, "got 'plain' twice: 0.4 and 0.5"),
        ("set ads --objective ctr*", 2, "objective: "),
        (
            "set ads",
            2,
            "give shares such as base=0.9 plain=0.1, --interleave, --salt, --objective, --explore or --apprentice",
        ),
        ("set ads --explore all", 2, "got 'all', expected ucb:WIDTH or thompson:WIDTH"),
        ("set ads --explore ucb:-1", 2, "explore: got width -1.0; expected a finite number, 0 or more"),
        ("set ads --explore-share 0.1", 2, "nothing explores yet; give --explore too"),
        ("set ads --explore ucb:1 --new-items 0.1", 2, "new_below is 0, so no item is new"),
        ("set ads --explore ucb:1 --new-items x:1", 2, "got 'x:1', expected SHARE:N"),
        ("set ads base=1 --revision 7", 5, "expected revision 7, found 0"),
        ("pin ads u1", 2, "got 'u1', expected COOKIE=VARIANT"),
        ("pin ads u1=base u1=plain", 2, "got 'u1' twice: base and plain"),
        ("pin ads u1=other", 2, "pins: no variant 'other'"),
        ("unpin ads", 2, "give either cookies or --all"),
        ("shadow ads other", 2, "shadows: no variant 'other'"),
        ("shadow ads", 2, "give either variants or --off"),
        ("stop ads --winner other", 2, "winner: no variant 'other'"),
        ("show a/b", 2, "got the model name 'a/b'"),
    ):
        answered, out, err = say("experiment", *words.split())
        assert (answered, out, message in err) == (code, "", True), (words, out, err)
        assert store.model("ads").experiment() is None, words


def test_an_experiment_that_no_version_fits_is_kept_and_said_to_be_so(say: Say, store: Store) -> None:
    code, out, err = say("experiment", "set", "new", "base=1")
    assert (code, "new: revision 1, running" in out) == (0, True)
    assert "no version of new is active yet" in err  # so that names are not checked
    store.model("ads").experiments.write(Experiment(shares={"old": 1.0}))
    code, out, err = say("experiment", "show", "ads")
    assert (code, "servers refuse this experiment: shares: no variant 'old'" in err) == (0, True)
    assert "revision 1" in out
    store.client.hset(store.model("ads").keys.experiment, "shares", "?")  # a damaged record
    code, _, err = say("experiment", "show", "ads")
    assert (code, "`ftrie experiment clear ads` resets it" in err) == (5, True)
    assert say("experiment", "clear", "ads")[0] == 0
    assert say("experiment", "show", "ads")[0] == 0


COMMANDS = """
store activate ads 1
store rollback ads
store resume ads
store resume ads
experiment set ads base=0.9 plain=0.1
experiment pin ads u1=plain
experiment unpin ads --all
experiment shadow ads plain
experiment set ads --salt s
experiment stop ads --winner plain
experiment set ads base=1
experiment clear ads
"""
"""Of which the second resume changes nothing: nothing is pinned any more."""


def publish_twice(store: Store) -> None:
    """So that version 3 is active."""
    for number in (2.0, 3.0):
        store.model("ads").publish_and_activate(model(weights=[number] * 5))


def entries(ask: Ask) -> list[dict[str, Any]]:
    """What `ftrie store audit ads --json` lists, oldest first."""
    listed: list[dict[str, Any]] = ask("store", "audit", "ads")
    return listed[::-1]


def test_every_command_that_changes_what_is_served_is_listed(store: Store, ask: Ask, say: Say) -> None:
    publish_twice(store)
    assert say("store", "audit", "ads")[1] == "ads: no change by an operator is known\n"
    store.trainer_lease("ads", "folder").take()  # with a trainer, a manual activation pins
    for command in COMMANDS.strip().splitlines():
        assert say(*command.split())[0] == 0, command
    found = entries(ask)
    assert [(each["tool"], each["action"]) for each in found] == [
        ("ftrie store activate", "activate"),
        ("ftrie store rollback", "rollback"),
        ("ftrie store resume", "resume"),
        ("ftrie experiment set", "shares"),
        ("ftrie experiment pin", "pin"),
        ("ftrie experiment unpin", "unpin"),
        ("ftrie experiment shadow", "shadow"),
        ("ftrie experiment set", "settings"),
        ("ftrie experiment stop", "stop"),
        ("ftrie experiment set", "start"),
        ("ftrie experiment clear", "clear"),
    ]
    assert {each["who"] for each in found} == {operator()}
    assert [(each["before"], each["after"]) for each in found[:3]] == [("3", "1"), ("1", "3"), ("3", "")]
    assert json.loads(found[3]["after"]) == {"shares": {"base": 0.9, "plain": 0.1}}
    out = say("store", "audit", "ads", "--last", "1")[1]  # the latest
    assert "ftrie experiment clear" in out and operator() in out
    assert out.count(" UTC ") == 1


def test_a_change_from_python_is_listed_and_one_that_fails_is_not(store: Store, ask: Ask, say: Say) -> None:
    publish_twice(store)
    assert say("store", "activate", "ads", "9")[0] != 0
    assert say("experiment", "set", "ads", "none=1")[0] != 0
    with ftrie.Store() as opened:
        assert opened.activate("ads", 1) == 3
        assert opened.rollback("ads", 2) == 2
    found = [(each["tool"], each["action"], each["before"], each["after"]) for each in entries(ask)]
    assert found == [("python", "activate", "3", "1"), ("python", "rollback", "1", "2")]
    store.client.set("ftrie:{ads}:audit", "no stream")  # the change stays
    code, _, err = say("store", "activate", "ads", "1")
    assert (code, "not in the audit" in err) == (0, True)
    assert store.model("ads").active() == 1


def test_dead_letters_are_listed_latest_first_and_give_no_orders_to_the_terminal(
    store: Store, ask: Ask, say: Say
) -> None:
    said = Letter("redis#clicks", "1700000000123-0", "no request_id", '{"item": "ü"}'.encode())
    letters = store.dead_letters("ads")
    letters.add(1, [said, Letter("file:a", "7", "not JSON", b"\xff" * 500)])
    _, out, _ = say("store", "dead", "ads")
    assert out.index("not JSON") < out.index("no request_id")
    assert "redis#clicks" in out and '{"item": "ü"}' in out and "…" in out
    assert ask("store", "dead", "ads", "--last", "1") == [  # with its whole event
        {"number": 2, "source": "file:a", "place": "7", "reason": "not JSON", "event": "\\xff" * 500}
    ]
    letters.add(3, [Letter("file:a", "8", 'event: got "\x1b[2J"', b"\x1b]0;title\x07\r{")])
    _, out, _ = say("store", "dead", "ads", "--last", "1")
    assert r'event: got "\x1b[2J"' in out and r"\x1b]0;title\x07\x0d{" in out
    assert "\x1b" not in out
    assert say("store", "dead", "shop") == (0, "shop: no dead letters\n", "")
