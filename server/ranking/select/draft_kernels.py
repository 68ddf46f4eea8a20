"""Kernels that make one list of several variants' orders: the draft, and the chance of each item to be in the list.

Team draft (Radlinski, Kurup, Joachims: How does clickthrough data reflect retrieval quality?, CIKM 2008;
more than two teams: Schuth et al., Multileaved comparisons for fast online evaluation, CIKM 2014): in each round the
teams pick in random order, each its best item that is not in the list yet. Probabilistic interleaving (Hofmann,
Whiteson, de Rijke: A probabilistic method for inferring preferences from clicks, CIKM 2011): at each place a
team is drawn, and of its items one with a chance proportional to 1 / rank^3.

A click counts by how much it tells the teams apart: with p_t the chance that team t placed the item, given the list up
to it, the team that did gets p_t minus the mean of the others'. An item that all would have placed there counts 0: its
team is a coin's toss, which adds noise and no evidence (Chapelle et al.: Large-scale validation and analysis of
interleaved search evaluation, TOIS 2012, on weighing clicks).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.jit import bare_inline, bare_kernel
from server.ranking.select.select_kernels import has_room, mixed

DRAWS = 63
"""Drafts that are simulated where the chance of an item is not computed."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_UNIT = 2.0**-53


@bare_inline
def _bits(state: Any) -> Any:
    """The next 64 random bits of SplitMix64, whose state is state[0]."""
    state[0] += _GOLDEN
    return mixed(state[0])


@bare_inline
def _drawn(state: Any, count: Any) -> Any:
    """A random number from 0 to before `count`, which is small: the remainder's bias is below 1e-18."""
    return np.int64((_bits(state) >> np.uint64(1)) % np.uint64(count))


@bare_inline
def _weight(rank: Any) -> Any:
    """What an item of this rank, from 0 on, weighs in a probabilistic draft."""
    return 1.0 / ((rank + 1.0) * (rank + 1.0) * (rank + 1.0))


@bare_inline
def _remove(item: Any, ranks: Any, taken: Any, totals: Any) -> None:
    taken[item] = 1
    for team in range(ranks.shape[0]):
        totals[team] -= _weight(ranks[team, item])


@bare_inline
def _take(
    item: Any, start: Any, groups: Any, limits: Any, counts: Any, ranks: Any, taken: Any, totals: Any
) -> None:
    """Remove an item, and those for which its groups then have no room."""
    _remove(item, ranks, taken, totals)
    if groups.size == 0:
        return
    for at in range(start[item], start[item + 1]):
        counts[groups[at]] += 1
    for other in range(taken.size):
        if taken[other] == 0 and not has_room(other, start, groups, limits, counts):
            _remove(other, ranks, taken, totals)


@bare_inline
def _margin(own: Any, teams: Any) -> Any:
    """How much the chance of one team is above the mean of the others'."""
    return own - (1.0 - own) / (teams - 1)


@bare_inline
def _picked_by_turns(orders: Any, at: Any, turns: Any, chance: Any, after: Any, state: Any) -> Any:
    """The team that picks next, and its credit, in a team draft; at[t] is where team t's best free item is.

    chance f64[2^k]: of each set of teams, that these have picked in this round, given the list so far; `turns`: those
    that have.
    """
    k, left, team = at.size, 0, 0
    for each in range(k):
        left += 1 - (turns >> each & 1)
    place = _drawn(state, left)
    for each in range(k):
        if turns >> each & 1 == 0:
            if place == 0:
                team = each
            place -= 1
    item, whole, own = orders[team, at[team]], 0.0, 0.0
    after[:] = 0.0
    # All sets that may have picked have as many teams as `turns`.
    for subset in range(after.size - 1):
        share = chance[subset] / left
        if share > 0.0:
            for each in range(k):
                if subset >> each & 1 == 0 and orders[each, at[each]] == item:
                    after[subset | 1 << each] += share
                    whole += share
                    own += share if each == team else 0.0
    for subset in range(after.size):
        chance[subset] = after[subset] / whole
    return team, _margin(own / whole, k)


@bare_inline
def _picked_by_chance(orders: Any, ranks: Any, at: Any, taken: Any, totals: Any, state: Any) -> Any:
    """The team that is drawn, the place of its item in its order, and the credit, in a probabilistic draft."""
    k = at.size
    team = _drawn(state, k)
    bound = np.float64(_bits(state) >> np.uint64(11)) * _UNIT * totals[team]
    found, place, sum_up_to = at[team], at[team], 0.0
    # The last free one where rounding leaves the sum below the bound.
    while place < orders.shape[1] and sum_up_to <= bound:
        if taken[orders[team, place]] == 0:
            found = place
            sum_up_to += _weight(place)
        place += 1
    item, own, whole = orders[team, found], 0.0, 0.0
    for each in range(k):
        chance = _weight(ranks[each, item]) / totals[each]
        whole += chance
        own += chance if each == team else 0.0
    return team, found, _margin(own / whole, k)


@bare_inline
def _draft(
    orders: Any, top: Any, by_turns: Any, state: Any, start: Any, groups: Any, limits: Any, counts: Any,
    ranks: Any, taken: Any, at: Any, totals: Any, chance: Any, after: Any, order: Any, team: Any, credit: Any,
) -> Any:  # fmt: skip
    """Draft up to `top` items; returns how many. See `draft`; the rest is scratch."""
    k, turns = orders.shape[0], np.int64(0)
    taken[:] = 0
    counts[:] = 0
    at[:] = 0
    if not by_turns:
        totals[:] = 0.0
        for each in range(k):
            for rank in range(orders.shape[1]):
                totals[each] += _weight(rank)
    for place in range(top):
        if turns == 0:
            chance[:] = 0.0
            chance[0] = 1.0
        for each in range(k):
            while at[each] < orders.shape[1] and taken[orders[each, at[each]]] != 0:
                at[each] += 1
            if at[each] == orders.shape[1]:  # caps leave no item to any team
                return place
        if by_turns:
            which, gained = _picked_by_turns(orders, at, turns, chance, after, state)
            item = orders[which, at[which]]
            turns = (turns | np.int64(1) << which) % (after.size - 1)
        else:
            which, found, gained = _picked_by_chance(orders, ranks, at, taken, totals, state)
            item = orders[which, found]
        order[place], team[place], credit[place] = item, which, gained
        _take(item, start, groups, limits, counts, ranks, taken, totals)
    return top


@bare_inline
def _past(at: Any, in_other: Any, other: Any) -> Any:
    """The first place from `at` on whose item is not among the first `other` of the other list."""
    while at < in_other.size and in_other[at] < other:
        at += 1
    return at


@bare_inline
def _add_state(first: Any, second: Any, chance: Any, chances: Any, seconds: Any) -> None:
    chances[first] += chance
    seconds[first] = second


@bare_inline
def _find_places(items: Any, others: Any, count: Any, top: Any, where: Any, places: Any) -> None:
    """places[i] = where the first `count` items are among the first `top` others, `top` if not. where: all 0."""
    for place in range(top):
        where[others[place]] = place + 1
    for at in range(count):
        places[at] = where[items[at]] - 1 if where[items[at]] > 0 else top
    for place in range(top):
        where[others[place]] = 0


@bare_inline
def _exact_chances(
    orders: Any, top: Any, count: Any, order: Any, where: Any, in_first: Any, in_second: Any,
    seconds: Any, seconds_after: Any, chances: Any, chances_after: Any, out: Any,
) -> None:  # fmt: skip
    """out[i] = the chance that a team draft of two returns order[i].

    The list after a round is the first i items of one order and the first j of the other, with i and j as large as can
    be; so i, of which j is a function, is all that matters of the picks before. O(top²), less where the orders agree.
    """
    first, second = orders[0, :top], orders[1, :top]
    _find_places(first, second, top, top, where, in_second)
    _find_places(second, first, top, top, where, in_first)
    chances[:] = 0.0
    chances[0], seconds[0] = 1.0, 0
    for begin in range(0, top, 2):
        chances_after[:] = 0.0
        for i in range(begin + 1):
            half, j = 0.5 * chances[i], seconds[i]
            if half == 0.0:
                continue
            # The first team picks, then the second.
            i_after = _past(i + 1, in_second, j)
            j_after = _past(j, in_first, i_after)
            if begin + 1 < top:
                j_after += 1
                i_after = _past(i_after, in_second, j_after)
                j_after = _past(j_after, in_first, i_after)
            _add_state(i_after, j_after, half, chances_after, seconds_after)
            # The second, then the first.
            j_after = _past(j + 1, in_first, i)
            i_after = _past(i, in_second, j_after)
            if begin + 1 < top:
                i_after += 1
                j_after = _past(j_after, in_first, i_after)
                i_after = _past(i_after, in_second, j_after)
            _add_state(i_after, j_after, half, chances_after, seconds_after)
        for i in range(top + 1):
            chances[i], seconds[i] = chances_after[i], seconds_after[i]
    _find_places(order, first, count, top, where, in_first)
    _find_places(order, second, count, top, where, in_second)
    for place in range(count):
        out[place] = 0.0
        for i in range(top + 1):
            if chances[i] > 0.0 and (in_first[place] < i or in_second[place] < seconds[i]):
                out[place] += chances[i]


def ints_for(teams: int, candidates: int, top: int) -> int:
    """How many int64 of scratch space a draft takes."""
    return teams * (candidates + 1) + 2 * candidates + 6 * (top + 1)


def reals_for(teams: int, top: int) -> int:
    """How many float64 of scratch space a draft takes."""
    return 2 * (1 << teams) + teams + 3 * (top + 1)


@bare_inline
def drafted(
    orders: Any, candidates: Any, top: Any, by_turns: Any, seed: Any, start: Any, groups: Any, limits: Any, counts: Any,
    ints: Any, reals: Any, state: Any, order: Any, team: Any, credit: Any, propensity: Any,
) -> Any:  # fmt: skip
    """The draft and its chances, `draft`, with scratch space cut to arrays."""
    k, sets, used = orders.shape[0], 1 << orders.shape[0], 0
    taken, used = ints[used : used + candidates], used + candidates
    where, used = ints[used : used + candidates], used + candidates
    at, used = ints[used : used + k], used + k
    two_orders, used = ints[used : used + 6 * (top + 1)].reshape(6, top + 1), used + 6 * (top + 1)
    # Ranks are those of all candidates; a team draft needs none.
    ranks = ints[used : used + (0 if by_turns else k * candidates)].reshape(0 if by_turns else k, candidates)
    chance, after, totals = reals[:sets], reals[sets : 2 * sets], reals[2 * sets : 2 * sets + k]
    of_states = reals[2 * sets + k :].reshape(3, top + 1)
    where[:] = 0
    if not by_turns:
        for each in range(k):
            for rank in range(orders.shape[1]):
                ranks[each, orders[each, rank]] = rank
    state[0] = np.uint64(seed)
    is_exact, count = by_turns and k == 2 and groups.size == 0, np.int64(0)
    # The draft, and then what is simulated: in one loop, since code that is inlined twice is twice as much to fetch.
    for run in range(1 if is_exact else 1 + DRAWS):
        own = run == 0
        found = _draft(
            orders, top, by_turns, state, start, groups, limits, counts, ranks, taken, at, totals, chance, after,
            order if own else two_orders[4], team if own else two_orders[5], credit if own else of_states[2],
        )  # fmt: skip
        if own:
            count = found
        else:
            for place in range(found):
                where[two_orders[4, place]] += 1
    if is_exact:
        _exact_chances(
            orders, top, count, order, where, two_orders[0, :top], two_orders[1, :top], two_orders[2], two_orders[3],
            of_states[0], of_states[1], propensity,
        )  # fmt: skip
    else:
        for place in range(count):
            # The draft that was made counts too: no propensity is 0, since estimates divide by them.
            propensity[place] = (where[order[place]] + 1.0) / (DRAWS + 1.0)
    return count


@bare_kernel
def draft(
    orders: Any, candidates: Any, top: Any, by_turns: Any, seed: Any, start: Any, groups: Any, limits: Any, counts: Any,
    ints: Any, reals: Any, state: Any, order: Any, team: Any, credit: Any, propensity: Any,
) -> Any:  # fmt: skip
    """Draft up to `top` items of the teams' orders; returns how many there are: fewer only where caps leave no more.

    orders int64[teams, n]: numbers of candidates, the best first: of all candidates, or at least `top` of them for a
    team draft without caps. by_turns: team draft, else probabilistic. seed int64: the draft is a
    function of it. start, groups, limits, counts as `select_kernels.take` has them, groups empty without caps.
    ints, reals, state: scratch, `ints_for` and `reals_for`, and uint64[1]. order, team int64[top], credit, propensity
    float64[top], out.
    """
    return drafted(
        orders, candidates, top, by_turns, seed, start, groups, limits, counts, ints, reals, state,
        order, team, credit, propensity,
    )  # fmt: skip
