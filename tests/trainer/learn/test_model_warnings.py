"""Models that somebody should look at: those that diverge, and variants that came out the same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ftrie.cli import run
from model_store.spec.spec import parse_spec
from tests.worlds import learn, model_of
from trainer.learn.model import LearningModel

SPEC = """
[model]
name = "m"
[input]
label = "click"
[fields]
price = { kind = "number" }
site = {}
colour = { optional = true }
[variants]
base = { share = 0.5 }
plain = { share = 0.5, without = ["colour"] }
"""


def log_of(rows: int, largest_price: float = 5000.0) -> list[dict[str, bytes]]:
    """A fifth of the rows are clicked, whatever stands in them."""
    random = np.random.default_rng(1)
    return [
        {
            "click": b"%d" % (random.random() < 0.2),
            "price": b"%.2f" % random.uniform(0, largest_price),
            "site": b"s%d" % random.integers(5),
            "colour": b"",
        }
        for _ in range(rows)
    ]


def learned(rows: list[dict[str, bytes]], spec: str = SPEC) -> LearningModel:
    model = model_of(parse_spec(spec), list(rows[0]))
    learn(model, rows, size=250)
    return model


def write_log(path: Path, rows: list[dict[str, bytes]]) -> str:
    lines = [",".join(rows[0]).encode(), *(b",".join(row.values()) for row in rows)]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return str(path)


def test_a_model_that_diverges_names_the_unscaled_field_and_the_remedy() -> None:
    model = learned(log_of(1500))
    text = model.warnings.texts["diverging"]
    assert "predicts worse than the click rate alone would: normalized entropy" in text
    assert "field 'price' (kind = \"number\" without a bucket) moves the score most" in text
    assert 'Set bucket = "log" for fields.price' in text and "lower learner.alpha (now 0.1)" in text
    assert model.warnings.normalized_entropy is not None and model.warnings.normalized_entropy > 1.5


def test_a_cross_with_an_unscaled_field_is_named() -> None:
    crossed = SPEC.replace("[variants]", '[[crosses]]\nfields = ["site", "price"]\n[variants]')
    model = learned(log_of(1500), crossed + '[rules]\n"price=" = { l1 = 1e20 }\n')
    assert "cross 'site*price', by its field 'price'," in model.warnings.texts["diverging"]


def test_a_field_with_a_bucket_is_not_warned_of() -> None:
    model = learned(log_of(1500), SPEC.replace('"number"', '"number", bucket = "log"'))
    assert "diverging" not in model.warnings.texts
    assert model.warnings.normalized_entropy is not None and model.warnings.normalized_entropy < 1.5


def test_a_model_that_recovers_is_not_warned_of_any_more() -> None:
    model = learned(log_of(1500))
    assert "diverging" in model.warnings.texts
    learn(model, [{**row, "price": b""} for row in log_of(3000)], size=250)
    assert "diverging" not in model.warnings.texts


def test_a_short_log_is_looked_at_at_its_end() -> None:
    model = learned(log_of(400))
    assert "diverging" not in model.warnings.texts
    assert any("'price'" in text for text in model.warnings.finish())
    assert learned(log_of(50)).warnings.finish() == ()


def test_variants_that_came_out_the_same_are_named_with_the_reason() -> None:
    rows = log_of(200, largest_price=1.0)
    (text,) = learned(rows).warnings.finish()
    assert "'base' and 'plain': they differ in 'colour' alone, of which no row has a value" in text
    (text,) = learned(rows, SPEC.replace(', without = ["colour"]', "")).warnings.finish()
    assert "'base' and 'plain': they have the same fields and crosses and the same parameters" in text
    (text,) = learned(rows, SPEC.replace('"colour"', '"site"') + "[learner]\nl1 = 1e6\n").warnings.finish()
    assert "'base' and 'plain': they differ in 'site' alone, whose weights have all been 0" in text
    assert learned([{**row, "colour": b"red"} for row in rows]).warnings.finish() == ()


@pytest.mark.parametrize("as_json", [False, True])
def test_train_says_what_is_wrong_with_the_model(as_json: bool, tmp_path, capsys) -> None:
    (tmp_path / "m.toml").write_text(SPEC)
    log = write_log(tmp_path / "log.csv", log_of(1500))
    assert run(["train", str(tmp_path / "m.toml"), log, *(["--json"] if as_json else [])]) == 0
    out, err = capsys.readouterr()
    if as_json:
        diverging, same = json.loads(out)["warnings"]
        assert [json.loads(line)["warning"] for line in err.splitlines()] == [diverging, same]
    else:
        diverging, same = [line for line in err.splitlines() if line.startswith("ftrie: warning: ")]
    assert "field 'price'" in diverging and "'base' and 'plain'" in same
