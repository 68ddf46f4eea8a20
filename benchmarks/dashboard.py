"""The dashboard's first view: a model of a million keys and 31 days of minutes, in a browser that has nothing yet.

Each page is opened in a new, empty window of a headless Chromium, on the machine that serves it. The time is the
browser's own, from the start of the navigation to the frame after the page's figures and its first chart, or for the
features the branches, are there.

    python -m benchmarks.dashboard
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

from benchmarks.common import ROUNDS, Spread, report
from benchmarks.rank_model import NAME, artefact, with_own_weights
from model_store.ratios import BUCKETS
from model_store.store import Store
from model_store.versions.online_metrics import HOUR, KEPT_S, OnlineCell

VARIANTS = 2
SEEN = {
    "/": (".tile", "svg.marks"),
    "/?hours=744": (".tile", "svg.marks"),
    "/models": (".tile", "td"),
    "/features": (".branches button", "svg.marks"),
}
"""What is there once a page is seen."""
NOTE_WHEN_SEEN = """wanted => {
  const look = () => {
    if (!wanted.every(each => document.querySelector(each))) return;
    watch.disconnect();
    requestAnimationFrame(() => requestAnimationFrame(() => { window.seenAt = performance.now(); }));
  };
  const watch = new MutationObserver(look);
  watch.observe(document, { childList: true, subtree: true });
}"""
COLUMNS = ("page", "seconds", "fastest", "slowest")


def fill(url: str) -> None:
    """Publish the model, and write a cell for every minute and variant that a store keeps."""
    draw, now = random.Random(1), int(time.time()) // 60
    with Store.open(url) as store:
        versions = store.model(NAME)
        versions.publish_and_activate(with_own_weights(artefact(), VARIANTS))
        for hour in range((now - KEPT_S // 60) // HOUR + 1, now // HOUR):
            versions.online.write(
                {
                    (minute, f"v{number}"): _cell(draw)
                    for minute in range(hour * HOUR, (hour + 1) * HOUR)
                    for number in range(VARIANTS)
                }
            )
            versions.online.add_up(range(hour, hour + 1))


def _cell(draw: random.Random) -> OnlineCell:
    requests, clicks = draw.randrange(8, 10), draw.randrange(4, 8)
    sums = (requests, 6 * requests, clicks, 0, clicks * 10**9, 0, clicks)
    return OnlineCell(np.full((BUCKETS, len(sums)), sums, np.int64), (1, 1))


def first_views(url: str) -> dict[str, list[float]]:
    """Seconds to the first view of each page, ROUNDS times, the pages in turn."""
    from playwright.sync_api import sync_playwright

    found: dict[str, list[float]] = {page: [] for page in SEEN}
    with sync_playwright() as playwright:
        path = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for _ in range(ROUNDS):
            for page, wanted in SEEN.items():
                context = browser.new_context(viewport={"width": 1440, "height": 900})
                window = context.new_page()
                window.add_init_script(f"({NOTE_WHEN_SEEN})({json.dumps(wanted)})")
                window.goto(url + page.lstrip("/"))
                window.wait_for_function("window.seenAt")
                found[page].append(round(window.evaluate("window.seenAt") / 1000.0, 3))
                context.close()
        browser.close()
    return found


def main() -> None:
    """Measure and report."""
    with tempfile.TemporaryDirectory(prefix="ftrie-") as folder:
        store = f"embedded:{folder}"
        with Store.open(store):
            fill(store)
            words: list[Any] = [
                sys.executable,
                "-m",
                "ftrie",
                "dashboard",
                NAME,
                "--store",
                store,
                "--port",
                "0",
                "--json",
            ]
            began = time.perf_counter()
            process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            started = time.perf_counter() - began
            try:
                time.sleep(15)  # the feed reads the older minutes
                views = first_views(ready["url"])
            finally:
                process.terminate()
                process.wait()
    spreads = {page: Spread.of(seconds) for page, seconds in views.items()}
    rows = [(page, each.median, each.low, each.high) for page, each in spreads.items()]
    report("dashboard", f"First view of the dashboard, ready {started:.1f} s after its start", COLUMNS, rows)


if __name__ == "__main__":
    main()
