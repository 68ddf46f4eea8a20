"""What the counting filter of `inclusion = bloom` costs, and how often it errs: no peers, and nothing is timed.

So many distinct keys as the filter was sized for come `count` - 1 times each, in turn; every one that is admitted errs.
Then new keys come, once each, to a filter that is as full as planned.
"""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks.common import report
from model_store.spec.learner_section import Inclusion
from trainer.examples.rules import FeatureRules
from trainer.learn.admission import Admission
from trainer.learn.admission_kernels import admit_each

COUNTS = (2, 3, 5, 17)
RATES = (0.1, 0.01, 0.001)
COLUMNS = ("count", "wanted", "probes", "bits a cell", "bits a key", "early while filling", "early when full")
_PARTS = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    keys = parser.parse_args().keys
    rows = [measure(count, wanted, keys) for count in COUNTS for wanted in RATES]
    report("filters", f"Counting filters for {keys:,} keys", COLUMNS, rows)


def measure(count: int, wanted: float, keys: int) -> tuple[int, float, int, int, float, float, float]:
    inclusion = Inclusion(kind="bloom", count=count, keys=keys, false_positives=wanted)
    rules = FeatureRules(np.zeros(1, np.int64), (inclusion,), ("learner.inclusion",), None, ())
    admission = Admission.of(rules, seed=1)
    random = np.random.default_rng(count)
    planned, new = (random.integers(1, 2**64, keys, dtype=np.uint64) for _ in range(2))
    early = np.zeros(keys, bool)
    for _ in range(count - 1):
        early |= ask(admission, planned)
    full = {name: cells.copy() for name, cells in admission.state().items()}
    wrong = 0
    for part in np.array_split(new, _PARTS):  # asking counts: without going back, the filter would be fuller
        wrong += int(ask(admission, part).sum())
        admission.restore(full)
    size = admission.filters[0].size
    bits = round(8 * size.nbytes / keys, 2)
    return count, wanted, size.probes, 1 << size.width, bits, float(early.mean()), wrong / keys


def ask(admission: Admission, keys: np.ndarray) -> np.ndarray:
    """Whether each key is admitted at this occurrence."""
    admitted, zeros = np.empty(keys.size, np.uint8), np.zeros(keys.size, np.int64)
    admit_each(admission.parameters, keys, zeros, zeros, admitted)
    return admitted.astype(bool)


if __name__ == "__main__":
    main()
