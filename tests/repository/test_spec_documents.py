"""docs/spec.md, and keys and table of docs/formats/, against the code: every key, every default, every offset."""

from __future__ import annotations

import re
from itertools import takewhile

import numpy as np

from model_store import hash_kernels as kernels
from model_store.features.features import FeaturePlan
from model_store.spec import learner_section, sections, spec
from model_store.spec.sections import GuardSection, JoinSection
from model_store.spec.values import log_bucket
from tests.model_store.features.documented_hash import whole_key
from tests.repository.pages import tables
from trainer.learn import slots_kernels as layouts

SECTIONS = {
    "[model]": sections.ModelSection,
    "[input]": sections.InputSection,
    "[fields]": sections.FieldSpec,
    "[[crosses]]": sections.Cross,
    "[variants]": sections.Variant,
    "[learner]": learner_section.LearnerSection,
    "[rules]": learner_section.Rule,
    "[calibration]": sections.CalibrationSection,
    "[join]": JoinSection,
    "[chosen]": sections.ChosenSection,
    "[guard]": GuardSection,
}


def test_every_key_of_the_spec_is_documented_and_no_other():
    for heading, section in SECTIONS.items():
        rows = tables("spec.md", f"## {heading}")
        below = rows[[row[0] for row in rows].index("key") + 1 :]
        keys = takewhile(lambda row: row[:2] not in (["kind", "value"], ["kind", "keys"]), below)
        assert [row[0] for row in keys] == list(section.model_fields), heading


def test_documented_defaults_are_the_defaults():
    defaults = {row[0]: row[1].strip('"') for row in tables("spec.md", "## [learner]")[1:] if len(row) > 1}
    for name in ("algorithm", "alpha", "beta", "l1", "l2", "k", "values", "rate", "precision", "seed"):
        default = learner_section.LearnerSection.model_fields[name].default
        assert re.split(r"[`\"; ]", defaults[name])[0] == str(default)
    rows = tables("spec.md", "## [join]")[1:]
    defaults = {row[0]: row[1].strip('`"') for row in rows}
    assert defaults == {name: str(field.default) for name, field in JoinSection.model_fields.items()}


def test_documented_buckets_are_the_buckets():
    assert [log_bucket(x) for x in (0.2, 1, 100, 1000)] == [0, 4, 26, 39]


def test_documented_keys_are_the_keys():
    examples = [row for row in tables("formats/keys.md") if len(row) == 2 and ", `" in row[0]]
    assert len(examples) == 3
    for given, key in examples:
        name, value = (part.strip("`") for part in given.split(", "))
        text = f'[model]\nname = "m"\n[input]\nlabel = "y"\n[fields]\n"{name}" = {{}}\n'
        assert FeaturePlan.of(spec.parse_spec(text)).keys({name: value})[1][0] == key.encode()


def test_the_documented_hash_is_the_hash():
    """By the constants of docs/formats/keys.md."""
    keys = [b"bias", b"brand=nike", b"age*brand=25*a-long-brand-name", b"", b"P_N_T*1=20631=", b"x" * 200]
    data = np.frombuffer(b"".join(keys), np.uint8).copy()
    offsets = np.cumsum([0, *(len(key) for key in keys)])
    hashes = np.empty(len(keys), np.uint64)
    kernels.hash_keys(data, offsets, hashes)
    assert hashes.tolist() == [whole_key(key) for key in keys]


def test_the_documented_slots_are_the_slots_and_own_values_do_not_depend_on_precision():
    for layout in ("Full", "FullCounts", "Compact", "CompactCounts", "Own", "OwnCounts"):
        rows = [row for row in tables("formats/table.md", f"## {layout}") if row[0].isdigit()]
        documented = {row[2]: (int(row[0]), int(row[1])) for row in rows}
        fields = layouts.slot_type(getattr(layouts, layout), seen=False).fields
        assert documented == {name: (field[1], field[0].itemsize) for name, field in fields.items()}
    for layout, like in (("OwnCompact", "Own"), ("OwnCompactCounts", "OwnCounts")):
        types = [layouts.slot_type(getattr(layouts, name), seen=False) for name in (layout, like)]
        assert types[0] == types[1]
