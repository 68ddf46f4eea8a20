"""Compiles and caches kernels, which live in `*_kernels.py` modules and in the learners' files.

Numba's own cache detects a change in a kernel's file, by its time, but not in other files whose kernels it inlines or
whose constants it freezes. Here the cache folder is named after a hash of every file with kernels, every file of this
repository from which these import a constant, the versions of Python, numba and llvmlite, and the processor: a change
in any of them starts a new folder, so a stale kernel never runs. Neither times nor the place of the files matter: the
same version installed again, or elsewhere, finds its kernels. Processes that need one kernel at once compile it once.
"""

from __future__ import annotations

import fcntl
import hashlib
import inspect
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numba
import numba.core.event
import numba.extending
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher

_ROOT = Path(__file__).resolve().parent.parent
_PACKAGES = ("model_store", "trainer", "server")
_KERNEL_FILES = ("*_kernels.py", "learners/*.py")
_IMPORT = re.compile(r"^from ((?:model_store|trainer|server)[.\w]*) import (\(?[^)]*?(?:\)|$))", re.MULTILINE)
_COMPLETE = "complete"
_FOLDERS = "kernels-"
_KEPT, _IN_USE_S = 4, 86_400.0
"""Caches of that many versions are kept, 5 to 20 MB each, and those used within a day, by several checkouts."""


def _kernel_sources() -> list[Path]:
    """Every file with kernels, and every file whose constants they import here, since a kernel freezes these."""
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
    """The files of this repository from which a module's source imports a constant, at any place in it.

    Kernels are in files that are read anyway, and a kernel can freeze neither a class nor a function of Python.
    """
    for module, names in _IMPORT.findall(source):
        path = _ROOT.joinpath(*module.split(".")).with_suffix(".py")
        if path.is_file() and re.search(r"\b[A-Z][A-Z0-9_]*\b", names):
            yield path


_KERNEL_SOURCES = frozenset(map(str, _kernel_sources()))


def _fingerprint() -> str:
    versions = [version("numba"), version("llvmlite"), sys.version]
    processor = [llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()]
    digest = hashlib.sha256("\n".join(versions + processor).encode())
    for path in sorted(_KERNEL_SOURCES):
        digest.update(Path(path).read_bytes())
    return digest.hexdigest()[:16]


def _cache_folder() -> Path:
    given = os.environ.get("NUMBA_CACHE_DIR")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (Path(given) if given else home / "ftrie") / f"{_FOLDERS}{_fingerprint()}"


CACHE_FOLDER = _cache_folder()


class _Locator:
    """Where the cache files of one kernel are.

    Those of the sources above never go stale, for the folder's name stands for them; a kernel of another file, such as
    a test's, has a folder of its own and is compiled again when the file changes.
    """

    def __init__(self, source: Path) -> None:
        if str(source) in _KERNEL_SOURCES:
            self._folder = CACHE_FOLDER.joinpath(*source.relative_to(_ROOT).with_suffix("").parts)
            self._stamp = ""
        else:
            self._folder = CACHE_FOLDER / hashlib.sha256(str(source).encode()).hexdigest()[:16]
            self._stamp = str(source.stat().st_mtime_ns)

    @classmethod
    def from_function(cls, function: Any, source: str) -> _Locator:
        return cls(Path(source).resolve())

    def ensure_cache_path(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> str:
        return self._stamp

    def get_disambiguator(self) -> str:
        return ""


class _CacheFiles(CompileResultCacheImpl):
    def __init__(self, function: Any) -> None:
        locators: list[Any] = [_Locator]
        self._locator_classes = locators
        super().__init__(function)  # type: ignore[no-untyped-call]


class _Cache(FunctionCache):
    """One kernel's cache. A folder that cannot be used, or a full disk, costs only that it is compiled again."""

    _impl_class = _CacheFiles

    def load_overload(self, signature: Any, target: Any) -> Any:
        with suppress(OSError):
            return super().load_overload(signature, target)  # type: ignore[no-untyped-call]

    def save_overload(self, signature: Any, compiled: Any) -> None:
        with suppress(OSError):
            super().save_overload(signature, compiled)  # type: ignore[no-untyped-call]

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While no other process compiles this kernel, or reads or writes its cache files."""
        with _Held(Path(self.cache_path) / f"{self._impl.filename_base}.lock"):
            yield


class _Held:
    """An exclusive lock on a file, released when the process ends; nothing where files cannot be locked."""

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, -1

    def __enter__(self) -> None:
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        if self._file >= 0:
            os.close(self._file)


# Numba infers a kernel's types when it compiles it; for the type checker kernels are untyped.
def intrinsic(function: Callable[..., Any]) -> Any:
    """Define an operation for kernels in LLVM instructions; see numba's `extending.intrinsic`."""
    return numba.extending.intrinsic(function)


class _InlinedCode(JITCodeLibrary):
    """What LLVM has made of an inlined function. Machine code, 7 % of the time to compile, would never run."""

    @property
    def codegen(self) -> _InlinedCode:
        return self

    def set_env(self, name: str, environment: Any) -> None:
        """Numba would store where machine code finds Python's objects."""

    def get_pointer_to_function(self, name: str) -> int:
        return 0

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()  # type: ignore[no-untyped-call]
        self._finalized = True


class _InlinedCompiler(Compiler):
    def __init__(self, typing: Any, target: Any, library: Any, *rest: Any) -> None:
        library = library or _InlinedCode(target.codegen(), "inlined")  # type: ignore[no-untyped-call]
        super().__init__(typing, target, library, *rest)  # type: ignore[no-untyped-call]


# Numba would give each function an entry for C, and each inlined one an entry for Python, which nothing calls:
# they were a third of the time to compile. Without reference counting, a bare kernel must allocate nothing.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
_INLINED: dict[str, Any] = {**_OPTIONS, "no_cpython_wrapper": True, "pipeline_class": _InlinedCompiler}
_UNCOUNTED: dict[str, Any] = {"_nrt": False}
_BARE_INLINED: Any = {**_INLINED, "forceinline": True, **_UNCOUNTED}


class _Kernel(CPUDispatcher):
    """A function that Python calls. Compiled by one process while others that need it wait, and cached."""

    def compile(self, signature: Any) -> Any:
        # The compiler's lock first: two threads of one process would else wait for each other.
        with global_compiler_lock:
            if signature in self.overloads:
                return super().compile(signature)
            with self._cache.alone():
                return super().compile(signature)

    def enable_caching(self) -> None:
        self._cache: Any = _Cache(self.py_func)  # type: ignore[no-untyped-call]


class _Inlined(CPUDispatcher):
    """A function that has machine code only inside the kernels that call it."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        name = self.py_func.__qualname__
        raise TypeError(f"{name} is compiled into kernels only: call it from a kernel, or {name}.py_func")


def _inlined(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    made = numba.njit(**options)(function)
    made.__class__ = _Inlined  # its code has no entry for Python: a call would end the process
    return made


def _called(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    made = numba.njit(**options)(function)
    made.__class__ = _Kernel
    made.enable_caching()
    return made


def kernel(function: Callable[..., Any]) -> Any:
    """Compile `function` on first call: nogil, cached on disk, no Python objects, IEEE arithmetic (no fastmath)."""
    return _called(function, _OPTIONS)


def inline(function: Callable[..., Any]) -> Any:
    """Compile a small function that only kernels call; LLVM inlines it. Same arithmetic as `kernel`."""
    return _inlined(function, _INLINED)


def bare_kernel(function: Callable[..., Any]) -> Any:
    """Compile like `kernel`, without reference counting, for kernels that allocate nothing.

    Numba counts references to arrays passed to inner functions, atomically, in every loop iteration (measured in the
    ranking kernel: 0.09 of 0.11 ms). The caller holds every array while the kernel runs, so counting is not needed.
    """
    return _called(function, {**_OPTIONS, **_UNCOUNTED})


def bare_inline(function: Callable[..., Any]) -> Any:
    """Compile a small function that only bare kernels call; always inlined, its array arguments cost nothing."""
    return _inlined(function, _BARE_INLINED)


def kernels_are_cached(part: str) -> bool:
    """True if the kernels of `part` ("train", "serve") are in the cache, so that this run need not compile them."""
    return (CACHE_FOLDER / f"{part}.{_COMPLETE}").exists()


def mark_kernels_cached(part: str) -> None:
    """Record that every kernel of `part` has been compiled from the present sources, and remove unused caches."""
    with suppress(OSError):  # a folder that cannot be written: the next run compiles again
        CACHE_FOLDER.mkdir(parents=True, exist_ok=True)
        (CACHE_FOLDER / f"{part}.{_COMPLETE}").touch()
        os.utime(CACHE_FOLDER)
        _remove_old()


def _remove_old() -> None:
    """Keep the caches used last, of this and other versions; a removed one is only compiled again."""
    used = {
        path: path.stat().st_mtime
        for path in CACHE_FOLDER.parent.glob(f"{_FOLDERS}*")
        if path != CACHE_FOLDER
    }
    for folder in sorted(used, key=used.__getitem__)[: 1 - _KEPT]:
        if used[folder] < time.time() - _IN_USE_S:
            shutil.rmtree(folder, ignore_errors=True)


class _Listener(numba.core.event.Listener):
    """Reports each kernel when its compilation begins, and when it has ended."""

    def __init__(self, on_kernel: Callable[[str], None], on_end: Callable[[str, float, int], None]) -> None:
        self._on_kernel, self._on_end = on_kernel, on_end
        self._began: list[float] = []

    def on_start(self, event: Any) -> None:
        self._began.append(time.perf_counter())
        self._on_kernel(event.data["dispatcher"].py_func.__name__)

    def on_end(self, event: Any) -> None:
        function = event.data["dispatcher"].py_func
        seconds = time.perf_counter() - self._began.pop()
        self._on_end(f"{function.__module__}.{function.__qualname__}", seconds, len(self._began))


@contextmanager
def on_compile(
    on_kernel: Callable[[str], None] = lambda name: None,
    on_end: Callable[[str, float, int], None] = lambda name, seconds, inside: None,
) -> Iterator[None]:
    """Call `on_kernel` with the name of each kernel that is compiled inside the context, not read from the cache.

    on_end gets the kernel's full name, the seconds with those inside it, and how many kernels it is compiled inside of.
    """
    with numba.core.event.install_listener("numba:compile", _Listener(on_kernel, on_end)):
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
