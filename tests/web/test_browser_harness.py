"""The browser fixtures themselves: what goes wrong in a page is found, so that the other tests can fail."""

import pytest
from playwright.async_api import Browser, Page, Route

from tests.fixtures.browsers import IN_BROWSER, ON_EVERY_PAGE, PageErrors, accessibility_problems, is_hacked

pytestmark = IN_BROWSER

ADDRESS = "http://dashboard.test/"
GOOD = "<!doctype html><html lang=en><title>Good</title><main><h1>Good</h1><p>text</p></main></html>"


async def show(page: Page, html: str, *, policy: str = "default-src 'unsafe-inline'", status: int = 200) -> None:
    """Show a page, as if a server had answered with it."""

    async def answer(route: Route) -> None:
        headers = {"Content-Security-Policy": policy, "Content-Type": "text/html"}
        await route.fulfill(status=status, body=html, headers=headers)

    await page.route(ADDRESS, answer)
    await page.goto(ADDRESS)


async def test_a_good_page_has_no_errors(page: Page) -> None:
    await show(page, GOOD, policy="default-src 'none'")
    assert await accessibility_problems(page) == []


@pytest.mark.parametrize(
    ("html", "policy", "status", "expected"),
    [
        ("<script>console.error('oh no')</script>", "script-src 'unsafe-inline'", 200, "console: oh no"),
        ("<script>throw new Error('broken')</script>", "script-src 'unsafe-inline'", 200, "exception: broken"),
        ("<script>window.hacked=1;alert(7)</script>", "script-src 'unsafe-inline'", 200, "dialog: 7"),
        ("<script>alert(7)</script>", "script-src 'self'", 200, "policy violation: script-src-elem forbids inline"),
        ("<p style='color:red'>red</p>", "style-src 'self'", 200, "policy violation: style-src-attr forbids inline"),
        ("sorry", "default-src 'none'", 500, "response: 500"),
    ],
)
async def test_what_goes_wrong_is_found(chromium: Browser, html: str, policy: str, status: int, expected: str) -> None:
    errors = PageErrors()
    context = await chromium.new_context()
    errors.watch(context)
    await context.add_init_script(ON_EVERY_PAGE)
    try:
        page = await context.new_page()
        await show(page, html, policy=policy, status=status)
        assert await is_hacked(page) is ("hacked" in html)
        await page.wait_for_timeout(0)  # events are delivered in order: those of the page have come
    finally:
        await context.close()
    assert any(expected in text for text in errors.unexpected), errors.found
    errors.allow(".")
    assert errors.unexpected == []


async def test_axe_finds_what_is_not_accessible(page: Page) -> None:
    await show(
        page,
        GOOD.replace(
            "<p>text</p>",
            "<img src='data:image/gif;base64,R0lGODlhAQABAAAAACw='><input><p style='color:#ccc;background:#fff'>text</p>",
        ),
        policy="default-src 'unsafe-inline' data:",
    )
    found = " ".join(await accessibility_problems(page))
    assert all(rule in found for rule in ("image-alt", "label", "color-contrast"))
