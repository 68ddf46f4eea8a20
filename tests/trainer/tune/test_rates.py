"""`alpha = "auto"`: a run chooses on its first rows, keeps the numbers with the model, learns all rows with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ftrie
from ftrie.cli import run
from model_store.errors import InputError, SpecError
from model_store.spec.spec import parse_spec
from tests.trainer.tune.logs import SPEC, write_log
from trainer.distributed.dealing import plan_shards
from trainer.examples.open_log import Log
from trainer.tune.choice import with_rates

AUTO = SPEC.replace("alpha = 0.2", 'alpha = "auto"\nbeta = "auto"')
Say = Callable[..., tuple[int, str, str]]


def learner_of(model: Path) -> Any:
    return ftrie.load(model).artefact.spec.learner


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run([str(each) for each in arguments])
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def log(tmp_path: Path) -> str:
    return write_log(tmp_path / "log.csv", 4000, 1, effect=2.0)


@pytest.fixture
def auto(tmp_path: Path) -> Path:
    path = tmp_path / "auto.toml"
    path.write_text(AUTO)
    return path


def test_a_run_learns_all_rows_with_what_its_first_rows_chose(
    log: str, auto: Path, tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, said = say("train", auto, log, "--save", tmp_path / "a.arrow")
    assert code == 0 and "chosen on the first 4,000 rows" in said
    chosen = learner_of(tmp_path / "a.arrow")
    assert not chosen.auto and f"alpha = {chosen.alpha:g}, beta = {chosen.beta:g}: " in said
    given = SPEC.replace("alpha = 0.2", f"alpha = {chosen.alpha}\nbeta = {chosen.beta}")
    (tmp_path / "given.toml").write_text(given)
    assert say("train", tmp_path / "given.toml", log, "--save", tmp_path / "b.arrow")[0] == 0
    one, other = (ftrie.load(tmp_path / name) for name in ("a.arrow", "b.arrow"))
    assert one.to_json() == other.to_json()
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    assert with_rates(parse_spec(AUTO), Log([log]))[0].learner.alpha == chosen.alpha


def test_it_is_a_candidate_of_tune_that_tune_ranks_first(log: str, auto: Path, say: Say) -> None:
    chosen = with_rates(parse_spec(AUTO), Log([log]))[0].learner
    grid = (
        "--try",
        "alpha=0.025,0.05,0.1,0.2",
        "--try",
        "beta=0.1,1",
        "--hold-out",
        "0",
        "--judge-last",
        "0.5",
    )
    code, out, _ = say("tune", auto, log, *grid, "--json")
    assert code == 0
    best = json.loads(out)["best"]
    assert (best["alpha"], best["beta"]) == (chosen.alpha, chosen.beta)


def test_a_resumed_run_and_one_from_a_model_keep_the_numbers(
    log: str, auto: Path, tmp_path: Path, say: Say
) -> None:
    state = ("--checkpoint", tmp_path / "state")
    assert say("train", auto, log, *state, "--save", tmp_path / "a.arrow")[0] == 0
    more = write_log(tmp_path / "more.csv", 1000, 2, effect=-2.0)
    code, _, said = say("train", auto, log, more, *state, "--resume", "--save", tmp_path / "b.arrow")
    assert code == 0 and "chosen on" not in said
    code, _, said = say(
        "train", auto, more, "--init-from", tmp_path / "a.arrow", "--save", tmp_path / "c.arrow"
    )
    assert code == 0 and "chosen on" not in said
    first, *others = (learner_of(tmp_path / f"{name}.arrow") for name in "abc")
    assert all((each.alpha, each.beta, each.auto) == (first.alpha, first.beta, ()) for each in others)


def test_the_workers_of_a_distributed_run_have_the_numbers(log: str) -> None:
    spec = parse_spec(AUTO)
    known = with_rates(spec, Log([log]))
    plans = plan_shards(spec, Log([log]), 2, known=known)
    assert {plan.start.resolved.learner.alpha for plan in plans} == {known[0].learner.alpha}
    assert not plans[0].start.resolved.learner.auto and plans[0].start.spec.learner.auto


def test_few_rows_leave_the_defaults_and_it_is_said(tmp_path: Path, auto: Path, say: Say) -> None:
    log = write_log(tmp_path / "few.csv", 100, 1)
    code, _, said = say("train", auto, log, "--save", tmp_path / "m.arrow")
    assert code == 0
    assert (
        "alpha = 0.1, beta = 1: the default, since 100 rows are too few to choose by; 200 are needed" in said
    )
    assert learner_of(tmp_path / "m.arrow").alpha == 0.1


def test_what_cannot_choose_says_so(log: str, auto: Path, say: Say) -> None:
    with pytest.raises(
        InputError, match='learner.alpha = "auto" is chosen on the first rows, which are then learned'
    ):
        with_rates(parse_spec(AUTO), Log(["-"]))
    code, _, said = say("trainer", auto, f"rows={log}", "--once")
    assert (
        code == 2 and 'learner.alpha = "auto" is chosen on the first rows of a log, by `ftrie train`' in said
    )
    with pytest.raises(SpecError, match="here give a number"):
        ftrie.Learner(ftrie.Spec(AUTO))


@pytest.mark.parametrize("line", ['l2 = "auto"', 'alpha = "automatic"', 'theta = "auto"'])
def test_only_alpha_beta_and_l1_may_be_auto(line: str) -> None:
    with pytest.raises(SpecError, match=f"learner.{line.split()[0]}"):
        parse_spec(SPEC.replace("alpha = 0.2", line))


def test_auto_survives_its_json_form() -> None:
    spec: Any = parse_spec(AUTO)
    again = ftrie.Spec(ftrie.Spec.of(spec).to_dict()).model_spec
    assert again.learner.auto == ("alpha", "beta") and again.sha256 == spec.sha256
