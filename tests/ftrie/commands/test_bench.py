"""`ftrie bench` finds the benchmarks; what they measure is not tested."""

from __future__ import annotations

import re
import sys

import pytest

from ftrie.commands.bench import CHECKOUT, REMEDIES, benchmark_names, needs
from tests.ftrie.conftest import Say


def test_benchmarks_are_found_without_their_parts_and_an_unknown_one_is_refused_before_any_runs(
    say: Say,
) -> None:
    code, out, err = say("bench", "train", "nope")
    assert (code, out) == (1, "")
    assert "'nope'" in err and "train" in err
    names = benchmark_names()
    assert {"rank", "train"} <= set(names)
    assert not {"common", "load", "streams"} & set(names)


def test_a_benchmark_without_its_needs_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    monkeypatch.setenv("PATH", "")
    for name, needed, remedy in (
        ("train", "vowpalwabbit", "pip install"),
        ("trie", "marisa_trie", "pip install"),
        ("workers", "h2load", "apt install"),
        ("torch_optimizer", "torch", "make torch"),
    ):
        monkeypatch.setitem(sys.modules, needed, None)  # as if it were not installed
        code, out, err = say("bench", name)
        assert (code, out) == (1, "")
        assert f"the benchmark {name} needs {needed}, which is not installed: {remedy}" in err


def test_a_benchmark_says_what_it_needs() -> None:
    for name in benchmark_names():
        sources = [(CHECKOUT / "benchmarks" / f"{name}.py").read_text("utf-8")]
        sources += [
            (CHECKOUT / "benchmarks/rivals" / f"{each.strip()}.py").read_text("utf-8")
            for line in re.findall(r"^from benchmarks.rivals import (.+)$", sources[0], re.MULTILINE)
            for each in line.split(",")
        ]
        if "vw_scores" in sources[0]:  # which benchmarks.avazu defines
            sources.append((CHECKOUT / "benchmarks/avazu.py").read_text("utf-8"))
        text = "\n".join(sources)
        used = {each for each in REMEDIES if re.search(rf"import .*\b{each}\b|from {each} import", text)}
        # A program that is started by its name, which NEEDS has too.
        used |= {each for each in REMEDIES if each.startswith("python") and text.count(f'"{each}"') > 1}
        assert set(needs(name)) == used, name
