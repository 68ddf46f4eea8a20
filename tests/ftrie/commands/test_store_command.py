"""`ftrie store …` as a user types it."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path

import pytest

from model_store.artefact.artefact import Artefact
from model_store.artefact.inspection import one_variant
from model_store.features.history import HistoryPlan, UserHistory
from model_store.spec.spec import parse_spec
from model_store.store import Store
from model_store.streams.event_streams import Letter
from model_store.streams.feedback import Event
from tests.ftrie.conftest import Ask, Say
from tests.model_store.models import KEYS, model, own_model

PLAN = HistoryPlan.of(
    parse_spec(
        '[model]\nname = "ads"\n[input]\nlabel = "click"\ntimestamp = "ts"\ncookie = "cookie"\nitem = "item"\n'
        '[fields]\nseen = {side = "user", kind = "number", history = "seen", measure = "count"}\n'
    ).resolve(("click", "cookie", "item", "ts", "seen"))
)

pytestmark = pytest.mark.usefixtures("default_store")
JSON_MODEL = {
    "list": [
        {"fid": "0", "key": "P_N_T_1_20631_5d3eb4db", "value": -0.00515923},
        {"fid": 7, "key": "age=25", "value": 0.30000000000000004},
        {"fid": "c", "key": "age*brand=25*日本", "value": 1e-300},
    ],
    "type": "ps_cmi_ad",
}
SPEC = '[model]\nname = "ads"\n[input]\nlabel = "click"\n[fields]\nage = { side = "user" }\n'


@pytest.fixture
def json_model(tmp_path: Path) -> Path:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(JSON_MODEL))
    return path


def test_models_survive_import_and_export_as_they_are(
    ask: Ask, store: Store, json_model: Path, tmp_path: Path
) -> None:
    answer = ask("store", "import", "ads", json_model)
    assert answer == {"model": "ads", "version": 1, "rows": 3, "deleted": []}
    assert store.model("ads").active() == 1
    ask("store", "export", "ads", tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text()) == JSON_MODEL

    store.model("ads").publish_and_activate(model())
    ask("store", "export", "ads", tmp_path / "ads.arrow")
    assert (tmp_path / "ads.arrow").read_bytes() == model().to_bytes()
    ask("store", "import", "again", tmp_path / "ads.arrow")
    assert store.model("again").materialise(1).sha256 == model().sha256


def test_an_import_keeps_as_many_versions_as_publishing_does(ask: Ask, store: Store, tmp_path: Path) -> None:
    for seed in range(7):
        model(weights=[seed + 0.5, 1, 2, 3, 4]).write(tmp_path / "m.arrow")
        if seed < 6:
            ask("store", "import", "ads", tmp_path / "m.arrow", "--keep", "0")
    assert len(store.model("ads").versions()) == 6
    answer = ask("store", "import", "ads", tmp_path / "m.arrow", "--keep", "5")
    assert (answer["version"], answer["deleted"]) == (7, [1, 2])
    assert [each.version for each in store.model("ads").versions()] == [3, 4, 5, 6, 7]
    assert ask("store", "import", "ads", tmp_path / "m.arrow", "--keep", "2")["deleted"] == [3, 4, 5, 6]


def test_an_imported_json_model_takes_the_spec_given_else_that_of_the_active_version_else_one_inferred(
    ask: Ask, say: Say, store: Store, json_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "ads.toml").write_text(SPEC)
    ads = store.model("ads")
    code, out, err = say("store", "import", "ads", json_model)
    assert (code, "version 1 is active, 3 keys" in out) == (0, True)
    fields = "age (context), brand (context), raw (context), user_raw (user), item_raw (item)"
    assert f"inferred, fields {fields}" in err
    assert list(ads.materialise(1).spec.fields) == ["age", "brand", "raw", "user_raw", "item_raw"]
    ask("store", "import", "ads", json_model, "--spec", tmp_path / "ads.toml")
    assert ads.materialise(2).spec.fields["age"].side == "user"
    ads.publish_and_activate(model())
    ask("store", "import", "ads", json_model)
    imported = ads.materialise(4)
    assert imported.spec == model().spec
    assert imported.variants.tolist() == [0b11] * 3


def test_a_bad_file_is_refused_and_nothing_published(say: Say, store: Store, tmp_path: Path) -> None:
    for name, content, complaint in (
        ("m.json", '{"list": [{"fid": "0"}], "type": "t"}', "m.json: list[0]: not exactly these members"),
        ("m.arrow", "nonsense", "m.arrow: not a model file"),
        ("m.bin", "", "expected a name that ends in .arrow (artefact) or .json"),
    ):
        (tmp_path / name).write_text(content)
        code, _, err = say("store", "import", "ads", tmp_path / name)
        assert (code, complaint in err) == (4, True), err
    assert say("store", "import", "ads", tmp_path / "none.json")[0] == 4
    assert store.model("ads").versions() == []


def test_versions_activate_rollback_and_gc(ask: Ask, store: Store) -> None:
    for _ in range(4):
        store.model("ads").publish_and_activate(model())
    listed = [(each["version"], each["active"]) for each in ask("store", "versions", "ads")]
    assert listed == [(1, False), (2, False), (3, False), (4, True)]
    assert ask("store", "activate", "ads", 2) == {"model": "ads", "active": 2, "before": 4}
    assert ask("store", "rollback", "ads") == {"model": "ads", "active": 4, "before": 2}
    assert ask("store", "rollback", "ads", 3) == {"model": "ads", "active": 3, "before": 4}
    dry = ask("store", "gc", "ads", "--keep", 1, "--dry-run")
    assert dry == {"model": "ads", "deleted": [1], "dry_run": True}
    assert ask("store", "gc", "ads", "--keep", 1)["deleted"] == [1]


def test_inspect_tells_the_manifest_the_fields_and_the_heaviest_keys_also_under_a_prefix(
    ask: Ask, store: Store
) -> None:
    published = model(KEYS, [0.1, -3, 2, 0.5, 1])
    store.model("ads").publish_and_activate(published)
    told = ask("store", "inspect", "ads", "--top", 2)
    assert (told["version"], told["rows"], told["sha256"]) == (1, 5, published.sha256)
    assert told["metrics"] == {"base": {"logloss": 0.4}}
    assert [(each["name"], each["keys"], each["heaviest"]) for each in told["keys"][:2]] == [
        ("age", 2, 3.0),
        ("age*brand", 1, 1.0),
    ]
    assert [(each["key"], each["weight"], each["variants"]) for each in told["top"]] == [
        ("age=25", -3.0, ["base"]),
        ("age=31", 2.0, ["base"]),
    ]

    told = ask("store", "inspect", "ads", "--prefix", "age", "--top", 1)
    assert (told["version"], told["prefix"], told["keys"]) == (1, "age", 3)
    used = {"keys": 3, "nonzero": 3, "weight_sum": 0.0, "absolute_sum": 6.0}
    assert told["variants"] == {"base": used, "plain": {**used, "nonzero": 0, "absolute_sum": 0.0}}
    assert [(each["prefix"], each["keys"], each["absolute_sums"]["base"]) for each in told["branches"]] == [
        ("age*brand=25*acme", 1, 1.0),
        ("age=", 2, 5.0),
    ]
    assert [each["key"] for each in told["top"]] == ["age=25"]
    assert ask("store", "inspect", "ads", "--prefix", "age*", "--top", 1) == told
    assert ask("store", "inspect", "ads", "--prefix", "age**")["keys"] == 1
    assert ask("store", "inspect", "ads", "--prefix", "hour")["branches"] == []


def test_without_json_every_command_prints_for_a_reader(say: Say, store: Store, tmp_path: Path) -> None:
    for _ in range(3):
        store.model("ads").publish_and_activate(model())
    for arguments, expected in [
        (["versions", "ads"], "active"),
        (["activate", "ads", 1], "ads: version 1 is active (before: 3)"),
        (["rollback", "ads"], "ads: version 3 is active (before: 1)"),
        (["gc", "ads", "--keep", 1, "--dry-run"], "would delete 1"),
        (["gc", "ads"], "deleted nothing"),
        (["inspect", "ads", 3], "age*brand=25*acme"),
        (["inspect", "ads", "--prefix", "age=*"], "age=31"),
        (["export", "ads", tmp_path / "o.arrow", "--version", 2], "wrote version 2, 5 keys"),
    ]:
        code, out, err = say("store", *arguments)
        assert (code, expected in out) == (0, True), (arguments, out, err)
    assert Artefact.read(tmp_path / "o.arrow").rows == 5


def test_what_is_not_there_is_said_with_what_is(say: Say, store: Store) -> None:
    store.model("ads").publish(model())
    for arguments, expected in [
        (["export", "ads", "o.arrow"], "no version of ads is active; its versions: 1"),
        (["inspect", "ads"], "no version of ads is active"),
        (["activate", "ads", 9], "ads has no version 9; its versions: 1"),
        (["rollback", "ads"], "no version before the active one"),
    ]:
        code, _, err = say("store", *arguments)
        assert (code, expected in err) == (5, True), (arguments, err)


def test_users_items_and_candidates_are_loaded(ask: Ask, say: Say, store: Store, tmp_path: Path) -> None:
    users, items, home = tmp_path / "u.csv", tmp_path / "i.jsonl", tmp_path / "home.txt"
    users.write_text("cookie,age\nu1,25\nu2,31\n")
    items.write_text('{"sku": "i1", "tags": ["a", "b"]}\n')
    home.write_text("i2\ni1\n")
    assert ask("store", "load", "users", users) == {"kind": "users", "rows": 2}
    assert ask("store", "load", "items", items, "--id-column", "sku") == {"kind": "items", "rows": 1}
    assert store.records.item_changes.state().reread == ""
    assert ask("store", "load", "items", items, "--id-column", "sku", "--only")["rows"] == 1
    assert store.records.item_changes.state().reread != ""
    assert ask("store", "load", "candidates", "home", home) == {"candidates": "home", "ids": 2}
    assert store.records.user("u2") == {"age": "31"}
    assert store.records.items(["i1"]) == [{"tags": '["a", "b"]'}]
    assert store.records.candidates("home") == ["i2", "i1"]
    assert "users: 2 rows" in say("store", "load", "users", users)[1]
    assert "candidates home: 2 ids" in say("store", "load", "candidates", "home", home)[1]
    assert say("store", "load", "users", home)[0] == 3


def test_real_items_are_loaded(ask: Ask, store: Store, open_bandit_folder: Path) -> None:
    assert ask("store", "load", "items", open_bandit_folder / "item_context.csv")["rows"] == 34
    assert store.records.items(["33"])[0] is not None


def test_a_variant_with_its_own_weights_is_exported_and_inspected_alone(
    ask: Ask, say: Say, store: Store, tmp_path: Path
) -> None:
    store.model("ads").publish_and_activate(own_model())
    for variant, complaint in (
        ([], "choose one with --variant base|plain|lean"),
        (["--variant", "bold"], "no variant 'bold'; the model has: base, plain, lean"),
    ):
        code, _, err = say("store", "export", "ads", tmp_path / "m.json", *variant)
        assert (code, complaint in err) == (2, True), err
    assert not (tmp_path / "m.json").exists()

    assert ask("store", "export", "ads", tmp_path / "m.json", "--variant", "plain")["rows"] == 2
    written = json.loads((tmp_path / "m.json").read_text())["list"]
    assert {each["key"]: each["value"] for each in written} == {"age=31": 2.0, "brand=acme": 4.0}
    ask("store", "export", "ads", tmp_path / "m.arrow", "--variant", "lean")
    ask("store", "import", "lean", tmp_path / "m.arrow")
    assert store.model("lean").materialise(1).sha256 == one_variant(own_model(), "lean").sha256

    told = ask("store", "inspect", "ads", "--top", 2)
    assert [(each["key"], each["weight"], each["weights"]) for each in told["top"]] == [
        ("brand=acme", 4.0, {"plain": 4.0}),
        ("age=31", 3.0, {"base": 1.0, "plain": 2.0, "lean": 3.0}),
    ]
    age = next(each for each in told["keys"] if each["name"] == "age")
    assert (age["keys"], age["weight_sum"], age["heaviest"]) == (2, 7.0, 3.0)
    only = ask("store", "inspect", "ads", "--variant", "base")
    assert [(each["key"], each["weight"]) for each in only["top"]] == [
        ("age=31", 1.0),
        ("bias", 0.5),
        ("age*brand=25*acme", 0.25),
    ]
    assert list(only["metrics"]) == ["base"]
    table = [line.split() for line in say("store", "inspect", "ads", "--top", 2)[1].splitlines()]
    assert ["key", "base", "plain", "lean"] in table
    assert ["brand=acme", "—", "4.00000", "—"] in table


@pytest.fixture
def line(store: Store) -> list[Artefact]:
    """A snapshot as version 1 and two deltas after it, the last one active; the models they stand for."""
    made = [model(KEYS[:3]), model(KEYS[:4]), model(KEYS[1:4], [1.5, 2.5, 3.5])]
    ads = store.model("ads")
    ads.publish(made[0])
    ads.publish(made[1].changes_since(made[0], version=1))
    ads.publish_and_activate(made[2].changes_since(made[1], version=2))
    return made


def test_versions_and_inspect_say_what_is_a_delta_of_what_and_how_small(
    ask: Ask, say: Say, line: list[Artefact]
) -> None:
    listed = ask("store", "versions", "ads")
    assert [(each["kind"], each["parent"], each["rows"]) for each in listed] == [
        ("snapshot", None, 3),
        ("delta", 1, 1),
        ("delta", 2, 1),
    ]
    assert [each["content"] for each in listed] == [each.content for each in line]
    assert all(each["bytes"] > 0 for each in listed)
    out = say("store", "versions", "ads")[1]
    assert {"kind", "parent", "bytes"} <= {*out.splitlines()[0].split()} and "delta" in out
    shown = ask("store", "inspect", "ads")  # the model that the delta makes
    assert (shown["version"], shown["kind"], shown["parent"], shown["chain"]) == (3, "delta", 2, [1, 2, 3])
    assert (shown["rows"], shown["content"]) == (1, line[2].content)
    assert sum(each["keys"] for each in shown["keys"]) == 3


def test_a_delta_is_exported_whole_unless_asked_for_as_it_is_and_imported_onto_what_it_changes(
    ask: Ask, say: Say, store: Store, line: list[Artefact], tmp_path: Path
) -> None:
    whole, delta = tmp_path / "whole.arrow", tmp_path / "delta.arrow"
    ask("store", "export", "ads", whole)
    assert whole.read_bytes() == line[2].to_bytes()
    answer = ask("store", "export", "ads", delta, "--delta", "--version", 2)
    assert (answer["kind"], answer["parent"], answer["rows"]) == ("delta", 1, 1)
    assert delta.read_bytes() == store.model("ads").fetch(2).to_bytes()

    code, _, complaint = say("store", "import", "shop", delta)
    assert code == 4
    assert "no version of shop has that content; import the whole model" in " ".join(complaint.split())
    shop = store.model("shop")
    for artefact in (line[0], line[0], line[2]):
        shop.publish(artefact)
    imported = ask("store", "import", "shop", delta)  # the newest version that it changes
    assert imported == {"model": "shop", "version": 4, "rows": 1, "deleted": [], "kind": "delta", "parent": 2}
    assert shop.materialise(4).to_bytes() == line[1].to_bytes()
    assert shop.active() == 4


def test_a_snapshot_is_no_delta_to_export_nor_is_the_json_form(
    say: Say, line: list[Artefact], tmp_path: Path
) -> None:
    code, _, complaint = say("store", "export", "ads", tmp_path / "d.arrow", "--delta", "--version", 1)
    assert code == 4
    assert "version 1 of ads is a snapshot; export it without --delta" in " ".join(complaint.split())
    assert say("store", "export", "ads", tmp_path / "d.json", "--delta")[0] == 2
    assert list(tmp_path.iterdir()) == []


def impression(request: str, cookie: object, **more: object) -> bytes:
    items = [{"id": "a", "features": {"price": 1}}]
    event = {"request_id": request, "cookie": cookie, "ts": 1_700_000_000, "items": items, **more}
    return json.dumps(event, ensure_ascii=False).encode()


def test_a_person_is_forgotten_and_nobody_else(ask: Ask, say: Say, store: Store) -> None:
    """Given two persons everywhere in the store, one is gone after the command, and the other as before."""
    ads, cookie, other = store.model("ads"), 'Ümit "x"', "ann"
    ads.publish_and_activate(model())
    store.impressions("ads").append(
        [
            impression("r1", cookie),
            impression("r2", other, note=cookie),
            impression("r3", cookie)
            .decode()
            .encode("ascii", "backslashreplace")
            .replace(b"\\xdc", b"\\u00dc"),
            b"no event",
        ]
    )
    with closing(store.feedback()) as feedback:
        feedback.report("ads", [Event(request, "a") for request in ("r1", "r2", "r3")])
        feedback.report("ads", [Event("r1", "a", "conversion", value=2.0)])
    letters = [impression("r9", cookie)[:-1], b'{"request_id": "r3", "item": 1}', b'{"who": "ann"}']
    store.dead_letters("ads").add(1, [Letter("join", "", "why", each) for each in letters])
    store.records.put_users([(each, {"age": "25"}) for each in (cookie, other)])
    record = b"%s" % UserHistory().encode(PLAN)
    store.records.put_histories("ads", [(each.encode(), record) for each in (cookie, other)], 60_000)
    ads.experiments.change(lambda before: before.pinned({cookie: "base", other: "base"}))

    def left() -> dict[bytes, str]:
        """What is in the store, key by key."""
        client = store.client
        read = {
            b"stream": client.xrange,
            b"hash": client.hgetall,
            b"string": client.get,
            b"zset": client.zscan,
        }
        return {key: repr(read[client.type(key)](key)) for key in client.scan_iter()}

    counts = {"pins": 1, "impressions": 2, "clicks": 3, "dead_letters": 2, "histories": 1}
    before = left()
    shown = ask("store", "forget", cookie, "--dry-run")
    assert (shown["record"], shown["models"], shown["dry_run"]) == (True, [{"model": "ads", **counts}], True)
    assert left() == before
    answer = ask("store", "forget", cookie)
    assert (answer["record"], answer["models"], answer["late"]) == (True, [{"model": "ads", **counts}], 0)

    streams = [store.impressions("ads").latest(9), store.clicks("ads").latest(9)]
    assert [b"r2" in each or each == b"no event" for events in streams for each in events] == [True] * 3
    assert [letter.json for _, letter in store.dead_letters("ads").latest(9)] == [letters[2]]
    assert store.records.user(other) == {"age": "25"} and not store.records.user(cookie)
    assert ads.experiments.read().pins == {other: "base"}
    escaped = [json.dumps(cookie, ensure_ascii=is_ascii)[1:-1] for is_ascii in (True, False)]
    names = [repr(text.encode())[2:-1] for text in (cookie, *escaped)]
    still = [key for key, value in left().items() if any(name in f"{key!r}{value}" for name in names)]
    assert still == [b"ftrie:{ads}:impressions"]  # in another person's event
    [entry, *_] = ads.audit.read()
    assert (entry.tool, entry.action, json.loads(entry.before)) == ("ftrie store forget", "forget", counts)
    assert "impressions: 2 → none" in entry.words
    assert store.check() == []
    nothing = {"pins": 0, "impressions": 0, "clicks": 0, "dead_letters": 0, "histories": 0}
    assert ask("store", "forget", cookie, "--model", "ads")["models"] == [{"model": "ads", **nothing}]
    code, _, err = say("store", "forget", other, "--model", "none")
    assert (code, "nothing of a model none; it has: ads" in err) == (5, True)


def test_a_trainer_that_has_not_forgotten_in_time_is_named(say: Say, store: Store) -> None:
    """Given the lease of a trainer that says nothing, the command ends with 5 and names its process."""
    lease = store.trainer_lease("ads", "silent")
    lease.take()
    code, out, err = say("store", "forget", "u1", "--wait", "0.1")
    assert code == 5 and f"{os.getpid()} on " in " ".join(out.split())
    assert "1 running trainer has not said in time" in err
    [entry] = store.to_forget("ads").after("", pytest.fail)
    lease.has_forgotten(entry.id)
    assert store.forget("u1", wait_s=0.0).trainers[0].forgot is False  # an entry of its own
    lease.has_forgotten(store.to_forget("ads").after("", pytest.fail)[-1].id)
    store.client.xadd("ftrie:{ads}:forget", {"cookie": "u1"})
    assert [finding.key for finding in store.check(["ads"], repair=True)] == ["ftrie:{ads}:forget"]
    assert len(store.to_forget("ads").after("", pytest.fail)) == 2
