"""Model files by ending: `.arrow` is the artefact, `.json` the JSON form. Publishes nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from model_store.artefact import json_model
from model_store.artefact.artefact import Artefact, Delta, decode
from model_store.artefact.json_model import JsonModel
from model_store.errors import ArtefactError, SpecError
from model_store.spec.inferred_spec import infer_spec
from model_store.spec.spec import ModelSpec, load_spec, spec_from_json
from model_store.versions.model_versions import ModelVersions
from model_store.whole_file import write_whole

ARROW, JSON = ".arrow", ".json"


@dataclass(frozen=True)
class ModelFile:
    """A model or a delta read from a file, and what its reader should be told, if anything."""

    model: Artefact | Delta
    remark: str | None = None

    @property
    def parent(self) -> int | None:
        """The version that a delta changes; None of a whole model."""
        return self.model.parent if isinstance(self.model, Delta) else None


def read_model(path: Path, spec: Path | None, versions: ModelVersions) -> ModelFile:
    """Read a model file. Raises ArtefactError naming the file, SpecError.

    A JSON model has no spec: it gets that of the file `spec`, else of the active version, else one inferred.
    """
    if check_ending(path) == ARROW:
        if spec is not None:
            raise SpecError(f"{path} has its own spec; --spec is for {JSON} models")
        return ModelFile(_read_arrow(path, versions))
    try:
        model = json_model.parse(path.read_bytes())
    except OSError as error:
        raise ArtefactError(f"cannot read {path}: {error.strerror}") from error
    except ArtefactError as error:
        raise ArtefactError(f"{path}: {error}") from error
    chosen, remark = _spec_for(model, spec, versions)
    return ModelFile(json_model.to_artefact(model, chosen), remark)


def _read_arrow(path: Path, versions: ModelVersions) -> Artefact | Delta:
    """A model, or a delta with the newest version that it changes as its parent."""
    try:
        read = decode(path.read_bytes())
    except OSError as error:
        raise ArtefactError(f"cannot read {path}: {error.strerror}") from error
    except ArtefactError as error:
        raise ArtefactError(f"{path}: {error}") from error
    if not isinstance(read, Delta):
        return read
    fitting = [each.version for each in versions.versions() if each.content == read.parent_content]
    if not fitting:
        raise ArtefactError(
            f"{path} is a delta of a model with content {read.parent_content}, and no version of {versions.model} has "
            "it; import the model whole"
        )
    return replace(read, parent=fitting[-1])


def write_model(artefact: Artefact, path: Path) -> None:
    """Write a model file, whole or not at all. Raises ArtefactError for another ending, OutputError."""
    write_whole(path, artefact.to_bytes() if check_ending(path) == ARROW else json_model.render(artefact))


def check_ending(path: Path) -> str:
    """The file's ending. Raises ArtefactError unless it is .arrow or .json."""
    if path.suffix not in (ARROW, JSON):
        raise ArtefactError(f"{path}: expected a name that ends in {ARROW} (artefact) or {JSON} (JSON form)")
    return path.suffix


def _spec_for(model: JsonModel, spec: Path | None, versions: ModelVersions) -> tuple[ModelSpec, str | None]:
    if spec is not None:
        given = load_spec(spec)
        if not given.fields:
            raise SpecError(
                f"{spec}: a JSON model's spec must name its fields: there is no log to find them in"
            )
        return given, None
    active = versions.active()
    if active is not None:
        return spec_from_json(versions.manifest(active).spec), f"spec: that of version {active}"
    inferred = infer_spec(versions.model, model.keys)
    sides = [f"{name} ({field.side})" for name, field in inferred.fields.items()]
    return inferred, (
        f"spec: inferred, fields {', '.join(sides) or 'none'}; if some stand elsewhere, say so with --spec"
    )
