"""Builds the documentation's site into build/site: `python -m docs.build_site`, or `make docs`.

In: the Markdown pages of the repository, the docstrings of what `ftrie.__all__` names, and the tutorials, which are
executed. Out: HTML that needs no network. The pages are staged in build/source in the repository's layout, so that
their links stay as they are on GitHub; Zensical then renders them, strictly: a link to a page or heading that does not
exist ends the build. `--no-tutorials` stages the tutorials as they are, without outputs: for a look at other pages.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
INDEX = "docs/README.md"
API = "docs/api.md"
LIBRARY = "docs/library.md"
DECISIONS = "docs/adr/README.md"
TEMPLATE = "benchmarks/numbers_page.md"
"""What docs/numbers.md is made from."""
_LINK = re.compile(r"(!?)\[([^\[\]]*)\]\((?![a-z]+:)([^)#\s]+)((?:#[^)\s]*)?)\)")
_HEADING = re.compile(r"^# (.+)$", re.MULTILINE)


def pages() -> list[Path]:
    """The repository's pages, as git lists them, relative to its root."""
    listed = subprocess.run(
        # With pages that are not committed yet.
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "*.md", f":!{TEMPLATE}"],
        cwd=ROOT, capture_output=True, check=True,
    )  # fmt: skip
    return sorted(
        Path(name) for name in listed.stdout.decode().split("\0") if name and (ROOT / name).exists()
    )


def tutorials() -> list[Path]:
    """The pages that are executed."""
    return [page for page in pages() if page.parent == Path("docs/tutorials") and page.name != "README.md"]


def stage(folder: Path, *, run_tutorials: bool = True) -> list[Path]:
    """Write the site's sources into `folder`; gives the pages, relative to it."""
    staged = pages()
    made = {API: api_page(), DECISIONS: _decisions(staged)}
    whole = {*staged, *map(Path, made)}
    for page in staged:
        text = (ROOT / page).read_text("utf-8")
        target = folder / page
        target.parent.mkdir(parents=True, exist_ok=True)
        if run_tutorials and page in tutorials():
            text = _executed(page, target.parent)
        target.write_text(_linked(text, page, whole, folder), "utf-8")
    for name, text in made.items():
        (folder / name).write_text(text, "utf-8")
    return sorted(whole)


def api_page() -> str:
    """The page that mkdocstrings fills: a heading for each public name, in the order of `ftrie.__all__`."""
    import ftrie

    names = "\n\n".join(f"::: ftrie.{name}" for name in ftrie.__all__)
    modules = "\n\n".join(f"::: ftrie.{name}" for name in ("aio", "sklearn") if _has(f"ftrie/{name}.py"))
    return (
        "# Python API\n\nWhat `import ftrie` gives. [The library](library.md) shows it in use. "
        f"Everything that is not on this page is internal.\n\n{names}\n\n{modules}\n"
    )


def navigation(staged: list[Path], folder: Path) -> list[tuple[str, list[tuple[str, str]]]]:
    """Sections of (title, page): each page is in the first section of docs/README.md that links to it."""
    index = (ROOT / INDEX).read_text("utf-8")
    sections: list[tuple[str, list[tuple[str, str]]]] = [("", [("ftrie", "README.md")])]
    placed = {Path("README.md"), Path(INDEX), Path(DECISIONS)}
    for title, text in _sections(index):
        entries = [] if title else [("All pages", INDEX)]
        for _, _, target, _ in _LINK.findall(text):
            page = _resolve(Path(INDEX), target)
            if page in staged and page not in placed:
                placed.add(page)
                entries.append((_title(folder / page), str(page)))
                if page == Path(LIBRARY):
                    placed.add(Path(API))
                    entries.append((_title(folder / API), API))
        sections.append((title.partition(":")[0] or "Documentation", entries))
    rest = [page for page in staged if page not in placed]
    decisions = [page for page in rest if page.parent == Path("docs/adr")]
    sections[-1][1].extend((_title(folder / page), str(page)) for page in rest if page not in decisions)
    sections.append(
        ("Decisions", [(_title(folder / page), str(page)) for page in [Path(DECISIONS), *decisions]])
    )
    return sections


def build(folder: Path, *, run_tutorials: bool = True) -> Path:
    """Stage and render the site in `folder`; gives the folder of the HTML. Exits where a link is broken."""
    source = folder / "source"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    staged = stage(source, run_tutorials=run_tutorials)
    settings = (ROOT / "docs/zensical.toml").read_text("utf-8").replace('[".."]', f'["{ROOT}"]')
    # At the head of [project]: behind one of its tables TOML would take `nav` for a member of that table.
    before, project, after = settings.partition("[project]\n")
    (folder / "zensical.toml").write_text(
        f"{before}{project}nav = [\n{_nav_toml(navigation(staged, source))}]\n{after}", "utf-8"
    )
    shutil.rmtree(folder / "site", ignore_errors=True)
    ended = subprocess.run([sys.executable, "-m", "zensical", "build", "--strict", "--clean"], cwd=folder)
    if ended.returncode:
        sys.exit("docs/build_site.py: the site has broken links or settings, listed above")
    return folder / "site"


def _executed(page: Path, beside: Path) -> str:
    from docs import notebooks

    with tempfile.TemporaryDirectory() as folder:
        print(f"executing {page}", flush=True)
        notebooks.prepare(Path(folder))
        return notebooks.render(notebooks.execute(ROOT / page, Path(folder)), page.stem, beside)


def _linked(text: str, page: Path, whole: set[Path], folder: Path) -> str:
    """The page's text; files it links to are copied beside it, links to folders become plain text."""

    def link(found: re.Match[str]) -> str:
        target = _resolve(page, found[3])
        # GitHub lists a folder; the site has a page of it.
        if target == Path("docs/adr"):
            return f"[{found[2]}]({found[3].rstrip('/')}/README.md)"
        if target in whole or (folder / page.parent / found[3]).is_file():
            return found[0]
        if not (ROOT / target).is_file():
            # A link to nothing stays as it is, so that Zensical reports it.
            return found[0] if not (ROOT / target).exists() else found[2]
        (folder / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / target, folder / target)
        return found[0]

    return _LINK.sub(link, text)


def _resolve(page: Path, target: str) -> Path:
    """A link's target relative to the repository's root."""
    return (ROOT / page.parent / target).resolve().relative_to(ROOT)


def _decisions(staged: list[Path]) -> str:
    records = [page for page in staged if page.parent == Path("docs/adr")]
    lines = [f"- [{_title(ROOT / page)}]({page.name})" for page in records]
    return "\n".join(["# Decisions", "", "Why things are as they are.", "", *lines, ""])


def _sections(text: str) -> Iterator[tuple[str, str]]:
    """(title, text) of the index's sections; the introduction has the title ""."""
    pieces = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    yield "", pieces[0]
    yield from zip(pieces[1::2], pieces[2::2], strict=True)


def _title(page: Path) -> str:
    found = _HEADING.search(page.read_text("utf-8"))
    return found[1].replace("`", "") if found else page.stem


def _has(name: str) -> bool:
    return (ROOT / name).exists()


def _nav_toml(sections: list[tuple[str, list[tuple[str, str]]]]) -> str:
    lines = []
    for title, entries in sections:
        items = ", ".join(f"{{ {_quoted(name)} = {_quoted(page)} }}" for name, page in entries)
        lines.append(f"  {{ {_quoted(title)} = [{items}] }}," if title else f"  {items},")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


if __name__ == "__main__":
    print("site:", build(BUILD, run_tutorials="--no-tutorials" not in sys.argv[1:]) / "index.html")
