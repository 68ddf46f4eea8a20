"""What is imported is declared in pyproject.toml, and that is enough: a plain install runs its own defaults."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import Distribution, distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from model_store.errors import installing

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PACKAGES = ("ftrie", "server", "trainer", "model_store", "proto/ctr")
# The last one is known to type checkers only.
OURS = {"ftrie", "server", "trainer", "model_store", "ctr", "benchmarks", "_typeshed"}
FOR_DEVELOPERS = {"test", "dev", "docs"}
# Imported only in a process that a notebook has started, which has it.
OF_A_NOTEBOOK = {"ipython"}
# Nothing outside imports this folder before it has asked for the extra.
OF_AN_EXTRA = "ftrie/dashboard/"
WORD = re.compile(r"[\w.]+")
CONSTRAINTS, DOCKERFILE = (ROOT / "deploy/docker" / name for name in ("constraints.txt", "Dockerfile"))
# How a distribution that may not be installed is imported, where that is not its name.
IMPORTED_AS = {"scikit-learn": "sklearn", "vl-convert-python": "vl_convert"}


@cache
def imports(package: str) -> list[tuple[str, str, bool]]:
    """Each import of something that is neither ours nor Python's: its whole name, where, and whether at once."""
    found = []
    for path in sorted((ROOT / package).rglob("*.py")):
        text = path.read_text("utf-8")
        words = {
            word
            for line in re.findall(r"\b(?:import|from)\s+([\w., ]+)", text)
            for word in WORD.findall(line)
        }
        if not any(map(is_foreign, words)):
            continue  # what it imports, if anything, is ours or Python's
        found += [
            (name, f"{path.relative_to(ROOT)}:{node.lineno}", at_once)
            for node, at_once in _statements(ast.parse(text).body, at_once=True)
            for name in _imported(node)
            if is_foreign(name)
        ]
    return found


def is_foreign(name: str) -> bool:
    top = name.partition(".")[0]
    return top not in OURS and top not in sys.stdlib_module_names


def _statements(body: list[ast.stmt], at_once: bool) -> Iterator[tuple[ast.stmt, bool]]:
    """Every statement, and whether the module cannot be imported without: not what stands in a function, in `try` or
    in `if TYPE_CHECKING`.
    """
    for node in body:
        yield node, at_once
        lazy = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Try) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        )
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from _statements(getattr(node, name, []), at_once and not lazy)


def _imported(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def declared(extra: str = "") -> set[str]:
    """The names of the distributions that ftrie, or one of its extras, asks for by itself."""
    listed = PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
    return {canonicalize_name(Requirement(line).name) for line in listed}


@cache
def providers() -> dict[str, set[str]]:
    """The installed distributions that have a module or a folder of a name, by name."""
    return {
        top: {canonicalize_name(each) for each in names} for top, names in packages_distributions().items()
    }


@cache
def files_of(distribution_name: str) -> set[str]:
    """The files of a distribution, as paths in site-packages."""
    return {str(file) for file in distribution(distribution_name).files or ()}


def distributions_of(name: str) -> set[str]:
    """The installed distributions that an imported name may come from."""
    candidates = providers().get(name.partition(".")[0], set())
    if len(candidates) < 2:
        return candidates
    # Several share the folder (google, opentelemetry): the one that has the module itself.
    files = {f"{name.replace('.', '/')}{end}" for end in (".py", "/__init__.py")}
    files |= {f"{name.rpartition('.')[0].replace('.', '/')}{end}" for end in (".py", "/__init__.py")}
    return {each for each in candidates if files & files_of(each)}


def test_every_package_that_is_imported_is_declared() -> None:
    plain = declared()
    extras = ("kafka", "otel", "torch", "distributed", "charts", "notebook", "dashboard", "sklearn")
    optional = OF_A_NOTEBOOK.union(*map(declared, extras))
    found = {}
    for package in PACKAGES:
        for name, where, at_once in imports(package):
            required = at_once and not where.startswith(OF_AN_EXTRA)
            allowed = plain if required else plain | optional
            top = name.partition(".")[0]  # the distribution's name too, where it is not installed
            if not (distributions_of(name) or {canonicalize_name(top)}) & allowed:
                found.setdefault(top, where)
    assert found == {}, "imported at these places, but pyproject.toml does not declare them"


def test_every_extra_is_imported_by_something() -> None:
    names = {
        name.partition(".")[0] for package in (*PACKAGES, "benchmarks") for name, _, _ in imports(package)
    }
    for extra in PROJECT["optional-dependencies"].keys() - FOR_DEVELOPERS:
        for wanted in declared(extra) - {"ftrie"}:  # an extra may have another one in it
            known = IMPORTED_AS.get(wanted, wanted.replace("-", "_"))
            assert any(known.startswith(name) for name in names), (
                f"nothing imports {wanted} of the extra {extra}"
            )


def test_without_torch_importing_its_optimizer_says_what_to_install() -> None:
    code = "import sys; sys.modules['torch'] = None; import ftrie.torch"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.stderr.splitlines()[-1] == f"ImportError: ftrie.torch needs PyTorch: {installing('torch')}"


def test_documents_name_extras_that_exist_and_the_pip_that_adds_them_to_a_clone() -> None:
    """A system's pip looks for ftrie on an index; that of .venv finds it installed, and adds what the extra needs."""
    for path in (ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")):
        for pip, names in re.findall(r"(\S*pip) install ['\"]?ftrie\[(.+?)\]", path.read_text("utf-8")):
            assert pip.strip("(`") == ".venv/bin/pip" and {*names.split(",")} <= {
                *PROJECT["optional-dependencies"]
            }, path


def needed(extras: set[str], python: str = "") -> dict[str, Distribution]:
    """Every distribution that a plain install brings, with those of some extras, by name.

    python: the full version that it is installed for; by default this one.
    """
    version = {"python_full_version": python, "python_version": python.rpartition(".")[0]} if python else {}
    lines = PROJECT["dependencies"] + [
        line for extra in extras for line in PROJECT["optional-dependencies"][extra]
    ]
    waiting, found = [Requirement(line) for line in lines], dict[str, Distribution]()
    seen = set[tuple[str, frozenset[str]]]()
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        if (name, frozenset(wanted.extras)) in seen:
            continue
        seen.add((name, frozenset(wanted.extras)))
        found[name] = distribution(name)
        for line in found[name].requires or ():
            below = Requirement(line)
            if any(
                below.marker is None or below.marker.evaluate({"extra": extra, **version})
                for extra in ("", *wanted.extras)
            ):
                waiting.append(below)
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)  # it may compile all kernels again, in another place
def test_a_plain_install_runs_the_demo_in_another_folder(tmp_path: Path) -> None:
    """A wheel in a virtual environment that has what the wheel declares, and nothing else of this one."""
    wheels = tmp_path / "wheels"
    built = _pip("wheel", "--no-deps", "--wheel-dir", wheels, ROOT)
    if built.returncode != 0 and "Could not find a version" in built.stdout + built.stderr:
        pytest.skip("building the wheel needs hatchling, and pip cannot fetch it here")
    assert built.returncode == 0, built.stderr
    home = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    site = next(home.glob("lib/python*/site-packages"))
    for each in needed(set()).values():
        _link(each, site)
    installed = _pip(
        "--python", home / "bin/python", "install", "--no-deps", "--no-index", *wheels.glob("*.whl")
    )
    assert installed.returncode == 0, installed.stderr
    # Compiled first, since the demo waits for its server only so long.
    warm = [home / "bin/python", "-c", "from server.ranking.warmup import run_kernels; run_kernels()"]
    subprocess.run(warm, cwd=tmp_path, check=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shown = subprocess.run(
        [home / "bin/ftrie", "demo", "--rows", "20000"],
        cwd=elsewhere,
        env={"HOME": str(Path.home()), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    assert "The running server now answers from version 2" in shown.stdout


def _pip(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)


def _link(installed: Distribution, site: Path) -> None:
    """Put a distribution's files into another site-packages, as links."""
    for file in installed.files or ():
        if ".." not in file.parts and file.suffix != ".pyc":
            there = site / file
            there.parent.mkdir(parents=True, exist_ok=True)
            if not there.exists():
                there.symlink_to(Path(str(file.locate())))


def test_the_image_is_built_with_an_exact_version_of_everything_it_needs() -> None:
    """`make lock` writes it; it must allow what pyproject.toml asks for."""
    pinned = dict(line.split("==") for line in CONSTRAINTS.read_text("utf-8").splitlines())
    versions = {canonicalize_name(name): version for name, version in pinned.items()}
    for line in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["otel"]]:
        wanted = Requirement(line)
        assert wanted.specifier.contains(versions[canonicalize_name(wanted.name)]), f"{line}: run `make lock`"
    (python,) = set(re.findall(r"^FROM python:([\d.]+)", DOCKERFILE.read_text("utf-8"), re.MULTILINE))
    assert needed({"otel"}, python).keys() <= versions.keys()
