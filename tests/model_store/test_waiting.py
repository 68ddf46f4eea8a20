"""Pauses between attempts; SignalEvent: what its waiters see, and that a signal may come at any moment of them."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from model_store.waiting import Backoff, Pauses, SignalEvent

INTERRUPTED = """
import signal, time
from model_store.waiting import SignalEvent

event, calls = SignalEvent(), 0

def on_signal(number, frame):
    global calls
    calls += 1
    event.set()

signal.signal(signal.SIGALRM, on_signal)
signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
end = time.monotonic() + 0.5
while time.monotonic() < end:
    event.wait(0.01)
    event.clear()
signal.setitimer(signal.ITIMER_REAL, 0)
event.set()
assert event.wait(60.0)
print(calls)
"""


def test_a_signal_may_come_at_any_moment() -> None:
    # With threading.Event in its place the process stands still within the first tenth of a second.
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60, check=True
    )
    assert int(ended.stdout) > 100


def test_wait_says_whether_it_is_set() -> None:
    event = SignalEvent()
    assert not event.is_set()
    begun = time.monotonic()
    assert not event.wait(0.05)
    assert time.monotonic() - begun >= 0.05
    event.set()
    assert event.is_set()
    assert event.wait(0.0) and event.wait(0.0)
    event.clear()
    assert not event.is_set()
    assert not event.wait(0.0)


def test_every_waiter_is_woken() -> None:
    event = SignalEvent()
    with ThreadPoolExecutor(3) as pool:
        waiters = [pool.submit(event.wait, 30.0) for _ in range(3)]
        event.set()
        event.set()
        assert [waiter.result(15.0) for waiter in waiters] == [True] * 3


def test_pauses_double_up_to_the_longest_with_jitter_are_half_to_all_and_a_success_ends_them() -> None:
    pauses = Pauses(0.1, 1.0, jitter=False)
    assert [pauses.after(failures) for failures in (1, 2, 3, 4, 5, 100_000)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    drawn = {Pauses(0.1, 5.0).after(50) for _ in range(20)}
    assert len(drawn) > 1 and all(2.5 <= pause_s <= 5.0 for pause_s in drawn)
    backoff = Backoff(1.0, 8.0)
    assert not backoff.succeeded()
    assert 0.5 <= backoff.failed() <= 1.0 <= backoff.failed() <= 2.0
    assert backoff.succeeded()
    assert 0.5 <= backoff.failed() <= 1.0
