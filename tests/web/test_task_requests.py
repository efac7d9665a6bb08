"""The pages of tasks over HTTP: conditions, pages of lists, actions on all that match, error groups, the search, and what stays hidden."""

import asyncio
import html
import json
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx
import psycopg
import pytest

from horsies import Horsies, TaskError, TaskResult
from horsies.db.broker import PostgresBroker
from horsies.maintenance.minutes import roll_up_minutes
from horsies.tasks.inspect import TaskFilter
from horsies.web import Role, User
from horsies.web.task_pages import PAGE_SIZE, place_attempts
from tests.fixtures.everything import HOSTILE
from tests.web.conftest import Visitor

Visit = Callable[..., Awaitable[Visitor]]
SECRET = "4242-secret-4242"


def add_task(sql: psycopg.Connection, *, age_s: float = 10.0, **columns: Any) -> str:
    """Store a task that was sent that long ago. With a final status, it has ended then."""
    at = datetime.now(UTC) - timedelta(seconds=age_s)
    milliseconds = int(at.timestamp() * 1000)
    status = columns.get("status", "PENDING")
    row: dict[str, Any] = {
        "id": f"{milliseconds:012x}7{uuid4().hex[13:]}", "task_name": "charge", "queue_name": "default", "args": "{}", "sent_at": at, "enqueued_at": at,
    }  # fmt: skip
    table = "tasks"
    if status not in {"PENDING", "CLAIMED", "RUNNING"}:
        table = "finished"
        row |= {"priority": 100, "attempts": 1, "claim_no": 1, "started_at": at, "finished_at": at}
    if status == "FAILED" and "error" not in columns:
        message = columns.pop("message", "the bank does not answer")
        code = columns.setdefault("error_code", "BANK_AWAY")
        row["error"] = json.dumps({"error_code": code, "message": message, "data": columns.pop("data", None)})
    row |= columns
    query = f"insert into horsies.{table} ({', '.join(row)}) values ({', '.join(['%s'] * len(row))}) returning id::text"
    found = sql.execute(query.encode(), list(row.values())).fetchone()
    assert found is not None
    return found[0]


def status_of(sql: psycopg.Connection, task_id: str) -> str:
    found = sql.execute("select status from horsies.all_tasks where id = %s", [task_id]).fetchone()
    assert found is not None
    return found[0]


def rows_of(page: httpx.Response) -> list[str]:
    """The ids of the tasks in a list, in their order."""
    assert page.status_code == 200, page.text
    return re.findall(r'<tr data-key="([0-9a-f-]{36})">', page.text)


def hidden_fields(page: httpx.Response, action: str) -> dict[str, list[str]]:
    """The fields of the form of a page that is sent to this action."""
    form = re.search(rf'<form[^>]*action="[^"]*/actions/{action}".*?</form>', page.text, re.DOTALL)
    assert form is not None, page.text
    fields: dict[str, list[str]] = {}
    for name, value in re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', form[0]):
        fields.setdefault(name, []).append(html.unescape(value))
    return fields


async def confirm(visitor: Visitor, page: httpx.Response, action: str) -> httpx.Response:
    """Send the form of a confirmation page, as a browser without scripts does."""
    headers = {"Origin": str(visitor.client.base_url).rstrip("/")}
    return await visitor.client.post(f"/actions/{action}", data=hidden_fields(page, action), headers=headers)


def link(page: httpx.Response, text: str) -> str:
    """The address of the first link with this text."""
    found = re.search(rf'<a [^>]*href="([^"]*)"[^>]*>{re.escape(text)}</a>', page.text)
    assert found is not None, page.text
    return html.unescape(found[1])


async def first_events(visitor: Visitor, address: str, count: int) -> str:
    """Read a stream until it has sent this many events."""
    text = ""
    async with asyncio.timeout(20), visitor.client.stream("GET", address) as stream:
        assert stream.status_code == 200
        async for chunk in stream.aiter_text():
            text += chunk
            if text.count("event: ") >= count and text.endswith("\n\n"):
                break
    return text


async def reader(_request: object) -> User:
    return User("bob", Role.READ_ONLY)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, ["running", "old", "failed", "pending", "done"]),
        ({"task_name": "charge"}, ["failed", "pending"]),
        ({"queue_name": "mail"}, ["pending", "done"]),
        ({"statuses": ["PENDING", "COMPLETED"]}, ["pending", "done"]),
        ({"statuses": "pending,completed"}, ["pending", "done"]),
        ({"error_code": "BANK_AWAY"}, ["failed"]),
        ({"message": "BANK DOES"}, ["failed"]),
        ({"since": "5m"}, ["running", "failed", "pending", "done"]),
        ({"until": "5m"}, ["old"]),
        ({"worker": "0123"}, ["running"]),
        ({"key": "order-1"}, ["failed"]),
        ({"schedule_name": "nightly"}, ["done"]),
        ({"order": "running"}, ["running"]),
        ({"order": "running", "queue_name": "mail"}, []),
        ({"task_name": "", "statuses": "", "since": ""}, ["running", "old", "failed", "pending", "done"]),
    ],
)
async def test_conditions_select_tasks(
    sql: psycopg.Connection, visit: Visit, query: dict[str, Any], expected: list[str]
) -> None:
    now, worker = datetime.now(UTC), "01234567-0000-4000-8000-000000000000"
    ids = {
        "old": add_task(sql, age_s=600, task_name="report", status="CANCELLED"),
        "done": add_task(sql, age_s=40, task_name="send_mail", queue_name="mail", status="COMPLETED"),
        "pending": add_task(sql, age_s=30, queue_name="mail"),
        "failed": add_task(sql, age_s=20, status="FAILED"),
        "running": add_task(
            sql, task_name="render", status="RUNNING", claimed_by=worker, started_at=now, claimed_at=now, claim_no=1,
            lease_until=now + timedelta(hours=1),
        ),
    }  # fmt: skip
    columns = "hostname, pid, processes, concurrency, queues, library_version, task_names, signatures, app"
    sql.execute(
        f"insert into horsies.workers (id, {columns}) values (%s, 'web-1', 1, 1, 1, array['mail'], '1', array['render'], array[1], 'shop')".encode(),
        [worker],
    )
    sql.execute(
        "insert into horsies.keys (task_name, key, task_id, send_id, args_hash, key_window) values ('charge', 'order-1', %s, %s, '', '1 day')",
        [ids["failed"], str(uuid4())],
    )
    sql.execute(
        "insert into horsies.schedule_runs (schedule_name, outcome, slot_at, task_id, decided_at) values ('nightly', 'ENQUEUED', now(), %s, now())",
        [ids["done"]],
    )
    page = await (await visit()).get("/tasks", params=query)
    names = {task_id: name for name, task_id in ids.items()}
    assert {names[task_id] for task_id in rows_of(page)} == set(expected)


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("worker=xyz", "is not the id of a worker"),
        ("worker=abcd", "no id of a worker starts with abcd"),
        ("since=yesterday", "is not a time"),
        ("since=999999999w", "is too long ago"),
        ("statuses=BROKEN", "BROKEN"),
        ("after=17", "not a valid task id"),
        ("ids=17", "not a valid task id"),
    ],
)
async def test_a_condition_that_makes_no_sense_is_named(visit: Visit, query: str, problem: str) -> None:
    page = await (await visit()).get(f"/tasks?{query}")
    assert page.status_code == 400
    assert problem in html.unescape(page.text)


async def test_all_tasks_are_on_one_page_each(sql: psycopg.Connection, visit: Visit) -> None:
    ids = [add_task(sql, age_s=number) for number in range(PAGE_SIZE + 5)]
    visitor = await visit()
    first = await visitor.get("/tasks?task_name=charge")
    assert f">{PAGE_SIZE + 5}</span>" in first.text
    second = await visitor.get(link(first, "Older"))
    assert [*rows_of(first), *rows_of(second)] == ids
    assert "Older</a>" not in second.text
    assert rows_of(await visitor.get(link(second, "Newest"))) == rows_of(first)


async def test_matches_of_a_text_are_not_counted(sql: psycopg.Connection, visit: Visit) -> None:
    """Comparing the texts of thousands of errors takes too long for a page."""
    for _ in range(PAGE_SIZE + 1):
        add_task(sql, status="FAILED")
    visitor = await visit()
    page = await visitor.get("/tasks?message=bank")
    assert f">more than {PAGE_SIZE}</span>" in page.text
    assert ">not counted</span>" in (await visitor.get(link(page, "Older"))).text
    assert ">0</span>" in (await visitor.get("/tasks?message=post+office")).text


async def test_a_page_that_is_not_complete_says_so_and_continues(sql: psycopg.Connection, visit: Visit) -> None:
    wanted = add_task(sql, age_s=3_600, task_name="rare")
    sql.execute(
        "insert into horsies.tasks (task_name, queue_name, args) select 'common', 'default', '{}' from generate_series(1, 1100)"
    )
    visitor = await visit()
    page = await visitor.get("/tasks?task_name=rare")
    assert rows_of(page) == []
    assert "Nothing found so far" in page.text
    assert "Searched the tasks sent since" in page.text
    assert rows_of(await visitor.get(link(page, "Search on"))) == [wanted]


async def test_selected_tasks_are_retried_and_cancelled(sql: psycopg.Connection, visit: Visit) -> None:
    failed, live = [add_task(sql, status="FAILED") for _ in range(3)], [add_task(sql) for _ in range(3)]
    visitor = await visit()
    done = await visitor.post("/actions/retry-tasks", page="/tasks", id=failed[:2], back="/tasks?statuses=FAILED")
    assert (done.status_code, done.headers["location"]) == (303, "/tasks?statuses=FAILED")
    assert [status_of(sql, each) for each in failed] == ["PENDING", "PENDING", "FAILED"]
    await visitor.post("/actions/cancel-tasks", page="/tasks", id=live[:2])
    assert [status_of(sql, each) for each in live] == ["CANCELLED", "CANCELLED", "PENDING"]


@pytest.mark.parametrize(
    ("action", "statuses", "changed"),
    [("retry", "FAILED", "PENDING"), ("cancel", "PENDING", "CANCELLED"), ("purge", "FAILED", None)],
)
async def test_what_was_previewed_is_what_is_done(
    sql: psycopg.Connection, visit: Visit, action: str, statuses: str, changed: str | None
) -> None:
    wanted = [add_task(sql, queue_name="mail", status=statuses) for _ in range(7)]
    others = [add_task(sql, queue_name="other", status=statuses), add_task(sql, queue_name="mail", status="COMPLETED")]
    visitor = await visit()
    listed = await visitor.get(f"/tasks?queue_name=mail&since=1h&statuses={statuses}")
    address = link(listed, {"retry": "Retry…", "cancel": "Cancel…", "purge": "Delete…"}[action])
    page = await visitor.get(address)
    assert "7 tasks match" in page.text
    fields = hidden_fields(page, f"{action}-matching")
    assert (fields["statuses"], fields["queue_name"]) == ([statuses], ["mail"])
    assert datetime.fromisoformat(fields["since"][0]).tzinfo is not None, "relative times are absolute in the form"
    done = await confirm(visitor, page, f"{action}-matching")
    assert done.headers["location"].startswith("/tasks?")
    assert rows_of(await visitor.get(done.headers["location"])) == []
    left = dict(sql.execute("select id::text, status from horsies.all_tasks").fetchall())
    assert [left.get(each) for each in wanted] == [changed] * 7
    assert [left[each] for each in others] == [statuses, "COMPLETED"]


async def test_without_statuses_those_that_can_be_acted_on_are_meant(sql: psycopg.Connection, visit: Visit) -> None:
    for status in ("PENDING", "FAILED", "COMPLETED", "CANCELLED"):
        add_task(sql, status=status)
    visitor = await visit()
    expected = {"retry": ["FAILED"], "cancel": ["PENDING", "CLAIMED", "RUNNING"]}
    for action, statuses in expected.items():
        page = await visitor.get(f"/tasks/bulk?action={action}&task_name=charge")
        assert hidden_fields(page, f"{action}-matching")["statuses"] == statuses
        assert "1 task matches" in page.text
    page = await visitor.get("/tasks/bulk?action=cancel&task_name=charge&statuses=PENDING&statuses=FAILED")
    assert hidden_fields(page, "cancel-matching")["statuses"] == ["PENDING"]
    assert "failed are left alone" in page.text


@pytest.mark.parametrize(
    ("query", "status", "problem"),
    [
        ("action=cancel", 400, "choose at least one condition"),
        ("action=retry&task_name=", 400, "choose at least one condition"),
        ("action=cancel&statuses=FAILED", 400, "not for tasks that are FAILED"),
        ("action=explode&task_name=charge", 404, "no such page"),
    ],
)
async def test_actions_on_everything_or_nothing_are_refused(
    sql: psycopg.Connection, visit: Visit, query: str, status: int, problem: str
) -> None:
    add_task(sql)
    page = await (await visit()).get(f"/tasks/bulk?{query}")
    assert (page.status_code, "-matching" in page.text) == (status, False)
    assert problem in page.text


async def test_the_way_back_cannot_lead_to_another_site(sql: psycopg.Connection, visit: Visit) -> None:
    add_task(sql, status="FAILED")
    page = await (await visit()).get("/tasks/bulk?action=retry&task_name=charge&back=//evil.example/")
    assert link(page, "Back") == "/"


@pytest.mark.parametrize("message", ["order # is lost", "", 'it\'s <b>"50 %"</b> & more'])
async def test_exactly_one_error_group_is_retried(sql: psycopg.Connection, visit: Visit, message: str) -> None:
    wanted = [
        add_task(sql, age_s=20 - number, status="FAILED", message=message.replace("#", str(number)))
        for number in range(3)
    ]
    others = [
        add_task(sql, age_s=19, status="FAILED", message="another message"),
        add_task(sql, age_s=19, status="FAILED", message=message, error_code="OTHER_CODE"),
        add_task(sql, age_s=19, status="FAILED", message=message, task_name="refund"),
    ]
    visitor = await visit()
    page = await visitor.get("/errors?hours=1")
    group = next(row for row in page.text.split("<tr ") if "<strong>3</strong>" in row)
    found = re.search(r'href="([^"]*)">Retry all…', group)
    assert found is not None, group
    late = add_task(sql, age_s=0, status="FAILED", message=message.replace("#", "99"))
    preview = await visitor.get(html.unescape(found[1]))
    assert "3 tasks match" in preview.text
    done = await confirm(visitor, preview, "retry-matching")
    assert done.headers["location"] == "/errors?hours=1"
    assert "3 tasks selected; 3 RETRIED" in (await visitor.get("/errors?hours=1")).text
    assert [status_of(sql, each) for each in wanted] == ["PENDING"] * 3
    assert [status_of(sql, each) for each in (*others, late)] == ["FAILED"] * 4


async def test_an_error_group_lists_its_failures(sql: psycopg.Connection, visit: Visit) -> None:
    wanted = add_task(sql, status="FAILED", message="")
    add_task(sql, status="FAILED", message="some message")
    visitor = await visit()
    page = await visitor.get("/errors")
    rows = {row for row in page.text.split("<tr ") if "List them" in row}
    assert len(rows) == 2
    addresses = [html.unescape(re.findall(r'href="([^"]*)">List them', row)[0]) for row in rows]
    assert [wanted] in [rows_of(await visitor.get(address)) for address in addresses]


async def test_readers_see_no_buttons_and_are_refused(sql: psycopg.Connection, visit: Visit) -> None:
    live, failed = add_task(sql), add_task(sql, status="FAILED", is_sensitive=True)
    visitor = await visit(authorize=reader)
    paths = [
        "/tasks",
        "/tasks?task_name=charge",
        f"/tasks/{live}",
        f"/tasks/{failed}",
        "/tasks/bulk?action=retry&task_name=charge",
        "/errors",
    ]
    for path in paths:
        page = await visitor.get(path)
        assert page.status_code == 200
        assert "/actions/" not in page.text, path
    assert "read-only" in (await visitor.get(paths[4])).text
    for action, data in {
        "cancel-tasks": {"id": live}, "retry-tasks": {"id": failed}, "reveal-task": {"id": failed}, "purge-matching": {"task_name": "charge"},
    }.items():  # fmt: skip
        answer = await visitor.client.post(
            f"/actions/{action}", data=data, headers={"Origin": str(visitor.client.base_url).rstrip("/")}
        )
        assert answer.status_code == 403, action
    assert (status_of(sql, live), status_of(sql, failed)) == ("PENDING", "FAILED")


def add_sensitive(sql: psycopg.Connection, *, is_marked: bool = True) -> dict[str, str]:
    """Tasks in whose payload, errors, progress and log lines there is a secret; without a mark they were sent before the task was declared sensitive."""
    secret = json.dumps({"card": SECRET})
    attempt = json.dumps(
        {
            "attempt": 1, "error_code": "DECLINED", "worker": None, "started_at": None, "ended_at": datetime.now(UTC).isoformat(), "claim_no": 1,
            "error": {"error_code": "DECLINED", "message": SECRET, "data": {"exception": "E", "traceback": SECRET}},
        }
    )  # fmt: skip
    shared: dict[str, Any] = {
        "args": secret,
        "is_sensitive": True if is_marked else None,
        "progress": json.dumps({"fraction": 0.5, "message": SECRET}),
    }
    ids = {
        "failed": add_task(
            sql, **shared, status="FAILED", message=SECRET, data={"card": SECRET}, failed_attempts=[attempt]
        ),
        "completed": add_task(sql, **shared, status="COMPLETED", result=secret),
        "retrying": add_task(sql, **shared, failed_attempts=[attempt], attempts=1, claim_no=1),
    }
    records = json.dumps([{"number": 1, "at": 1.0, "level": "INFO", "logger": "shop", "message": SECRET}])
    for task_id in ids.values():
        sql.execute(
            "insert into horsies.attempt_logs (task_id, claim_no, attempt, records) values (%s, 1, 1, %s)",
            [task_id, records],
        )
    return ids


@pytest.mark.parametrize("is_marked", [True, False], ids=["by the row", "by the code"])
async def test_what_is_sensitive_is_on_no_page_and_in_no_stream(
    app: Horsies, sql: psycopg.Connection, broker: PostgresBroker, visit: Visit, *, is_marked: bool
) -> None:
    ids = add_sensitive(sql, is_marked=is_marked)
    if not is_marked:

        @app.task("charge", sensitive=True)
        def charge() -> TaskResult[None, TaskError]:
            return TaskResult(ok=None)

    visitor = await visit()
    texts = {f"/tasks/{task_id}": (await visitor.get(f"/tasks/{task_id}")).text for task_id in ids.values()}
    assert all("this task is sensitive" in text.lower() for text in texts.values())
    for path in (
        "/tasks",
        "/tasks?task_name=charge",
        f"/tasks?message={SECRET}&task_name=charge",
        "/errors",
        "/tasks/bulk?action=retry&task_name=charge",
    ):
        texts[path] = (await visitor.get(path)).text.replace(f'value="{SECRET}"', "").replace(f"message={SECRET}", "")
    for task_id in ids.values():
        texts[f"stream {task_id}"] = await first_events(visitor, f"/live/task?id={task_id}", 3)
    texts["stream of rows"] = await first_events(visitor, f"/live/tasks?rows={','.join(ids.values())}", 2)
    texts["stream of errors"] = await first_events(visitor, "/live/errors", 1)
    assert [path for path, text in texts.items() if SECRET in text] == []
    assert rows_of(await visitor.get(f"/tasks?message={SECRET}")) == [], "a search would tell what is in a message"
    searched = TaskFilter(message=SECRET[:4])
    assert (app.ops.count_tasks(searched), app.ops.preview_count(searched).count) == (0, 0)
    assert app.ops.retry_matching(searched).run().selected == 0
    for is_rolled_up in (False, True):
        if is_rolled_up:
            sql.execute("update horsies.finished set finished_at = finished_at - interval '5 minutes'")
            broker.run(roll_up_minutes)
        (group,) = app.ops.error_groups()
        assert (group.message, group.count) == ("", 1)
        assert [task.id for task in app.ops.list_tasks(group.to_filter()).tasks] == [ids["failed"]]


async def test_revealing_is_for_operators_and_is_recorded(app: Horsies, sql: psycopg.Connection, visit: Visit) -> None:
    ids = add_sensitive(sql)
    visitor = await visit()
    page = await visitor.post("/actions/reveal-task", id=ids["failed"])
    assert page.status_code == 200
    assert page.text.count(SECRET) >= 4, "arguments, message, data, traceback"
    assert "data-stream" not in page.text, "live fragments would hide it again"
    assert page.headers["cache-control"] == "no-store"
    assert {(each.action, each.target) for each in app.ops.list_audit(limit=5)} == {
        ("reveal task", ids["failed"]), ("reveal logs of task", ids["failed"]),
    }  # fmt: skip
    assert SECRET not in (await visitor.get(f"/tasks/{ids['failed']}")).text


@pytest.mark.parametrize(("payloads", "shown"), [("mask", ["card"]), ("hide", [])])
async def test_payloads_follow_the_option_of_the_dashboard(
    sql: psycopg.Connection, visit: Visit, payloads: str, shown: list[str]
) -> None:
    task_id = add_task(sql, args=json.dumps({"card": SECRET}), status="COMPLETED", result=json.dumps({"card": SECRET}))
    failed = add_task(sql, args=json.dumps({"card": SECRET}), status="FAILED", data={"card": SECRET})
    visitor = await visit(payloads=payloads)
    for text in (
        (await visitor.get(f"/tasks/{task_id}")).text,
        (await visitor.get(f"/tasks/{failed}")).text,
        await first_events(visitor, f"/live/task?id={task_id}", 3),
    ):
        assert SECRET not in text
        assert ("&#34;card&#34;" in text) is bool(shown)


async def test_a_task_page_names_what_belongs_to_it(sql: psycopg.Connection, visit: Visit) -> None:
    trace = "0123456789abcdef0123456789abcdef"
    task_id = add_task(
        sql, status="FAILED", data={"exception": "ValueError", "traceback": 'File "shop.py", line 7\n'},
        trace=json.dumps({"traceparent": f"00-{trace}-0123456789abcdef-01"}), args=json.dumps({"order": [1, 2]}),
    )  # fmt: skip
    sql.execute(
        "insert into horsies.schedule_runs (schedule_name, outcome, slot_at, task_id, decided_at) values ('night/ly', 'ENQUEUED', now(), %s, now())",
        [task_id],
    )
    records = json.dumps(
        [
            {"number": number, "at": 1.0, "level": "INFO", "logger": "shop", "message": f"line {number}"}
            for number in (1, 2, 9)
        ]
    )
    sql.execute(
        "insert into horsies.attempt_logs (task_id, claim_no, attempt, records, left_out) values (%s, 1, 1, %s, 6)",
        [task_id, records],
    )
    page = await (await visit(trace_url="https://jaeger.example/trace/{trace_id}?tab=spans")).get(f"/tasks/{task_id}")
    text = html.unescape(page.text)
    for expected in (
        f'href="https://jaeger.example/trace/{trace}?tab=spans"',
        "night/ly",
        'File "shop.py", line 7',
        '"order": [',
        "line 9",
        "6 lines were left out here",
        "BANK_AWAY",
    ):
        assert expected in text, expected


async def test_a_task_that_does_not_exist_is_explained(visit: Visit) -> None:
    visitor = await visit()
    missing = await visitor.get(f"/tasks/{uuid4()}")
    assert missing.status_code == 404
    assert "never sent" in missing.text
    assert (await visitor.get("/tasks/nothing")).status_code == 404
    assert "event: gone" in await first_events(visitor, f"/live/task?id={uuid4()}", 1)


async def test_the_search_goes_to_the_only_thing_that_it_finds(sql: psycopg.Connection, visit: Visit) -> None:
    first, second = (
        add_task(sql, age_s=7_200),
        add_task(sql, task_name="recharge", queue_name="mails"),
    )
    sql.execute("insert into horsies.queues (name, paused_at) values ('a/b', now()), ('charge', now())")
    visitor = await visit()

    async def target(text: str) -> str | None:
        return (await visitor.get("/search", params={"q": text})).headers.get("location")

    assert await target(first) == f"/tasks/{first}"
    assert await target(first.upper()) == f"/tasks/{first}"
    assert await target(second[:-2]) == f"/tasks/{second}"
    assert await target(" a/b ") == "/queues/a%252Fb"
    assert await target("mails") == "/queues/mails"
    several = await visitor.get("/search?q=charge")
    assert several.status_code == 200, "a queue and a task have this name"
    assert all(kind in several.text for kind in ("/queues/charge", "/tasks?task_name=charge"))
    assert "Nothing has this id or name" in (await visitor.get("/search?q=nothing-at-all")).text
    for text in HOSTILE.values():
        page = await visitor.get("/search", params={"q": text[:300]})
        assert page.status_code == 200
        assert "<script>window" not in page.text


async def test_rows_are_read_again_in_their_order(sql: psycopg.Connection, visit: Visit) -> None:
    one, two, three = (add_task(sql, age_s=age) for age in (30, 20, 10))
    visitor = await visit()
    sql.execute("delete from horsies.tasks where id = %s", [two])
    new = add_task(sql, age_s=0)
    stream = await first_events(visitor, f"/live/tasks?rows={one},{two},{three}&first=1&task_name=charge", 2)
    assert re.findall(r'<tr data-key="([0-9a-f-]{36})">', stream) == [one, two, three]
    assert new not in stream
    assert "1 new task, show" in stream
    assert stream.count("deleted") == 1


def test_attempts_without_times_have_no_bar() -> None:
    assert place_attempts([], datetime.now(UTC)) == []
