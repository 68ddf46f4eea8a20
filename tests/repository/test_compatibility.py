"""What docs/compatibility.md promises: files and a store of 0.1.0 are read, and no name of 0.1.0 is gone.

tests/golden/kept holds what 0.1.0 wrote, and is not made again; its names are in names.json, which
`python -m tests.repository.test_compatibility` writes for a new release.
"""

from __future__ import annotations

import inspect
import json
import re
import tarfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import ftrie
from docs import generate
from ftrie.cli import build, run
from ftrie.draw.runs import read_runs
from model_store.artefact import json_model
from model_store.artefact.artefact import Artefact, Delta
from model_store.features import history
from model_store.spec.spec import spec_from_json
from model_store.versions import experiments
from server.model import shared_memory
from server.sync import state_folder
from server.telemetry import meter
from trainer.checkpoint import file as checkpoint_file
from trainer.formats import stored_rows
from trainer.learn.metrics import records
from trainer.runs import status
from trainer.tune import passes

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "tests" / "golden" / "kept"
FORMATS = {
    "model file, snapshot": Artefact.FORMAT,
    "model file, delta": Delta.FORMAT,
    "checkpoint": checkpoint_file.FORMAT_VERSION,
    "user's history": history._VERSION,
    "experiment": experiments.FORMAT,
    "metrics file": records.FORMAT_VERSION,
    "state of `ftrie tune --state`": passes.STATE_VERSION,
    "cache of a log": stored_rows._VERSION,
    "parts of a served model": shared_memory.FORMAT_VERSION,
    "last good model of a server": state_folder.FORMAT,
}


def test_the_page_lists_the_formats_there_are() -> None:
    text = (ROOT / "docs" / "compatibility.md").read_text()
    rows = re.findall(r"^\| (.+) \| (\d+) \| (\d+) \|$", text, re.MULTILINE)
    listed = {
        re.sub(r"\[(.+?)\]\(.+?\)|( in the store)", r"\1", name): int(number) for name, number, _ in rows
    }
    assert listed == FORMATS
    assert all(written == read for _, written, read in rows)


def test_a_model_file_of_0_1_0_is_read_and_written_as_it_was() -> None:
    artefact = Artefact.read(KEPT / "model.arrow")
    assert artefact.to_bytes() == (KEPT / "model.arrow").read_bytes()
    assert json_model.render(artefact) == (KEPT / "model.json").read_bytes()


def test_a_spec_of_0_1_0_has_its_hash() -> None:
    artefact = Artefact.read(KEPT / "model.arrow")
    assert spec_from_json(artefact.spec.to_json()) == artefact.spec
    (run_metrics,) = read_runs([KEPT / "metrics.jsonl"])
    assert run_metrics.header.spec_sha256 == artefact.spec.sha256


def test_a_store_of_0_1_0_is_valid_and_holds_its_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with tarfile.open(KEPT / "store.tar.xz") as archive:
        archive.extractall(tmp_path / "store")  # of this repository: Python 3.11.2 has no filter yet
    store = f"embedded:{tmp_path / 'store'}"
    assert run(["store", "check", "golden", "--store", store]) == 0
    assert "all keys are valid" in capsys.readouterr().out
    with ftrie.Store(store) as opened:
        assert opened.load("golden", 2) == ftrie.load(KEPT / "model.arrow")
        assert [(each.version, each.kind) for each in opened.versions("golden")] == [
            (1, "snapshot"),
            (2, "delta"),
        ]
        ranker = opened.load("golden").ranker(items=opened, users=opened)
        ranking = ranker.rank("u3", {"device": "phone"}, ["i1", "i2", "i3"])
        assert len(ranking.items) == 3
        assert not ranking.unknown_items
    assert run(["experiment", "show", "golden", "--store", store, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["in_force"] == {"base": 0.5, "plain": 0.5, "lean": 0.0}


def test_no_name_of_0_1_0_is_gone() -> None:
    before: dict[str, list[str]] = json.loads((KEPT / "names.json").read_text())
    now = names()
    gone = {kind: sorted(set(each) - set(now[kind])) for kind, each in before.items()}
    assert gone == {kind: [] for kind in before}


def names() -> dict[str, list[str]]:
    """Every name that is promised: of Python with its arguments, of commands with their flags, of metrics."""
    flags = [f"{' '.join(words)} {option}" for words, options in _commands(build(), ()) for option in options]
    generate.server_metrics()  # imports what declares them
    families = [*meter.FAMILIES.values(), *status.FAMILIES]
    labels = [f"{family.name} {label}" for family in families for label in ("", *family.labels)]
    return {"python": sorted(_python()), "commands": sorted(flags), "metrics": sorted(labels)}


def _python() -> Iterator[str]:
    members = {f"ftrie.{name}": getattr(ftrie, name) for name in ftrie.__all__}
    for module in ("ftrie.aio", "ftrie.sklearn"):
        found = import_module(module)
        members |= {f"{module}.{name}": getattr(found, name) for name in found.__all__}
    for name, member in members.items():
        yield from (f"{name}({argument})" for argument in ("", *_arguments(member)))
        for method in dir(member):
            if not method.startswith("_"):
                yield from (f"{name}.{method}({each})" for each in ("", *_arguments(getattr(member, method))))


def _arguments(member: Any) -> list[str]:
    try:
        return [*inspect.signature(member).parameters]
    except (TypeError, ValueError):  # not a function, or one without a signature
        return []


def _commands(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    yield words, [option for each in command.params for option in (*each.opts, *each.secondary_opts)]
    for name, child in getattr(command, "commands", {}).items():
        yield from _commands(child, (*words, name))


if __name__ == "__main__":
    (KEPT / "names.json").write_text(json.dumps(names(), indent=1) + "\n")
