"""`ftrie init`: what it guesses from names and values, and that its spec parses and trains."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftrie import FtrieWarning, Spec
from ftrie.cli import run
from model_store.errors import FtrieError, SpecError
from model_store.spec.spec import ModelSpec, load_spec, parse_spec
from tests.trainer.inspect.planted import sampled
from trainer.inspect import examine, guesses
from trainer.inspect.guesses import Guess
from trainer.inspect.profiles import LogSample, Profile
from trainer.runs.first_spec import SpecDraft, model_name

ROWS = 400


def guess_all(profiles: Sequence[Profile], label: str | None = None) -> tuple[Guess, ...]:
    return guesses.guess_all(LogSample(tuple(profiles)), label)


def guess(values: list[Any], name: str = "x", label: list[int] | None = None) -> Guess:
    """Guess one column beside a label that is clicked every fourth row."""
    clicks = label or [int(i % 4 == 0) for i in range(len(values))]
    profiles = [Profile("click", tuple(map(str, clicks))), Profile(name, tuple(map(str, values)))]
    return guess_all(profiles)[1]


def cycle(values: list[Any], rows: int = ROWS) -> list[Any]:
    return [values[i % len(values)] for i in range(rows)]


def spread(count: int) -> list[int]:
    """Many whole numbers that do not lie close together, as codes do not."""
    return cycle([10_007 + 613 * i for i in range(count)])


@pytest.mark.parametrize("name", ["click", "is_click", "isClicked", "label", "y", "target", "user.converted"])
@pytest.mark.parametrize("values", [("0", "1"), ("false", "TRUE"), ("0.0", "1.0")])
def test_label_is_known_by_its_name(name: str, values: tuple[str, str]) -> None:
    profiles = [Profile("mobile", ("0", "1")), Profile(name, values)]
    assert [each.role for each in guess_all(profiles)] == ["field", "label"]


def test_label_may_be_the_only_column_of_0_and_1() -> None:
    assert guess_all([Profile("site", ("0", "2")), Profile("z", ("0", "1"))])[1].role == "label"


ZEROS = Profile("a", ("0", "1", "0"))


@pytest.mark.parametrize(
    ("profiles", "label", "refusal"),
    [
        (
            [Profile("a", ("x", "y")), Profile("b", ("0", "2"))],
            None,
            "cannot tell which column is the label: no column.*columns: a, b",
        ),
        ([ZEROS, replace(ZEROS, name="b")], None, "a, b could be it; name it with --label"),
        (
            [ZEROS, Profile("b", ("0", "maybe", "unknown"))],
            "b",
            "'b' cannot be the label: expected 1, 0, -1, true or false, or two values, got 'maybe', 'unknown'",
        ),
        ([ZEROS, replace(ZEROS, name="b")], "c", "no column 'c' in the log; it has a, b"),
    ],
)
def test_without_one_label_the_user_is_told_what_there_is(profiles, label, refusal):
    with pytest.raises(SpecError, match=refusal):
        guess_all(profiles, label)


def test_of_several_candidates_the_one_that_is_named_is_the_label() -> None:
    assert guess_all([ZEROS, replace(ZEROS, name="b")], "b")[1].role == "label"


@pytest.mark.parametrize(
    ("name", "values", "positive"),
    [
        ("outcome", ("skipped", "clicked", "skipped"), "clicked"),  # its name, by the words
        ("anything", ("clicked", "clicked", "skipped"), "clicked"),  # the words alone
        ("anything", ("purchase", "", ""), "purchase"),
        ("label", ("no", "yes", "yes"), "yes"),
        ("label", ("view", "engaged", "engaged"), "engaged"),
        ("label", ("1", "2", "2"), "2"),  # the larger number
        ("label", ("a", "b", "a"), "b"),  # the rarer value
        ("label", ("", "b", "b"), "b"),
        ("label", ("0", "1", "1"), None),
    ],
)
def test_a_label_of_two_values_says_which_is_a_click(name, values, positive):
    device, found = guess_all([Profile("device", ("phone", "desk", "phone")), Profile(name, values)])
    assert (device.role, found.role, found.positive) == ("field", "label", positive)


@pytest.mark.parametrize("values", [("yes", "no"), ("f", "m"), ("phone", "desk"), ("y", "x")])
def test_two_values_that_may_mean_anything_are_no_label_by_themselves(values: tuple[str, str]) -> None:
    with pytest.raises(SpecError, match="cannot tell which column is the label"):
        guess_all([Profile("a", values), Profile("b", ("u", "v"))])
    assert guess_all([Profile("a", values), Profile("b", ("u", "v"))], "a")[0].positive in values


@pytest.mark.parametrize("place", [0, -1])
def test_without_names_the_label_is_the_first_column_of_0_and_1_or_the_last(place: int) -> None:
    profiles = [Profile(f"c{n}", ("0", "2", "1")) for n in range(4)]
    profiles[1] = profiles[place] = Profile("two", ("0", "1", "1"))
    profiles[1] = Profile("c1", ("0", "1", "1"))
    assert guesses.guess_all(LogSample(tuple(profiles), has_header=False))[place].role == "label"
    with pytest.raises(SpecError, match="name it with --label"):
        guess_all(profiles)


def test_clicks_beside_views_are_counts() -> None:
    clicks, views = Profile("clicks", ("0", "3", "1")), Profile("impressions", ("9", "7", "1"))
    assert [each.role for each in guess_all([views, clicks])] == ["views", "label"]
    assert [each.role for each in guess_all([views, replace(clicks, name="n")], "n")] == ["views", "label"]


@pytest.mark.parametrize("views", [("9", "2", "1"), ("9", "", "1"), ("9", "3.5", "1"), ("1", "1", "1")])
def test_columns_that_cannot_be_counts_are_none(views: tuple[str, ...]) -> None:
    profiles = [
        Profile("clicks", ("0", "3", "1")),
        Profile("views", views),
        Profile("click", ("0", "1", "1")),
    ]
    assert [each.role for each in guess_all(profiles)][2] == "label"


THREE = cycle(["a", "b", "c"])
IGNORED = {"role": "ignore"}


def timed(form: str) -> dict[str, Any]:
    return {"role": "timestamp", "kind": "time", "format": form}


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        # Identities are known by their names,
        ("request_id", THREE, {"role": "request", "side": "context"}),
        ("request", THREE, {"role": "request", "side": "context"}),
        ("cookie", THREE, {"role": "cookie", "side": "user"}),
        ("userId", THREE, {"role": "cookie", "side": "user"}),
        ("item_id", THREE, {"role": "item", "side": "item"}),
        ("ad.id", THREE, {"role": "field", "side": "item"}),
        ("AdID", THREE, {"role": "item", "side": "item"}),
        # sides by the words of a name,
        ("user_age", THREE, {"side": "user"}),
        ("deviceModel", THREE, {"side": "user"}),
        ("brand", THREE, {"side": "item"}),
        ("item_price", THREE, {"side": "item"}),
        ("position", THREE, {"side": "context"}),
        ("site_category", THREE, {"side": "context"}),
        ("user-item_affinity", THREE, {"side": "context"}),
        ("item.color", THREE, {"side": "item"}),
        ("anything", THREE, {"side": "context"}),
        # times by how they are written; digits only under the name of a time,
        ("hour", cycle(["14102100", "14102123"]), timed("%y%m%d%H")),
        ("date", cycle(["20141021", "20141130"]), timed("%Y%m%d")),
        ("date", cycle(["2014102100", "2014113023"]), timed("%Y%m%d%H")),
        ("ts", cycle(["1541548955", "1541617265"]), timed("epoch_s")),
        ("ts", cycle(["1541548955123", "1541617265000"]), timed("epoch_ms")),
        ("any", cycle(["2019-11-24 00:01:03.979311+00:00", "2019-11-25 00:00:00+00:00"]), timed("iso")),
        ("any", cycle(["2019-11-24T00:01:03Z", "2019-11-25T00:01:03Z"]), timed("iso")),
        ("any", cycle([f"{day}/Nov/2019:00:01:03 +0000" for day in (24, 25)]), timed("%d/%b/%Y:%H:%M:%S %z")),
        ("ts", cycle(["1541548955123456", "1541617265000000"]), timed("epoch_us")),
        ("ts", cycle(["1541548955123456789", "1541617265000000000"]), timed("epoch_ns")),
        ("any", cycle(["2019-11-24 00:01:03 UTC", "2019-11-25 00:01:03.5 UTC"]), timed("iso")),
        ("any", cycle(["2019-11-24 00:01:03.000 -0800", "2019-11-25 00:01:03.000 -0800"]), timed("iso")),
        ("any", cycle(["2019-11-24t00:01:03z", "2019-11-25t00:01:03z"]), timed("iso")),
        ("any", cycle(["2019-11-24", "0000-00-00", "2019-11-25"]), timed("iso")),
        (
            "any",
            cycle([f"[{day}/Nov/2019:00:01:03 +0000]" for day in (24, 25)]),
            timed("[%d/%b/%Y:%H:%M:%S %z]"),
        ),
        ("any", cycle(["Sun, 24 Nov 2019 00:01:03 GMT"]), timed("%a, %d %b %Y %H:%M:%S GMT")),
        ("any", cycle(["Sun, 24 Nov 2019 00:01:03 +0100"]), timed("%a, %d %b %Y %H:%M:%S %z")),
        ("any", cycle(["24.11.2019 18:36", "25.11.2019 8:36"]), timed("%d.%m.%Y %H:%M")),
        ("any", cycle(["2019/11/24 18:36", "2019/3/5 8:36"]), timed("%Y/%m/%d %H:%M")),
        ("any", cycle(["2019-3-5 8:36", "2019-11-24 18:36"]), timed("%Y-%m-%d %H:%M")),
        ("any", cycle(["11/24/2019 06:36 PM", "11/25/2019 06:36 AM"]), timed("%m/%d/%Y %I:%M %p")),
        ("any", cycle(["24-11-2019 18:36", "25-11-2019 18:36"]), timed("%d-%m-%Y %H:%M")),
        # the one of day and month first by which times run forward, or close together; else it is asked;
        ("any", [f"10/{1 + row // 40:02d}/2026 18:36" for row in range(200)], timed("%m/%d/%Y %H:%M")),
        ("any", [f"{1 + row // 40:02d}/10/2026 18:36" for row in range(200)], timed("%d/%m/%Y %H:%M")),
        (
            "any",
            [f"{day:02d}/{month:02d}/2026" for month in (1, 2, 3) for day in (1, 5, 9)] * 9,
            timed("%d/%m/%Y"),
        ),
        (
            "any",
            [f"{month:02d}/{day:02d}/2026" for month in (1, 2, 3) for day in (1, 5, 9)] * 9,
            timed("%m/%d/%Y"),
        ),
        (
            "any",
            cycle(["10/07/2026 18:36", "10/07/2026 18:37"]),
            timed("%d/%m/%Y %H:%M") | {"warning": "first?"},
        ),
        ("zone", cycle(["1541548955", "1541617265"]), {"role": "field"}),
        # kinds by the values,
        ("price", [i * 0.37 for i in range(ROWS)], {"role": "field", "kind": "number"}),
        ("price", spread(200), {"role": "field", "kind": "number"}),
        ("seen_before", cycle(list(range(150))), {"role": "field", "kind": "number"}),
        ("anonymous", spread(200), {"role": "field", "kind": "category"}),
        ("site_id", spread(200), {"role": "field", "kind": "category"}),
        ("level", cycle([1, 2, 3, 4]), {"role": "field", "kind": "category"}),
        ("ratio", cycle([0.5, 1.5]), {"role": "field", "kind": "category"}),
        ("genres", cycle(["a|b", "b", "c|a|b", "c", "a|c"]), {"role": "field", "kind": "set"}),
        ("tags", cycle(["a,b", "b", "c,a,b", "c", "a,c"]), {"role": "field", "kind": "set"}),
        ("tags", cycle(['["a", "b"]', "[]"]), {"role": "field", "kind": "set"}),
        (
            "city",
            cycle(["Yalova, Turkey", "Bendigo, Australia", "Rome"]),
            {"role": "field", "kind": "category"},
        ),
        # and what is no feature is ignored, with the reason.
        ("id", [f"r{i}" for i in range(ROWS)], IGNORED | {"why": "another value in every row"}),
        (
            "request_id",
            [f"r{i}" for i in range(40)],
            IGNORED | {"why": "as the request, each row would be one"},
        ),
        (
            "title",
            [f"red shoes {i}" for i in range(ROWS)],
            IGNORED | {"why": 'kind = "text" learns its words'},
        ),
        ("version", ["7"] * ROWS, IGNORED | {"why": "always 7 in these rows"}),
        ("note", [""] * ROWS, IGNORED | {"why": "empty in these rows"}),
        (
            "propensity_score",
            [i * 0.01 for i in range(ROWS)],
            IGNORED | {"why": "says how the item was chosen"},
        ),
        ("purchase", cycle([0, 0, 1]), IGNORED | {"why": "looks like another label"}),
        ("landing_ms", cycle(["300", "", "", ""]), IGNORED | {"why": "only there in clicked rows"}),
    ],
)
def test_what_a_column_is_follows_from_its_name_and_its_values(name, values, expected):
    found = guess(values, name)
    for member, value in expected.items():
        got = getattr(found, member)
        assert value in got if member in ("why", "warning") else value == got, member


def test_only_the_first_column_keeps_a_role_that_one_column_can_have() -> None:
    profiles = [Profile(name, tuple(cycle(["0", "1", "1"]))) for name in ("click", "user_id", "device_id")]
    assert [(each.role, each.side) for each in guess_all(profiles)] == [
        ("label", "context"),
        ("cookie", "user"),
        ("field", "user"),
    ]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("logs/ads.csv.gz", "ads"),
        ("/tmp/my clicks (1).jsonl.zst", "my-clicks-1"),
        ("day.2024.parquet", "day.2024"),
        ("-", "model"),
        ("…", "model"),
    ],
)
def test_model_is_named_after_the_file(path: str, name: str) -> None:
    assert model_name(path) == name


def spec_of(path: Path) -> ModelSpec:
    return parse_spec(SpecDraft(str(path), guesses.guess_all(sampled(path))).text())


def test_awkward_names_and_values_make_a_spec_that_parses(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    names = ['say "hi"', "a.b", "a\\b", "tab\tand\x7f", "é", "#", "[x]", "new\nline"]
    rows = [{"click": i % 2, **dict.fromkeys(names, f'\n"\x1b{i % 3}')} for i in range(50)]
    path.write_text("\n".join(map(json.dumps, rows)))
    spec = spec_of(path)
    assert {field.column or name for name, field in spec.fields.items()} == set(names)
    assert spec.resolve(["click", *names]).wanted_columns()[0] == "click"


def test_nested_columns_get_short_field_names_where_these_are_free(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    row = {"user": {"age": 1, "id": "u"}, "item": {"age": 2, "color": "x"}}
    rows = [{"click": i % 2, **json.loads(json.dumps(row).replace("x", f"x{i % 3}"))} for i in range(50)]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert spec_of(path).fields["color"].column == "item.color"


def test_of_a_log_of_days_whose_first_rows_alone_are_read_the_spec_says_what_they_cover(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log.csv"
    rows = [f"{i % 2},{1_700_006_400 + i + 86_400 * (i // 10_000)},x{i % 7}" for i in range(50_000)]
    path.write_text("\n".join(["click,ts,a", *rows]))
    text = SpecDraft(str(path), guesses.guess_all(sampled(path))).text()
    assert "# The 10,000 rows read are of one day; where the log has more days:\n# weekday" in text


def test_real_ad_log_is_understood(avazu_log: Path) -> None:
    spec = spec_of(avazu_log)
    assert (spec.input.label, spec.input.cookie, spec.input.ignore) == ("click", "device_id", ("id",))
    assert (spec.fields["hour"].part, spec.fields["hour"].format) == ("hour", "%y%m%d%H")
    assert spec.fields["weekday"].column == "hour" and spec.fields["device_model"].side == "user"
    assert spec.fields["C14"].kind == "category"


def ftrie(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "shop.csv"
    rows = [
        f"{i % 3 == 0:d},u{i % 40},b{i % 5},{i * 0.7:.2f},2024-05-0{1 + i % 3} 10:00:00" for i in range(ROWS)
    ]
    path.write_text("click,user_id,brand,price,ts\n" + "\n".join(rows))
    return path


def test_command_prints_a_spec_that_trains_or_writes_it_once(log: Path, capsys) -> None:
    code, printed, _ = ftrie(capsys, "init", str(log))
    assert code == 0
    spec = log.with_name("shop.toml")
    code, out, err = ftrie(capsys, "init", str(log), "--output", str(spec))
    assert code == 0 and "textbook rate" in out and f"next: ftrie doctor --spec {spec} {log}" in err
    assert load_spec(spec) == parse_spec(printed) and load_spec(spec).model.name == "shop"
    code, out, _ = ftrie(capsys, "train", str(spec), str(log), "--json")
    report = json.loads(out)
    assert (code, report["rows"], report["rejected"]) == (0, ROWS, 0)

    before = spec.read_text()
    code, _, err = ftrie(capsys, "init", str(log), "--output", str(spec), "--label", "brand")
    assert code != 0 and "overwrite it with --force" in err
    assert ftrie(capsys, "init", str(log), "--output", str(spec), "--force")[0] == 0
    assert spec.read_text() == before


def test_a_column_that_tells_the_label_is_left_out_and_is_no_field_beside_ignore(
    tmp_path: Path, capsys
) -> None:
    """Given a column above 0 for clicks only, when a spec is guessed, trained and evaluated, it is said."""
    log, spec, model = tmp_path / "shop.csv", tmp_path / "shop.toml", tmp_path / "m.arrow"
    rows = [f"{i % 3 == 0:d},b{i % 5},{20 * (i % 3 == 0)}" for i in range(6000)]
    log.write_text("click,brand,dwell_ms\n" + "\n".join(rows))
    code, _, err = ftrie(capsys, "init", str(log), "--output", str(spec))
    assert code == 0 and "dwell_ms tells the label" in err and "it is left out" in err
    assert load_spec(spec).input.ignore == ("dwell_ms",)
    table = [dict(zip(("click", "brand", "dwell_ms"), row.split(","), strict=True)) for row in rows]
    with pytest.warns(FtrieWarning, match="dwell_ms tells the label"):
        found = Spec.infer(table)
    assert "dwell_ms" not in found.fields
    assert ftrie(capsys, "train", str(spec), str(log))[2].count("AUC") == 0
    spec.write_text(spec.read_text().replace("[fields]", "[fields]\ndwell_ms = {}"))
    for command in (["train", str(spec), str(log)], ["doctor", "--spec", str(spec), str(log)]):
        code, _, err = ftrie(capsys, *command)
        assert code == 2 and "fields.dwell_ms: input.ignore says that column 'dwell_ms' is no feature" in err
    spec.write_text(spec.read_text().replace('"dwell_ms",', ""))
    code, out, _ = ftrie(capsys, "doctor", "--spec", str(spec), str(log), "--json")
    (leak,) = [each for each in json.loads(out)["findings"] if each["check"] == "label-leak"]
    assert leak["remedy"] == 'take "dwell_ms" out of [fields]'
    for command in (["train", str(spec), str(log), "--save", str(model)], ["evaluate", str(model), str(log)]):
        assert "base has an AUC of 1.00000: a field probably tells the label" in ftrie(capsys, *command)[2]


@pytest.mark.parametrize(
    ("name", "line", "roles"),
    [
        (
            "log.vw",
            "{y} 2.5 'r{i}|user u{u} age:0.{u} |ad a{i} | plain",
            {
                "label": "label",
                "importance": "weight",
                "tag": "ignore",
                "user": "set",
                "ad": "set",
                "features": "set",
            },
        ),
        (
            "log.vw",
            "{y} |user u{u}",
            {"label": "label", "importance": "weight", "tag": "ignore", "user": "set"},
        ),
        ("log.svm", "{y} qid:{u} {u}:1 99:0.5", {"label": "label", "qid": "request", "features": "set"}),
        ("log.ffm", "{y} 0:{u}:1 1:{i}:0.5", {"label": "label", "0": "set", "1": "set"}),
    ],
)
def test_logs_whose_rows_name_their_features_are_understood_and_train(tmp_path, capsys, name, line, roles):
    log, spec = tmp_path / name, tmp_path / "spec.toml"
    log.write_text("\n".join(line.format(y=i % 3 // 2, u=i % 40, i=i) for i in range(ROWS)))
    code, out, _ = ftrie(capsys, "init", str(log), "--output", str(spec), "--json")
    assert code == 0
    columns = json.loads(out)["columns"]
    assert {c["name"]: c["kind"] if c["role"] == "field" else c["role"] for c in columns} == roles
    code, out, _ = ftrie(capsys, "train", str(spec), str(log), "--json")
    assert (code, json.loads(out)["rows"]) == (0, ROWS)


def test_flags_say_how_cells_are_written_and_the_spec_keeps_it(tmp_path: Path, capsys) -> None:
    log, spec = tmp_path / "log.csv", tmp_path / "spec.toml"
    log.write_text(
        "y~name~price\n" + "".join(f"{n % 2}~'a~b'~{n % 7},5\n{n % 3 // 2}~'c'~nix\n" for n in range(20))
    )
    flags = ["--separator", "~", "--quote", "'", "--escape", "", "--decimal", ",", "--null", "nix"]
    code, _, err = ftrie(capsys, "init", str(log), "--output", str(spec), *flags)
    assert code == 0, err
    found = load_spec(spec)
    given = (
        found.input.separator,
        found.input.quote,
        found.input.escape,
        found.input.nulls,
        found.input.decimal,
    )
    assert given == ("~", "'", None, ("nix",), ",") and "price" in found.fields
    code, out, _ = ftrie(capsys, "train", str(spec), str(log), "--json")
    assert (code, json.loads(out)["rows"], json.loads(out)["rejected"]) == (0, 40, 0)
    code, out, _ = ftrie(capsys, "doctor", str(log), *flags, "--json")
    assert (code, json.loads(out)["rows"]) == (0, 40)


def test_sample_ends_at_its_size_and_needs_a_row(log: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    with monkeypatch.context() as small:
        small.setattr(examine, "SAMPLE_ROWS", 7)
        assert len(sampled(log).profiles[0].texts) == 7
    empty = tmp_path / "empty.csv"
    empty.write_text("click,site\n")
    with pytest.raises(FtrieError, match="has no readable row"):
        sampled(empty)
    empty.write_text("click,site\n" + "1,a,b\n" * 3)
    for command in ("init", "doctor"):
        code, _, err = ftrie(capsys, command, str(empty))
        assert code == 3 and f"3 rows rejected, such as {empty}:2: wrong number of columns: got 3" in err


def test_of_events_the_side_is_where_a_value_stands_and_lists_are_sets(tmp_path: Path) -> None:
    """Given impressions whose features have the names of other things, when guessed, the names do not mislead."""
    shown = {
        "user": {"item_brand": "x", "tags": ["new", "old"]},
        "context": {"click": "yes"},
        "items": [{"id": "a", "features": {"user_age": 1.5, "item": "b"}}, {"id": "c"}],
    }
    events = [
        {**shown, "request_id": f"r{n}", "ts": 1_700_000_000 + 3600 * n, "cookie": "u"} for n in range(30)
    ]
    for number, event in enumerate(events):
        event["context"] = {"click": f"v{number % 3}"}
    clicks = [{"request_id": f"r{n}", "ts": 1_700_000_001 + 3600 * n, "item": "a"} for n in range(0, 30, 3)]
    log, spec_file = tmp_path / "log.jsonl", tmp_path / "shop.toml"
    in_order = sorted([*events, *clicks], key=lambda event: float(str(event["ts"])))
    log.write_text("".join(json.dumps(event) + "\n" for event in in_order))
    assert run(["init", str(log), "--output", str(spec_file)]) == 0
    spec = load_spec(spec_file)
    given = spec.input
    assert (given.label, given.item, given.request, given.cookie) == (
        "clicked",
        "item_id",
        "request_id",
        "cookie",
    )
    found = {name: (field.side, field.kind) for name, field in spec.fields.items()}
    assert found["tags"] == ("user", "set") and found["click"] == ("context", "category")
    assert found["hour"] == ("context", "time") and found["item_id"] == ("item", "category")
    assert "10m" in spec_file.read_text() and "16.7 % of the rows are clicked" in spec_file.read_text()
