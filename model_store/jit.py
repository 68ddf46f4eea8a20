"""Compiles and caches kernels, which live in `*_kernels.py` modules and in learner and slot files.

Numba's cache detects a change in a kernel's own file, but not in other files whose kernels it inlines or whose
constants it freezes. Therefore the cache folder is named after a hash of every file with kernels, every file of this
repository that these import, numba's version and the processor: a change in any of them starts a new folder, so a
stale kernel never runs.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parent.parent
_PACKAGES = ("model_store", "trainer", "server")
_KERNEL_FILES = ("*_kernels.py", "learners/*.py", "slots/*.py")
_IMPORT = re.compile(r"^from ((?:model_store|trainer|server)[.\w]*) import (\(?[^)]*?(?:\)|$))", re.MULTILINE)
_COMPLETE = "complete"


def _kernel_sources() -> list[Path]:
    """Every file with kernels and every file they import here, since a kernel freezes the constants it reads."""
    waiting = [Path(__file__).resolve()]
    for package in _PACKAGES:
        waiting += (path for pattern in _KERNEL_FILES for path in (_ROOT / package).rglob(pattern))
    sources: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path not in sources:
            sources.add(path)
            waiting += _imported(path.read_text("utf-8"))
    return sorted(sources)


def _imported(source: str) -> Iterator[Path]:
    """The files of this repository that a module's source imports, at any place in it."""
    for module, names in _IMPORT.findall(source):
        folder = _ROOT.joinpath(*module.split("."))
        candidates = [
            folder.with_suffix(".py"),
            *(folder / f"{name}.py" for name in re.findall(r"\w+", names)),
        ]
        yield from (path for path in candidates if path.is_file())


def _fingerprint() -> str:
    digest = hashlib.sha256(f"{version('numba')} {sys.version} {platform.machine()}".encode())
    for path in _kernel_sources():
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _cache_folder() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "ftrie" / f"kernels-{_fingerprint()}"


CACHE_FOLDER = Path(os.environ.setdefault("NUMBA_CACHE_DIR", str(_cache_folder())))

import numba  # noqa: E402
import numba.core.event  # noqa: E402
import numba.extending  # noqa: E402
from numba.core.registry import CPUDispatcher  # noqa: E402

# Numba reads the environment on its first import, which may have happened before this module was loaded.
numba.config.CACHE_DIR = str(CACHE_FOLDER)  # type: ignore[attr-defined]


# Numba infers a kernel's types when it compiles it; for the type checker kernels are untyped.
def intrinsic(function: Callable[..., Any]) -> Any:
    """Define an operation for kernels in LLVM instructions; see numba's `extending.intrinsic`."""
    return numba.extending.intrinsic(function)


# Numba would give each function an entry for C, and each inlined one an entry for Python, which nothing calls:
# they were a third of the time to compile. Without reference counting, a bare kernel must allocate nothing.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
_INLINED: dict[str, Any] = {**_OPTIONS, "no_cpython_wrapper": True}
_UNCOUNTED: dict[str, Any] = {"_nrt": False}
_BARE_INLINED: Any = {**_INLINED, "forceinline": True, **_UNCOUNTED}


class _Inlined(CPUDispatcher):  # type: ignore[misc]
    """A function that has machine code only inside the kernels that call it."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        name = self.py_func.__qualname__
        raise TypeError(f"{name} is compiled into kernels only: call it from a kernel, or {name}.py_func")


def _inlined(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    made = numba.njit(**options)(function)
    made.__class__ = _Inlined  # its code has no entry for Python: a call would end the process
    return made


def kernel(function: Callable[..., Any]) -> Any:
    """Compile `function` on first call: nogil, cached on disk, no Python objects, IEEE arithmetic (no fastmath)."""
    return numba.njit(cache=True, **_OPTIONS)(function)


def inline(function: Callable[..., Any]) -> Any:
    """Compile a small function that only kernels call; LLVM inlines it. Same arithmetic as `kernel`."""
    return _inlined(function, _INLINED)


def bare_kernel(function: Callable[..., Any]) -> Any:
    """Compile like `kernel`, without reference counting, for kernels that allocate nothing.

    Numba counts references to arrays passed to inner functions, atomically, in every loop iteration (measured in the
    ranking kernel: 0.09 of 0.11 ms). The caller holds every array while the kernel runs, so counting is not needed.
    """
    return numba.njit(cache=True, **_OPTIONS, **_UNCOUNTED)(function)


def bare_inline(function: Callable[..., Any]) -> Any:
    """Compile a small function that only bare kernels call; always inlined, its array arguments cost nothing."""
    return _inlined(function, _BARE_INLINED)


def kernels_are_cached(part: str) -> bool:
    """True if the kernels of `part` ("train", "serve") are in the cache, so that this run need not compile them."""
    return (CACHE_FOLDER / f"{part}.{_COMPLETE}").exists()


def mark_kernels_cached(part: str) -> None:
    """Record that every kernel of `part` has been compiled from the present sources."""
    CACHE_FOLDER.mkdir(parents=True, exist_ok=True)
    (CACHE_FOLDER / f"{part}.{_COMPLETE}").touch()


class _Listener(numba.core.event.Listener):
    """Calls a function with the name of each kernel whose compilation begins."""

    def __init__(self, on_kernel: Callable[[str], None]) -> None:
        self._on_kernel = on_kernel

    def on_start(self, event: Any) -> None:
        self._on_kernel(event.data["dispatcher"].py_func.__name__)

    def on_end(self, event: Any) -> None:
        pass


@contextmanager
def on_compile(on_kernel: Callable[[str], None]) -> Iterator[None]:
    """Call `on_kernel` with the name of each kernel that is compiled inside the context, not read from the cache."""
    with numba.core.event.install_listener("numba:compile", _Listener(on_kernel)):
        yield


def stub(function: Callable[..., Any]) -> Any:
    """Declare an operation for kernels; `implements` provides its body for each type of its first argument."""
    return function


def implements(operation: Any, *kinds: type) -> Callable[[Callable[..., Any]], Any]:
    """Compile `function` as the body of `operation` for a first argument of one of these NamedTuple classes.

    Numba chooses when it compiles a kernel: each kernel is compiled once per class, and the choice costs nothing.
    """

    def register(function: Callable[..., Any]) -> Any:
        def choose(*arguments: Any) -> Any:
            return function if getattr(arguments[0], "instance_class", None) in kinds else None

        choose.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        bare_overload(operation)(choose)
        return function

    return register


def bare_overload(operation: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let the decorated function choose, by types, the body of `operation`; inlined like a `bare_inline`."""
    decorate: Callable[[Callable[..., Any]], Callable[..., Any]]
    decorate = numba.extending.overload(operation, jit_options=_BARE_INLINED, strict=False)
    return decorate
