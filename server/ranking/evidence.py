"""How much evidence a model has on each candidate's own keys, in clicks: what is below a threshold counts as new.

A key's learning rate says how much was learned about it. With `rate = "gradients"` or "counts" it is
alpha / (beta + √n), where n is the sum of squared gradients, or P N / (P + N): either is nearly the number of clicks
where clicks are rare. For adpredictor it is the variance s² of a weight, and n = β² (1 / s² - 1 / alpha) / 1.702²: a
probit is nearly a logit divided by 1.702. A key that the model does not have counts as n = 0. Of several fields the one
with the least evidence decides.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.spec.sections import MAX_CROSS_FIELDS
from model_store.spec.spec import ModelSpec
from server.model.columns import Catalogue
from server.model.items_kernels import COUNT, FIELD, sum_items
from server.model.model import Model
from server.model.tokens import TokenTable
from server.ranking.query import Candidates
from server.ranking.scoring_kernels import FIRST_INLINE

Array = npt.NDArray[Any]
KNOWN = math.inf
PROBIT = 1.702**2


def why_no_evidence(spec: ModelSpec) -> str:
    """Why a model of this spec cannot tell which items are new; "" if it can."""
    if spec.learner.rate not in ("gradients", "counts", "posterior"):
        return (
            f'new items: learner.rate = "{spec.learner.rate}" says nothing of the evidence of a key; expected '
            '"gradients", "counts", or algorithm = "adpredictor"'
        )
    return (
        "" if _fields(spec) else "new items: the model has no item field of kind category that is used alone"
    )


def _fields(spec: ModelSpec) -> list[str]:
    return [name for name, f in spec.fields.items() if f.side == "item" and f.kind == "category" and f.main]


class Evidence:
    """Of one version and its catalogue. Immutable; any number of threads may use it."""

    def __init__(self, model: Model, catalogue: Catalogue) -> None:
        self._model, self._catalogue = model, catalogue

    def of(self, candidates: Candidates, variant: int) -> Array:
        """float64[candidates]; KNOWN for items without a record, which are not learned from. O(candidates)."""
        rows, inline = candidates.rows, candidates.item_tokens
        found = np.full(len(rows), KNOWN)
        stored = rows >= 0
        if stored.any():
            table = self._catalogue.tokens_of(self._model.item_id_fields)
            found[stored] = self._of(table, table.values[rows[stored]], variant)
        given = rows <= FIRST_INLINE
        if given.any() and inline is not None:
            found[given] = self._of(inline, inline.values[FIRST_INLINE - rows[given]], variant)
        if candidates.unknown:
            unknown = frozenset(candidates.unknown)
            found[[at for at in np.flatnonzero(~stored).tolist() if candidates.ids[at] in unknown]] = KNOWN
        return found

    def _of(self, table: TokenTable, values: Array, variant: int) -> Array:
        model, least = self._model, np.full(len(values), KNOWN)
        tokens = (np.ascontiguousarray(values), *table.arrays[1:])
        choice, unused = np.empty(MAX_CROSS_FIELDS, np.int64), np.empty((2, 0), np.int64)
        for column, term, alpha, beta in self._terms[variant]:
            own, rate = np.zeros((2, 1, len(values)))
            sum_items(
                *model.base.trie.walked, *model.base.values.arrays,
                *model.fresh.trie.walked, *model.fresh.values.arrays,
                term, *tokens, variant, model.priors, choice, unused, own, rate,
            )  # fmt: skip
            has_value = ~table.is_empty[values[:, column]]
            np.minimum(least, np.where(has_value, self._clicks(rate[0], alpha, beta), KNOWN), out=least)
        return least

    def _clicks(self, rate: Array, alpha: float, beta: float) -> Array:
        with np.errstate(divide="ignore"):
            if len(self._model.priors):
                return np.asarray(np.maximum(1.0 / rate - 1.0 / alpha, 0.0) * (beta * beta / PROBIT))
            # Rates are published as 32-bit numbers: that of a key without evidence may be a little off.
            clicks = np.square(np.maximum(alpha / rate - beta, 0.0))
        return np.where(rate > 0.0, clicks, 0.0)

    @cached_property
    def _terms(self) -> list[list[tuple[int, Array, float, float]]]:
        """By variant, of each field that counts: its column, its term as the kernel takes it, alpha and beta.

        No term where the model has no key of the field.
        """
        model, spec = self._model, self._model.spec
        if why_no_evidence(spec):
            return [[] for _ in spec.variants]
        names = set(model.item_id_fields) & set(_fields(spec)) or set(_fields(spec))
        alone = model.terms.item[model.terms.item[:, COUNT] == 1]
        found = list[list[tuple[int, Array, float, float]]]()
        for bit, variant in enumerate(spec.variants.values()):
            own = {"alpha": spec.learner.alpha, "beta": spec.learner.beta, **variant.own_parameters}
            found.append([])
            for column, field in enumerate(model.plan.item_fields):
                if field.name in names and field.mask >> bit & 1:
                    prefix = field.prefix.decode()
                    rules = {p: r.alpha for p, r in spec.rules.items() if r.alpha and prefix.startswith(p)}
                    alpha = rules[max(rules, key=len)] if rules else own["alpha"]
                    assert alpha is not None
                    found[-1].append((column, alone[alone[:, FIELD] == column], alpha, own["beta"]))
        return found
