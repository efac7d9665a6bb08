"""`gather` and `as_completed` as users call them. SQL does the worker's part."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from horsies import (
    BlockingCallError,
    Horsies,
    PayloadError,
    RetrievalCode,
    SendSuppressed,
    TaskHandle,
    TaskResult,
    WaitTimeoutError,
)
from horsies.db.channels import Channel
from horsies.tasks.sender import suppress_sends
from tests.fixtures.brokers import without_polling
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import column, row

MANY = 5_000
WAITING = "select count(*) from pg_stat_activity where application_name = 'horsies producer' and query like 'select task.id::text, status%%' and datname = current_database()"
LISTENERS = (
    "select pid from pg_stat_activity where datname = current_database() and application_name = 'horsies listener'"
)


def end(sql: psycopg.Connection, ids: Sequence[str], *, named: bool = True) -> None:
    """End each task with its `left` as the result, and notify."""
    sql.execute(
        "with gone as (delete from horsies.tasks where id = any(%s::uuid[]) returning *) "
        "insert into horsies.finished (id, task_name, queue_name, priority, status, args, result, sent_at, enqueued_at, "
        "attempts, claim_no, finished_at) select id, task_name, queue_name, priority, 'COMPLETED', args, args->'left', "
        "sent_at, enqueued_at, 1, 1, now() from gone",
        [list(ids)],
    )
    if named:
        sql.execute("select pg_notify(%s, %s)", [Channel.DONE.name_in("horsies"), " ".join(ids)])


def insert(sql: psycopg.Connection, count: int) -> list[str]:
    """Insert tasks numbered from 0."""
    inserted = sql.execute(
        "insert into horsies.tasks (task_name, args) select 'add', json_build_object('left', n, 'right', 0) "
        "from generate_series(0, %s - 1) as n returning id::text, (args->>'left')::integer",
        [count],
    )
    return [task_id for task_id, _ in sorted(inserted.fetchall(), key=lambda found: found[1])]


def send(basic: Any, count: int) -> list[TaskHandle[int]]:
    return [basic.add.send(number, 0) for number in range(count)]


def ids_of(handles: Sequence[TaskHandle[int]]) -> list[str]:
    return [handle.task_id for handle in handles]


def codes(results: Sequence[TaskResult[int, Any]]) -> list[object]:
    return [result.ok if result.is_ok() else result.unwrap_err().error_code for result in results]


# -- gather


def test_results_are_in_the_order_of_the_handles(basic: Any, sql: psycopg.Connection) -> None:
    handles = send(basic, 3)
    end(sql, ids_of(handles)[::-1])
    assert basic.app.gather(handles) == [TaskResult(ok=0), TaskResult(ok=1), TaskResult(ok=2)]


def test_an_empty_gather_does_not_connect() -> None:
    app, nothing = Horsies(), list[TaskHandle[int]]()  # an app without a database
    assert app.gather(nothing) == []
    assert list(app.as_completed(nothing)) == []
    assert asyncio.run(app.gather_async(nothing)) == []


def test_a_task_may_be_listed_several_times(basic: Any, sql: psycopg.Connection) -> None:
    first, second = send(basic, 2)
    twin = basic.app.handle(first.task_id, basic.add)
    end(sql, ids_of([first, second]))
    assert codes(basic.app.gather([first, second, first, twin])) == [0, 1, 0, 0]
    assert twin.ended is first.ended is not None


def test_known_results_are_not_read_again(basic: Any, sql: psycopg.Connection) -> None:
    handles = send(basic, 2)
    end(sql, ids_of(handles))
    assert handles[0].get() == TaskResult(ok=0)
    sql.execute("delete from horsies.finished where id = %s", [handles[0].task_id])
    assert codes(basic.app.gather(handles)) == [0, 1]
    sql.execute("truncate horsies.finished")
    assert codes(basic.app.gather(handles)) == [0, 1]


def test_gather_reports_each_missing_result_separately(basic: Any, sql: psycopg.Connection) -> None:
    handles = send(basic, 3)
    end(sql, ids_of(handles[:1]))
    sql.execute("delete from horsies.tasks where id = %s", [handles[2].task_id])
    found = basic.app.gather(handles, timeout_ms=50)
    assert codes(found) == [0, RetrievalCode.WAIT_TIMEOUT, RetrievalCode.TASK_NOT_FOUND]
    end(sql, ids_of(handles[1:2]))
    assert codes(basic.app.gather(handles, timeout_ms=0)) == [0, 1, RetrievalCode.TASK_NOT_FOUND]


def test_a_result_that_cannot_be_decoded_does_not_lose_the_others(basic: Any, sql: psycopg.Connection) -> None:
    handles = send(basic, 2)
    end(sql, ids_of(handles))
    sql.execute("update horsies.finished set result = '\"no number\"' where id = %s", [handles[0].task_id])
    with pytest.raises(PayloadError, match="does not fit"):
        basic.app.gather(handles)
    sql.execute("truncate horsies.finished")
    assert handles[1].get(0) == TaskResult(ok=1)


def test_only_handles_of_this_app_can_be_waited_for(basic: Any, database: str) -> None:
    other = Horsies()
    handle = basic.add.send(1, 2)
    with pytest.raises(ValueError, match="belongs to another app"):
        other.gather([handle])
    with pytest.raises(TypeError, match="pass what send"):
        basic.app.gather([handle.task_id])
    with suppress_sends():
        inert = basic.add.send(1, 2)
    for wait in (basic.app.gather, basic.app.as_completed):
        with pytest.raises(SendSuppressed, match="move the send out"):
            wait([handle, inert])
    with pytest.raises(ValueError, match="timeout_ms is -1"):
        basic.app.gather([handle], -1)


async def test_blocking_forms_are_refused_in_an_event_loop(basic: Any) -> None:
    handle = await basic.add.send_async(1, 2)
    with pytest.raises(BlockingCallError, match=r"await app\.gather_async"):
        basic.app.gather([handle])
    with pytest.raises(BlockingCallError, match=r"async for handle in app\.as_completed_async"):
        basic.app.as_completed([handle])
    await basic.app.close_async()


# -- as_completed


@without_polling
def test_handles_are_yielded_as_their_tasks_end(basic: Any, sql: psycopg.Connection) -> None:
    handles = send(basic, 4)
    end(sql, [handles[3].task_id])
    seen = list[Any]()
    for handle in basic.app.as_completed([*handles, handles[3]], timeout_ms=20_000):
        seen.append(handle.get())
        left = [other for other in handles if other.ended is None]
        if left:
            end(sql, [left[-1].task_id])  # between two waits
    assert codes(seen) == [3, 2, 1, 0]


@without_polling
async def test_handles_are_yielded_as_their_tasks_end_in_an_event_loop(basic: Any, sql: psycopg.Connection) -> None:
    handles = [await basic.add.send_async(number, 0) for number in range(3)]
    end(sql, [handles[0].task_id])
    seen = list[Any]()
    async for handle in basic.app.as_completed_async(handles, timeout_ms=20_000):
        seen.append(handle.get())
        if len(seen) < 3:
            end(sql, [handles[len(seen)].task_id])
    assert codes(seen) == [0, 1, 2]
    await basic.app.close_async()


def test_a_timeout_names_the_missing_tasks(basic: Any, sql: psycopg.Connection) -> None:
    handles = send(basic, 6)
    end(sql, ids_of(handles[:1]))
    completed = basic.app.as_completed(handles, timeout_ms=50)
    assert next(completed) is handles[0]
    with pytest.raises(WaitTimeoutError, match=rf"5 of 6 tasks .* within 50 ms \({handles[1].task_id}, .*\.\.\.\)"):
        next(completed)
    assert isinstance(WaitTimeoutError(), TimeoutError)


def test_a_task_that_ended_before_the_timeout_is_still_yielded(basic: Any, sql: psycopg.Connection) -> None:
    handles = send(basic, 2)
    end(sql, ids_of(handles))
    assert list(basic.app.as_completed(handles, timeout_ms=0)) == handles


def test_stopping_early_leaves_no_waiter_behind(basic: Any, sql: psycopg.Connection) -> None:
    handles = send(basic, 2)
    end(sql, ids_of(handles[:1]))
    for handle in basic.app.as_completed(handles):
        assert handle is handles[0]
        break
    end(sql, ids_of(handles[1:]))
    assert codes(basic.app.gather(handles)) == [0, 1]


async def test_stopping_early_in_an_event_loop_leaves_no_waiter_behind(basic: Any, sql: psycopg.Connection) -> None:
    handles = [await basic.add.send_async(number, 0) for number in range(2)]
    end(sql, [handles[0].task_id])
    async for handle in basic.app.as_completed_async(handles):
        assert handle is handles[0]
        break
    waiting = asyncio.ensure_future(anext(basic.app.as_completed_async(handles[1:])))
    await asyncio.sleep(0)
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    end(sql, [handles[1].task_id])
    assert codes(await basic.app.gather_async(handles)) == [0, 1]
    await basic.app.close_async()


# -- thousands of tasks


async def by_gather(app: Horsies, handles: list[TaskHandle[int]]) -> list[Any]:
    return await app.gather_async(handles)


async def by_get(app: Horsies, handles: list[TaskHandle[int]]) -> list[Any]:
    return await asyncio.gather(*(handle.get_async() for handle in handles))


async def by_as_completed(app: Horsies, handles: list[TaskHandle[int]]) -> list[Any]:
    async for handle in app.as_completed_async(handles):
        assert handle.ended is not None
    return [handle.get() for handle in handles]


@pytest.mark.parametrize("how", [by_gather, by_get, by_as_completed])
@without_polling
async def test_thousands_of_waits_need_one_listen_connection_and_few_reads(
    basic: Any, sql: psycopg.Connection, how: Any
) -> None:
    ids = insert(sql, MANY)
    before = transactions(sql)
    waiting = asyncio.ensure_future(how(basic.app, [basic.app.handle(task_id, basic.add) for task_id in ids]))
    while not row(sql, WAITING)[0]:  # noqa: ASYNC110 - the database gives no signal of its own
        await asyncio.sleep(0.01)
    for first in range(0, MANY, 100):
        await asyncio.to_thread(end, sql, ids[first : first + 100])
    async with asyncio.timeout(30):
        results = await waiting
    assert codes(results) == list(range(MANY))
    assert len(column(sql, LISTENERS)) == 1
    await basic.app.close_async()
    eventually(lambda: not column(sql, LISTENERS), what="every session has ended and been counted")
    ours = transactions(sql) - before
    assert ours < 200 + 100, "50 endings and as many notifications were the test's own"


def transactions(sql: psycopg.Connection) -> int:
    """Count the transactions of this database. A session reports its own when it ends, or before."""
    (count,) = row(sql, "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()")
    return int(count)


def test_a_tuple_of_handles_gives_a_tuple_of_results(basic: Any) -> None:
    handles = basic.add.send(1, 2), basic.add.send(3, 4)
    first, second = basic.app.gather(handles, timeout_ms=0)
    assert (first.is_err(), second.is_err()) == (True, True)
    assert isinstance(basic.app.gather(handles, timeout_ms=0), tuple)
    assert isinstance(basic.app.gather([*handles], timeout_ms=0), list)
