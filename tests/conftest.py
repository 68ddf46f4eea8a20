"""What every test may ask for: a real store, real click logs, and Hypothesis without deadlines."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from hypothesis import HealthCheck, Phase, settings

from tests.processor_time import ProcessorTime

if TYPE_CHECKING:
    from model_store.store import Store

ROOT = Path(__file__).resolve().parents[1]

FIRST = (
    "tests/repository/test_typed_commands.py",
    "tests/repository/test_tutorials.py",
    "tests/chaos/",
    "tests/degradation/",
    "tests/integration/",
    "tests/loop/",
    "tests/sweeps/",
    "tests/model_store/",
    "tests/ftrie/test_sklearn.py",
    "tests/ftrie/commands/",
    "tests/ftrie/dashboard/",
    "tests/trainer/runs/",
    "tests/trainer/distributed/",
    "tests/trainer/learn/",
)
"""What takes longest, so that no process is left with it at the end; `--processor-time` shows it."""
APART = (
    "tests/integration/test_junk_in_the_store.py::test_more",
    "tests/loop/test_loop.py::test_more",
    "tests/sweeps/test_run",
    "tests/sweeps/test_trainer",
    "tests/sweeps/test_command",
    "tests/repository/test_tutorials.py::",
    "tests/repository/test_typed_commands.py::",
)
"""Tests of files that one process would run for longer than a share of the whole: each goes to any process."""
SHARING = ("tests/model_store/", "tests/ftrie/dashboard/")
"""Folders whose tests share stores of several servers, or a market and its dashboard: each in one process."""
TOGETHER = {
    "tests/degradation shop": ("feedback_not_taken", "short_of_memory", "store_away"),
    "tests/degradation trainers": ("trainer_and_sources", "trainer_and_store"),
}
"""Files of tests/degradation whose slow tests break one shop, or the same trainers: each group in one process."""
PASSED: list[str] = []
"""The tests that passed in this run."""

# A shell starts background jobs with SIGINT ignored, nohup any job with SIGHUP ignored. Children would inherit that,
# and tests that interrupt one would wait for ever; so that they start with the defaults:
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A first call compiles a kernel, which takes seconds: deadlines would measure the compiler.
settings.register_profile("all", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("all"), max_examples=20)
# A fault of tests/mutations.py is to be found; what its least example is takes longer, and nobody looks at it.
settings.register_profile("mutations", settings.get_profile("all"), phases=[Phase.generate], max_examples=50)
settings.load_profile("all")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Say how long the loop is disturbed: `pytest tests/chaos --chaos-seconds 600`."""
    parser.addoption(
        "--chaos-seconds",
        type=float,
        default=float(os.environ.get("FTRIE_CHAOS_SECONDS", "12")),
        help="how long tests/chaos kills processes under traffic (default 12, or FTRIE_CHAOS_SECONDS)",
    )
    parser.addoption("--loop-seed", type=int, help="the only seed that tests/loop runs, with its trace")
    parser.addoption("--chaos-seed", type=int, default=1, help="which processes tests/chaos kills, and when")
    parser.addoption(
        "--fuzz-cases",
        type=int,
        default=1,
        help="values put at each key of the store (1000: all that there are)",
    )
    parser.addoption("--processor-time", action="store_true", help="print how much processor time tests take")
    parser.addoption("--write-passed", type=Path, help="write the tests that passed to this file")
    parser.addoption("--leave-out", type=Path, help="leave out the tests in this file")


def pytest_configure(config: pytest.Config) -> None:
    """Draw fewer examples where the slow tests are left out too; collect no garbage while tests are collected."""
    gc.disable()
    if config.option.markexpr == "not slow":
        settings.load_profile("quick")
    if os.environ.get("FTRIE_MUTATED"):
        settings.load_profile("mutations")
    if config.option.processor_time:
        config.pluginmanager.register(ProcessorTime())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put what takes longest first, and leave out what has passed before, in continuous integration."""
    if config.option.leave_out:
        passed = set(config.option.leave_out.read_text("utf-8").splitlines())
        config.hook.pytest_deselected(items=[each for each in items if each.nodeid in passed])
        items[:] = [each for each in items if each.nodeid not in passed]
    items.sort(
        key=lambda each: next((n for n, path in enumerate(FIRST) if each.nodeid.startswith(path)), len(FIRST))
    )


def pytest_collection_finish() -> None:
    """Leave out of every later look for garbage what lives to the end: some 800,000 objects, a tenth of the time."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give a file's tests to one process, but APART, SHARING, TOGETHER, and the fast tests/degradation."""
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(APART):
                return nodeid
            path = nodeid.partition("::")[0]
            if shared := next(filter(path.startswith, SHARING), None):
                return shared
            if path.startswith("tests/degradation/"):
                if config.option.markexpr == "not slow":
                    return "tests/degradation"  # they share a shop
                name = path.partition("test_")[2].removesuffix(".py")
                return next((group for group, names in TOGETHER.items() if name in names), path)
            return path

    config.option.loadscopereorder = False  # FIRST has put them in order
    return Files(config, log)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep the names of the tests that passed."""
    if report.when == "call" and report.passed:
        PASSED.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the names of the tests that passed."""
    if session.config.option.write_passed and not hasattr(session.config, "workerinput"):
        session.config.option.write_passed.write_text("\n".join(PASSED), "utf-8")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Make once what each of xdist's processes would make: kernels, and test files with rewritten assertions."""
    if getattr(session.config.option, "numprocesses", None) and not hasattr(session.config, "workerinput"):
        environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"}
        kernels = ["-m", "tests.kernels"]
        commands = [kernels]
        if not _are_rewritten():
            commands.append(["-m", "pytest", "--collect-only", "-q", "tests"])
        preparing = [
            subprocess.Popen(
                [sys.executable, *command],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            for command in commands
        ]
        for command, process in zip(commands, preparing, strict=True):
            _, errors = process.communicate()
            if (
                process.returncode and command is kernels
            ):  # what cannot be collected is told when it is to run
                raise pytest.UsageError(f"the kernels could not be compiled:\n{errors.decode()}")


def _are_rewritten() -> bool:
    """Whether pytest has kept the test files with their assertions rewritten, which takes half a minute."""
    files = list(ROOT.glob("tests/**/test_*.py"))
    kept = {path.name.partition(".")[0] for path in ROOT.glob("tests/**/__pycache__/test_*-pytest-*.pyc")}
    return sum(path.stem in kept for path in files) > len(files) // 2


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Name bytes that are no text by their length: a packed file holds the time, and all xdist workers must agree."""
    return f"{argname} of {len(val)} bytes" if isinstance(val, bytes) and not val.isascii() else None


@pytest.fixture(scope="session", autouse=True)
def nothing_left_running() -> Iterator[None]:
    """Ends the processes that a test or a fixture started and, because it failed half way, did not end."""
    yield
    for task in Path("/proc/self/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:  # a thread that has ended meanwhile
            continue
        for pid in map(int, children):
            with suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
                if not command or "multiprocessing" in command:
                    continue  # it has ended, or ends with this process
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                warnings.warn(f"ended process {pid}, which a test left running: {command}", stacklevel=1)


@pytest.fixture(autouse=True)
def uncached_logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commands configure the log of their process: not for good here, or later tests capture nothing."""
    configure = structlog.configure
    for_now = {"cache_logger_on_first_use": False}
    monkeypatch.setattr(structlog, "configure", lambda **how: configure(**how | for_now))
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def valkey_url() -> Iterator[str]:
    """The URL of a Valkey that lives as long as the tests; its folder is short enough for a unix socket."""
    from model_store.store import Store

    with tempfile.TemporaryDirectory(prefix="ftrie-") as folder:
        url = f"embedded:{folder}"
        keeper = Store.open(url)
        yield url
        keeper.close()


@pytest.fixture
def store_url(request: pytest.FixtureRequest) -> str:
    """The URL of a store that is empty; of the kind that a parameter names (tests/model_store/conftest.py)."""
    from model_store.store import Store

    kind = getattr(request, "param", "valkey_url")
    servers = request.getfixturevalue(kind)
    url: str = servers if kind == "valkey_url" else servers.url
    with Store.open(url) as opened:
        opened.client.flushall()
    return url


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    """An empty store on a real Valkey; `store_url` opens the same one from another process."""
    from model_store.store import Store

    with Store.open(store_url) as opened:
        yield opened


@pytest.fixture(scope="session")
def avazu_log() -> Path:
    """Real mobile ad impressions, 16,160 rows (see examples/avazu.toml)."""
    return _click_log("avazu/clicks_2014-10-21_28.csv.gz")


@pytest.fixture(scope="session")
def open_bandit_folder() -> Path:
    """Real fashion clicks, 10,000 rows: men.csv.gz and item_context.csv (see examples/open_bandit.toml)."""
    return _click_log("open_bandit/random_men")


@pytest.fixture(scope="session")
def trivago_folder() -> Path:
    """A day of hotel lists as shown and the click each received, as two event logs (docs/events.md)."""
    return _click_log("trivago")


@pytest.fixture(scope="session")
def simulated_events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,000 requests of the simulated market as two event logs, each request with one click (tests/worlds.py)."""
    from tests.worlds import event_logs

    folder = tmp_path_factory.mktemp("simulated")
    event_logs(1000).write(folder)
    return folder


@pytest.fixture(params=["simulated_events", pytest.param("trivago_folder", marks=pytest.mark.slow)])
def event_folder(request: pytest.FixtureRequest) -> Path:
    """Two event logs, impressions.jsonl and clicks.jsonl (or .jsonl.gz), one click a request: simulated, then real."""
    folder: Path = request.getfixturevalue(request.param)
    return folder


def _click_log(name: str) -> Path:
    """A real log in the folder that FTRIE_TEST_DATA names; the test is skipped without it."""
    folder = os.environ.get("FTRIE_TEST_DATA")
    if not folder:
        pytest.skip("needs real click logs: set FTRIE_TEST_DATA to their folder (CONTRIBUTING.md)")
    path = Path(folder) / name
    if not path.exists():
        pytest.skip(f"needs {name}, which is not in FTRIE_TEST_DATA ({folder})")
    return path
