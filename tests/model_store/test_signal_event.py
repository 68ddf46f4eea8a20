"""SignalEvent: what its waiters see, and that a signal may come at any moment of them."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from model_store.signal_event import SignalEvent

INTERRUPTED = """
import signal, time
from model_store.signal_event import SignalEvent

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
