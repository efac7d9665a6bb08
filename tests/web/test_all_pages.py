"""Attacks on all pages and streams at once: hostile texts and parameters never end in an error, and what is secret is nowhere."""

import html
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx
import psycopg
import pytest

from horsies import AppConfig, Horsies, TaskError, TaskResult
from horsies.tasks.ids import new_task_id
from horsies.web import dashboard
from horsies.web.dashboard import HEADERS
from horsies.web.pages import PAGES
from tests.fixtures.everything import Everything
from tests.web.conftest import serving

LINK = re.compile(r'(?<![\w-])(?:href|data-stream|action|src)="([/?][^"]*)"')
PARAMETERS = ("after", "page", "limit", "rows", "hours", "minutes", "order", "q", "text", "task_name", "queue_name", "statuses", "since", "until", "worker", "worker_id",
              "workflow_id", "id", "ids", "name", "log", "action", "error_code", "error_summary", "message", "key", "schedule_name", "back", "next", "status", "index")  # fmt: skip
VALUES = ("x", "-1", "0", "1e999", "NaN", "9" * 30, "%", "'", "<b>", "\u202e", "é" * 300, "2026-02-30", "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00",
          "00000000-0000-0000-0000-000000000000", "9" * 5 + "d", "FAILED", "a,b,c", "../..", "\u0661", "\x07")  # fmt: skip


class Crawler:
    """Follows all links from the first page, once for each path, and a few times for each kind of query."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self.pages: dict[str, str] = {}

    async def read(self, path: str) -> tuple[int, str]:
        """Read a page, or what a stream sends first."""
        if not urlsplit(path).path.startswith("/live/"):
            answer = await self.client.get(path)
            assert {name: answer.headers.get(name) for name in HEADERS} == dict(HEADERS)
            return answer.status_code, answer.text
        async with self.client.stream("GET", path) as response:
            text = ""
            async for data in response.aiter_text():
                text += data
                if "event: " in text and text.endswith("\n\n"):
                    break
            return response.status_code, text

    async def crawl(self, *more: str, limit: int = 400) -> None:
        waiting, seen = ["/", *more], set[str]()
        while waiting and len(self.pages) < limit:
            path = waiting.pop(0)
            kind = self._kind(path)
            if kind in seen:
                continue
            seen.add(kind)
            status, text = await self.read(path)
            is_gone = status == 404 and path.startswith(
                ("/workers/", "/tasks/")
            )  # what is linked may not exist any more
            is_refused = status == 400 and path.startswith("/tasks/bulk")  # such as a retry of what runs
            assert status in {200, 303} or is_gone or is_refused, (path, status, text[-2_000:])
            self.pages[path] = text
            if not path.startswith("/static/"):
                links = [urljoin(path, html.unescape(link)) for link in LINK.findall(text)]
                waiting += [
                    link.partition("#")[0]
                    for link in links
                    if link.startswith("/") and not re.match("/(actions|login|logout)", link)
                ]

    def _kind(self, path: str) -> str:
        """Pages whose queries have the same names are the same kind."""
        parts = urlsplit(path)
        names = sorted({part.partition("=")[0] for part in parts.query.split("&")})
        return f"{parts.path}?{'&'.join(names)}" if not parts.path.startswith("/live/") else path


@asynccontextmanager
async def crawling(url: str, app: Horsies | None = None, **options: Any) -> AsyncGenerator[Crawler]:
    shop = app or Horsies(AppConfig.for_database_url(url))
    async with (
        serving(dashboard(shop, **options)) as address,
        httpx.AsyncClient(base_url=address, timeout=30) as client,
    ):
        yield Crawler(client)
    await shop.broker.close_async()


def errors_of(caplog: pytest.LogCaptureFixture) -> Sequence[str]:
    return [f"{record.getMessage()} {record.exc_text}" for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.timeout(180)  # 600 pages
async def test_hostile_texts_break_no_page_and_no_stream(
    everything: Everything, caplog: pytest.LogCaptureFixture
) -> None:
    async with crawling(everything.database_url) as crawler:
        paths = [f"/tasks/{task}" for task in everything.tasks.values()] + [
            f"/workflows/{run}" for run in everything.workflows.values()
        ]
        await crawler.crawl(*paths, limit=600)
    assert errors_of(caplog) == []
    found = {urlsplit(path).path.split("/")[1] for path in crawler.pages}
    assert found >= {page.path.split("/")[1] for page in PAGES} - {"search"} | {"live", "static"}
    for path, page in crawler.pages.items():
        if path.startswith(("/static/",)) or path.endswith("/graph"):
            continue
        assert "<script>window" not in page, path
        assert 'onerror="window' not in page, path
        assert "<svg onload" not in page, path
        assert not re.search(r'(?:href|src|action)="\s*javascript:', page), path


@pytest.mark.timeout(180)  # 500 pages
async def test_hostile_parameters_are_errors_of_the_client_at_most(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    paths = [re.sub(r"\{\w+(:\w+)?\}", "00000000-0000-7000-8000-000000000000", page.path) for page in PAGES]
    paths += [re.sub(r"\{\w+(:\w+)?\}", "x", page.path) for page in PAGES if "{" in page.path]
    problems: list[tuple[str, str, str, int]] = []
    async with crawling(database) as crawler:
        for row, path in enumerate(paths):
            for column, name in enumerate(PARAMETERS):
                value = VALUES[(row + column) % len(VALUES)]  # each path gets each value
                answer = await crawler.client.get(path, params={name: value})
                if answer.status_code >= 500:
                    problems.append((path, name, value[:40], answer.status_code))
    assert problems == []
    assert errors_of(caplog) == []


def store_secrets(sql: psycopg.Connection, task_name: str, *, is_sensitive: bool) -> list[str]:
    """Tasks in several states, with a secret wherever a task has a payload. Returns their ids."""
    error = '{"error_code": "BROKEN", "message": "s3cr3t-message", "data": {"card": "s3cr3t-data"}}'
    attempt = (
        '{"attempt": 1, "error_code": "BROKEN", "error": '
        + error
        + ', "worker": null, "started_at": "2026-01-01T00:00:00+00:00", "ended_at": "2026-01-01T00:00:01+00:00"}'
    )
    shared = {
        "task_name": task_name,
        "queue_name": "default",
        "args": '{"card": "s3cr3t-args"}',
        "progress": '{"fraction": 0.5, "message": "s3cr3t-progress"}',
        "failed_attempts": [attempt],
        "is_sensitive": is_sensitive,
        "attempts": 2,
    }
    ids: list[str] = []
    for table, more in (
        ("tasks", {"priority": 1}),
        ("tasks", {"priority": 1, "ready": False, "refused_by": [7], "refusal": error}),
        ("finished", {"status": "FAILED", "error_code": "BROKEN", "error": error, "finished_at": "now", "sent_at": "now", "enqueued_at": "now"}),
        ("finished", {"status": "COMPLETED", "result": '"s3cr3t-result"', "finished_at": "now", "sent_at": "now", "enqueued_at": "now"}),
    ):  # fmt: skip
        values = {"priority": 1, "claim_no": 1, **shared, **more}
        names, places = ", ".join(values), ", ".join(["%s"] * len(values))
        query = f"insert into horsies.{table} (id, {names}) values (%s, {places})"
        ids.append(new_task_id())
        sql.execute(query.encode(), [ids[-1], *values.values()])
    records = '[{"at": 1, "level": "INFO", "logger": "shop", "message": "s3cr3t-log"}]'
    sql.execute(
        "insert into horsies.attempt_logs (task_id, claim_no, attempt, records, left_out) select id::uuid, 1, 1, %s, 0 from unnest(%s::text[]) as id",
        [records, ids],
    )
    return ids


@pytest.mark.parametrize(
    ("declared", "payloads"),
    [
        ("by the row", "show"),
        ("by the code", "show"),
        ("not at all", "show"),
        ("not at all", "mask"),
        ("not at all", "hide"),
    ],
)
async def test_what_is_secret_is_on_no_page_and_in_no_stream(
    database: str, sql: psycopg.Connection, app: Horsies, payloads: str, declared: str
) -> None:
    @app.task("pay", sensitive=declared == "by the code")
    def pay(card: str) -> TaskResult[str, TaskError]:
        return TaskResult(ok=card)

    ids = store_secrets(sql, "pay", is_sensitive=declared == "by the row")
    async with crawling(database, app, payloads=payloads) as crawler:
        await crawler.crawl(
            *(f"/tasks/{task}" for task in ids), "/tasks?task_name=pay", "/tasks?error_code=BROKEN", "/search?q=pay"
        )
        if declared == "by the row":
            for path in ("/tasks?message=s3cr3t", "/search?q=s3cr3t-message"):
                _, page = await crawler.read(path)
                assert not any(task in page for task in ids), "what is hidden cannot be guessed by a search"
    text = "\n".join(crawler.pages.values())
    shown = set(re.findall(r"s3cr3t-(\w+)", text))
    assert ids[0] in text
    if declared != "not at all":
        assert shown == set()
    elif payloads == "show":
        assert shown >= {"args", "result", "data", "message"}, "the test can find them"
    else:
        assert shown.isdisjoint({"args", "result", "data"})
