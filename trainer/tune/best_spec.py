"""Writes the best candidate: the user's own TOML with the parameters in `[learner]` replaced, and crosses added.

The text is edited line by line, so comments and order stay; the result is parsed and compared before it is used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from model_store.errors import SpecError
from model_store.spec.spec import ModelSpec, parse_spec
from trainer.tune.candidates import Candidate, Value, learner_with, with_parameters
from trainer.tune.crosses import Feature, with_crosses

_HEADER = re.compile(r"^\s*\[\s*learner\s*\]\s*(#.*)?$")
_ANY_HEADER = re.compile(r"^\s*\[")
_KEY = re.compile(r"^\s*\"?([A-Za-z0-9_]+)\"?\s*=")
_OTHER_FORM = {"rate_scale", "rate_decay"}


def with_best(text: str, spec: ModelSpec, candidate: Candidate, pairs: Sequence[Feature] = ()) -> str:
    """The spec's TOML `text` with a candidate's parameters and these crosses after its own.

    Raises SpecError where the text cannot be edited safely.
    """
    wanted = with_crosses(with_parameters(spec, candidate), pairs)
    edited = _edited(text, spec, candidate)
    added = [f"fields = [{', '.join(map(json.dumps, pair))}]" for pair in pairs]
    edited += "".join(f"\n[[crosses]]\n{fields}\n" for fields in added)
    try:
        if parse_spec(edited).to_json() == wanted.to_json():
            return edited
    except SpecError:
        pass
    raise SpecError(
        "the spec cannot be edited line by line; set in its [learner]: "
        + ", ".join(f"{name} = {_toml(value)}" for name, value in candidate.items())
        + "".join(f"; add to its crosses: {{ {fields} }}" for fields in added)
    )


def _edited(text: str, spec: ModelSpec, candidate: Candidate) -> str:
    lines = text.splitlines()
    begin = next((at for at, line in enumerate(lines) if _HEADER.match(line)), None)
    if begin is None:
        lines += ["", "[learner]"]
        begin = len(lines) - 1
    end = next((at for at in range(begin + 1, len(lines)) if _ANY_HEADER.match(lines[at])), len(lines))
    section = _section(lines[begin + 1 : end], spec, candidate)
    return "\n".join([*lines[: begin + 1], *section, *lines[end:]]) + "\n"


def _section(lines: list[str], spec: ModelSpec, candidate: Candidate) -> list[str]:
    """The lines of `[learner]`: values replaced where the key is present, else inserted below the header."""
    kept, present = [], set()
    belongs = learner_with(spec.learner, candidate)
    own: dict[str, Value] = {"alpha": spec.learner.alpha, "beta": spec.learner.beta}
    rewritten: dict[str, Value] = {**own, **candidate} if _OTHER_FORM & {*map(_key, lines)} else {**candidate}
    for line in lines:
        name = _key(line)
        if name in rewritten:
            kept.append(f"{name} = {_toml(rewritten[name])}{_comment(line)}")
            present.add(name)
        elif name is None or name in belongs:
            kept.append(line)
    return [f"{name} = {_toml(value)}" for name, value in rewritten.items() if name not in present] + kept


def _key(line: str) -> str | None:
    found = _KEY.match(line)
    return found.group(1) if found else None


def _comment(line: str) -> str:
    """The comment after a value. Values that can be tuned contain no `#`."""
    _, mark, comment = line.partition("#")
    return f"  #{comment}" if mark else ""


def _toml(value: Value) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)
