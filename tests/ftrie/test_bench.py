"""`ftrie bench` finds the benchmarks; what they measure is not tested."""

from __future__ import annotations

import pytest

from ftrie.bench_cli import benchmark_names
from ftrie.cli import run


def test_the_benchmarks_of_the_checkout_are_found_but_not_their_parts() -> None:
    names = benchmark_names()
    assert {"rank", "train"} <= set(names)
    assert not {"common", "load", "streams"} & set(names)


def test_an_unknown_benchmark_is_refused_before_any_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "train", "nope"]) == 1
    captured = capsys.readouterr()
    assert "'nope'" in captured.err
    assert "train" in captured.err
    assert captured.out == ""
