"""The log that a published model is to score: its files, the files of items and users, and the spec that fits both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from model_store.errors import SpecError
from model_store.spec.spec import ModelSpec
from trainer.examples.open_log import begin
from trainer.examples.side_tables import SideTable, joined
from trainer.learn.scorer import scoring_spec
from trainer.logs.batch import RowBatch
from trainer.logs.reader import LogReader


def _say_nothing(text: str) -> None:
    pass


@dataclass(frozen=True)
class LogToScore:
    """Where the rows come from. `without` are fields and crosses to score without; their columns may be missing."""

    inputs: Sequence[str]
    format: str | None = None
    items: Path | None = None
    users: Path | None = None
    without: tuple[str, ...] = ()
    on_note: Callable[[str], None] = _say_nothing

    @contextmanager
    def opened(
        self, model: ModelSpec, more_columns: Sequence[str] = ()
    ) -> Iterator[tuple[ModelSpec, Iterable[RowBatch]]]:
        """The spec to score by and the log's batches, which also hold `more_columns` of the log.

        Raises SpecError where the log lacks a column, InputError for a file that is not there.
        """
        spec = scoring_spec(model, self.without)
        tables = [SideTable.of_items(self.items, spec.input)] if self.items else []
        tables += [SideTable.of_users(self.users, spec.input)] if self.users else []
        with LogReader(self.inputs, format=self.format, on_note=self.on_note) as reader:
            beginning = begin(spec, reader, tables, self.on_note)
            for name in more_columns:
                if name not in reader.columns():
                    raise SpecError(f"no column {name!r} in the log; it has: {', '.join(reader.columns())}")
            read = tuple(dict.fromkeys([*beginning.columns, *more_columns]))
            wanted = (*beginning.resolved.wanted_columns(), *more_columns)
            yield beginning.resolved, joined(reader.batches(read), tables, wanted)
