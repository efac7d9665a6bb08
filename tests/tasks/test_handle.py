"""A task's `send` and its handle, as users call them; the worker's part is done by hand."""

import asyncio
from typing import Any

import psycopg
import pytest

from horsies import BlockingCallError, PayloadError, RetrievalCode, SendSuppressed, TaskError, TaskResult
from horsies.db.broker import PostgresBroker
from horsies.model.codec import encode_error
from horsies.tasks.finish import finish, notify_done
from horsies.tasks.suppress import suppress_sends
from tests.fixtures.journey import ME, claim, completed, do, failed, row


def answer(broker: PostgresBroker, result: str) -> None:
    claims = claim(broker)
    do(broker, finish(ME, [completed(held, result) for held in claims]), notify_done([held.id for held in claims]))


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
async def test_an_async_send_is_the_same(basic: Any, sql: psycopg.Connection) -> None:
    handle = await basic.echo_async.send_async("x")
    assert row(sql, "select id::text, task_name from horsies.tasks") == (handle.task_id, "echo_async")
    await basic.app.close_async()


@pytest.mark.promise("A3")
def test_bad_arguments_are_refused_in_the_producer(basic: Any, sql: psycopg.Connection) -> None:
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
async def test_the_same_for_asyncio(basic: Any, broker: PostgresBroker) -> None:
    handle = await basic.add.send_async(1, 2)
    waiting = asyncio.ensure_future(handle.get_async(10_000))
    await asyncio.to_thread(answer, broker, "3")
    assert (await waiting).unwrap() == 3
    assert await handle.get_async() == TaskResult(ok=3)
    assert handle.get() == TaskResult(ok=3), "kept, so nothing blocks"
    await basic.app.close_async()


def test_an_error_comes_back_whole(basic: Any, broker: PostgresBroker) -> None:
    error = TaskError(error_code="CARD_DECLINED", message="no", data={"limit": [1, None]})
    handle = basic.add.send(1, 2)
    (held,) = claim(broker)
    do(broker, finish(ME, [failed(held, "CARD_DECLINED", encode_error(error))]))
    assert handle.get() == TaskResult(err=error)


def test_a_wait_that_runs_out_is_a_value_and_can_be_repeated(basic: Any, broker: PostgresBroker) -> None:
    handle = basic.add.send(1, 2)
    assert handle.get(timeout_ms=50).unwrap_err().error_code == RetrievalCode.WAIT_TIMEOUT
    answer(broker, "3")
    assert handle.get(timeout_ms=50) == TaskResult(ok=3)


def test_a_task_that_nobody_knows_is_a_value_too(basic: Any, sql: psycopg.Connection) -> None:
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
async def test_a_suppressed_async_send_is_the_same(basic: Any, sql: psycopg.Connection) -> None:
    with suppress_sends():
        handle = await basic.add.send_async(1, 2)
    assert row(sql, "select count(*) from horsies.tasks") == (0,)
    with pytest.raises(SendSuppressed):
        await handle.get_async()


def test_calling_a_task_runs_it_here(basic: Any) -> None:
    assert basic.add(1, 2) == TaskResult(ok=3)
    assert asyncio.run(basic.nap(0.0)) == TaskResult(ok=0.0)


@pytest.mark.parametrize("timeout_ms", [-1, float("nan")])
def test_a_wait_of_no_length_at_all_is_refused(basic: Any, timeout_ms: Any) -> None:
    handle = basic.add.send(1, 2)
    with pytest.raises(ValueError, match="timeout_ms is"):
        handle.get(timeout_ms)
