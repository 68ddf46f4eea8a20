"""What logging an answer costs: the offer, on the call's path; beside it the line, and handing it to a sink.

    python -m benchmarks.impressions

Processor time of the thread that does it. The shop of `benchmarks.rank`: 8 features of the request, 200 candidates of 6
features, of which the best 10 are shown, or all. The stream is a Valkey's on a unix socket, in the batches of a server.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from time import thread_time_ns
from typing import Any

from benchmarks import rank_model as shop
from benchmarks.common import ROUNDS, Spread, report
from benchmarks.rank_requests import request
from model_store.features.features import FeaturePlan
from server.events.lines import Lines, Shown
from server.events.log import SINK_BATCH as BATCH
from server.events.log import ImpressionLog
from server.events.sinks import FileSink, StreamSink
from server.model.columns import Catalogue
from server.model.event_form import Form
from server.model.model import Model
from server.ranking.candidates import LateItems
from server.ranking.features import StoredUser, UserFields
from server.ranking.query import Query
from server.ranking.ranker import Ranker
from server.ranking.request import Received
from server.ranking.resolve import Call, Resolver
from server.ranking.served import ModelHandle, ServedVersion
from server.ranking.store_reads import StoredReads
from server.telemetry.meter import Meter

CALLS, CANDIDATES = 1000, 200


class Nowhere:
    """A sink that takes everything."""

    kind, shown = "file", os.devnull

    def append(self, model: str, lines: Sequence[bytes]) -> None:
        """Keep nothing."""

    def close(self) -> None:
        """Nothing is open."""


def served_version(keys: int = shop.KEYS) -> ServedVersion:
    """The shop's model, of so many keys, over its items, with what lines say of them."""
    model = Model.build(shop.artefact(most=keys), 1)
    records = list(shop.records(shop.ITEM_FIELDS, "item-", shop.ITEMS, seed=1))
    catalogue = Catalogue.build(FeaturePlan.of(model.spec), records, Form(model.spec, model.plan))
    return ServedVersion(shop.NAME, 1, "", model, catalogue, Ranker(model, catalogue), 0)


class Stored:
    """A store that has every user."""

    def find(self, cookie: str, given: int, model: str, wanted: UserFields, *rest: object) -> object:
        return StoredUser(cookie, [f"{name}7" for name in wanted.hash_fields.names], 0.0), ()


def queries(served: ServedVersion, top_k: int, *, inline: bool) -> list[Query]:
    """As many queries, their users inline or kept from the store."""
    handle = ModelHandle(served.name, LateItems(StoredReads("")))
    handle.serve(served)
    resolver: Any = Resolver(StoredReads(""), Stored())  # type: ignore[arg-type]
    made = []
    for number in range(CALLS):
        asked = request(number, CANDIDATES, inline=inline)
        asked.top_k = top_k
        message = Received(asked.SerializeToString())
        made.append(resolver.resolve(Call(message, f"r{number}", None, handle, served)))  # type: ignore[arg-type]
    return made


def microseconds(step: Callable[[], object]) -> Spread:
    """How long `step` takes, for each of CALLS."""
    took = []
    for _ in range(ROUNDS):
        began = thread_time_ns()
        step()
        took.append((thread_time_ns() - began) / 1e3 / CALLS)
    return Spread.of(took)


def measured(served: ServedVersion, top_k: int, *, inline: bool) -> list[tuple[str, Spread, int]]:
    """Offer and line: what, how long, and the bytes of a line."""
    answers = [(query, served.ranker.rank(query)) for query in queries(served, top_k, inline=inline)]
    makes = Lines.of(served)
    shown = [Shown(1.7e9, makes, *answer) for answer in answers]

    def offer() -> None:
        log = ImpressionLog([Nowhere()], Meter(), 10 * CALLS)
        for query, ranking in answers:
            log.offer(served, query, ranking)

    lines = [makes.line(each) for each in shown]
    size = sum(map(len, lines)) // CALLS
    where = f"top {top_k}, user {'inline' if inline else 'stored'}"
    return [
        (f"offer, {where}", microseconds(offer), 0),
        (f"line, {where}", microseconds(lambda: [makes.line(each) for each in shown]), size),
        *handed_over(lines, where, size),
    ]


def handed_over(lines: Sequence[bytes], where: str, size: int) -> list[tuple[str, Spread, int]]:
    """To a stream and to a file."""
    with tempfile.TemporaryDirectory(prefix="ftrie-") as folder:
        stream = StreamSink(f"embedded:{folder}/store", "redis", 10_000, 3600.0)
        file = FileSink(f"{folder}/lines", 64 << 20, 1)

        def hand_to(sink: StreamSink | FileSink) -> None:
            for first in range(0, CALLS, BATCH):
                sink.append(shop.NAME, lines[first : first + BATCH])

        hand_to(stream)
        found = [
            (f"{name}, {where}", microseconds(lambda sink=sink: hand_to(sink)), size)  # type: ignore[misc]
            for name, sink in (("to a stream", stream), ("to a file", file))
        ]
        stream.close()
        return found


def main() -> None:
    served = served_version()
    found = [
        row
        for top_k, inline in ((10, True), (10, False), (CANDIDATES, True))
        for row in measured(served, top_k, inline=inline)
    ]
    rows = [(what, *(round(x, 2) for x in (s.median, s.low, s.high)), size) for what, s, size in found]
    fragments = served.catalogue.fragments
    assert fragments is not None
    own = fragments.json, fragments.json_offsets, fragments.own, fragments.own_offsets
    per_item = sum(array.nbytes for array in own) / len(served.catalogue)
    title = (
        f"µs of processor a call; medians of {ROUNDS} rounds of {CALLS}; fragments {per_item:.0f} B an item"
    )
    report("impressions", title, ("step", "us", "low", "high", "bytes"), rows)


if __name__ == "__main__":
    main()
