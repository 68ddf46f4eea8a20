"""Features from files of items and users: joined by id, as if they stood in the log."""

from __future__ import annotations

import pytest

from ftrie.cli import run
from model_store.artefact.artefact import Artefact
from model_store.errors import InputError, SpecError
from model_store.spec.spec import parse_spec
from trainer.examples.open_log import Log
from trainer.examples.side_tables import SideTable
from trainer.formats.rejects import RejectLog
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


@pytest.fixture
def files(tmp_path):
    contents = {
        "short.csv": "y,item,cookie\n1,7,u1\n0,8,u2\n1,9,u1\n0,7,nobody\n",
        "whole.csv": "y,item,cookie,brand,age\n1,7,u1,nike,20\n0,8,u2,,30\n1,9,u1,,20\n0,7,nobody,nike,\n",
        "items.csv": "item_id,brand\n7,nike\n8,\n",
        "users.jsonl": '{"cookie": "u1", "age": 20}\n{"cookie": "u2", "age": 30}\n',
    }
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def learned(log, spec=SPEC, tables=()):
    return train(parse_spec(spec), Log([str(log)], tables=tables), rejects=RejectLog())


def items(file, spec=SPEC):
    return SideTable.of_items(file, parse_spec(spec).input)


def test_a_joined_log_learns_the_model_of_the_whole_log(files):
    (files / "m.toml").write_text(SPEC)
    joined = ["--items", str(files / "items.csv"), "--users", str(files / "users.jsonl")]
    for log, flags in (("short", joined), ("whole", [])):
        save = ["--save", str(files / f"{log}.arrow")]
        assert run(["train", str(files / "m.toml"), str(files / f"{log}.csv"), *save, *flags]) == 0
    short, whole = (Artefact.read(files / f"{name}.arrow") for name in ("short", "whole"))
    assert short.sha256 == whole.sha256
    assert b"age*brand=20*nike" in {short.key(row) for row in range(short.rows)}


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("7.0", "the log has '7', the table '7.0'; ids are compared by their exact text"),
        ("007", "the log has '7', the table '007'; ids are compared by their exact text"),
        ("x", "for example '7'"),
    ],
)
def test_rows_that_find_no_record_are_counted_and_both_spellings_shown(files, written, said):
    table = files / "items.csv"
    table.write_text(f"item_id,brand\n{written},nike\n8,\n9,\n")
    notes = []
    log = Log([str(files / "short.csv")], tables=[items(table)], on_note=notes.append)
    spec = SPEC.replace('side = "user" }', 'side = "user", optional = true }')
    train(parse_spec(spec), log, rejects=RejectLog())
    [note] = [note for note in notes if "items.csv" in note]
    assert "items.csv: 2 of 4 rows found no record by their item" in note and note.endswith(said)


def test_the_log_wins_over_the_table(files):
    (files / "items.csv").write_text("item_id,brand\n7,adidas\n")
    with_table, without = (
        learned(files / "whole.csv", tables=tables).model.artefact().sha256
        for tables in ([items(files / "items.csv")], [])
    )
    assert with_table == without


def test_a_missing_column_may_be_in_a_file_and_an_optional_one_is_named(files):
    with pytest.raises(SpecError, match="--items FILE"):
        learned(files / "short.csv")
    text = SPEC.replace("brand = {", "brand = { optional = true,").replace(
        "age = {", "age = { optional = true,"
    )
    ended = learned(files / "short.csv", text)
    assert ended.absent == ("brand", "age")
    assert not [key for key in ended.model.artefact().key_list() if b"brand" in key]


def test_a_table_needs_the_columns_that_join_it(files):
    with pytest.raises(SpecError, match=r"input\.item is missing: --items needs"):
        items(files / "items.csv", SPEC.replace('item = "item"\ncookie', "cookie"))
    (files / "twice.csv").write_text("item_id,brand\n7,a\n7,b\n")
    with pytest.raises(InputError, match="the id '7' is there twice"):
        items(files / "twice.csv")


def test_a_late_duplicate_is_found_without_comparing_each_id_with_each(files):
    ids = [*range(80_000), 79_998]  # takes minutes where it is searched again for every id
    (files / "late.csv").write_text("item_id,brand\n" + "".join(f"{each},a\n" for each in ids))
    message = "the id '79998' is there twice, in records 79,999 and 80,001; expected each once"
    with pytest.raises(InputError, match=message):
        items(files / "late.csv")
