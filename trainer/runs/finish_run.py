"""What becomes of a learned model: a file, a published version, or, where nothing may replace the old one, nothing."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from model_store.errors import (
    InputError,
    LeaseHeld,
    NotActivated,
    StaleEpoch,
    Stopped,
    StoreError,
    VersionRefused,
)
from trainer.output import Output

if TYPE_CHECKING:
    from model_store.artefact.artefact import Artefact
    from model_store.store import Store
    from model_store.versions.model_versions import ModelVersions
    from trainer.publish.publisher import Publisher
    from trainer.runs.train import Run


def hand_over(
    run: Run,
    save: Path | None,
    store: Store | None,
    activate: bool,
    publisher: Publisher | None,
    output: Output,
) -> None:
    """Save and publish the model, as asked. A model of no rows replaces nothing, a broken-off one is only saved.

    A run that a signal stopped hands over nothing: its checkpoint has the state, and it is to go on. A run that has
    published while it learned publishes what is left. Nothing is published where too many rows were rejected.
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
    artefact = cache(run.model.artefact)
    if save is not None:
        artefact().write(save)
    if store is None or run.failure is not None:
        return
    if run.withheld:
        run.failure = InputError(run.withheld)
        return
    versions = store.model(run.model.spec.model.name)
    try:
        version = (
            publisher.finish(run.model)
            if publisher
            else _publish(run, versions, artefact(), activate, output)
        )
        run.report = replace(run.report, version=version)
    except (VersionRefused, NotActivated) as error:
        run.failure = error
    except StoreError as error:
        run.failure = error
        if save is None:
            _keep(versions.model, artefact(), output)


def _publish(run: Run, versions: ModelVersions, artefact: Artefact, activate: bool, output: Output) -> int:
    from trainer.publish.guard import Guard

    guard = Guard(versions, output.warn)
    verdict = guard.judge(run.model, artefact.rows)
    epoch = versions.begin() if activate else 0
    version = versions.publish(artefact, epoch=epoch, recent=verdict.recent, refused=verdict.refused)
    try:
        guard.report(version, verdict)
        if activate and verdict.may_be_served:
            versions.activate(version, epoch=epoch)
    except (LeaseHeld, StaleEpoch):
        raise
    except StoreError as error:
        raise NotActivated(versions.model, version, error) from error
    if activate:
        guard.check(version, verdict)
    return version


def _keep(name: str, artefact: Artefact, output: Output) -> None:
    """Keep a model that could not be published and was saved nowhere."""
    kept = Path(f"{name}.unpublished.arrow")
    artefact.write(kept)
    output.note(f"the learned model is kept in {kept}; publish it by: ftrie store import {name} {kept}")
