"""Features from files of items and users: joined by id, as if they stood in the log."""

from __future__ import annotations

import pytest

from ftrie.cli import run
from model_store.artefact.artefact import Artefact
from model_store.errors import InputError, SpecError
from model_store.spec.spec import parse_spec
from trainer.examples.open_log import Log
from trainer.examples.side_tables import SideTable
from trainer.logs.rejects import RejectLog
from trainer.runs.train import train

SPEC = """
[model]
name = "m"
[input]
label = "y"
item = "item"
cookie = "cookie"
[fields]
item = { side = "item" }
brand = { side = "item" }
age = { side = "user" }
[[crosses]]
fields = ["age", "brand"]
[learner]
l1 = 0.0
"""
SHORT_LOG = "y,item,cookie\n1,7,u1\n0,8,u2\n1,9,u1\n0,7,nobody\n"
WHOLE_LOG = "y,item,cookie,brand,age\n1,7,u1,nike,20\n0,8,u2,,30\n1,9,u1,,20\n0,7,nobody,nike,\n"


@pytest.fixture
def files(tmp_path):
    contents = {
        "m.toml": SPEC,
        "short.csv": SHORT_LOG,
        "whole.csv": WHOLE_LOG,
        "items.csv": "item_id,brand\n7,nike\n8,\n",
        "users.jsonl": '{"cookie": "u1", "age": 20}\n{"cookie": "u2", "age": 30}\n',
    }
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_joined_log_learns_the_model_of_the_whole_log(files):
    joined = ["--items", str(files / "items.csv"), "--users", str(files / "users.jsonl")]
    for log, flags in (("short", joined), ("whole", [])):
        command = [
            "train",
            str(files / "m.toml"),
            str(files / f"{log}.csv"),
            "--save",
            str(files / f"{log}.arrow"),
        ]
        assert run([*command, *flags]) == 0
    short, whole = (Artefact.read(files / f"{name}.arrow") for name in ("short", "whole"))
    assert short.sha256 == whole.sha256
    assert b"age*brand=20*nike" in {short.key(row) for row in range(short.rows)}


def test_the_log_wins_over_the_table(files):
    spec = parse_spec(SPEC)
    (files / "items.csv").write_text("item_id,brand\n7,adidas\n")
    table = SideTable.of_items(files / "items.csv", spec.input)
    with_table = train(spec, Log([str(files / "whole.csv")], tables=[table]), rejects=RejectLog())
    without = train(spec, Log([str(files / "whole.csv")]), rejects=RejectLog())
    assert with_table.model.artefact().sha256 == without.model.artefact().sha256


def test_a_missing_item_column_says_that_a_file_may_have_it(files):
    with pytest.raises(SpecError, match="--items FILE"):
        train(parse_spec(SPEC), Log([str(files / "short.csv")]), rejects=RejectLog())


def test_an_optional_field_may_be_missing_and_is_named(files):
    text = SPEC.replace("brand = { ", "brand = { optional = true, ").replace(
        "age = { ", "age = { optional = true, "
    )
    ended = train(parse_spec(text), Log([str(files / "short.csv")]), rejects=RejectLog())
    assert ended.absent == ("brand", "age")
    artefact = ended.model.artefact()
    assert not [row for row in range(artefact.rows) if b"brand" in artefact.key(row)]


def test_a_table_needs_the_columns_that_join_it(files):
    bare = parse_spec(SPEC.replace('item = "item"\ncookie', "cookie"))
    with pytest.raises(SpecError, match=r"input\.item is missing: --items needs"):
        SideTable.of_items(files / "items.csv", bare.input)
    (files / "twice.csv").write_text("item_id,brand\n7,a\n7,b\n")
    with pytest.raises(InputError, match="the id '7' is there twice"):
        SideTable.of_items(files / "twice.csv", parse_spec(SPEC).input)


def test_a_late_duplicate_is_found_without_comparing_each_id_with_each(files):
    ids = [*range(150_000), 149_998]  # takes minutes where it is searched again for every id
    (files / "late.csv").write_text("item_id,brand\n" + "".join(f"{each},a\n" for each in ids))
    message = "the id '149998' is there twice, in records 149,999 and 150,001; expected each once"
    with pytest.raises(InputError, match=message):
        SideTable.of_items(files / "late.csv", parse_spec(SPEC).input)
