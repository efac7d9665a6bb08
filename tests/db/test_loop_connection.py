"""A worker's connection: it breaks, is cancelled, transfers much data, and loses its prepared statements."""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime

import psycopg
import pytest

from horsies.db.loop_connection import LoopConnection
from horsies.db.statement import Op, Query, Row, Statement, execute, one
from horsies.model.config import PostgresConfig
from tests.fixtures.eventually import eventually
from tests.fixtures.proxies import Proxy

BACKEND = "select pg_backend_pid()"


def query(text: str, /, **params: object) -> Query:
    return Statement("of_a_test", text)(**params)


def first(text: str, /, **params: object) -> Op[Row | None]:
    return one(query(text, **params))


@asynccontextmanager
async def connected(url: str) -> AsyncGenerator[LoopConnection]:
    connection = LoopConnection(PostgresConfig(database_url=url), "test")
    try:
        yield connection
    finally:
        connection.close()


async def test_every_kind_of_value_arrives_as_it_was(database: str) -> None:
    moment = datetime(2026, 2, 3, 4, 5, 6, 789012, tzinfo=UTC)
    text = """
        select
            %(text)s::text, %(yes)s::boolean, %(no)s::boolean, %(whole)s::bigint, %(part)s::float8, %(nothing)s::text,
            %(moment)s::timestamptz, %(list)s::text[], %(text)s::text || '%%'
    """
    params: dict[str, object] = {
        "text": 'a "b" \\ ü \n $1 %s', "yes": True, "no": False, "whole": -(2**63), "part": 0.1, "nothing": None,
        "moment": moment, "list": ["x, y", 'z"', None],
    }  # fmt: skip
    async with connected(database) as connection:
        for _ in range(3):
            row = await connection.run(first(text, **params))
            assert row is not None
            assert row[:6] == (params["text"], True, False, -(2**63), 0.1, None)
            assert row[6] == moment
            assert row[7:] == (["x, y", 'z"', None], f"{params['text']}%")


@pytest.mark.promise("D6")
@pytest.mark.parametrize("text", ["a\0b", "a\ud800b"])
async def test_text_that_cannot_be_stored_is_refused_and_nothing_of_its_batch_is_run(
    database: str, sql: psycopg.Connection, text: str
) -> None:
    """A NUL would silently end the text, and what was sent before it would run with the next batch."""
    sql.execute("create table public.kept (text text)")
    async with connected(database) as connection:
        with pytest.raises(psycopg.DataError):
            await connection.run(
                execute(
                    query("insert into public.kept values ('first')"),
                    query("insert into public.kept values (%(text)s::text)", text=text),
                )
            )
        assert await connection.run(first("select count(*) from public.kept")) == (0,)


async def test_a_parameter_of_an_unsupported_type_is_refused(database: str) -> None:
    async with connected(database) as connection:
        with pytest.raises(TypeError, match="cannot be a dict"):
            await connection.run(first("select %(value)s::text", value={}))
        assert await connection.run(first("select 1")) == (1,)


async def test_statements_are_prepared_once(database: str) -> None:
    async with connected(database) as connection:
        for number in range(3):
            assert await connection.run(first("select %(n)s::integer", n=number)) == (number,)
        held = await connection.run(
            first("select count(*) from pg_prepared_statements where statement like 'select $1%%'")
        )
        assert held == (1,)


async def test_a_failed_statement_leaves_the_session_usable(database: str, sql: psycopg.Connection) -> None:
    def divide() -> Op[object]:
        return (yield from execute(query("begin"), query("select 1 / %(n)s::integer", n=0), query("commit")))

    async with connected(database) as connection:
        before = await connection.run(first(BACKEND))
        for _ in range(2):
            with pytest.raises(psycopg.errors.DivisionByZero):
                await connection.run(divide())
        assert await connection.run(first(BACKEND)) == before
        state = sql.execute("select state from pg_stat_activity where pid = %s", before)
        assert state.fetchone() == ("idle",)  # in no transaction


async def test_connections_that_break_together_all_recover(database: str, proxy: Proxy) -> None:
    """The numbers of their sockets are reused by each other's new connections: each must still be watched."""
    sender = [LoopConnection(PostgresConfig(database_url=proxy.url), "test") for _ in range(8)]
    try:
        for _ in range(3):
            assert await asyncio.gather(*(connection.run(first("select 1")) for connection in sender)) == [(1,)] * 8
            proxy.cut()
            broken = await asyncio.gather(
                *(connection.run(first("select 1")) for connection in sender), return_exceptions=True
            )
            assert all(isinstance(error, psycopg.OperationalError) for error in broken)
            proxy.heal()
    finally:
        for connection in sender:
            connection.close()


async def test_a_session_that_ended_while_idle_is_replaced_at_the_next_use(database: str, proxy: Proxy) -> None:
    async with connected(proxy.url) as connection:
        assert await connection.run(first("select 1")) == (1,)
        proxy.cut()
        proxy.heal()
        while connection.is_ready:  # noqa: ASYNC110 - until the loop has noticed, which sends no signal
            await asyncio.sleep(0.005)
        assert await connection.run(first("select 2")) == (2,)


async def test_messages_to_an_idle_session_are_read(database: str, sql: psycopg.Connection) -> None:
    async with connected(database) as connection:
        await connection.run(first("listen gossip"))
        for _ in range(20):
            sql.execute("notify gossip")
            await asyncio.sleep(0.005)  # some of it comes while nothing is asked
        assert await connection.run(first("select 1")) == (1,)


async def test_a_cancelled_operation_closes_its_connection(database: str, sql: psycopg.Connection) -> None:
    with sql.transaction():
        sql.execute("lock table horsies.tasks")
        async with connected(database) as connection:
            waiting = asyncio.create_task(connection.run(first("select count(*) from {schema}.tasks")))
            await asyncio.to_thread(eventually, lambda: _is_blocked(database), what="it waits for the lock")
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert await connection.run(first("select 1")) == (1,)  # on a new one


def _is_blocked(database: str) -> bool:
    with psycopg.connect(database, autocommit=True) as other:
        return other.execute("select from pg_locks where not granted").rowcount > 0


async def test_the_reason_of_a_terminated_session_is_raised(database: str, sql: psycopg.Connection) -> None:
    with sql.transaction():
        sql.execute("lock table horsies.tasks")
        async with connected(database) as connection:
            waiting = asyncio.create_task(connection.run(first("select count(*) from {schema}.tasks")))
            await asyncio.to_thread(eventually, lambda: _is_blocked(database), what="it waits for the lock")
            sql.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where application_name = 'horsies test' and datname = current_database()"
            )
            with pytest.raises(psycopg.errors.AdminShutdown):
                await waiting
            assert await connection.run(first("select 1")) == (1,)


async def test_closing_fails_the_operation_under_way(database: str, sql: psycopg.Connection) -> None:
    with sql.transaction():
        sql.execute("lock table horsies.tasks")
        async with connected(database) as connection:
            waiting = asyncio.create_task(connection.run(first("select count(*) from {schema}.tasks")))
            await asyncio.to_thread(eventually, lambda: _is_blocked(database), what="it waits for the lock")
            connection.close()
            with pytest.raises(psycopg.OperationalError, match="closed"):
                await waiting


async def test_more_data_than_the_socket_buffers_hold_is_sent_both_ways(database: str) -> None:
    text = "x" * (8 << 20)
    statement = query("select %(text)s::text", text=text)
    async with connected(database) as connection:
        assert await connection.run(execute(statement, statement, statement)) == [[(text,)]] * 3


async def test_a_session_that_lost_its_prepared_statements_is_replaced(database: str) -> None:
    async with connected(database) as connection:
        assert await connection.run(first("select 1")) == (1,)
        await connection.run(first("discard all"))
        with pytest.raises(psycopg.errors.InvalidSqlStatementName):
            await connection.run(first("select 1"))
        assert await connection.run(first("select 1")) == (1,)


async def test_an_unreachable_server_says_why(database: str, proxy: Proxy) -> None:
    proxy.cut()
    async with connected(proxy.url) as connection:
        with pytest.raises(psycopg.OperationalError, match="refused"):
            await connection.run(first("select 1"))
        proxy.heal()
        assert await connection.run(first("select 1")) == (1,)


async def test_a_cancelled_connection_attempt_leaves_no_thread_behind(database: str, proxy: Proxy) -> None:
    """`asyncio.run` would wait for it, and the worker would not exit."""
    before = set(threading.enumerate())  # fixtures with loops of their own may have some
    proxy.freeze()
    async with connected(proxy.url) as connection:
        opening = asyncio.create_task(connection.run(first("select 1")))
        while not proxy.connections:  # noqa: ASYNC110 - waiting in a thread would leave one, too
            await asyncio.sleep(0.005)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        left = set(threading.enumerate()) - before
        assert [thread.name for thread in left if thread.name.startswith("asyncio_")] == []


async def test_a_cancelled_rollback_closes_the_connection(database: str, proxy: Proxy) -> None:
    def fail_and_fall_silent() -> Op[object]:
        try:
            yield from execute(query("begin"), query("select 1 / 0"))
        except psycopg.Error:
            proxy.freeze()
            raise
        return None

    async with connected(proxy.url) as connection:
        failing = asyncio.create_task(connection.run(fail_and_fall_silent()))
        await asyncio.to_thread(eventually, lambda: proxy.is_frozen, what="the rollback is on its way")
        failing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await failing
        proxy.thaw()
        assert await connection.run(first("select 2")) == (2,)  # on a new one


async def test_a_process_without_file_descriptors_raises_an_error_and_recovers(database: str) -> None:
    async with connected(database) as connection:
        taken: list[int] = []
        try:
            with suppress(OSError):
                while True:
                    taken.append(os.dup(0))
            os.close(taken.pop())  # one is enough to connect with, but not to serve
            with pytest.raises(psycopg.OperationalError, match="Too many open files"):
                await connection.run(first("select 1"))
        finally:
            for number in taken:
                os.close(number)
        assert await connection.run(first("select 1")) == (1,)


@pytest.mark.parametrize("text", ["select 1", "select 1 / 0"])
async def test_every_outcome_of_a_submitted_operation_is_passed_to_its_callback(database: str, text: str) -> None:
    """Also an exception of the operation itself, which would be lost otherwise."""

    def stumbling() -> Op[None]:
        with suppress(psycopg.Error):
            yield from first(text)
        raise ValueError("of a test")

    async with connected(database) as connection:
        assert not connection.is_ready
        await connection.run(first("select 1"))
        assert connection.is_ready
        on_done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        connection.submit(stumbling(), on_done.set_result)
        assert not on_done.done()
        assert isinstance(await on_done, ValueError)
        assert await connection.run(first("select 2")) == (2,)


async def test_a_callback_may_submit_the_next_operation(database: str) -> None:
    """At once, from within the callback."""
    async with connected(database) as connection:
        await connection.run(first("select 0"))
        over: asyncio.Future[list[object]] = asyncio.get_running_loop().create_future()
        seen: list[object] = []

        def on_done(row: object) -> None:
            seen.append(row)
            if len(seen) == 3:
                over.set_result(seen)
            else:
                connection.submit(first("select %(n)s::integer", n=len(seen)), on_done)

        connection.submit(first("select 0"), on_done)
        assert await over == [(0,), (1,), (2,)]


async def test_a_callback_gets_the_error_when_the_connection_ends(database: str, sql: psycopg.Connection) -> None:
    async with connected(database) as connection:
        backend = await connection.run(first(BACKEND))
        on_done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        connection.submit(first("select pg_sleep(60)"), on_done.set_result)
        assert backend is not None
        sql.execute("select pg_terminate_backend(%s)", backend)
        error = await on_done
        assert isinstance(error, psycopg.OperationalError)
        assert not connection.is_ready
        await connection.recover(error)
        assert await connection.run(first("select 2")) == (2,)
