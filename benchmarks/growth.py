"""Bytes a key, an item, an impression and a pending request, and how they grow with their number and with variants.

    python -m benchmarks.growth [--large] [--picture docs/images/memory.svg] [--json]

Everything weighed was made by the product's own code. Arrays count with their `nbytes`, whether or not their pages have
been touched; a stream with what Valkey's MEMORY USAGE says of all its entries; a dict with `sys.getsizeof` of it, its
keys and its values. Bytes are the same in every run, so that one is enough: there are no medians.

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
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks import impressions, large_model
from benchmarks import rank_model as shop
from benchmarks.common import report
from ftrie.charts.kinds import Spec, lines, require_charts
from ftrie.charts.static import COLUMN_WIDTH, stacked_svg
from model_store.artefact.artefact import Artefact
from model_store.artefact.rows import columns_of
from model_store.features.features import FeaturePlan
from model_store.store import Store
from model_store.streams.event_streams import EventStream
from model_store.whole_file import write_whole
from server.impressions.lines import Lines, Shown
from server.impressions.log import SINK_BATCH
from server.model.catalogue import Catalogue
from server.model.event_form import Form
from server.model.items import ItemTable
from server.model.model import Model
from server.ranking.served import ServedVersion
from trainer.events.columns import Wanted
from trainer.events.merge import Merger
from trainer.events.redis import StreamSource
from trainer.join.join import Join
from trainer.join.rows import Segments
from trainer.learn.slots.layouts import layout_of
from trainer.learn.table import ValueTable
from trainer.learn.table_kernels import ENTRY_HEAD

COLUMNS = ("part", "what", "of", "count", "MB", "bytes each", "of a dict")
TRAINING, SERVING, CATALOGUE, EVENTS = "training", "serving", "items", "events"
KEYS, LARGE = (100_000, 1_000_000, 4_000_000), 10_000_000
MOST_OF_OWN = 1_000_000
"""Keys, where each variant has values of its own: 32 of them are 1.1 GB."""
ITEMS, ITEM_KEYS = (10_000, 100_000), 100_000
PENDING, SHOWN, CANDIDATES = (10_000, 100_000), (10, 50), 200
MOST_ROWS = 1_000_000
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
    """What a structure takes for `count` keys, items, impressions or requests. a_dict: the bytes of a dict of the same."""

    part: str
    what: str
    of: str
    count: int
    nbytes: int
    a_dict: int | None = None

    @property
    def each(self) -> float:
        return self.nbytes / self.count

    def row(self) -> tuple[Any, ...]:
        """Its row of COLUMNS."""
        share = None if self.a_dict is None else f"{100 * self.nbytes / self.a_dict:.1f} %"
        digits = 1 if self.each < 1000 else None
        return (
            *(self.part, self.what, self.of, self.count),
            *(round(self.nbytes / 1e6, 1), round(self.each, digits), share),
        )


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
        steps += [Size(size.part, name, size.of, size.count, size.nbytes) for size in grew or found]
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
    """Admit keys; the arena grows as it does while learning."""
    data, offsets = columns_of(keys)
    while table.arena.size < table.arena_bytes + data.size + ENTRY_HEAD * len(keys):
        table.widen_arena()
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
    parts = (
        base.trie.nbytes - base.trie.key_data.nbytes,
        base.item_parts.half.nbytes + base.item_parts.trie.nbytes,
    )
    suffix = "" if variants == 1 else f", {variants} variants"
    if variants == 1:
        yield Size(SERVING, "trie: key bytes", "key", keys, base.trie.key_data.nbytes, a_dict)
        yield Size(SERVING, "trie: nodes and offsets", "key", keys, parts[0], a_dict)
        yield Size(SERVING, "item parts", "key", keys, parts[1], a_dict)
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
    of_key = dict(zip(artefact.key_list(), artefact.weight.tolist(), strict=True))
    several = artefact.weight.ndim > 1
    if several:
        one = tuple(next(iter(of_key.values())))
        each = sys.getsizeof(one) + sum(map(sys.getsizeof, one))
    else:
        each = sys.getsizeof(1.0)
    return sys.getsizeof(of_key) + sum(map(sys.getsizeof, of_key)) + each * len(of_key)


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
    "attribute": "attributes",
    "fragments": "lines' fragments",
    "number": "attributes",
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
        _read(served, stream, segments, join)
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
            of = "impression" if what in ("line", "in the stream") else "pending request"
            yield Size(EVENTS, f"{what}, {shown} shown", of, count, int(nbytes))


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


def _read(served: ServedVersion, stream: EventStream, segments: Segments, join: Join) -> None:
    """Read a stream as a trainer does."""
    source = StreamSource("impressions", stream, {}, lambda note: None, once=True)
    merger = Merger([source], Wanted.of(served.model.spec), segments, once=True)
    while not merger.ended:
        merged = merger.poll(1.0)
        if merged is not None:
            join.push(merged)
    merger.close()


# -- the picture


def picture(rows: Sequence[Size], steps: Sequence[Size]) -> str:
    """Four panels, one below another: bytes of one key, item or request against their number."""
    parts = {part: [size for size in rows if size.part == part] for part in (SERVING, CATALOGUE, EVENTS)}
    panels = {
        ("Training: the table, without the keys' bytes", "keys", "bytes a key"): (steps, {}),
        ("Serving: model and dict", "keys", "bytes a key"): (parts[SERVING], _SERVED),
        ("Items: catalogue, and a version's numbers", "items", "bytes an item"): (
            parts[CATALOGUE],
            _OF_ITEMS,
        ),
        ("Impressions in the store and in the trainer", "requests", "bytes each"): (
            parts[EVENTS],
            _OF_EVENTS,
        ),
    }
    return stacked_svg([_panel(*titles, *found) for titles, found in panels.items()], COLUMN_WIDTH)


_SERVED = {
    "dict": "dict of floats",
    "whole model": "model",
    "trie and weights": "trie and weights",
    f"dict, {SEVERAL} variants": f"dict, {SEVERAL} variants",
    f"whole model, {SEVERAL} variants": f"model, {SEVERAL} variants",
}
_OF_ITEMS = {
    "whole catalogue": "catalogue",
    "ids": "ids",
    "tokens": "tokens",
    "attributes": "attributes",
    "lines' fragments": "fragments",
    "a version": "version",
    f"a version, {SEVERAL} variants": f"version, {SEVERAL} variants",
}
_OF_EVENTS = {
    f"{what}, {shown} shown": f"{name}, {shown} shown"
    for shown in SHOWN
    for what, name in (("in the stream", "stream"), ("join state", "join"), ("rows' columns", "rows"))
}


def _panel(title: str, x: str, y: str, sizes: Sequence[Size], names: Mapping[str, str]) -> Spec:
    names = names or {size.what: size.what for size in sizes}
    points = [
        {"count": size.count, "bytes": size.each, "series": names[size.what]}
        for size in sizes
        if size.what in names
    ]
    series = list(dict.fromkeys(names.values()))
    titles = {"x_title": x, "y_title": y, "description": f"{title}: {y} over {x}"}
    chart = lines(
        points, x="count", y="bytes", series=series, x_axis="log", y_log=True, points=bool(len(points) < 60),
        height=150, **titles,
    )  # fmt: skip
    return chart | {"title": title}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, nargs="+", default=KEYS, help="of the table, ascending")
    parser.add_argument("--served", type=int, nargs="+", default=KEYS[:2], help="keys of a served model")
    parser.add_argument("--large", action="store_true", help=f"serve {LARGE:,} keys too; takes 7 GB")
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
    table = [size.row() for size in rows]
    if options.json:
        print(json.dumps([dict(zip(COLUMNS, row, strict=True)) for row in table], indent=2))
    else:
        report("growth", "Bytes of each structure; exact, so one run", COLUMNS, table)


if __name__ == "__main__":
    main()
