"""What happened in the demo, as values, and how it is told: lines and tables, or one JSON answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ftrie.demo.market import Shop
from ftrie.terminal import json_asked, print_json, print_table

VARIANTS = ("base", "plain")
TOP = 5


@dataclass(frozen=True)
class LearnedDay:
    """One day learned and published. `logloss` has the variants' and, as `truth`, the true rates' own."""

    day: int
    version: int
    rows: int
    clicks: int
    logloss: dict[str, float]


@dataclass(frozen=True)
class ShownItem:
    """One item as ranked for one visitor: the truth, and what each variant predicts."""

    id: str
    true_ctr: float
    ctr: dict[str, float]


@dataclass(frozen=True)
class Visit:
    """One visitor's items, best first, as version `version` ranks them."""

    cookie: str
    version: int
    items: tuple[ShownItem, ...]


def tell(text: str) -> None:
    """Print a line of the story, unless the answer is wanted as JSON."""
    if not json_asked():
        print(text, flush=True)


def tell_opening(shop: Shop) -> None:
    """Say what the shop is and what the two variants may learn."""
    tell(
        f"A simulated shop: {len(shop.users)} visitors, {len(shop.items)} items, and click rates that are known."
    )
    tell("Age and category decide together. The variant `base` may cross the two, `plain` may not.")


def tell_learned(day: LearnedDay) -> None:
    """Compare the variants' log-loss with the best there is."""
    base, plain, truth = (day.logloss[name] for name in (*VARIANTS, "truth"))
    tell(f"\n  Log-loss: plain {plain:.4f}, base {base:.4f}; the true rates themselves score {truth:.4f}.")


def tell_visit(shop: Shop, visit: Visit) -> None:
    """Show one visitor's first items, the truth beside the predictions."""
    user = next(user for user in shop.users if user.cookie == visit.cookie)
    tell(f"\nFor {user.cookie} (age {user.age}, {user.gender}) version {visit.version} ranks:")
    rows = [
        (place, item.id, *map(_percent, (item.true_ctr, item.ctr["base"], item.ctr["plain"])))
        for place, item in enumerate(visit.items[:TOP], 1)
    ]
    _tell_table(("rank", "item", "true CTR", "base", "plain"), rows)


def tell_change(before: Visit, after: Visit) -> None:
    """Show how one visitor's ranking moved from one version to the next."""
    tell(f"\nThe running server now answers from version {after.version}; nobody restarted it.")
    tell(f"For {after.cookie}, the ranks by version {before.version} and by version {after.version}:")
    place_before = {item.id: place for place, item in enumerate(before.items, 1)}
    rows = [
        (place_before[item.id], place, item.id, _percent(item.true_ctr), _percent(item.ctr["base"]))
        for place, item in enumerate(after.items[:TOP], 1)
    ]
    _tell_table(("then", "now", "item", "true CTR", "base"), rows)


def tell_end(days: Sequence[LearnedDay], visits: Sequence[Visit], switch_s: float, seconds: float) -> None:
    """Close the story, or with `--json` print all of it."""
    tell(f"\nThe whole loop took {seconds:.0f} s. The server and the store have stopped.")
    if json_asked():
        print_json(
            {
                "days": [asdict(day) for day in days],
                "visits": [asdict(visit) for visit in visits],
                "switch_seconds": switch_s,
                "seconds": seconds,
            }
        )


def _percent(rate: float) -> str:
    return f"{100 * rate:5.1f} %"


def _tell_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    if not json_asked():
        print_table(columns, rows)
