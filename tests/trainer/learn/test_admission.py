"""Which keys enter: the counting filter against exact counts, Poisson's chance, and what must not change either."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from model_store.errors import FtrieError, SpecError
from model_store.features.features import FeaturePlan
from model_store.spec.spec import parse_spec
from tests.kernels import learned
from tests.trainer.learn.pairs import resumed
from tests.trainer.learn.test_model_warnings import write_log
from tests.worlds import SPEC, shop_rows, state_of
from trainer.examples.open_log import Log
from trainer.examples.rules import FeatureRules
from trainer.formats.rejects import RejectLog
from trainer.learn.admission import Admission, false_positive_rate, size_filter, touched_cells
from trainer.learn.admission_kernels import ByRule, Everything, admit_each
from trainer.output import SILENT
from trainer.runs.train import train

KEYS = 100_000
ONE_VARIANT = SPEC[: SPEC.index("[variants]")] + SPEC[SPEC.index("[learner]") :]


def admission_of(inclusion: str, seed: int = 1) -> Admission:
    text = (
        f'[model]\nname = "m"\n[input]\nlabel = "y"\n[fields]\nf = {{}}\n[learner]\ninclusion = {inclusion}\n'
    )
    spec = parse_spec(text)
    return Admission.of(FeatureRules.of(spec, FeaturePlan.of(spec)), seed)


def ask(admission: Admission, keys, first_example: int = 1):
    """Whether each key is admitted, one occurrence after the other."""
    admitted = np.empty(keys.size, np.uint8)
    examples = np.arange(first_example, first_example + keys.size)
    admit_each(admission.parameters, keys, np.ones(keys.size, np.int64), examples, admitted)
    return admitted.astype(bool)


def random_keys(size: int, seed: int):
    return np.random.default_rng(seed).integers(1, 2**64, size, dtype=np.uint64)


@pytest.mark.parametrize("count", [2, 3, 17, 256])
@pytest.mark.parametrize("planned", [10, 2000])
def test_a_key_enters_at_its_countth_occurrence_or_before_but_never_later(count, planned):
    admission = admission_of(f'{{ kind = "bloom", count = {count}, keys = {planned} }}')
    keys = random_keys(100, 5)
    occurrences = np.random.default_rng(6).permutation(np.tile(keys, count))
    admitted = ask(admission, occurrences)
    seen, entered_at = Counter(), {}
    for key, enters in zip(occurrences.tolist(), admitted, strict=True):
        seen[key] += 1
        if enters:
            entered_at.setdefault(key, seen[key])
    assert set(entered_at) == set(keys.tolist()) and max(entered_at.values()) <= count
    if planned == 2000:
        assert list(entered_at.values()).count(count) >= 99


@pytest.mark.parametrize(("wanted", "count"), [(0.1, 2), (0.01, 3), (0.001, 5), (0.01, 17)])
def test_no_more_keys_enter_early_than_was_asked_for(wanted, count):
    admission = admission_of(
        f'{{ kind = "bloom", count = {count}, keys = {KEYS}, false_positives = {wanted} }}'
    )
    keys = random_keys(KEYS, 7)
    early = np.zeros(KEYS, bool)
    for _ in range(count - 1):
        early |= ask(admission, keys)
    assert early.mean() <= wanted and list(admission.notes()) == []
    (only,) = admission.filters
    assert only.keys() == pytest.approx(KEYS, rel=0.01)
    new = random_keys(KEYS, 8)
    full, wrong = {name: cells.copy() for name, cells in admission.state().items()}, 0
    for part in np.split(new, 100):  # asking counts, so a full filter would be fuller at the end
        wrong += int(ask(admission, part).sum())
        admission.restore(full)
    noise = 3.0 * (wanted / KEYS) ** 0.5
    assert wrong / KEYS <= wanted + noise
    assert wrong / KEYS >= wanted / 2  # and no memory is wasted


def test_an_overfull_filter_is_told_loudly():
    admission = admission_of('{ kind = "bloom", count = 2, keys = 1000 }')
    ask(admission, random_keys(3000, 1))
    (note,) = admission.notes()
    assert note.startswith("learner.inclusion: its filter has counted about 3,0")
    assert "sized for 1,000" in note and "set keys higher" in note


@pytest.mark.parametrize("width", range(4))
def test_touched_cells_are_counted(width):
    random = np.random.default_rng(width)
    cells = random.integers(0, 256, 4096, dtype=np.uint8) * (random.random(4096) < 0.4).astype(np.uint8)
    bits = np.unpackbits(cells, bitorder="little").reshape(-1, 1 << width)
    assert touched_cells(cells, width) == int(bits.any(axis=1).sum())


@pytest.mark.parametrize("probes", [1, 4, 9])
@pytest.mark.parametrize("width", [0, 3])
def test_the_rate_is_that_of_blocks_filled_at_random(width, probes):
    random, cells = np.random.default_rng(probes), 512 >> width
    mean_keys, blocks = cells / probes / 2, 4000
    held = random.poisson(mean_keys, blocks)
    wrong = 0.0
    for keys in held:
        wrong += (np.unique(random.integers(0, cells, keys * probes)).size / cells) ** probes
    assert false_positive_rate(width, probes, mean_keys) == pytest.approx(wrong / blocks, rel=0.15)


def test_memory_grows_with_keys_counts_and_precision():
    sizes = [[size_filter(10**6, count, rate).nbytes for rate in (0.1, 0.001)] for count in (2, 5, 17)]
    assert all(few < many for few, many in sizes) and sizes == sorted(sizes)
    one, many = size_filter(10**6, 2, 0.01), size_filter(2 * 10**9, 2, 0.01)
    assert one.nbytes * 8 / 10**6 < 10 and many.blocks == pytest.approx(2000 * one.blocks, 1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "count = 200, false_positives = 1e-14",
            r"^learner\.inclusion\.false_positives: 1e-14 is out of reach",
        ),
        (
            "count = 2, keys = 1_000_000_000_000_000_000",
            "the filters take .* GB, and there is no such memory; set",
        ),
    ],
)
def test_a_filter_that_cannot_be_is_a_spec_error_with_a_remedy(options, message):
    with pytest.raises(SpecError, match=message):
        admission_of(f'{{ kind = "bloom", {options} }}')


@pytest.mark.parametrize("p", [0.03, 0.5, 0.9])
def test_poisson_admits_its_share_of_occurrences(p):
    admission = admission_of(f'{{ kind = "poisson", p = {p} }}')
    keys = random_keys(KEYS, 3)
    spread = 4.0 * (p * (1 - p) / KEYS) ** 0.5
    assert ask(admission, keys).mean() == pytest.approx(p, abs=spread)
    # the same key at many examples, and another seed
    assert ask(admission, np.full(KEYS, keys[0])).mean() == pytest.approx(p, abs=spread)
    once, again = ask(admission, keys), ask(admission_of(f'{{ kind = "poisson", p = {p} }}', seed=2), keys)
    assert (once & again).mean() == pytest.approx(p * p, abs=spread)


def test_poisson_goes_by_the_example_and_not_by_what_was_asked_before():
    admission = admission_of('{ kind = "poisson", p = 0.3 }')
    keys = random_keys(1000, 4)
    whole = ask(admission, keys)
    parts = [ask(admission, keys[start : start + 7], 1 + start) for start in range(0, 1000, 7)]
    assert (np.concatenate(parts) == whole).all()


@pytest.mark.parametrize(
    "inclusion", ['{ kind = "none" }', '{ kind = "poisson", p = 1.0 }', '{ kind = "bloom", count = 1 }']
)
def test_what_admits_everything_costs_nothing(inclusion):
    admission = admission_of(inclusion)
    assert (admission.parameters, admission.nbytes, admission.state()) == (Everything(), 0, {})


def test_each_rule_has_a_filter_of_its_own():
    text = """
inclusion = { kind = "bloom", count = 2, keys = 100 }
[rules."age="]
inclusion = { kind = "bloom", count = 5, keys = 300 }
[rules."age*brand="]
inclusion = { kind = "none" }
[rules."brand="]
inclusion = { kind = "poisson", p = 0.5 }
"""
    spec = parse_spec(SPEC + text).resolve(list(shop_rows(1, 0)[0]))
    admission = Admission.of(FeatureRules.of(spec, FeaturePlan.of(spec)), 1)
    assert isinstance(admission.parameters, ByRule)
    assert {each.source: each.inclusion.count for each in admission.filters} == {
        "learner.inclusion": 2,
        'rules."age=".inclusion': 5,
    }
    assert all(each.cells.ctypes.data % 64 == 0 for each in admission.filters)
    keys, out = random_keys(50, 1), np.empty(50, np.uint8)
    for feature, counts in ((1, [0, 0, 0, 0, 50]), (2, [0, 50, 50, 50, 50]), (8, [50] * 5)):
        for expected in counts:
            features, examples = np.full(50, feature), np.ones(50, np.int64)
            admit_each(admission.parameters, keys, features, examples, out)
            assert out.sum() == expected


def test_a_kept_filter_of_another_spec_is_refused():
    small, large = (admission_of(f'{{ kind = "bloom", count = 2, keys = {n} }}') for n in (100, 100_000))
    with pytest.raises(FtrieError, match=r"learner\.inclusion: the kept filter has .* bytes, expected"):
        large.restore(small.state())


def spec_with(inclusion: str):
    """The shop's spec with one variant, as the fast tests share its kernels."""
    return parse_spec(ONE_VARIANT + f"inclusion = {inclusion}\n")


def occurrences(plan, rows) -> Counter[bytes]:
    """In how many examples each key is, where a variant uses it."""
    return Counter(key for row in rows for key in dict.fromkeys(k for k, _, mask in plan.keys(row) if mask))


@pytest.mark.parametrize("count", [2, 4])
def test_a_model_holds_the_keys_that_came_often_enough(count):
    rows = shop_rows(120, 11)
    model = learned(spec_with(f'{{ kind = "bloom", count = {count} }}'), rows, 50)
    often = occurrences(model.maker.plan, rows)
    assert set(state_of(model)) == {key for key, times in often.items() if times >= count or key == b"bias"}


@pytest.mark.parametrize("inclusion", ['{ kind = "bloom", count = 9 }', '{ kind = "poisson", p = 0.3 }'])
def test_batches_and_a_resume_change_nothing(inclusion):
    rows, spec = shop_rows(200, 12), spec_with(inclusion)
    whole = learned(spec, rows)
    assert 10 < whole.table.used < len(occurrences(whole.maker.plan, rows))
    for other in (learned(spec, rows, 1), learned(spec, rows, 37), resumed(spec, rows, 90)):
        assert other.artefact().sha256 == whole.artefact().sha256


def test_a_run_notes_an_overfull_filter(tmp_path):
    log = write_log(tmp_path / "log.csv", shop_rows(200, 14))
    spec, notes = spec_with('{ kind = "bloom", count = 3, keys = 10 }'), []
    with RejectLog() as rejects:
        output = SimpleNamespace(note=notes.append, warn=SILENT.warn, progress=SILENT.progress)
        run = train(spec, Log([log]), rejects=rejects, output=output)
    assert run.failure is None and [note for note in notes if "sized for 10" in note]
