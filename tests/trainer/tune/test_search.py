"""The whole search: what is chosen on which rows, edges, and searches that are stopped and go on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ftrie.cli import run
from model_store.errors import CheckpointError, InputError, SpecError
from model_store.spec.spec import load_spec, parse_spec
from tests.trainer.tune.logs import SPEC, write_log
from tests.waiting import eventually
from trainer.examples.open_log import Log
from trainer.formats.rejects import RejectLog
from trainer.runs.evaluate import evaluate
from trainer.runs.train import train
from trainer.tune.candidates import Edge, candidates_of, with_parameters
from trainer.tune.halving import Comparison, LastPart, measure
from trainer.tune.passes import RepeatedLog, SearchState
from trainer.tune.search import SearchOptions, search

GRID = ["alpha=0.05,0.2,0.8", "l1=0,0.5"]


@pytest.fixture
def log(tmp_path):
    return write_log(tmp_path / "log.csv", 1000, 3, effect=0.8)


def spec_in(folder, text=SPEC):
    (folder / "spec.toml").write_text(text, encoding="utf-8")
    return str(folder / "spec.toml")


def found_in(log, text=SPEC, tries=GRID, hold_out="0.2", crosses=False, **compare):
    spec = parse_spec(text)
    options = SearchOptions(Comparison(**compare), LastPart.of(hold_out), crosses)
    return search(spec, candidates_of(spec, tries), RepeatedLog(Log([log])), options)


def test_nothing_is_chosen_on_the_last_part(log, tmp_path):
    found = found_in(log, crosses=True, widen=1)
    lines = Path(log).read_text("utf-8").splitlines()
    flipped = [*lines[:801], *("01"[line[0] == "0"] + line[1:] for line in lines[801:])]
    other = tmp_path / "flipped.csv"
    other.write_text("\n".join(flipped), encoding="utf-8")
    again = found_in(str(other), crosses=True, widen=1)
    assert [each.as_dict() for each in again.tuning.ranking] == [
        each.as_dict() for each in found.tuning.ranking
    ]
    assert again.pairs == found.pairs
    for before, after in zip(found.judged, again.judged, strict=True):
        assert after.best.metrics.logloss > before.best.metrics.logloss


def test_a_best_that_is_worse_on_the_last_part_leaves_the_spec_as_it_was_given(log, tmp_path, capsys):
    """Given a log whose last part does the opposite, when it is tuned, then the file has the spec as given."""
    lines = Path(log).read_text("utf-8").splitlines()
    flipped = [*lines[:801], *("01"[line[0] == "0"] + line[1:] for line in lines[801:])]
    Path(log).write_text("\n".join(flipped), encoding="utf-8")
    spec, best = spec_in(tmp_path, SPEC.replace("alpha = 0.2", "alpha = 0.001")), tmp_path / "best.toml"
    assert run(["tune", spec, log, "--try", "alpha=0.001,0.5", "-o", str(best), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["best"]["alpha"] == 0.5 and answer["kept"] == "given"
    assert any("worse than the spec as given, which stays" in each for each in answer["warnings"])
    assert best.read_text() == Path(spec).read_text()


def parts_of(log, folder):
    """The first 800 rows of a log, and the others, as logs."""
    head, *lines = Path(log).read_text("utf-8").splitlines(keepends=True)
    for name, part in {"first.csv": lines[:800], "rest.csv": lines[800:]}.items():
        (folder / name).write_text("".join([head, *part]), encoding="utf-8")
    return Log([str(folder / "first.csv")]), Log([str(folder / "rest.csv")])


def test_the_best_is_judged_frozen_as_evaluate_and_learning_on_as_train_report_it(log, tmp_path, capsys):
    best = tmp_path / "best.toml"
    assert run(["tune", spec_in(tmp_path), log, "--crosses", "-o", str(best), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    found = found_in(log, tries=[], crosses=True, widen=2, l2=True, frozen=True)
    assert answer["ranking"] == [each.as_dict() for each in found.tuning.ranking]
    assert [cross.fields for cross in load_spec(best).crosses] == [("a", "b")]
    first, rest = parts_of(log, tmp_path)
    with RejectLog() as rejects:
        whole = train(load_spec(best), Log([log]), rejects=rejects).model.metrics.logloss()
        model = train(load_spec(best), first, rejects=rejects).model
        judged = evaluate(model.artefact(), rest, rejects=rejects).variants["base"].logloss
    progressive = (1000 * whole - 800 * model.metrics.logloss()) / 200
    for each, expected, name in zip(
        found.judged, (judged, progressive), ("judged", "judged_learning"), strict=True
    ):
        assert each.rows == 200 and each.best.metrics.logloss == pytest.approx(expected, rel=1e-6)
        assert each.difference.mean == pytest.approx(each.best.metrics.logloss - each.given.metrics.logloss)
        assert answer[name] == each.as_dict()
    assert judged != pytest.approx(progressive, rel=1e-4)


@pytest.mark.parametrize("batch", [1 << 9, 1 << 24])
def test_by_default_candidates_are_ranked_as_models_of_the_rows_before_each_tenth_would_be(
    log, tmp_path, batch
):
    head, *lines = Path(log).read_text("utf-8").splitlines(keepends=True)
    spec, losses = parse_spec(SPEC), []
    for begin in range(80, 800, 80):
        parts = []
        for rows in (lines[:begin], lines[begin : begin + 80]):
            parts.append(tmp_path / f"{len(parts)}.csv")
            parts[-1].write_text("".join([head, *rows]), encoding="utf-8")
        with RejectLog() as rejects:
            model = train(spec, Log([str(parts[0])]), rejects=rejects).model.artefact()
            losses.append(evaluate(model, Log([str(parts[1])]), rejects=rejects).variants["base"].logloss)
    options = SearchOptions(Comparison(frozen=True), LastPart.of("0.2"))
    found = search(
        spec, candidates_of(spec, ["alpha=0.2"]), RepeatedLog(Log([log], batch_bytes=batch)), options
    )
    (only,) = found.tuning.ranking
    assert only.judged_rows == 720 and only.outcome.metrics.logloss == pytest.approx(
        np.mean(losses), rel=1e-6
    )


def test_a_best_that_is_worse_once_frozen_is_warned_of(tmp_path):
    """Values whose click rate turns over every 500 rows: who learns fast follows it, and is wrong when frozen."""
    rows = [f"{(row // 500 + row) % 2},{1_700_000_000 + row},a{row % 2},,," for row in range(3400)]
    log = tmp_path / "log.csv"
    log.write_text("\n".join(["click,ts,a,b,c,d", *rows]), encoding="utf-8")
    given = SPEC.replace("alpha = 0.2", "alpha = 0.01")
    found = found_in(str(log), given, tries=["alpha=0.01,2"], hold_out="400s")
    frozen, learning = found.judged
    assert found.best["alpha"] == 2 and learning.difference.mean < 0.0 < frozen.difference.mean
    assert [each for each in found.warnings() if "judged frozen, the best is worse" in each]


def test_a_time_span_holds_out_the_rows_within_it(log):
    extent = measure(RepeatedLog(Log([log])), parse_spec(SPEC), LastPart.of("2h"))
    assert (extent.rows, extent.split, extent.unordered) == (1000, 880, 0)
    assert (extent.split_time, extent.end) == ("2023-11-15T12:53:20+00:00", "2023-11-15T14:52:20+00:00")
    with pytest.raises(InputError, match="hold out a smaller part"):
        measure(RepeatedLog(Log([log])), parse_spec(SPEC), LastPart.of("9d"))
    with pytest.raises(SpecError, match=r"set input\.timestamp"):
        measure(
            RepeatedLog(Log([log])), parse_spec(SPEC.replace('timestamp = "ts"\n', "")), LastPart.of("2h")
        )


def test_a_log_out_of_order_is_warned_of(log, tmp_path):
    lines = Path(log).read_text("utf-8").splitlines(keepends=True)
    other = tmp_path / "swapped.csv"
    other.write_text("".join([lines[0], *lines[501:], *lines[1:501]]), encoding="utf-8")
    found = found_in(str(other))
    assert found.extent.unordered == 500
    assert any("not in order of time" in each for each in found.warnings())


def test_a_best_on_the_edge_is_widened_until_it_is_not(log):
    narrow = found_in(log, tries=["alpha=0.001,0.002"])
    assert narrow.tuning.edges == (Edge("alpha", 0.002, "largest"),)
    assert any("larger values may be better" in each for each in narrow.warnings())
    wide = found_in(log, tries=["alpha=0.001,0.002"], widen=10)
    assert wide.tuning.edges == () and wide.best["alpha"] > 0.02
    tried = {each.parameters["alpha"] for each in wide.tuning.ranking}
    assert set(wide.tuning.widened["alpha"]) == tried - {0.001, 0.002}
    assert found_in(log, tries=[f"alpha={','.join(map(str, sorted(tried)))}"]).best == wide.best


def test_beta_is_not_widened_to_where_uncertainty_says_nothing_and_l2_is_tried_around_the_best(log):
    found = found_in(log, tries=["alpha=0.002", "beta=0.05,0.5"], widen=9)
    assert (found.best["beta"], found.tuning.edges, dict(found.tuning.widened)) == (
        0.01,
        (),
        {"beta": (0.01,)},
    )
    tried = [each.parameters for each in found_in(log, tries=[], widen=1, l2=True).tuning.ranking]
    assert {each["l2"] for each in tried} == {0.0, 1.0, 3.0, 10.0, 30.0}


def test_a_least_l1_of_zero_is_no_edge(log):
    found = found_in(log, tries=["l1=0,8"], widen=3)
    assert (dict(found.best), found.tuning.edges, dict(found.tuning.widened)) == ({"l1": 0}, (), {})


def test_candidates_that_predict_the_same_are_not_distinguishable(log):
    near, *far = found_in(log, tries=["ttl=5000,6000", "alpha=0.2,0.00001"]).tuning.ranking[1:]
    assert near.difference.may_be_zero and not any(each.difference.may_be_zero for each in far)
    assert all(each.difference.interval()[0] > 0.0 for each in far)


def test_the_difference_is_that_of_the_log_losses(log):
    ranking = found_in(log, first_rung=300).tuning.ranking
    best = ranking[0].outcome.metrics.logloss
    whole = [each for each in ranking[1:] if each.rows == ranking[0].rows]
    assert whole
    for each in whole:
        assert each.difference.mean == pytest.approx(each.outcome.metrics.logloss - best, abs=1e-12)


SHOWN = SPEC.replace('timestamp = "ts"', 'request = "ts"').replace("d = {}\n", "")


@pytest.fixture
def shown(log, tmp_path):
    """The log as lists of five: rows of the same request have the same time."""
    head, *lines = Path(log).read_text("utf-8").splitlines()
    rows = [line.split(",") for line in lines]
    lists = [",".join([click, str(at // 5), *rest]) for at, (click, _, *rest) in enumerate(rows)]
    path = tmp_path / "lists.csv"
    path.write_text("\n".join([head, *lists]) + "\n", encoding="utf-8")
    return str(path)


def test_a_measure_of_requests_ranks_and_its_differences_are_of_it(shown, tmp_path):
    by_loss = {each.outcome.metrics.logloss for each in found_in(shown, SHOWN).tuning.ranking}
    for by in ("mrr", "ndcg@3", "hit@1", "request_auc"):
        found = found_in(shown, SHOWN, by=by)
        ranking = found.tuning.ranking
        measures = [each.outcome.measure for each in ranking]
        assert measures == sorted(measures, reverse=True)
        for each in ranking[1:]:
            assert each.difference.mean == pytest.approx(each.outcome.measure - measures[0], abs=1e-12)
        for judged in found.judged:
            difference = judged.best.measure - judged.given.measure
            assert judged.rows == 200 and judged.difference.mean == pytest.approx(difference, abs=1e-12)
        assert {each.outcome.metrics.logloss for each in ranking} == by_loss
    first, rest = parts_of(shown, tmp_path)
    with RejectLog() as rejects:
        model = train(with_parameters(parse_spec(SHOWN), found.best), first, rejects=rejects).model
        orders = evaluate(model.artefact(), rest, rejects=rejects).requests.orders
    assert found.judged[0].best.measure == pytest.approx(orders["base"].auc, abs=1e-12)


def test_lists_are_predicted_whole_so_ties_are_ties_and_the_order_of_items_tells_nothing(tmp_path):
    random, head = np.random.default_rng(5), "click,ts,a,b,c"
    clicked, users, items = random.integers(0, 5, 300), random.integers(0, 9, 300), random.random((300, 5))

    def found(item, order, batch_bytes=1 << 20):
        rows = [
            f"{int(i == clicked[r])},{r},u{users[r]},{item(r, i)},"
            for r in range(300)
            for i in sorted(range(5), key=lambda i: order(r, i))
        ]
        (tmp_path / "log.csv").write_text("\n".join([head, *rows]), encoding="utf-8")
        log = RepeatedLog(Log([str(tmp_path / "log.csv")], batch_bytes=batch_bytes))
        spec = parse_spec(SHOWN)
        options = SearchOptions(Comparison(by="mrr"), LastPart.of("0.2"))
        return search(spec, candidates_of(spec, ["alpha=0.2,0.8"]), log, options)

    for size in (50, 1 << 20):  # bytes of a batch: a list in several, and all lists in one
        ties = found(lambda r, i: "", lambda r, i: i != clicked[r], size)
        outcomes = [each.outcome for each in ties.tuning.ranking]
        for each in (*outcomes, *(side for j in ties.judged for side in (j.best, j.given))):
            assert each.measure == pytest.approx(sum(1 / rank for rank in range(1, 6)) / 5, abs=1e-12)
    orders = (lambda r, i: i != clicked[r]), (lambda r, i: i == clicked[r])
    measures = [
        found(lambda r, i: f"i{int(items[r, i] * 8)}", order).tuning.ranking[0].outcome.measure
        for order in orders
    ]
    assert max(measures) - min(measures) < 0.02


def test_a_best_by_order_whose_click_rates_are_worse_than_none_is_warned_of(shown):
    text = SHOWN.replace("c = {}", "c = {}\nd = {}")
    found = found_in(shown, text, tries=["alpha=60,80"], by="hit@1", crosses=True)
    assert any("worse than the click rate alone" in each for each in found.warnings())
    found = found_in(shown, SHOWN, tries=["alpha=0.05,0.1"], by="mrr")
    assert not any("click rate alone" in each for each in found.warnings())


def test_a_measure_of_requests_needs_requests(log, shown):
    with pytest.raises(SpecError, match=r"set input\.request"):
        found_in(log, by="mrr")
    with pytest.raises(InputError, match="no request has both"):
        found_in(log, SHOWN, by="mrr")


def test_a_search_killed_during_a_pass_goes_on_and_finds_the_same(tmp_path, capsys):
    log = write_log(tmp_path / "log.csv", 20_000, 4, effect=0.5)
    state = tmp_path / "state.json"
    arguments = ["tune", spec_in(tmp_path), log, "--crosses", "--json"]

    def answer(*more):
        assert run([*arguments, *more]) == 0
        return {name: each for name, each in json.loads(capsys.readouterr().out).items() if name != "seconds"}

    def passes():
        return len(json.loads(state.read_bytes())["passes"]) if state.exists() else 0

    expected = answer()
    killed = subprocess.Popen(
        [sys.executable, "-m", "ftrie", *arguments, "--state", str(state)], stdout=subprocess.DEVNULL
    )
    eventually(lambda: passes() >= 2 or killed.poll() is not None, "the second pass")
    killed.kill()
    assert killed.wait() == -signal.SIGKILL and 2 <= passes() < expected["passes"]
    assert answer("--state", str(state)) == expected and passes() == expected["passes"]


def test_a_state_of_another_search_is_refused_with_the_reason(log, tmp_path, capsys):
    state = ["--try", "alpha=0.1,0.2", "--state", str(tmp_path / "state.json")]
    arguments = ["tune", spec_in(tmp_path), log, *state]
    assert run(arguments) == 0 and run([*arguments, "--try", "l1=0,1"]) == CheckpointError.exit_code
    assert "another grid" in capsys.readouterr().err
    other = spec_in(tmp_path, SPEC.replace("alpha = 0.2", "alpha = 0.3"))
    assert run(["tune", other, log, *state]) == CheckpointError.exit_code
    assert "another spec" in capsys.readouterr().err
    spec_in(tmp_path)
    with Path(log).open("a", encoding="utf-8") as file:
        file.write("1,1800000000,a1,b1,c1,d1\n")
    assert run(arguments) == CheckpointError.exit_code and "another log" in capsys.readouterr().err


def test_a_damaged_state_is_refused(tmp_path):
    path = tmp_path / "state.json"
    SearchState(path, {"log": "a"}).put("key", {"rows": 1})
    assert SearchState(path, {"log": "a"}).get("key") == {"rows": 1}
    path.write_bytes(path.read_bytes().replace(b'"rows":1', b'"rows":2'))
    with pytest.raises(CheckpointError, match="checksum"):
        SearchState(path, {"log": "a"})
    path.write_text("alpha = 1\n", encoding="utf-8")
    with pytest.raises(CheckpointError, match="is not a state"):
        SearchState(path, {"log": "a"})


def test_the_report_draws_candidates_parameters_and_pairs(log, tmp_path):
    said = ("log-loss minus the best", "logloss by alpha", "l1 = 0.3", "Log-loss saved by one cross", "a*b")
    arguments = ["tune", spec_in(tmp_path), log, "--crosses", "--state", str(tmp_path / "state.json")]
    for name in ("page.html", "page.svg"):
        assert run([*arguments, "--report", str(tmp_path / name)]) == 0
        text = (tmp_path / name).read_text("utf-8")
        assert all(each in text for each in said) and ("judged" in text) == (name == "page.html")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--keys", "10"], "--keys is the budget of --crosses"),
        (["--hold-out", "1"], "expected a share"),
        (["--hold-out", "soon"], "expected a time"),
        (["--by", "clicks"], "expected logloss"),
        (["--by", "log-loss", "--judge-last", "0"], "--judge-last 0"),
    ],
)
def test_flags_that_do_not_fit_are_refused(flags, message, log, tmp_path, capsys):
    assert run(["tune", spec_in(tmp_path), log, *flags]) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")
