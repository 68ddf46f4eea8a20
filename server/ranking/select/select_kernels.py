"""Selection kernels: click rates, draws, caps, and the chance of being returned.

No kernel allocates or checks: callers pass arrays that fit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from model_store.jit import bare_inline, bare_kernel

_OFFSET_BASIS, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_A, _MIX_B = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_UNIT = 2.0**-53

_SURE = 1e-13  # a chance this close to 0 or 1 counts as such: 10,000 of them err by 1e-9


@bare_kernel
def click_rates(scores: Any, ctr: Any) -> None:
    """ctr = 1 / (1 + exp(-score)), as the ranking kernel computes it, to the bit."""
    for i in range(scores.size):
        ctr[i] = 1.0 / (1.0 + math.exp(-scores[i]))


@bare_inline
def mixed(state: Any) -> Any:
    """SplitMix64's output function (Steele, Lea, Flood, 2014): every bit in moves every bit out."""
    state = (state ^ (state >> np.uint64(30))) * _MIX_A
    state = (state ^ (state >> np.uint64(27))) * _MIX_B
    return state ^ (state >> np.uint64(31))


@bare_kernel
def draw_normals(text: Any, offsets: Any, repeats: Any, seeds: Any, draws: Any) -> None:
    """draws[i] = a standard normal number that depends on the seeds, id i and its repeat alone.

    text uint8, offsets int64[n + 1]: the ids end to end; repeats uint64[n]: how often the id came before;
    seeds uint64[2]. FNV-1a of the id, mixed with the seeds, gives two uniforms; Box and Muller make a normal of them.
    """
    for i in range(draws.size):
        state = _OFFSET_BASIS
        for at in range(offsets[i], offsets[i + 1]):
            state = (state ^ np.uint64(text[at])) * _PRIME
        state = mixed(mixed(state ^ seeds[0]) + seeds[1] + repeats[i] * _GOLDEN)
        first = (np.float64(mixed(state + _GOLDEN) >> np.uint64(11)) + 1.0) * _UNIT
        second = np.float64(mixed(state + _GOLDEN + _GOLDEN) >> np.uint64(11)) * _UNIT
        draws[i] = math.sqrt(-2.0 * math.log(first)) * math.cos(2.0 * math.pi * second)


@bare_kernel
def take(order: Any, start: Any, groups: Any, limits: Any, counts: Any, top: Any, taken: Any) -> Any:
    """Walk `order` and take up to `top` candidates whose groups all have room; return how many were taken.

    Candidate c is in the groups[start[c] : start[c + 1]]; of group g at most limits[g] may be taken. counts int64, a
    number a group, is scratch. taken int64[top] gets the candidates, in order.
    """
    counts[:] = 0
    found = 0
    for place in range(order.size):
        if found == top:
            break
        candidate = order[place]
        if has_room(candidate, start, groups, limits, counts):
            for at in range(start[candidate], start[candidate + 1]):
                counts[groups[at]] += 1
            taken[found] = candidate
            found += 1
    return found


@bare_inline
def has_room(candidate: Any, start: Any, groups: Any, limits: Any, counts: Any) -> Any:
    """Whether no group of a candidate is full."""
    for at in range(start[candidate], start[candidate + 1]):
        if counts[groups[at]] >= limits[groups[at]]:
            return False
    return True


@bare_kernel
def count_taken(
    orders: Any, start: Any, groups: Any, limits: Any, counts: Any, top: Any, taken: Any, hits: Any
) -> None:
    """hits[c] += how many of the rows of `orders` (int64[draws, candidates]) candidate c is taken from; see `take`."""
    for draw in range(orders.shape[0]):
        found = take(orders[draw], start, groups, limits, counts, top, taken)
        for place in range(found):
            hits[taken[place]] += 1


@bare_inline
def _normal_below(z: Any) -> Any:
    return 0.5 * math.erfc(-z / math.sqrt(2.0))


@bare_inline
def _first_not_below(points: Any, value: Any) -> Any:
    low, high = 0, points.size
    while low < high:
        middle = (low + high) // 2
        if points[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@bare_kernel
def tails(values: Any, z: Any, below: Any, points: Any, above: Any, at_least: Any) -> None:
    """above[p, i] = P(V_i > points[p]) and at_least[p, i] = P(V_i ≥ points[p]), where V_i = f_i(Z), Z standard normal.

    values float64[items, nodes] has f_i at the nodes z[i], ascending; below[i, q] = P(Z < z[i, q]), but 0 and 1 at the
    ends; points ascend. Between two nodes f_i is a straight line; where both are equal, f_i is constant: an atom. above
    and at_least float64[points, items] are all 0. O(items · (nodes · log points + points)).
    """
    for item in range(values.shape[0]):
        for node in range(z.shape[1] - 1):
            first, last = values[item, node], values[item, node + 1]
            low, high = min(first, last), max(first, last)
            mass, begin = below[item, node + 1] - below[item, node], _first_not_below(points, low)
            # Marked where it ends; the sums below carry it to every point before.
            if begin > 0:
                above[begin - 1, item] += mass
                at_least[begin - 1, item] += mass
            at = begin
            while low == high and at < points.size and points[at] == low:
                at_least[at, item] += mass
                if at > 0:
                    at_least[at - 1, item] -= mass
                at += 1
        for point in range(points.size - 2, -1, -1):
            above[point, item] += above[point + 1, item]
            at_least[point, item] += at_least[point + 1, item]
        _add_slopes(values, z[item], below[item], points, item, above, at_least)


@bare_inline
def _add_slopes(values: Any, z: Any, below: Any, points: Any, item: Any, above: Any, at_least: Any) -> None:
    """Add the part of each cell that lies above the points between its ends."""
    for node in range(z.size - 1):
        first, last = values[item, node], values[item, node + 1]
        low, high = min(first, last), max(first, last)
        point = _first_not_below(points, low)
        while point < points.size and points[point] < high:
            crossing = z[node] + (z[node + 1] - z[node]) * ((points[point] - first) / (last - first))
            part = _normal_below(crossing)
            part = below[node + 1] - part if last > first else part - below[node]
            part = min(max(part, 0.0), below[node + 1] - below[node])
            above[point, item] += part
            at_least[point, item] += part
            point += 1


@bare_inline
def _add_chance(counts: Any, size: Any, chance: Any) -> None:
    """counts[a], the chance of a successes, gains one trial; more than size - 1 successes are forgotten."""
    for a in range(size - 1, 0, -1):
        counts[a] = counts[a] * (1.0 - chance) + counts[a - 1] * chance
    counts[0] *= 1.0 - chance


@bare_kernel
def chances(
    above: Any,
    at_least: Any,
    nodes: Any,
    mass: Any,
    chosen: Any,
    top: Any,
    before: Any,
    counts: Any,
    out: Any,
) -> None:
    """out[c] += Σ over nodes of mass[node, c] · P(fewer than `top` others come before item chosen[c] there).

    At the value of node g, others of a lower number come before with chance at_least[nodes[g], i], later ones with
    above[nodes[g], i]: equal values keep their order. Their number is Poisson-binomial; its distribution is built from
    both ends (`before` float64[chosen, top] holds the one from the front, counts float64[top] is scratch), so that
    no item is ever divided out. chosen ascends. O(nodes · items · top).
    """
    items = above.shape[1]
    for g in range(nodes.size):
        point, at = nodes[g], 0
        counts[:] = 0.0
        counts[0] = 1.0
        sure = 0
        for item in range(items):
            if at < chosen.size and chosen[at] == item:
                for a in range(top):
                    before[at, a] = counts[a - sure] if a >= sure else 0.0
                at += 1
            chance = at_least[point, item]
            if chance > 1.0 - _SURE:
                sure += 1
            elif chance > _SURE:
                _add_chance(counts, max(top - sure, 0), chance)
        counts[:] = 0.0
        counts[0] = 1.0
        sure = 0
        for item in range(items - 1, -1, -1):
            if at > 0 and chosen[at - 1] == item:
                at -= 1
                if mass[g, at] > 0.0:
                    out[at] += mass[g, at] * _fewer(before, at, counts, sure, top)
            chance = above[point, item]
            if chance > 1.0 - _SURE:
                sure += 1
            elif chance > _SURE:
                _add_chance(counts, max(top - sure, 0), chance)


@bare_inline
def _fewer(before: Any, at: Any, counts: Any, sure: Any, top: Any) -> Any:
    """P(A + B + sure < top), where A has the distribution before[at] and B that of `counts`."""
    total, up_to = 0.0, 0.0
    for b in range(top - sure):
        up_to += counts[b]
        total += before[at, top - 1 - sure - b] * up_to
    return total


@bare_kernel
def chances_by_moments(
    above: Any, at_least: Any, nodes: Any, mass: Any, chosen: Any, top: Any, out: Any
) -> None:
    """As `chances`, by the refined normal approximation (Volkova, 1996): O(nodes · items) whatever `top` is."""
    for g in range(nodes.size):
        mean, variance, third = 0.0, 0.0, 0.0
        point, at = nodes[g], 0
        for item in range(above.shape[1]):
            p = above[point, item]
            mean, variance = mean + p, variance + p * (1.0 - p)
            third += p * (1.0 - p) * (1.0 - 2.0 * p)
        # The sums are of those before an item, whose equals come before it, and of those after it.
        for item in range(above.shape[1]):
            p, q = above[point, item], at_least[point, item]
            mean, variance = mean - p, variance - p * (1.0 - p)
            third -= p * (1.0 - p) * (1.0 - 2.0 * p)
            if at < chosen.size and chosen[at] == item:
                if mass[g, at] > 0.0:
                    out[at] += mass[g, at] * _refined(top - 0.5 - mean, variance, third)
                at += 1
            mean, variance = mean + q, variance + q * (1.0 - q)
            third += q * (1.0 - q) * (1.0 - 2.0 * q)


@bare_inline
def _refined(distance: Any, variance: Any, third: Any) -> Any:
    if variance < 1e-9:
        return 1.0 if distance > 0.0 else 0.0
    deviation = math.sqrt(variance)
    y = distance / deviation
    density = math.exp(-0.5 * y * y) / math.sqrt(2.0 * math.pi)
    skew = third / (variance * deviation)
    return min(max(_normal_below(y) + skew * (1.0 - y * y) * density / 6.0, 0.0), 1.0)
