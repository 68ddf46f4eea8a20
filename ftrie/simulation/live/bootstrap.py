"""Before the first visit: a store with a first model, learned from the day before, so that serving begins at once."""

from __future__ import annotations

import shutil
import subprocess

from ftrie.simulation.first_day import load_records, write_log
from ftrie.simulation.live.asked import FROZEN, Asked
from ftrie.simulation.live.process import FTRIE
from ftrie.simulation.market import MODEL, SPEC, Market
from model_store.errors import FtrieError
from model_store.store import Store

DAY_VISITS = 5_000
DAY_SHOWN = 6


def bootstrap(asked: Asked, market: Market, store: Store) -> int:
    """Load the records, learn the day before, publish and activate; returns the version. Raises FtrieError.

    A folder that was used before keeps its spec and its models.
    """
    load_records(market, store)
    if not asked.spec.exists():
        shutil.copy(SPEC, asked.spec)
    write_log(market, DAY_VISITS, DAY_SHOWN, asked.day)
    active = store.model(MODEL).active()
    if active is None:
        _train(asked)
        active = store.model(MODEL).active()
        assert active is not None
    if asked.frozen:
        freeze(store, active)
    return active


def freeze(store: Store, version: int) -> int:
    """Publish a copy of the market's version under the frozen model's name, whole; returns its own version."""
    from dataclasses import replace

    artefact = store.model(MODEL).materialise(version)
    named = artefact.spec.model_copy(
        update={"model": artefact.spec.model.model_copy(update={"name": FROZEN})}
    )
    return store.model(FROZEN).publish_and_activate(replace(artefact, spec=named))


def _train(asked: Asked) -> None:
    finished = subprocess.run(
        [*FTRIE, "train", asked.spec.name, asked.day.name, "--publish", "--activate", "--store", asked.store],
        cwd=asked.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode:
        raise FtrieError(f"ftrie train failed with exit code {finished.returncode}: {finished.stderr[-600:]}")
