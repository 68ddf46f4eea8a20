"""docs/protocol.md names every status and reason that a server answers with."""

from __future__ import annotations

import re
from pathlib import Path

from server.errors import ANSWER_OF, INTERNAL
from server.rpc import security
from server.rpc.security import Guard, Refused

PAGE = Path(__file__).resolve().parents[2] / "docs/protocol.md"
ROW = re.compile(r"^\| ([A-Z_]+) \| ([A-Z_]+(?:, [A-Z_]+)*) \|", re.MULTILINE)


def test_the_page_has_a_row_for_every_answer() -> None:
    rows = {(status, reason) for status, all_ in ROW.findall(PAGE.read_text()) for reason in all_.split(", ")}
    refusals = [each for each in vars(security).values() if isinstance(each, Refused)]
    refusals.append(Guard(None, ["rank"])._forbidden)  # type: ignore[arg-type]
    answers = {(each.status.name, each.reason) for each in (*ANSWER_OF.values(), INTERNAL)}
    answers |= {(each.code.name, each.reason) for each in refusals} | {("RESOURCE_EXHAUSTED", "OVERLOADED")}
    assert rows == answers
