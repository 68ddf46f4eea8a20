"""The pictures of the dashboard in README and docs, from a live run: `make screenshots`.

Starts `ftrie live`, lets visitors come for a while, and takes a picture of every page in a headless Chromium, wide and
as on a telephone. Look at them afterwards: nothing may overlap or be cut.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

IMAGES = Path(__file__).parent / "images"
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
SETTLE_S = 8.0


def live(seconds: float, rate: float) -> None:
    """Run the loop, and take the pictures when it has run for so long."""
    with tempfile.TemporaryDirectory(prefix="ftrie-live-") as folder:
        words = [sys.executable, "-m", "ftrie", "live", "--rate", str(rate), "--dir", folder]
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stderr is not None
            for line in process.stderr:
                found = re.search(r"watch it in a browser: (\S+)", line)
                if found:
                    break
            else:
                raise SystemExit("ftrie live has ended without a dashboard: pip install 'ftrie[dashboard]'")
            time.sleep(seconds)
            take(found.group(1))
        finally:
            process.terminate()
            process.communicate()


def take(url: str) -> None:
    """Take the pictures of a running dashboard."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("chromium-browser")
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=240.0, help="how long visitors come before the pictures"
    )
    parser.add_argument("--rate", type=float, default=60.0, help="visits a second")
    given = parser.parse_args()
    live(given.seconds, given.rate)
