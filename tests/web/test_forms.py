"""Attacks with forms: by users who may only read, with hostile values in every field, on databases that refuse, and what the audit says of all of them."""

import asyncio
import html
import logging
import re
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, cast
from uuid import uuid4

import httpx
import psycopg
import pytest
from starlette.requests import Request

from horsies import AppConfig, Horsies, IntervalSchedule, TaskError, TaskResult, TaskSchedule
from horsies.tasks.inspect import TaskFilter
from horsies.web import Role, User, actions, dashboard
from horsies.web.actions import ACTIONS, MAX_IDS, Jobs
from horsies.web.security import Credential, new_token
from tests.fixtures.eventually import wait_until_blocked
from tests.fixtures.everything import HOSTILE
from tests.fixtures.roles import PlainUser
from tests.web.conftest import Visitor, serving

ALL = [action.name for action in (*ACTIONS, *Jobs(lambda: None).actions)]
FILTER_FIELDS = [field.name for field in fields(TaskFilter)]
FIELDS: dict[str, Sequence[str]] = {
    "cancel-tasks": ["id"],
    "retry-tasks": ["id", "force"],
    "pause-queue": ["name"],
    "resume-queue": ["name"],
    "set-queue-cap": ["name", "cap"],
    "leave-worker": ["id"],
    "ping-worker": ["id"],
    "pause-workflow": ["id"],
    "resume-workflow": ["id"],
    "cancel-workflow": ["id"],
    "retry-workflow": ["id"],
    "pause-schedule": ["name"],
    "resume-schedule": ["name"],
    "run-schedule": ["name"],
    "remove-schedule": ["name"],
    "cancel-matching": FILTER_FIELDS,
    "retry-matching": [*FILTER_FIELDS, "force"],
    "purge-matching": FILTER_FIELDS,
    "purge-queue": ["name"],
    "stop-job": ["id"],
}


def test_all_actions_are_attacked() -> None:
    assert FIELDS.keys() == set(ALL)


def by_header(request: Request) -> User:
    role = Role(request.headers.get("x-role", "operator"))
    return User(request.headers.get("x-name", "alice"), role)


@pytest.fixture
def shop(app: Horsies) -> Horsies:
    @app.task("greet")
    def greet(name: str) -> TaskResult[str, TaskError]:
        return TaskResult(ok=name)

    return app


async def message_of(visitor: Visitor) -> tuple[str, str]:
    """What the last action has said, as the next page shows it: its kind, and its text."""
    page = await visitor.get("/")
    found = re.search(r'<p (?:id="flash" )?class="banner (\w+)" role="status">([^<]*)</p>', page.text)
    assert found, page.text
    return found[1], html.unescape(found[2])


# -- who may not


@pytest.mark.parametrize("name", ALL)
async def test_a_user_who_may_only_read_changes_nothing(shop: Horsies, visit: Any, name: str) -> None:
    visitor = await visit(authorize=by_header)
    visitor.client.headers["X-Role"] = "read-only"
    await visitor.get("/")
    visitor.client.headers["X-Role"] = "operator"
    page = await visitor.get("/")
    operators = re.findall(r'name="csrf" value="([^"]+)"', page.text)[0]
    visitor.client.headers["X-Role"] = "read-only"
    form = dict.fromkeys(FIELDS[name], "mail")
    for token in (operators, "", "x"):  # the first one is valid: it was made while the user was an operator
        answer = await visitor.post(f"/actions/{name}", token=token, **form)
        assert answer.status_code == 403
        assert ("read-only, so" in answer.text) is (token == operators)
    for method in ("GET", "HEAD"):
        answer = await visitor.client.request(method, f"/actions/{name}", params={"csrf": operators, **form})
        assert answer.status_code == 404
    visitor.client.headers["X-Role"] = "operator"
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        assert (await visitor.client.request(method, f"/actions/{name}")).status_code == 405
    for token in ("", "x"):
        assert (await visitor.post(f"/actions/{name}", token=token, **form)).status_code == 403
    query = await visitor.client.post(f"/actions/{name}", params={"csrf": operators, **form}, data={"x": "1"})
    assert query.status_code == 403, "a token in the URL is none"
    assert shop.ops.list_audit() == []


async def test_a_user_who_may_only_read_has_no_token_for_actions(visit: Any) -> None:
    """The page shows no button, and the role is checked before the token has a meaning."""
    visitor = await visit(authorize=by_header)
    page = await visitor.get("/", headers={"X-Role": "read-only"})
    assert page.status_code == 200
    assert "/actions/" not in page.text
    assert "csrf" not in page.text


# -- hostile values


VALUES = [
    *HOSTILE.values(), "", " ", "0", "-1", "1", "9" * 40, "1e400", "NaN", "Infinity", "0x10", "١٢", "true", "null", "None", "%", "_", "%%%s%(id)s", "\\", "'",
    '"', "';--", "{schema}", "${x}", "\udcff".encode(errors="replace").decode(), "a\x01b", "\x7f", "\u2028", "é" * 2_000, "x" * 100_000, "../../etc/passwd",
    "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "0001-01-01", "9999-12-31T23:59:59.999999", "2026-01-01", "2026-02-30", "24:00", "now", "-infinity",
    "2026-W01-1", "2026-01-01T00:00:00+23:59:59", "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff", "PENDING", "FAILED", "pending",
    "{00000000-0000-0000-0000-000000000000}", "urn:uuid:00000000-0000-0000-0000-000000000000", "[]", "[[", "(", "(?", "*", "a" * 64,
]  # fmt: skip


ATTACKS = [  # one test for each field of the action that gets each value in each field: together they take a minute
    (name, names) for name in ALL for names in ([[each] for each in FIELDS[name]] if name == "retry-matching" else [FIELDS[name]])
]  # fmt: skip


@pytest.mark.parametrize(("name", "names"), ATTACKS, ids=[f"{name}-{names[0]}" for name, names in ATTACKS])
async def test_hostile_values_are_refused_or_do_nothing(
    shop: Horsies, visit: Any, caplog: pytest.LogCaptureFixture, name: str, names: Sequence[str]
) -> None:
    visitor = await visit()
    token = await visitor.token()
    values = VALUES[::7] if name in {"cancel-matching", "purge-matching"} else VALUES  # as retry-matching
    for field in names:
        for value in values:
            form: dict[str, Any] = {"name": "mail"} if field == "cap" else {}
            answer = await visitor.post(f"/actions/{name}", token=token, **{**form, field: value})
            assert answer.status_code in {303, 400}, (field, value[:50], answer.text)
            assert answer.headers.get("location", "/").startswith("/")
            assert "\n" not in answer.headers.get("location", "")
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert errors == []
    assert all("\n" not in record.getMessage() for record in caplog.records if record.name == "horsies.web")


@pytest.mark.parametrize("name", ALL)
async def test_fields_that_are_missing_doubled_or_unknown_are_refused(shop: Horsies, visit: Any, name: str) -> None:
    visitor = await visit()
    token = await visitor.token()
    has_filter = name.endswith("-matching")
    forms: list[dict[str, Any]] = [
        {"name": ["a", "b"], "id": [str(uuid4()), "x"], "statuses": ["FAILED", "x"]},
        {"x": "1", "__class__": "y"},
    ]
    forms += (
        [{}]
        if not has_filter
        else [{"error_code": ["A", "B"]}, {"task_name": "x", "task_nam": "y"}, {"statuses": "ALL"}, {"ids": [""] * 3}]
    )
    for form in forms:
        answer = await visitor.post(f"/actions/{name}", token=token, **form)
        assert answer.status_code == 303
        kind, _ = await message_of(visitor)
        assert kind == "error", form
    assert [entry for entry in shop.ops.list_audit() if entry.count != 0] == []


async def test_wildcards_and_patterns_in_conditions_are_only_text(shop: Horsies, visit: Any) -> None:
    greet: Any = shop.tasks["greet"]
    await greet.send_many_async([greet.call("a") for _ in range(3)])
    visitor = await visit()
    for field in (
        "task_name",
        "queue_name",
        "error_code",
        "message",
        "error_summary",
        "worker",
        "key",
        "schedule_name",
    ):
        for value in ("%", "_", "gree_", "g%", ".*", "greet' or true --", "*"):
            await visitor.post("/actions/cancel-matching", **{field: value})
            _, text = await message_of(visitor)
            assert text in {"Cancel tasks: no task matches", f"{value!r} is not an id"}, (field, value)
    await visitor.post("/actions/cancel-matching", task_name="greet")
    assert await message_of(visitor) == ("success", "Cancel tasks: 3 tasks selected; 3 CANCELLED")


async def test_an_action_never_selects_more_than_its_form_says(shop: Horsies, visit: Any) -> None:
    greet: Any = shop.tasks["greet"]
    task_id = (await greet.send_async("a")).task_id
    visitor = await visit()
    token = await visitor.token()
    for form in ({"task_nam": "other"}, {"since": "tomorrow"}, {"since": "2026-02-30"}, {"statuses": "LIVE"}, {"ids": ""}, {"statuses": ["PENDING", "x"]},
                 {"since": "2026-02-02", "until": "2026-02-01"}, {"since": "9999-12-31"}, {"ids": "x"}, {"workflow_id": "x"}, {"statuses": "COMPLETED"}):  # fmt: skip
        await visitor.post("/actions/cancel-matching", token=token, **form)
        kind, text = await message_of(visitor)
        assert kind == "error" or "no task matches" in text, form
    assert await shop.ops.get_statuses_async([task_id]) == {task_id: "PENDING"}
    too_many = [str(uuid4()) for _ in range(MAX_IDS + 1)]
    await visitor.post("/actions/cancel-tasks", token=token, id=too_many)
    assert (await message_of(visitor))[0] == "error"


# -- the audit


def insert_worker(sql: psycopg.Connection) -> str:
    found = sql.execute(
        "insert into horsies.workers (id, hostname, pid, processes, concurrency, queues, library_version) "
        "values (gen_random_uuid(), 'host', 1, 1, 1, '{default}', '1') returning id::text"
    ).fetchone()
    assert found
    return str(found[0])


async def test_each_action_leaves_one_row(shop: Horsies, visit: Any, sql: psycopg.Connection) -> None:
    greet: Any = shop.tasks["greet"]
    first, second, other = [(await greet.send_async(name)).task_id for name in "abc"]
    flow = (await shop.workflow("flow", [node := greet.node()("x")], output=node).start_async()).workflow_id
    shop.ops.acting_as("setup").create_schedule(
        TaskSchedule(name="daily", task_name="greet", pattern=IntervalSchedule(hours=6), kwargs={"name": "x"})
    )
    worker, missing = insert_worker(sql), str(uuid4())
    steps: list[tuple[str, dict[str, Any], tuple[str, str, int] | None]] = [
        ("cancel-tasks", {"id": [first, second, missing]}, ("cancel tasks", f"{first}, {second}, {missing}", 2)),
        ("cancel-tasks", {"id": first}, ("cancel tasks", first, 0)),
        ("retry-tasks", {"id": [first, second]}, ("retry tasks", f"{first}, {second}", 2)),
        ("retry-tasks", {"id": "x"}, None),
        ("pause-queue", {"name": "mail"}, ("pause queue", "mail", 1)),
        ("resume-queue", {"name": "mail"}, ("resume queue", "mail", 1)),
        ("set-queue-cap", {"name": "mail", "cap": "3"}, ("set cap of queue to 3", "mail", 1)),
        ("set-queue-cap", {"name": "mail", "cap": "0"}, None),
        ("set-queue-cap", {"name": "mail", "cap": "9" * 10}, None),
        ("set-queue-cap", {"name": "mail", "cap": ""}, ("reset cap of queue", "mail", 1)),
        ("leave-worker", {"id": worker}, ("ask workers to leave", worker, 1)),
        ("leave-worker", {"id": missing}, ("ask workers to leave", missing, 0)),
        ("ping-worker", {"id": worker}, ("ping workers", worker, 1)),
        ("pause-workflow", {"id": flow}, ("pause workflow", flow, 1)),
        ("pause-workflow", {"id": flow}, ("pause workflow", flow, 0)),
        ("resume-workflow", {"id": flow}, ("resume workflow", flow, 1)),
        ("cancel-workflow", {"id": flow}, ("cancel workflow", flow, 1)),
        ("retry-workflow", {"id": flow}, ("retry workflow", flow, 1)),
        *((f"{verb}-workflow", {"id": missing}, (f"{verb} workflow", missing, 0)) for verb in ("pause", "resume", "cancel", "retry")),
        ("pause-schedule", {"name": "daily"}, ("pause schedule", "daily", 1)),
        ("resume-schedule", {"name": "daily"}, ("resume schedule", "daily", 1)),
        ("run-schedule", {"name": "daily"}, ("run schedule", "daily", 1)),
        ("remove-schedule", {"name": "daily"}, ("remove schedule", "daily", 1)),
        *((f"{verb}-schedule", {"name": "none"}, (f"{verb} schedule", "none", 0)) for verb in ("pause", "resume", "run", "remove")),
        ("cancel-matching", {"ids": [first, missing]}, ("cancel tasks", f"ids=['{first}', '{missing}']", 1)),
        ("retry-matching", {"ids": first, "statuses": "CANCELLED"}, ("retry tasks", f"CANCELLED, ids=['{first}']", 1)),
        ("cancel-matching", {"task_name": "none"}, ("cancel tasks", "task_name=none", 0)),
        ("purge-queue", {"name": "default"}, ("purge queue", "queue_name=default", 5)),
        ("purge-matching", {"ids": [other]}, ("purge tasks", f"ids=['{other}']", 1)),
        ("stop-job", {"id": missing}, None),
    ]  # fmt: skip
    assert {name for name, _, _ in steps} == set(ALL)
    visitor = await visit(authorize=by_header)
    token = await visitor.token()
    before = len(shop.ops.list_audit())
    for name, form, expected in steps:
        await visitor.post(f"/actions/{name}", token=token, **form)
        rows = shop.ops.list_audit(limit=100)
        new = [(entry.actor, entry.action, entry.target, entry.count) for entry in rows[: len(rows) - before]]
        assert new == ([] if expected is None else [("alice", *expected)]), (name, form, await message_of(visitor))
        before = len(rows)


async def test_an_action_that_fails_half_way_is_in_the_audit_with_what_it_has_done(
    shop: Horsies, visit: Any, sql: psycopg.Connection
) -> None:
    greet: Any = shop.tasks["greet"]
    poison = (await greet.send_async("poison")).task_id
    await greet.send_many_async([greet.call("x") for _ in range(1_200)])
    sql.execute(
        "create function refuse() returns trigger language plpgsql as $$ begin raise exception 'no: %', old.args; end $$"
    )
    sql.execute(
        f"create trigger refuse before delete on horsies.tasks for each row when (old.id = '{poison}') execute function refuse()".encode()
    )
    visitor = await visit(authorize=by_header)
    answer = await visitor.post("/actions/cancel-matching", task_name="greet")
    assert answer.status_code == 303
    kind, text = await message_of(visitor)
    assert kind == "error"
    assert "1,000 CANCELLED" in text
    assert [(entry.actor, entry.action, entry.count) for entry in shop.ops.list_audit()] == [
        ("alice", "cancel tasks", 1_000)
    ]


async def test_a_script_learns_where_the_progress_of_its_action_is(
    shop: Horsies, visit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "WAIT_FOR_JOB_S", 0.0)
    await cast("Any", shop.tasks["greet"]).send_async("x")
    token, hashed = new_token()
    visitor = await visit(credentials=[Credential(User("deploy", Role.OPERATOR), hashed)])
    headers = {"Authorization": f"Bearer {token}"}
    form = {"task_name": "greet"}
    answer = (await visitor.client.post("/actions/cancel-matching", data=form, headers=headers)).json()
    assert answer["to"].startswith("/jobs/")
    assert "Cancel tasks" in (await visitor.get(answer["to"], headers=headers)).text


async def test_who_stopped_an_action_on_many_tasks_is_in_the_audit(
    shop: Horsies, visit: Any, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "WAIT_FOR_JOB_S", 0.0)
    greet: Any = shop.tasks["greet"]
    await greet.send_many_async([greet.call("x") for _ in range(1_200)])
    visitor = await visit(authorize=by_header)
    token = await visitor.token()
    with psycopg.connect(database) as holder, psycopg.connect(database, autocommit=True) as watch:
        holder.execute("select from horsies.tasks for update")
        answer = await visitor.post("/actions/cancel-matching", token=token, task_name="greet")
        await asyncio.to_thread(wait_until_blocked, watch)
        job = answer.headers["location"].removeprefix("/jobs/")
        assert 'href="/jobs"' in (await visitor.get("/audit")).text
        listed = (await visitor.get("/jobs")).text
        assert f'href="/jobs/{job}"' in listed
        assert "task_name=greet" in listed
        assert "Runs" in listed
        await visitor.post("/actions/stop-job", token=token, id=job)
    page = ""
    async with asyncio.timeout(30):
        while "stopped" not in page:
            page = (await visitor.get(f"/jobs/{job}")).text
    assert [(entry.actor, entry.action, entry.target, entry.count) for entry in shop.ops.list_audit()] == [
        ("alice", "stop: cancel tasks", "task_name=greet", 1),
        ("alice", "cancel tasks", "task_name=greet", 1_000),
    ]


# -- databases that refuse


async def test_with_a_role_that_may_only_read_pages_are_shown_and_actions_say_what_is_missing(
    database: str, sql: psycopg.Connection, plain_user: PlainUser, visit: Any
) -> None:
    name = plain_user.name
    sql.execute(
        f"grant usage on schema horsies to {name}; grant select on all tables in schema horsies to {name}".encode()
    )
    app, worker = Horsies(AppConfig.for_database_url(plain_user.url(database))), insert_worker(sql)
    async with (
        serving(dashboard(app, authorize=by_header)) as address,
        httpx.AsyncClient(base_url=address, timeout=30) as client,
    ):
        visitor = Visitor(client)
        token = await visitor.token()
        for action in ALL:
            form = {field: worker if field == "id" else "x" for field in FIELDS[action] if field in {"id", "name"}}
            answer = await visitor.post(f"/actions/{action}", token=token, **form)
            assert answer.status_code == 303, action
            kind, text = await message_of(visitor)
            if action != "stop-job":  # no such job runs
                assert kind == "error"
                assert "permission denied" in text, (action, text)
                assert plain_user.password not in text
    await app.broker.close_async()


async def test_an_outage_is_said_and_is_over_when_it_is_over(database: str, proxy: Any, visit: Any) -> None:
    app = Horsies(AppConfig.for_database_url(proxy.url))
    async with (
        serving(dashboard(app, authorize=by_header)) as address,
        httpx.AsyncClient(base_url=address, timeout=30) as client,
    ):
        visitor = Visitor(client)
        token = await visitor.token()
        proxy.cut()
        page = await visitor.get("/")
        action = await visitor.post("/actions/pause-queue", token=token, name="mail")
        assert page.status_code == action.status_code == 503
        assert "cannot be read" in page.text
        proxy.heal()
        assert (await visitor.get("/")).status_code == 200
        assert (await visitor.post("/actions/pause-queue", token=token, name="mail")).status_code == 303
        assert [entry.count for entry in app.ops.list_audit()] == [1]
    await app.broker.close_async()
