"""The pages in a real Chromium: over a store with real traffic, with nothing from elsewhere, for every reader."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ftrie.api.client import Client
from ftrie.dashboard.app import PAGES
from ftrie.dashboard.pages.layout import Page
from model_store.store import Store
from tests.degradation.system import Valkey
from tests.ftrie.dashboard.conftest import PROCESSES, Watcher, dashboard
from tests.server import shop
from tests.waiting import eventually

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow
SETTLED = {
    "/": "text=No winner yet",
    "/models": r"text=/is a snapshot|snapshot \d+ →/",  # the newest version, or what it is made of
    "/learning": "text=rows",
    "/features": "text=brand=",
    "/try": "text=contribution",
    "/system": "text=Dead letters",
}
"""What each page shows once it has all it shows."""

CUT = """[...document.querySelectorAll('svg.marks text')].filter(text => {
  const own = text.getBoundingClientRect(), all = text.closest('svg').getBoundingClientRect();
  return text.textContent && own.width
    && (own.top < all.top - 2 || own.bottom > all.bottom + 2 || own.left < all.left - 2 || own.right > all.right + 2);
}).map(text => text.textContent)"""
"""The texts of charts that lie outside of their picture."""


BANNER = ".banner p:has-text('cannot be read')"


def settled(page: Any, path: str) -> None:
    """Wait until a page shows everything."""
    page.wait_for_selector(SETTLED[path], timeout=60_000, state="attached")


def number(page: Any, what: str) -> int:
    tile = page.locator(".tile", has=page.locator(f"dt:text-is('{what}')"))
    return int(re.sub(r"\D", "", tile.locator("dd").first.inner_text()))


@pytest.mark.parametrize("shown", PAGES, ids=lambda page: page.title)
@pytest.mark.parametrize(("width", "height", "scheme"), [(1440, 900, "light"), (390, 844, "dark")])
def test_every_page_needs_nothing_from_elsewhere_and_fits_and_axe_finds_no_serious_issue(
    chromium: Browser, watched: str, shown: Page, width: int, height: int, scheme: str
) -> None:
    with closing(Watcher(chromium, width, height, scheme)) as watcher:
        page = watcher.open(watched.rstrip("/") + shown.path)
        settled(page, shown.path)
        assert page.inner_text("main h1") == shown.title
        assert page.locator("nav a[aria-current=page]").inner_text() == shown.title
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        eventually(lambda: page.evaluate(CUT) == [], "charts without a text that is cut")
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (dark == "rgb(15, 18, 22)") == (scheme == "dark")
        assert watcher.errors == [] and watcher.elsewhere == []
        if find_spec("axe_playwright_python") is None:
            return
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(page).response["violations"]
        serious = [each for each in found if each["impact"] in ("serious", "critical")]
        shown = [(each["id"], node["html"][:200]) for each in serious for node in each["nodes"][:3]]
        assert shown == []


def test_figures_are_the_stores_and_keys_walk_the_pages(window: Watcher, watched: str, traded: str) -> None:
    page = window.open(watched)
    settled(page, "/")
    stop = int(time.time()) // 60 + 1
    with Store.open(traded) as store:
        cells = [cell.sums for _, cell in store.model("market").online.read(stop - 360, stop, stop - 1)]
        impressions = store.impressions("market").info().length
        versions = len(store.model("market").versions())
    assert number(page, "Requests") == sum(sums.requests for sums in cells)
    assert number(page, "Items shown") == sum(sums.shown for sums in cells)
    assert number(page, "Clicks") == sum(sums.clicks for sums in cells)
    page = window.open(watched + "system")
    eventually(lambda: number(page, "Events in the store") == impressions, "the number of impressions")
    page = window.open(watched + "models")
    eventually(lambda: number(page, "Versions in the store") == versions, "the number of versions")
    page = window.open(watched)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    for each in PAGES:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.innerText") == each.title
    page.keyboard.press("Enter")
    page.wait_for_selector("main h1:text-is('System')")


def test_a_model_that_is_not_there_is_no_other_one(window: Watcher, watched: str) -> None:
    page = window.open(watched + "models?model=nosuch")
    page.wait_for_selector("text=The store has no model 'nosuch'; it has market.")
    assert page.locator(".tile").count() == 0


def test_below_a_path_of_a_proxy_all_is_asked_for_there(watched: str) -> None:
    request = urllib.request.Request(watched, headers={"X-Forwarded-Prefix": "/clicks"})
    with urllib.request.urlopen(request) as answer:
        text = answer.read().decode()
    asked = re.findall(r'(?:(?:href|src|action)=|library[\\]*":)[\\]*"(/[^"\\]*)', text)
    assert any("/charts/" in path for path in asked)
    assert [path for path in asked if not path.startswith("/clicks/")] == []


def test_a_walk_down_the_trie_and_a_search(window: Watcher, watched: str) -> None:
    page = window.open(watched + "features")
    settled(page, "/features")
    page.locator(".branches button", has_text="category=").click()
    page.wait_for_selector("strong:text('category=')")
    page.get_by_label("Text").fill("games")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=/\\d+ keys/")
    page.wait_for_selector("td:text('category=games')")


def test_a_value_that_is_changed_moves_the_order(window: Watcher, watched: str) -> None:
    page = window.open(watched + "try")
    settled(page, "/try")
    page.get_by_label("user: age").fill("18-24")
    page.get_by_role("button", name="Rank", exact=True).click()
    page.get_by_label("Field").click()
    page.get_by_role("option", name="age").click()
    page.get_by_label("other value").fill("50+")
    page.get_by_role("button", name="What if").click()
    page.wait_for_selector("[aria-label='How the items move'] td")
    cells = page.locator("[aria-label='How the items move'] td").all_inner_texts()
    assert len(cells) >= 25 and any(cells[n + 3] != cells[n + 4] for n in range(0, len(cells), 5))
    page.get_by_label("candidates").fill("")
    page.get_by_role("button", name="Rank", exact=True).click()
    page.wait_for_selector("[role=alert]:has-text('no candidates')")
    assert page.locator("datalist option[value='25-34']").count() >= 1
    page.get_by_label("candidates").fill("games-1, no-such-item")
    page.get_by_label("user: age").fill("18-42")
    page.get_by_role("button", name="Rank", exact=True).click()
    page.wait_for_selector(
        "[role=alert]:has-text(\"item 'no-such-item': not in the store; age '18-42': no weight\")"
    )
    page.wait_for_selector("td:text('no-such-item (not in the store)')")


def test_a_share_is_changed_and_acts(window: Watcher, watched: str, traded: str, tmp_path: Path) -> None:
    words = ["serve", "market", "--store", traded, "--port", "0", "--json", "--state", str(tmp_path)]
    server = subprocess.Popen([sys.executable, "-m", "ftrie", *words], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = json.loads(server.stdout.readline())["address"]
        page = window.open(watched)
        settled(page, "/")
        page.get_by_label("base, %").fill("0")
        page.get_by_label("plain, %").fill("100")
        page.get_by_role("button", name="Change shares").click()
        page.get_by_role("button", name="Yes").click()
        page.wait_for_selector("text=Shares changed")
        with Store.open(traded) as store, Client(address) as client:
            versions = store.model("market")
            assert dict(versions.experiment().shares) == {"base": 0.0, "plain": 1.0}  # type: ignore[union-attr]
            (change,) = versions.audit.read(1)
            assert (change.tool, change.action) == ("dashboard", "shares") and change.who
            assert json.loads(change.after)["shares"] == {"base": 0.0, "plain": 1.0}

            def variants() -> set[str]:
                answers = (
                    client.rank("market", cookie=f"u{n}", candidates=["books-1", "games-1"])
                    for n in range(20)
                )
                return {answer.variant for answer in answers}

            eventually(lambda: variants() == {"plain"}, "the new shares in the server")
        row = page.locator("[aria-label='Planned and observed shares of the traffic'] tr", has_text="plain")
        eventually(lambda: "100.0 %" in row.inner_text(), "the planned share")
        page.wait_for_selector("[aria-label='Changes by operators'] td:text('dashboard')")
        page.get_by_label("Interleaved variants", exact=True).fill("base, plain")
        page.get_by_role("button", name="Interleave", exact=True).click()
        page.get_by_role("button", name="Yes").click()
        page.wait_for_selector("text=base and plain answer together")
        with Store.open(traded) as store:
            record = store.model("market").experiment()
            assert record is not None and (record.interleave, record.draft) == (("base", "plain"), "team")
        page.get_by_label("Interleaved variants", exact=True).fill("base, nobody")
        page.get_by_role("button", name="Interleave", exact=True).click()
        page.get_by_role("button", name="Yes").click()
        page.wait_for_selector("text=/Nothing was changed: interleave: no variant 'nobody'/")
        page.get_by_label("base, %").fill("70")
        page.get_by_role("button", name="Change shares").click()
        page.get_by_role("button", name="Yes").click()
        page.wait_for_selector("text=Nothing was changed")
        for name, share in (
            ("base", "-5"),
            ("plain", "105"),
        ):  # together 100, and not changed to what would be allowed
            page.get_by_label(f"{name}, %").fill(share)
        page.get_by_role("button", name="Change shares").click()
        page.wait_for_selector("text=base -5 %, plain 105 %")
        page.get_by_role("button", name="Yes").click()
        page.wait_for_selector("text=/Nothing was changed: .*-0.05/")
    finally:
        with Store.open(traded) as store:
            store.model("market").experiments.clear()
        server.terminate()
        server.wait(30)


def test_with_a_password_viewers_sign_in_over_tls_and_are_named(
    window: Watcher, traded: str, tmp_path: Path
) -> None:
    trustme = pytest.importorskip("trustme")
    certificate = trustme.CA().issue_cert("127.0.0.1")
    chain, key, password = tmp_path / "chain.pem", tmp_path / "key.pem", tmp_path / "password"
    certificate.private_key_pem.write_to_path(str(key))
    for each in certificate.cert_chain_pems:
        each.write_to_path(str(chain), append=True)
    password.write_text("open sesame\n")
    words = f"--password-file {password} --tls-cert {chain} --tls-key {key} --allow-changes".split()
    with dashboard(traded, "market", *words) as url:
        assert url.startswith("https://")
        page = window.context.new_page()
        page.goto(url)
        page.get_by_label("Your name").fill("Ada")
        page.get_by_label("Password").fill("open sesame")
        page.get_by_role("button", name="Sign in").click()
        settled(page, "/")
        page.get_by_label("Cookie").fill("c1")
        page.get_by_role("button", name="Pin").click()
        page.get_by_role("button", name="Yes").click()
        page.wait_for_selector("text=c1 pinned to base")
        with Store.open(traded) as store:
            (change,) = store.model("market").audit.read(1)
            store.model("market").experiments.clear()
        assert (change.who, change.tool, change.action) == ("Ada", "dashboard", "pin")
        page.get_by_role("button", name="Sign out").click()
        page.get_by_label("Your name").wait_for()


def test_read_only_pages_change_nothing(window: Watcher, traded: str) -> None:
    with dashboard(traded, "market") as url:
        page = window.open(url)
        settled(page, "/")
        assert page.get_by_role("button", name="Change shares").count() == 0
        page = window.open(url + "models")
        settled(page, "/models")
        assert page.get_by_role("button", name="Activate").count() == 0


def test_while_the_store_is_away_the_page_says_so_and_recovers_also_from_a_start_without_it(
    window: Watcher, valkey: Valkey
) -> None:
    valkey.save()
    valkey.kill()
    with dashboard(valkey.url) as url:
        page = window.open(url)
        page.wait_for_selector(BANNER, timeout=60_000)
        valkey.start()
        page.wait_for_selector("text=Click rate over time", timeout=30_000)

        page = window.open(url + "models")
        eventually(lambda: number(page, "Active version") == 1, "the version")
        valkey.save()
        valkey.kill()
        page.wait_for_selector(BANNER, timeout=60_000)
        assert number(page, "Active version") == 1
        other = window.open(url)  # opened meanwhile, it is not blank either
        other.wait_for_selector(BANNER, timeout=60_000)
        valkey.start()
        with Store.open(valkey.url) as store:
            second = shop.publish(store, 2)
        eventually(lambda: number(page, "Active version") == second, "the next version")
        eventually(lambda: not page.locator(".banner p").count(), "the end of the warning")


CHURN_S, CHURN_RATE = 30.0, 5.0


def test_a_page_that_stays_open_does_not_grow(window: Watcher, valkey: Valkey) -> None:
    """18,000 versions an hour, for some seconds: neither the page nor the process keeps what has passed."""
    stop = threading.Event()

    def publish() -> None:
        with Store.open(valkey.url) as store:
            seed = 10
            while not stop.wait(1.0 / CHURN_RATE):
                seed += 1
                shop.publish(store, seed % 50)
                store.model(shop.NAME).gc(keep=5)

    publisher = threading.Thread(target=publish)
    with dashboard(valkey.url) as url:
        page, system = window.open(url + "models"), window.open(url + "learning")
        session = window.context.new_cdp_session(page)
        publisher.start()
        try:
            page.wait_for_timeout(CHURN_S / 3 * 1000)
            before = heap(session), len(page.query_selector_all("*")), resident(url)
            page.wait_for_timeout(CHURN_S * 2 / 3 * 1000)
            after = heap(session), len(page.query_selector_all("*")), resident(url)
        finally:
            stop.set()
            publisher.join()
        assert number(page, "Active version") > 0.5 * CHURN_S * CHURN_RATE
        assert after[0] < 1.15 * before[0] + 1_000_000
        assert after[1] <= 1.1 * before[1] + 20
        assert after[2] < 1.1 * before[2] + 10_000_000
        assert system.inner_text("main h1") == "Learning"
        assert window.errors == []


def resident(url: str) -> int:
    """The bytes of memory that a dashboard's process has."""
    status = Path(f"/proc/{PROCESSES[url]}/status").read_text()
    return 1024 * int(re.search(r"VmRSS:\s+(\d+)", status)[1])  # type: ignore[index]


def heap(session: Any) -> int:
    """The bytes of a page's JavaScript objects that are still in use."""
    session.send("HeapProfiler.collectGarbage")
    return int(session.send("Runtime.getHeapUsage")["usedSize"])
