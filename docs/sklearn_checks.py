"""Writes into docs/library.md which of scikit-learn's own checks FTRLClassifier does not pass, and why.

`python docs/sklearn_checks.py` runs the checks and writes the table; `tests/ftrie/test_sklearn.py` compares it.
"""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path
from typing import NamedTuple

# With it one more check runs, of libraries that may not be installed.
os.environ.pop("SCIPY_ARRAY_API", None)

import sklearn
from sklearn.utils.estimator_checks import check_estimator

from ftrie.sklearn import FTRLClassifier

PAGE = Path(__file__).with_name("library.md")
_SECTION = re.compile(r"(<!-- checks of scikit-learn (\S+) -->\n).*?(<!-- end of checks -->\n)", re.DOTALL)

_ONE_STEP = (
    "an online learner takes one step for a row of weight 2, from one weight vector, and two steps for two rows; "
    "`SGDClassifier` does not pass either"
)
EXPECTED_FAILED_CHECKS = {
    "check_sample_weight_equivalence_on_dense_data": _ONE_STEP,
    "check_sample_weight_equivalence_on_sparse_data": _ONE_STEP,
}
"""What the estimator cannot pass, with the reason, as `check_estimator` takes it."""


class Outcome(NamedTuple):
    """One check. status: passed, xfail, skipped or failed; reason: why it did not pass."""

    name: str
    status: str
    reason: str


def outcomes() -> list[Outcome]:
    """Run all checks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(
            FTRLClassifier(), expected_failed_checks=EXPECTED_FAILED_CHECKS, on_skip=None, on_fail=None
        )
    return [
        Outcome(
            each["check_name"],
            each["status"],
            EXPECTED_FAILED_CHECKS.get(each["check_name"]) or str(each["exception"] or "").partition("\n")[0],
        )
        for each in results
    ]


def table(found: list[Outcome]) -> str:
    """How many checks passed, and a table of those that did not, each with its reason."""
    others = [each for each in found if each.status != "passed"]
    lines = [f"| {each.name} | {each.status} | {each.reason} |" for each in others]
    return "\n".join(
        [
            f"{len(found)} checks: {sum(each.status == 'passed' for each in found)} passed, {len(others)} not.",
            "",
            "| check | outcome | reason |",
            "|---|---|---|",
            *lines,
            "",
        ]
    )


def version() -> str:
    """The version of scikit-learn, without its last part."""
    return ".".join(sklearn.__version__.split(".")[:2])


def on_the_page() -> tuple[str, str]:
    """The version and the table of the page."""
    found = _SECTION.search(PAGE.read_text("utf-8"))
    assert found is not None
    return found[2], found[0].removeprefix(found[1]).removesuffix(found[3])


if __name__ == "__main__":
    made = f"<!-- checks of scikit-learn {version()} -->\n{table(outcomes())}<!-- end of checks -->\n"
    PAGE.write_text(_SECTION.sub(lambda _: made, PAGE.read_text("utf-8")), "utf-8")
