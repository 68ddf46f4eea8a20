"""A log's first rows, read and joined once and kept in memory, for searches that learn them again and again.

Parsing, joins, histories and lists are done once, by the widest spec; a pass hashes the kept rows by its own spec, and
passes of the same features share the hashes. So a pass over 100,000 rows of ten columns takes a fifth of a second.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from model_store.spec.spec import ModelSpec
from trainer.examples.hashing import ExampleMaker, Examples
from trainer.examples.open_log import Log, examples_of, open_log
from trainer.formats.batch import RowBatch
from trainer.tune.passes import Expected, Repeated


@dataclass(frozen=True, kw_only=True)
class FirstRows(Repeated):
    """The rows of `batches`, which have the columns of `spec`; specs of passes have fields of it, or some of them.

    spec: resolved. rows: how many there are, rejected ones among them.
    """

    spec: ModelSpec
    batches: Sequence[RowBatch] = ()
    rows: int = 0
    _hashed: dict[str, list[Examples]] = field(default_factory=dict)

    @classmethod
    def read(cls, log: Log, spec: ModelSpec, rows: int, **options: Any) -> FirstRows:
        """Read the first `rows` rows. Raises as `open_log`."""
        kept, left = list[RowBatch](), rows
        with open_log(log, spec) as opened:
            for batch in opened.rows():
                kept.append(batch if batch.rows <= left else batch.part(0, left))
                left -= kept[-1].rows
                if not left:
                    break
            return cls(log=log, spec=opened.spec, batches=kept, rows=rows - left, **options)

    @cached_property
    def learned(self) -> int:
        """How many rows can be learned."""
        with self.examples(self.spec) as (*_, stream):
            return sum(int(each.hashed.labels.size) for each in stream)

    def lacking(self, columns: Sequence[str], begin: int) -> FirstRows:
        """The same rows, but those from row `begin` on, rejected ones counted, without values in these columns."""
        batches = list[RowBatch]()
        for batch in self.batches:
            left = min(max(begin, 0), batch.rows)
            for part in (batch.part(0, left), batch.part(left, batch.rows)):
                begin -= part.rows
                nulls = {name: pa.nulls(part.rows, part.columns[name].type) for name in columns}
                batches.append(part if begin >= 0 else replace(part, columns={**part.columns, **nulls}))
        return replace(self, batches=batches, _hashed={})

    @contextmanager
    def examples(self, spec: ModelSpec) -> Iterator[tuple[ModelSpec, Expected, Iterator[Examples]]]:
        """The kept rows hashed by the spec, which is resolved."""
        maker = ExampleMaker(spec)
        document = spec.model_dump(mode="json", include={"fields", "crosses", "input", "rules"})
        used = (maker.rules.masks != 0).tolist()  # a feature that no variant uses is not hashed
        key = json.dumps([document, used], sort_keys=True)
        if key not in self._hashed:
            self._hashed.clear()  # passes of the same features follow one another
            with examples_of(self.batches, maker, self.threads) as stream:
                self._hashed[key] = list(stream)
        yield spec, lambda rows: self.rows, iter(self._hashed[key])
