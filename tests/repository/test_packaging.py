"""The wheel and the sdist: what is in them, and that the sdist builds the same wheel."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("ftrie", "server", "model_store", "trainer")


def build(source: Path, kind: str, into: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(into)],
        cwd=source,
        check=True,
        capture_output=True,
    )
    (made,) = into.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return made


def content(wheel: Path) -> dict[str, int]:
    """The files of a wheel by name, with the checksum of each; without its list of the files."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            each.filename: each.CRC for each in archive.infolist() if not each.filename.endswith("/RECORD")
        }


def tracked() -> set[str]:
    """The files of the packages that git knows, by their names in a wheel."""
    if not (ROOT / ".git").exists():
        pytest.skip("the packages' files are compared with those that git knows, and this is no clone")
    listed = subprocess.run(
        ["git", "ls-files", *PACKAGES, "proto/ctr"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return {line.removeprefix("proto/") for line in listed.stdout.splitlines()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


def test_the_wheel_holds_the_packages_typed_and_nothing_else(wheel: Path) -> None:
    own = {name for name in content(wheel) if ".dist-info/" not in name}
    assert own == tracked() and {name.partition("/")[0] for name in own} == {*PACKAGES, "ctr"}
    assert {f"{package}/py.typed" for package in (*PACKAGES, "ctr")} <= own


def test_the_sdist_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(build(ROOT, "sdist", tmp_path / "sdist")) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian 12's Python has none
        archive.extractall(tmp_path / "source")
    (source,) = (tmp_path / "source").iterdir()
    assert not any((source / name).exists() for name in ("tests", "benchmarks", ".ci"))
    assert content(build(source, "wheel", tmp_path / "again")) == content(wheel)
