"""A task's `send` and its handle, as users call them. The tests do the worker's part."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type
from uuid import UUID

import psycopg
import pytest

from horsies import (
    AppConfig,
    BlockingCallError,
    Horsies,
    PayloadError,
    RetrievalCode,
    SendSuppressed,
    TaskError,
    TaskHandle,
    TaskResult,
    TaskStatus,
)
from horsies.db.broker import PostgresBroker
from horsies.model.codec import encode_error
from horsies.tasks.finish import finish_tasks, notify_done
from horsies.tasks.ids import new_task_id
from horsies.tasks.sender import suppress_sends
from tests.fixtures.journey import ME, claim, completed, do, failed, row


def answer(broker: PostgresBroker, result: str) -> None:
    claims = claim(broker)
    do(
        broker,
        finish_tasks(ME, [completed(held, result) for held in claims]),
        notify_done([held.id for held in claims]),
    )


def test_handles_of_one_task_are_equal(basic: Any) -> None:
    task_id, other = new_task_id(), new_task_id()
    handle, app = basic.app.handle(task_id), basic.app
    assert handle == app.handle(task_id, basic.add)
    assert {handle, app.handle(UUID(task_id))} == {handle}
    assert handle != app.handle(other)
    assert handle != task_id
    assert app.workflow_handle(task_id) == app.workflow_handle(UUID(task_id))
    assert {app.workflow_handle(task_id), app.workflow_handle(other)} == {*map(app.workflow_handle, [task_id, other])}
    assert app.workflow_handle(task_id) != handle


@pytest.mark.promise("A3")
def test_a_send_commits_a_row_and_returns_its_handle(basic: Any, sql: psycopg.Connection) -> None:
    handle = basic.add.send(1, right=2)
    assert row(sql, "select id::text, task_name, queue_name, args::text, status from horsies.tasks") == (
        handle.task_id,
        "add",
        "default",
        '{"left":1,"right":2}',
        "PENDING",
    )
    assert repr(handle) == f"TaskHandle('{handle.task_id}')"


@pytest.mark.promise("A3")
async def test_an_async_send_commits_a_row_and_returns_its_handle(basic: Any, sql: psycopg.Connection) -> None:
    handle = await basic.echo_async.send_async("x")
    assert row(sql, "select id::text, task_name from horsies.tasks") == (handle.task_id, "echo_async")
    await basic.app.close_async()


@pytest.mark.promise("A3")
def test_invalid_arguments_are_refused_in_the_producer(basic: Any, sql: psycopg.Connection) -> None:
    with pytest.raises(PayloadError, match="right"):
        basic.add.send(1, "two")
    assert row(sql, "select count(*) from horsies.tasks") == (0,)


@pytest.mark.promise("A4")
def test_a_result_is_decoded_and_kept_on_the_handle(
    basic: Any, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    handle = basic.add.send(1, 2)
    answer(broker, "3")
    assert handle.get() == TaskResult(ok=3)
    sql.execute("truncate horsies.finished")
    assert handle.get() is handle.get(), "not read again"


@pytest.mark.promise("A4")
async def test_an_async_get_decodes_the_result_and_keeps_it_on_the_handle(basic: Any, broker: PostgresBroker) -> None:
    handle = await basic.add.send_async(1, 2)
    waiting = asyncio.ensure_future(handle.get_async(10_000))
    await asyncio.to_thread(answer, broker, "3")
    assert (await waiting).unwrap() == 3
    assert await handle.get_async() == TaskResult(ok=3)
    assert handle.get() == TaskResult(ok=3), "kept, so nothing blocks"
    await basic.app.close_async()


def test_an_error_keeps_all_its_fields(basic: Any, broker: PostgresBroker) -> None:
    error = TaskError(error_code="CARD_DECLINED", message="no", data={"limit": [1, None]})
    handle = basic.add.send(1, 2)
    (held,) = claim(broker)
    do(broker, finish_tasks(ME, [failed(held, "CARD_DECLINED", encode_error(error))]))
    assert handle.get() == TaskResult(err=error)


def test_a_wait_timeout_is_a_value_and_the_wait_can_be_repeated(basic: Any, broker: PostgresBroker) -> None:
    handle = basic.add.send(1, 2)
    assert handle.get(timeout_ms=50).unwrap_err().error_code == RetrievalCode.WAIT_TIMEOUT
    answer(broker, "3")
    assert handle.get(timeout_ms=50) == TaskResult(ok=3)


def test_an_unknown_task_is_a_value_too(basic: Any, sql: psycopg.Connection) -> None:
    handle = basic.add.send(1, 2)
    sql.execute("truncate horsies.tasks")
    assert handle.get(timeout_ms=50).unwrap_err().error_code == RetrievalCode.TASK_NOT_FOUND


async def test_a_blocking_get_inside_an_event_loop_is_refused(basic: Any) -> None:
    handle = await basic.add.send_async(1, 2)
    with pytest.raises(BlockingCallError, match=r"use `await handle\.get_async"):
        handle.get(10)
    await basic.app.close_async()


async def test_a_blocking_send_inside_an_event_loop_works_and_warns(basic: Any, sql: psycopg.Connection) -> None:
    with pytest.warns(UserWarning, match="use `await task.send_async") as caught:
        basic.add.send(1, 2)
    assert caught[0].filename == __file__
    assert row(sql, "select count(*) from horsies.tasks") == (1,)


@pytest.mark.promise("W3")
def test_a_suppressed_send_enqueues_nothing_and_returns_an_inert_handle(basic: Any, sql: psycopg.Connection) -> None:
    with suppress_sends():
        handle = basic.add.send(1, 2)
    assert row(sql, "select count(*) from horsies.tasks") == (0,)
    with pytest.raises(SendSuppressed, match="move the send out of the module's top level"):
        handle.get()


@pytest.mark.promise("W3")
async def test_a_suppressed_async_send_enqueues_nothing_and_returns_an_inert_handle(
    basic: Any, sql: psycopg.Connection
) -> None:
    with suppress_sends():
        handle = await basic.add.send_async(1, 2)
    assert row(sql, "select count(*) from horsies.tasks") == (0,)
    with pytest.raises(SendSuppressed):
        await handle.get_async()


def test_calling_a_task_runs_it_in_place(basic: Any) -> None:
    assert basic.add(1, 2) == TaskResult(ok=3)
    assert asyncio.run(basic.nap(0.0)) == TaskResult(ok=0.0)


@pytest.mark.parametrize("timeout_ms", [-1, float("nan"), "5"])
def test_an_invalid_timeout_is_refused(basic: Any, timeout_ms: Any) -> None:
    handle = basic.add.send(1, 2)
    with pytest.raises(ValueError, match="timeout_ms is"):
        handle.get(timeout_ms)


# -- from a stored id


def test_a_handle_can_be_made_from_a_stored_id(basic: Any, broker: PostgresBroker) -> None:
    stored = basic.add.send(1, 2).task_id
    answer(broker, "3")
    assert basic.app.handle(stored, basic.add).get() == TaskResult(ok=3)
    assert basic.app.handle(stored.upper()).get() == TaskResult(ok=3)
    assert basic.app.handle(UUID(stored)).task_id == stored


def test_a_handle_without_its_task_returns_json(basic: Any, broker: PostgresBroker) -> None:
    stored = basic.echo.send({"a": 1}).task_id
    answer(broker, '{"at": "2026-01-01T00:00:00Z", "n": [1, null]}')
    assert basic.app.handle(stored).get().unwrap() == {"at": "2026-01-01T00:00:00Z", "n": [1, None]}


def test_a_handle_from_an_id_decodes_by_the_type_of_its_task(database: str, broker: PostgresBroker) -> None:
    app = Horsies(AppConfig.for_database_url(database))

    @app.task("measure")
    def measure(text: str) -> TaskResult[timedelta, TaskError]: ...

    stored = measure.send("a mile").task_id
    answer(broker, '"PT5S"')
    typed, untyped = app.handle(stored, measure), app.handle(stored)
    assert_type(typed, TaskHandle[timedelta])
    assert_type(untyped, TaskHandle[Any])
    assert typed.get() == TaskResult(ok=timedelta(seconds=5))
    assert untyped.get() == TaskResult(ok="PT5S")
    app.close()


@pytest.mark.parametrize("task_id", ["", "17", "d48151dd-5865-42cb-8499", "'; drop schema horsies"])
def test_a_value_that_is_not_an_id_is_refused(basic: Any, task_id: str) -> None:
    with pytest.raises(ValueError, match=r"is not a valid task id; pass the value of `handle\.task_id`"):
        basic.app.handle(task_id)


def test_a_name_is_refused_in_place_of_a_task(basic: Any) -> None:
    with pytest.raises(TypeError, match=r"app\.tasks\['add'\]"):
        basic.app.handle(new_task_id(), "add")


# -- status and info


def test_an_unknown_id_has_no_status(basic: Any) -> None:
    handle = basic.app.handle(new_task_id())
    assert (handle.status(), handle.info()) == (None, None)


async def test_status_follows_the_task(basic: Any, broker: PostgresBroker) -> None:
    handle = await basic.add.send_async(1, 2)
    assert await handle.status_async() is TaskStatus.PENDING
    claims = await asyncio.to_thread(claim, broker)
    assert await handle.status_async() is TaskStatus.RUNNING
    await asyncio.to_thread(do, broker, finish_tasks(ME, [completed(held, "3") for held in claims]))
    assert await handle.status_async() is TaskStatus.COMPLETED
    await basic.app.close_async()


def test_a_task_past_its_good_until_is_shown_as_expired(basic: Any, sql: psycopg.Connection) -> None:
    handle = basic.add.send(1, 2)
    sql.execute("update horsies.tasks set good_until = now()")
    assert handle.status() is TaskStatus.EXPIRED
    assert handle.info().status is TaskStatus.EXPIRED
    assert handle.get().unwrap_err().error_code == "TASK_EXPIRED"


def test_info_has_all_fields(basic: Any, broker: PostgresBroker, sql: psycopg.Connection) -> None:
    handle = basic.add.send(1, 2)
    good_until = datetime(2100, 1, 1, tzinfo=UTC)
    sql.execute(
        "update horsies.tasks set good_until = %s, timeout_ms = 500, progress = '{\"fraction\": 0.5}', attempts = 1, "
        "failed_attempts = array[json_build_object('attempt', 1, 'error_code', 'BUSY', 'worker', null, 'started_at', null, "
        "'error', json_build_object('error_code', 'BUSY', 'message', 'later', 'data', 7), 'ended_at', now())]",
        [good_until],
    )
    (held,) = claim(broker)
    error = TaskError(error_code="BROKEN", message="it broke", data=[1])
    do(broker, finish_tasks(ME, [failed(held, "BROKEN", encode_error(error))]))
    info = handle.info()
    assert (info.id, info.task_name, info.queue_name, info.priority) == (handle.task_id, "add", "default", 100)
    assert (info.status, info.attempts, info.worker) == (TaskStatus.FAILED, 2, ME)
    assert (info.error_code, info.error, info.progress) == ("BROKEN", error, {"fraction": 0.5})
    assert (info.good_until, info.timeout_ms) == (good_until, 500)
    assert info.sent_at <= info.claimed_at <= info.finished_at
    assert info.started_at is not None
    (past,) = info.failed_attempts
    assert (past.attempt, past.error_code, past.worker, past.started_at) == (1, "BUSY", None, None)
    assert past.error == TaskError(error_code="BUSY", message="later", data=7)
    assert past.ended_at > datetime.now(UTC) - timedelta(minutes=1)
