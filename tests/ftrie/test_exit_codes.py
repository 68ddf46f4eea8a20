"""Every exit code of docs/commands.md, from commands that end with it; and no error class with another one."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from model_store import errors
from model_store.errors import SpecError, UsageError
from model_store.keys import ModelKeys
from model_store.spec.spec import parse_spec
from server.settings import Settings
from tests.ftrie.conftest import Say

ROOT = Path(__file__).resolve().parents[2]
SPEC = '[model]\nname = "ads"\n[input]\nlabel = "click"\n'
BY_SIGNAL = {130, 143, 141}  # tests/ftrie/test_cli.py ends processes by each

ENDINGS = [
    (0, "--version"),
    (0, "train spec.toml log.csv"),
    (0, "doctor log.csv"),
    (1, "train spec.toml log.csv --save /nowhere/m.arrow"),
    (2, "train"),
    (2, "train spec.toml log.csv --no-such-flag"),
    (2, "train bad.toml log.csv"),
    (2, "train spec.toml log.csv --checkpoint state --every never"),
    (2, "train spec.toml log.csv --publish-every 0s"),
    (2, "train spec.toml log.csv --init-from last-week"),
    (2, "train spec.toml log.csv --save log.csv"),
    (2, "trainer spec.toml --every --once"),
    (2, "trainer spec.toml --once --every 0"),
    (2, "trainer spec.toml --once --publish-every soon"),
    (2, "trainer spec.toml --once --snapshot-every soon"),
    (2, "store versions a/b"),
    (2, "store versions .."),
    (2, "store gc ."),
    (2, "store import .. model.arrow"),
    (2, "store dead .."),
    (2, "experiment show .."),
    (2, "evaluate .. log.csv"),
    (2, "evaluate ads:latest log.csv"),
    (2, "serve .. --port 0"),
    (2, "trainer named-dots.toml --once"),
    (3, "train spec.toml absent.csv"),
    (3, "train spec.toml bad-row.csv --strict"),
    (4, "store import ads damaged.arrow"),
    (4, "evaluate damaged.arrow log.csv"),
    (5, "store activate ads 7"),
    (5, "evaluate ads log.csv"),
    (5, "store versions ads --store redis://127.0.0.1:1"),
    (6, "rank ads --candidates a --address 127.0.0.1:1 --timeout 0.2"),
    (7, "checkpoint of-another-spec"),
    (9, "doctor one-label.csv"),
    (8, "train-distributed spec.toml log.csv --workers 1 --address 127.0.0.1:1"),
    (11, "estimate certain.csv --policy uniform"),
    (10, "train-distributed spec.toml log.csv --workers 1 --method admm --iterations 1"),
]


FILES = {
    "spec.toml": SPEC,
    "named-dots.toml": SPEC.replace("ads", ".."),
    "bad.toml": "[model]\n",
    "log.csv": "click,age\n" + "1,25\n0,31\n" * 20,
    "one-label.csv": "click,age\n" + "0,25\n0,31\n" * 20,
    "bad-row.csv": "click,age\n1,25\n0\n",
    "certain.csv": "action,reward,propensity\n" + "a,1,1\nb,0,1\n" * 20,
    "damaged.arrow": "no model",
    "of-another-spec/00000000000000000010.checkpoint": "no checkpoint",
}


def documented() -> set[int]:
    text = (ROOT / "docs" / "commands.md").read_text()
    table = text[text.index("| exit code | meaning |") : text.index("## ftrie init")]
    return {int(code) for cell in re.findall(r"^\| ([0-9, ]+) \|", table, re.M) for code in cell.split(",")}


def test_a_command_ends_with_the_code_that_is_documented(
    tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FTRIE_STORE", store_url)
    for name, text in FILES.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    for code, words in ENDINGS:
        if code in (8, 10) and find_spec("ray") is None:
            continue
        ended, _, err = say(*words.split())
        assert ended == code, (words, err)
        assert "Traceback" not in err, words


def test_every_documented_code_is_of_a_command_here_and_of_every_error_class() -> None:
    assert documented() == {code for code, _ in ENDINGS} | BY_SIGNAL
    classes = [each for each in vars(errors).values() if isinstance(each, type)]
    assert {each.exit_code for each in classes if issubclass(each, errors.FtrieError)} <= documented()


def test_a_name_that_is_a_path_or_no_name_is_refused_wherever_it_enters() -> None:
    for name in (".", "..", "", "a/b", "/etc", "../up", "a\\b", "a\n", "a" * 129, "{ads}"):
        text = SPEC.replace('"ads"', repr(name) if "\n" not in name else '"a\\n"')
        with pytest.raises(SpecError, match="model.name: got the model name"):
            parse_spec(text)
        with pytest.raises(UsageError, match="neither '.' nor '..'"):
            ModelKeys(name)
        with pytest.raises(UsageError):
            Settings((name,), "redis://127.0.0.1:1")
    for name in ("ads", "...", ".ads", "a.b", "A-1_x", "a" * 128):
        assert parse_spec(SPEC.replace("ads", name)).model.name == name
        assert ModelKeys(name).active == f"ftrie:{{{name}}}:active"
