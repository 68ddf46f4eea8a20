"""The `[learner]` and `[rules]` sections of a spec: parameters, and which may be combined.

docs/learners.md names the papers behind the rules; an error says what a combination would need.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from model_store.spec.sections import Alpha, Beta, Penalty, Section, seconds_of

Algorithm = Literal["ogd", "truncation", "truncated_gradient", "fobos", "rda", "ftrl"]
RateKind = Literal["gradients", "counts", "global", "constant"]

MAX_BLOOM_COUNT = 256
MAX_K = 10**15
LEAST_HASH_BITS, MOST_HASH_BITS = 8, 31
DEFAULT_KEYS = 1_000_000
DEFAULT_FALSE_POSITIVES = 0.01
_RATES: dict[str, tuple[str, ...]] = {
    "ogd": ("gradients", "counts", "global", "constant"),
    "truncation": ("gradients", "counts", "global", "constant"),
    "truncated_gradient": ("gradients", "counts", "global", "constant"),
    "fobos": ("gradients", "counts", "global", "constant"),
    "rda": ("global", "gradients"),
    "ftrl": ("gradients", "counts", "constant"),
}
REGULARIZERS: dict[str, tuple[str, ...]] = {
    "ogd": (),
    "truncation": (),
    "truncated_gradient": ("l1",),
    "fobos": ("l1", "l2"),
    "rda": ("l1", "l2"),
    "ftrl": ("l1", "l2"),
}


class Inclusion(Section):
    """When a key may enter the model (the paper, section 4.1).

    poisson: with probability `p` at each occurrence. bloom: at its `count`-th occurrence, by a counting Bloom filter
    sized for `keys` distinct keys, of which at most the fraction `false_positives` enters earlier.
    """

    kind: Literal["none", "poisson", "bloom"] = "none"
    p: float | None = Field(default=None, gt=0, le=1)
    count: int | None = Field(default=None, ge=1, le=MAX_BLOOM_COUNT)
    keys: int = Field(default=DEFAULT_KEYS, ge=1)
    false_positives: float = Field(default=DEFAULT_FALSE_POSITIVES, gt=0, lt=1)

    @model_validator(mode="after")
    def _has_what_its_kind_needs(self) -> Self:
        needs = {"none": None, "poisson": "p", "bloom": "count"}[self.kind]
        for name in ("p", "count"):
            if name == needs and getattr(self, name) is None:
                raise ValueError(f'kind = "{self.kind}" needs {name}')
            if name != needs and getattr(self, name) is not None:
                raise ValueError(f'{name} does not belong to kind = "{self.kind}"')
        if self.kind != "bloom" and (self.keys, self.false_positives) != (
            DEFAULT_KEYS,
            DEFAULT_FALSE_POSITIVES,
        ):
            raise ValueError(f'keys and false_positives belong to kind = "bloom"; this one is "{self.kind}"')
        return self


class Subsample(Section):
    """The fraction of requests without a click to learn from (the paper, section 4.6)."""

    unclicked: float = Field(gt=0, le=1)


class Rule(Section):
    """Overrides of `[learner]` for the keys with a prefix; the longest prefix wins."""

    inclusion: Inclusion | None = None
    l1: Penalty | None = None


class LearnerSection(Section):
    """The learner and its parameters, named as in the papers.

    `rate_scale` and `rate_decay` are another form of the rate, eta = rate_scale / (1 + rate_decay sqrt(n)): alpha is
    rate_scale / rate_decay, and beta is 1 / rate_decay. The defaults of `rate` and `l1` depend on the algorithm.
    """

    algorithm: Algorithm = "ftrl"
    alpha: Alpha = 0.1
    beta: Beta = 1.0
    l1: Penalty = 1.0
    l2: Penalty = 0.0
    k: int = Field(default=1, ge=1, le=MAX_K)
    theta: Annotated[float, Field(ge=0)] | None = None
    values: Literal["single", "per_variant"] = "single"
    rate: RateKind = "gradients"
    precision: Literal["f64", "q2.13"] = "f64"
    hash_bits: Annotated[int, Field(ge=LEAST_HASH_BITS, le=MOST_HASH_BITS)] | None = None
    inclusion: Inclusion = Inclusion()
    ttl: int | str | None = None
    subsample: Subsample | None = None
    seed: int = Field(default=1, ge=0, lt=2**63)

    def takes(self, regularizer: str) -> bool:
        """Whether the algorithm has this regularizer, l1 or l2."""
        return regularizer in REGULARIZERS[self.algorithm]

    @property
    def ttl_rows(self) -> int | None:
        """Time to live as a number of rows, or None."""
        return self.ttl if isinstance(self.ttl, int) else None

    @property
    def ttl_seconds(self) -> int | None:
        """Time to live in seconds of the log's timestamps, or None."""
        return seconds_of(self.ttl) if isinstance(self.ttl, str) else None

    def check_first_rate(self, beta: float, l2: float) -> None:
        """Raise ValueError unless the first rate of a key is finite with this beta and l2."""
        if beta > 0 or self.rate == "global":
            return
        if self.precision == "q2.13":
            raise ValueError('beta is 0: precision = "q2.13" needs a finite rate for every key; set beta > 0')
        if not (self.algorithm == "ftrl" and self.rate != "constant" and l2):
            and_l2 = " and so is l2" if self.algorithm == "ftrl" and self.rate != "constant" else ""
            raise ValueError(
                f"beta is 0{and_l2}: an unseen key's learning rate would be infinite; set beta > 0"
            )

    @field_validator("ttl", mode="before")
    @classmethod
    def _ttl_is_a_number_or_text(cls, ttl: Any) -> Any:
        if isinstance(ttl, bool) or not isinstance(ttl, int | str | None):
            raise ValueError(f'got {ttl!r}; expected a whole number of rows, or a time such as "30d", "12h"')
        return ttl

    @model_validator(mode="before")
    @classmethod
    def _accept_the_other_rate_form(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not {"rate_scale", "rate_decay"} & data.keys():
            return data
        data = dict(data)
        scale, decay = data.pop("rate_scale", None), data.pop("rate_decay", None)
        if scale is None or decay is None or {"alpha", "beta"} & data.keys():
            raise ValueError("give either alpha and beta, or rate_scale and rate_decay, and both of the pair")
        if not all(isinstance(v, int | float) and not isinstance(v, bool) and v > 0 for v in (scale, decay)):
            raise ValueError(f"rate_scale and rate_decay must be numbers > 0, got {scale!r} and {decay!r}")
        return data | {"alpha": scale / decay, "beta": 1.0 / decay}

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_algorithm(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.get("algorithm", "ftrl") == "ftrl":
            return data
        defaults = {"l1": 0.0, "rate": "global" if data["algorithm"] == "rda" else "gradients"}
        return defaults | data

    @model_validator(mode="after")
    def _regularizers_fit(self) -> Self:
        for name in ("l1", "l2"):
            if getattr(self, name) and not self.takes(name):
                having = ", ".join(a for a, names in REGULARIZERS.items() if name in names)
                raise ValueError(
                    f'{name} does not belong to algorithm = "{self.algorithm}"; it belongs to {having}'
                )
        truncates = self.algorithm in ("truncation", "truncated_gradient")
        if truncates and self.theta is None:
            raise ValueError(
                f'algorithm = "{self.algorithm}" needs theta, the size up to which weights are truncated'
            )
        if not truncates and (self.k, self.theta) != (1, None):
            raise ValueError(
                f'k and theta belong to truncation and truncated_gradient, not to algorithm = "{self.algorithm}"'
            )
        return self

    @model_validator(mode="after")
    def _rate_fits(self) -> Self:
        allowed = _RATES[self.algorithm]
        if self.rate not in allowed:
            raise ValueError(
                f'rate = "{self.rate}" has no meaning for algorithm = "{self.algorithm}"; it takes {", ".join(allowed)}'
            )
        self.check_first_rate(self.beta, self.l2)
        if self.precision == "q2.13" and self.algorithm == "rda":
            raise ValueError(
                'precision = "q2.13" has no meaning for algorithm = "rda", which keeps sums of gradients, not weights'
            )
        if (self.algorithm, self.rate, self.precision) == ("fobos", "global", "q2.13"):
            raise ValueError(
                'precision = "q2.13" does not fit algorithm = "fobos" with rate = "global", which keeps weights '
                "divided by their accumulated shrinkage, beyond the range of 16 bits; use another rate, or "
                'precision = "f64"'
            )
        return self

    @model_validator(mode="after")
    def _hash_bits_fit(self) -> Self:
        if self.hash_bits is None:
            return self
        if self.inclusion.kind != "none":
            raise ValueError(
                f"hash_bits = {self.hash_bits} does not go with inclusion: every key has a bucket from its first "
                "occurrence; leave one of them out"
            )
        if self.ttl is not None:
            raise ValueError(
                f"hash_bits = {self.hash_bits} does not go with ttl: keys that share a bucket cannot expire one by "
                "one, and the number of buckets bounds the table already; leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _ttl_is_a_span(self) -> Self:
        if isinstance(self.ttl, str) and not _is_span(self.ttl):
            raise ValueError(
                f'ttl: got {self.ttl!r}; expected a number of rows, or a time such as "30d", "12h", "90m"'
            )
        if isinstance(self.ttl, int) and self.ttl < 1:
            raise ValueError(f"ttl: got {self.ttl!r}; expected at least one row")
        return self


def _is_span(text: str) -> bool:
    try:
        return seconds_of(text) > 0
    except ValueError:
        return False
