"""A format and a kind of source, each added by the diff in CONTRIBUTING.md, are used as those that are there."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from types import ModuleType

import pytest

from model_store.errors import InputError
from model_store.spec.spec import ModelSpec, parse_spec
from trainer.examples.open_log import Log, open_log
from trainer.formats.reader import FORMATS, LogReader, check_format, format_of
from trainer.formats.streams import Share
from trainer.runs.warmup import formats_of
from trainer.sources import open_sources as opening
from trainer.sources.open_sources import kind_of, known_as, open_sources

PAGE = (Path(__file__).parents[3] / "CONTRIBUTING.md").read_text("utf-8")
SPEC = '[model]\nname = "ads"\n[input]\nlabel = "click"\n'
ROWS = "".join(f"click={row % 2} site=s{row}\n" for row in range(500))
EVENTS = (
    b'{"request_id": "r", "ts": 1, "items": [{"id": "a"}]}',
    b'{"request_id": "r",\n"ts": 2, "item": "a"}',
)


def added(path: str) -> ModuleType:
    """The module that a diff of the page adds."""
    (diff,) = (each for each in re.findall("```diff\n(.*?)```", PAGE, re.DOTALL) if f"+++ b/{path}\n" in each)
    new = diff.partition(f"+++ b/{path}\n")[2].partition("\n--- ")[0]
    module = ModuleType(path)
    exec("\n".join(line[1:] for line in new.splitlines()), module.__dict__)
    return module


@pytest.fixture
def pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    for format in added("trainer/formats/pairs.py").FORMATS:
        monkeypatch.setitem(FORMATS, format.name, format)


def test_the_lines_that_a_diff_takes_away_stand_in_the_code() -> None:
    diffs = [
        each
        for each in re.findall("```diff\n(.*?)```", PAGE, re.DOTALL)
        if not re.search("/trainer/learn/|/kinds.py", each)
    ]
    found = [each for diff in diffs for each in re.findall(r"--- a/(\S+)\n\+\+\+ .*\n-(.*)\n", diff)]
    assert len(found) == len(diffs) == 2
    for path, line in found:
        assert f"{line}\n" in (Path(__file__).parents[3] / path).read_text("utf-8")


def test_a_format_that_is_not_added_is_not_known() -> None:
    with pytest.raises(InputError, match="format 'pairs' is not known"):
        check_format("pairs")


@pytest.mark.usefixtures("pairs")
def test_a_format_is_recognised_read_resumed_and_shared(tmp_path: Path) -> None:
    named, packed, nameless = (str(tmp_path / name) for name in ("log.pairs", "log.pairs.gz", "log"))
    for name in (named, nameless):
        Path(name).write_text(ROWS)
    Path(packed).write_bytes(gzip.compress(ROWS.encode()))
    assert format_of(nameless, ROWS.encode()) == "pairs" and formats_of(Log([named, packed])) == {"pairs"}
    assert kind_of([nameless], "click") == "rows"
    for name in (named, packed, nameless):
        with open_log(Log([name], batch_bytes=1000), parse_spec(SPEC)) as opened:
            assert opened.columns == ("click", "site")
            batches = list(opened.rows())
        sites = [site for batch in batches for site in batch.columns["site"].to_pylist()]
        assert len(batches) > 5 and sites == [f"s{row}" for row in range(500)]
    with LogReader([named], batch_bytes=1000) as reader:
        whole = [batch.lines.tolist() for batch in reader.batches(["site"])]
    shares = []
    for number in range(2):
        with LogReader([named], batch_bytes=1000, share=Share(number, 2)) as reader:
            shares.append([batch.lines.tolist() for batch in reader.batches(["site"])])
    assert shares == [whole[0::2], whole[1::2]]
    with LogReader([named], batch_bytes=1000) as reader:
        first = next(reader.batches(["site"]))
        read = reader.bookmarks.until(first.stop)
    with LogReader([named], batch_bytes=1000, read=read) as reader:
        assert [batch.lines.tolist() for batch in reader.batches(["site"])] == whole[1:]


def test_a_source_is_opened_by_its_name_and_at_its_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = ModelSpec.model_validate({"model": {"name": "ads"}, "input": {"label": "click"}})
    for number, event in enumerate(EVENTS):
        (tmp_path / f"{number}.json").write_bytes(event)
    name = f"each://{tmp_path}"
    with pytest.raises(InputError, match="'each' is no kind of source"):
        open_sources([name], spec, None)
    monkeypatch.setattr(opening, "KINDS", (added("trainer/sources/each.py").EACH, *opening.KINDS))
    assert kind_of([name], "click", are_sources=True) == "events" and known_as(f"clicks={name}") == name
    [source] = open_sources([name], spec, None)
    chunk = source.read()
    assert chunk is not None and chunk.data.count(b"\n") == 2 and source.where(chunk, 1) == "1.json"
    [again] = open_sources([name], spec, None, [source.position(chunk, 1)])
    rest = again.read()
    assert rest is not None and rest.data == EVENTS[1].replace(b"\n", b" ") + b"\n"
