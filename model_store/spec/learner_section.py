"""The `[learner]` and `[rules]` sections of a spec: parameters, and which may be combined.

docs/learners.md names the papers behind the rules; an error says what a combination would need.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from model_store.spec.sections import Alpha, Beta, Penalty, Section, seconds_of

RateKind = Literal["gradients", "counts", "global", "constant", "posterior"]
Link = Literal["logit", "probit"]

MAX_BLOOM_COUNT = 256
MAX_K = 10**15
LEAST_HASH_BITS, MOST_HASH_BITS = 8, 31
LEAST_BUCKETS, MOST_BUCKETS = 1 << LEAST_HASH_BITS, 1 << MOST_HASH_BITS
DEFAULT_KEYS = 1_000_000
DEFAULT_FALSE_POSITIVES = 0.01
_MOST_RATES: tuple[RateKind, ...] = ("gradients", "counts", "global", "constant")


class Traits(NamedTuple):
    """What a spec may say with an algorithm; servers and the command line know no more of it.

    rates: those that it takes; regularizers: of l1 and l2; defaults: the members whose default is not FTRL's; shrinks:
    the values of `shrink`; truncates: whether k and theta belong to it; link: from a score to a click rate.
    """

    rates: tuple[RateKind, ...]
    regularizers: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = {"l1": 0.0}
    shrinks: tuple[str, ...] = ("rate",)
    truncates: bool = False
    link: Link = "logit"


ALGORITHMS: dict[str, Traits] = {
    "ogd": Traits(_MOST_RATES, ("l1", "l2"), shrinks=("rate", "touched")),
    "truncation": Traits(_MOST_RATES, truncates=True),
    "truncated_gradient": Traits(_MOST_RATES, ("l1",), shrinks=("rate", "fixed"), truncates=True),
    "fobos": Traits(_MOST_RATES, ("l1", "l2"), shrinks=("rate", "fixed")),
    "rda": Traits(("global", "gradients", "constant"), ("l1", "l2"), {"l1": 0.0, "rate": "global"}),
    "ftrl": Traits(("gradients", "counts", "constant"), ("l1", "l2"), {}),
    "adpredictor": Traits(
        ("posterior",), defaults={"l1": 0.0, "rate": "posterior", "alpha": 0.03}, link="probit"
    ),
}
"""By the spec's `algorithm`; `trainer/learn/learners/` has a file of each name."""


def _known(name: Any) -> Any:
    if not isinstance(name, str) or name not in ALGORITHMS:
        *most, last = map(repr, ALGORITHMS)
        raise ValueError(f"got {name!r}; input should be {', '.join(most)} or {last}")
    return name


_SCALED = (
    'precision = "q2.13" does not fit algorithm = "{algorithm}" with rate = "global", which keeps weights '
    'divided by their accumulated shrinkage, beyond the range of 16 bits; use another rate, or precision = "f64"'
)
CHOSEN = ("alpha", "beta", "l1")
"""The parameters that may be "auto"."""
_OF_ADPREDICTOR = ("prior_ctr", "forgetting", "prune_kl")


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

    ALWAYS = ("kind", "p", "count", "keys", "false_positives")

    @model_validator(mode="after")
    def _has_what_its_kind_needs(self) -> Self:
        needs = {"none": None, "poisson": "p", "bloom": "count"}[self.kind]
        for name in ("p", "count"):
            if name == needs and getattr(self, name) is None:
                raise ValueError(f'kind = "{self.kind}" needs {name}')
            if name != needs and getattr(self, name) is not None:
                raise ValueError(f'{name} does not belong to kind = "{self.kind}"')
        defaults = DEFAULT_KEYS, DEFAULT_FALSE_POSITIVES
        if self.kind != "bloom" and (self.keys, self.false_positives) != defaults:
            raise ValueError(f'keys and false_positives belong to kind = "bloom"; this one is "{self.kind}"')
        return self


class Subsample(Section):
    """The fraction of requests without a click to learn from (the paper, section 4.6)."""

    unclicked: float = Field(gt=0, le=1)


class Rule(Section):
    """Overrides of `[learner]` for the keys with a prefix; the longest prefix wins."""

    inclusion: Inclusion | None = None
    l1: Penalty | None = None
    alpha: Alpha | None = None

    ALWAYS = ("inclusion", "l1")


class LearnerSection(Section):
    """The learner and its parameters, named as in the papers.

    `rate_scale` and `rate_decay` are another form of the rate, eta = rate_scale / (1 + rate_decay sqrt(n)): alpha is
    rate_scale / rate_decay, and beta is 1 / rate_decay. The defaults of `rate`, `alpha` and `l1` depend on the
    algorithm. For adpredictor, alpha is the prior variance of a weight, beta the standard deviation of the noise.
    `auto`: those of alpha, beta and l1 that were given as "auto", to be chosen on a log's first rows; they have their
    defaults until then.
    """

    algorithm: Annotated[str, BeforeValidator(_known)] = "ftrl"
    alpha: Alpha = 0.1
    beta: Beta = 1.0
    l1: Penalty = 1.0
    l2: Penalty = 0.0
    k: int = Field(default=1, ge=1, le=MAX_K)
    theta: Annotated[float, Field(ge=0)] | None = None
    shrink: Literal["rate", "fixed", "touched"] = "rate"
    prior_ctr: float = Field(default=0.5, gt=0, lt=1)
    forgetting: float = Field(default=0.0, ge=0, lt=1)
    prune_kl: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    values: Literal["single", "per_variant"] = "single"
    rate: RateKind = "gradients"
    precision: Literal["f64", "q2.13"] = "f64"
    hash_bits: Annotated[int, Field(ge=LEAST_HASH_BITS, le=MOST_HASH_BITS)] | None = None
    hash_buckets: Annotated[int, Field(ge=LEAST_BUCKETS, le=MOST_BUCKETS)] | None = None
    inclusion: Inclusion = Inclusion()
    auto: tuple[Literal["alpha", "beta", "l1"], ...] = ()
    ttl: int | str | None = None
    subsample: Subsample | None = None
    seed: int = Field(default=1, ge=0, lt=2**63)

    ALWAYS = (
        *("algorithm", "alpha", "beta", "l1", "l2", "k", "theta", "values", "rate", "precision", "inclusion"),
        *("ttl", "subsample", "seed"),
    )

    @property
    def traits(self) -> Traits:
        """Those of the algorithm."""
        return ALGORITHMS[self.algorithm]

    def why_not(self, regularizer: str) -> str:
        """Why this learner does not take the regularizer, l1 or l2; "" if it does."""
        if regularizer not in self.traits.regularizers:
            having = ", ".join(name for name, each in ALGORITHMS.items() if regularizer in each.regularizers)
            return f'{regularizer} does not belong to algorithm = "{self.algorithm}"; it belongs to {having}'
        if (self.algorithm, self.rate, self.shrink, regularizer) == ("ogd", "global", "rate", "l1"):
            return (
                'l1 does not fit algorithm = "ogd" with rate = "global": the gradient of l1 takes a weight past 0 and '
                "back at every example, and under a falling rate there is no formula for what a key has missed until "
                'it occurs again; take algorithm = "fobos", which stops at 0, or shrink = "touched", which penalizes '
                "an example's own keys only, or another rate"
            )
        return ""

    @property
    def why_no_alpha(self) -> str:
        """Why `[rules]` cannot set alpha for this learner; "" if they can."""
        if self.rate == "posterior":
            return 'alpha by prefix does not fit algorithm = "adpredictor", whose rate is a variance'
        if self.rate == "global":
            return (
                'alpha by prefix needs a rate of each key; got rate = "global", expected "gradients" or "counts", or '
                '"constant"'
            )
        return ""

    @property
    def link(self) -> Link:
        """The link from a score to a click rate: sigmoid(score), or Φ(score / sqrt(beta^2 + its variance))."""
        return self.traits.link

    def first_rate(self, alpha: float, beta: float) -> float | None:
        """The rate of a key without examples; None where all keys share the rate, or it would be infinite."""
        if self.link == "probit":
            return alpha
        return alpha / beta if beta and self.rate != "global" else None

    @property
    def buckets(self) -> int | None:
        """How many buckets the keys of a group share; None: keys are exact."""
        return self.hash_buckets if self.hash_bits is None else 1 << self.hash_bits

    @property
    def hashing(self) -> str:
        """The setting that gives `buckets`, as messages name it; "" where keys are exact."""
        if self.hash_bits is not None:
            return f"hash_bits = {self.hash_bits}"
        return f"hash_buckets = {self.hash_buckets}" if self.hash_buckets is not None else ""

    @property
    def ttl_rows(self) -> int | None:
        """Time to live as a number of rows, or None."""
        return self.ttl if isinstance(self.ttl, int) else None

    @property
    def ttl_seconds(self) -> int | None:
        """Time to live in seconds of the log's timestamps, or None."""
        return seconds_of(self.ttl) if isinstance(self.ttl, str) else None

    def check_first_rate(self, alpha: float, beta: float, l2: float) -> None:
        """Raise ValueError unless the first rate of a key is finite with these parameters, and ogd converges."""
        if beta > 0 or self.rate == "global":
            if self.algorithm != "ogd" or not l2:
                return
            first_rate = alpha if self.rate == "global" else alpha / beta
            # At each example the weight would become 0, change its sign, or grow.
            if first_rate * l2 >= 1.0:
                raise ValueError(
                    f'l2 = {l2:g} is too large for algorithm = "ogd", which multiplies weights by 1 - eta l2: the '
                    f"first eta is {first_rate:g}, and eta l2 must be below 1; lower l2 or alpha, or take "
                    'algorithm = "fobos", which divides by 1 + eta l2'
                )
            if (self.rate, self.shrink, self.precision) == ("global", "rate", "q2.13"):
                raise ValueError(_SCALED.format(algorithm="ogd"))
            return
        if self.link == "probit":
            raise ValueError("beta is 0: adpredictor divides by its noise; set beta > 0")
        if self.precision == "q2.13":
            raise ValueError('beta is 0: precision = "q2.13" needs a finite rate for every key; set beta > 0')
        # In FTRL l2 is in the same denominator as beta, and keeps the first rate finite.
        if not (self.algorithm == "ftrl" and self.rate != "constant" and l2):
            and_l2 = " and so is l2" if self.algorithm == "ftrl" and self.rate != "constant" else ""
            raise ValueError(
                f"beta is 0{and_l2}: an unseen key's learning rate would be infinite; set beta > 0"
            )

    @field_validator("ttl", mode="before")
    @classmethod
    def _ttl_is_a_number_or_text(cls, ttl: Any) -> Any:
        # Before pydantic, which would take true for 1 row.
        if isinstance(ttl, bool) or not isinstance(ttl, int | str | None):
            raise ValueError(f'got {ttl!r}; expected a whole number of rows, or a time such as "30d", "12h"')
        return ttl

    # pydantic runs these from the last to the first: what is given as "auto" has the algorithm's default.
    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_algorithm(cls, data: Any) -> Any:
        # The defaults of the class are those of FTRL.
        if not isinstance(data, dict) or not isinstance(data.get("algorithm"), str):
            return data
        return {**ALGORITHMS[data["algorithm"]].defaults, **data} if data["algorithm"] in ALGORITHMS else data

    @model_validator(mode="before")
    @classmethod
    def _leave_to_be_chosen(cls, data: Any) -> Any:
        auto = [name for name in CHOSEN if isinstance(data, dict) and data.get(name) == "auto"]
        if not auto:
            return data
        # Left out, so that they have a default until they are chosen.
        given = {name: value for name, value in data.items() if name not in auto}
        return given | {"auto": [*given.get("auto", ()), *auto]}

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

    @model_validator(mode="after")
    def _regularizers_fit(self) -> Self:
        for name in ("l1", "l2"):
            if getattr(self, name) and (why_not := self.why_not(name)):
                raise ValueError(why_not)
        if self.algorithm != "adpredictor":
            for name in _OF_ADPREDICTOR:
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(
                        f'{name} belongs to algorithm = "adpredictor", not to "{self.algorithm}"; leave it out'
                    )
        if self.traits.truncates and self.theta is None:
            raise ValueError(
                f'algorithm = "{self.algorithm}" needs theta, the size up to which weights are truncated'
            )
        if not self.traits.truncates and (self.k, self.theta) != (1, None):
            raise ValueError(
                f'k and theta belong to truncation and truncated_gradient, not to algorithm = "{self.algorithm}"'
            )
        if self.shrink not in self.traits.shrinks:
            having = (name for name, each in ALGORITHMS.items() if self.shrink in each.shrinks)
            raise ValueError(
                f'shrink = "{self.shrink}" belongs to {" and ".join(having)}, not to algorithm = "{self.algorithm}"'
            )
        return self

    @model_validator(mode="after")
    def _rate_fits(self) -> Self:
        allowed = self.traits.rates
        if self.rate not in allowed:
            raise ValueError(
                f'rate = "{self.rate}" has no meaning for algorithm = "{self.algorithm}"; it takes {", ".join(allowed)}'
            )
        self.check_first_rate(self.alpha, self.beta, self.l2)
        if self.precision == "q2.13" and self.algorithm == "rda":
            raise ValueError(
                'precision = "q2.13" has no meaning for algorithm = "rda", which keeps sums of gradients, not weights'
            )
        if (self.algorithm, self.rate, self.precision) == ("fobos", "global", "q2.13"):
            raise ValueError(_SCALED.format(algorithm="fobos"))
        return self

    @model_validator(mode="after")
    def _hash_bits_fit(self) -> Self:
        if not self.hashing:
            return self
        if self.hash_bits is not None and self.hash_buckets is not None:
            raise ValueError(
                f"{self.hashing} and hash_buckets = {self.hash_buckets} both say how many buckets there are; leave one "
                "of them out"
            )
        if self.inclusion.kind != "none":
            raise ValueError(
                f"{self.hashing} does not go with inclusion: every key has a bucket from its first "
                "occurrence; leave one of them out"
            )
        if self.ttl is not None:
            raise ValueError(
                f"{self.hashing} does not go with ttl: keys that share a bucket cannot expire one by "
                "one, and the number of buckets bounds the table already; leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _ttl_is_a_span(self) -> Self:
        try:
            is_span = not isinstance(self.ttl, str) or seconds_of(self.ttl) > 0
        except ValueError:
            is_span = False
        if not is_span:
            raise ValueError(
                f'ttl: got {self.ttl!r}; expected a number of rows, or a time such as "30d", "12h", "90m"'
            )
        if isinstance(self.ttl, int) and self.ttl < 1:
            raise ValueError(f"ttl: got {self.ttl!r}; expected at least one row")
        return self
