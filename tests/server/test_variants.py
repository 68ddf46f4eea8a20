from __future__ import annotations

from collections import Counter

import pytest

from server.variants import VariantChooser

COOKIES = [f"cookie-{n}" for n in range(20_000)]
# 99.99 % quantiles of chi-square: what a fair chooser exceeds once in ten thousand salts.
CHI_SQUARE = {1: 15.14, 2: 18.42, 3: 21.11}


def test_a_cookie_keeps_its_variant() -> None:
    one, other = (VariantChooser("ads", [0.5, 0.3, 0.2]) for _ in range(2))
    assert [one.choose(c) for c in COOKIES[:500]] == [other.choose(c) for c in COOKIES[:500]]


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.9, 0.1), (0.2, 0.3, 0.5), (0.25, 0.25, 0.25, 0.25)])
def test_traffic_follows_the_shares(shares: tuple[float, ...]) -> None:
    counts = Counter(map(VariantChooser("ads", shares).choose, COOKIES))
    expected = [share * len(COOKIES) for share in shares]
    distance = sum((counts[bit] - e) ** 2 / e for bit, e in enumerate(expected))
    assert distance < CHI_SQUARE[len(shares) - 1]


def test_models_divide_the_same_cookies_independently() -> None:
    ads, shop = VariantChooser("ads", [0.5, 0.5]), VariantChooser("shop", [0.5, 0.5])
    pairs = Counter((ads.choose(c), shop.choose(c)) for c in COOKIES)
    quarter = len(COOKIES) / 4
    assert sum((pairs[a, b] - quarter) ** 2 / quarter for a in (0, 1) for b in (0, 1)) < CHI_SQUARE[3]


def test_a_moved_border_moves_only_the_cookies_it_passes() -> None:
    before, after = VariantChooser("ads", [0.5, 0.5]), VariantChooser("ads", [0.6, 0.4])
    moves = Counter((before.choose(c), after.choose(c)) for c in COOKIES)
    assert moves[0, 1] == 0
    assert 0.08 * len(COOKIES) < moves[1, 0] < 0.12 * len(COOKIES)


@pytest.mark.parametrize("shares", [(0.0, 1.0, 0.0), (0.0, 0.5, 0.0, 0.5), (1.0, 0.0)])
def test_a_variant_without_a_share_gets_no_traffic(shares: tuple[float, ...]) -> None:
    seen = {VariantChooser("ads", shares).choose(c) for c in COOKIES}
    assert seen == {bit for bit, share in enumerate(shares) if share}


def test_any_text_is_a_cookie() -> None:
    chooser = VariantChooser("ads", [0.5, 0.5])
    assert {chooser.choose(c) for c in ("", "ü", "\x00", "🎈", "\ud800")} <= {0, 1}
