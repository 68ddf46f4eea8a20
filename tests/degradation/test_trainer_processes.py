"""docs/degradation.md, "The trainer": it is killed, loses its lease, or may not have served what it publishes."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from ftrie.cli import run
from model_store.errors import StoreError
from model_store.store import Store
from tests.degradation.learning import LONG_S, Learning, OfStreams, ending
from tests.degradation.recovered import Recovered
from tests.degradation.system import COMPILE_S
from tests.trainer.runs.running import NAME, SPEC
from tests.waiting import eventually
from tests.worlds import event_logs

# Keys alone are judged, and all of them go out: a part of a day without clicks is calibrated badly.
GUARDED = '\n[learner]\nl1 = 0.0\n[guard]\nmin_keys = 60\ncalibration = "off"\nlogloss_rise = "off"\n'
SAME = ("events", "examples", "keys", "dead_letters", "counts", "join")


@pytest.mark.slow
def test_trainer_is_killed(tmp_path: Path, recovered: Recovered) -> None:
    system = OfStreams(tmp_path, "--every", "300")
    with ending(system):
        trainer = system.trainer
        eventually(lambda: trainer.has("events", system.day.given), "all is learned", LONG_S)
        system.more(100)
        trainer.kill()
        recovered.from_now()
        trainer.start()
        recovered.when(system.has_learned_all, "its successor has learned all, and serves it", COMPILE_S)
        system.more()
        trainer.kill()  # before it has learned these
        trainer.start("--once", "--no-publish", "--save", "killed.arrow")
        assert trainer.process.wait(COMPILE_S) == 0, trainer.said()
        killed = trainer.status()
        trainer.start("--once", "--no-publish", "--save", "anew.arrow", "--checkpoint", "anew")
        assert trainer.process.wait(COMPILE_S) == 0, trainer.said()
        assert {name: trainer.status()[name] for name in SAME} == {name: killed[name] for name in SAME}
        assert (tmp_path / "anew.arrow").read_bytes() == (tmp_path / "killed.arrow").read_bytes()


@pytest.mark.slow
def test_person_is_forgotten_while_the_trainer_hangs(
    tmp_path: Path, recovered: Recovered, capsys: pytest.CaptureFixture[str]
) -> None:
    system = OfStreams(tmp_path)
    trainer, cookie = system.trainer, json.loads(event_logs(2000).impressions[49])["cookie"]
    words = ["store", "forget", cookie, "--store", system.valkey.url, "--json", "--wait"]

    def has_forgotten(wait: str) -> bool:
        code = run([*words, wait])
        [found] = json.loads(capsys.readouterr().out)["trainers"]
        assert code == (0 if found["forgot"] else StoreError.exit_code)
        return bool(found["forgot"])

    with ending(system):
        eventually(system.has_learned_all, "all is served", LONG_S)
        rows = trainer.status()["join"]["rows"]
        trainer.signal(signal.SIGSTOP)
        assert not has_forgotten("0.5")
        trainer.signal(signal.SIGCONT)
        recovered.then(lambda: trainer.status()["join"]["rows"] < rows, "it has forgotten")
        assert has_forgotten("60")
        system.more()
        eventually(system.has_learned_all, "it learns on", LONG_S)


@pytest.mark.slow
def test_trainer_loses_its_lease(tmp_path: Path, recovered: Recovered) -> None:
    system = OfStreams(tmp_path)
    spare_folder = tmp_path / "spare"
    spare_folder.mkdir()
    with ending(system):
        eventually(system.has_learned_all, "all is served", LONG_S)
        system.trainer.signal(signal.SIGSTOP)
        system.more()
        recovered.from_now()
        spare = Learning(spare_folder, system.valkey.url, ["--wait"])
        try:
            recovered.when(lambda: system.has_learned_all(spare), "a spare serves all", COMPILE_S)
            system.trainer.signal(signal.SIGCONT)
            eventually(system.trainer.has_ended, "the one that slept ends", LONG_S)
            assert system.trainer.process.returncode == 5
            assert "another trainer has taken over hotels" in system.trainer.said()
            system.more()
            eventually(lambda: system.has_learned_all(spare), "the spare goes on", LONG_S)
        finally:
            spare.kill()


@pytest.mark.slow
def test_guard_refuses_what_a_trainer_publishes(tmp_path: Path, recovered: Recovered) -> None:
    system = OfStreams(tmp_path, spec=SPEC + GUARDED)
    with ending(system), Store.open(system.valkey.url) as store:
        trainer, versions = system.trainer, store.model(NAME)
        eventually(lambda: trainer.status()["published"].get("refused", 0) > 0, "a refused version", LONG_S)
        assert versions.active() is None
        assert trainer.metric("ftrie_trainer_versions_total", kind="refused") > 0
        assert "IS REFUSED" in trainer.said()
        system.more(1000)
        recovered.then(lambda: versions.active() is not None, "one within its bounds is served", LONG_S)
        assert not versions.manifest(versions.active_or_fail()).refused
