"""Model.predict scores what a real server scores, and answers with one row for each row of the data.

The uncertainty of a server leaves out the keys that the model lacks, except of adpredictor; that of `predict` has them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ftrie
from model_store.store import Store
from tests.ftrie.api.logs import bare
from tests.matrix import examples, slow_except
from tests.server import shop
from tests.server.one_process import Server

QUALITY = {"quality": {"side": "item", "kind": "number", "scale": "standard"}}
SPEC = ftrie.Spec(shop.SPEC).merge(fields=QUALITY, learner={"alpha": 0.2})
SPECS = {
    "one weight": SPEC,
    "weights of each variant": SPEC.merge(learner={"values": "per_variant"}),
    "isotonic": SPEC.merge(calibration={"kind": "isotonic", "by": "age"}),
    "power": SPEC.merge(calibration={"kind": "power"}),
    "adpredictor": SPEC.merge(learner={"algorithm": "adpredictor", "alpha": None}),
}
USER, CONTEXT, ITEM = ("age", "device", "likes"), ("hour", "distance"), ("brand", "tags", "price", "quality")
ROWS, ASKED = 1_500, 40


def shop_log() -> pa.Table:
    """Clicks on the shop's items, with values of every kind, some of them missing."""
    random = np.random.default_rng(3)
    age, brand = random.integers(0, 3, ROWS), random.integers(0, 4, ROWS)
    price = random.lognormal(2, 1, ROWS)
    liked = [[("red", 0.5), ("blue", -2.0), ("x*y=%z", 1.25)][:each] for each in random.integers(0, 4, ROWS)]
    return pa.table(
        {
            "click": (random.random(ROWS) < 0.1 + 0.4 * (age == brand)).astype(int),
            "age": pa.array([shop.AGES[each] for each in age]),
            "device": pa.array([f"u{each}" for each in random.integers(0, 50, ROWS)]),
            "likes": pa.array(liked, pa.map_(pa.string(), pa.float64())),
            "hour": pa.array([shop.HOURS[each] for each in random.integers(0, 2, ROWS)]),
            "distance": pa.array(random.normal(0, 1, ROWS), mask=random.random(ROWS) < 0.1),
            "brand": pa.array([f"b{each}" for each in brand], mask=random.random(ROWS) < 0.1),
            "tags": pa.array([["red", "green", "ü"][:each] for each in random.integers(0, 4, ROWS)]),
            "price": pa.array(price, mask=random.random(ROWS) < 0.1),
            "quality": random.normal(3, 2, ROWS),
        }
    )


@pytest.mark.parametrize("kind", slow_except(["isotonic", "adpredictor"], SPECS))
def test_a_server_scores_the_same(kind: str, store: Store, start: Callable[[], Server]) -> None:
    log = shop_log()
    model = ftrie.train(SPECS[kind], log, progress=False).model
    versions = store.model("shop")
    versions.activate(versions.publish(model.artefact))
    server = start()
    assert server.ready.wait(180)
    asked = log.slice(ROWS - ASKED).drop_columns(["click"])
    found = model.predict(asked, score=True, uncertainty=True)
    rows = asked.to_pylist(maps_as_pydicts="strict")
    with ftrie.Client(server.address, timeout_s=20.0) as client:
        for variant in model.variants:
            served = [serve(client, row, variant) for row in rows]
            assert len({each.score for each in served}) > ASKED / 2
            for column, figure in ((variant, "ctr"), (f"{variant}.score", "score")):
                expected = [getattr(each, figure) for each in served]
                assert found[column].to_pylist() == pytest.approx(expected, rel=1e-12, abs=1e-12)
            uncertainty = found[f"{variant}.uncertainty"].to_pylist()
            if kind == "adpredictor":
                expected = [each.objective for each in served]
                assert uncertainty == pytest.approx(expected, rel=1e-12, abs=1e-12)
                continue
            for row, bound, each in list(zip(rows, uncertainty, served, strict=True))[:5]:
                lines = model.explain(row, variant).table.to_pylist()
                known = sum(
                    line["learning_rate"] * abs(line["x"]) for line in lines if line["weight"] is not None
                )
                assert each.objective == pytest.approx(known, rel=1e-12)
                assert bound >= each.objective * (1 - 1e-12)


def serve(client: ftrie.Client, row: dict[str, Any], variant: str) -> Any:
    """The server's answer for a row; `objective` is the uncertainty."""
    user, context, item = (
        {name: row[name] for name in names if row[name] is not None} for names in (USER, CONTEXT, ITEM)
    )
    asked: dict[str, Any] = {"user": user, "context": context, "items": {"it": item}, "variant": variant}
    answer = client.rank(candidates=["it"], objective="uncertainty", **asked)
    assert not answer.unknown_fields and not answer.degraded
    return answer.items[0]


PRICE = {"kind": "number", "side": "item"}
LISTED = bare(fields={"a": {}, "p": PRICE, "rank": {"list": "rank", "of": "p", **PRICE}}, request="r")
GOOD = {"csv": "{request},1,{price}\n", "jsonl": '{{"r": "{request}", "a": "1", "p": {price}}}\n'}
BAD = {
    "csv": ["r,1\n", "r,1,2,3\n", "r,1,much\n"],
    "jsonl": ["{broken\n", "[]\n", '{"r": "r", "a": "1", "p": "much"}\n'],
}


@pytest.fixture(scope="module")
def listed() -> ftrie.Model:
    data = {"y": [1, 0, 0, 1] * 9, "r": list("aabb") * 9, "a": ["1", "2"] * 18, "p": [2.0, 1.0, 5.0, 7.0] * 9}
    return ftrie.train(LISTED, data, progress=False).model


@pytest.mark.filterwarnings("ignore::ftrie.FtrieWarning")
@settings(examples(40))
@given(
    form=st.sampled_from(["csv", "jsonl"]),
    lines=st.lists(st.none() | st.integers(0, 2), min_size=1, max_size=30),
    files=st.integers(1, 2),
)
def test_a_row_that_cannot_be_read_keeps_its_place(
    listed: ftrie.Model,
    tmp_path_factory: pytest.TempPathFactory,
    form: str,
    lines: list[int | None],
    files: int,
) -> None:
    """`lines` are those of a file: a good row, or one of three bad ones. Requests have up to three rows."""
    path: Path = tmp_path_factory.mktemp("log") / f"log.{form}"
    texts = [
        GOOD[form].format(request=number // 3, price=number + 1) if bad is None else BAD[form][bad]
        for number, bad in enumerate(lines)
    ]
    first = GOOD[form].format(request="first", price=1)
    path.write_text(("r,a,p\n" if form == "csv" else "") + first + "".join(texts))
    found = listed.predict([path] * files)["base"].to_pylist()
    assert [each is None for each in found] == [False, *(bad is not None for bad in lines)] * files
    # A row with a bad value is one of its request, among which `rank` ranks; one that cannot be read is not.
    readable = [line for line, bad in zip(texts, lines, strict=True) if bad in (None, 2)]
    path.write_text(("r,a,p\n" if form == "csv" else "") + first + "".join(readable))
    without = listed.predict([path] * files)["base"].drop_null().to_pylist()
    assert [each for each in found if each is not None] == without
