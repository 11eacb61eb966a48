"""The page in a real browser. Skipped where there is no Chromium."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, async_playwright, expect

from services.feed.app import FeedApp, open_app
from tests.feed.conftest import settings_for
from tests.snapshots import Shop, publish_shop

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage"]
MARKUP = """<img src=x onerror="document.title='broken into'"><script>document.title='broken into'</script>"""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[FeedApp]:
    """A service whose most popular item has a hostile title."""
    publish_shop(tmp_path / "snapshots", Shop(count=200, titles={0: MARKUP}))
    async with open_app(settings_for(tmp_path)) as running:
        yield running


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    """Headless, the system's own."""
    async with async_playwright() as playwright:
        running = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        await running.close()


async def opened(browser: Browser, app: FeedApp, width: int = 1400) -> tuple[Page, list[str]]:
    """The page, and what the browser complains of, which includes whatever the security policy stops."""
    page = await browser.new_page(viewport={"width": width, "height": 900})
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    await page.goto(f"http://127.0.0.1:{app.console_port}/")
    await expect(page.locator("#items > li")).to_have_count(20)
    return page, complaints


async def pick(page: Page, item: str) -> None:
    await page.locator(f'#items button[data-item="{item}"]').click()


async def test_a_session_is_picked_and_the_feed_follows_and_another_shopper_gets_a_hit(
    browser: Browser, app: FeedApp
) -> None:
    page, complaints = await opened(browser, app)
    await expect(page.locator("#rung")).to_have_text("Popular")
    await expect(page.locator("#quality")).to_have_text("Full quality")
    await expect(page.locator("#ready-text")).to_have_text("Ready")
    await expect(page.locator("#twin")).to_be_disabled()

    await page.get_by_label("Cart").check(force=True)
    await pick(page, "i6")
    await expect(page.locator("#events > li")).to_have_text(["In the cartItem 6"])
    await expect(page.locator("#rung")).to_have_text("Ranked")
    await expect(page.locator("#context")).to_have_text("1")
    await expect(page.locator('#items button[data-item="i6"]')).to_have_count(0)  # seen, hence no candidate
    assert set(await page.locator("#items .tag").all_inner_texts()) == {"near", "together"}
    await expect(page.locator("#stages > li .stage").first).to_have_text("session")

    session = await page.locator("#session").inner_text()
    await page.locator("#twin").click()
    await expect(page.locator("#shopper-number")).to_have_text("2")
    await expect(page.locator("#cache")).to_have_text("Hit in this process")
    assert await page.locator("#session").inner_text() != session
    await expect(page.locator("#context")).to_have_text("1")
    assert complaints == []


async def test_what_was_bought_comes_again_in_the_next_session_of_the_same_person(
    browser: Browser, app: FeedApp
) -> None:
    page, complaints = await opened(browser, app)
    assert set(await page.locator("#items .tag").all_inner_texts()) == {"popular"}
    await page.get_by_label("Buy").check(force=True)
    await pick(page, "i6")
    await expect(page.locator("#rung")).to_have_text("Ranked")
    await expect(page.locator("#history")).to_have_text("0")
    await page.locator("#fresh").click()
    await expect(page.locator("#event-count")).to_have_text("0")
    await expect(page.locator("#history")).to_have_text("1")
    await expect(page.locator("#shopper-number")).to_have_text("1")
    await expect(page.locator("#items > li .title").first).to_have_text("Item 6")
    await expect(page.locator("#items .tag").first).to_have_text("again")
    assert complaints == []


async def test_a_title_of_the_catalogue_stays_text(browser: Browser, app: FeedApp) -> None:
    page, complaints = await opened(browser, app)
    await expect(page.locator("#items > li .title").first).to_have_text(MARKUP)
    await pick(page, "i0")
    await expect(page.locator("#events .title")).to_have_text(MARKUP)
    await page.get_by_label("Find an item").fill("onerror")
    await expect(page.locator("#results .title")).to_have_text([MARKUP])
    assert await page.locator("main img, main script").count() == 0
    assert await page.title() == "Feedline console"
    assert complaints == []


async def test_pages_and_filters(browser: Browser, app: FeedApp) -> None:
    page, _ = await opened(browser, app)
    await page.get_by_role("button", name="Next page").click()
    await expect(page.locator("#page-number")).to_have_text("Page 2")
    await expect(page.locator("#items .rank").first).to_have_text("21")
    await page.get_by_role("button", name="Previous").click()
    await expect(page.locator("#items .rank").first).to_have_text("1")
    await page.get_by_label("Category").select_option("tea")
    await expect(page.locator("#rung")).to_have_text("Popular in the category")
    await expect(page.locator("#items .category")).to_have_text(["tea"] * 20)


async def test_the_page_asks_again_until_it_is_paused(browser: Browser, app: FeedApp) -> None:
    page, _ = await opened(browser, app)
    await page.clock.install()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if request.url.endswith("/v1/feed") else None)
    await page.reload()
    await expect(page.locator("#items > li")).to_have_count(20)
    async with page.expect_response("**/v1/feed"):
        await page.clock.run_for(3000)
    await page.get_by_role("button", name="Live").click()
    await expect(page.locator("#live-text")).to_have_text("Paused")
    before = len(asked)
    await page.clock.run_for(9000)
    assert len(asked) == before


async def test_a_fault_is_told_in_words(browser: Browser, app: FeedApp) -> None:
    page, _ = await opened(browser, app)
    await page.route("**/v1/events", lambda route: route.abort())
    await pick(page, "i4")
    await expect(page.get_by_role("alert")).to_have_text("Not stored: The service does not answer.")
    await expect(page.locator("#event-count")).to_have_text("0")


@pytest.mark.parametrize("width", [390, 1400])
async def test_nothing_is_wider_than_the_screen(browser: Browser, app: FeedApp, width: int) -> None:
    page, _ = await opened(browser, app, width)
    assert await page.evaluate("() => document.documentElement.scrollWidth") == width
