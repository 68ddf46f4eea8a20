"""A store with real traffic in it, a running dashboard, and Debian's Chromium to look at its pages."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from model_store.store import Store
from tests.degradation.conftest import valkey

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext

__all__ = ["valkey"]
PROCESSES: dict[str, int] = {}
"""The dashboards' processes by URL."""


@pytest.fixture(scope="package")
def traded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the store of a market that was open for some seconds: models, outcomes, impressions and clicks."""
    folder = tmp_path_factory.mktemp("live")
    words = f"live --seconds 14 --rate 80 --frozen 0 --dir {folder} --json".split()
    done = subprocess.run([sys.executable, "-m", "ftrie", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2_000:]
    url = f"embedded:{folder / 'store'}"
    with Store.open(url):  # so that it runs from the first test to the last
        yield url


@contextmanager
def dashboard(store: str, *words: str, ended_by: signal.Signals = signal.SIGTERM) -> Iterator[str]:
    """Run `ftrie dashboard` on a free port; yields its URL."""
    command = [sys.executable, "-m", "ftrie", "dashboard", "--store", store, "--port", "0", "--json", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"the dashboard ended with exit code {process.wait()}"
        ready: dict[str, Any] = json.loads(line)
        PROCESSES[ready["url"]] = process.pid
        yield ready["url"]
    finally:
        process.send_signal(ended_by)
        assert process.wait(20) == 0


@pytest.fixture(scope="package")
def watched(traded: str) -> Iterator[str]:
    """The URL of a dashboard that shows the traded market, and may change it."""
    with dashboard(traded, "market", "--allow-changes") as url:
        yield url


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """A headless Chromium, of this machine."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with pytest.importorskip("playwright.sync_api").sync_playwright() as playwright:
        flags = ["--no-sandbox", "--js-flags=--expose-gc"]
        browser = playwright.chromium.launch(executable_path=path, args=flags)
        yield browser
        browser.close()


class Watcher:
    """A browser window that lets no request leave this machine, and keeps what went wrong on a page."""

    def __init__(self, browser: Browser, width: int = 1440, height: int = 900, scheme: Any = "light") -> None:
        # A test's certificate is its own.
        self.context: BrowserContext = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, ignore_https_errors=True
        )
        self.elsewhere: list[str] = []
        self.errors: list[str] = []
        self.context.route("**/*", self._route)

    def open(self, url: str) -> Any:
        page = self.context.new_page()
        page.on(
            "console", lambda message: self.errors.append(message.text) if message.type == "error" else None
        )
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.goto(url)
        page.wait_for_selector("main h1", timeout=30_000)
        return page

    def close(self) -> None:
        self.context.close()

    def _route(self, route: Any) -> None:
        if route.request.url.startswith(("http://127.0.0.1:", "https://127.0.0.1:", "data:")):
            route.continue_()
        else:
            self.elsewhere.append(route.request.url)
            route.abort()


@pytest.fixture
def window(chromium: Browser) -> Iterator[Watcher]:
    with closing(Watcher(chromium)) as watcher:
        yield watcher
