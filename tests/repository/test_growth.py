"""`benchmarks.growth` runs, and its figures are those that docs/formats/ and docs/join.md derive."""

from __future__ import annotations

import json

import pytest

from benchmarks import growth

Sizes = dict[str, float]


def test_the_bytes_of_each_structure_are_measured_and_drawn(tmp_path, capsys) -> None:
    picture = tmp_path / "memory.svg"
    counts = ("--keys", "50000", "--served", "8000", "--items", "500", "--pending", "300")
    growth.main([*counts, "--picture", str(picture), "--json"])
    rows = json.loads(capsys.readouterr().out)
    each: Sizes = {row["what"]: row["each"] for row in rows}
    assert {row["part"] for row in rows} == {"training", "serving", "items", "events"}
    _check_tables(each)
    _check_model(each)
    _check_events(each)
    drawn = picture.read_text("utf-8")
    assert all(name in drawn for name in ("32 variants", "whole model", "catalogue", "rows, 50 shown"))


def _check_tables(each: Sizes) -> None:
    assert each["table, one value, full"] == pytest.approx(32 / 0.7, rel=1e-3)
    assert each["table, one value, just grown"] == pytest.approx(64 / 0.7, rel=1e-3)
    assert each["table, one value, compact, full"] == pytest.approx(16 / 0.88, rel=1e-3)
    assert each["table, one value, compact, just grown"] <= 20.1
    assert each["table, 8 variants, full"] == pytest.approx((16 + 8 * 16) / 0.7, rel=1e-3)
    assert each["table, 32 variants, compact, full"] == pytest.approx((24 + 32 * 2) / 0.7, rel=1e-3)
    assert each["arena, used"] == pytest.approx(each["key bytes alone"] + 4)


def _check_model(each: Sizes) -> None:
    assert each["trie and weights"] == pytest.approx(each["trie: labels"] + each["trie: nodes"] + 4)
    assert each["trie and weights"] < growth.GOAL * each["dict"]
    assert each["trie and weights"] < each["whole model"] < each["dict"]
    more = each["whole model, 8 variants"] - each["whole model"]
    assert more == pytest.approx(7 * 8)  # a weight and a rate for each variant
    assert each["a version, 8 variants"] - each["a version"] == pytest.approx(7 * 16)


def _check_events(each: Sizes) -> None:
    for shown in (10, 50):
        saved = each[f"join state, saved, {shown} shown"]
        assert saved == pytest.approx(88 + 9 * shown, abs=2)
        assert each[f"join state, {shown} shown"] > saved
        assert each[f"line, {shown} shown"] < each[f"in the stream, {shown} shown"]
