"""Bytes a key, an item, an impression and a pending request, and how they grow with their number and with variants.

    python -m benchmarks.growth [--large] [--picture docs/images/memory.svg] [--json]

Everything weighed was made by the product's own code. Arrays count with their `nbytes`, whether or not their pages have
been touched; a stream with what Valkey's MEMORY USAGE says of all its entries; a dict with `sys.getsizeof` of it, its
keys and its values. Bytes are the same in every run (a stream's within 0.1 %, as its entries' ids hold times), so that
one run is enough: there are no medians.

training: the value table, in every layout right before and right after each time it grew; the arena with the keys'
bytes is weighed apart. serving: a model beside a dict of the same keys (bytes) and weights, floats, or a tuple of
them where each variant has its own. items: the catalogue and what a version knows of it. events: impressions of the
server in the store's stream, and then in the trainer, read from that stream, while all their windows are open.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks import impressions, large_model
from benchmarks.common import report
from ftrie.draw.charts import Spec, lines, require_charts
from ftrie.draw.pages import COLUMN_WIDTH, stacked_svg
from model_store.artefact.artefact import Artefact
from model_store.artefact.rows import columns_of
from model_store.features.features import FeaturePlan
from model_store.files import write_whole
from model_store.store import Store
from model_store.streams.event_streams import EventStream
from server.events.lines import Lines, Shown
from server.events.log import SINK_BATCH
from server.model.columns import Catalogue
from server.model.event_form import Form
from server.model.items import ItemTable
from server.model.model import Model
from server.ranking.served import ServedVersion
from trainer.events.columns import Wanted
from trainer.events.join import Join
from trainer.events.parse import Parser
from trainer.events.waiting_rows import Segments
from trainer.learn.slots_kernels import layout_of
from trainer.learn.table import ValueTable
from trainer.learn.table_kernels import ENTRY_HEAD
from trainer.sources.merge import Parsed, Part, merge
from trainer.sources.redis import StreamSource

COLUMNS = ("part", "what", "of", "count", "MB", "bytes each", "of a dict")
TRAINING, SERVING, CATALOGUE, EVENTS = "training", "serving", "items", "events"
KEYS, LARGE = (100_000, 1_000_000, 4_000_000), 10_000_000
MOST_OF_OWN = 1_000_000
"""Keys, where each variant has values of its own: 32 of them are 1.1 GB."""
ITEMS, ITEM_KEYS = (10_000, 100_000), 100_000
PENDING, SHOWN = (1_000, 10_000, 100_000), (10, 50)
MOST_ROWS = 1_000_000
"""Of pending requests, by one number of shown items."""
GOAL = 0.4
"""Trie and weights, of a dict."""
SEVERAL = 8
LAYOUTS = {
    "one value": (1, layout_of("single", "f64", "per_coordinate")),
    "one value, compact": (1, layout_of("single", "q2.13", "counts")),
    "8 variants": (8, layout_of("per_variant", "f64", "per_coordinate")),
    "8 variants, compact": (8, layout_of("per_variant", "q2.13", "counts")),
    "32 variants": (32, layout_of("per_variant", "f64", "per_coordinate")),
    "32 variants, compact": (32, layout_of("per_variant", "q2.13", "counts")),
}
"""Variants with values of their own, and the layout. Compact: precision q2.13 and counts."""
TABLE = "table, {}"
FULL, GROWN = "{}, full", "{}, just grown"


@dataclass(frozen=True)
class Size:
    """What a structure takes for `count` of something. a_dict: the bytes of a dict of the same keys and weights."""

    part: str
    what: str
    of: str
    count: int
    nbytes: int
    a_dict: int | None = None

    @property
    def each(self) -> float:
        """Bytes of one."""
        return self.nbytes / self.count

    @property
    def share(self) -> float | None:
        """Its bytes, of a dict's."""
        return None if self.a_dict is None else self.nbytes / self.a_dict

    def row(self) -> tuple[Any, ...]:
        """Its row of COLUMNS."""
        share = None if self.share is None else f"{100 * self.share:.1f} %"
        size = f"{self.nbytes / 1e6:,.1f}", f"{self.each:,.1f}"
        return self.part, self.what, self.of, self.count, *size, share


# -- training


def training(counts: Sequence[int]) -> tuple[list[Size], list[Size]]:
    """The rows of the table; and every table right before and after it grew, for the picture."""
    keys = _shuffled(large_model.artefact(max(counts)))
    rows, steps = _arena(keys, counts), []
    for name, (variants, layout) in LAYOUTS.items():
        own = [count for count in counts if variants == 1 or count <= MOST_OF_OWN]
        found = list(_growing(name, ValueTable(layout, variants=variants), keys, own))
        rows += [size for size in found if size.what == TABLE.format(name)]
        grew = [size for size in found if size.what != TABLE.format(name)]
        rows += grew[-2:]
        shown = [size for size in grew if 2 * size.count >= counts[0]] or found
        steps += [Size(size.part, name, size.of, size.count, size.nbytes) for size in shown]
    return rows, steps


def _growing(name: str, table: ValueTable, keys: pa.Array, counts: Sequence[int]) -> Iterator[Size]:
    """The table with each of `counts` keys, and with as many as it holds before and after each growth."""
    whole = [min(count, len(keys)) for count in counts]

    def weighed(what: str) -> Size:
        return Size(TRAINING, TABLE.format(what.format(name)), "key", table.used, table.table_bytes)

    while table.used < whole[-1]:
        wanted = next(count for count in whole if count > table.used)
        if table.room == 0:
            yield weighed(FULL)
            _add(table, keys[table.used : table.used + 1])
            yield weighed(GROWN)
        else:
            _add(table, keys[table.used : min(wanted, table.used + table.room)])
        if table.used == wanted:
            yield weighed("{}")


def _add(table: ValueTable, keys: pa.Array) -> None:
    """Admit keys."""
    data, offsets = columns_of(keys)
    table.add(data, offsets.astype(np.int64), np.zeros(len(keys), np.uint16))


def _arena(keys: pa.Array, counts: Sequence[int]) -> list[Size]:
    """The keys' own bytes, their entries in the arena, and the memory that it has."""
    table, rows = ValueTable(), []
    for count in counts:
        _add(table, keys[table.used : count])
        used = table.used, table.arena_bytes - ENTRY_HEAD * table.used
        rows += [
            Size(TRAINING, "key bytes alone", "key", *used),
            Size(TRAINING, "arena, used", "key", table.used, table.arena_bytes),
            Size(TRAINING, "arena, with free space", "key", table.used, table.arena.nbytes),
        ]
    return rows


def _shuffled(artefact: Artefact) -> pa.Array:
    """The keys in random order, so that the first ones of any number are alike."""
    buffers = [None, pa.py_buffer(artefact.key_offsets.astype(np.int64)), pa.py_buffer(artefact.key_data)]
    keys = pa.Array.from_buffers(pa.large_binary(), artefact.rows, buffers)
    return keys.take(pa.array(np.random.default_rng(5).permutation(artefact.rows)))


# -- serving


def serving(counts: Sequence[int]) -> list[Size]:
    """A model of each number of keys, of one variant and of SEVERAL that have weights of their own."""
    return [size for count in counts for variants in (1, SEVERAL) for size in _served(count, variants)]


def _served(count: int, variants: int) -> Iterator[Size]:
    artefact = large_model.artefact(count, variants=variants)
    keys, a_dict = artefact.rows, _dict_bytes(artefact)
    model = Model.build(artefact, 1)
    base, values = model.base, model.base.values
    item_parts = base.item_parts.half.nbytes + base.item_parts.trie.nbytes
    suffix = "" if variants == 1 else f", {variants} variants"
    if variants == 1:
        labels = base.trie.labels.nbytes
        yield Size(SERVING, "trie: labels", "key", keys, labels, a_dict)
        yield Size(SERVING, "trie: nodes", "key", keys, base.trie.nbytes - labels, a_dict)
        yield Size(SERVING, "item parts", "key", keys, item_parts, a_dict)
    weighed = {
        "trie and weights": base.trie.nbytes + values.weights.nbytes,
        "whole model": model.nbytes,
        "whole model, 2nd buffer": model.nbytes + values.nbytes,
        "dict": a_dict,
    }
    for what, nbytes in weighed.items():
        yield Size(SERVING, what + suffix, "key", keys, nbytes, a_dict)


def _dict_bytes(artefact: Artefact) -> int:
    """A dict from keys to floats, or to tuples of floats."""
    of_key, first = dict.fromkeys(artefact.key_list()), artefact.weight[0].tolist()
    value = sys.getsizeof(first) if isinstance(first, float) else _tuple_bytes(tuple(first))
    return sys.getsizeof(of_key) + sum(map(sys.getsizeof, of_key)) + value * len(of_key)


def _tuple_bytes(values: tuple[float, ...]) -> int:
    return sys.getsizeof(values) + sum(map(sys.getsizeof, values))


# -- items


def items(counts: Sequence[int], keys: int) -> list[Size]:
    """A catalogue of each number of items, and what a version of one variant and of SEVERAL knows of them."""
    models = {
        variants: Model.build(large_model.artefact(keys, variants=variants), 1) for variants in (1, SEVERAL)
    }
    rows = []
    for count in counts:
        spec, plan = models[1].spec, FeaturePlan.of(models[1].spec)
        catalogue = Catalogue.build(plan, large_model.items(count), Form(spec, plan))
        weighed = {"whole catalogue": 0}
        for name, array in catalogue.pack()[1].items():
            what = _CATALOGUE_PARTS[name.partition(".")[0]]
            weighed[what] = weighed.get(what, 0) + array.nbytes
        weighed["whole catalogue"] = sum(weighed.values())
        for variants, model in models.items():
            table = ItemTable.of(model, catalogue.tokens, range(variants))
            name = "a version" if variants == 1 else f"a version, {variants} variants"
            weighed[name] = sum(array.nbytes for array in table.by_name.values())
        rows += [Size(CATALOGUE, what, "item", count, nbytes) for what, nbytes in weighed.items()]
    return rows


_CATALOGUE_PARTS = {
    "ids": "ids",
    "tokens": "tokens",
    "column": "attributes",
    "computed": "attributes",
    "fragments": "lines' fragments",
}
"""By the first part of an array's name."""


# -- events


def events(counts: Sequence[int], keys: int) -> list[Size]:
    """Impressions of each number of shown items, in the store's stream and, pending, in the trainer."""
    served = impressions.served_version(keys)
    return [
        size
        for shown in SHOWN
        for count in counts
        if count == min(counts) or count * shown <= MOST_ROWS
        for size in _logged(served, count, shown)
    ]


def _logged(served: ServedVersion, count: int, shown: int) -> Iterator[Size]:
    with (
        tempfile.TemporaryDirectory(prefix="ftrie-") as folder,
        Store.open(f"embedded:{folder}/store") as store,
    ):
        stream = store.impressions(served.name)
        stream.length = 2 * count
        text = 0
        made = _lines(served, count, shown)
        while batch := list(islice(made, SINK_BATCH)):
            stream.append(batch)
            text += sum(map(len, batch))
        in_store = store.client.memory_usage(stream.key, samples=0)
        segments, join = Segments(Path(folder) / "segments", 1 << 40), Join(served.model.spec.join)
        states = list(_pushed(served, stream, segments, join))
        if join.counts.pending != count:
            raise RuntimeError(f"{join.counts.pending} requests are pending, expected all {count}")
        weighed = {
            "line": text,
            "in the stream": in_store,
            "join state": join.nbytes,
            "join state, saved": sum(array.nbytes for array in join.state().values()),
            "rows' columns": segments.memory_used,
        }
        for what, nbytes in weighed.items():
            yield Size(EVENTS, f"{what}, {shown} shown", "request", count, int(nbytes))
        most = max((state for state in states if 2 * state.count > count), key=lambda state: state.each)
        yield replace(most, what=f"join state, just grown, {shown} shown")


def _lines(served: ServedVersion, count: int, shown: int) -> Iterator[bytes]:
    """Lines of the impression log, as the server writes them; each of a request of its own."""
    answers = [
        (query, served.ranker.rank(query))
        for query in islice(impressions.queries(served, shown, inline=True), min(count, impressions.CALLS))
    ]
    makes, now_s = Lines.of(served), time.time()
    for number in range(count):
        query, ranking = answers[number % len(answers)]
        yield makes.line(Shown(now_s, makes, query._replace(request_id=f"{number:016x}"), ranking))


def _pushed(served: ServedVersion, stream: EventStream, segments: Segments, join: Join) -> Iterator[Size]:
    """Read a stream as a trainer does, chunk by chunk; the state of the join after each."""
    source = StreamSource("impressions", stream, {}, lambda note: None, once=True)
    parser = Parser(Wanted.of(served.model.spec))
    while (chunk := source.read()) is not None:
        assert chunk.arrived_us is not None
        parsed = Parsed(chunk, parser.parse(chunk.data, chunk.starts, chunk.arrived_us), chunk.arrived_us, 0)
        join.push(merge([Part(0, parsed, 0, len(chunk))], [source], segments.add))
        yield Size(EVENTS, "join state", "request", join.counts.pending, join.nbytes)


# -- the picture


def picture(rows: Sequence[Size], steps: Sequence[Size]) -> str:
    """Four panels, one below another, against the number of keys, items or requests."""
    training = _panel(
        "Training: the table, without the keys' bytes", steps, {size.what: size.what for size in steps}
    )
    serving = _panel("Serving: of a dict of the same keys, and the goal", rows, _SERVED, of_dict=True)
    of_items = _panel("Items: the catalogue, and what a version adds", rows, _OF_ITEMS)
    of_events = _panel("Impressions in the store and in the trainer", rows, _OF_EVENTS)
    return stacked_svg([training, serving, of_items, of_events], COLUMN_WIDTH)


_SERVED = {
    f"{what}{suffix}": f"{what}{suffix}"
    for suffix in ("", f", {SEVERAL} variants")
    for what in ("trie and weights", "whole model")
}
_OF_ITEMS = {
    "whole catalogue": "catalogue",
    "lines' fragments": "fragments",
    "tokens": "tokens",
    "attributes": "attributes",
    "ids": "ids",
    "a version": "version",
    f"a version, {SEVERAL} variants": f"version, {SEVERAL} variants",
}
_OF_EVENTS = {
    f"{what}, {shown} shown": f"{name}, {shown} shown"
    for what, name in (("in the stream", "stream"), ("rows' columns", "rows"), ("join state", "join"))
    for shown in SHOWN
}


def _panel(title: str, sizes: Sequence[Size], names: Mapping[str, str], *, of_dict: bool = False) -> Spec:
    """A line for each structure in `names`: bytes of one, or a share of a dict's bytes."""
    shown = [size for size in sizes if size.what in names]
    points = [
        {"count": size.count, "y": size.share if of_dict else size.each, "series": names[size.what]}
        for size in shown
    ]
    of = shown[0].of
    y = "share of the dict's bytes" if of_dict else f"bytes a{'n' * (of[0] in 'aeiou')} {of}"
    chart = lines(
        points,
        x="count",
        y="y",
        x_title=f"{of}s",
        y_title=y,
        series=list(names.values()),
        x_axis="log",
        y_log=not of_dict,
        percent=of_dict,
        reference=GOAL if of_dict else None,
        zero=of_dict,
        points=len(points) < 60,
        height=150,
        description=f"{title}: {y}, by the number of {of}s",
    )
    return chart | {"title": title}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, nargs="+", default=KEYS, help="of the table, ascending")
    parser.add_argument("--served", type=int, nargs="+", default=KEYS[:2], help="keys of a served model")
    parser.add_argument("--large", action="store_true", help=f"serve {LARGE:,} keys too; takes 3.5 GB")
    parser.add_argument("--items", type=int, nargs="+", default=ITEMS)
    parser.add_argument("--pending", type=int, nargs="+", default=PENDING, help="impressions, all pending")
    parser.add_argument("--picture", type=Path, help="draw the result as SVG")
    parser.add_argument("--json", action="store_true", help="print JSON, and keep no results")
    options = parser.parse_args(words)
    if options.picture:
        require_charts()
    rows, steps = training(options.keys)
    rows += serving([*options.served, *([LARGE] if options.large else [])])
    rows += items(options.items, min(ITEM_KEYS, *options.served))
    rows += events(options.pending, min(ITEM_KEYS, *options.served))
    if options.picture:
        write_whole(options.picture, picture(rows, steps).encode())
    if options.json:
        print(json.dumps([{**asdict(row), "each": row.each, "share": row.share} for row in rows], indent=2))
    else:
        report("growth", "Bytes of each structure", COLUMNS, [row.row() for row in rows])


if __name__ == "__main__":
    main()
