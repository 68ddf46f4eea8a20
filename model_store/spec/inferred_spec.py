"""Infers a spec for an imported model without one: fields and crosses from its keys.

Keys do not tell a field's side, so every field gets the side context. Raw keys, which name no field, may come with
users and items as well.
"""

from __future__ import annotations

from collections.abc import Iterable

from model_store.spec.keys import BIAS, parse_key
from model_store.spec.sections import MAX_CROSS_FIELDS, Cross, FieldSpec, InputSection, ModelSection, Side
from model_store.spec.spec import ModelSpec

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
            fields[_free_name(name, fields)] = FieldSpec(side=side, kind="raw", optional=True)
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
        parsed = parse_key(key)
        if parsed is None or not self._is_ours(parsed.fields):
            self.raw = True
            return
        self._stars[head] = len(parsed.fields) - 1
        for name, value in zip(parsed.fields, parsed.values, strict=True):
            self.fields[name] = self.fields.get(name, False) or bool(value)
        if len(parsed.fields) > 1:
            self.crosses.setdefault(frozenset(parsed.fields), parsed.fields)

    def _is_ours(self, names: tuple[str, ...]) -> bool:
        if not 1 <= len(names) <= MAX_CROSS_FIELDS or len(set(names)) != len(names):
            return False
        return self.crosses.get(frozenset(names), names) == names


def _is_plain(values: bytes) -> bool:
    """True if nothing is escaped and no value is empty."""
    return not any(part in values for part in (b"=", b"%", b"**")) and not (
        values[:1] in (b"", b"*") or values[-1:] == b"*"
    )


def _free_name(name: str, taken: Iterable[str]) -> str:
    used = set(taken)
    while name in used:
        name += "_"
    return name
