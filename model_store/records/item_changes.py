"""The stream of changed item ids, and the other keys by which a reader detects that items changed.

A reader's position is the stream entry it read last. The stream is trimmed from its oldest end, so while that entry
exists, all later ones exist too. docs/features.md describes how other systems write to it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from model_store.keys import ITEMS_CHANGES, ITEMS_EPOCH, ITEMS_GENERATION, is_id
from model_store.records.lookups import Lookups, is_of_another_type, packed

IDS_AN_ENTRY = 100
ENTRIES_KEPT = 5_000
"""The stream's length; a reader that missed trimmed entries reads all items again."""
ENTRIES_A_READ = 1_000
ID_FIELD = "id"


@dataclass(frozen=True)
class ItemsState:
    """The state of all items, as far as a server can detect changes.

    epoch: random, lost with the store's data; "" if the store is read-only. reread: a token that a writer changes to
    have all items read again. position: the last entry of the stream, or None. junk: keys of the wrong type.
    """

    epoch: str
    reread: str
    position: str | None
    junk: tuple[str, ...] = ()

    @property
    def generation(self) -> int:
        """A 63-bit hash of the state."""
        text = "\0".join((self.epoch, self.reread, self.position or ""))
        digest = blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1


class ItemChanges:
    """Reads and writes the stream. Thread safety: every method may be called from any thread."""

    def __init__(self, lookups: Lookups) -> None:
        self._lookups = lookups

    @staticmethod
    def identify(pipe: Any) -> None:
        """Give the data an epoch if it has none, by a redis-py pipeline."""
        pipe.set(ITEMS_EPOCH, secrets.token_hex(8), nx=True)

    @staticmethod
    def ask_for_all(pipe: Any) -> None:
        """Have servers read all items again and drop those that the store lacks, by a redis-py pipeline."""
        pipe.set(ITEMS_GENERATION, secrets.token_hex(8))

    @staticmethod
    def add(pipe: Any, ids: Sequence[str]) -> None:
        """Add stream entries for these changed items to a redis-py pipeline."""
        for start in range(0, len(ids), IDS_AN_ENTRY):
            some = [item.encode("utf-8", "surrogateescape") for item in ids[start : start + IDS_AN_ENTRY]]
            words = [word for item in some for word in (ID_FIELD, item)]
            pipe.execute_command("XADD", ITEMS_CHANGES, "MAXLEN", "~", ENTRIES_KEPT, "*", *words)

    def state(self) -> ItemsState:
        """The present state; gives the data an epoch if it has none. Raises StoreUnavailable, StoreError.

        A key of the wrong type counts as missing; once there is a stream again, all items are read again.
        """
        answers = self._lookups.ask_each(
            [
                (ITEMS_EPOCH, packed(b"GET", ITEMS_EPOCH)),
                (ITEMS_GENERATION, packed(b"GET", ITEMS_GENERATION)),
                (ITEMS_CHANGES, packed(b"XREVRANGE", ITEMS_CHANGES, b"+", b"-", b"COUNT", b"1")),
            ]
        )
        epoch, reread, last = (
            None if is_of_another_type(each) else self._lookups.checked(each) for each in answers
        )
        keys = (ITEMS_EPOCH, ITEMS_GENERATION, ITEMS_CHANGES)
        junk = tuple(
            key.decode() for key, each in zip(keys, answers, strict=True) if is_of_another_type(each)
        )
        return ItemsState(epoch or self._new_epoch(), reread or "", last[0][0] if last else None, junk)

    def epoch(self) -> str:
        """The epoch alone, same as in `state`. Raises StoreUnavailable, StoreError."""
        (answer,) = self._lookups.ask(ITEMS_EPOCH, [packed(b"GET", ITEMS_EPOCH)])
        epoch = None if is_of_another_type(answer) else self._lookups.checked(answer)
        return epoch or self._new_epoch()

    def since(self, position: str) -> tuple[dict[str, None], str] | None:
        """The ids changed after `position`, each once, and the new position; None if some may be missing.

        Raises StoreUnavailable, StoreError.
        """
        changed: dict[str, None] = {}
        while True:
            command = packed(
                b"XRANGE", ITEMS_CHANGES, position.encode(), b"+", b"COUNT", b"%d" % ENTRIES_A_READ
            )
            (answer,) = self._lookups.ask(ITEMS_CHANGES, [command])
            entries = None if is_of_another_type(answer) else self._lookups.checked(answer)
            if not entries or entries[0][0] != position:
                return None  # trimmed, or another stream
            for _, words in entries[1:]:
                changed |= dict.fromkeys(_ids(words))
            position = entries[-1][0]
            if len(entries) < ENTRIES_A_READ:
                return changed, position

    def _new_epoch(self) -> str:
        """Give the data an epoch, unless another server was first; "" if the store refuses (a replica, or an ACL)."""
        fresh = packed(b"SET", ITEMS_EPOCH, secrets.token_hex(8).encode(), b"NX")
        asked = self._lookups.ask(ITEMS_EPOCH, [fresh, packed(b"GET", ITEMS_EPOCH)])
        return asked[1] if type(asked[1]) is str else ""


def _ids(words: Sequence[str]) -> list[str]:
    """The valid ids of one entry; invalid ones are skipped, so that one bad entry does not stop readers."""
    pairs = zip(words[::2], words[1::2], strict=True)
    return [item for name, item in pairs if name == ID_FIELD and is_id(item)]
