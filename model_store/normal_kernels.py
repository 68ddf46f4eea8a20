"""The normal distribution in kernels: the probit link Φ, and the first two corrections of a probit likelihood.

They use only IEEE additions, multiplications, divisions and no libm, so every machine computes the same bits.
"""

from __future__ import annotations

from typing import Any

from model_store.hash_kernels import exponential
from model_store.jit import bare_inline, bare_kernel

_DENSITY_AT_0 = 0.3989422804014327  # 1 / sqrt(2 pi)

# (1 + t) M(t) as a polynomial in u = (t - 5) / (t + 5), which maps t from 0 to infinity to [-1, 1): its Chebyshev
# series, computed with 50 digits and cut after degree 24, in powers of u. Relative error of M: 2 units in the last
# place.
_CENTRE = 5.0
_MILLS = (
    1.1568486282918946,
    -0.22948753825211315,
    0.07778159886873554,
    0.0250721793016388,
    -0.0661776007789934,
    0.0615050458401865,
    -0.038026592187762366,
    0.01634823128102938,
    -0.004201290310663574,
    1.9530638370790786e-05,
    0.00045704381820007954,
    -0.0001343742785571135,
    -2.48054584472145e-05,
    2.270961270923768e-05,
    -1.7723438185601556e-07,
    -3.277287633208865e-06,
    3.2197131609042185e-07,
    4.91996233147834e-07,
    -6.738323465177047e-08,
    -7.758520236786343e-08,
    1.0082895646260188e-08,
    1.1032071151574336e-08,
    -1.0846925288860795e-09,
    -9.564832934712551e-10,
    6.288377855498677e-11,
)
_TERMS = len(_MILLS)
_FAR = -100.0
"""Below it w comes from the asymptotic series of v + t, since v + t cancels; its first term left out is below 1e-16."""


@bare_inline
def _mills(t: Any) -> Any:
    """Mills' ratio M(t) = Φ(-t) / φ(t), for t >= 0: falls from sqrt(pi / 2), as 1 / t for large t."""
    u = (t - _CENTRE) / (t + _CENTRE)
    series = _MILLS[_TERMS - 1]
    for index in range(_TERMS - 2, -1, -1):
        series = series * u + _MILLS[index]
    return series / (1.0 + t)


@bare_inline
def normal_cdf(t: Any) -> Any:
    """Φ(t), the probability that a standard normal number is below t; relative error about 1e-15 (1 + t^2) below 0."""
    size = abs(t)
    tail = _DENSITY_AT_0 * exponential(-0.5 * size * size) * _mills(size)
    return tail if t < 0.0 else 1.0 - tail


@bare_inline
def truncated_mean(t: Any) -> Any:
    """v(t) = φ(t) / Φ(t), finite for every finite t: about -t for t far below 0."""
    if t <= 0.0:
        return 1.0 / _mills(-t)
    density = _DENSITY_AT_0 * exponential(-0.5 * t * t)
    return density / (1.0 - density * _mills(t))


@bare_inline
def truncated_shrinkage(t: Any, v: Any) -> Any:
    """w(t) = v (v + t) for v = v(t), in (0, 1): how much an observation reduces the variance."""
    if t >= _FAR:
        return v * (v + t)
    square = 1.0 / (t * t)
    return v * (1.0 - 2.0 * square * (1.0 - 5.0 * square * (1.0 - 7.4 * square))) / -t


@bare_kernel
def normal_probability(t: Any) -> Any:
    """Φ of one number."""
    return normal_cdf(t)


@bare_kernel
def normal_cdfs(t: Any, out: Any) -> None:
    """Φ of each number: float64[n]."""
    for index in range(t.size):
        out[index] = normal_cdf(t[index])
