"""The site that `make docs` builds: every page, every public name, no broken link, nothing fetched from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("zensical", reason="the extra `docs` is not installed")
pytest.importorskip("mkdocstrings_handlers.python", reason="the extra `docs` is not installed")

import ftrie
from docs import build_site

ROOT = Path(__file__).resolve().parents[2]
FETCHED = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src", "video": "src"}


class Page(HTMLParser):
    """What a page loads, where its links lead, and the anchors it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if FETCHED.get(tag) in given:
            self.loads.append(given[FETCHED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, with the tutorials as they are written: tests/repository/test_tutorials.py executes them."""
    return build_site.build(tmp_path_factory.mktemp("build"), run_tutorials=False)


@pytest.fixture(scope="module")
def read(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}


def test_every_page_of_the_repository_is_on_the_site(site: Path) -> None:
    for page in build_site.pages():
        name = "index.html" if page.name == "README.md" else f"{page.stem}.html"
        assert (site / page.with_name(name)).exists(), page


def test_the_site_loads_nothing_from_elsewhere(read: dict[Path, Page]) -> None:
    loaded = {target for page in read.values() for target in page.loads}
    assert loaded and [target for target in loaded if re.match(r"([a-z]+:)?//", target)] == []


def test_every_link_within_the_site_leads_to_a_page_and_a_heading(site: Path, read: dict[Path, Page]) -> None:
    dead = []
    for path, page in read.items():
        if path == site / "404.html":
            continue
        for link in page.links:
            target, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:", link) or link == "":
                continue
            file = (path.parent / target).resolve() if target not in ("", ".") else path
            if file.is_dir():
                file /= "index.html"
            if not file.exists() or (anchor and file in read and anchor not in read[file].anchors):
                dead.append(f"{path.relative_to(site)}: {link}")
    assert dead == []


def test_the_reference_has_every_public_name(site: Path, read: dict[Path, Page]) -> None:
    anchors = read[site / "docs/api.html"].anchors
    assert [name for name in ftrie.__all__ if not {f"ftrie.{name}"} & anchors] == []


@pytest.mark.parametrize("link", ["other.md", "missing.md", "other.md#missing"])
def test_a_broken_link_ends_the_build(link: str, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source/index.md").write_text(f"# A page\n\n[a link]({link})\n")
    (tmp_path / "source/other.md").write_text("# Another page\n")
    (tmp_path / "zensical.toml").write_text((ROOT / "docs/zensical.toml").read_text("utf-8"))
    ended = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (ended.returncode == 0) == (link == "other.md")
    assert ("does not exist" in ended.stderr) == (link != "other.md")
