"""Workflows in a real browser: the list of runs, and a run with its drawn graph and its nodes."""

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from typing import Any
from uuid import uuid4

import httpx
import psycopg
import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, expect

from horsies.db.broker import PostgresBroker
from horsies.model.config import PostgresConfig
from horsies.model.graph import Graph, Node, NodeKind, OnError
from horsies.model.task import TaskOptions
from horsies.web import Role, User
from tests.fixtures.browsers import IN_BROWSER, NewContext, page_problems
from tests.fixtures.everything import HOSTILE, Everything
from tests.web.conftest import Serve
from tests.workflows.steps import ending_of, node, start_run, take_batch

pytestmark = IN_BROWSER

PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1440, "height": 900}
INVISIBLE = re.compile("[\u202e\u2066\u200b\ufeff\x1b\x07\r\x08]")

IN_SIGHT = """() => {
    const outer = document.querySelector('#graph').getBoundingClientRect();
    return [...document.querySelectorAll('#graph a .front')].every(each => {
        const own = each.getBoundingClientRect();
        return own.left >= outer.left && own.top >= outer.top && own.right <= outer.right && own.bottom <= outer.bottom;
    });
}"""


class Runs:
    """Starts runs, and plays their worker."""

    def __init__(self, broker: PostgresBroker, sql: psycopg.Connection) -> None:
        self.broker, self.sql = broker, sql

    async def start(self, graph: Graph) -> str:
        return await asyncio.to_thread(start_run, self.broker, graph)

    async def work(self, *, fails: bool = False, result: str = "1", limit: int = 1) -> None:
        """Run tasks, and all that follows from their ends."""

        def run() -> None:
            claimed = take_batch(self.broker, limit).claimed
            claims = [claim for group in claimed for claim in group]
            take_batch(self.broker, 0, endings=[ending_of(claim, fails=fails, result=result) for claim in claims])

        await asyncio.to_thread(run)

    def task_of(self, run: str, index: int) -> str:
        query = "select task_id::text from horsies.nodes where workflow_id = %s and index = %s"
        found = self.sql.execute(query, [run, index]).fetchone()
        assert found is not None
        return str(found[0])


@pytest_asyncio.fixture(loop_scope="session")
async def runs(database: str) -> AsyncGenerator[Runs]:
    broker = PostgresBroker(PostgresConfig(database_url=database))
    await asyncio.to_thread(broker.ensure_schema_initialized)
    with psycopg.connect(database, autocommit=True) as sql:
        yield Runs(broker, sql)
    await asyncio.to_thread(broker.close)


def layers(count: int, width: int) -> Graph:
    """Layers of nodes, each of which waits for two of the layer before; each layer has its task."""
    nodes: list[Node] = []
    for layer in range(count):
        for place in range(width):
            index = layer * width + place
            before = {index - width, (layer - 1) * width + (place + 1) % width} if layer else set[int]()
            nodes.append(node(index, *sorted(before), terms=TaskOptions(f"layer{layer}", "default")))
    return Graph("large", tuple(nodes))


async def scale(page: Page) -> float:
    """How much the graph is zoomed, once it is drawn."""
    await page.evaluate("() => new Promise(requestAnimationFrame)")
    return float(await page.locator("#graph").get_attribute("data-scale") or 0)


def box(page: Page, name: str | re.Pattern[str]) -> Locator:
    return page.locator("#graph a", has_text=name).first


async def place(page: Page, name: str) -> tuple[float, float]:
    found = await box(page, name).locator(".front").bounding_box()
    assert found is not None
    return found["x"], found["y"]


def paths_of(filled: Everything, inner: Sequence[str]) -> Sequence[str]:
    runs = [run for name, run in filled.workflows.items() if not name.startswith("hostile")]
    paths = ["/workflows", "/workflows?status=LIVE&period=24h", "/workflows?name=nothing&error_code=X&message=y"]
    failed = filled.workflows["failed"]
    return [
        *paths,
        *(f"/workflows/{run}" for run in [*runs, *inner, filled.workflows["hostile_word"]]),
        f"/workflows/{failed}?status=SKIPPED",
        f"/workflows/{failed}?text=nothing",
    ]


@pytest.mark.parametrize(("scheme", "size"), [("light", DESKTOP), ("dark", DESKTOP), ("light", PHONE)])
async def test_every_page_is_accessible_and_fits(
    filled: Everything, serve: Serve, new_context: NewContext, scheme: str, size: dict[str, int]
) -> None:
    with psycopg.connect(filled.database_url) as sql:
        inner = [run for (run,) in sql.execute("select id::text from horsies.workflows where parent_node is not null")]
    assert len(inner) == 2, "a map and a sub-workflow"
    page = await (await new_context(color_scheme=scheme, viewport=size)).new_page()
    problems: dict[str, list[str]] = {}
    async with serve(filled.database_url) as address:
        for path in paths_of(filled, inner):
            answer = await page.goto(address + path)
            assert answer is not None
            assert answer.status == 200, path
            if await page.locator("#graph").count():
                await expect(page.locator("#graph a").first).to_be_visible()
                await scale(page)
                assert await page.evaluate(IN_SIGHT), path
            if found := await page_problems(page):
                problems[path] = found
    assert problems == {}


async def test_runs_are_listed_filtered_and_paged(filled: Everything, serve: Serve, page: Page) -> None:
    async with serve(filled.database_url) as address:
        await page.goto(f"{address}/workflows")
        await expect(page.locator("tbody tr", has_text="import catalog")).to_contain_text(
            "2 of 6 done, 1 failed, 3 skipped"
        )
        await page.get_by_label("Status").select_option("PAUSED")
        await page.get_by_role("button", name="Filter").click()
        await expect(page.locator("tbody tr")).to_have_count(2)
        await page.get_by_label("Name", exact=True).fill("publish")
        await page.get_by_role("button", name="Filter").click()
        await expect(page.locator("tbody tr")).to_have_count(1)
        await page.locator("tbody a").first.click()
        await expect(page).to_have_url(f"{address}/workflows/{filled.workflows['paused']}")
        await expect(page.get_by_text("Paused by an operator.")).to_be_visible()
        await page.goto(f"{address}/workflows?after={filled.workflows['failed']}")
        await expect(page.locator("tbody tr")).to_have_count(1)
        await page.get_by_role("link", name="Newest").click()
        assert await page.locator("tbody tr").count() == 9 + len(HOSTILE)


async def test_the_cause_of_a_pause_and_of_a_failure_is_named(filled: Everything, serve: Serve, page: Page) -> None:
    async with serve(filled.database_url) as address:
        await page.goto(f"{address}/workflows/{filled.workflows['paused_by_error']}")
        await expect(page.locator(".cause")).to_contain_text(
            "Paused by an error: node check failed. STEP_FAILED step check has failed"
        )
        await page.goto(f"{address}/workflows/{filled.workflows['failed']}")
        await expect(page.locator(".cause")).to_contain_text("node parse STEP_FAILED step parse has failed")
        await page.locator(".cause a").click()
        await expect(page).to_have_url(re.compile(r"/tasks/[0-9a-f-]{36}$"))


async def test_a_graph_of_2000_nodes_is_folded_zoomed_moved_and_leads_to_a_task(
    runs: Runs, serve: Serve, database: str, page: Page
) -> None:
    run = await runs.start(layers(8, 250))
    async with serve(database) as address:
        await page.goto(f"{address}/workflows/{run}")
        graph, boxes = page.locator("#graph"), page.locator("#graph a")
        await expect(boxes).to_have_count(8)
        await expect(page.locator("#graph-note")).to_have_text("2,000 nodes in 8 boxes")
        await expect(box(page, re.compile(r"layer0 . 250"))).to_contain_text("250 enqueued")
        fitted = await scale(page)
        assert await page.evaluate(IN_SIGHT)

        await page.get_by_role("button", name="Zoom in").click()
        assert (zoomed := await scale(page)) > fitted
        await graph.hover()
        await page.keyboard.down("Control")
        await page.mouse.wheel(0, -200)
        await page.keyboard.up("Control")
        assert await scale(page) > zoomed
        before = await place(page, "layer3")
        await drag(page, graph, 80, 40)
        after = await place(page, "layer3")
        assert (round(after[0] - before[0]), round(after[1] - before[1])) == (80, 40)
        await graph.focus()
        await page.keyboard.press("ArrowRight")
        await scale(page)
        assert round((await place(page, "layer3"))[0] - after[0]) == -60
        zoomed = await scale(page)
        await page.keyboard.press("-")
        assert await scale(page) < zoomed
        await page.keyboard.press("0")
        assert await scale(page) == fitted

        await box(page, re.compile(r"layer1 . 250")).click()
        await expect(boxes).to_have_count(7 + 250)
        assert await page.evaluate(IN_SIGHT)
        await page.get_by_role("button", name="Unfold all").click()
        await expect(boxes).to_have_count(2_000)
        await scale(page)
        assert await page.evaluate(IN_SIGHT)
        await page.get_by_role("button", name="Fold", exact=True).click()
        await expect(boxes).to_have_count(8)

        await box(page, re.compile(r"layer0 . 250")).click()
        await box(page, "n7").focus()
        await page.keyboard.press("Enter")
        await expect(page).to_have_url(f"{address}/tasks/{runs.task_of(run, 7)}")


async def drag(page: Page, graph: Locator, x: int, y: int) -> None:
    bounds = await graph.bounding_box()
    assert bounds is not None
    start = (bounds["x"] + 20, bounds["y"] + 20)
    await page.mouse.move(*start)
    await page.mouse.down()
    await page.mouse.move(start[0] + x / 2, start[1] + y / 2)
    await page.mouse.move(start[0] + x, start[1] + y)
    await page.mouse.up()
    await scale(page)


async def test_two_fingers_zoom_and_one_moves(runs: Runs, serve: Serve, database: str, new_context: NewContext) -> None:
    run = await runs.start(Graph("three", (node(0), node(1, 0), node(2, 1))))
    context = await new_context(viewport=PHONE, has_touch=True)
    page = await context.new_page()
    session = await context.new_cdp_session(page)

    async def touch(kind: str, *points: tuple[float, float]) -> None:
        await session.send(  # pyright: ignore[reportUnknownMemberType] - its parameters are those of the protocol
            "Input.dispatchTouchEvent",
            {"type": kind, "touchPoints": [{"x": x, "y": y, "id": number} for number, (x, y) in enumerate(points)]},
        )

    async with serve(database) as address:
        await page.goto(f"{address}/workflows/{run}")
        await expect(page.locator("#graph a")).to_have_count(3)
        await page.locator("#graph").scroll_into_view_if_needed()
        bounds = await page.locator("#graph").bounding_box()
        assert bounds is not None
        x, y = bounds["x"] + 60, bounds["y"] + 60
        before, fitted = await place(page, "n0"), await scale(page)
        await touch("touchStart", (x, y))
        await touch("touchMove", (x + 20, y + 10))
        await touch("touchMove", (x + 40, y + 20))
        await touch("touchEnd")
        await scale(page)
        assert (await place(page, "n0"))[0] > before[0] + 30
        await touch("touchStart", (x, y), (x + 60, y))
        await touch("touchMove", (x - 20, y), (x + 80, y))
        await touch("touchMove", (x - 30, y), (x + 110, y))
        await touch("touchEnd")
        assert await scale(page) > fitted


async def test_rows_and_large_joins_are_folded_and_a_node_that_waits_leads_to_its_row(
    runs: Runs, serve: Serve, database: str, page: Page
) -> None:
    chain = [node(index, *([index - 1] if index else [])) for index in range(300)]
    fan = [node(index, 299, terms=TaskOptions("resize", "default")) for index in range(300, 400)]
    join = node(400, *range(300, 400), terms=TaskOptions("collect", "default"), node_id="the end")
    run = await runs.start(Graph("mixed", (*chain, *fan, join)))
    async with serve(database) as address:
        await page.goto(f"{address}/workflows/{run}")
        await expect(page.locator("#graph a")).to_have_count(3)
        await expect(box(page, re.compile(r"add . 300"))).to_contain_text("299 wait")
        await box(page, re.compile(r"add . 300")).click()
        await expect(page.locator("#graph a")).to_have_count(302)
        await page.get_by_role("button", name="Fold", exact=True).click()
        await box(page, "the end").click()
        await expect(page).to_have_url(f"{address}/workflows/{run}?first=400#nodes")
        await expect(page.locator("tbody tr")).to_have_count(1)


async def test_too_many_different_nodes_are_only_listed(runs: Runs, serve: Serve, database: str, page: Page) -> None:
    nodes = [
        node(index, *([index - 1] if index else []), terms=TaskOptions(f"t{index}", "default"))
        for index in range(4_001)
    ]
    run = await runs.start(Graph("long", tuple(nodes)))
    async with serve(database) as address:
        await page.goto(f"{address}/workflows/{run}")
        await expect(page.locator("#graph")).to_contain_text("4,001 different nodes are too many to be drawn.")
        await expect(page.locator("tbody tr")).to_have_count(100)
        await page.get_by_role("button", name="Fit").click()


async def test_states_change_while_one_looks(runs: Runs, serve: Serve, database: str, page: Page) -> None:
    run = await runs.start(Graph("live", (node(0), node(1, 0), node(2, 1))))
    async with serve(database) as address:
        await page.goto(f"{address}/workflows/{run}")
        first = page.locator("#graph a").first
        await expect(first).to_have_class("node is-enqueued")
        await first.focus()
        await runs.work()
        await expect(first).to_have_class("node is-completed")
        await expect(first).to_be_focused()
        await expect(box(page, "n1")).to_have_class("node is-enqueued")
        await expect(page.locator("tbody tr").first).to_contain_text("COMPLETED")
        await expect(page.locator(".title .progress")).to_contain_text("1 of 3 done")
        await runs.work(fails=True)
        await expect(box(page, "n1")).to_have_class("node is-failed")
        await expect(box(page, "n2")).to_have_class("node is-skipped")
        await expect(page.locator(".cause")).to_contain_text("Failed: node n1 BROKEN")
        await expect(page.locator(".chips")).to_contain_text("SKIPPED 1")
        await expect(page.get_by_role("button", name="Pause")).to_have_count(0)
        await page.get_by_role("button", name="Retry").click()
        await page.locator("#confirm-yes").click()
        await expect(page.get_by_text("What failed or was skipped runs again.")).to_be_visible()
        await expect(box(page, "n1")).to_have_class("node is-enqueued")


async def test_maps_and_sub_workflows_show_how_far_they_are_and_lead_there(
    filled: Everything, serve: Serve, page: Page
) -> None:
    async with serve(filled.database_url) as address:
        await page.goto(f"{address}/workflows/{filled.workflows['mapped']}")
        await expect(box(page, "doubled")).to_contain_text("34 done, 6 failed")
        await box(page, "doubled").click()
        await expect(page.locator(".crumbs")).to_contain_text("Items of double all, node doubled")
        await expect(page.locator("#graph")).to_have_count(0)
        await page.locator(".chips a", has_text="FAILED").click()
        await expect(page.locator("tbody tr")).to_have_count(6)
        await expect(page.locator("tbody tr").first).to_contain_text("UNLUCKY")
        await page.locator(".crumbs a").last.click()
        await expect(page.get_by_role("heading", name="double all")).to_be_visible()
        await page.goto(f"{address}/workflows/{filled.workflows['nested']}")
        await box(page, "order").click()
        await expect(page.locator(".crumbs")).to_contain_text("Part of whole day, node order")
        await expect(page.locator("#graph a")).to_have_count(3)


async def test_a_part_that_is_paused_is_named_in_the_run_around_it(
    runs: Runs, serve: Serve, database: str, page: Page
) -> None:
    part = Graph("part", (node(0), node(1, 0)), on_error=OnError.PAUSE)
    run = await runs.start(Graph("whole", (node(0, kind=NodeKind.WORKFLOW, terms=None, child=part), node(1, 0))))
    async with serve(database) as address:
        await page.goto(f"{address}/workflows/{run}")
        await expect(box(page, "n0")).to_contain_text("1 enqueued, 1 wait")
        await runs.work(fails=True)
        await expect(page.locator(".cause")).to_contain_text("A part of it is paused")
        await expect(box(page, "n0")).to_contain_text("paused")
        await page.locator(".cause a").click()
        await expect(page.locator(".cause")).to_contain_text("Paused by an error: node n0 failed. BROKEN")
        await page.go_back()
        await page.get_by_role("button", name="Resume").click()
        await expect(page.locator(".title .badge").first).to_have_text("FAILED")


async def test_hostile_names_are_texts(filled: Everything, serve: Serve, page: Page) -> None:
    """The fixture of the page refuses scripts that run."""
    async with serve(filled.database_url) as address:
        await page.goto(f"{address}/workflows")
        assert not INVISIBLE.search(await page.locator("main").inner_text())
        for name in HOSTILE:
            await page.goto(f"{address}/workflows/{filled.workflows[f'hostile_{name}']}")
            await expect(page.locator("#graph a")).to_have_count(2)
            text = await page.locator("main").inner_text() + await page.locator("#graph").inner_html()
            assert not INVISIBLE.search(text), name
        await page.goto(f"{address}/workflows/{filled.workflows['hostile_script']}")
        await expect(page.locator("h1")).to_have_text(HOSTILE["script"])
        await expect(page.locator("#graph a title").first).to_contain_text(HOSTILE["script"])


async def test_operators_pause_resume_and_cancel(runs: Runs, serve: Serve, database: str, page: Page) -> None:
    run = await runs.start(Graph("w", (node(0), node(1, 0))))
    async with serve(database) as address:
        await page.goto(f"{address}/workflows/{run}")
        await page.get_by_role("button", name="Pause").click()
        await expect(page.get_by_text("The workflow is paused.")).to_be_visible()
        await expect(page.locator("#graph a").first).to_have_class("node is-ready")
        await page.get_by_role("button", name="Resume").click()
        await expect(page.get_by_text("The workflow continues.")).to_be_visible()
        await page.locator("main").get_by_role("button", name="Cancel").click()
        await page.locator("#confirm-yes").click()
        await expect(page.get_by_text("The workflow is cancelled.")).to_be_visible()
        await expect(page.locator(".title .badge").first).to_have_text("CANCELLED")
    assert runs.sql.execute("select action from horsies.audit order by id").fetchall() == [
        ("pause workflow",), ("resume workflow",), ("cancel workflow",),
    ]  # fmt: skip


async def test_who_may_only_read_sees_no_buttons(filled: Everything, serve: Serve, page: Page) -> None:
    run = filled.workflows["running"]

    def reader(_request: Any) -> User:
        return User("rita", Role.READ_ONLY)

    async with serve(filled.database_url, prefix="/horsies", authorize=reader) as address:
        await page.goto(f"{address}/workflows/{run}")
        await expect(page.locator("#graph a")).to_have_count(2)
        await expect(page.get_by_role("button", name="Pause")).to_have_count(0)
        await expect(page.get_by_role("button", name="Fit")).to_be_visible()
        assert await page.locator("#graph a").first.get_attribute("href") == f"/horsies/workflows/{run}/nodes/0"


async def test_without_scripts_the_nodes_are_listed(
    runs: Runs, serve: Serve, database: str, new_context: NewContext
) -> None:
    run = await runs.start(layers(2, 75))
    page = await (await new_context(java_script_enabled=False)).new_page()
    async with serve(database) as address:
        await page.goto(f"{address}/workflows/{run}")
        await expect(page.get_by_text("The graph is drawn with JavaScript")).to_be_visible()
        await expect(page.locator("#graph")).to_be_hidden()
        await expect(page.locator("tbody tr")).to_have_count(100)
        await page.get_by_role("link", name="Next").click()
        await expect(page.locator("tbody tr")).to_have_count(50)
        await page.locator(".chips a", has_text="PENDING").click()
        await expect(page.locator("tbody tr")).to_have_count(75)
        await page.locator("main input[type=search]").fill("layer1")
        await page.get_by_role("button", name="Find").click()
        await expect(page.locator("tbody tr")).to_have_count(75)
        await page.locator("main").get_by_role("button", name="Pause").click()
        await expect(page.get_by_text("The workflow is paused.")).to_be_visible()


async def test_what_is_asked_wrongly_is_refused(filled: Everything, serve: Serve, page: Page) -> None:
    run, nothing = f"/workflows/{filled.workflows['failed']}", f"/workflows/{uuid4()}"
    expected = {
        "/workflows/nothing": 404, nothing: 404, f"{nothing}/graph": 404, f"{nothing}/nodes/0": 404, f"{run}/nodes/99": 404,
        "/workflows?after=%00": 400, "/workflows?status=ODD": 400, "/workflows?period=ages": 400, "/workflows?name=%00": 400,
        "/workflows?message=%00": 400, f"{run}?status=ODD": 400, f"{run}?first=-1": 400, f"{run}?first=99999999999": 400, f"{run}?text=%00": 400,
        f"{run}/nodes/-1": 400, f"{run}?first=999999999": 200, f"/workflows?after={uuid4()}": 200,
    }  # fmt: skip
    async with serve(filled.database_url) as address:
        found = {path: (await page.request.get(address + path)).status for path in expected}
        assert found == expected
        for path in ("/live/workflow?id=nothing", f"/live/workflow?id={uuid4()}", "/live/workflows?status=ODD"):
            assert "event: gone" in await first_event(address + path)


async def first_event(url: str) -> str:
    async with httpx.AsyncClient() as client, client.stream("GET", url) as answer:
        seen = ""
        async for text in answer.aiter_text():
            seen += text
            if "event:" in seen:
                break
        return seen
