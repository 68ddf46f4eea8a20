"""Lists and their clicks as two event files, simulated and real: joined as they come, and at once with plain dicts."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from model_store.spec.spec import parse_spec
from trainer.events.columns import Wanted
from trainer.events.merge import Merger
from trainer.events.open_sources import open_sources
from trainer.join.join import Join, Joined
from trainer.join.rows import Segments

WINDOW_S = 600


SPEC = parse_spec("""
[model]
name = "hotels"
[input]
label = "click"
[fields]
request = { column = "request_id" }
hotel = { column = "id", side = "item" }
position = {}
price = { side = "item", kind = "number" }
city = {}
[join]
window = "10m"
""")
NAMES = ["request_id", "id", "position", "price", "city"]
Event = dict[str, Any]
Example = tuple[str, str, str, float, str, int]
"""Request, hotel, position, price, city, label."""


def read(path: Path) -> list[Event]:
    content = path.read_bytes()
    lines = (gzip.decompress(content) if path.suffix == ".gz" else content).splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture
def logs(event_folder: Path) -> list[Path]:
    return [next(event_folder.glob(f"{kind}.jsonl*")) for kind in ("impressions", "clicks")]


def written(path: Path, events: list[Event]) -> Path:
    path.write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    return path


def joined_at_once(impressions: list[Event], clicks: list[Event]) -> Counter[Example]:
    """Each item shown once: a positive if its request has a click for it within the window."""
    clicked_s: dict[tuple[str, str], int] = {}
    for click in clicks:
        key = click["request_id"], click["item"]
        clicked_s[key] = min(clicked_s.get(key, click["ts"]), click["ts"])
    return Counter(
        (
            *(shown["request_id"], item["id"], str(item["position"])),
            *(float(item["features"]["price"]), shown["context"]["city"]),
            int(clicked_s.get((shown["request_id"], item["id"]), float("inf")) <= shown["ts"] + WINDOW_S),
        )
        for shown in impressions
        for item in shown["items"]
    )


class Replay:
    """The two files through merger, join and segments, as the trainer drives them."""

    def __init__(self, folder: Path, logs: list[Path], state: Any = None) -> None:
        arrays, places = state or (None, ())
        names = [f"{kind}={log}" for kind, log in zip(("impressions", "clicks"), logs, strict=True)]
        sources = open_sources(names, SPEC, None, places, once=True)
        self.segments = Segments(folder, 1 << 20)
        self.join = Join(SPEC.join)
        self.merger = Merger(sources, Wanted.of(SPEC), self.segments, positions=places, once=True)
        if arrays is not None:
            self.join.restore(arrays)
            self.segments.restore(self.join.segments())

    def step(self) -> list[Example] | None:
        """What the next events bring; None at the end."""
        while (merged := self.merger.poll(1.0)) is None:
            if self.merger.ended:
                return None
        examples = self.examples(self.join.push(merged))
        self.segments.relieve(self.join.segments)
        return examples

    def finish(self) -> list[Example]:
        return self.examples(self.join.finish())

    def examples(self, joined: Joined) -> list[Example]:
        found: list[Example] = []
        for first, columns in self.segments.gather(joined.segment, joined.row, NAMES):
            values = [map(plain, columns[name].to_pylist()) for name in NAMES]
            labels = joined.label[first : first + len(columns["id"])].tolist()
            found += zip(*values, labels, strict=True)
        return found

    def saved(self) -> Any:
        """What a checkpoint would hold."""
        self.segments.keep(self.join.segments())
        self.segments.flush()
        return {name: array.copy() for name, array in self.join.state().items()}, self.merger.positions()


def plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def all_of(replay: Replay) -> list[Example]:
    examples = list[Example]()
    while (more := replay.step()) is not None:
        examples += more
    return examples + replay.finish()


def test_delayed_clicks_count_within_the_window_and_a_crash_repeats_nothing(logs, tmp_path):
    impressions, clicks = read(logs[0]), delayed(read(logs[1]))
    logs = [logs[0], written(tmp_path / "clicks.jsonl", clicks)]
    expected = joined_at_once(impressions, clicks)
    undisturbed = Replay(tmp_path / "undisturbed", logs)
    in_order = all_of(undisturbed)
    assert Counter(in_order) == expected
    counts = undisturbed.join.counts
    in_time, shown = sum(example[-1] for example in in_order), sum(len(each["items"]) for each in impressions)
    assert counts.impressions == counts.closed == len(impressions)
    assert (counts.clicks, counts.joined, counts.positives) == (len(clicks), in_time, in_time)
    assert (counts.rows, counts.negatives) == (shown, shown - in_time)
    assert 0 < counts.late == len(impressions) - in_time
    assert counts.duplicate_feedback == len(clicks) - len(impressions)

    replay, examples = Replay(tmp_path / "killed", logs), list[Example]()
    while (more := replay.step()) is not None:
        examples += more
        state = replay.saved()
        replay.step()  # is lost
        replay.merger.close()
        replay = Replay(tmp_path / "killed", logs, state)
    assert examples + replay.finish() == in_order
    assert replay.join.counts == counts


def delayed(clicks: list[Event]) -> list[Event]:
    """Each click some time after its impression, up to a quarter of an hour; every tenth comes twice."""
    later = [{**click, "ts": click["ts"] + 7 * number % 900} for number, click in enumerate(clicks)]
    return sorted(later + later[::10], key=lambda click: click["ts"])
