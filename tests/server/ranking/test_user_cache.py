"""UserCache: bounded, and inclined to keep who is asked for."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from server.ranking.features import StoredUser
from server.ranking.users import UserCache


def user(cookie: str) -> StoredUser:
    return StoredUser(cookie, [cookie], 0.0)


@given(st.integers(0, 5), st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60))
def test_whatever_is_put_and_asked_for_the_cache_stays_whole_and_within_its_bound(
    capacity: int, steps: list[tuple[bool, int]]
) -> None:
    cache = UserCache(capacity)
    latest: dict[str, StoredUser] = {}
    for puts, n in steps:
        if puts:
            latest[str(n)] = user(str(n))
            cache.put(latest[str(n)])
            assert (cache.get(str(n)) is latest[str(n)]) == (capacity > 0)
        elif found := cache.get(str(n)):
            assert found is latest[str(n)]
            found.used = True
        cache.check()


def test_who_is_asked_for_outlives_a_flood_of_others() -> None:
    cache = UserCache(1000)
    for n in range(1000):
        cache.put(user(f"regular-{n}"))
    for n in range(10_000):
        if found := cache.get(f"regular-{n % 100}"):
            found.used = True
        if n >= 100:
            cache.put(user(f"passer-by-{n}"))
    assert all(cache.get(f"regular-{n}") for n in range(100))
    assert not any(cache.get(f"regular-{n}") for n in range(100, 1000))
    assert len(cache) == 1000


def test_zipf_users_are_found_about_as_often_as_with_least_recently_used() -> None:
    draw = random.Random(1)
    cache, hits, lru_hits = UserCache(500), 0, 0
    lately: dict[str, None] = {}
    for _ in range(30_000):
        cookie = str(int(draw.paretovariate(0.8)))
        if found := cache.get(cookie):
            found.used, hits = True, hits + 1
        else:
            cache.put(user(cookie))
        lru_hits += cookie in lately
        lately.pop(cookie, None)
        lately[cookie] = None
        if len(lately) > 500:
            del lately[next(iter(lately))]
    assert hits > 0.97 * lru_hits


def test_threads_may_put_and_get_at_once() -> None:
    cache = UserCache(50)

    def work(seed: int) -> bool:
        draw = random.Random(seed)
        for _ in range(3000):
            cookie = str(draw.randrange(200))
            found = cache.get(cookie)
            if found is None:
                cache.put(user(cookie))
            elif found.cookie != cookie:
                return False
            else:
                found.used = True
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    cache.check()
