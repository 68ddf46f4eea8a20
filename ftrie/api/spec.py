"""`ftrie.Spec`: a model spec from a file, from text, from a dictionary, or guessed from data."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from ftrie.api.data import Data, Format, log_of
from ftrie.api.output import LibraryOutput, names_arguments
from model_store.files import write_whole
from model_store.spec.spec import ModelSpec, load_spec, parse_spec, spec_from_document

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class Spec:
    """Which columns are features, which variants there are, and how they learn (docs/spec.md). Immutable.

    source: the path of a TOML file, TOML text, or its content as a dictionary. Raises SpecError naming the wrong key,
    its value, and what is allowed.
    """

    def __init__(self, source: str | os.PathLike[str] | Mapping[str, Any]) -> None:
        if isinstance(source, Mapping):
            self._text: str | None = None
            self._model_spec = spec_from_document(_plain(source))
        # TOML text has a section or several lines, a path neither.
        elif isinstance(source, str) and ("\n" in source or "[" in source):
            self._text = source
            self._model_spec = parse_spec(source)
        else:
            self._model_spec = load_spec(Path(source))
            self._text = Path(source).read_text(encoding="utf-8")

    @classmethod
    @names_arguments
    def infer(
        cls,
        data: Data,
        label: str | None = None,
        *,
        name: str | None = None,
        quick: bool = False,
        progress: bool = True,
        **format: Unpack[Format],
    ) -> Spec:
        """The spec that `ftrie init` writes: columns guessed, and what is doubtful measured on the first rows.

        label: the column that says whether there was a click; name: the model's, by default the file's; quick: only
        guess, from the first 10,000 rows; progress: show a bar. Comments give reasons and figures (`text`). Raises
        InputError for a log that cannot be read, SpecError if no column can be the label.
        """
        from trainer.runs.first_spec import first_spec

        output = LibraryOutput(progress)
        return cls(
            first_spec(log_of(data, **format), label, name=name or "", measures=not quick, output=output).text
        )

    @classmethod
    def of(cls, model_spec: ModelSpec) -> Spec:
        """The spec that the engine holds; internal."""
        spec = cls.__new__(cls)
        spec._text, spec._model_spec = None, model_spec
        return spec

    @property
    def model_spec(self) -> ModelSpec:
        """The spec as the engine holds it; internal."""
        return self._model_spec

    @property
    def name(self) -> str:
        """The model's name in the store."""
        return self._model_spec.model.name

    @property
    def label(self) -> str:
        """The column of the label."""
        return self._model_spec.input.label

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields; empty if every free column of the log is a field."""
        return tuple(self._model_spec.fields)

    @property
    def variants(self) -> tuple[str, ...]:
        """The names of the variants, the base first."""
        return tuple(self._model_spec.variants)

    @property
    def text(self) -> str:
        """The spec as TOML: with its comments if it was given as text, a file or data; else as its sections."""
        return self._text if self._text is not None else _toml(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """The sections and members that were set, as plain dictionaries and lists; `Spec(spec.to_dict()) == spec`."""
        document = self._model_spec.model_dump(mode="json", exclude_unset=True, exclude_none=True)
        if document.get("variants") is None:
            document.pop("variants", None)
        return document

    def merge(self, **sections: Any) -> Spec:
        """A changed copy: each section is merged into the present one, `None` removes a member.

        `spec.merge(learner={"alpha": 0.05}, variants={"plain": {"without": ["age"]}})`. Raises SpecError.
        """
        return Spec(_merged(self.to_dict(), sections))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `text`, atomically. Raises OutputError."""
        write_whole(Path(path), self.text.encode())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spec) and self._model_spec == other._model_spec

    def __hash__(self) -> int:
        return hash(self._model_spec.sha256)

    def __repr__(self) -> str:
        crosses = len(self._model_spec.crosses)
        fields = f"{len(self.fields)} fields" if self.fields else "all columns as fields"
        return f"Spec({self.name!r}: {fields}, {crosses} crosses, variants {', '.join(self.variants)})"

    def _repr_html_(self) -> str:
        from html import escape

        return f"<details><summary>{escape(repr(self))}</summary><pre>{escape(self.text)}</pre></details>"


def spec_of(given: Spec | str | os.PathLike[str] | Mapping[str, Any]) -> Spec:
    """The spec itself, or that of a path, text or dictionary. Raises SpecError."""
    return given if isinstance(given, Spec) else Spec(given)


def _plain(value: Any) -> Any:
    """Mappings and sequences of any type as dictionaries and lists."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(each) for each in value]
    return value


def _merged(document: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(document)
    for name, value in changes.items():
        before = merged.get(name)
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, Mapping) and isinstance(before, Mapping):
            merged[name] = _merged(dict(before), value)
        else:
            merged[name] = value
    return merged


def _toml(document: Mapping[str, Any]) -> str:
    """Sections of members as TOML; tables inside a section are inline."""
    parts = []
    for section, content in document.items():
        if isinstance(content, Mapping):
            lines = [f"{_key(name)} = {_toml_value(value)}" for name, value in content.items()]
            parts.append("\n".join([f"[{_key(section)}]", *lines]))
        else:
            # In TOML a member of no section must precede the first section.
            parts.insert(0, f"{_key(section)} = {_toml_value(content)}")
    return "\n\n".join(parts) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, Mapping):
        members = ", ".join(f"{_key(name)} = {_toml_value(each)}" for name, each in value.items())
        return f"{{ {members} }}" if members else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    # JSON is TOML for these values, but for DEL, which TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return (
        name if _BARE_KEY.fullmatch(name) else json.dumps(name, ensure_ascii=False).replace("\x7f", "\\u007f")
    )
