"""Views of an artefact: a variant as a model of its own, which field or cross owns a key, and figures of keys.

The figures are those that `ftrie store inspect` and the dashboard show: of owners, of calibration curves, and of the
keys under a prefix.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pygtrie

from model_store.artefact.artefact import Artefact
from model_store.artefact.calibration import Calibration
from model_store.artefact.rows import columns_of
from model_store.errors import SpecError, listed
from model_store.features.features import FeaturePlan
from model_store.spec.keys import BIAS
from model_store.spec.spec import spec_from_json
from model_store.trie.trie import FlatTrie, PrefixStatistics


def one_variant(artefact: Artefact, name: str) -> Artefact:
    """The variant `name` as a model of its own: the keys with a weight for it, and a spec without other variants.

    Its own parameters replace the learner's. Weights are unchanged, so it scores as the variant does. Raises
    SpecError for a name the spec lacks.
    """
    spec, calibration = artefact.spec, artefact.calibration
    if name not in spec.variants:
        raise SpecError(f"no variant {name!r}; the model has: {listed(spec.variants, name)}")
    bit = list(spec.variants).index(name)
    kept = artefact.used_by(bit)
    if (
        artefact.per_variant and spec.learner.link != "probit"
    ):  # whose keys that weigh 0 have variances that count
        kept &= artefact.weight[:, bit] != 0
    document, variant = spec.model_dump(mode="json"), spec.variants[name]
    document["variants"] = {name: {"share": 1.0, "without": list(variant.without)}}
    document["learner"] |= {**variant.own_parameters, "values": "single"}
    key_data, key_offsets = columns_of(artefact.key_array().filter(pa.array(kept)))
    return replace(
        artefact,
        key_data=key_data,
        key_offsets=key_offsets,
        weight=artefact.weights_of(bit)[kept],
        variants=np.ones(int(kept.sum()), np.uint32),
        rate=artefact.rates_of(bit)[kept],
        spec=spec_from_json(json.dumps(document)),
        metrics={name: artefact.metrics.get(name, {})},
        # The JSON columns have a row for each key.
        source=artefact.source if kept.all() else None,
        calibration=None if calibration is None else calibration.of_variants([name]),
    )


# -- figures


@dataclass(frozen=True)
class OwnerSummary:
    """The keys of one field or cross. `weight_sum` is that of |w|, over all variants where each has its own weights."""

    name: str
    keys: int
    weight_sum: float
    heaviest: float  # the largest |w|


CURVE_AT = (0.01, 0.03, 0.1, 0.3)


@dataclass(frozen=True)
class CurveLine:
    """A calibration curve evaluated at CURVE_AT. `value` is `all` for a whole variant; None: predictions unchanged."""

    variant: str
    value: str
    ctr: tuple[float | None, ...]


@dataclass(frozen=True)
class WeightedKey:
    """One key; bytes that are not UTF-8 are escaped.

    `variants` are those that use it, `weights` its weight for each of them, `weight` the largest of these by size.
    """

    key: str
    weight: float
    variants: tuple[str, ...]
    weights: Mapping[str, float]


def summaries(artefact: Artefact) -> list[OwnerSummary]:
    """Every field and cross that has keys, most keys first."""
    size = _sizes(artefact)
    found: dict[str, OwnerSummary] = {}
    for name, begin, end in key_ranges(artefact):
        before = found.get(name, OwnerSummary(name, 0, 0.0, 0.0))
        found[name] = OwnerSummary(
            name,
            before.keys + end - begin,
            before.weight_sum + float(size[begin:end].sum()),
            max(before.heaviest, float(size[begin:end].max())),
        )
    return sorted(found.values(), key=lambda summary: (-summary.keys, summary.name))


def heaviest(artefact: Artefact, count: int, begin: int = 0, stop: int | None = None) -> list[WeightedKey]:
    """The `count` keys of largest |w| among rows begin to stop, heaviest first; ties in key order."""
    sizes = _sizes(artefact)[begin:stop].max(axis=1)
    kept = np.arange(sizes.size)
    if 0 < count < sizes.size:
        # Only the keys as heavy as the last one wanted are sorted: O(keys) instead of O(keys log keys).
        kept = np.flatnonzero(sizes >= np.partition(sizes, -count)[-count])
    order = kept[np.argsort(-sizes[kept], kind="stable")][:count]
    return [weighted_key(artefact, begin + row) for row in order.tolist()]


def key_text(key: bytes) -> str:
    """A key for a reader; bytes that are not UTF-8 are escaped."""
    return key.decode("utf-8", "backslashreplace")


def _sizes(artefact: Artefact) -> npt.NDArray[np.float64]:
    """|w| of every key, float64[rows, 1], or [rows, variants] where each variant has its own."""
    sizes = np.abs(artefact.weight.astype(np.float64))
    return sizes if artefact.per_variant else sizes[:, None]


def weighted_key(artefact: Artefact, row: int) -> WeightedKey:
    """The key of a row with its weights."""
    bits = {name: bit for bit, name in enumerate(artefact.spec.variants) if artefact.variants[row] >> bit & 1}
    own = np.atleast_1d(artefact.weight[row]).tolist()
    return WeightedKey(
        key=key_text(artefact.key(row)),
        weight=max(own, key=abs),
        variants=tuple(bits),
        weights={name: own[bit if artefact.per_variant else 0] for name, bit in bits.items()},
    )


def curve_lines(calibration: Calibration) -> list[CurveLine]:
    """Every curve; of each variant the whole one first, then those of values."""
    points = np.array(CURVE_AT)
    return [
        CurveLine(
            name, value, (None,) * len(CURVE_AT) if curve is None else tuple(curve.apply(points).tolist())
        )
        for name, curves in calibration.variants.items()
        for value, curve in [
            ("all", curves.whole),
            *((key_text(value), curve) for value, curve in curves.values.items()),
        ]
    ]


# -- which field or cross owns a key


class PrefixRules:
    """An immutable map from key prefixes to owners; the longest matching prefix wins."""

    def __init__(self, rules: Iterable[tuple[bytes, str]], exact: Iterable[tuple[bytes, str]] = ()) -> None:
        """`rules`: (prefix, owner); the empty prefix matches all other keys. `exact`: (key, owner)."""
        self.prefixes = tuple(rules)
        self.exact = dict(exact)
        self._by_prefix = pygtrie.CharTrie((_latin_1(prefix), owner) for prefix, owner in self.prefixes)

    @classmethod
    def of(cls, plan: FeaturePlan) -> PrefixRules:
        """The rules of a plan: fields and crosses by name, `bias`, and the plan's raw field for all other keys.

        With several raw fields their keys have no owner, since a key does not tell which field it came from.
        """
        raw = [field for field in plan.fields if field.prefix == b""]
        rules = [(field.prefix, field.name) for field in plan.fields if field.prefix]
        rules += [(cross.prefix, cross.name) for cross in plan.crosses]
        # The empty prefix: every key that no other rule claims.
        rules += [(b"", field.name) for field in raw if len(raw) == 1]
        return cls(rules, [(BIAS, BIAS.decode())])

    def owner(self, key: bytes) -> str | None:
        """The name of the field or cross that `key` belongs to, or None. O(length of the key)."""
        if key in self.exact:
            return self.exact[key]
        step = self._by_prefix.longest_prefix(_latin_1(key))
        owner: str | None = step.value if step else None
        return owner


def _latin_1(key: bytes) -> str:
    """The key as text for CharTrie: Latin-1 maps each byte to one character."""
    return key.decode("latin-1")


OTHER = "other"


def key_ranges(artefact: Artefact) -> list[tuple[str, int, int]]:
    """The owners of all rows, as (name, first row, row after the last), in row order, without gaps.

    Names are fields, crosses and `bias`; a key without a rule belongs to the raw field if there is exactly one, else to
    `other`. Keys are sorted and rules are prefixes, so each rule matches one range.
    """
    rules = PrefixRules.of(FeaturePlan.of(artefact.spec))
    rows = SortedKeys(artefact)
    owned = [(name, rows.at_least(key), rows.at_least(key + b"\0")) for key, name in rules.exact.items()]
    owned += [(name, rows.at_least(prefix), rows.beyond(prefix)) for prefix, name in rules.prefixes if prefix]
    rest = next((name for prefix, name in rules.prefixes if not prefix), OTHER)
    found, reached = list[tuple[str, int, int]](), 0
    for name, begin, end in [*sorted(owned, key=lambda each: each[1:]), ("", artefact.rows, artefact.rows)]:
        if reached < begin:
            found.append((rest, reached, begin))
        if begin < end:
            found.append((name, begin, end))
        reached = max(reached, end)
    return found


class SortedKeys:
    """Bisection in the sorted keys of an artefact, without copying them."""

    def __init__(self, artefact: Artefact) -> None:
        self._artefact = artefact

    def at_least(self, key: bytes) -> int:
        """The first row whose key is not less than `key`. O(log rows)."""
        # A few keys are made as bytes instead of millions.
        return bisect_left(range(self._artefact.rows), key, key=self._artefact.key)

    def beyond(self, prefix: bytes) -> int:
        """The first row after all keys with `prefix`. Keys are UTF-8, so the byte 0xFF sorts after any continuation."""
        return self.at_least(prefix + b"\xff")


# -- what is under a prefix


@dataclass(frozen=True)
class Branch:
    """The keys that continue the prefix in one way: their common `prefix`, their number, and per variant sum |w|."""

    prefix: str
    keys: int
    absolute_sums: Mapping[str, float]


@dataclass(frozen=True)
class PrefixSummary:
    """The keys under a prefix. `branches` partition them, in key order; `heaviest` are those of largest |w|."""

    prefix: str
    keys: int
    variants: Mapping[str, PrefixStatistics]
    branches: tuple[Branch, ...]
    heaviest: tuple[WeightedKey, ...]


class Prefixes:
    """A model as the trie of its keys. Immutable; any thread. Making one is O(key bytes)."""

    def __init__(self, artefact: Artefact) -> None:
        self.artefact = artefact
        self._trie = FlatTrie.build(artefact.key_data, artefact.key_offsets)
        self._weights = {name: artefact.weights_of(bit) for bit, name in enumerate(artefact.spec.variants)}

    def under(self, pattern: str, top: int) -> PrefixSummary:
        """Summarize the keys that match `pattern`: a key prefix, after which one `*` is a wildcard and changes nothing.

        `age` and `age*` match `age=25` and `age*brand=25*nike`, `age**` only the crosses. O(keys under the prefix).
        """
        prefix = pattern.removesuffix("*").encode("utf-8", "surrogateescape")
        cursor = self._trie.cursor(prefix)
        begin, stop = (cursor.begin, cursor.stop) if cursor is not None else (0, 0)
        return PrefixSummary(
            prefix=key_text(prefix),
            keys=stop - begin,
            variants={name: self._trie.statistics(prefix, each) for name, each in self._weights.items()},
            branches=tuple(
                Branch(
                    key_text(branch),
                    last - first,
                    {
                        name: float(abs(each[first:last]).sum(dtype=float))
                        for name, each in self._weights.items()
                    },
                )
                for branch, first, last in self._trie.branches(prefix)
            ),
            heaviest=tuple(heaviest(self.artefact, top, begin, stop)),
        )
