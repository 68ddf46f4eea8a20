"""What the documents say is so: folders, flags, links. Prose is not judged."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\[[^\]]*\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")


def tracked() -> list[Path]:
    """Every file that belongs to the project."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).exists()]


def test_the_index_has_a_line_for_every_folder() -> None:
    index = (ROOT / "docs/README.md").read_text("utf-8")
    folders = {path.relative_to(ROOT).parts[0] for path in tracked() if path.parent != ROOT}
    missing = [name for name in sorted(folders) if f"`{name}/`" not in index]
    assert not missing, f"docs/README.md has no line for {missing}"


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs/README.md").read_text("utf-8")
    folders = (ROOT / "docs", ROOT / "docs/formats")
    paths = [path for path in tracked() if path.parent in folders and path.suffix == ".md"]
    pages = [str(path.relative_to(ROOT / "docs")) for path in paths if path.name != "README.md"]
    missing = [name for name in pages if f"]({name})" not in index]
    assert not missing, f"docs/README.md has no line for {missing}"


def test_the_page_of_commands_is_what_the_commands_say() -> None:
    result = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert (result.returncode, result.stderr) == (0, "")


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
    assert not [path for path in tracked() if any(text in path.read_bytes() for text in here)]
