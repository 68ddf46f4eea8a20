"""The file of requests to replay, and when each is due. Nothing here calls a server.

One JSON object a line: {"at": seconds, "request": a ctr.v1.RankRequest as JSON}, as `ftrie serve --record` writes them,
or the request alone. Each is sent with `no_log`: no user sees the answers, so the server must not log impressions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.json_format import ParseDict, ParseError

from ctr.v1.ranking_pb2 import RankRequest
from model_store.bounded import json_value
from model_store.errors import InputError


@dataclass(frozen=True)
class Requests:
    """Messages as they go over the wire, and the second at which each was recorded, from 0 on."""

    messages: list[bytes]
    at: list[float]
    timed: bool
    """Whether every line has its time."""


def read(path: Path) -> Requests:
    """Read a file of requests. Raises InputError with the line that is none, or where there is none at all."""
    lines = enumerate(path.read_bytes().splitlines(), 1)
    read = [_parsed(path, number, line) for number, line in lines if line.strip()]
    if not read:
        raise InputError(f"{path}: no requests; expected one JSON object a line, as of ftrie serve --record")
    times = [at for at, _ in read if at is not None]
    if len(times) < len(read):
        return Requests([message for _, message in read], [0.0] * len(read), timed=False)
    first = min(times)
    in_order = sorted(((at or 0.0) - first, number) for number, (at, _) in enumerate(read))
    return Requests([read[number][1] for _, number in in_order], [at for at, _ in in_order], timed=True)


def due(requests: Requests, rate: float | None, pace: float | None) -> Iterator[tuple[float, bytes]]:
    """(second, message) without end, the requests over and over.

    rate: calls a second, evenly. pace: as recorded, so many times as fast. Neither: all are due at once.
    """
    messages = itertools.cycle(requests.messages)
    if rate is not None:
        return ((number / rate, message) for number, message in enumerate(messages))
    if pace is None:
        return ((0.0, message) for message in messages)
    span = requests.at[-1] + requests.at[-1] / max(
        len(requests.at) - 1, 1
    )  # and the gap before it begins again
    rounds = ((turn * span + at) / pace for turn in itertools.count() for at in requests.at)
    return zip(rounds, messages, strict=False)


def _parsed(path: Path, number: int, line: bytes) -> tuple[float | None, bytes]:
    try:
        document = json_value(line)
        request = document.get("request", document)
        at = document.get("at") if request is not document else None
        message = ParseDict(request, RankRequest())
        message.no_log = True
        return None if at is None else float(at), message.SerializeToString()
    except (ValueError, TypeError, AttributeError, ParseError, RecursionError) as error:
        raise InputError(f"{path}:{number}: no ctr.v1.RankRequest as JSON: {error}") from None
