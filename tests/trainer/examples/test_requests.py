"""Sampling requests: rows of one request stay together, the gradient stays unbiased, the model stays calibrated."""

from __future__ import annotations

import json
from itertools import groupby
from types import SimpleNamespace

import numpy as np
import pytest

from model_store.spec.spec import parse_spec
from tests.matrix import slow_except
from tests.trainer.click_logs import batch_of, learn, model_of
from trainer.examples.hashing import ExampleMaker
from trainer.examples.open_log import Log
from trainer.examples.requests import MOST_ROWS, WholeRequests
from trainer.logs.reader import BATCH_BYTES
from trainer.logs.rejects import RejectLog
from trainer.output import SILENT
from trainer.runs.train import train

RATE = 0.3


def spec_of(rate=RATE, request='request = "rq"\n', learner="", seed=1):
    return parse_spec(
        f'[model]\nname = "m"\n[input]\nlabel = "click"\n{request}[fields]\nf = {{}}\ng = {{}}\n'
        f"[learner]\nsubsample = {{ unclicked = {rate} }}\nseed = {seed}\n{learner}"
    )


def rows_of(requests, seed, clicked=0.15):
    """Requests of 1 to 12 rows; some rows have no request id, some ids come again later."""
    random, rows = np.random.default_rng(seed), []
    for number in range(requests):
        name = b"" if random.random() < 0.1 else b"r%d" % (number if random.random() < 0.9 else number // 2)
        for _ in range(random.integers(1, 13)):
            g = int(random.integers(4))
            click = random.random() < clicked / (1 + g)
            rows.append(
                {"click": b"%d" % click, "rq": name, "f": b"%d" % random.integers(30), "g": b"%d" % g}
            )
    return rows


def requests_of(rows):
    """The rows of each request, as lists of row numbers: the definition."""
    runs = [list(run) for _, run in groupby(range(len(rows)), key=lambda row: rows[row]["rq"] or row)]
    return [run[at : at + MOST_ROWS] for run in runs for at in range(0, len(run), MOST_ROWS)]


def batches_of(rows, sizes):
    """Rows in batches of these sizes (the last one as long as it takes), their lines those of one file."""
    start = 0
    for size in sizes:
        part = rows[start : start + size]
        if part:
            batch = batch_of(part)
            yield type(batch)(**{**vars(batch), "lines": batch.lines + start})
        start += size


def drawn(rows, spec, sizes):
    """Which rows are learned from, and the weight of each."""
    maker = ExampleMaker(spec.resolve(list(rows[0])))
    weights = np.zeros(len(rows))
    for batch in WholeRequests(maker.spec).of(batches_of(rows, sizes)):
        assert (batch.lines == 2 + batch.first_row + np.arange(batch.rows)).all()
        examples = maker.make(batch)
        assert examples.subsampled + examples.rows.size == batch.rows
        kept = np.flatnonzero(np.isin(batch.lines, _lines_of(batch, examples, maker)))
        weights[batch.first_row + kept] = examples.hashed.weights
    return weights


def _lines_of(batch, examples, maker):
    """The lines of the rows that were drawn: those with the drawn rows' positions after the draw."""
    sample = maker._draw(batch)
    return sample.batch.lines[examples.rows]


@pytest.mark.parametrize("seed", slow_except(range(2), range(8)))
def test_requests_are_drawn_whole_however_the_log_is_cut(seed):
    rows, random = rows_of(300, seed), np.random.default_rng(seed)
    whole = drawn(rows, spec_of(), [len(rows)])
    for run in requests_of(rows):
        clicked = any(rows[row]["click"] == b"1" for row in run)
        weights = {float(whole[row]) for row in run}
        assert weights == {1.0} if clicked else weights in ({0.0}, {1.0 / RATE})
    for sizes in ([1] * len(rows), random.integers(1, 40, len(rows)), [5] * len(rows)):
        assert (drawn(rows, spec_of(), sizes) == whole).all()


def test_the_share_of_unclicked_requests_is_the_one_asked_for():
    rows = rows_of(6000, 3, clicked=0.0)
    for text in ('request = "rq"\n', ""):
        weights = drawn(rows, spec_of(request=text), [1000] * 100)
        runs = requests_of(rows) if text else [[row] for row in range(len(rows))]
        share = np.mean([weights[run[0]] > 0 for run in runs])
        assert share == pytest.approx(RATE, abs=4 * (RATE * (1 - RATE) / len(runs)) ** 0.5)


def test_a_request_without_end_is_taken_as_several():
    rows = [{"click": b"0", "rq": b"bot", "f": b"1", "g": b"1"}] * (2 * MOST_ROWS + 1000)
    rows[MOST_ROWS + 5] = rows[0] | {"click": b"1"}
    spec = spec_of()
    cuts = ([len(rows)], [50_000] * 3, [MOST_ROWS - 1, 1, 1, len(rows)])
    found = []
    for sizes in cuts:
        requests = WholeRequests(spec.resolve(list(rows[0])))
        told = list(requests.of(batches_of(rows, sizes)))
        found.append(np.concatenate([batch.clicked for batch in told]))
        assert sum(batch.rows for batch in told) == len(rows)
        assert (requests.resumed, requests.cut) == (0, 2)
        assert next(requests.warnings()).startswith("2 times a request of more than 65,536 rows was cut")
    expected = np.zeros(len(rows), bool)
    expected[MOST_ROWS : 2 * MOST_ROWS] = True
    assert all((clicked == expected).all() for clicked in found)


@pytest.mark.parametrize("sizes", [[100], [1] * 100, [3, 2, 4, 100]])
def test_a_request_that_goes_on_after_others_is_counted_and_warned_of(sizes):
    names = [b"a", b"a", b"b", b"a", b"c", b"", b"", b"b", b"b"]
    rows = [{"click": b"0", "rq": name, "f": b"1", "g": b"1"} for name in names]
    requests = WholeRequests(spec_of().resolve(list(rows[0])))
    assert sum(batch.rows for batch in requests.of(batches_of(rows, sizes))) == len(rows)
    assert (requests.resumed, requests.cut) == (2, 0)
    (warning,) = requests.warnings()
    assert warning.startswith("2 times a request went on after rows of another")
    assert warning.endswith("sort the log by 'rq'")


def test_a_log_that_is_not_sorted_by_request_is_warned_of_by_the_run(tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("click,rq,f,g\n" + "".join(f"{row == 7},r{row % 5},1,2\n" for row in range(20)).lower())
    told = []
    with RejectLog() as rejects:
        output = SimpleNamespace(note=told.append, warn=SILENT.warn, progress=SILENT.progress)
        report = train(spec_of(), Log([str(log)]), rejects=rejects, output=output).report
    assert (report.resumed_requests, report.cut_requests, report.rejected) == (15, 0, 0)
    assert any("sort the log by 'rq'" in text for text in told)


def test_a_request_ends_with_its_file():
    rows = [{"click": b"%d" % click, "rq": b"same", "f": b"1", "g": b"1"} for click in (0, 1)]
    first, second = (batch_of(rows[row : row + 1], file) for row, file in enumerate("ab"))
    second = type(second)(**{**vars(second), "stop": type(second.stop)("b", number=1)})
    told = list(WholeRequests(spec_of().resolve(list(rows[0]))).of([first, second]))
    assert [(batch.file, batch.clicked.tolist(), batch.resumable) for batch in told] == [
        ("a", [False], True),
        ("b", [True], True),
    ]


@pytest.mark.parametrize("seed", slow_except(range(1), range(4)))
def test_a_later_run_begins_only_where_a_request_does(seed):
    rows, random = rows_of(200, seed), np.random.default_rng(seed)
    begins = {2 + run[0] for run in requests_of(rows)} | {2 + len(rows)}
    batches = list(batches_of(rows, random.integers(1, 9, len(rows))))
    seen = 2
    for batch in WholeRequests(spec_of().resolve(list(rows[0]))).of(batches):
        seen += batch.rows
        assert not batch.resumable or seen in begins
        if batch.stop.first_line:
            assert batch.stop.first_line == seen


@pytest.mark.slow
def test_the_expected_gradient_is_that_of_all_rows():
    rows = rows_of(25, 1)
    labels = np.array([float(row["click"]) for row in rows])
    p = np.random.default_rng(2).uniform(0.05, 0.6, len(rows))
    keys = sorted({b"f" + row["f"] for row in rows} | {b"g" + row["g"] for row in rows})
    x = np.array([[float(key in (b"f" + r["f"], b"g" + r["g"])) for key in keys] for r in rows])
    full = (p - labels) @ x
    seeds = 1500
    each = np.array([(drawn(rows, spec_of(seed=s), [len(rows)]) * (p - labels)) @ x for s in range(seeds)])
    error = each.std(axis=0) / seeds**0.5
    assert (np.abs(each.mean(axis=0) - full) <= 4.5 * error + 1e-12).all()
    assert (error > 0).mean() > 0.5  # the draw does something


def test_weights_of_the_log_are_multiplied():
    rows = [row | {"w": b"%d" % (1 + number % 3)} for number, row in enumerate(rows_of(100, 5))]
    text = 'request = "rq"\nweight = "w"\n'
    plain = drawn(rows, spec_of(), [50] * 100)
    weighed = drawn(rows, spec_of(request=text), [50] * 100)
    assert weighed == pytest.approx(plain * [float(row["w"]) for row in rows])


def test_the_model_stays_calibrated_and_metrics_weigh_by_one_over_r(tmp_path):
    rows = rows_of(12_000, 6)
    log = tmp_path / "log.csv"
    lines = [b",".join(row.values()) for row in rows]
    log.write_bytes(b"\n".join([b",".join(name.encode() for name in rows[0]), *lines]) + b"\n")
    runs = {}
    for rate in (1.0, 0.2):
        spec = spec_of(rate=rate, learner="l1 = 0.1\n")
        with RejectLog() as rejects:
            runs[rate] = train(spec, Log([str(log)]), rejects=rejects)
    full, sampled = (runs[rate].report for rate in (1.0, 0.2))
    assert (full.rows, full.subsampled) == (len(rows), 0)
    assert sampled.rows + sampled.subsampled == len(rows) and sampled.subsampled > 0.3 * len(rows)
    assert sampled.variants["base"].calibration == pytest.approx(1.0, abs=0.03)
    assert sampled.variants["base"].logloss == pytest.approx(full.variants["base"].logloss, rel=0.03)


@pytest.mark.parametrize("batch_bytes", [500, 3000])
def test_batches_and_threads_change_nothing(tmp_path, batch_bytes):
    rows = rows_of(400, 7)
    log = tmp_path / "log.csv"
    lines = [b",".join(row.values()) for row in rows]
    log.write_bytes(b"\n".join([b"click,rq,f,g", *lines]) + b"\n")
    found = set()
    for size, threads in ((BATCH_BYTES, None), (batch_bytes, None), (batch_bytes, 3)):
        with RejectLog() as rejects:
            run = train(spec_of(), Log([str(log)], batch_bytes=size), rejects=rejects, threads=threads)
        found.add((run.model.artefact().sha256, run.report.rows, run.report.subsampled))
    assert len(found) == 1


def test_without_sampling_rows_tell_their_request_and_keep_their_weight():
    rows = rows_of(50, 8)
    text = '[model]\nname = "m"\n[input]\nlabel = "click"\nrequest = "rq"\n[fields]\nf = {}\n'
    model = model_of(parse_spec(text), list(rows[0]))
    examples = model.maker.make(batch_of(rows))
    assert examples.hashed.weights.size == 0
    same = examples.requests[1:] == examples.requests[:-1]
    ids = [row["rq"] or number for number, row in enumerate(rows)]
    assert same.tolist() == [a == b for a, b in zip(ids[1:], ids[:-1], strict=True)]
    learn(model, rows)


def test_columns_whose_type_changes_within_a_request_change_nothing(tmp_path):
    random, lines = np.random.default_rng(9), []
    for number in range(300):
        name = [number, float(number), f"r{number}", None, True][random.integers(5)]
        for _ in range(random.integers(1, 9)):
            row = {
                "click": bool(random.random() < 0.1),
                "rq": name,
                "f": [1, 2.5, "x", None][random.integers(4)],
            }
            lines.append(json.dumps(row | ({"g": ["a", 1]} if random.random() < 0.7 else {})))
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(lines) + "\n")
    spec = parse_spec(
        '[model]\nname = "m"\n[input]\nlabel = "click"\nrequest = "rq"\n'
        '[fields]\nf = {}\ng = { kind = "set" }\n[learner]\nl1 = 0.01\nsubsample = { unclicked = 0.3 }\n'
    )
    found = set()
    for batch_bytes in (1 << 20, 3000, 200):
        with RejectLog() as rejects:
            run = train(spec, Log([str(log)], batch_bytes=batch_bytes), rejects=rejects)
        assert run.failure is None and rejects.count == 0
        found.add((run.model.artefact().sha256, run.report.rows, run.report.subsampled))
    assert len(found) == 1
