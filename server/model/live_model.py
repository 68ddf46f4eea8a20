"""LiveModel: one model in a supervisor's hands. Snapshots, deltas and items go in, the parts to serve come out.

It decides which parts a change replaces and when a buffer may be written. Nothing here fetches, waits or answers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import reduce

from model_store.artefact.artefact import Artefact, Delta
from model_store.errors import ArtefactError
from server.model.catalogue import Catalogue
from server.model.shared_memory import Parts
from server.model.state import State

FEWEST_FRESH = 50_000
FRESH_SHARE = 0.05
"""A rebuild is due when this share of the base's keys, and at least FEWEST_FRESH, are fresh or were taken out."""


class LiveModel:
    """The present version of a model, and what it takes to come to the next one. For one thread.

    A method that raises has changed nothing. All that is handed out stays as it is, with one exception: the block
    `values` of parts is written again once `released` has been called for its uid.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._parts: Parts | None = None
        self._state: State | None = None
        self._rebuilding: Rebuilding | None = None
        self._patience = 1

    @property
    def parts(self) -> Parts:
        """The latest parts. Raises ArtefactError if there are none yet."""
        if self._parts is None:
            raise ArtefactError(
                f"model {self._name!r}: no version has been loaded yet; load a snapshot first"
            )
        return self._parts

    @property
    def wants_rebuild(self) -> bool:
        """Whether so many keys are fresh, or gone from the base, that `rebuild` is worth its while."""
        state = self._state
        if state is None or self._rebuilding is not None:
            return False
        enough = max(FEWEST_FRESH, FRESH_SHARE * len(state.base.trie))
        return max(len(state.fresh), state.gone) > self._patience * enough

    def load(
        self,
        version: int,
        sha256: str,
        artefact: Artefact,
        catalogue: Catalogue,
        items_generation: int = 0,
        *,
        allow_equal: bool = True,
    ) -> Parts:
        """A snapshot. O(its bytes + items). Raises ArtefactError, OSError; AllEqual as `State.changed`."""
        state = State.of(artefact, catalogue, self._state)
        if self._state is not None and not allow_equal:
            self._state.apart.check(state.apart)
        self._forget_rebuild()
        return self._serve(state, version, sha256, items_generation)

    def apply(self, version: int, sha256: str, delta: Delta, *, allow_equal: bool = True) -> Parts:
        """A delta. O(its rows + the keys that are fresh + items).

        Raises ArtefactError if it is of another parent, or does not make the content that it should; OSError; AllEqual
        as `State.changed`.
        """
        parts, state = self.parts, self._present()
        if delta.parent != parts.version or delta.parent_content != parts.content:
            raise ArtefactError(
                f"version {version} changes version {delta.parent} (content {delta.parent_content}), but "
                f"{parts.version} ({parts.content}) is loaded; fetch the versions between, or a snapshot"
            )
        changed = state.changed(delta, allow_equal=allow_equal)
        if self._rebuilding is not None:
            self._rebuilding.follow(delta)
        return self._serve(changed, version, sha256, parts.items_generation)

    @property
    def catalogue(self) -> Catalogue | None:
        """The items of the latest parts; None if there are none yet."""
        return None if self._state is None else self._state.items.catalogue

    def with_catalogue(
        self, catalogue: Catalogue, items_generation: int = 0, *, allow_equal: bool = True
    ) -> Parts:
        """The same version over other items. O(items). Raises AllEqual as `State.changed`."""
        parts, before = self.parts, self._present()
        state = before.with_catalogue(catalogue)
        if not allow_equal:
            before.apart.check(state.apart)
        return self._serve(state, parts.version, parts.sha256, items_generation)

    def rebuild(self) -> Parts:
        """The same version, its fresh keys in the base and those that were taken out gone. O(bytes + items)."""
        self.begin_rebuild()()
        parts = self.finish_rebuild()
        assert parts is not None
        return parts

    def begin_rebuild(self) -> Callable[[], None]:
        """What builds a new base; to be run in another thread while versions go on. `finish_rebuild` takes it over."""
        self.parts  # noqa: B018 (raises if there are none)
        self._rebuilding = Rebuilding(self._present())
        return self._rebuilding.run

    def finish_rebuild(self) -> Parts | None:
        """The present version on the new base; None while none has been built. O(rows changed since + items).

        Raises MemoryError or OSError where there was no memory: then the next rebuild is due at twice as many keys.
        """
        if self._rebuilding is None or not self._rebuilding.done:
            return None
        rebuilding, self._rebuilding = self._rebuilding, None
        self._patience *= 2
        state = rebuilding.finished(self._present())
        self._patience = 1
        parts = self.parts
        return self._serve(state, parts.version, parts.sha256, parts.items_generation)

    def restore(self, parts: Parts) -> Parts:
        """Go on from parts that another process made, as `Mapped.load` read them. O(items). Raises ArtefactError."""
        if parts.name != self._name:
            raise ArtefactError(f"these are parts of model {parts.name!r}, expected {self._name!r}")
        self._parts, self._state = parts, State.of_parts(parts)
        self._forget_rebuild()
        return parts

    def released(self, uid: str) -> None:
        """Nobody reads the `values` block of this uid any more."""
        if self._state is not None:
            self._state.buffers.released(uid)

    def _forget_rebuild(self) -> None:
        """Another base has come: one that is being built is of no use."""
        self._rebuilding, self._patience = None, 1

    def _present(self) -> State:
        assert self._state is not None
        return self._state

    def _serve(self, state: State, version: int, sha256: str, items_generation: int) -> Parts:
        self._state = state
        self._parts = Parts(
            name=self._name,
            version=version,
            sha256=sha256,
            content=str(state.content),
            items_generation=items_generation,
            base=state.base_part,
            values=state.buffers.served,
            fresh=state.fresh_part,
            items=state.items_part,
            catalogue=state.items.part,
        )
        return self._parts


# --- A rebuild beside the deltas: the new base is built in another thread while versions go on, then brought
# up to them ---
#
# What it reads is held as it was when it began: base and fresh layer are immutable, and its buffer of values
# is not given to be written before the end.


class Rebuilding:
    """One rebuild. `run` in any thread, once; everything else in the thread that owns the states."""

    def __init__(self, state: State) -> None:
        self._state, self._values = state, state.buffers.values
        self._uid = state.buffers.hold()
        self._since: list[Delta] = []
        self._made: State | None = None
        self._error: BaseException | None = None
        self._done = threading.Event()

    def run(self) -> None:
        """Build. O(bytes + items). Never raises: `finished` does."""
        try:
            self._made = self._state.rebuilt(self._values)
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()

    @property
    def done(self) -> bool:
        """Whether `run` has ended."""
        return self._done.is_set()

    def follow(self, delta: Delta) -> None:
        """A delta was applied meanwhile."""
        self._since.append(delta)

    def finished(self, now: State) -> State:
        """The state `now`, on the new base. O(rows of the deltas since + items). Raises what `run` met, or OSError."""
        self.let_go()
        if self._error is not None:
            raise self._error
        assert self._made is not None
        made = self._made
        if self._since:
            before = made.buffers.served.uid
            # Each of these deltas was accepted when it was applied: equal candidates are no reason to refuse it now.
            made = made.changed(reduce(Delta.followed_by, self._since), allow_equal=True)
            made.buffers.released(before)  # nobody was ever given it
        return made if made.items is now.items else made.with_items(now.items)

    def let_go(self) -> None:
        """The buffer that it read may be written again, for its part."""
        self._state.buffers.let_go(self._uid)
