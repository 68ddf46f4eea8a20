"""A delta: what changed in a model since a version of it, as rows to put in and keys to take out.

How it is made of two models, and how it makes one of another, is `deltas.changes`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from model_store.artefact_checks import check_delta, check_shapes, is_sorted
from model_store.errors import ArtefactError
from model_store.model_rows import ModelRows, own


@dataclass(frozen=True, eq=False, kw_only=True)
class Delta(ModelRows):
    """The keys that changed, each as it is now; metrics and calibration are those of the new model, whole.

    Invariants, checked wherever one is made or read: those of an artefact, and

    1. A row with variants 0 takes its key out; its weights and rates are 0. Any other puts its key in, or replaces it.
    2. `parent_content` is the content digest of the model that it changes, `content` that of the model it makes.
    3. `parent` is the version of the former, 0 while none has been said.
    """

    parent: int
    content: str
    parent_content: str

    FORMAT: ClassVar[int] = 3  # an ftrie that knows no deltas refuses it by this

    @classmethod
    def from_columns(cls, **fields: Any) -> Delta:
        """Build from the fields by name, rows in any order: sorts where needed, then checks every invariant.

        Raises ArtefactError for the first that does not hold.
        """
        kinds = {"key_data": "u1", "key_offsets": "i8", "weight": "f4", "variants": "u4", "rate": "f4"}
        delta = cls(**fields | {name: own(fields[name], kind) for name, kind in kinds.items()})
        check_shapes(delta)
        if not is_sorted(delta.key_array()):
            delta = replace(delta, **delta.columns_in_order()[0])
        check_delta(delta)
        return delta

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of `to_bytes()`, in hex."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def to_bytes(self) -> bytes:
        """The file, deterministic: same content, same bytes. docs/artefact.md describes them."""
        from model_store.arrow_format import encode

        return encode(self)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Delta:
        """Read what `to_bytes` wrote, every check before use. Raises ArtefactError saying what is wrong."""
        from model_store.arrow_format import decode

        read = decode(data)
        if not isinstance(read, Delta):
            raise ArtefactError("this is a whole model, where a delta was expected")
        return read

    def followed_by(self, later: Delta) -> Delta:
        """Both in one: what the two make one after the other. Raises ArtefactError unless `later` fits."""
        from model_store.deltas.changes import joined

        return joined(self, later)
