"""A time to live: the keys that a sweep drops are those of an oracle in plain Python, and they start afresh."""

from __future__ import annotations

import functools
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest

from model_store.spec.spec import parse_spec
from tests.kernels import learned
from tests.trainer.learn.pairs import resumed
from tests.worlds import batch_of, learn, model_of, state_of
from trainer.formats.times import NO_TIME, parse_times, time_format
from trainer.learn.eviction import SWEEP_ROWS, TimeToLive

HOUR = 3600
COARSE_COUNTS = (
    'algorithm = "truncated_gradient"\ntheta = 0.3\nshrink = "fixed"\nrate = "counts"\nprecision = "q2.13"\n'
)
"""A pair of tests.kernels.FAST."""


def spec_of(ttl, extra=""):
    return parse_spec(
        '[model]\nname = "m"\n[input]\nlabel = "click"\ntimestamp = "ts"\n[fields]\nf = {}\ng = {}\n'
        f"[learner]\nttl = {ttl}\nl1 = 0.01\n{extra}"
    )


@functools.cache
def rows_of(size, seed, seconds_a_row=1.0, stray=False):
    """A drifting log: the values of f come and go; g has a few that stay. Times jitter; a few are nonsense."""
    random = np.random.default_rng(seed)
    times = 1_700_000_000 + (np.arange(size) * seconds_a_row).astype(int) + random.integers(-50, 50, size)
    texts = [b"%d" % time for time in times]
    for row in random.choice(size, size // 25, replace=False) if stray else ():
        texts[row] = random.choice([b"0", b"4000000000", b""], p=[0.125, 0.125, 0.75])
    drawn = random.integers([2, 20, 5], size=(size, 3)).tolist()
    return [
        {"click": b"%d" % click, "ts": bytes(text), "f": b"%d" % (row // 400 + f), "g": b"%d" % g}
        for row, (text, (click, f, g)) in enumerate(zip(texts, drawn, strict=True))
    ]


def keys_of(row):
    return [b"bias", b"f=" + row["f"], b"g=" + row["g"]]


def kept_by_rows(rows, ttl):
    """The keys after all rows: at each sweep those go whose last example is `ttl` rows ago, or longer."""
    every, last = max(4096, ttl // 4), {}
    for number, row in enumerate(rows, start=1):
        last |= dict.fromkeys(keys_of(row), number)
        if number % every == 0:
            last = {key: seen for key, seen in last.items() if number - seen < ttl}
    return set(last)


def kept_by_time(rows, ttl_s):
    """The same by the log's time, which is looked at every 4,096 rows."""
    now, swept, marks, last, window = None, None, [], {}, []
    for number, row in enumerate(rows, start=1):
        last |= dict.fromkeys(keys_of(row), number)
        if row["ts"]:
            window.append(int(row["ts"]))
        if number % 4096:
            continue
        median = sorted(window)[len(window) // 2]
        swept = median if now is None else swept
        now = median if now is None else max(now, median)
        window = []
        if not marks or now - marks[-1][1] >= ttl_s / 64:
            marks.append((number, now))
        if now - swept >= ttl_s / 4:
            swept = now
            old = max((row for row, time in marks if time <= now - ttl_s), default=0)
            last = {key: seen for key, seen in last.items() if seen > old}
    return set(last)


def assert_kept(model, rows, kept):
    keys = model.table.keys()
    data = keys.data.tobytes()
    assert {data[a:b] for a, b in zip(keys.offsets[:-1], keys.offsets[1:], strict=True)} == kept
    assert len({key for row in rows for key in keys_of(row)}) > len(kept) and model.evicted > 0
    model.table._check()


@pytest.mark.parametrize(
    ("ttl", "extra"),
    [
        (1, ""),
        (4096, ""),
        (9000, ""),
        pytest.param(6000, COARSE_COUNTS, marks=pytest.mark.slow),
    ],
)
def test_exactly_the_keys_that_were_not_seen_for_so_many_rows_go(ttl, extra):
    rows = rows_of(4 * SWEEP_ROWS + 2, 1)  # more rows after the last sweep would bring keys back
    assert_kept(learned(spec_of(ttl, extra), rows, 7000), rows, kept_by_rows(rows, ttl))


@pytest.mark.parametrize(("ttl", "seconds", "stray"), [("2h", 2 * HOUR, False), ("90m", 1.5 * HOUR, True)])
def test_exactly_the_keys_that_were_not_seen_for_so_long_go(ttl, seconds, stray):
    rows = rows_of(20_000, 2, seconds_a_row=1.3, stray=stray)
    assert_kept(learned(spec_of(f'"{ttl}"'), rows, 5000), rows, kept_by_time(rows, seconds))


@pytest.mark.parametrize("ttl", ["5000", '"1h"'])
def test_batches_and_a_resume_change_nothing(ttl):
    rows, spec = rows_of(14_000, 3), spec_of(ttl)
    whole = learned(spec, rows)
    for other in (learned(spec, rows, 500), learned(spec, rows, 10_001), resumed(spec, rows, 9999)):
        assert whole.evicted == other.evicted > 0
        assert other.artefact().sha256 == whole.artefact().sha256


def test_a_key_that_returns_starts_afresh():
    times = {"ts": b"0"}
    once = [{"click": b"1", "f": b"old", "g": b"0"} | times]
    others = [{"click": b"0", "f": b"x", "g": b"0"} | times] * (2 * SWEEP_ROWS - 1)
    model = learned(spec_of(10), once + others)
    assert b"f=old" not in state_of(model)
    before = state_of(model)
    learn(model, once)
    error = (state_of(model)[b"g=0"][1] - before[b"g=0"][1]) ** 0.5  # sqrt of g^2 = |p - y|
    z, n = state_of(model)[b"f=old"]
    assert (z, n) == pytest.approx((-error, error**2), rel=1e-9)


def test_a_few_wrong_dates_do_not_move_the_clock():
    policy = TimeToLive(1000)
    times = np.full(SWEEP_ROWS, 5)
    times[: SWEEP_ROWS // 3] = np.iinfo(np.int64).max
    times[-5:] = NO_TIME
    policy.add_times(times)
    assert policy.due(SWEEP_ROWS) is None and policy.state()["clock"].tolist() == [5, 5]


def test_marks_stay_few():
    policy = TimeToLive(64 * 1000)
    for number in range(1, 5000):
        policy.add_times(np.full(SWEEP_ROWS, number * 10))
        policy.due(number * SWEEP_ROWS)
    assert len(policy.state()["marks"]) <= 64 + 16 + 1


def micros(*moment):
    return int(datetime(*moment, tzinfo=UTC).timestamp() * 1_000_000)


@pytest.mark.parametrize(
    ("text", "form", "expected"),
    [
        (b"1700000000", None, 1_700_000_000_000_000),
        (b"1700000000.25", None, 1_700_000_000_250_000),
        (b"1700000000123", None, 1_700_000_000_123_000),
        (b"1700000000123456", None, 1_700_000_000_123_456),
        (b"1700000000123456789", None, 1_700_000_000_123_456),
        (b"1700", "epoch_ms", 1_700_000),
        (b"1700", "epoch_us", 1_700),
        (b"1700000", "epoch_ns", 1_700),
        (b"1970-01-01 00:00:01 UTC", None, 1_000_000),
        (b"1970-01-01t01:00:01.5z", None, 3_601_500_000),
        (b"1969-12-31 16:00:01.000 -0800", None, 1_000_000),
        (b"2014-10-21 05:30:00", None, micros(2014, 10, 21, 5, 30)),
        (b"2014-10-21T05:30:00+02:00", None, micros(2014, 10, 21, 3, 30)),
        (b"14102105", "%y%m%d%H", micros(2014, 10, 21, 5)),
        (b"", None, NO_TIME),
    ],
)
def test_times_are_read(text, form, expected):
    alone, bad = parse_times(pa.array([text]), form)
    assert (alone.tolist(), bad) == ([expected], [])
    beside_text, _ = parse_times(pa.array([text, b"no time"]), form)
    assert beside_text[0] == expected


def test_typed_columns_are_read():
    moment = datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC)
    for kind in (pa.timestamp("ns"), pa.timestamp("s", "UTC")):
        assert parse_times(pa.array([moment, None], kind), None)[0].tolist() == [
            micros(2020, 1, 2, 3, 4, 5),
            NO_TIME,
        ]
    assert parse_times(pa.array([1_700_000_000, None]), None)[0].tolist() == [1_700_000_000_000_000, NO_TIME]
    _, bad = parse_times(pa.array([[1], [2]]), None)
    assert [row for row, _ in bad] == [0, 1]


def test_a_bad_time_is_a_reject_where_the_time_to_live_needs_it():
    rows = [row.copy() for row in rows_of(4, 1)]
    rows[1]["ts"] = b"yesterday"
    needed = model_of(spec_of('"1h"'), list(rows[0])).maker.make(batch_of(rows))
    assert [(r.line, r.reason) for r in needed.rejects] == [
        (3, "ts: got 'yesterday', expected a time like ISO-8601")
    ]
    not_needed = model_of(spec_of(10), list(rows[0])).maker.make(batch_of(rows))
    assert not_needed.rejects == () and not_needed.times.size == 0


def test_a_time_fields_format_holds_for_the_clock():
    spec = parse_spec(
        '[model]\nname = "m"\n[input]\nlabel = "y"\ntimestamp = "hour"\n[learner]\nttl = "1d"\n'
        '[fields]\nweekday = { kind = "time", part = "weekday", column = "hour", format = "%y%m%d%H" }\n'
    )
    assert time_format(spec) == "%y%m%d%H"
