"""Reads and writes a model's JSON form: `{"list": [{"fid": "0", "key": "…", "value": -0.005}, …], "type": "…"}`.

A model that was read is written with the same type, fids, keys, values and order. `model_files` infers its
fields.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

import numpy as np
import pyarrow as pa

from model_store.artefact.artefact import Artefact
from model_store.artefact.inspection import key_ranges
from model_store.artefact.rows import JsonSource
from model_store.bounded import NESTING, is_integer, is_text, json_value
from model_store.errors import ArtefactError, SpecError
from model_store.spec.keys import MAX_KEY_BYTES
from model_store.spec.spec import ModelSpec

MEMBERS = {"fid", "key", "value"}
ALLOWED = 'allowed is {"fid": string or integer, "key": string, "value": finite number}'
MAX_WEIGHT = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class JsonModel:
    """A checked JSON model. `fids` are JSON texts: `"0"` with its quotes, or `0`."""

    type: str
    keys: list[bytes]
    fids: list[str]
    values: list[float]


def parse(text: bytes) -> JsonModel:
    """Parse a JSON model. Raises ArtefactError naming the element, its value, and what is allowed."""
    try:
        document = json_value(text)
    except UnicodeDecodeError as error:
        raise ArtefactError(f"expected UTF-8; byte {error.start} is not") from None
    except ValueError as error:
        raise ArtefactError(f"not valid JSON: {error}") from None
    if not isinstance(document, dict) or document.keys() != {"list", "type"}:
        raise ArtefactError(f'got {_shown(document)}; expected an object {{"list": […], "type": "…"}}')
    entries, kind = document["list"], document["type"]
    if not isinstance(entries, list):
        raise ArtefactError(f"list: got {_shown(entries)}; expected an array of entries")
    if not isinstance(kind, str):
        raise ArtefactError(f"type: got {_shown(kind)}; expected a string")
    model = JsonModel(kind, [], [], [])
    for index, entry in enumerate(entries):
        if type(entry) is not dict or entry.keys() != MEMBERS:
            raise _bad(index, entry, "not exactly these members")
        fid, key, value = entry["fid"], entry["key"], entry["value"]
        if not is_text(key):
            raise _bad(index, entry, "key is not a string")
        if not is_text(fid) and not is_integer(fid):
            raise _bad(index, entry, "fid is neither string nor integer")
        try:
            encoded = key.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise _bad(index, entry, "key has a lone surrogate that encodes no byte") from None
        if not 0 < len(encoded) <= MAX_KEY_BYTES:
            raise _bad(index, entry, f"key has {len(encoded)} bytes, 1 to {MAX_KEY_BYTES} are allowed")
        # Two spellings of one key would be two entries that become the same bytes.
        if not key.isascii() and encoded.decode("utf-8", "surrogateescape") != key:
            raise _bad(index, entry, "key encodes a character by surrogates: write the character itself")
        # By `type`: to isinstance a JSON true is an int.
        if type(value) is not float and not is_integer(value):
            raise _bad(index, entry, "value is not a number")
        try:
            number = float(value)
        # An integer of hundreds of digits is valid JSON.
        except OverflowError:
            number = math.inf
        if not abs(number) <= MAX_WEIGHT:  # also for NaN
            raise _bad(index, entry, f"value is not finite, or beyond ±{MAX_WEIGHT:.4g}")
        model.fids.append(quoted(fid) if is_text(fid) else str(fid))
        model.keys.append(encoded)
        model.values.append(number)
    if len(set(model.keys)) < len(model.keys):
        # Only where there is a repeat, to name both places.
        first: dict[bytes, int] = {}
        for index, encoded in enumerate(model.keys):
            if first.setdefault(encoded, index) != index:
                raise ArtefactError(
                    f"list[{index}]: the key {encoded.decode('utf-8', 'replace')!r} occurs in "
                    f"list[{first[encoded]}] already; each key is allowed once"
                )
    return model


def to_artefact(model: JsonModel, spec: ModelSpec) -> Artefact:
    """The artefact of a JSON model. Every variant of `spec` uses its weights; rates are unknown (0).

    Raises SpecError for adpredictor, whose click rates need the variances.
    """
    if spec.learner.link == "probit":
        raise SpecError(
            f"the spec of {spec.model.name} says adpredictor, whose click rates depend on a variance for each key, "
            "and the JSON form has none: import an .arrow file, or give a --spec with another algorithm"
        )
    rows = len(model.keys)
    mask = (1 << len(spec.variants)) - 1
    lengths = np.fromiter(map(len, model.keys), np.int64, rows)
    return Artefact.from_columns(
        key_data=np.frombuffer(b"".join(model.keys), np.uint8),
        key_offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
        weight=np.array(model.values, np.float64).astype(np.float32),
        variants=np.full(rows, mask, np.uint32),
        rate=np.zeros(rows, np.float32),
        spec=spec,
        metrics={},
        source=JsonSource(
            type=model.type,
            fid=pa.array(model.fids, pa.utf8()),
            value=np.array(model.values, np.float64),
            order=np.arange(rows, dtype=np.uint32),
        ),
    )


def render(artefact: Artefact) -> bytes:
    """The JSON form in ASCII, one entry per line.

    An imported model is written as it was read. For a model trained here, type is the model's name and fid the field or
    cross of a key. Key bytes that are not UTF-8 become lone surrogates (Python's surrogateescape). Raises SpecError if
    variants have their own weights, since the form has one value per key, and for adpredictor.
    """
    if artefact.spec.learner.link == "probit":
        raise SpecError(
            f"{artefact.spec.model.name} is an adpredictor, whose click rates depend on a variance for each key, and "
            "the JSON form has one value per key: export it to an .arrow file"
        )
    if artefact.per_variant:
        raise SpecError(
            f"each variant of {artefact.spec.model.name} has its own weights, but the JSON form has one "
            f"value per key: choose one with --variant {'|'.join(artefact.spec.variants)}"
        )
    keys = [quoted(key.decode("utf-8", "surrogateescape")) for key in artefact.key_list()]
    source = artefact.source
    if source is None:
        kind, order, fids = artefact.spec.model.name, range(artefact.rows), [""] * artefact.rows
        for name, begin, end in key_ranges(artefact):
            fids[begin:end] = [quoted(name)] * (end - begin)
        # The shortest decimal that parses to the same float32: half as long as that of a float64.
        values = artefact.weight.astype("U").tolist()
    else:
        kind, order, fids = source.type, np.argsort(source.order).tolist(), source.fid.to_pylist()
        # `repr` of the float64 that was read, not of the weight: so the numbers come back unchanged.
        values = list(map(repr, source.value.tolist()))
    entries = [f'{{"fid": {fids[row]}, "key": {keys[row]}, "value": {values[row]}}}' for row in order]
    joined = ",\n".join(entries)
    return f'{{"list": [\n{joined}\n], "type": {quoted(kind)}}}\n'.encode("ascii")


def _bad(index: int, entry: Any, why: str) -> ArtefactError:
    return ArtefactError(f"list[{index}]: {why}: got {_shown(entry)}; {ALLOWED}")


def _shown(value: Any) -> str:
    try:
        text = json.dumps(value)
    except RecursionError:
        return f"a value {NESTING}"
    return text if len(text) <= 120 else f"{text[:119]}…"
