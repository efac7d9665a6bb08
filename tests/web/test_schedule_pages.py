"""Schedules in a real browser."""

import re
from typing import Any

import psycopg
import pytest
from playwright.async_api import Page, expect

from horsies.web import Role, User
from tests.fixtures.browsers import IN_BROWSER, NewContext, PageErrors, page_problems
from tests.fixtures.everything import HOSTILE, Everything
from tests.web.conftest import Serve

pytestmark = IN_BROWSER

PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1440, "height": 900}
PATHS = [
    "/schedules",
    "/schedules?text=nothing",
    "/schedules/sync stock",
    "/schedules/nightly report",
    "/schedules/newsletter",
    "/schedules/report for 17",
    f"/schedules/{HOSTILE['url']}".replace("//", "%252F%252F"),
]


@pytest.mark.parametrize(("scheme", "size"), [("light", DESKTOP), ("dark", DESKTOP), ("light", PHONE)])
async def test_every_page_is_accessible_and_fits(
    filled: Everything, serve: Serve, new_context: NewContext, scheme: str, size: dict[str, int]
) -> None:
    with psycopg.connect(filled.database_url, autocommit=True) as sql:  # a schedule whose runs have no link
        sql.execute(
            "insert into horsies.schedule_runs (schedule_name, outcome, slot_at) values ('report for 17', 'SKIPPED', now())"
        )
    page = await (await new_context(color_scheme=scheme, viewport=size)).new_page()
    problems: dict[str, list[str]] = {}
    async with serve(filled.database_url) as address:
        for path in PATHS:
            answer = await page.goto(address + path)
            assert answer is not None
            assert answer.status == 200, path
            if found := await page_problems(page):
                problems[path] = found
    assert problems == {}


async def test_schedules_that_fail_come_first_with_their_last_runs(
    filled: Everything, serve: Serve, page: Page
) -> None:
    async with serve(filled.database_url) as address:
        await page.goto(f"{address}/schedules")
        first = page.locator("tbody tr").first
        await expect(first).to_contain_text("sync stock")
        for text in ("failing", "every 1 hour", "UNHANDLED_ERROR", "in a row", "of app shop"):
            await expect(first).to_contain_text(text)
        await expect(first.locator(".run")).to_have_count(5)
        nightly = page.locator("tbody tr", has_text="nightly report")
        await expect(nightly).to_contain_text("daily at 03:00")
        outcomes = await nightly.locator(".run .hidden").all_inner_texts()
        assert [text.split(",")[0] for text in outcomes] == ["COMPLETED", "MISSED", "SKIPPED", "COMPLETED"]
        await expect(page.locator("tbody tr", has_text="report for 17")).to_contain_text("made at run time")
        await first.locator("a.run").first.click()
        await expect(page).to_have_url(re.compile(r"/tasks/[0-9a-f-]{36}$"))


async def test_a_schedule_shows_its_next_slots_its_runs_and_its_arguments(
    filled: Everything, serve: Serve, page: Page
) -> None:
    async with serve(filled.database_url) as address:
        await page.goto(f"{address}/schedules/sync stock")
        await expect(page.locator(".slots li")).to_have_count(10)
        await expect(page.locator("pre.payload")).to_contain_text('"shop": 4')
        await expect(page.locator("tbody tr")).to_have_count(6)
        await expect(page.locator("tbody tr").first).to_contain_text("shop 4 closed the connection")
        await page.goto(f"{address}/schedules/newsletter")
        await expect(page.get_by_text("It is paused. It continues with the first slot")).to_be_visible()
    async with serve(filled.database_url, payloads="hide") as address:
        await page.goto(f"{address}/schedules/sync stock")
        await expect(page.get_by_text("This dashboard hides arguments.")).to_be_visible()
    with psycopg.connect(filled.database_url, autocommit=True) as sql:
        sql.execute("update horsies.schedules set is_sensitive = true where name = 'newsletter'")
    async with serve(filled.database_url) as address:
        await page.goto(f"{address}/schedules/newsletter")
        await expect(page.get_by_text("Hidden, because the task is sensitive.")).to_be_visible()


async def test_hostile_names_are_texts_and_lead_to_their_schedules(
    filled: Everything, serve: Serve, page: Page
) -> None:
    """The fixture of the page refuses scripts that run."""
    async with serve(filled.database_url) as address:
        await page.goto(f"{address}/schedules")
        assert not re.search("[\u202e\u2066\u200b\ufeff\x1b\x07\r]", await page.locator("main").inner_text())
        links = await page.eval_on_selector_all(
            "tbody a.name", "all => all.map(each => [each.getAttribute('href'), each.title])"
        )
        assert len(links) == len(HOSTILE) + 4
        for link, title in links:
            await page.goto(address + link)
            heading = await page.locator("h1").inner_text()
            assert heading.replace("\xa0", " ")[:40].strip() == title[:40].strip(), link


async def test_operators_run_pause_resume_and_remove(filled: Everything, serve: Serve, page: Page) -> None:
    with psycopg.connect(filled.database_url, autocommit=True) as sql:
        sql.execute(
            "insert into horsies.schedules select (json_populate_record(schedules, %s)).* from horsies.schedules where name = 'report for 17'",
            ['{"name": "../a b/?x#y&z"}'],
        )
    async with serve(filled.database_url) as address:
        await page.goto(f"{address}/schedules")
        await page.get_by_role("link", name="../a b/?x#y&z").click()
        path = page.url
        for button, said in (
            ("Run now", "was sent."),
            ("Pause", "The schedule is paused."),
            ("Resume", "The schedule is resumed."),
        ):
            await page.locator("main").get_by_role("button", name=button, exact=True).click()
            if button == "Run now":
                await page.locator("#confirm-yes").click()
            await expect(page.locator("#flash")).to_contain_text(said)
            assert page.url == path
        await expect(page.locator("tbody tr")).to_have_count(1)
        await page.goto(f"{address}/schedules?text=a b")
        await page.get_by_role("button", name="Remove").click()
        await page.locator("#confirm-yes").click()
        await expect(page.locator("#flash")).to_contain_text("The schedule is removed.")
        await expect(page.get_by_text("No schedule matches.")).to_be_visible()
        await page.goto(f"{address}/schedules/nightly report")
        await expect(page.get_by_role("button", name="Pause")).to_be_visible()
        await expect(page.get_by_role("button", name="Remove")).to_have_count(0)


async def test_a_run_appears_while_one_looks(filled: Everything, serve: Serve, page: Page) -> None:
    async with serve(filled.database_url) as address:
        await page.goto(f"{address}/schedules/newsletter")
        await expect(page.get_by_text("It has not run yet.")).to_be_visible()
        with psycopg.connect(filled.database_url, autocommit=True) as sql:
            sql.execute(
                "insert into horsies.schedule_runs (schedule_name, outcome, slot_at) values ('newsletter', 'SKIPPED', now())"
            )
        await expect(page.locator("tbody tr")).to_contain_text("SKIPPED")


async def test_who_may_only_read_sees_no_buttons_and_scripts_are_not_needed(
    filled: Everything, serve: Serve, new_context: NewContext, errors: PageErrors
) -> None:
    errors.allow("status of 404")
    page = await (await new_context(java_script_enabled=False)).new_page()

    def reader(_request: Any) -> User:
        return User("rita", Role.READ_ONLY)

    async with serve(filled.database_url, prefix="/horsies", authorize=reader) as address:
        await page.goto(f"{address}/schedules")
        await page.locator("main input[type=search]").fill("NIGHTLY")
        await page.get_by_role("button", name="Filter").click()
        await expect(page.locator("tbody tr")).to_have_count(1)
        await page.locator("tbody a.name").click()
        await expect(page.locator(".slots li")).to_have_count(10)
        await expect(page.get_by_role("button", name="Run now")).to_have_count(0)
        for path in ("/schedules/nothing", "/schedules/%00", "/schedules/%2500", "/schedules/%252e%252e"):
            assert (await page.request.get(address + path)).status in {400, 404}
        assert (await page.request.get(f"{address}/schedules?page=x&text=%00")).status == 400
        assert (await page.request.get(f"{address}/schedules?page=x&text=%20")).status == 200
