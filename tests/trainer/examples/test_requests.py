"""Sampling requests: rows of one request stay together, the gradient stays unbiased, the model stays calibrated."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import groupby
from types import SimpleNamespace

import numpy as np
import pytest

from model_store.spec.spec import parse_spec
from tests.matrix import slow_except
from tests.worlds import batch_of, learn, model_of
from trainer.examples.hashing import ExampleMaker
from trainer.examples.open_log import Log
from trainer.examples.requests import MOST_ROWS, WholeRequests
from trainer.formats.reader import BATCH_BYTES
from trainer.formats.rejects import RejectLog
from trainer.output import SILENT
from trainer.runs.train import train

RATE = 0.3


def spec_of(rate=RATE, request='request = "rq"\n', fields="f = {}\ng = {}\n", learner="", seed=1):
    sample = f"subsample = {{ unclicked = {rate} }}\nseed = {seed}\n" if rate else ""
    return parse_spec(
        f'[model]\nname = "m"\n[input]\nlabel = "click"\n{request}[fields]\n{fields}[learner]\n{sample}{learner}'
    )


def requests_in(rows, **how):
    return WholeRequests(spec_of(**how).resolve(list(rows[0])))


def row_of(click, request, f=1, g=1):
    return {"click": b"%d" % click, "rq": request, "f": b"%d" % f, "g": b"%d" % g}


def rows_of(requests, seed, clicked=0.15):
    """Requests of 1 to 12 rows; some rows have no request id, some ids come again later."""
    random, rows = np.random.default_rng(seed), []
    for number in range(requests):
        name = b"" if random.random() < 0.1 else b"r%d" % (number if random.random() < 0.9 else number // 2)
        for _ in range(random.integers(1, 13)):
            g = int(random.integers(4))
            rows.append(row_of(random.random() < clicked / (1 + g), name, random.integers(30), g))
    return rows


def write(log, rows):
    lines = [b",".join(row.values()) for row in rows]
    log.write_bytes(b"\n".join([b"click,rq,f,g", *lines]) + b"\n")
    return str(log)


def trained(log, spec, threads=None, output=SILENT, **options):
    with RejectLog() as rejects:
        run = train(spec, Log([log], **options), rejects=rejects, threads=threads, output=output)
        assert run.failure is None and rejects.count == 0
    return run


def requests_of(rows):
    """The rows of each request, as lists of row numbers: the definition."""
    runs = [list(run) for _, run in groupby(range(len(rows)), key=lambda row: rows[row]["rq"] or row)]
    return [run[at : at + MOST_ROWS] for run in runs for at in range(0, len(run), MOST_ROWS)]


def batches_of(rows, sizes):
    """Rows in batches of these sizes (the last one as long as it takes), their lines those of one file."""
    start = 0
    for size in sizes:
        if part := rows[start : start + size]:
            batch = batch_of(part)
            yield replace(batch, lines=batch.lines + start)
        start += size


def drawn(rows, spec, sizes):
    """The weight of each row, 0 if it is not learned from."""
    maker = ExampleMaker(spec.resolve(list(rows[0])))
    weights = np.zeros(len(rows))
    for batch in WholeRequests(maker.spec).of(batches_of(rows, sizes)):
        assert (batch.lines == 2 + batch.first_row + np.arange(batch.rows)).all()
        examples = maker.make(batch)
        assert examples.counts.subsampled + examples.rows.size == batch.rows
        # The lines of the drawn rows, which are numbered after the draw.
        kept = np.flatnonzero(np.isin(batch.lines, maker._draw(batch).batch.lines[examples.rows]))
        weights[batch.first_row + kept] = examples.hashed.weights
    return weights


@pytest.mark.parametrize("seed", slow_except([0], range(3)))
def test_requests_are_drawn_whole_however_the_log_is_cut(seed):
    rows, random = rows_of(60, seed), np.random.default_rng(seed)
    whole, found = drawn(rows, spec_of(), [len(rows)]), set()
    for run in requests_of(rows):
        clicked = any(rows[row]["click"] == b"1" for row in run)
        weights = {float(whole[row]) for row in run}
        assert weights == {1.0} if clicked else weights in ({0.0}, {1.0 / RATE})
        found |= weights
    assert len(found) == 3
    for sizes in ([1] * len(rows), random.integers(1, 40, len(rows)), [5] * len(rows)):
        assert (drawn(rows, spec_of(), sizes) == whole).all()


def test_the_share_of_unclicked_requests_is_the_one_asked_for():
    rows = rows_of(2000, 3, clicked=0.0)
    for text in ('request = "rq"\n', ""):
        weights = drawn(rows, spec_of(request=text), [1000] * 100)
        runs = requests_of(rows) if text else [[row] for row in range(len(rows))]
        share = np.mean([weights[run[0]] > 0 for run in runs])
        assert share == pytest.approx(RATE, abs=4 * (RATE * (1 - RATE) / len(runs)) ** 0.5)


def test_a_request_without_end_is_taken_as_several():
    rows = [row_of(0, b"bot")] * (2 * MOST_ROWS + 1000)
    rows[MOST_ROWS + 5] = row_of(1, b"bot")
    expected = np.zeros(len(rows), bool)
    expected[MOST_ROWS : 2 * MOST_ROWS] = True
    for sizes in ([len(rows)], [50_000] * 3, [MOST_ROWS - 1, 1, 1, len(rows)]):
        requests = requests_in(rows[:1])
        told = list(requests.of(batches_of(rows, sizes)))
        assert sum(batch.rows for batch in told) == len(rows)
        assert (requests.resumed, requests.cut) == (0, 2)
        assert next(requests.warnings()).startswith("2 times a request of more than 65,536 rows was cut")
        assert (np.concatenate([batch.clicked for batch in told]) == expected).all()


@pytest.mark.parametrize("sizes", [[100], [1] * 100, [3, 2, 4, 100]])
def test_a_request_that_goes_on_after_others_is_counted_and_warned_of(sizes):
    rows = [row_of(0, name) for name in (b"a", b"a", b"b", b"a", b"c", b"", b"", b"b", b"b")]
    requests = requests_in(rows)
    assert sum(batch.rows for batch in requests.of(batches_of(rows, sizes))) == len(rows)
    assert (requests.resumed, requests.cut) == (2, 0)
    (warning,) = requests.warnings()
    assert warning.startswith("2 times a request went on after rows of another")
    assert warning.endswith("sort the log by 'rq'")


def test_a_log_that_is_not_sorted_by_request_is_warned_of_by_the_run(tmp_path):
    log, told = write(tmp_path / "log.csv", [row_of(row == 7, b"r%d" % (row % 5)) for row in range(20)]), []
    output = SimpleNamespace(note=told.append, warn=SILENT.warn, progress=SILENT.progress)
    report = trained(log, spec_of(), output=output).report
    assert (report.resumed_requests, report.cut_requests, report.rejected) == (15, 0, 0)
    assert any("sort the log by 'rq'" in text for text in told)


def test_a_request_ends_with_its_file():
    rows = [row_of(click, b"same") for click in (0, 1)]
    first, second = (batch_of(rows[row : row + 1], file) for row, file in enumerate("ab"))
    second = replace(second, stop=replace(second.stop, number=1))
    told = list(requests_in(rows).of([first, second]))
    found = [(batch.file, batch.clicked.tolist(), batch.resumable) for batch in told]
    assert found == [("a", [False], True), ("b", [True], True)]


def test_a_later_run_begins_only_where_a_request_does():
    rows, random = rows_of(100, 0), np.random.default_rng(0)
    begins = {2 + run[0] for run in requests_of(rows)} | {2 + len(rows)}
    seen = 2
    for batch in requests_in(rows).of(batches_of(rows, random.integers(1, 9, len(rows)))):
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
    seeds = 500
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
    log = write(tmp_path / "log.csv", rows)
    full, sampled = (trained(log, spec_of(rate=rate, learner="l1 = 0.1\n")).report for rate in (1.0, 0.2))
    assert (full.rows, full.subsampled) == (len(rows), 0)
    assert sampled.rows + sampled.subsampled == len(rows) and sampled.subsampled > 0.3 * len(rows)
    assert sampled.variants["base"].calibration == pytest.approx(1.0, abs=0.03)
    assert sampled.variants["base"].logloss == pytest.approx(full.variants["base"].logloss, rel=0.03)


def test_batches_threads_and_columns_whose_type_changes_within_a_request_change_nothing(tmp_path):
    random, lines = np.random.default_rng(9), []
    for number in range(80):
        name = [number, float(number), f"r{number}", None, True][random.integers(5)]
        for _ in range(random.integers(1, 9)):
            f = [1, 2.5, "x", None][random.integers(4)]
            row = {"click": bool(random.random() < 0.1), "rq": name, "f": f}
            lines.append(json.dumps(row | ({"g": ["a", 1]} if random.random() < 0.7 else {})))
    log, found = tmp_path / "log.jsonl", set()
    log.write_text("\n".join(lines) + "\n")
    spec = spec_of(fields='f = {}\ng = { kind = "set" }\n', learner="l1 = 0.01\n")
    for batch_bytes, threads in ((BATCH_BYTES, None), (3000, 3), (200, 3)):
        run = trained(str(log), spec, threads, batch_bytes=batch_bytes)
        found.add((run.model.artefact().sha256, run.report.rows, run.report.subsampled))
    assert len(found) == 1


def test_without_sampling_rows_tell_their_request_and_keep_their_weight():
    rows = rows_of(50, 8)
    model = model_of(spec_of(rate=None), list(rows[0]))
    examples = model.maker.make(batch_of(rows))
    assert examples.hashed.weights.size == 0
    same = examples.requests[1:] == examples.requests[:-1]
    ids = [row["rq"] or number for number, row in enumerate(rows)]
    assert same.tolist() == [a == b for a, b in zip(ids[1:], ids[:-1], strict=True)]
    learn(model, rows)
