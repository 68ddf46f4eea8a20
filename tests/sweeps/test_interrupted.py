"""EINTR: signals that arrive in calls that wait, which are made again."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from model_store.artefact.artefact import Artefact
from model_store.files import locked
from model_store.model_files import write_model
from model_store.store import Store
from tests.model_store.models import KEYS, model
from tests.waiting import eventually

EVERY_S = 0.0005
PAUSED_MS, LOCKED_S = 50, 0.05


@contextmanager
def interrupted() -> Iterator[list[int]]:
    """A signal each half millisecond, of which the list keeps one number each; a call that waits returns EINTR."""
    arrived: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: arrived.append(number))
    signal.setitimer(signal.ITIMER_REAL, EVERY_S, EVERY_S)
    try:
        yield arrived
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def test_a_call_that_a_signal_interrupts_is_made_again(store: Store, store_url: str, tmp_path: Path) -> None:
    one = model(weights=[1.0] * len(KEYS))
    file, taken, free = tmp_path / "a.arrow", threading.Event(), threading.Event()

    def hold() -> None:
        with locked(tmp_path / "lock"):
            taken.set()
            free.wait(LOCKED_S)

    with Store.open(store_url) as other, interrupted() as arrived:
        for _ in range(2):
            other.client.execute_command("CLIENT", "PAUSE", PAUSED_MS)  # each answer is waited for
            before = len(arrived)
            ads = store.model("ads")
            version = ads.publish_and_activate(one)
            assert ads.materialise(version).content == one.content
            assert len(arrived) > before + 20
        write_model(one, file)
        assert Artefact.read(file).content == one.content
        holder = threading.Thread(target=hold)
        holder.start()
        eventually(taken.is_set)
        before = len(arrived)
        with locked(tmp_path / "lock"):
            assert len(arrived) > before + 20
        holder.join()
    assert not store.check()
