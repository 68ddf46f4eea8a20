"""The stream of ids of changed items, and what else tells that items are not those of before.

A reader's position is the stream entry it read last. Entries go in order, the oldest first, so as long as that entry
is there, all that came after it is there too. docs/features.md says how systems of your own take part.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from model_store.records.lookups import Lookups, is_of_another_type, packed
from model_store.redis.redis_keys import ITEMS_CHANGES, ITEMS_EPOCH, ITEMS_GENERATION, is_id

IDS_AN_ENTRY = 100
ENTRIES_KEPT = 5_000
"""Beyond this, the oldest go: who has not read them reads all items again."""
ENTRIES_A_READ = 1_000
ID_FIELD = "id"


@dataclass(frozen=True)
class ItemsState:
    """What a server knows the items by.

    epoch: random, dies with the store's data; "" where the store may not be written to. reread: what a writer has put
    there to have all items read again. position: the last entry of the stream, None if there is none. junk: keys of
    another type than they should be.
    """

    epoch: str
    reread: str
    position: str | None
    junk: tuple[str, ...] = ()

    @property
    def generation(self) -> int:
        """A number of 63 bits that is another one for any other state."""
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
        """Order servers to read all items again and to keep none that the store lacks, by a redis-py pipeline."""
        pipe.set(ITEMS_GENERATION, secrets.token_hex(8))

    @staticmethod
    def add(pipe: Any, ids: Sequence[str]) -> None:
        """Add the notice that these items changed to a redis-py pipeline."""
        for start in range(0, len(ids), IDS_AN_ENTRY):
            some = [item.encode("utf-8", "surrogateescape") for item in ids[start : start + IDS_AN_ENTRY]]
            words = [word for item in some for word in (ID_FIELD, item)]
            pipe.execute_command("XADD", ITEMS_CHANGES, "MAXLEN", "~", ENTRIES_KEPT, "*", *words)

    def state(self) -> ItemsState:
        """What the items are now; gives the data an epoch if it has none. Raises StoreUnavailable, StoreError.

        A key of another type counts as one that is not there: without the stream changes are not followed, and the
        items are read again once there is one.
        """
        commands = (
            packed(b"GET", ITEMS_EPOCH),
            packed(b"GET", ITEMS_GENERATION),
            packed(b"XREVRANGE", ITEMS_CHANGES, b"+", b"-", b"COUNT", b"1"),
        )
        answers = self._lookups.ask(b"".join(commands), len(commands))
        epoch, reread, last = (
            None if is_of_another_type(each) else self._lookups.checked(each) for each in answers
        )
        keys = (ITEMS_EPOCH, ITEMS_GENERATION, ITEMS_CHANGES)
        junk = tuple(
            key.decode() for key, each in zip(keys, answers, strict=True) if is_of_another_type(each)
        )
        return ItemsState(epoch or self._new_epoch(), reread or "", last[0][0] if last else None, junk)

    def epoch(self) -> str:
        """The epoch of the store's data alone, as `state` has it. Raises StoreUnavailable, StoreError."""
        (answer,) = self._lookups.ask(packed(b"GET", ITEMS_EPOCH), 1)
        epoch = None if is_of_another_type(answer) else self._lookups.checked(answer)
        return epoch or self._new_epoch()

    def since(self, position: str) -> tuple[dict[str, None], str] | None:
        """The ids that changed after `position`, each once, and the position then; None if some may be missing.

        Raises StoreUnavailable, StoreError.
        """
        changed: dict[str, None] = {}
        while True:
            (answer,) = self._lookups.ask(
                packed(b"XRANGE", ITEMS_CHANGES, position.encode(), b"+", b"COUNT", b"%d" % ENTRIES_A_READ), 1
            )
            entries = None if is_of_another_type(answer) else self._lookups.checked(answer)
            if not entries or entries[0][0] != position:
                return None  # trimmed past us, or another stream
            for _, words in entries[1:]:
                changed |= dict.fromkeys(_ids(words))
            position = entries[-1][0]
            if len(entries) < ENTRIES_A_READ:
                return changed, position

    def _new_epoch(self) -> str:
        """Give the data an epoch, unless another server was first. "" if the store refuses: a replica, or an ACL."""
        asked = self._lookups.ask(
            packed(b"SET", ITEMS_EPOCH, secrets.token_hex(8).encode(), b"NX") + packed(b"GET", ITEMS_EPOCH), 2
        )
        return asked[1] if type(asked[1]) is str else ""


def _ids(words: Sequence[str]) -> list[str]:
    """The ids of one entry; what can be none is passed over, or one bad notice would end the following."""
    pairs = zip(words[::2], words[1::2], strict=True)
    return [item for name, item in pairs if name == ID_FIELD and is_id(item)]
