"""What a kind of source is: how its names look, and how they are opened. Each has an entry in its own file.

`trainer.sources.open_sources` lists the kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from model_store.spec.spec import ModelSpec
from model_store.store import Store
from trainer.events.events import Source, SourcePosition


@dataclass(frozen=True)
class Opener:
    """A source before it is opened: its name, and how to open it at a position.

    may_be_new: it may be there without a position while the others have one, as a partition that was added.
    """

    name: str
    open: Callable[[SourcePosition], Source]
    may_be_new: bool = False


@dataclass(frozen=True)
class Opening:
    """What sources are opened for.

    store: the one that the model is published to, if there is one. on_note: receives remarks. once: read what is there
    now, then end.
    """

    spec: ModelSpec
    store: Store | None
    on_note: Callable[[str], None]
    once: bool


@dataclass(frozen=True)
class SourceKind:
    """A kind of source. forms: of its names, for messages; matches: whether a name is of this kind, and of none before.

    openers: the sources that a name stands for; InputError for a name that cannot be understood. known_as: a name as
    checkpoints keep it: without what may change from run to run, such as hosts and passwords.
    """

    forms: str
    matches: Callable[[str], bool]
    openers: Callable[[str, Opening], Iterable[Opener]]
    known_as: Callable[[str], str] = lambda name: name
