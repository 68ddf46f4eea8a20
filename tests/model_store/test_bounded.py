"""Lines without an end and nesting without a bottom: one message that names the file, and no traceback."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest

from ftrie.cli import run
from model_store import bounded
from model_store.errors import InputError
from tests.matrix import slow_except
from trainer.formats.record_files import read_ids, read_records

SPEC = '[model]\nname = "ads"\n[input]\nlabel = "click"\n'


def test_a_line_without_an_end_is_refused_before_it_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded, "MAX_LINE", 1 << 20)
    for name in ("u.jsonl", "u.jsonl.gz", "ids.txt"):
        path = tmp_path / name
        with gzip.open(path, "wb", compresslevel=1) if name.endswith(".gz") else path.open("wb") as file:
            file.write(b'{"cookie": "u1"}\n')
            for _ in range(3):
                file.write(b"a" * (1 << 20))
        says = rf"{name}:2: the line is longer than 1 MiB; expected one record"
        with pytest.raises(InputError, match=says):
            list(read_ids(path) if name == "ids.txt" else read_records(path, ["cookie"]))
    monkeypatch.setattr(bounded, "MAX_LINE", 4)  # lines up to the limit are whole
    assert list(bounded.lines(io.BytesIO(b"abc\n\nab"), "f")) == [b"abc\n", b"\n", b"ab"]
    with pytest.raises(InputError, match="f:2"):
        list(bounded.lines(io.StringIO("abc\nabcd\n"), "f"))


# Below, around and far above the depth at which Python's readers and writers give up.
DEPTHS = slow_except([960, 100_000], [300, 960, 100_000])


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize(
    ("arguments", "name", "content", "codes"),
    [
        ("store load users FILE", "u.jsonl", '{"cookie": "u1", "a": NESTED}\n', {0, 3}),
        ("store load items FILE", "i.csv", 'id,a\nu1,"NESTED"\n', {0, 3}),
        ("store import ads FILE", "m.json", '{"list": NESTED, "type": "t"}', {4}),
        ("store import ads FILE", "m.json", '{"list": [{"fid": NESTED}], "type": "t"}', {4}),
        ("train FILE x.csv", "s.toml", SPEC + "x = NESTED\n", {2}),
        ("train FILE x.csv", "s.toml", SPEC.replace("click", "c") + "[fields.DOTTED]\nkind = 'set'\n", {2}),
        ("train SPEC FILE", "l.jsonl", '{"click": 1, "b": 2, "a": NESTED}\n', {0, 3}),
        ("tune SPEC l.csv --try alpha=NESTED", "alpha", "", {2}),
        ("report FILE", "m.jsonl", "NESTED\n", {3}),
        ("init FILE", "l.jsonl", '{"click": 1, "a": NESTED}\n', {0, 3}),
        ("replay SPEC FILE", "l.jsonl", '{"request_id": NESTED}\n', {2}),
        ("feedback ads --file FILE --timeout 0.1", "e.jsonl", '{"request_id": NESTED}\n', {3}),
        ("bench serve 127.0.0.1:1 --requests FILE", "r.jsonl", '{"cookie": NESTED}\n', {3}),
        ("serve ads --tokens FILE --port 0", "t.toml", "rank = NESTED\n", {6}),
    ],
)
def test_deep_nesting_is_an_error_that_names_the_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    store_url: str,
    arguments: str,
    name: str,
    content: str,
    codes: set[int],
    depth: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FTRIE_STORE", store_url)
    nested, dotted = "[" * depth + "]" * depth, ".".join(["a"] * min(depth, 2000))
    (tmp_path / "l.csv").write_text("click,age\n1,25\n")
    (tmp_path / name).write_text(content.replace("NESTED", nested).replace("DOTTED", dotted))
    (tmp_path / "spec.toml").write_text(SPEC)
    words = arguments.replace("FILE", name).replace("SPEC", "spec.toml").replace("NESTED", nested).split(" ")
    code = run(words)
    error = capsys.readouterr().err
    assert code in codes, error
    assert code == 0 or name in error
