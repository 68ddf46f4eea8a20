"""What becomes of a learned model: a file, a published version, or, where nothing may replace the old one, nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from model_store.errors import InputError, Stopped, StoreError
from model_store.terminal import note

if TYPE_CHECKING:
    from model_store.artefact import Artefact
    from model_store.model_versions import ModelVersions
    from model_store.store import Store
    from trainer.train import Run


def hand_over(run: Run, save: Path | None, store: Store | None, activate: bool) -> None:
    """Save and publish the model, as asked. A model of no rows replaces nothing, a broken-off one is only saved.

    A run that a signal stopped hands over nothing: its checkpoint has the state, and it is to go on.
    """
    if (save is None and store is None) or isinstance(run.failure, Stopped):
        return
    if not run.report.rows:
        undrawn = (
            f", {run.report.subsampled:,} not drawn by learner.subsample" if run.report.subsampled else ""
        )
        nothing = (
            f"no row could be learned from ({run.report.rejected:,} rejected{undrawn}); "
            "nothing is saved or published"
        )
        run.failure = run.failure or InputError(nothing)
        return
    artefact = run.model.artefact()
    if save is not None:
        artefact.write(save)
    if store is not None and run.failure is None:
        _publish(run, artefact, store, activate, saved=save is not None)


def _publish(run: Run, artefact: Artefact, store: Store, activate: bool, saved: bool) -> None:
    """Publish the model; what prevents it becomes the run's failure, and a model saved nowhere is kept in a file."""
    name = run.model.spec.model.name
    try:
        versions: ModelVersions = store.model(name)
        version = versions.publish_and_activate(artefact) if activate else versions.publish(artefact)
        run.report = replace(run.report, version=version)
    except StoreError as error:
        run.failure = error
        if not saved:
            kept = Path(f"{name}.unpublished.arrow")
            artefact.write(kept)
            note(f"the learned model is kept in {kept}; publish it by: ftrie store import {name} {kept}")
