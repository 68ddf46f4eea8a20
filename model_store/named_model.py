"""A model named on the command line: `ads`, `ads:7` in a store, or a file. Reads; publishes and changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from model_store.artefact import json_model
from model_store.artefact.artefact import Artefact
from model_store.errors import ArtefactError, SpecError, UsageError
from model_store.model_files import ARROW, JSON
from model_store.spec.spec import load_spec


@dataclass(frozen=True)
class NamedModel:
    """A model and what to call it: `ads:7`, or the file's name."""

    artefact: Artefact
    name: str


def read_named(model: str, store: str, spec: Path | None = None) -> NamedModel:
    """The model that `model` names: a file if it ends in .arrow or .json, else NAME or NAME:VERSION in the store.

    A .json model needs the file `spec`. Without a version it is the active one. Raises ArtefactError, SpecError,
    VersionNotFound, StoreUnavailable; and UsageError for a version that is no number.
    """
    path = Path(model)
    if path.suffix == JSON:
        return NamedModel(_read_json(path, spec), path.name)
    if spec is not None:
        raise SpecError(f"{model} has its own spec; --spec is for {JSON} models")
    if path.suffix == ARROW:
        return NamedModel(Artefact.read(path), path.name)
    return _fetch(model, store)


def _read_json(path: Path, spec: Path | None) -> Artefact:
    if spec is None:
        raise SpecError(f"{path}: a JSON model says nothing of fields; give its spec with --spec")
    try:
        return json_model.to_artefact(json_model.parse(path.read_bytes()), load_spec(spec))
    except OSError as error:
        raise ArtefactError(f"cannot read {path}: {error.strerror}") from error
    except ArtefactError as error:
        raise ArtefactError(f"{path}: {error}") from error


def _fetch(model: str, store: str) -> NamedModel:
    from model_store.store import Store

    name, colon, number = model.partition(":")
    if colon and not (number.isascii() and number.isdigit()):
        raise UsageError(
            f"{model}: expected NAME, NAME:VERSION with a whole number, or a file ending in {ARROW}"
        )
    with Store.open(store) as opened:
        versions = opened.model(name)
        version = int(number) if colon else versions.active_or_fail()
        return NamedModel(versions.materialise(version), f"{name}:{version}")
