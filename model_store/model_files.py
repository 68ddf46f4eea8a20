"""Models named on a command line: files (`.arrow` is an artefact, `.json` the JSON form) or `NAME[:VERSION]`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from model_store.artefact import json_model
from model_store.artefact.artefact import Artefact, Delta, decode, read_file
from model_store.artefact.json_model import JsonModel
from model_store.errors import ArtefactError, SpecError, UsageError
from model_store.files import write_whole
from model_store.keys import Report, silent
from model_store.spec.keys import BIAS, parse_key
from model_store.spec.sections import MAX_CROSS_FIELDS, Cross, FieldSpec, InputSection, ModelSection, Side
from model_store.spec.spec import ModelSpec, load_spec, spec_from_json
from model_store.versions.model_versions import ModelVersions

if TYPE_CHECKING:
    from model_store.store import Store

ARROW, JSON = ".arrow", ".json"


@dataclass(frozen=True)
class ModelFile:
    """A model or a delta read from a file, and a remark for the user, if any."""

    model: Artefact | Delta
    remark: str | None = None

    @property
    def parent(self) -> int | None:
        """The version that a delta changes; None for a whole model."""
        return self.model.parent if isinstance(self.model, Delta) else None


def read_model(path: Path, spec: Path | None, versions: ModelVersions) -> ModelFile:
    """Read a model file. Raises ArtefactError naming the file, SpecError.

    A delta's parent is the newest version that it can change. A JSON model has no spec: it gets the one in the file
    `spec`, else that of the active version, else an inferred one.
    """
    if check_ending(path) == ARROW:
        if spec is not None:
            raise SpecError(f"{path} has its own spec; --spec is for {JSON} models")
        read = read_file(path, decode)
        if isinstance(read, Delta):
            content = read.parent_content
            fitting = [each.version for each in versions.versions() if each.content == content]
            if not fitting:
                raise ArtefactError(
                    f"{path} is a delta of a model with content {content}, and no version of {versions.model} has that "
                    "content; import the whole model"
                )
            # The version that the file names is of the store it was exported from, and has another number here.
            read = replace(read, parent=fitting[-1])
        return ModelFile(read)
    model = read_file(path, json_model.parse)
    chosen, remark = _spec_for(model, spec, versions)
    return ModelFile(json_model.to_artefact(model, chosen), remark)


def write_model(artefact: Artefact, path: Path) -> None:
    """Write a model file, whole or not at all. Raises OutputError, and ArtefactError for another extension."""
    write_whole(path, artefact.to_bytes() if check_ending(path) == ARROW else json_model.render(artefact))


def check_ending(path: Path) -> str:
    """The file's extension. Raises ArtefactError unless it is .arrow or .json."""
    if path.suffix not in (ARROW, JSON):
        raise ArtefactError(f"{path}: expected a name that ends in {ARROW} (artefact) or {JSON} (JSON form)")
    return path.suffix


def _spec_for(model: JsonModel, spec: Path | None, versions: ModelVersions) -> tuple[ModelSpec, str | None]:
    if spec is not None:
        given = load_spec(spec)
        if not given.fields:
            raise SpecError(
                f"{spec}: a JSON model's spec must name its fields, since there is no log to find them in"
            )
        return given, None
    active = versions.active()
    if active is not None:
        return spec_from_json(versions.manifest(active).spec), f"spec: taken from version {active}"
    inferred = infer_spec(versions.model, model.keys)
    sides = [f"{name} ({field.side})" for name, field in inferred.fields.items()]
    return inferred, (f"spec: inferred, fields {', '.join(sides) or 'none'}; to correct it, pass --spec")


@dataclass(frozen=True)
class NamedModel:
    """A model and its name for messages: `ads:7`, or the file's name."""

    artefact: Artefact
    name: str


def read_named(model: str, store: str, spec: Path | None = None) -> NamedModel:
    """The model that `model` names: a file that ends in .arrow or .json, else NAME or NAME:VERSION in the store.

    A .json model needs the file `spec`. NAME alone is the active version. Raises ArtefactError, SpecError,
    VersionNotFound, StoreUnavailable, and UsageError for a version that is not a number.
    """
    path = Path(model)
    if path.suffix == JSON:
        if spec is None:
            raise SpecError(f"{path}: a JSON model has no spec; give one with --spec")
        made = read_file(path, lambda data: json_model.to_artefact(json_model.parse(data), load_spec(spec)))
        return NamedModel(made, path.name)
    if spec is not None:
        raise SpecError(f"{model} has its own spec; --spec is for {JSON} models")
    if path.suffix == ARROW:
        return NamedModel(Artefact.read(path), path.name)
    from model_store.store import Store

    return read_published(model, lambda: Store.open(store))


def read_published(
    model: str, opened: Callable[[], AbstractContextManager[Store]], on_junk: Report = silent
) -> NamedModel:
    """The model that NAME or NAME:VERSION names, in the store that `opened` opens. Raises as `read_named`."""
    name, colon, number = model.partition(":")
    if colon and not (number.isascii() and number.isdigit()):
        raise UsageError(
            f"{model}: expected NAME, NAME:VERSION with a whole number, or a file ending in {ARROW}"
        )
    with opened() as store:
        versions = store.model(name, on_junk)
        version = int(number) if colon else versions.active_or_fail()
        return NamedModel(versions.materialise(version), f"{name}:{version}")


# -- the spec of a JSON model without one. Keys do not tell a field's side, so every field gets the side context; raw
# keys, which name no field, may come with users and items as well.

RAW = "raw"
USER_RAW = "user_raw"
ITEM_RAW = "item_raw"


def infer_spec(model: str, keys: Iterable[bytes]) -> ModelSpec:
    """Infer the spec of a model from its keys. O(keys).

    `field=value` gives a category, `field=` alone a real number, `a*b=va*vb` a cross of 2 to 4 fields. Any other key
    adds three optional fields of raw keys: `raw` of the context, `user_raw` of the user, `item_raw` of the item.
    """
    seen = _Seen()
    for key in keys:
        seen.add(key)
    fields = {
        name: FieldSpec(kind="category" if valued else "number") for name, valued in seen.fields.items()
    }
    if seen.raw:
        sides: tuple[tuple[str, Side], ...] = ((RAW, "context"), (USER_RAW, "user"), (ITEM_RAW, "item"))
        for name, side in sides:
            # A field of the same name may have been found in the keys.
            while name in fields:
                name += "_"
            fields[name] = FieldSpec(side=side, kind="raw", optional=True)
    return ModelSpec(
        model=ModelSection(name=model),
        input=InputSection(label="label"),
        fields=fields,
        crosses=tuple(Cross(fields=names) for names in seen.crosses.values()),
    )


class _Seen:
    """The fields and crosses found in the keys so far."""

    def __init__(self) -> None:
        self.fields: dict[str, bool] = {}  # name → has a key with a value
        self.crosses: dict[frozenset[str], tuple[str, ...]] = {}
        self.raw = False
        self._stars: dict[bytes, int] = {}  # head of a key → stars in its values

    def add(self, key: bytes) -> None:
        head, _, values = key.partition(b"=")
        # Most keys are another value of a known head; only the others are parsed.
        if self._stars.get(head) != values.count(b"*") or not _is_plain(values):
            self._learn(key, head)

    def _learn(self, key: bytes, head: bytes) -> None:
        if key == BIAS:
            return
        names, values = parse_key(key) or ((), ())
        # A cross has different fields, in the same order in all its keys.
        if not 1 <= len(set(names)) == len(names) <= MAX_CROSS_FIELDS or (
            self.crosses.get(frozenset(names), names) != names
        ):
            self.raw = True
            return
        # The head is known from now on. That of a raw key is not: another key with it may follow the grammar.
        self._stars[head] = len(names) - 1
        for name, value in zip(names, values, strict=True):
            self.fields[name] = self.fields.get(name, False) or bool(value)
        if len(names) > 1:
            self.crosses.setdefault(frozenset(names), names)


def _is_plain(values: bytes) -> bool:
    """True if nothing is escaped and no value is empty."""
    return not any(part in values for part in (b"=", b"%", b"**")) and not (
        values[:1] in (b"", b"*") or values[-1:] == b"*"
    )
