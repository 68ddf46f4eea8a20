"""What happens to the model at the end of a training run: it is saved, published, or withheld.

In: a `Run` that has ended. A model of no rows is neither saved nor published, one of an incomplete log is only saved.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from model_store.artefact.artefact import Artefact
from model_store.errors import InputError, LeaseHeld, NotActivated, StaleEpoch, Stopped, StoreError
from model_store.store import Store
from model_store.versions.model_versions import ModelVersions
from trainer.formats.rejects import no_usable_row
from trainer.output import Output
from trainer.publish.guard import Guard
from trainer.publish.publisher import Publisher
from trainer.runs.train import Run

if TYPE_CHECKING:
    from trainer.runs.train_distributed import DistributedRun


def finish_run(
    run: Run | DistributedRun,
    save: Path | None,
    store: Store | None,
    activate: bool,
    publisher: Publisher | None,
    output: Output,
) -> None:
    """Save the model to `save`, and publish it to `store`; what fails becomes the run's `failure`.

    If a signal stopped the run, nothing is done: its checkpoint has the state, to be resumed. With a `publisher`, which
    has published while the run learned, only the last changes are published. A run that learned from no row, or from
    rows of one label, has failed. Nothing is published if too many rows were rejected. A model that could not be
    published and is not saved is kept in a file in the working directory.
    """
    if isinstance(run.failure, Stopped):
        return
    if not run.report.rows:
        run.failure = run.failure or InputError(nothing_learned(run))
        return
    if run.report.of_one_class and run.withheld:
        run.failure = run.failure or InputError(run.withheld)
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
        if publisher is not None and isinstance(run, Run):
            run.set_version(publisher.finish(run.model))
            publisher.check_activated()
        else:
            _publish(run, versions, artefact(), activate, output)
    except StoreError as error:
        run.failure = error
        if save is None and run.report.version is None:
            _keep(versions.model, artefact(), output)


def nothing_learned(run: Run | DistributedRun) -> str:
    """Why a run of no row has failed."""
    subsampled = (
        f", {run.report.subsampled:,} not drawn by learner.subsample" if run.report.subsampled else ""
    )
    said = no_usable_row("learned from", run.report.rejected, run.rejected, subsampled)
    return f"{said}; nothing is saved or published"


def _publish(
    run: Run | DistributedRun, versions: ModelVersions, artefact: Artefact, activate: bool, output: Output
) -> None:
    guard = Guard(versions, output.warn)
    verdict = guard.judge(run.model, artefact.rows)
    epoch = versions.begin() if activate else 0
    version = versions.publish(artefact, epoch=epoch, recent=verdict.recent, refused=verdict.refused)
    run.set_version(version)
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


def _keep(name: str, artefact: Artefact, output: Output) -> None:
    kept = Path(f"{name}.unpublished.arrow")
    artefact.write(kept)
    output.note(f"the learned model is kept in {kept}; publish it with: ftrie store import {name} {kept}")
