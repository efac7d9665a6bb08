"""The pages of tasks in a real browser: what is shown of everything, live updates, the keyboard, actions, and reading without scripts."""

import re
from collections.abc import AsyncGenerator, Generator

import psycopg
import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from horsies import AppConfig, Horsies
from horsies.web import Role, User, dashboard
from tests.fixtures.browsers import IN_BROWSER, NewContext, accessibility_problems
from tests.fixtures.databases import DatabasePreparer
from tests.fixtures.everything import HOSTILE, Everything, fill
from tests.fixtures.server import DatabaseServer
from tests.web.conftest import serving
from tests.web.test_task_requests import add_task, status_of

pytestmark = IN_BROWSER


@pytest.fixture(scope="module")
def filled(server: DatabaseServer, preparer: DatabasePreparer) -> Generator[Everything]:
    """One of everything, for tests that change nothing."""
    name = preparer.take()
    yield fill(server.url(name))
    preparer.give_back(name)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shown(filled: Everything) -> AsyncGenerator[str]:
    """The address of a dashboard that shows one of everything."""
    app = Horsies(AppConfig.for_database_url(filled.database_url))
    async with serving(dashboard(app)) as address:
        yield address
    await app.broker.close_async()


@pytest_asyncio.fixture(loop_scope="session")
async def address(database: str) -> AsyncGenerator[str]:
    """The address of a dashboard of an empty database."""
    app = Horsies(AppConfig.for_database_url(database))
    async with serving(dashboard(app)) as address:
        yield address
    await app.broker.close_async()


async def overflow(page: Page) -> int:
    return await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


async def row_ids(page: Page) -> list[str]:
    return await page.locator("tbody tr").evaluate_all("rows => rows.map((row) => row.dataset.key)")


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
async def test_every_page_with_one_of_everything(
    filled: Everything, shown: str, new_context: NewContext, look: str
) -> None:
    size = {"width": 390, "height": 844} if look == "phone" else {"width": 1280, "height": 900}
    context = await new_context(color_scheme="dark" if look == "dark" else "light", viewport=size)
    page = await context.new_page()
    names = [
        "failed",
        "completed",
        "long_running",
        "many_failed_attempts",
        "crashed",
        "unknown",
        "keyed",
        "large_result",
    ]
    names += [f"hostile_{text}_{state}" for text in HOSTILE for state in ("failed", "pending")]
    tasks = [f"/tasks/{filled.tasks[name]}" for name in (names if look == "light" else names[::7])]
    lists = [
        "/tasks", "/tasks?order=running", "/tasks?statuses=FAILED&since=1d&worker=ffff", "/tasks?key=nothing", "/errors", "/errors?hours=1&task_name=deliver",
        "/search?q=e", "/search", "/tasks/bulk?action=retry&statuses=FAILED&since=1d", "/tasks/bulk?action=purge&task_name=none&until=1h",
    ]  # fmt: skip
    alike = tasks[10:]  # more tasks with hostile texts, whose elements are those of the first two
    for path in [*lists, *tasks]:
        await page.goto(shown + path.replace("&worker=ffff", ""))
        assert await page.locator("h1").count() == 1
        assert await overflow(page) <= 0, path
        assert await accessibility_problems(page, with_contrast=path not in alike) == [], path


async def test_hostile_texts_are_shown_and_do_not_run(filled: Everything, shown: str, page: Page) -> None:
    """That they do not run is checked at the end of each test."""
    await page.goto(f"{shown}/tasks/{filled.tasks['hostile_script_failed']}")
    text = HOSTILE["script"]
    await expect(page.locator("h1")).to_have_text(text)
    await expect(page.locator(".error-message")).to_have_text(text)
    await expect(page.locator("pre.payload").first).to_contain_text(text)
    await expect(page.locator("#log tbody")).to_contain_text(text)
    await page.goto(f"{shown}/tasks/{filled.tasks['hostile_bidi_failed']}")
    await expect(page.locator("h1")).to_contain_text("\\u202egpj.exe")
    await page.get_by_role("link", name="Tasks", exact=True).last.click()
    await page.locator("tbody tr", has_text="<script>").first.get_by_role("link").nth(1).click()
    await expect(page.get_by_label("Task", exact=True)).to_have_value(text[:300])
    await expect(page.locator("tbody tr")).to_have_count(4)


async def test_rows_change_while_they_are_shown(sql: psycopg.Connection, address: str, page: Page) -> None:
    one, two, three = (add_task(sql, age_s=age, queue_name="mail") for age in (30, 20, 10))
    await page.goto(f"{address}/tasks?queue_name=mail")
    assert await row_ids(page) == [three, two, one]
    box = page.locator(f'input[value="{two}"]')
    await box.check()
    await page.locator(f'tr[data-key="{three}"] a').first.focus()
    sql.execute("delete from horsies.tasks where id = %s", [one])
    sql.execute("update horsies.tasks set good_until = now() - interval '1 s' where id = %s", [three])
    add_task(sql, age_s=0, queue_name="mail")
    add_task(sql, age_s=0, queue_name="other")
    await expect(page.locator(f'tr[data-key="{three}"]')).to_contain_text("EXPIRED")
    await expect(page.locator(f'tr[data-key="{one}"]')).to_contain_text("deleted")
    await expect(page.get_by_role("link", name="1 new task, show")).to_be_visible()
    assert await row_ids(page) == [three, two, one], "nothing has moved"
    await expect(box).to_be_checked()
    assert await page.evaluate("document.activeElement.closest('tr').dataset.key") == three
    await page.get_by_role("link", name="1 new task, show").click()
    await expect(page.locator("tbody tr")).to_have_count(3)


async def test_a_task_is_live_until_it_has_ended(
    sql: psycopg.Connection, database: str, address: str, page: Page
) -> None:
    task_id = add_task(sql)
    await page.goto(f"{address}/tasks/{task_id}")
    await expect(page.get_by_text("It has not ended yet.")).to_be_visible()
    await expect(page.get_by_role("button", name="Cancel task")).to_be_visible()
    await expect(page.get_by_role("button", name="Retry", exact=True)).to_be_hidden()
    app = Horsies(AppConfig.for_database_url(database))
    app.ops.cancel_tasks([task_id])
    app.close()
    await expect(page.locator(".facts .badge").first).to_have_text("CANCELLED")
    await expect(page.get_by_text("cancelled before it started")).to_be_visible()
    await expect(page.get_by_role("button", name="Cancel task")).to_be_hidden()
    await page.get_by_role("button", name="Retry", exact=True).click()
    await expect(page.get_by_role("status").get_by_text("1 RETRIED")).to_be_visible()
    await page.get_by_role("button", name="Cancel task").click()
    await page.locator("#confirm-yes").click()
    await expect(page.locator(".facts .badge").first).to_have_text("CANCELLED")
    assert status_of(sql, task_id) == "CANCELLED"


async def test_a_task_that_has_succeeded_is_run_again_after_a_question(
    sql: psycopg.Connection, address: str, page: Page
) -> None:
    task_id = add_task(sql, status="COMPLETED")
    await page.goto(f"{address}/tasks/{task_id}")
    await page.get_by_role("button", name="Run again").click()
    assert status_of(sql, task_id) == "COMPLETED"
    await page.locator("#confirm-yes").click()
    await expect(page.get_by_role("status").get_by_text("1 RETRIED")).to_be_visible()
    assert status_of(sql, task_id) == "PENDING"


async def test_the_keyboard_moves_selects_and_opens(sql: psycopg.Connection, address: str, page: Page) -> None:
    ids = [add_task(sql, age_s=age, status="FAILED") for age in (10, 20, 30)]
    await page.goto(f"{address}/tasks?statuses=FAILED")
    for key in "jxjjxk":
        await page.keyboard.press(key)
    await expect(page.locator("[data-selected-count]")).to_have_text("2")
    await page.get_by_role("button", name="Retry selected").click()
    await expect(page.get_by_role("status").get_by_text("2 RETRIED")).to_be_visible()
    assert [status_of(sql, each) for each in ids] == ["PENDING", "FAILED", "PENDING"]
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(re.compile(ids[1]))


async def test_all_of_a_page_are_selected_and_cancelled_after_a_question(
    sql: psycopg.Connection, address: str, page: Page
) -> None:
    ids = [add_task(sql) for _ in range(4)]
    await page.goto(f"{address}/tasks?task_name=charge")
    await expect(page.get_by_role("button", name="Cancel selected")).to_be_disabled()
    await page.get_by_label("Select all tasks of this page").check()
    await page.locator("tbody input[type=checkbox]").first.uncheck()
    await page.get_by_role("button", name="Cancel selected").click()
    await expect(page.locator("#confirm-text")).to_contain_text("Cancel 3 tasks?")
    await page.keyboard.press("Escape")
    assert {status_of(sql, each) for each in ids} == {"PENDING"}
    await page.get_by_role("button", name="Cancel selected").click()
    await page.locator("#confirm-yes").click()
    await expect(page.get_by_role("status").get_by_text("3 CANCELLED")).to_be_visible()
    assert sorted(status_of(sql, each) for each in ids) == ["CANCELLED"] * 3 + ["PENDING"]


@pytest.mark.parametrize("scripts", [True, False])
async def test_an_error_group_is_retried(
    sql: psycopg.Connection, address: str, new_context: NewContext, *, scripts: bool
) -> None:
    wanted = [add_task(sql, status="FAILED", message=f"host-{number}.example is away") for number in range(3)]
    other = add_task(sql, status="FAILED", message="the card is lost")
    page = await (await new_context(java_script_enabled=scripts)).new_page()
    await page.goto(address)
    await page.goto(f"{address}/errors")
    row = page.locator("tbody tr", has_text="host-#.example is away")
    await expect(row.locator("td").first).to_have_text("3")
    await row.get_by_role("link", name="Retry all…").click()
    await expect(page.get_by_role("heading", name="3 tasks match")).to_be_visible()
    await page.get_by_role("button", name="Retry 3 tasks").click()
    await expect(page.get_by_text("3 tasks selected; 3 RETRIED")).to_be_visible()
    await expect(page).to_have_url(f"{address}/errors?hours=24")
    assert [status_of(sql, each) for each in (*wanted, other)] == ["PENDING"] * 3 + ["FAILED"]


async def test_everything_is_read_without_scripts(filled: Everything, shown: str, new_context: NewContext) -> None:
    page = await (await new_context(java_script_enabled=False)).new_page()
    await page.goto(f"{shown}/tasks")
    await page.get_by_label("Queue").fill("mail")
    await page.get_by_label("failed").check()
    await page.get_by_role("button", name="Filter").click()
    await expect(page.locator("tbody tr")).to_have_count(12)
    await expect(page.locator("tbody tr").first).to_contain_text("mail 1407 was refused")
    await page.locator("tbody tr", has_text="send_mail").get_by_role("link").first.click()
    await expect(page.locator(".error-message")).to_have_text("ValueError: 'nobody' is not an address")
    await expect(page.locator("#log")).to_contain_text("the cache is cold")
    await page.locator("#search").fill(filled.tasks["completed"])
    await page.locator("#search").press("Enter")
    await expect(page).to_have_url(f"{shown}/tasks/{filled.tasks['completed']}")


async def test_readers_see_no_buttons(filled: Everything, page: Page) -> None:
    def authorize(_request: object) -> User:
        return User("bob", Role.READ_ONLY)

    app = Horsies(AppConfig.for_database_url(filled.database_url))
    async with serving(dashboard(app, authorize=authorize)) as address:
        for path in (
            "/tasks?queue_name=mail",
            f"/tasks/{filled.tasks['failed']}",
            f"/tasks/{filled.tasks['pending']}",
            "/errors",
        ):
            await page.goto(address + path)
            visible = page.locator("main").get_by_role("button").filter(visible=True)
            assert set(await visible.all_inner_texts()) <= {"Filter", "Copy id"}, path
            assert await page.locator("main").get_by_role("link", name="Retry").filter(visible=True).count() == 0
            assert await page.locator("main tbody").get_by_role("checkbox").filter(visible=True).count() == 0
    await app.broker.close_async()
