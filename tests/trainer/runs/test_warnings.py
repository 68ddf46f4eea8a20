"""What a trainer says of itself when something is wrong: withheld models, quiet sources, models that diverge."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import generate_latest

from ftrie.cli import run
from ftrie.commands.trainer import StatusLines
from model_store.store import Store
from model_store.waiting import StopRequest
from tests.trainer.learn.test_model_warnings import SPEC, log_of, write_log
from trainer.checkpoint import file
from trainer.checkpoint.folder import checkpoints_in
from trainer.events.histories import Histories
from trainer.examples import derived
from trainer.output import SILENT, Output
from trainer.runs import status
from trainer.runs.status import Status, StatusCollector
from trainer.runs.trainer import Trainer
from trainer.settings import Every, TrainerOptions

NUMBERLESS = '[model]\nname = "m"\n[input]\nlabel = "click"\n'
PLAIN = NUMBERLESS + "[fields]\nsite = {}\n"
SHOWN = b'{"request_id": "r", "ts": 1700000000, "items": [{"id": "a", "features": {"site": "x"}}]}'
CLICKED = b'{"request_id": "r", "ts": 1700000001, "item": "a"}'


@pytest.fixture
def trained(tmp_path: Path, store_url: str, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run `ftrie trainer --once` on a source; its exit code, the last line of status, and what stands on stderr."""

    def trainer(source: str, *flags: str, spec: str = PLAIN, state: str = "state") -> Any:
        (tmp_path / "m.toml").write_text(spec)
        command = ["trainer", str(tmp_path / "m.toml"), "--from", source, "--store", store_url, "--once"]
        code = run([*command, "--json", "--checkpoint", str(tmp_path / state), *flags])
        out, err = capsys.readouterr()
        return code, json.loads(out.splitlines()[-1]) if out else None, err

    return trainer


def write_rows(path: Path, labels: list[str]) -> str:
    path.write_text("click,site\n" + "".join(f"{label},s{row % 3}\n" for row, label in enumerate(labels)))
    return f"rows={path}"


def test_clicks_of_a_file_that_are_out_of_order_are_counted_and_warned_of_at_its_end(tmp_path, trained):
    """Given impressions of three hours before their clicks, when trained once, the lost clicks are said to be."""
    lines = [
        event.replace(b'"r"', b'"r%d"' % at).replace(
            b"1700000", b"%d" % (1_700_000 + at)
        )  # a thousand seconds each
        for event in (SHOWN, CLICKED)
        for at in range(60)
    ]
    (tmp_path / "log.jsonl").write_bytes(b"\n".join([*lines, b""]))
    code, status, _ = trained(str(tmp_path / "log.jsonl"), "--no-publish")
    lost, late = status["join"]["out_of_order"], status["join"]["late"]
    assert code == 0 and lost > 40 and status["join"]["orphans"] == 0
    (warning,) = status["warnings"]
    assert warning.startswith(f"{lost + late} of 60 clicks and conversions in a minute or less came after")


def test_a_trainer_publishes_nothing_while_too_many_rows_are_rejected(tmp_path, trained, store):
    source = write_rows(tmp_path / "a.csv", ["no"] * 8 + ["1"] * 2)
    code, _, err = trained(source)
    assert code == 3 and "8 rows were rejected, 80 % of those read: nothing is published" in err
    assert "ftrie store dead m" in err and "--force" in err and store.model("m").versions() == []
    code, status, _ = trained(source, "--force", state="forced")
    assert (code, status["withheld"], status["version"]) == (0, "", 1)
    # Good rows that follow let a model go out; -1 is no click, and told.
    write_rows(tmp_path / "a.csv", ["no"] * 8 + ["1"] * 2 + ["-1", "1"] * 45)
    code, status, err = trained(source)
    assert (code, status["version"], store.model("m").active()) == (0, 2, 2)
    assert (status["counts"]["minus_labels"], status["counts"]["bad_rows"]) == (45, 8)
    assert status["warnings"] == ["labels are read as -1/+1: -1 is no click"]
    assert json.loads(err.splitlines()[-1])["warning"] == status["warnings"][0]


def test_a_trainer_warns_of_a_model_that_diverges_and_ends_with_the_totals_of_all_rows(
    tmp_path: Path, trained: Callable[..., Any], store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = f"rows={write_log(tmp_path / 'a.csv', log_of(1500))}"
    code, status, err = trained(source, spec=SPEC)
    assert code == 0 and status["normalized_entropy"] > 1.5
    warnings = [json.loads(line)["warning"] for line in err.splitlines()]
    assert any("field 'price'" in text for text in warnings)
    assert any("'base' and 'plain'" in text for text in warnings)
    assert sorted(status["warnings"]) == sorted(warnings)
    assert status["variants"]["base"]["normalized_entropy"] > 1.5
    command = ["trainer", str(tmp_path / "m.toml"), "--from", source, "--store", store_url, "--once"]
    assert run([*command, "--checkpoint", str(tmp_path / "state")]) == 0  # in words
    out, err = capsys.readouterr()
    assert "log-loss, all rows" in out and "base" in out
    assert "recent log-loss" in err.splitlines()[-1]


def test_a_trainer_says_that_it_drops_users(
    tmp_path: Path, trained: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    history = 'seen = { side = "user", kind = "set", history = "seen", measure = "last", last = 2 }\n'
    spec = PLAIN.replace('"click"\n', '"click"\ncookie = "user"\nitem = "item"\ntimestamp = "ts"\n') + history
    rows = "".join(f"0,s1,u{row},i1,{1_700_000_000 + row}\n" for row in range(5))
    (tmp_path / "a.csv").write_text("click,site,user,item,ts\n" + rows)
    monkeypatch.setattr(derived, "Histories", partial(Histories, most_users=2))
    code, status, err = trained(f"rows={tmp_path / 'a.csv'}", spec=spec)
    assert (code, status["users_dropped"]) == (0, 2) and "2 were dropped" in err
    assert any("more than 2 users have a history" in text for text in status["warnings"])
    collector = StatusCollector()
    collector.show(a_status(users_dropped=2))
    assert 'ftrie_trainer_users_dropped_total{model="m"} 2.0' in generate_latest(collector).decode()


def a_status(**members: Any) -> Status:
    empty: dict[str, Any] = {"published": {}, "lags": {}, "lost": {}, "join": {}}
    counts = {"impressions": 0, "feedback": 0, "views": 0, "bad_events": 0, "unknown_items": 0}
    known = Status(
        "m", 0, 0, 0.0, 0, None, None, failed_checkpoints=0, dead_letters=0, counts=counts, **empty
    )
    return replace(known, **members)


def test_a_line_that_stays_the_same_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    lines = StatusLines(every_s=3600.0)
    for _ in range(5):
        lines(a_status())
    lines(a_status(events=1))
    assert len(capsys.readouterr().err.splitlines()) == 2
    repeated = StatusLines(every_s=0.0)
    repeated(a_status())
    repeated(a_status())
    assert len(capsys.readouterr().err.splitlines()) == 2


class Recording:
    """An output whose warnings can be waited for."""

    def __init__(self) -> None:
        self.warnings: queue.Queue[str] = queue.Queue()
        self.warn, self.note, self.progress = self.warnings.put, SILENT.note, SILENT.progress


@contextmanager
def running(
    folder: Path, store_url: str, source: str, spec: str, output: Output = SILENT
) -> Iterator[queue.Queue[Status]]:
    """A trainer in a thread; gives each status it tells."""
    from model_store.spec.spec import parse_spec

    told: queue.Queue[Status] = queue.Queue()
    options = TrainerOptions(
        store=store_url, sources=(source,), checkpoint=folder / "state", every=Every.parse("1h"), publish=False,
        activate=False, idle_s=0.1, memory_bytes=1 << 20, say_every_s=0.1, output=output,
    )  # fmt: skip
    with StopRequest() as stop, ExitStack() as stack:
        trainer = Trainer(parse_spec(spec), options, stop, told.put)

        def live() -> None:
            trainer.open(stack)
            trainer.begin(stack)
            trainer.go()

        thread = threading.Thread(target=live)
        thread.start()
        try:
            yield told
        finally:
            stop.on_signal(15)
            thread.join()


def first_warning(told: queue.Queue[Status]) -> str:
    while not (warnings := told.get(timeout=60).warnings):
        pass
    return warnings[0]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "IDLE_AFTER_S", 0.3)


@pytest.mark.usefixtures("soon")
def test_a_trainer_that_reads_nothing_says_that_no_server_logs_impressions(tmp_path, store, store_url):
    output = Recording()
    with running(tmp_path, store_url, "store", PLAIN, output) as told:
        text = first_warning(told)
        assert (
            "the stream ftrie:{m}:impressions is not there; the stream ftrie:{m}:clicks is not there" in text
        )
        assert "ftrie serve m --impressions store" in text
        store.event_stream("ftrie:{m}:impressions").append([SHOWN])
        while told.get(timeout=60).warnings:
            pass
        assert "the stream ftrie:{m}:impressions has 1 entry, all read" in first_warning(told)
    warnings = [output.warnings.get() for _ in range(output.warnings.qsize())]
    assert sum("ftrie serve m --impressions store" in text for text in warnings) == 1


@pytest.mark.usefixtures("soon")
def test_clicks_alone_count_as_nothing_and_a_file_that_is_not_there_is_named(tmp_path, store, store_url):
    store.event_stream("ftrie:{m}:clicks").append([CLICKED, CLICKED])
    with running(tmp_path, store_url, "store", PLAIN) as told:
        text = first_warning(told)
    assert text.startswith("no impression was read")
    assert "ftrie:{m}:clicks has 2 entries, all read. Only clicks were read (2)" in text
    (tmp_path / "other").mkdir()
    with running(tmp_path / "other", store_url, f"{tmp_path}/none.jsonl", PLAIN) as told:
        assert f"there is no file {tmp_path}/none.jsonl" in first_warning(told)


@pytest.mark.usefixtures("soon")
def test_a_trainer_that_waits_for_its_fields_says_why(tmp_path: Path, store: Store, store_url: str) -> None:
    output = Recording()
    with running(tmp_path, store_url, "store", NUMBERLESS, output) as statuses:
        while "ftrie serve m --impressions store" not in output.warnings.get(timeout=60):
            pass
        store.event_stream("ftrie:{m}:impressions").append([SHOWN])
        assert statuses.get(timeout=60).model == "m"


def save_model(folder: Path, spec: str, rows: list[dict[str, bytes]], name: str) -> str:
    (folder / "other.toml").write_text(spec)
    log = write_log(folder / "other.csv", rows)
    assert run(["train", str(folder / "other.toml"), log, "--save", str(folder / name)]) == 0
    return str(folder / name)


OTHER = NUMBERLESS + "[fields]\nprice = {}\nshop = { column = 'site' }\n[learner]\nl1 = 0.0\n"


def test_a_trainer_refuses_a_foreign_model_in_the_words_of_train_and_warns_of_one_that_is_half_so(
    tmp_path: Path, trained: Callable[..., Any], store: Store, store_url: str, capsys
) -> None:
    foreign = save_model(tmp_path, OTHER, log_of(60), "foreign.arrow")
    source = write_rows(tmp_path / "a.csv", ["1", "0"] * 20)
    assert run(["store", "import", "m", foreign, "--store", store_url]) == 0
    capsys.readouterr()
    code, _, err = trained(source, "--init-from", "active")
    assert code == 2
    said = json.loads(err.splitlines()[-1])["error"]["message"]
    assert "no key of the model to start from is of a field or cross of this spec" in said
    assert store.model("m").active() == 1
    assert run(["train", str(tmp_path / "m.toml"), str(tmp_path / "a.csv"), "--init-from", foreign]) == 2
    assert said in capsys.readouterr().err
    half = OTHER.replace("shop = { column = 'site' }", "site = {}")
    foreign = save_model(tmp_path, half, log_of(60), "half.arrow")
    capsys.readouterr()
    code, _, err = trained(source, "--init-from", foreign)
    assert code == 0
    (said,) = [json.loads(line)["warning"] for line in err.splitlines()]
    assert "most are of fields or crosses that this spec does not have" in said
    assert "learned from price, site; this spec has site" in said


def test_a_checkpoint_of_an_older_layout_is_an_error_that_says_what_to_do(tmp_path, trained):
    source = write_rows(tmp_path / "a.csv", ["1", "0"] * 20)
    assert trained(source, "--no-publish")[0] == 0
    path = checkpoints_in(tmp_path / "state")[0]
    sound = path.read_bytes()
    for lacking in ("coordinates.marks", "metrics.tally.counts", "table", "sources", "counts"):
        path.write_bytes(sound)
        description, mapped = file.read(path)
        arrays = {name: np.array(array) for name, array in mapped.items()}
        if lacking == "table":
            arrays["coordinates.table.slots"] = arrays["coordinates.table.slots"][:, :1]
        elif lacking == "sources":
            del description["stream"]["sources"]
        elif lacking == "counts":
            description["stream"]["counts"]["long_gone"] = 1
        else:
            del arrays[lacking]
        with path.open("wb") as out:
            file.write(out, description, arrays)
        code, _, err = trained(source, "--no-publish")
        assert code == 7 and f"{path} does not hold the state of this ftrie's learners" in err
        assert "it was written by ftrie" in err and "start again with another folder" in err


@pytest.mark.parametrize("rows", ["sorted", "in bursts", "in lists", "few clicks"])
def test_a_log_that_is_sorted_by_its_label_is_warned_of(rows: str, tmp_path: Path, capsys: Any) -> None:
    labels = {
        "sorted": [0] * 2000 + [1] * 500,
        "in bursts": ([0] * 8 + [1] * 4) * 200,
        "in lists": ([1] + [0] * 17) * 120,
        "few clicks": [0] * 2000 + [1] * 90,
    }[rows]
    (tmp_path / "m.toml").write_text(PLAIN)
    write_rows(tmp_path / "log.csv", [*map(str, labels)])
    command = ["train", str(tmp_path / "m.toml"), str(tmp_path / "log.csv"), "--json", "--batch-bytes=2000"]
    assert run(command) == 0
    warnings = json.loads(capsys.readouterr().out)["warnings"]
    said = "the log seems sorted by its label: it changes 1 time from row to row, and would 800 times"
    assert [text for text in warnings if said in text] == (warnings if rows == "sorted" else [])
    assert bool(warnings) == (rows == "sorted")
