"""The values of history fields, recomputed for each request from all raw events before it. Slow and plain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from model_store.spec.sections import FieldSpec, seconds_of
from model_store.spec.spec import ModelSpec

MOST = 100
Happened = tuple[int, str, Mapping[str, Any]]
"""A time in microseconds, an item's id and its features."""


def plain(value: Any) -> Any:
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return {text.decode(): x for text, x in value}
    return [text.decode() for text in value] if isinstance(value, list) else value


def micros(event: Mapping[str, Any]) -> int:
    return round(event["ts"] * 1_000_000)


def what_happened(
    spec: ModelSpec, events: Sequence[Mapping[str, Any]], cookie: str, kind: str
) -> list[Happened]:
    """All that happened to a user, in the order in which it became known: each impression and click once, in time."""
    found, shown = list[Happened](), dict[str, Mapping[str, Any]]()
    early, done = list[Mapping[str, Any]](), set[tuple[str, str, str]]()
    watermark = -(10**30)

    def click(event: Mapping[str, Any], request: Mapping[str, Any]) -> None:
        what = "converted" if event.get("event") == "conversion" else "clicked"
        item = next((each for each in request["items"] if each["id"] == event["item"]), None)
        if item is None or micros(event) > micros(request) + spec.join.window_us:
            return
        if (event["request_id"], event["item"], what) not in done:
            done.add((event["request_id"], event["item"], what))
            if what == kind and request["cookie"] == cookie:
                found.append((micros(event), item["id"], item["features"]))

    for event in events:
        if event.get("event") == "view":
            if kind == "viewed" and event["cookie"] == cookie:
                found.append((micros(event), event["items"][0]["id"], event["items"][0]["features"]))
            continue
        watermark = max(watermark, micros(event) - spec.join.lateness_us)
        since = watermark - spec.join.window_us
        known = shown.get(event["request_id"])
        if known is not None and micros(known) < since:
            known = None
        if "items" in event:
            if known is not None:
                continue
            if event["request_id"] in shown:  # long over: its clicks may come again
                done = {each for each in done if each[0] != event["request_id"]}
            shown[event["request_id"]] = event
            if kind == "seen" and event["cookie"] == cookie:
                found += [(micros(event), item["id"], item["features"]) for item in event["items"]]
            for each in early:
                if each["request_id"] == event["request_id"] and micros(each) >= since:
                    click(each, event)
            early = [each for each in early if each["request_id"] != event["request_id"]]
        elif known is not None:
            click(event, known)
        elif micros(event) >= since:
            early.append(event)
    return found


def value_of(
    field: FieldSpec, happened: Iterable[Happened], now_us: int, candidate: Mapping[str, Any]
) -> Any:
    """The field's value for a request at `now_us`: a list, a number, or None."""
    latest = sorted(happened, key=lambda each: each[0])[-MOST:]
    within_us = seconds_of(field.within) * 1_000_000 if field.within else 10**30
    some = [each for each in latest if now_us - within_us <= each[0] < now_us]

    def text(item_id: str, features: Mapping[str, Any]) -> str:
        return str(features.get(field.of) or "") if field.of else item_id

    if field.side == "item":
        mine = text(candidate["id"], candidate["features"])
        if not mine:
            return None
        some = [each for each in some if text(each[1], each[2]) == mine]
    if field.measure == "count":
        return float(len(some))
    if field.measure == "age":
        return (now_us - some[-1][0]) / 1e6 if some else None
    if field.measure == "counts":
        weights = dict[str, float]()
        for time_us, *item in some:
            weight = (
                0.5 ** ((now_us - time_us) / 1e6 / seconds_of(field.half_life)) if field.half_life else 1.0
            )
            weights[text(*item)] = weights.get(text(*item), 0.0) + weight
        return {value: weight for value, weight in weights.items() if value} or []
    values = dict.fromkeys(text(*each[1:]) for each in reversed(some))
    return [value for value in values if value][: field.last or 10]


def expected(spec: ModelSpec, events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each row of each impression, in order: the values of its history fields; None for a repeated impression."""
    rows, shown, watermark = list[dict[str, Any]](), dict[str, int](), -(10**30)
    fields = {name: field for name, field in spec.fields.items() if field.history is not None}
    for number, event in enumerate(events):
        if event.get("event") == "view":
            rows.append(dict.fromkeys(fields))
            continue
        watermark = max(watermark, micros(event) - spec.join.lateness_us)
        before = shown.get(event["request_id"], -(10**40))
        is_repeated = "items" in event and before >= watermark - spec.join.window_us
        if "items" in event and not is_repeated:
            shown[event["request_id"]] = micros(event)
        for item in event.get("items", ()):
            if is_repeated:
                rows.append(dict.fromkeys(fields))
                continue
            values = dict[str, Any]()
            for name, field in fields.items():
                happened = what_happened(spec, events[:number], event["cookie"], str(field.history))
                values[name] = value_of(field, happened, micros(event), item) if event["cookie"] else None
            rows.append(values)
    return rows
