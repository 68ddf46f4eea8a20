"""Slices: which rows a value's group holds, what can be sliced by, and what stays bounded."""

from __future__ import annotations

import pytest

from model_store.errors import SpecError
from model_store.features.features import FeaturePlan
from model_store.spec.spec import parse_spec
from tests.trainer.learn.metrics_rows import add_log, made_up
from tests.trainer.learn.test_metrics import NAMES, assert_differences_are, assert_metrics_are
from trainer.learn.metrics.metrics import ProgressiveMetrics
from trainer.learn.metrics.tally import Slice, SlicedMetrics

PREFIXES = {
    "age": b"age=",
    "tags": b"tags=",
    "hour": b"hour=",
    "price": b"price=",
    "age*brand": b"age*brand=",
    "age*brand=": b"age*brand=",
    "age*brand=30*": b"age*brand=30*",
    "age*brand=4%2A0*p": b"age*brand=4%2A0*p",
    "age=4": b"age=4",
    "brand*price*age=": b"brand*price*age=",
    "tags*brand=a*": b"tags*brand=a*",
    "P_N_1": b"P_N_1",
    "hashes": b"",
}


def values_of(log, name):
    """The rows of every value of a slice, found in the keys that the reference makes; in order of arrival."""
    fields = [each.name for each in log.slice(name).fields]
    crosses = f"[[crosses]]\nfields = {fields}\n" if len(fields) > 1 else ""
    text = '[model]\nname = "m"\n[input]\nlabel = "click"\n[fields]\n'
    for field in sorted(fields, key=fields.index):
        spec = log.plan.fields[[each.name for each in log.plan.fields].index(field)].spec
        keys = {"kind": spec.kind, "bucket": spec.bucket, "part": spec.part, "format": spec.format}
        keys["separator"] = spec.separator
        given = ", ".join(f'{key} = "{value}"' for key, value in keys.items() if value)
        text += f"{field} = {{ {given} }}\n"
    plan = FeaturePlan.of(parse_spec(text + crosses))
    start = b"*".join(field.encode() for field in fields) + b"=" if "hashes" not in fields else b""
    values = {}
    for cell, row in zip(log.cells, log.rows, strict=True):
        found = [key for key, _, _ in plan.keys(cell)[1:] if key.startswith(start)]
        for key in found:
            if key.startswith(PREFIXES[name]):
                values.setdefault(key.removeprefix(start).decode(), []).append(row)
        if not found and fields == [name]:
            values.setdefault("", []).append(row)
    return values


@pytest.mark.parametrize("name", PREFIXES)
def test_every_value_has_its_own_rows(name):
    log = made_up(400, seed=3)
    metrics, plain = (
        ProgressiveMetrics(NAMES, slices=[log.slice("brand"), log.slice(name)]),
        ProgressiveMetrics(NAMES),
    )
    add_log(metrics, log, 57), add_log(plain, log)
    assert metrics.summary() == plain.summary()
    expected = values_of(log, name)
    found = metrics.slices()[name]
    assert {each.value: each.rows for each in found} == {value: len(rows) for value, rows in expected.items()}
    assert [each.rows for each in found] == sorted((each.rows for each in found), reverse=True)
    for each in found[:5]:
        rows = expected[each.value]
        assert_metrics_are(each, rows, auc_within=0.05)
        if len(rows) > 50:
            assert_differences_are(each, rows)


def test_values_that_come_late_are_counted_together():
    log = made_up(300, seed=4)
    metrics = ProgressiveMetrics(NAMES, slices=[log.slice("hour")])
    metrics._slices = SlicedMetrics([log.slice("hour"), log.slice("age")], NAMES, limit=3)
    add_log(metrics, log, 40)
    expected = values_of(log, "hour")
    first = list(expected)[:3]
    *kept, other = metrics.slices()["hour"]
    assert {each.value for each in kept} == set(first) and other.value is None
    assert other.rows == sum(len(rows) for value, rows in expected.items() if value not in first)
    assert len(metrics.slices()["age"]) == 4


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("agee", "'agee' is neither a field nor a key prefix such as 'device\\*os='; fields: age, tags"),
        ("", "is neither a field"),
        ("agee*brand=", "is neither a field"),
        ("size", "size is a real number and has one key for all its values"),
        ("age*brand=a*b*c", "has 3 values for 2 fields"),
        ("age*brand*tags*price*hour=", "combines 5 fields; at most 4 are allowed"),
        ("age*hashes=", "combines raw keys"),
    ],
)
def test_what_cannot_be_sliced_by_is_a_spec_error(name, reason):
    plan = made_up(1).plan
    if "hashes" not in name:  # without a raw field nothing else can be meant
        plan = FeaturePlan(plan.fields[:-1], plan.crosses, plan.variants, plan.shares)
    with pytest.raises(SpecError, match=reason):
        Slice.of(name, plan)
