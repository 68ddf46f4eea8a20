"""Every block of commands or Python in README.md and docs/ is run, in order, in a folder prepared as the text says.

What a document prints is compared loosely: its first line but for numbers, and its lines without any (tables' heads).
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from ftrie.cli import run
from ftrie.demo import market as shop
from ftrie.demo.market import Shop
from ftrie.demo.processes import free_port, free_ports
from model_store.store import Store
from tests.repository.forked import forking
from tests.repository.typed import Block, OneShell, Shell, blocks_of, differences
from tests.server.certificates import identity
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "examples/README.md",
    *sorted(
        str(path.relative_to(ROOT))
        for folder in ("docs", "docs/formats")
        for path in (ROOT / folder).glob("*.md")
    ),
]
BLOCKS = {page: list(blocks_of(page, (ROOT / page).read_text("utf-8"))) for page in PAGES}
TYPED = [page for page in PAGES if any(not block.not_run for block in BLOCKS[page])]
TABLE = [
    code
    for line in (ROOT / "docs/README.md").read_text("utf-8").splitlines()
    if line.count(" | ") == 2
    for code in re.findall(r"`((?:ftrie[ .]|from |import |kill ).+?)`", line.split(" | ")[1])
    if not re.search(r"…|impressions\.jsonl|clicks/|any/2|feedback$|train$", code)
]
"""What the index has one type; without what is shortened, or needs files, Ray or hosts that are not there."""
ROWS, DEMO_ROWS = 10_000, 50_000
TOKEN = "a-token-of-the-documents"

# Why a block may stand in a document and not be run here.
REASONS = {
    "installs, or runs the tests themselves",
    "needs Docker and Kubernetes",
    "needs Ray",
    "needs a certificate",
    "needs a public data set",
    "needs a version that a guard has refused",
    "needs a server with real calls",
    "needs several hosts",
    "needs the servers of another market",
}
AnyShell = TypeVar("AnyShell", bound=Shell)


@pytest.fixture(scope="session")
def demo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `ftrie demo --keep shop` leaves, of fewer rows, with the model `ads` and its log beside it."""
    folder = tmp_path_factory.mktemp("shop")
    simulated = Shop(1)
    for day in (1, 2):
        simulated.clicks(day, ROWS).write(folder / f"day-{day}.csv")
    simulated.write_records(folder / "users.csv", folder / "items.csv")
    spec = shop.SHOP_SPEC.read_text("utf-8")
    (folder / "shop.toml").write_text(spec)
    (folder / "ads.toml").write_text(
        spec.replace('name = "shop"', 'name = "ads"').replace(
            "plain = {", 'lean = { share = 0.0, without = ["gender"] }\nplain = {'
        )
    )
    (folder / "clicks").mkdir()
    (folder / "clicks/1.csv.gz").write_bytes(gzip.compress((folder / "day-1.csv").read_bytes(), 1))
    store = f"embedded:{folder / '.ftrie'}"
    with Store.open(store):
        for words in (
            *(("train", folder / "shop.toml", folder / f"day-{day}.csv", "--activate") for day in (1, 2)),
            ("train", folder / "ads.toml", folder / "day-1.csv", "--activate"),
            *(("store", "load", kind, folder / f"{kind}.csv") for kind in ("users", "items")),
        ):
            assert run([*map(str, words), "--store", store]) == 0
    return folder


@pytest.fixture(scope="session")
def forked_ftrie() -> Iterator[str]:
    """The program `ftrie` of a shell in which many commands are typed."""
    with tempfile.TemporaryDirectory(prefix="ftrie-") as folder, forking(Path(folder)) as program:
        yield program


def shell_in(demo_folder: Path, tmp_path: Path, ftrie: str, kind: type[AnyShell]) -> AnyShell:
    """A shell in a copy of that folder, with free ports, and `redis-cli` for the folder's store."""
    folder = tmp_path / "shop"
    shutil.copytree(demo_folder, folder, ignore=shutil.ignore_patterns("*.sock", "*.lock", "*.pid"))
    (folder / "log").mkdir()
    programs = tmp_path / "bin"
    programs.mkdir()
    _program(programs / "ftrie", ftrie)
    _program(
        programs / "redis-cli",
        f"#!{sys.executable}\nimport sys; from model_store.store import Store\n"
        f"with Store.open('embedded:{folder}/.ftrie') as store: print(store.client.execute_command(*sys.argv[1:]))\n",
    )
    pem = identity(tmp_path, "server")
    for name, path in (("ca.pem", pem.ca), ("server.pem", pem.cert), ("server.key", pem.key)):
        shutil.copy(path, folder / name)
    (folder / "tokens.toml").write_text(f'rank = ["{TOKEN}"]\n')
    (folder / "tokens.toml").chmod(0o600)
    port = str(free_port())
    ports = free_ports(5)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FTRIE_")} | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}",
        "FTRIE_SERVE_PORT": port,
        "FTRIE_TRAINER_SAY_EVERY": "1",
        "FTRIE_DEMO_ROWS": str(DEMO_ROWS),
        "FTRIE_TOKEN": TOKEN,
        **{f"FTRIE_{name}_ADDRESS": f"127.0.0.1:{port}" for name in ("RANK", "EXPLAIN", "FEEDBACK")},
        "FTRIE_ADMIN_STATUS_ADDRESS": f"127.0.0.1:{ports[3]}",
    }
    replaced = {
        r"(?<=--port )50051\b": port,
        **{
            rf"\b{number}\b": str(each)
            for number, each in zip((50061, 50062, 50063, 50052, 9464), ports, strict=True)
        },
        r"redis://[\w.]+:6379": f"embedded:{folder}/.ftrie",
        r"\b10\.0\.0\.5:50051,10\.0\.0\.6:50051,10\.0\.0\.7:50051\b": ",".join(
            f"127.0.0.1:{each}" for each in ports[:3]
        ),
        r"\brank\.example:50051\b": f"localhost:{port}",
        r"\b127\.0\.0\.1:50051\b": f"127.0.0.1:{port}",
        "FTRIE_TOKEN=… ": "",
        r"/var/log/ftrie\b": f"{folder}/log",
        r"--seconds 270\b": "--seconds 14",
        r"\brows = 1_000_000\b": "rows = 100_000",
    }
    return kind(folder, environment, replaced)


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def test_only_what_cannot_run_here_is_left_out() -> None:
    given = {block.not_run: str(block) for blocks in BLOCKS.values() for block in blocks if block.not_run}
    assert {given[reason] for reason in given.keys() - REASONS} == set(), (
        "a reason that the test does not know"
    )
    assert REASONS - given.keys() == set(), "a reason that no document gives"


@pytest.mark.parametrize(
    "whole", [False, pytest.param(True, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_the_readme_typed_in_one_shell_works_and_leaves_nothing_running(
    whole: bool, demo_folder: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The click that is reported raises the rate that is served. `whole`: and then all that the index has one type.

    The many commands of `whole` are forked.
    """
    blocks = [block for block in BLOCKS["README.md"] if not block.not_run]
    asked = next(each.text for each in blocks[0].commands if each.text.startswith("ftrie rank"))
    program = f"#!{sys.executable}\nimport ftrie.cli; ftrie.cli.main()\n"
    if whole:
        program = request.getfixturevalue("forked_ftrie")

    def rate() -> float:
        _, answer = shell.type(asked)
        return float(next(line.split()[2] for line in answer.splitlines() if "books-1" in line))

    with shell_in(demo_folder, tmp_path, program, OneShell) as shell:
        shell.run(blocks[0])
        before = rate()
        *commands, stop = blocks[1].commands
        shell.run(replace(blocks[1], commands=tuple(commands)))
        with Store.open(f"embedded:{shell.folder / '.ftrie'}") as store:
            version = store.model("shop").active
            eventually(lambda: (version() or 0) > 3, "a version that has learned the click", 60)
        eventually(lambda: rate() > before, "a higher rate by the click", 60)
        assert stop.text.startswith("kill ")
        shell.type(stop.text)
        assert shell.left() == []
        _type(shell, blocks[2:])
        assert shell.left() == []
        for code in TABLE if whole else ():
            failed, output = (
                shell.python(code) if re.search(r"\bimport |^ftrie\.", code) else shell.type(code)
            )
            assert not failed, f"docs/README.md: {code}\n{output}"
        eventually(lambda: not shell.left(), "the end of all processes")


@pytest.mark.slow
@pytest.mark.timeout(600)  # a page may start many processes, one after the other
@pytest.mark.parametrize("page", TYPED[1:])  # README.md's are typed above
def test_the_commands_of_a_page_work_as_typed(
    page: str, demo_folder: Path, tmp_path: Path, forked_ftrie: str
) -> None:
    with shell_in(demo_folder, tmp_path, forked_ftrie, Shell) as shell:
        _type(shell, [block for block in BLOCKS[page] if not block.not_run])
    assert {code for _, code in shell.exits} <= {0}, shell.exits


def _type(shell: Shell, blocks: list[Block]) -> None:
    for block in blocks:
        shell.run(block)


def test_blocks_are_found_with_their_commands_outputs_and_comments() -> None:
    text = "<!-- before: cd a -->\n<!-- slow -->\n```\n$ ftrie a \\\n  b &\nhead\n\n$ ftrie c\n```\n"
    plain = "<!-- not run: why -->\n```\nftrie a  # x\nftrie b\n```\n```json\n{}\n```\n```\nno command\n```\n"
    first, second = blocks_of("page", text + plain)
    assert [(command.text, command.output) for command in first.commands] == [
        ("ftrie a \\\n  b &", ("head",)),
        ("ftrie c", ()),
    ]
    assert (first.before, first.slow, first.not_run) == (("cd a",), True, "")
    assert [command.text for command in second.commands] == ["ftrie a  # x", "ftrie b"]
    assert (second.before, second.slow, second.not_run) == ((), False, "why")


def test_outputs_are_compared_but_for_their_numbers() -> None:
    documented = ["3 rows in 0.1 s", "a   b", "─────", "1   2"]
    assert differences(documented, "12 rows in 7 s\n a b\n──\n") == []
    assert differences(documented, "12 rows in 7 s\n a c\n──\n") == ["a   b"]
    assert differences(documented, "12 rows after 7 s\n a b\n──\n") == ["3 rows in 0.1 s"]
