"""`ftrie feedback`: reports clicks, conversions and what was seen from the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from ftrie.command import command
from ftrie.commands.flags import ServerFlags
from ftrie.terminal import JsonOption, print_json, warn
from model_store.errors import counted
from model_store.flags import Argument, Flag

if TYPE_CHECKING:
    from ftrie.api.client import Client
    from ftrie.api.feedback import Feedback, Happening

MOST_NAMED = 20


@command("Serve", 4, "Example: ftrie feedback ads 5d41402abc4b2a76 shoes-7 --conversion --value 49.9")
def feedback(
    model: Annotated[str, Argument("The model's name.", "MODEL")],
    server: ServerFlags,
    request_id: Annotated[str, Argument("Of the answer that contained the items.", "[REQUEST_ID]")] = "",
    items: Annotated[list[str] | None, Argument("The ids of the clicked items.", "[ITEM]...")] = None,
    conversion: Annotated[bool, Flag("Report conversions instead of clicks.")] = False,
    seen: Annotated[bool, Flag("Report that the items were seen, instead of clicks.")] = False,
    seen_to: Annotated[
        int | None, Flag("Report that the list was seen up to this position.", "N", min=1)
    ] = None,
    activated: Annotated[bool, Flag("Report that the list of a deferred request is shown.")] = False,
    event_id: Annotated[str, Flag("Identifies the event across repeated reports; for one item.", "ID")] = "",
    value: Annotated[float, Flag("The value of a conversion.", "NUMBER")] = 0.0,
    file: Annotated[
        str, Flag("Report the JSON lines of this file; - is standard input.", "FILE", file="reads")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Report clicks to a server. Accepted events are in the store, and count once however often they are reported."""
    from ftrie.api.client import Client
    from ftrie.api.feedback import Feedback

    outcome = Reporting()
    if file:
        if request_id:
            raise typer.BadParameter("give either REQUEST_ID and ITEM, or --file, not both")
        with Client(server.address, server.timeout, server.access()) as client, _lines(file) as lines:
            outcome.report_lines(client, model, file, lines)
    else:
        kinds: dict[Happening, bool] = {
            "conversion": conversion,
            "seen": seen or seen_to is not None,
            "activated": activated,
        }
        kind: Happening = next((name for name, is_given in kinds.items() if is_given), "click")
        of_list = activated or seen_to is not None
        if sum((conversion, seen, seen_to is not None, activated)) > 1:
            raise typer.BadParameter("give one of --conversion, --seen, --seen-to and --activated")
        if not request_id or bool(items) == of_list:
            whole = "REQUEST_ID without ITEM" if of_list else "REQUEST_ID and at least one ITEM"
            raise typer.BadParameter(f"give {whole}, or --file FILE")
        items = items or [""]
        if event_id and len(items) > 1:
            raise typer.BadParameter(f"--event-id identifies one event; got {len(items)} items")
        events = [
            Feedback(request_id, item, kind, event_id, value=value, position=seen_to or 0) for item in items
        ]
        with Client(server.address, server.timeout, server.access()) as client:
            names = [f"item {item}" if item else f"request {request_id}" for item in items]
            outcome.report(client, model, events, names)
    outcome.show(as_json)


class Reporting:
    """The outcome of everything that one command reports."""

    def __init__(self) -> None:
        self.accepted = self.duplicates = self.rejected = 0

    def report(self, client: Client, model: str, events: Sequence[Feedback], names: Sequence[str]) -> None:
        """Report events, in as many calls as needed; `names` say where each came from."""
        from ftrie.api.feedback import MOST_EVENTS

        # The service takes at most this many in one call.
        for start in range(0, len(events), MOST_EVENTS):
            answer = client.feedback(model, events[start : start + MOST_EVENTS])
            self.accepted += answer.accepted
            self.duplicates += answer.duplicates
            for each in answer.rejected:
                self.reject(names[start + each.index], each.reason)

    def report_lines(self, client: Client, model: str, name: str, lines: IO[bytes]) -> None:
        """Report a file of one event a line. Empty lines are skipped."""
        from ftrie.api.feedback import MOST_EVENTS
        from model_store import bounded

        # Bounded: a file without line ends would otherwise fill the memory.
        whole = enumerate(bounded.lines(lines, name), 1)
        numbered = ((f"{name}:{number}", line) for number, line in whole if line.strip())
        while some := list(islice(numbered, MOST_EVENTS)):
            read = [(place, event) for place, line in some if (event := self._read(place, line)) is not None]
            self.report(client, model, [event for _, event in read], [place for place, _ in read])

    def reject(self, name: str, reason: str) -> None:
        """Count an event that was not stored, and print why."""
        self.rejected += 1
        # The others are counted only: a file of another kind would have a message a line.
        if self.rejected <= MOST_NAMED:
            warn(f"{name}: rejected: {reason}")

    def show(self, as_json: bool) -> None:
        """Print the outcome. Raises InputError if an event was rejected."""
        from model_store.errors import InputError

        if as_json:
            print_json({"accepted": self.accepted, "duplicates": self.duplicates, "rejected": self.rejected})
        else:
            print(f"{self.accepted:,} accepted, {self.duplicates:,} reported before")
        if self.rejected:
            others = "; the others are stored" if self.accepted + self.duplicates else ""
            raise InputError(f"{counted(self.rejected, 'event')} rejected{others}")

    def _read(self, name: str, line: bytes) -> Feedback | None:
        from ftrie.api.feedback import Feedback
        from model_store.errors import FieldValueError

        try:
            return Feedback.from_json(line)
        except FieldValueError as error:
            self.reject(name, str(error))
            return None


@contextmanager
def _lines(name: str) -> Iterator[IO[bytes]]:
    """The file, or the standard input. Raises InputError if it cannot be read."""
    from model_store.errors import InputError

    if name == "-":
        yield sys.stdin.buffer
        return
    try:
        with Path(name).open("rb") as opened:
            yield opened
    except OSError as error:
        raise InputError(f"cannot read {name}: {error.strerror}") from error
