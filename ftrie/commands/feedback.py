"""`ftrie feedback`: report clicks and conversions from the command line. The call itself is `ftrie.client.client`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Literal

import typer

from ftrie.commands.flags import (
    AddressOption,
    TimeoutOption,
    TlsCaOption,
    TlsCertOption,
    TlsKeyOption,
    TokenOption,
)
from ftrie.terminal import JsonOption, print_json, warn
from model_store.errors import counted

if TYPE_CHECKING:
    from ftrie.client.client import Client
    from ftrie.client.feedback import Feedback

MOST_NAMED = 20


def register(app: typer.Typer) -> None:
    """Add `ftrie feedback`."""
    app.command(
        "feedback", epilog="Example: ftrie feedback ads 5d41402abc4b2a76 shoes-7 --conversion --value 49.9"
    )(feedback)


def feedback(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model's name.")],
    request_id: Annotated[
        str, typer.Argument(metavar="[REQUEST_ID]", help="That of the answer which showed the items.")
    ] = "",
    items: Annotated[
        list[str] | None, typer.Argument(metavar="[ITEM]...", help="The ids of what was clicked.")
    ] = None,
    conversion: Annotated[bool, typer.Option("--conversion", help="A sale, not a click.")] = False,
    event_id: Annotated[
        str, typer.Option(metavar="ID", help="The same whenever this is reported again; for one item.")
    ] = "",
    value: Annotated[float, typer.Option(metavar="NUMBER", help="What a conversion was worth.")] = 0.0,
    file: Annotated[
        str,
        typer.Option(metavar="FILE", help="Report the lines of JSON in this file; - is the standard input."),
    ] = "",
    address: AddressOption = "127.0.0.1:50051",
    timeout: TimeoutOption = 5.0,
    tls_ca: TlsCaOption = "",
    tls_cert: TlsCertOption = "",
    tls_key: TlsKeyOption = "",
    token: TokenOption = "",
    as_json: JsonOption = False,
) -> None:
    """Tell a server what was clicked. What it accepts is in the store, and counts once however often it is reported."""
    from ftrie.client.access import Access
    from ftrie.client.client import Client
    from ftrie.client.feedback import Feedback

    told = Told()
    access = Access(tls_ca, tls_cert, tls_key, token)
    if file:
        if request_id:
            raise typer.BadParameter("give either REQUEST_ID and ITEM, or --file, not both")
        with Client(address, timeout, access) as client, _lines(file) as lines:
            told.report_lines(client, model, file, lines)
    else:
        if not (request_id and items):
            raise typer.BadParameter("give REQUEST_ID and at least one ITEM, or --file FILE")
        if event_id and len(items) > 1:
            raise typer.BadParameter(f"--event-id is that of one event; got {len(items)} items")
        kind: Literal["click", "conversion"] = "conversion" if conversion else "click"
        events = [Feedback(request_id, item, kind, event_id, value=value) for item in items]
        with Client(address, timeout, access) as client:
            told.report(client, model, events, [f"item {item}" for item in items])
    told.show(as_json)


class Told:
    """What became of all that was reported in one command."""

    def __init__(self) -> None:
        self.accepted = self.duplicates = self.rejected = 0

    def report(self, client: Client, model: str, events: Sequence[Feedback], names: Sequence[str]) -> None:
        """Report events, in as many calls as it takes; `names` tell where each came from."""
        from ftrie.client.feedback import MOST_EVENTS

        for start in range(0, len(events), MOST_EVENTS):
            answer = client.report(model, events[start : start + MOST_EVENTS])
            self.accepted += answer.accepted
            self.duplicates += answer.duplicates
            for each in answer.rejected:
                self.reject(names[start + each.index], each.reason)

    def report_lines(self, client: Client, model: str, name: str, lines: IO[bytes]) -> None:
        """Report a file, one event a line; empty lines are none."""
        from ftrie.client.feedback import MOST_EVENTS
        from model_store import bounded

        whole = enumerate(bounded.lines(lines, name), 1)
        numbered = ((f"{name}:{number}", line) for number, line in whole if line.strip())
        while some := list(islice(numbered, MOST_EVENTS)):
            read = [(place, event) for place, line in some if (event := self._read(place, line)) is not None]
            self.report(client, model, [event for _, event in read], [place for place, _ in read])

    def reject(self, name: str, reason: str) -> None:
        """Count one that cannot be taken, and say so."""
        self.rejected += 1
        if self.rejected <= MOST_NAMED:
            warn(f"{name}: not taken: {reason}")

    def show(self, as_json: bool) -> None:
        """Print it. Raises InputError if anything was not taken."""
        from model_store.errors import InputError

        if as_json:
            print_json({"accepted": self.accepted, "duplicates": self.duplicates, "rejected": self.rejected})
        else:
            print(f"{self.accepted:,} accepted, {self.duplicates:,} reported before")
        if self.rejected:
            taken = "; the others were" if self.accepted + self.duplicates else ""
            raise InputError(f"{counted(self.rejected, 'event')} not taken{taken}")

    def _read(self, name: str, line: bytes) -> Feedback | None:
        from ftrie.client.feedback import Feedback
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
