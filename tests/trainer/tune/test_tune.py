"""Tuning against plain training: a candidate must do as the model it stands for, whichever way it was learned."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from ftrie.cli import run
from model_store.errors import InputError, SpecError
from model_store.spec.spec import load_spec, parse_spec
from tests.worlds import SPEC, shop_rows
from trainer.examples.open_log import Log
from trainer.formats.rejects import RejectLog
from trainer.runs.train import train
from trainer.tune.candidates import candidates_of
from trainer.tune.halving import Comparison, tune
from trainer.tune.passes import RepeatedLog
from trainer.tune.search import with_best

ONE_VARIANT = SPEC[: SPEC.index("[variants]")] + SPEC[SPEC.index("[learner]") :]
NO_LEARNER = ONE_VARIANT[: ONE_VARIANT.index("[learner]")]
GRID = ["alpha=0.05,0.2,0.8", "l1=0,0.5"]


@pytest.fixture
def log(tmp_path):
    rows = shop_rows(400, 3)
    path = tmp_path / "log.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({name: value.decode() for name, value in row.items()} for row in rows)
    return str(path)


def trained(text, log):
    with RejectLog() as rejects:
        return train(parse_spec(text), Log([log]), rejects=rejects)


def tuned(text, log, tries=GRID, **judge):
    spec = parse_spec(text)
    return tune(spec, candidates_of(spec, tries), RepeatedLog(Log([log])), Comparison(**judge))


def by_parameters(found):
    return {tuple(each.parameters.values()): each for each in found.ranking}


@pytest.mark.parametrize("shared", [False, True])
def test_a_candidate_does_as_the_model_it_stands_for(log, shared):
    text = SPEC if shared else ONE_VARIANT
    found = by_parameters(tuned(text, log))
    assert len(found) == 6
    for (alpha, l1), each in found.items():
        alone = trained(with_best(text, parse_spec(text), {"alpha": alpha, "l1": l1}), log)
        first = next(iter(alone.report.variants.values()))
        assert each.outcome.metrics.logloss == pytest.approx(first.logloss, rel=1e-9)
        assert each.outcome.metrics.auc == pytest.approx(first.auc, rel=1e-9)
        if not shared:
            assert each.outcome.nonzero == alone.report.nonzero


def test_candidates_of_one_variants_parameters_share_a_pass_and_are_ranked(log):
    found = tuned(ONE_VARIANT, log)
    assert (found.passes, found.rejected) == (1, 0)
    losses = [each.outcome.metrics.logloss for each in found.ranking]
    assert losses == sorted(losses)
    aucs = [each.outcome.metrics.auc for each in tuned(ONE_VARIANT, log, by="auc").ranking]
    assert aucs == sorted(aucs, reverse=True)


@pytest.mark.slow
def test_algorithms_learn_side_by_side(log):
    found = by_parameters(tuned(ONE_VARIANT, log, ["algorithm=ftrl,ogd,rda", "alpha=0.1,0.4"]))
    for algorithm, alpha in found:
        same = f'{NO_LEARNER}[learner]\nalgorithm = "{algorithm}"\nalpha = {alpha}\nbeta = 0.7\n'
        same += "l1 = 0.05\nl2 = 0.4\n" if algorithm == "ftrl" else ""
        loss = trained(same, log).report.variants["base"].logloss
        assert found[algorithm, alpha].outcome.metrics.logloss == pytest.approx(loss, rel=1e-9)


def test_the_last_part_alone_judges(log, tmp_path):
    found = tuned(ONE_VARIANT, log, last=0.1)
    assert {each.judged_rows for each in found.ranking} == {40}
    lines = Path(log).read_text("utf-8").splitlines(keepends=True)
    shorter = tmp_path / "shorter.csv"
    shorter.write_text("".join(lines[:361]), encoding="utf-8")
    weights = [float(row["importance"]) for row in csv.DictReader(lines)]
    for (alpha, l1), each in by_parameters(found).items():
        text = with_best(ONE_VARIANT, parse_spec(ONE_VARIANT), {"alpha": alpha, "l1": l1})
        whole, before = trained(text, log).model.metrics, trained(text, str(shorter)).model.metrics
        total = whole.logloss() * np.sum(weights) - before.logloss() * np.sum(weights[:360])
        assert each.outcome.metrics.logloss == pytest.approx(total / np.sum(weights[360:]), rel=1e-6)


def test_halving_gives_the_best_ever_more_rows(log):
    tries = ["alpha=0.01,0.03,0.1,0.3,1,3", "l1=0,0.5"]
    found = tuned(ONE_VARIANT, log, tries, first_rung=40)
    assert [each.rows for each in found.ranking] == [400, 360, 120, 120] + [40] * 8
    best, alone = found.ranking[0], by_parameters(tuned(ONE_VARIANT, log, tries))
    same = alone[tuple(best.parameters.values())]
    assert best.outcome.metrics.logloss == pytest.approx(same.outcome.metrics.logloss, rel=1e-9)


def test_a_rung_longer_than_the_log_is_the_last(log):
    assert [each.rows for each in tuned(ONE_VARIANT, log, first_rung=1000).ranking] == [400] * 6


@pytest.mark.parametrize(
    ("learner", "candidates", "names"),
    [
        ("", 24, ["alpha", "beta", "l1", "l2"]),
        ("l1 = 0.0", 24, ["alpha", "beta", "l1", "l2"]),
        ('algorithm = "ogd"', 8, ["alpha", "beta"]),
        ('algorithm = "ogd"\nl1 = 0.5', 24, ["alpha", "beta", "l1"]),
        ('algorithm = "rda"', 12, ["alpha"]),
        ('algorithm = "rda"\nl1 = 0.01', 24, ["alpha", "l1"]),
        ('algorithm = "truncation"\ntheta = 0.1', 8, ["alpha", "beta"]),
        ('algorithm = "adpredictor"', 8, ["alpha", "beta"]),
    ],
)
def test_without_values_to_try_one_pass_of_candidates_is_tried_around_the_specs_own(
    learner, candidates, names
):
    spec = parse_spec(NO_LEARNER + "[learner]\n" + learner)
    found = candidates_of(spec, [])
    assert (len(found), list(found[0])) == (candidates, names)
    assert {name: getattr(spec.learner, name) for name in names} in found


@pytest.mark.parametrize(
    ("tries", "message"),
    [
        (["gamma=1"], "expected NAME=VALUE"),
        (["alpha"], "expected NAME=VALUE"),
        (["alpha=0.1,"], "a value is missing"),
        (["alpha=-1"], "learner.alpha"),
        (["algorithm=truncation"], "needs theta"),
        (["algorithm=truncation", "theta=0.1", "l1=1"], "l1 does not belong"),
        (["algorithm=ogd", "rate=global", "l1=1"], "l1 does not fit"),
        (["shrink=fixed"], "belongs to truncated_gradient"),
    ],
)
def test_values_that_fit_no_learner_are_refused(tries, message):
    with pytest.raises(SpecError, match=message):
        candidates_of(parse_spec(ONE_VARIANT), tries)


def test_a_variant_with_its_own_parameters_cannot_be_tuned(log):
    text = '[model]\nname = "m"\n[input]\nlabel = "click"\n[variants]\na = { alpha = 1.0 }\n'
    text += '[learner]\nvalues = "per_variant"\n'
    with pytest.raises(SpecError, match="variants.a sets alpha"):
        tuned(text, log)
    with pytest.raises(SpecError, match="no variant 'b'"):
        tuned(text, log, variant="b")


@pytest.mark.parametrize(
    ("text", "best", "expected"),
    [
        (
            NO_LEARNER + "[learner]\nrate_scale = 0.5\nrate_decay = 2\nl1 = 3\n",
            {"alpha": 0.7},
            ("ftrl", 0.7, 0.5, 3.0),
        ),
        (ONE_VARIANT, {"algorithm": "ogd"}, ("ogd", 0.3, 0.7, 0.0)),
        ('[model]\nname = "m"\n[input]\nlabel = "click"\n', {"alpha": 0.7}, ("ftrl", 0.7, 1.0, 1.0)),
    ],
    ids=["the other form of the rate", "another algorithm", "no learner"],
)
def test_the_best_spec_has_the_best_learner_and_nothing_that_it_does_not_have(text, best, expected):
    found = parse_spec(with_best(text, parse_spec(text), best)).learner
    assert (found.algorithm, found.alpha, found.beta, found.l1) == expected


def test_the_best_spec_keeps_all_that_is_not_tuned_or_says_what_to_write():
    text = ONE_VARIANT.replace("[learner]", "# the learner\n[learner]  # FTRL").replace(
        "alpha = 0.3", "alpha = 0.3  # from last week"
    )
    best = with_best(text, parse_spec(text), {"alpha": 1e-05, "l1": 0})
    assert best == text.replace("alpha = 0.3  #", "alpha = 1e-05  #").replace("l1 = 0.05", "l1 = 0")
    text = 'learner.alpha = 0.2\nmodel.name = "m"\ninput.label = "click"\n'
    with pytest.raises(SpecError, match=r"set in its \[learner\]: alpha = 0\.7"):
        with_best(text, parse_spec(text), {"alpha": 0.7})


def test_the_command_ranks_and_writes_the_best_spec(log, tmp_path, capsys):
    spec, best = tmp_path / "shop.toml", tmp_path / "best.toml"
    spec.write_text(ONE_VARIANT, encoding="utf-8")
    flags = f"--try alpha=0.05,0.4 --judge-last 0.5 --widen 0 -o {best} --json"
    arguments = ["tune", str(spec), log, *flags.split()]
    assert run(arguments) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [entry["judged_rows"] for entry in answer["ranking"]] == [160, 160]
    assert answer["judged"]["rows"] == 80
    assert (
        load_spec(best).learner.alpha
        == answer["best"]["alpha"]
        == answer["ranking"][0]["parameters"]["alpha"]
    )
    assert run(arguments) == 1 and "exists" in capsys.readouterr().err
    assert run([*arguments, "--force"]) == 0


def test_standard_input_serves_one_pass_only():
    spec = parse_spec(ONE_VARIANT)
    with pytest.raises(InputError, match="only once"):
        tune(spec, candidates_of(spec, GRID), RepeatedLog(Log(["-"])), Comparison(last=0.1))
