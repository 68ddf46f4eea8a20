"""What the documents say is so: folders, flags, links. Prose is not judged."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
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


def test_what_scripts_import_from_the_packages_is_there() -> None:
    """Examples, benchmarks and the makers of documents run in few tests: their imports are looked up."""
    listed = subprocess.run(
        ["git", "ls-files", "benchmarks/*.py", "docs/*.py", "examples/*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    missing = []
    for script in listed.stdout.splitlines():
        for node in ast.walk(ast.parse((ROOT / script).read_text("utf-8"))):
            name = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            if name.partition(".")[0] not in ("ctr", "ftrie", "model_store", "server", "trainer"):
                continue
            if name != "ftrie.torch":  # imports an extra
                module = import_module(name)
                for each in (alias.name for alias in node.names):  # type: ignore[attr-defined]
                    inside = hasattr(module, "__path__") and find_spec(f"{name}.{each}")
                    missing += [] if hasattr(module, each) or inside else [f"{script}: {name}.{each}"]
    assert not missing
