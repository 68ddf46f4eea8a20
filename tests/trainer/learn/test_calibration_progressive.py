"""The calibrator over a log: blind to batches, forgetful of the beginning, honest about what its curves do."""

from __future__ import annotations

import numpy as np
import pytest

from model_store.spec.spec import parse_spec
from tests.worlds import batch_of
from trainer.examples.hashing import ExampleMaker, Examples
from trainer.learn import calibration as progressive
from trainer.learn.calibration import Calibrator, last_decay, next_decay
from trainer.learn.predictions_kernels import Predictions

SPEC = """
[model]
name = "ads"
[input]
label = "click"
weight = "importance"
[fields]
device = {{}}
ad = {{ side = "item" }}
[variants]
base = {{}}
plain = {{}}
[calibration]
kind = "{kind}"
{by}
"""
COLUMNS = ["click", "importance", "device", "ad"]
BY_DEVICE = 'by = "device"'


def maker_of(kind: str = "power", by: str = "") -> ExampleMaker:
    return ExampleMaker(parse_spec(SPEC.format(kind=kind, by=by)).resolve(COLUMNS))


class Log:
    """Rows with predictions of two variants; the click rate is 0.6 p on phones and p elsewhere."""

    def __init__(self, rows: int, seed: int = 0, weights: bool = False) -> None:
        random = np.random.default_rng(seed)
        self.scores = random.normal(-1.5, 0.8, (rows, 2))
        self.devices = random.choice([b"phone", b"tablet", b""], rows)
        rate = np.where(self.devices == b"phone", 0.6, 1.0) / (1 + np.exp(-self.scores[:, 0]))
        self.labels = (random.random(rows) < rate).astype(int)
        self.weights = random.choice([0.3, 1.7], rows) if weights else np.ones(rows)

    def examples(self, maker: ExampleMaker, begin: int, end: int) -> Examples:
        rows = [
            {
                "click": b"%d" % self.labels[row],
                "importance": b"%.1f" % self.weights[row],
                "device": bytes(self.devices[row]),
                "ad": b"1",
            }
            for row in range(begin, end)
        ]
        return maker.make(batch_of(rows))


def predictions_of(scores: np.ndarray, examples: Examples) -> Predictions:
    return Predictions.of_scores(scores, examples.hashed, examples.requests, 2)


def calibrated(
    log: Log, maker: ExampleMaker, size: int = 10**9, begin: int = 0, after: Calibrator | None = None
) -> Calibrator:
    calibrator = after or Calibrator.of(maker.spec)
    assert calibrator is not None
    for start in range(begin, len(log.labels), size):
        end = min(start + size, len(log.labels))
        examples = log.examples(maker, start, end)
        calibrator.update(predictions_of(log.scores[start:end], examples), examples)
    return calibrator


@pytest.mark.parametrize("kind", ["power", "isotonic"])
def test_batches_and_a_restored_calibrator_change_no_bit(kind: str) -> None:
    log, maker = Log(20_000, weights=True), maker_of(kind, BY_DEVICE)
    whole, cut = calibrated(log, maker), calibrated(log, maker, 777)
    first, second = Calibrator.of(maker.spec), Calibrator.of(maker.spec)
    examples = log.examples(maker, 0, 11_111)
    first.update(predictions_of(log.scores[:11_111], examples), examples)
    second.restore(first.state())
    for other in (cut, calibrated(log, maker, begin=11_111, after=second)):
        assert whole.calibration().to_json() == other.calibration().to_json()
        assert whole.report() == other.report()
        for name, array in whole.state().items():
            assert array.tobytes() == other.state()[name].tobytes(), name


def test_each_value_of_the_field_has_its_own_curve_and_a_row_without_one_the_whole() -> None:
    calibration = calibrated(Log(60_000), maker_of("power", BY_DEVICE)).calibration()
    grid = np.array([0.1, 0.2, 0.4])
    assert calibration.by == "device"
    assert calibration.variants["base"].values.keys() == {b"phone", b"tablet"}
    assert calibration.curve("base", b"phone").apply(grid) == pytest.approx(0.6 * grid, rel=0.1)
    assert calibration.curve("base", b"tablet").apply(grid) == pytest.approx(grid, rel=0.1)
    assert calibration.curve("base", b"") == calibration.curve("base") is not None


def test_without_a_field_there_is_one_curve_a_variant_and_of_a_short_log_none() -> None:
    calibration = calibrated(Log(5_000), maker_of("isotonic")).calibration()
    assert calibration.by is None and calibration.curve("base") != calibration.curve("plain")
    assert Calibrator.of(maker_of("none").spec) is None
    assert calibrated(Log(300), maker_of("power", BY_DEVICE)).calibration() is None


def test_what_an_untrained_model_predicted_fades(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(64_000)
    log.devices[:] = b""
    log.scores[:4_000] = 0.0  # a model that knows nothing says one half
    log.labels[:4_000] = 0
    late = Log(64_000)
    late.devices[:] = b""
    grid = np.array([0.05, 0.2, 0.4])
    faded = calibrated(log, maker_of("power")).calibration().curve("base").apply(grid)
    undisturbed = calibrated(late, maker_of("power")).calibration().curve("base").apply(grid)
    monkeypatch.setattr(progressive, "FIRST_DECAY", 1 << 30)
    remembered = calibrated(log, maker_of("power")).calibration().curve("base").apply(grid)
    assert faded == pytest.approx(undisturbed, rel=0.05)
    assert remembered != pytest.approx(undisturbed, rel=0.2)


def test_the_report_judges_each_curve_by_rows_that_came_after_it() -> None:
    log, maker = Log(40_000), maker_of("power", BY_DEVICE)
    report = calibrated(log, maker).report()["base"]
    first, last = progressive.FIRST_DECAY, last_decay(40_000)
    assert report.rows == pytest.approx(last - first) and report.values == 2
    assert report.logloss_corrected < report.logloss
    assert report.calibration == pytest.approx(1.0 / (2.6 / 3), rel=0.03)
    assert report.calibration_corrected == pytest.approx(1.0, abs=0.03)
    p = 1 / (1 + np.exp(-log.scores[first:last, 0]))
    labels = log.labels[first:last]
    exact = -(labels * np.log(p) + (1 - labels) * np.log(1 - p)).mean()
    assert report.logloss == pytest.approx(exact, rel=1e-4)


def test_values_beyond_the_room_fall_to_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progressive, "MAX_CURVES", 4)
    log = Log(30_000)
    first = log.devices[log.devices != b""][0]
    calibrator = calibrated(log, maker_of("power", BY_DEVICE))
    assert calibrator.calibration().variants["base"].values.keys() == {bytes(first)}
    assert calibrator.nbytes == 2 * 2 * 2 * 512 * 3 * 8


def test_decays_are_due_at_doublings_and_later_at_even_distances() -> None:
    folds, row = [], 0
    while len(folds) < 14:
        row = next_decay(row)
        folds.append(row)
        assert last_decay(row) == row and last_decay(row - 1) < row
    assert folds[:4] == [4096, 8192, 16384, 32768]
    assert folds[-3:] == [2 * 2**22, 3 * 2**22, 4 * 2**22]
