"""The vector operations of `simd_kernels.py` against the same arithmetic, one number after the other."""

from __future__ import annotations

import numpy as np

from model_store.jit import bare_kernel
from trainer.learn.simd_kernels import (
    LANES,
    address,
    bounds_of,
    store_columns,
    store_mean,
    store_mean_roots,
    store_powers,
)

COEFFICIENTS = (1.0, 0.5, -0.125, 0.0625)


@bare_kernel
def mean(out, begin, share, rows, members, sign, by, inverse):
    store_mean(
        address(out, 0), address(begin, 0), share, address(rows, 0), members.ctypes.data, members.size, sign, by,
        inverse,
    )  # fmt: skip


@bare_kernel
def powers(out, firsts, numbers, middle, scale):
    store_powers(address(out, 0), address(firsts, 0), address(numbers, 0), middle, scale)


@bare_kernel
def columns(out, rows, numbers):
    store_columns(address(out, 0), 8 * out.shape[1], address(rows, 0), numbers.ctypes.data)


@bare_kernel
def bounds(numbers):
    return bounds_of(address(numbers, 0), np.int64(numbers.size))


@bare_kernel
def mean_roots(roots, parts, n, x, middle, reach, columns):
    store_mean_roots(
        address(roots, 0), address(parts, 0), address(n, 0), address(x, 0), middle, reach, address(columns, 0),
        8 * columns.shape[1], COEFFICIENTS,
    )  # fmt: skip


def divided(numbers, by):
    out, none = np.empty(LANES), np.empty(0, np.int64)
    mean(out, numbers, 1.0, np.zeros((1, LANES)), none, 1.0, float(by), 1.0 / by)
    return out


def test_a_mean_is_rounded_as_a_division_by_the_number_of_variants():
    random = np.random.default_rng(1)
    for by in range(1, 65):
        numbers = random.normal(size=(200, LANES)) * 10.0 ** random.integers(-290, 300, (200, LANES))
        for row in [*numbers, by * (1.0 + np.arange(LANES) * 2.0**-52)]:
            assert (divided(row, by) == row / by).all()


def test_a_mean_is_the_sum_of_the_listed_rows_in_turn():
    random = np.random.default_rng(2)
    rows, begin, out = random.normal(size=(5, LANES)), random.normal(size=LANES), np.empty(LANES)
    mean(out, begin, 1.0, rows, np.array([3, 0, 4]), -1.0, 7.0, 1.0 / 7.0)
    assert (out == (begin - rows[3] - rows[0] - rows[4]) / 7.0).all()


def test_powers_are_rows_of_first_and_u_to_the_seventh():
    random = np.random.default_rng(3)
    firsts, numbers, out = random.normal(size=LANES), random.normal(size=LANES), np.empty((LANES, LANES))
    powers(out, firsts, numbers, 0.25, 3.0)
    u = (numbers - 0.25) * 3.0
    expected = [firsts, u]
    while len(expected) < LANES:
        expected.append(expected[-1] * u)
    assert (out == np.transpose(expected)).all()


def test_columns_are_those_of_the_chosen_rows():
    random = np.random.default_rng(4)
    rows, out = random.normal(size=(20, LANES)), np.zeros((LANES, 11))
    numbers = random.integers(0, 20, LANES)
    columns(out, rows, numbers)
    assert (out[:, :LANES] == rows[numbers].T).all() and (out[:, LANES:] == 0.0).all()


def test_bounds_are_the_least_and_the_greatest():
    random = np.random.default_rng(5)
    for size in (8, 16, 32):
        numbers = random.normal(size=size)
        assert bounds(numbers) == (numbers.min(), numbers.max())


def test_mean_roots_are_the_root_times_the_series():
    random = np.random.default_rng(6)
    n, x, means = random.random(LANES), random.normal(size=LANES), random.random((len(COEFFICIENTS), 9))
    roots, parts = np.empty(LANES), np.empty(LANES)
    mean_roots(roots, parts, n, x, 0.5, 0.25, means)
    base = n + x * x * 0.5
    part = x * x * 0.25 / base
    series = 0.0
    for power in (3, 2, 1):
        series = series * part + COEFFICIENTS[power] * means[power, :LANES]
    assert (parts == part).all()
    assert (roots == np.sqrt(base) + np.sqrt(base) * (series * part)).all()
