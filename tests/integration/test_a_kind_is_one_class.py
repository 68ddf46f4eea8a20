"""A kind of field is added by the diff in CONTRIBUTING.md, and learned from logs and events as it is served."""

from __future__ import annotations

import math
import random
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import ftrie
from ftrie.api.ranker import Ranker
from model_store.errors import SpecError
from model_store.features.features import FeaturePlan
from model_store.spec import kinds
from model_store.spec.kinds import KINDS
from server.model.event_form import Form
from tests.repository.pages import ROOT

FILE = "model_store/spec/kinds.py"
SPEC = """
[model]
name = "addresses"
[input]
label = "click"
timestamp = "ts"
request = "request"
item = "item"
[fields]
ip = { side = "user", kind = "network" }
item = { side = "item" }
host = { side = "item", kind = "network", optional = true }
[[crosses]]
fields = ["ip", "item"]
[learner]
l1 = 0.0
"""
HOSTS = {"a": "10.0.0.1", "b": "10.0.7.1", "c": "192.168.0.1"}
BAD = "10.0.0"


@pytest.fixture(autouse=True)
def network(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kind of the page, once its diff fits the file."""
    page, file = ((ROOT / name).read_text("utf-8") for name in ("CONTRIBUTING.md", FILE))
    (diff,) = re.findall(rf"```diff\n--- a/{FILE}\n\+\+\+ b/{FILE}\n(.*?)```", page, re.DOTALL)
    for hunk in re.split(r"^@@.*\n", diff, flags=re.MULTILINE)[1:]:
        before, after = (
            "".join(f"{line[1:]}\n" for line in hunk.splitlines() if line[:1] != sign) for sign in "+-"
        )
        assert file.count(before) == 1
        file = file.replace(before, after)
    compile(file, FILE, "exec")
    new = "\n".join(line[1:] for line in diff.splitlines() if line[:1] == "+" and "KINDS" not in line)
    scope = dict(vars(kinds))
    exec(new, scope)
    monkeypatch.setitem(KINDS, "network", scope["Network"])


def rows() -> list[dict[str, Any]]:
    """Requests of one item; clicks depend on the user's largest network. One address is none."""
    draw, found = random.Random(7), []
    for number in range(400):
        first, item = draw.choice([10, 172]), draw.choice(list(HOSTS))
        ip = f"{first}.{draw.randrange(3)}.{draw.randrange(3)}.{draw.randrange(256)}"
        click = int(draw.random() < (0.8 if first == 10 else 0.1))
        found.append({"request": f"r{number}", "ts": 1_000_000.0 + 10 * number, "item": item, "ip": ip})
        found[-1] |= {"host": HOSTS[item] if number % 5 else "", "click": click}
    found[17]["ip"] = BAD
    return found


def events(form: Form) -> str:
    """The rows as a server logs them, and the clicks."""
    lines = []
    for row in rows():
        user, _ = form.request({"ip": row["ip"]})
        shown = form.shown(row["item"], {"host": row["host"]})
        head = f'"request_id":"{row["request"]}","ts":{row["ts"]}'
        lines.append(f'{{{head},"user":{{{user}}},"items":[{{{shown}}}]}}')
        if row["click"]:
            lines.append(f'{{"request_id":"{row["request"]}","ts":{row["ts"] + 1},"item":"{row["item"]}"}}')
    return "\n".join(lines) + "\n"


def keys_of(model: ftrie.Model, row: dict[str, Any]) -> list[bytes]:
    plan = FeaturePlan.of(model.spec.model_spec)
    return [key for key, x, _ in plan.keys(row) if x == 1.0]


def test_a_new_kind_is_learned_from_any_log_and_served_as_learned(tmp_path: Path) -> None:
    table = pa.Table.from_pylist(rows())
    pyarrow.csv.write_csv(table, tmp_path / "log.csv")
    pyarrow.parquet.write_table(table, tmp_path / "log.parquet")
    spec = ftrie.Spec(SPEC)
    form = Form(spec.model_spec, FeaturePlan.of(spec.model_spec))
    (tmp_path / "events.jsonl").write_text(events(form))
    assert form.request({"ip": "10.1.2.3"}) == ('"ip":"10.1.2.3"', "")

    models = []
    for name in ("log.csv", "log.parquet", "events.jsonl"):
        with pytest.warns(ftrie.FtrieWarning, match="got '10.0.0', expected an IPv4 address"):
            models.append(ftrie.train(spec, [str(tmp_path / name)], progress=False).model)
    model = models[0]
    weights = model.weights().to_pylist()
    assert all(other.weights().to_pylist() == weights for other in models[1:])

    good = [row for row in rows() if row["ip"] != BAD]
    learned = {key for row in good for key in keys_of(model, row)}
    artefact = model.artefact
    assert {artefact.key(row) for row in range(artefact.rows)} == learned
    assert {b"ip=10", b"ip=10.1", b"ip=10.1.2", b"host=10.0", b"ip*item=10.1*a"} <= learned

    weight_of = {artefact.key(row): float(artefact.weight[row]) for row in range(artefact.rows)}
    ranker = Ranker(model, {item: {"host": host} for item, host in HOSTS.items()})
    for row in good[:20]:
        ranking = ranker.rank(user={"ip": row["ip"]}, candidates=list(HOSTS))
        told = model.predict(
            pa.Table.from_pylist([{**row, "item": item, "host": HOSTS[item]} for item in HOSTS])
        )
        expected = dict(zip(HOSTS, told["base"].to_pylist(), strict=True))
        for scored in ranking.items:
            example = {"ip": row["ip"], "item": scored.id, "host": HOSTS[scored.id]}
            log_odds = sum(weight_of.get(key, 0.0) for key in keys_of(model, example))
            assert scored.ctr == pytest.approx(expected[scored.id], abs=1e-12)
            assert scored.ctr == pytest.approx(1.0 / (1.0 + math.exp(-log_odds)), abs=1e-6)
    with pytest.raises(ftrie.FtrieError, match="got '10.0.0', expected an IPv4 address"):
        ranker.rank(user={"ip": BAD}, candidates=["a"])

    learner = ftrie.Learner(spec)
    for row in good:
        learner.learn_one(row, row["click"])
    assert learner.model.weights().to_pylist() == weights


def test_its_options_are_checked() -> None:
    with pytest.raises(
        ftrie.FtrieError, match="fields.ip: bucket belongs to kind = .set. or .number.; this field's"
    ):
        ftrie.Spec(SPEC.replace('kind = "network" }', 'kind = "network", bucket = "log" }', 1))
    with pytest.raises(
        SpecError, match="fields.ip.kind: got 'net'; input should be 'category', .* or 'network'"
    ):
        ftrie.Spec(SPEC.replace('"network"', '"net"', 1))
