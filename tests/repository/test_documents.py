"""What the documents say is so: folders, flags, links. Prose is not judged."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from ftrie.cli import build

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\[[^\]]*\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")
FLAG = re.compile(r"--[a-z][a-z0-9-]*")
SECTION = re.compile(r"^## `?(ftrie(?: [a-z]+)*)`?$", re.MULTILINE)


def tracked() -> list[Path]:
    """Every file that belongs to the project."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).exists()]


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every command as it is typed, with its flags."""

    def walk(words: str, command: object) -> Iterator[tuple[str, list[str]]]:
        if isinstance(command, typer.core.TyperGroup):
            for name, below in command.commands.items():
                yield from walk(f"{words} {name}", below)
        elif isinstance(command, typer.core.TyperCommand):
            options = (
                option
                for parameter in command.params
                for option in (*parameter.opts, *parameter.secondary_opts)
            )
            yield words, [option for option in options if option.startswith("--") and option != "--help"]

    return walk("ftrie", build())


def sections(page: str) -> dict[str, str]:
    """The text below each `## ftrie …` heading of docs/commands.md."""
    pieces = SECTION.split((ROOT / page).read_text("utf-8"))
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


def test_the_readme_has_a_line_for_every_folder() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    folders = {path.relative_to(ROOT).parts[0] for path in tracked() if path.parent != ROOT}
    missing = [name for name in sorted(folders) if f"`{name}/`" not in readme]
    assert not missing, f"README.md has no line for {missing}"


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs/README.md").read_text("utf-8")
    pages = [path.name for path in tracked() if path.parent == ROOT / "docs" and path.suffix == ".md"]
    missing = [name for name in pages if f"]({name})" not in index and name != "README.md"]
    assert not missing, f"docs/README.md has no line for {missing}"


@pytest.mark.parametrize(("command", "flags"), [pytest.param(*each, id=each[0]) for each in commands()])
def test_a_command_is_documented_with_exactly_its_flags(command: str, flags: list[str]) -> None:
    section = sections("docs/commands.md").get(command)
    assert section is not None, f"docs/commands.md has no section `## {command}`"
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `--")]
    assert sorted(flag for row in rows for flag in FLAG.findall(row)) == sorted(flags)


def test_no_command_is_documented_that_does_not_exist() -> None:
    known = {command for command, _ in commands()}
    assert sorted(set(sections("docs/commands.md")) - known) == []


@pytest.mark.parametrize(
    "page", [pytest.param(path, id=str(path.relative_to(ROOT))) for path in tracked() if path.suffix == ".md"]
)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    dead = [target for target in LINK.findall(page.read_text("utf-8")) if not (page.parent / target).exists()]
    assert not dead


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "README.md", "CONTRIBUTING.md"])
def test_every_file_a_page_names_exists(page: str) -> None:
    named = re.findall(r"`((?:[\w.-]+/)+[\w.-]*)`", (ROOT / page).read_text("utf-8"))
    missing = [name for name in named if not (ROOT / name).exists() and not name.startswith(".venv/")]
    assert not missing


def test_no_file_holds_a_path_of_this_machine() -> None:
    here = (f"{ROOT}/".encode(), f"{Path.home()}/".encode())
    leaks = [path for path in tracked() if any(text in path.read_bytes() for text in here)]
    assert not leaks
