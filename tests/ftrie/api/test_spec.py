"""ftrie.Spec: from files, text, dictionaries and data; changes; its TOML form."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import pytest

import ftrie
from model_store.errors import InputError, SpecError

TEXT = """
[model]
name = "ads"
[input]
label = "click"
[fields]
age = { side = "user" }
"url path" = { side = "context" }
[[crosses]]
fields = ["age", "url path"]
[variants]
base = { share = 0.75 }
plain = { share = 0.25, without = ["age"] }
"""


def test_a_file_text_and_a_dictionary_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "ads.toml"
    path.write_text(TEXT)
    spec = ftrie.Spec(TEXT)
    assert ftrie.Spec(path) == ftrie.Spec(str(path)) == spec
    assert ftrie.Spec(spec.to_dict()) == spec
    assert ftrie.Spec(ftrie.Spec(spec.to_dict()).text) == spec
    assert (spec.name, spec.label, spec.variants) == ("ads", "click", ("base", "plain"))
    assert spec.fields == ("age", "url path")
    assert "1 crosses" in repr(spec) and "url path" in spec._repr_html_()
    spec.save(tmp_path / "again.toml")
    assert (tmp_path / "again.toml").read_text() == TEXT


NAMES = ["ü日本", "\U0001f600", "a.b", "[x]", "\\u00e9", '"""', *map(chr, [*range(1, 48), 92, 127])]


def test_every_name_survives_the_toml_form() -> None:
    for name in NAMES:
        fields = {name: {"column": name}}
        spec = ftrie.Spec({"model": {"name": "t"}, "input": {"label": "y"}, "fields": fields})
        assert ftrie.Spec(spec.merge(learner={"alpha": 0.5}).text).fields == (name,)


def test_replace_merges_sections_and_removes_members() -> None:
    spec = ftrie.Spec(TEXT)
    changed = spec.merge(learner={"alpha": 0.3}, fields={"age": None}, crosses=None, variants=None)
    assert changed.fields == ("url path",)
    assert changed.model_spec.learner.alpha == 0.3
    assert changed.variants == ("base",)
    assert spec == ftrie.Spec(TEXT)
    with pytest.raises(
        SpecError, match=r"learner\.alfa: no such key; allowed here: .*; did you mean alpha\?"
    ):
        spec.merge(learner={"alfa": 1})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("missing.toml", "cannot read the spec 'missing.toml'"),
        ("[model\nname = 1", "not valid TOML"),
        ({"model": {"name": "t"}}, "input: missing; it is required"),
        ({"model": {"name": "t"}, "input": {"label": 5}}, r"input\.label: got 5"),
    ],
)
def test_what_is_no_spec(source: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        ftrie.Spec(source)


def test_infer_writes_what_init_writes(tmp_path: Path) -> None:
    rows = [{"click": index % 3 == 0, "age": string.ascii_lowercase[index % 5]} for index in range(60)]
    log = tmp_path / "table.csv"
    log.write_text("click,age\n" + "".join(f"{int(row['click'])},{row['age']}\n" for row in rows))
    from_file, from_table = ftrie.Spec.infer(log), ftrie.Spec.infer(rows)
    assert from_file == from_table
    assert from_table.label == "click" and from_table.fields == ("age",)
    assert ftrie.Spec.infer(rows, name="ads").name == "ads"
    with pytest.raises(SpecError, match="nothing"):
        ftrie.Spec.infer(rows, label="nothing")
    with pytest.raises(InputError, match="no readable row"):
        ftrie.Spec.infer({"click": []})
