"""Plain features: texts that stand in keys as they are, made into tokens without a Python object for any of them.

Eight fields cost about 8 µs as Python texts and tokens, and 2 here. `wire.fields` and the fields' own tokens say what
the tokens are; what is not plain (escapes, sets, numbers, times, names unknown, text beyond ASCII) is left to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from model_store.features import FeaturePlan
from server.receiving.kernels import IRREGULAR, plain_tokens
from server.receiving.request import Received

if TYPE_CHECKING:
    from server.user_records.cache import StoredUser

Array = npt.NDArray[Any]
MAX_FIELDS = 63


@dataclass(frozen=True, slots=True)
class PlainFeatures:
    """A request's tokens. given: a bit for each of plan.request_fields that the request has.

    arrays are value_start, begin, x and text of a TokenTable, fit for `server.scoring.kernels.rank` with the plan
    that `reader` was made for, and with no other. user: whose stored features lie under the request's own, if any do.
    """

    reader: PlainReader
    given: int
    arrays: tuple[Array, Array, Array, Array]
    user: StoredUser | None = None


class PlainReader:
    """Reads the plain features of requests for one plan. Immutable; shared by all threads."""

    def __init__(self, plan: FeaturePlan, needs_values: bool = False) -> None:
        """`needs_values`: a curve is chosen by a field's value, so that tokens alone will not do."""
        fields = plan.request_fields
        names = [field.name.encode("utf-8", "surrogatepass") for field in fields]
        self._names = np.frombuffer(bytearray(b"".join(names)), np.uint8)
        self._name_start = np.array([0, *np.cumsum([len(name) for name in names])], np.int64)
        self._plain = np.array([field.kind == "category" for field in fields], np.bool_)
        self._x = np.ones(len(fields))
        self._reads = 0 < len(fields) <= MAX_FIELDS and not needs_values
        self._bits = {field.name: 1 << bit for bit, field in enumerate(fields)}

    def bits(self, names: frozenset[str]) -> int:
        """The bits that stand for these fields in `given`."""
        return sum(self._bits[name] for name in names)

    def read(self, message: Received) -> PlainFeatures | None:
        """The request's features, or None if one of them is not plain. O(bytes of user and context)."""
        found, size = message.found, len(self._x)
        if found is None or not self._reads:
            return None
        numbers, values = np.empty(2 * size + 2, np.int64), np.empty((size, 2), np.int32)
        room = int(found[2] - found[1] + found[4] - found[3])
        text = np.empty(room + size, np.uint8)
        starts, begin = numbers[: size + 1], numbers[size + 1 :]
        given = plain_tokens(
            message.text, found, self._names, self._name_start, self._plain, values, starts, begin, text
        )
        return None if given == IRREGULAR else PlainFeatures(self, given, (starts, begin, self._x, text))
