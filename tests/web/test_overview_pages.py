"""The overview, the queues, the workers, the doctor and the audit, and what all pages share, in a real browser."""

import asyncio
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from playwright.async_api import Page, expect
from starlette.requests import Request

from horsies.doctor.findings import TargetKind
from horsies.web import Role, User
from horsies.web.filters import age
from horsies.web.live import MAX_STREAMS_OF_SESSION
from horsies.web.overview_pages import FINDINGS
from horsies.web.security import Credential, hash_password
from tests.fixtures.browsers import IN_BROWSER, NewContext, PageErrors, accessibility_problems, page_problems
from tests.fixtures.everything import HOSTILE, NAME_LENGTH, Everything, add_failure
from tests.fixtures.situations import Situations
from tests.web.conftest import Serve

pytestmark = IN_BROWSER

PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1440, "height": 900}
LAPTOP = {"width": 1280, "height": 900}


def pages_of(filled: Everything) -> Sequence[str]:
    return [
        "/",
        "/queues",
        "/queues/mail",
        "/queues/reports?purge=1",
        "/queues/nothing-is-known-of-it",
        "/workers",
        f"/workers/{filled.workers['live']}",
        f"/workers/{filled.workers['dead']}",
        f"/workers/{filled.workers['hostile_tag']}",
        "/doctor",
        "/doctor?all=1",
        "/audit",
        "/jobs",
        "/no-such-page",
    ]


@pytest.mark.parametrize(("scheme", "size"), [("light", DESKTOP), ("dark", DESKTOP), ("light", PHONE)])
async def test_every_page_is_accessible_and_fits(
    filled: Everything, serve: Serve, new_context: NewContext, errors: PageErrors, scheme: str, size: dict[str, int]
) -> None:
    errors.allow("status of 404")
    page = await (await new_context(color_scheme=scheme, viewport=size)).new_page()
    problems: dict[str, list[str]] = {}
    async with serve(filled.database_url) as address:
        for path in pages_of(filled):
            answer = await page.goto(address + path)
            assert answer is not None
            assert answer.status == (404 if path == "/no-such-page" else 200), path
            # axe takes a second; what differs on a phone is around the content.
            with_axe = size != PHONE or path in {"/", "/queues/reports?purge=1"}
            if found := await page_problems(page, with_axe=with_axe):
                problems[path] = found
    assert problems == {}


async def test_hostile_names_are_texts(filled: Everything, serve: Serve, page: Page) -> None:
    """The fixture of the page refuses scripts that run."""
    async with serve(filled.database_url) as address:
        await page.goto(f"{address}/queues")
        links = await page.eval_on_selector_all(
            "tbody a.name", "all => all.map(each => [each.getAttribute('href'), each.title])"
        )
        hostile = [link for link, _ in links if not re.fullmatch(r"/queues/[a-z]+", link)]
        assert len(hostile) == len(HOSTILE)
        assert not re.search("[\u202e\u2066\u200b\ufeff\x1b\x07\r]", await page.locator("main").inner_text())
        for link in hostile:
            await page.goto(address + link)
            await expect(page.locator("main .stats").first).to_contain_text("waiting")
            await expect(page.get_by_text("Nothing is known of this queue")).to_have_count(0)
        await page.goto(f"{address}/audit")
        await expect(page.locator("tbody")).to_contain_text(HOSTILE["script"])
        await page.goto(f"{address}/doctor")
        await expect(page.locator(".findings")).to_contain_text(HOSTILE["path"][:NAME_LENGTH])


async def test_eight_situations_and_the_throughput_are_on_the_first_screen(
    situations: Situations, database: str, serve: Serve, new_context: NewContext
) -> None:
    page = await (await new_context(viewport=LAPTOP)).new_page()
    async with serve(database) as address:
        await page.goto(address)
        for name, situation in situations.planted.items():
            finding = page.locator(".finding", has_text=situation.code.name)
            await expect(finding).to_have_count(1)
            cause = finding.locator(".cause")
            await expect(cause).to_be_in_viewport(ratio=1)
            assert await cause.evaluate("(all) => all.scrollHeight <= all.clientHeight"), f"{name}: all lines are shown"
            for word in situation.words:
                await expect(cause, name).to_contain_text(word.strip())
            if situation.target.kind in {TargetKind.TASK, TargetKind.WORKFLOW}:
                await expect(cause, "ids are short").not_to_contain_text(situation.target.id)
            link = finding.locator(".links a")
            assert situation.target.id in (await link.get_attribute("title") or ""), name
        assert await page.locator(".finding").count() == len(situations.planted)
        await expect(page.locator("#charts .beside")).to_be_in_viewport(ratio=1)
        await expect(page.locator("[data-chart=throughput]")).to_be_in_viewport(ratio=0.5)
        paused = page.locator(".finding", has_text="QUEUE_PAUSED")
        await expect(paused.locator(".fix")).to_be_hidden()
        await paused.locator(".cause").click()
        await expect(paused.locator(".fix")).to_contain_text("horsies queues resume invoices")
        await page.locator(".finding", has_text="QUEUE_PAUSED").get_by_role("button", name="Resume").click()
        await expect(page.locator("#flash")).to_contain_text("Queue invoices is resumed")
        await expect(page.locator(".finding", has_text="QUEUE_PAUSED")).to_have_count(0)
        assert situations.app.ops.list_audit(limit=1)[0].action == "resume queue"


async def test_an_open_page_follows_and_leaves_the_reader_alone(
    database: str, sql: psycopg.Connection, serve: Serve, page: Page, errors: PageErrors
) -> None:
    errors.allow("ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE")
    _insert_tasks(sql, "mail", 2)
    _insert_tasks(sql, "reports", 1)
    async with serve(database) as address:
        await page.goto(address)
        row = page.locator("tr[data-key=mail]")
        await expect(row.locator(".number").first).to_have_text("2")
        await expect(page.locator("#live")).to_have_text("Live")
        await page.locator(".numbers summary").click()
        await row.locator("a").focus()
        await page.evaluate("window.sameRow = document.querySelector('tr[data-key=mail]')")
        _insert_tasks(sql, "mail", 5)
        _insert_tasks(sql, "audio", 1)  # comes before it
        await expect(row.locator(".number").first).to_have_text("7")
        await expect(page.locator("tr[data-key=audio]")).to_have_count(1)
        assert await page.evaluate("sameRow === document.querySelector('tr[data-key=mail]')")
        assert await page.evaluate("sameRow.contains(document.activeElement)"), "the focus stays"
        assert await page.locator("details.numbers").get_attribute("open") is not None
        sql.execute("delete from horsies.tasks where queue_name = 'reports'")
        await expect(page.locator("tr[data-key=reports]")).to_have_count(0)
    await expect(page.locator("#outage")).to_contain_text("The connection is lost")
    await expect(page.locator("#live")).to_have_text("Not live")


async def until(page: Page, predicate: str) -> None:
    """`page.wait_for_function` would need `eval`, which the policy forbids."""
    async with asyncio.timeout(15):
        while not await page.evaluate(predicate):  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.05)


async def test_many_open_pages_leave_the_browser_a_connection(
    database: str, serve: Serve, new_context: NewContext, errors: PageErrors
) -> None:
    """A browser has six connections to a server for all its pages. If streams had all of them, no page would load any more."""
    errors.allow("503")
    context = await new_context()
    async with serve(database) as address:
        pages = [await context.new_page() for _ in range(8)]
        for number, page in enumerate(pages):
            await page.goto(f"{address}/queues")
            if number < MAX_STREAMS_OF_SESSION:
                await until(page, "streams[0].source?.readyState === EventSource.OPEN")
            else:
                await expect(page.locator("#live")).to_have_text("Not live")
        await expect(pages[-1].locator("#outage")).to_contain_text("too many pages")
        for page in pages[:3]:
            await page.close()
        await expect(pages[-1].locator("#live")).to_have_text("Live", timeout=15_000)


async def test_a_page_that_nobody_sees_has_no_stream(database: str, serve: Serve, new_context: NewContext) -> None:
    """Such as those that were opened by the middle button of a mouse."""
    context = await new_context()
    await context.add_init_script(
        "window.isSeen = false; Object.defineProperty(document, 'hidden', {get: () => !isSeen});"
        "window.see = (is) => { isSeen = is; document.dispatchEvent(new Event('visibilitychange')) }"
    )
    is_open = "streams.some((stream) => stream.source)"
    async with serve(database) as address:
        pages = [await context.new_page() for _ in range(8)]
        for page in pages:
            await page.goto(f"{address}/queues")
            assert not await page.evaluate(is_open)
        page = pages[0]
        await page.evaluate("see(true)")
        await until(page, "streams[0].source?.readyState === EventSource.OPEN")
        await page.evaluate("see(false)")
        await until(page, f"!{is_open}")


async def test_nothing_moves_when_a_page_becomes_live(
    filled: Everything, serve: Serve, new_context: NewContext
) -> None:
    context = await new_context(timezone_id="Asia/Tokyo", viewport=DESKTOP)
    await context.add_init_script(
        "window.shift = 0; window.moved = []; let updates = 0;"
        "const note = (each) => { shift += each.value; for (const source of each.sources) moved.push((source.node?.outerHTML ?? '').slice(0, 300)) };"
        "new PerformanceObserver(list => list.getEntries().forEach(note)).observe({type: 'layout-shift', buffered: true});"
        "document.addEventListener('horsies:updated', () => { document.documentElement.dataset.updates = ++updates })"
    )
    page = await context.new_page()
    async with serve(filled.database_url) as address:
        for path in ("/", f"/workers/{filled.workers['live']}"):
            await page.goto(address + path)
            await expect(page.locator("html")).to_have_attribute("data-updates", re.compile("..|[3-9]"))
            # 0.1 is what web.dev calls good
            assert await page.evaluate("shift") < 0.01, (path, await page.evaluate("moved"))


async def test_an_outage_is_shown_until_it_is_over(
    database: str, sql: psycopg.Connection, serve: Serve, page: Page
) -> None:
    async with serve(database) as address:
        await page.goto(f"{address}/queues")
        await expect(page.locator("#live")).to_have_text("Live")
        sql.execute("alter table horsies.queues rename to away")
        await expect(page.locator("#outage")).to_contain_text("cannot be read")
        sql.execute("alter table horsies.away rename to queues")
        await expect(page.locator("#outage")).to_be_hidden()


async def test_changes_of_a_fragment_are_exact(database: str, serve: Serve, page: Page) -> None:
    """Whatever two fragments are, after the change the page has the second one; rows with a key are the same elements."""
    async with serve(database) as address:
        await page.goto(f"{address}/audit")
        problem = await page.evaluate(
            """() => {
            let seed = 7;
            const random = (below) => (seed = (seed * 1103515245 + 12345) % 2147483648) % below;
            const node = (depth) => {
                const kind = random(5);
                if (kind === 0 || depth > 2) return `text ${random(4)}`;
                const key = kind < 3 ? ` data-key="k${random(6)}"` : "";
                const children = Array.from({length: random(4)}, () => node(depth + 1)).join(random(2) ? " " : "");
                return `<${kind < 4 ? "div" : "p"}${key} class="c${random(3)}">${children}</${kind < 4 ? "div" : "p"}>`;
            };
            const fragment = () => {
                const holder = document.createElement("template");
                holder.innerHTML = Array.from({length: random(6)}, () => node(0)).join("");
                for (const each of holder.content.querySelectorAll("[data-key]")) {
                    const same = [...each.parentNode.children].filter((other) => other.dataset.key === each.dataset.key);
                    same.slice(1).forEach((other) => delete other.dataset.key);
                }
                return holder.innerHTML;
            };
            const place = document.createElement("div");
            for (let round = 0; round < 2000; round++) {
                const before = place.innerHTML;
                const wanted = fragment();
                const kept = new Map([...place.children].filter((each) => each.dataset.key).map((each) => [each.tagName + each.dataset.key, each]));
                show(place, wanted);
                if (place.innerHTML !== wanted) return `from ${before} to ${wanted}: ${place.innerHTML}`;
                for (const each of place.children) {
                    const old = kept.get(each.tagName + each.dataset.key);
                    if (each.dataset.key && old && old !== each) return `another element for ${each.dataset.key}: from ${before} to ${wanted}`;
                }
            }
            return "";
        }"""
        )
        assert problem == ""


async def test_the_keyboard(filled: Everything, serve: Serve, page: Page) -> None:
    async with serve(filled.database_url) as address:
        await page.goto(f"{address}/queues")
        await page.keyboard.press("/")
        await expect(page.locator("#search")).to_be_focused()
        await page.keyboard.type("jk?")
        await expect(page.locator("#search")).to_have_value("jk?")
        await page.keyboard.press("Escape")
        await page.keyboard.press("?")
        await expect(page.get_by_role("heading", name="Keyboard")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("heading", name="Keyboard")).to_be_hidden()
        rows = page.locator("tbody tr")
        await page.keyboard.press("j")
        await expect(rows.nth(0).locator("a").first).to_be_focused()
        await page.keyboard.press("j")
        await page.keyboard.press("j")
        await page.keyboard.press("k")
        second = rows.nth(1).locator("a").first
        await expect(second).to_be_focused()
        target = await second.get_attribute("href")
        await page.keyboard.press("Enter")
        await page.wait_for_url(address + (target or ""))
        await page.keyboard.press("g")
        await page.keyboard.press("k")
        await page.wait_for_url(f"{address}/workers")
        await expect(page.locator("nav [aria-current=page]")).to_have_text("Workers")
        await page.goto(address)
        await page.keyboard.press("j")
        await page.keyboard.press("j")
        finding = page.locator(".finding").nth(1)
        await expect(finding.locator("summary")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(finding.locator(".fix")).to_be_visible()


async def test_the_theme_is_remembered_and_the_menu_opens(
    filled: Everything, serve: Serve, new_context: NewContext
) -> None:
    context = await new_context(color_scheme="light", viewport=PHONE)
    page = await context.new_page()
    background = "getComputedStyle(document.body).backgroundColor"
    async with serve(filled.database_url) as address:
        await page.goto(f"{address}/workers")
        light = await page.evaluate(background)
        theme = page.locator("#theme")
        await theme.click()
        assert await page.evaluate(background) == light, "the next theme is the light one"
        await theme.click()
        dark = await page.evaluate(background)
        assert dark != light
        await page.reload()
        assert await page.evaluate(background) == dark
        await expect(theme).to_have_attribute("aria-label", "Theme: dark")
        await expect(page.locator("nav")).to_be_hidden()
        await page.get_by_role("button", name="Menu").click()
        await page.get_by_role("link", name="Doctor").click()
        await page.wait_for_url(f"{address}/doctor")


async def test_buttons_of_rows_are_not_beyond_the_edge(
    database: str, sql: psycopg.Connection, serve: Serve, new_context: NewContext
) -> None:
    _insert_tasks(sql, "payments", 3)
    sql.execute("update horsies.tasks set enqueued_at = now() - interval '40 minutes 14 seconds'")
    sql.execute("insert into horsies.queues (name, paused_at) values ('payments', now())")
    now, name = datetime.now(UTC), "recalculate_all_order_totals"
    add_failure(sql, now, name, "payments", {}, "BANK_DOWN", "the bank does not answer, so nothing is known of it")
    rows = {"/queues": "Resume", "/errors": "Retry all…"}
    async with serve(database) as address:
        for size, paths in ((LAPTOP, ["/queues", "/errors"]), (PHONE, ["/queues", "/errors"])):
            page = await (await new_context(viewport=size)).new_page()
            for path in paths:
                await page.goto(address + path)
                await expect(page.locator("tbody").get_by_text(rows[path])).to_be_in_viewport(ratio=1)
        for size in (LAPTOP, PHONE):
            page = await (await new_context(viewport=size)).new_page()
            await page.goto(f"{address}/tasks")
            table = page.locator(".scroll", has=page.locator("table.tasks"))
            assert await table.evaluate("(each) => each.scrollWidth <= each.clientWidth")
            await table.scroll_into_view_if_needed()
            for text in (name, "FAILED", "BANK_DOWN"):
                await expect(table.get_by_text(text).first).to_be_in_viewport(ratio=1)


async def test_what_a_worker_runs_is_in_the_list_of_running_tasks(
    filled: Everything, serve: Serve, new_context: NewContext
) -> None:
    async with serve(filled.database_url) as address:
        page = await (await new_context(viewport=PHONE)).new_page()
        await page.goto(address)
        await page.get_by_role("link", name="Running tasks").click()
        row = page.locator(f"tr[data-key='{filled.tasks['long_running']}']")
        await expect(row).to_contain_text("1 of 1")
        await row.locator("a[href*='/workers/']").click()
        await page.wait_for_url(re.compile(f"/workers/{filled.workers['live']}$"))


async def test_texts_of_narrow_tables_are_not_broken_within_words(
    filled: Everything, serve: Serve, new_context: NewContext
) -> None:
    async with serve(filled.database_url) as address:
        page = await (await new_context(viewport=PHONE)).new_page()
        for path in ("/audit", f"/workers/{filled.workers['dead']}"):
            await page.goto(address + path)
            cells = page.locator("td.text:not(:empty)")
            widths = await cells.evaluate_all("all => all.map((each) => each.getBoundingClientRect().width)")
            assert min(widths) >= 160, path


async def test_a_queue_is_paused_capped_and_emptied(
    database: str, sql: psycopg.Connection, serve: Serve, page: Page
) -> None:
    _insert_tasks(sql, "mail", 3)
    sql.execute(
        "update horsies.tasks set ready = false, enqueued_at = now() + interval '1 hour' where id in (select id from horsies.tasks limit 1)"
    )
    async with serve(database) as address:
        await page.goto(f"{address}/queues")
        row = page.locator("tr[data-key=mail]")
        await row.get_by_role("button", name="Pause").click()
        dialog = page.locator("#confirm")
        await dialog.get_by_role("button", name="Back").click()
        assert sql.execute("select count(*) from horsies.queues").fetchone() == (0,)
        await row.get_by_role("button", name="Pause").click()
        await dialog.get_by_role("button", name="Pause").click()
        await expect(page.locator("#flash")).to_contain_text("Queue mail is paused")
        assert sql.execute("select count(*) from horsies.queues where paused_at is not null").fetchone() == (1,)
        await row.get_by_role("link", name="mail").click()
        await page.get_by_label("At most in flight").fill("7")
        await page.get_by_role("button", name="Set the cap").click()
        await expect(page.locator("#flash")).to_contain_text("At most 7")
        await expect(page.get_by_label("At most in flight")).to_have_value("7")
        await page.get_by_role("button", name="Remove it").click()
        await expect(page.locator("#flash")).to_contain_text("cap of each app again")
        await page.get_by_role("link", name="Empty it").click()
        await expect(page.locator("#purge")).to_contain_text("cancels 3 tasks")
        await page.get_by_role("link", name="Keep them").click()
        await page.get_by_role("link", name="Empty it").click()
        await page.get_by_role("button", name="Cancel 3 tasks").click()
        await expect(page.locator("#flash")).to_contain_text("3 CANCELLED")
        assert page.url == f"{address}/queues/mail"
        await page.goto(f"{address}/audit")
        actions = await page.locator("tbody td:nth-child(3)").all_inner_texts()
        assert actions == ["purge queue", "reset cap of queue", "set cap of queue to 7", "pause queue"]
        await page.locator("tbody a", has_text="mail").first.click()
        await page.wait_for_url(f"{address}/queues/mail")


async def test_a_worker_is_asked_for_a_heartbeat_and_to_leave(filled: Everything, serve: Serve, page: Page) -> None:
    async with serve(filled.database_url) as address:
        await page.goto(f"{address}/workers")
        await page.locator(f"tr[data-key='{filled.workers['live']}'] a").first.click()
        children = page.locator("[data-event=children] tbody tr")
        await expect(children.filter(has_text="render_video").first).to_contain_text("busy")
        await page.get_by_role("button", name="Request a heartbeat").click()
        await expect(page.locator("#flash")).to_contain_text("A heartbeat was requested")
        await page.get_by_role("button", name="Ask it to leave").click()
        await page.locator("#confirm").get_by_role("button", name="Ask it to leave").click()
        await expect(page.locator("#flash.success")).to_contain_text("asked to leave")
        await expect(page.locator("main")).to_contain_text("leaving")
        await expect(page.get_by_role("button", name="Ask it to leave")).to_have_count(0)
        await page.goto(f"{address}/workers/{filled.workers['dead']}")
        await expect(page.locator("main")).to_contain_text("Found dead")
        await expect(page.locator("main tbody")).to_contain_text("doomed")
        with psycopg.connect(filled.database_url) as sql:
            sql.execute("update horsies.workers set leave_requested_at = null where id = %s", [filled.workers["live"]])


async def test_a_reader_sees_no_buttons(filled: Everything, serve: Serve, page: Page) -> None:
    async with serve(filled.database_url, authorize=read_only) as address:
        for path in pages_of(filled)[:-1]:
            await page.goto(address + path)
            buttons = [await each.inner_text() for each in await page.locator("main button:visible").all()]
            assert set(buttons) <= {"Copy", "Run all checks"}, path
            assert await page.locator("form[method=post]").count() == 0, path
        await expect(page.locator(".user")).to_contain_text("read-only")


async def test_without_scripts_everything_is_there(
    filled: Everything, database: str, sql: psycopg.Connection, serve: Serve, new_context: NewContext
) -> None:
    page = await (await new_context(java_script_enabled=False)).new_page()
    _insert_tasks(sql, "mail", 2)
    async with serve(filled.database_url) as address:
        await page.goto(address)
        await expect(page.locator(".finding")).to_have_count(FINDINGS)
        await expect(page.get_by_role("link", name=re.compile(r"\d+ more in Doctor"))).to_be_visible()
        await page.locator(".finding summary").first.click()
        await expect(page.locator(".finding .fix").first).to_be_visible()
        await expect(page.locator("svg .completed")).to_have_attribute("d", re.compile(r"M\d"))
        await expect(page.locator("tr[data-key=mail] .number").first).not_to_be_empty()
        assert await page.locator(".js-only:visible").count() == 0
        await page.get_by_role("link", name="Doctor").first.click()
        await page.get_by_role("button", name="Run all checks").click()
        await expect(page.locator(".head > .note")).to_contain_text("All checks, of the server")
    async with serve(database) as address:
        await page.goto(f"{address}/queues")
        await page.locator("tr[data-key=mail]").get_by_role("button", name="Pause").click()
        await expect(page.locator("#flash")).to_contain_text("Queue mail is paused")
        await page.get_by_role("link", name="mail").click()
        await page.get_by_role("link", name="Empty it").click()
        await page.get_by_role("button", name="Cancel 2 tasks").click()
        await expect(page.locator("#flash")).to_contain_text("2 CANCELLED")


async def test_under_a_prefix(database: str, sql: psycopg.Connection, serve: Serve, page: Page) -> None:
    _insert_tasks(sql, "mail", 2)
    async with serve(database, prefix="/horsies") as address:
        await page.goto(address)
        foreign = await page.eval_on_selector_all(
            "[href], [src], [action], [formaction], [data-stream]",
            "all => all.flatMap(each => ['href', 'src', 'action', 'formaction', 'data-stream'].map(name => each.getAttribute(name)))"
            ".filter(link => link && !link.startsWith('/horsies/') && !link.startsWith('#'))",
        )
        assert foreign == []
        await page.get_by_role("link", name="All queues").click()
        await page.locator("tr[data-key=mail]").get_by_role("link", name="mail").click()
        await expect(page.locator("#live")).to_have_text("Live")
        _insert_tasks(sql, "mail", 1)
        await expect(page.locator(".stats dd").first).to_have_text("3")
        await page.get_by_role("link", name="Empty it").click()
        await page.get_by_role("button", name="Cancel 3 tasks").click()
        await expect(page.locator("#flash")).to_contain_text("3 CANCELLED")
        assert page.url == f"{address}/queues/mail"
        await page.get_by_role("button", name="Pause").click()
        await page.locator("#confirm").get_by_role("button", name="Pause").click()
        await expect(page.get_by_role("button", name="Resume").first).to_be_visible()
        assert page.url == f"{address}/queues/mail"


async def test_the_chart_tells_its_numbers(filled: Everything, serve: Serve, page: Page) -> None:
    async with serve(filled.database_url) as address:
        await page.goto(f"{address}/?minutes=1440")
        plot = page.locator("[data-chart=throughput] svg")
        await plot.hover(position={"x": 100, "y": 50})
        readout = page.locator("[data-chart=throughput] .readout")
        await expect(readout).to_contain_text(
            re.compile(r"\d\d:\d\d: completed [\d,]+, failed [\d,]+, cancelled or expired \d")
        )
        label = await plot.get_attribute("aria-label") or ""
        assert re.search(r"Tasks ended per minute: [\d,]+ tasks ended, [\d,]+ of them failed", label)
        await page.locator("h1").hover()
        await expect(readout).to_be_empty()


async def test_ages_are_the_same_in_the_browser(database: str, serve: Serve, page: Page) -> None:
    now = datetime.now(UTC)
    seconds = [
        sign * (each + 0.2)
        for each in (0, 5, 11, 59.5, 61, 3599, 3601, 7300, 40_000, 86_401, 180_000, 2_000_000)
        for sign in (-1, 1)
    ]
    async with serve(database) as address:
        await page.clock.set_fixed_time(now)
        await page.goto(f"{address}/audit")
        texts = await page.evaluate(
            "all => all.map(each => age(new Date(Date.now() + skewMs + each * 1000).toISOString()))", seconds
        )
    assert texts == [age(now + timedelta(seconds=each), now) for each in seconds]


async def test_a_user_logs_in_and_out(database: str, serve: Serve, page: Page, errors: PageErrors) -> None:
    errors.allow("status of 403")
    alice = Credential(User("alice", Role.READ_ONLY), hash_password("correct horse"))
    async with serve(database, credentials=[alice]) as address:
        await page.goto(f"{address}/queues")
        assert await accessibility_problems(page) == []
        await page.get_by_label("Name").fill("alice")
        await page.get_by_label("Password").fill("wrong horse")
        await page.get_by_role("button", name="Log in").click()
        await expect(page.get_by_role("alert")).to_contain_text("wrong")
        assert await accessibility_problems(page) == []
        await page.get_by_label("Name").fill("alice")
        await page.get_by_label("Password").fill("correct horse")
        await page.keyboard.press("Enter")
        await page.wait_for_url(f"{address}/queues")
        await expect(page.locator(".user")).to_contain_text("alice")
        await page.get_by_role("button", name="Log out").click()
        await page.wait_for_url(f"{address}/login")


def read_only(_request: Request) -> User:
    return User("eve", Role.READ_ONLY)


def _insert_tasks(sql: psycopg.Connection, queue: str, count: int) -> None:
    sql.execute(
        "insert into horsies.tasks (id, task_name, queue_name, args, ready, enqueued_at, sent_at) "
        "select gen_random_uuid(), 'deliver', %s, '{}', true, now() - interval '1 minute', now() from generate_series(1, %s)",
        [queue, count],
    )
