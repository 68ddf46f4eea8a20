"""The audit of one model: a stream of operators' changes, with who, with which tool, and the value before.

The methods that change a model (`ModelVersions.activate`, `StoredExperiment.change`, …) write the entry once the
change is made. Out: the latest changes, newest first. The record helps operators; it proves nothing, since a user who
may change a model may also delete its record.
"""

from __future__ import annotations

import getpass
import os
import socket
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from model_store.bounded import json_object
from model_store.errors import StoreError, UnreadableValue
from model_store.keys import AUDIT_TEXTS, ModelKeys, Report, audit_entry, silent
from model_store.redis.connection import StoreConnection

KEPT = 10_000
"""Approximate length of the stream."""
TEXT_CHARACTERS = 4_096
"""How much of each text is kept."""


@dataclass(frozen=True)
class By:
    """Whose order a change is. tool: such as `ftrie store activate`; who: by default the `operator`."""

    tool: str
    who: str = ""


PYTHON = By("python")


@dataclass(frozen=True)
class AuditEntry:
    """One change. at: UTC, by the store's clock, to the millisecond; id: the entry's id in the stream.

    who: `user@host`, or the name of a page's user; tool: such as `ftrie store activate`; action: such as
    `activate`. before, after: for versions their numbers, empty for none; for experiments JSON of what differs.
    """

    id: str
    at: datetime
    who: str
    tool: str
    action: str
    before: str
    after: str

    @property
    def words(self) -> str:
        """The change as a sentence without its subject, such as `activated version 7 (before: 5)`."""
        if self.action in _TOLD:
            after, before = self.after or "none", self.before or "none"
            return f"{_TOLD[self.action].format(after=after)} (before: {before})"
        was, is_now = (_parts(text) for text in (self.before, self.after))
        changes = [
            f"{name and f'{name}: '}{_told(was.get(name))} → {_told(is_now.get(name))}"
            for name in dict.fromkeys((*was, *is_now))
        ]
        named = self.action in was or self.action in is_now
        return "; ".join(changes if named else [self.action, *changes])


_TOLD = {
    "activate": "activated version {after}",
    "rollback": "went back to version {after}",
    "resume": "let the trainer activate versions again",
}


def _parts(text: str) -> dict[str, Any]:
    """The parts of an experiment; the text itself if it was cut, or is not JSON."""
    try:
        return json_object(text) if text else {}
    except ValueError:
        return {"": text}


def _told(value: Any) -> str:
    if isinstance(value, dict) and value:
        return ", ".join(f"{name} {share:.4g}" for name, share in value.items())
    return ", ".join(value) if isinstance(value, list) and value else str(value or "none")


class Audit:
    """The changes of one model."""

    def __init__(self, connection: StoreConnection, keys: ModelKeys, on_warning: Report = silent) -> None:
        """on_warning is called with a message for a change that could not be written, and for an unreadable entry."""
        self._store = connection
        self._key = keys.audit
        self._client = connection.at(keys.audit)
        self._add = connection.script("audit")
        self._warn = on_warning

    def write(self, by: By, action: str, before: str | int | None, after: str | int | None) -> bool:
        """Write a change that was made. False, with a warning, if that failed.

        Raises no StoreError: the change itself is done, and must not seem to have failed.
        """
        versions = ("" if each is None else str(each) for each in (before, after))
        texts = (by.who or operator(), by.tool, action, *versions)
        fields = [
            word
            # Cut here, so that a long list of shares does not fill the store. A lone surrogate must not cost the
            # entry.
            for name, text in zip(AUDIT_TEXTS, texts, strict=True)
            for word in (name, text[:TEXT_CHARACTERS].encode("utf-8", "replace"))
        ]
        try:
            self._add([self._key], [KEPT, *fields])
        except StoreError as error:
            self._warn(f"the change is made, but not in the audit ({by.tool}: {action}): {error}")
            return False
        return True

    def read(self, count: int = 100) -> list[AuditEntry]:
        """The latest `count` changes, newest first. An entry that cannot be read is skipped and reported.

        Raises StoreUnavailable, or UnreadableValue if the key is not a stream.
        """
        with self._store.answers(self._key):
            found = self._client.xrevrange(self._key, count=count)
        entries = []
        for entry, fields in found:
            try:
                at, texts = audit_entry(self._key, entry, fields)
            except UnreadableValue as error:
                self._warn(f"{error}; it is skipped")
            else:
                entries.append(AuditEntry(entry.decode(), at, *texts))
        return entries


def operator() -> str:
    """Who runs this process: `user@host`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user id that has no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
