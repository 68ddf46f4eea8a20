"""Every picture in README and docs, from real runs: `make screenshots`, or `python docs/screenshots.py PART…`.

`live` runs `ftrie live` and takes the dashboard's pages in a headless Chromium while visitors come; `demo` draws the
metrics of the demo's first day; `evaluate` and `distributed` need the real logs of FTRIE_TEST_DATA, and are skipped
without; `exploration` and `distributed` are benchmarks and take some minutes. Look at the pictures afterwards: nothing
may overlap or be cut.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs/images"
PAGES = {
    "experiments": "",
    "models": "models",
    "learning": "learning",
    "features": "features",
    "try": "try",
    "system": "system",
}
SIZES: dict[str, dict[str, Any]] = {
    "": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "light"},
    "-phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"},
}
ON_PHONE = ("experiments", "system")
"""Pages whose picture on a telephone is kept."""
# Tastes change at second 60: the pictures show the time before, and that the loop has learned the new ones.
LIVE_S, TAKEN_AT_S = 270, 150.0
# A page is sent before its slower figures, and charts load the drawing code first.
SETTLE_S = 8.0
LEARNED, EVALUATED = range(21, 26), range(26, 29)
"""Days of October 2014 in the sample of avazu's log."""


def live() -> None:
    """Run the loop, and take the dashboard's pictures when it has run for a while."""
    words = ["live", "--seconds", str(LIVE_S), "--picture", str(IMAGES / "loop.svg")]
    process = subprocess.Popen([sys.executable, "-m", "ftrie", *words], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            found = re.search(r"watch it in a browser: (\S+)", line)
            if found:
                break
        else:
            raise SystemExit("ftrie live has ended without a dashboard: pip install 'ftrie[dashboard]'")
        time.sleep(TAKEN_AT_S)
        take(found.group(1))
        process.communicate()
    finally:
        process.terminate()
        process.wait()


def take(url: str) -> None:
    """Take the pictures of a running dashboard."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("chromium-browser")
        # As root, which is usual in containers, Chromium starts without its sandbox only.
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for suffix, size in SIZES.items():
            context = browser.new_context(**size)
            for name, path in PAGES.items():
                if suffix and name not in ON_PHONE:
                    continue
                page = context.new_page()
                page.goto(url + path)
                page.wait_for_selector("main h1")
                page.wait_for_timeout(SETTLE_S * 1000)
                page.screenshot(path=IMAGES / f"dashboard-{name}{suffix}.png")
                page.close()
            context.close()
        browser.close()


def demo() -> None:
    """Learn the demo's first day with metrics, and draw them (docs/metrics.md)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _ftrie("demo", "--keep", name)
        slices = ["--slice", "device", "--slice", "age*category="]
        metrics = ["--metrics", str(folder / "day-1.jsonl"), "--window", "20000"]
        _ftrie("train", str(folder / "shop.toml"), str(folder / "day-1.csv"), *metrics, *slices)
        _ftrie("report", str(folder / "day-1.jsonl"), "-o", str(IMAGES / "report.svg"))


def evaluate() -> None:
    """Learn five days of avazu's log, and evaluate the three after them (docs/evaluate.md)."""
    with gzip.open(_avazu(), "rt") as log, tempfile.TemporaryDirectory() as name:
        head, *rows = log
        at = head.rstrip("\n").split(",").index("hour")
        parts = []
        for days in LEARNED, EVALUATED:
            path = Path(name, f"days-{days[0]}-{days[-1]}.csv")
            wanted = {f"1410{day}" for day in days}
            path.write_text(head + "".join(row for row in rows if row.split(",")[at][:6] in wanted))
            parts.append(str(path))
        model = str(Path(name, "avazu.arrow"))
        _ftrie("train", str(ROOT / "examples/avazu.toml"), parts[0], "--save", model)
        _ftrie("evaluate", model, parts[1], "--report", str(IMAGES / "evaluate.svg"))


def exploration() -> None:
    """What exploration earns (docs/learners.md)."""
    _benchmark("exploration", "--picture", str(IMAGES / "exploration.svg"))


def distributed() -> None:
    """Methods by iterations and bytes, and what more workers would need (docs/distributed.md)."""
    _avazu()
    _benchmark("distributed", "methods", "cost", "--pictures", str(IMAGES))


PARTS: dict[str, Callable[[], None]] = {
    each.__name__: each for each in (live, demo, evaluate, exploration, distributed)
}


def _avazu() -> Path:
    logs = os.environ.get("FTRIE_TEST_DATA")
    found = sorted(Path(logs, "avazu").glob("clicks*.csv.gz")) if logs else []
    if not found:
        raise FileNotFoundError("FTRIE_TEST_DATA names no folder with avazu/clicks*.csv.gz")
    return found[0]


def _ftrie(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "ftrie", *words], check=True)


def _benchmark(*words: str) -> None:
    subprocess.run([sys.executable, "-m", f"benchmarks.{words[0]}", *words[1:]], check=True, cwd=ROOT)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="*", choices=[[], *PARTS], help="only these")
    for part in parser.parse_args().part or PARTS:
        print(f"{part}: {PARTS[part].__doc__}", flush=True)
        try:
            PARTS[part]()
        except FileNotFoundError as error:
            print(f"{part}: skipped, its pictures stay: {error}", flush=True)
