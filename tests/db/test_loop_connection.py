"""What a worker's connection does beyond answering: it breaks, is given up, carries much, and loses what was prepared in it."""

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
async def courier_to(url: str) -> AsyncGenerator[LoopConnection]:
    courier = LoopConnection(PostgresConfig(database_url=url), "test")
    try:
        yield courier
    finally:
        courier.close()


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
    async with courier_to(database) as courier:
        for _ in range(3):
            row = await courier.run(first(text, **params))
            assert row is not None
            assert row[:6] == (params["text"], True, False, -(2**63), 0.1, None)
            assert row[6] == moment
            assert row[7:] == (["x, y", 'z"', None], f"{params['text']}%")


@pytest.mark.promise("D6")
@pytest.mark.parametrize("text", ["a\0b", "a\ud800b"])
async def test_text_that_cannot_be_stored_is_refused_whole_and_nothing_of_its_batch_is_run(
    database: str, sql: psycopg.Connection, text: str
) -> None:
    """A NUL would end the text without a word, and what was sent before it would be run with the next batch."""
    sql.execute("create table public.kept (text text)")
    async with courier_to(database) as courier:
        with pytest.raises(psycopg.DataError):
            await courier.run(
                execute(
                    query("insert into public.kept values ('first')"),
                    query("insert into public.kept values (%(text)s::text)", text=text),
                )
            )
        assert await courier.run(first("select count(*) from public.kept")) == (0,)


async def test_a_value_that_no_statement_takes_is_refused_by_its_type(database: str) -> None:
    async with courier_to(database) as courier:
        with pytest.raises(TypeError, match="cannot be a dict"):
            await courier.run(first("select %(value)s::text", value={}))
        assert await courier.run(first("select 1")) == (1,)


async def test_statements_are_prepared_once(database: str) -> None:
    async with courier_to(database) as courier:
        for number in range(3):
            assert await courier.run(first("select %(n)s::integer", n=number)) == (number,)
        held = await courier.run(
            first("select count(*) from pg_prepared_statements where statement like 'select $1%%'")
        )
        assert held == (1,)


async def test_a_refused_statement_leaves_the_session_in_order(database: str, sql: psycopg.Connection) -> None:
    def divide() -> Op[object]:
        return (yield from execute(query("begin"), query("select 1 / %(n)s::integer", n=0), query("commit")))

    async with courier_to(database) as courier:
        before = await courier.run(first(BACKEND))
        for _ in range(2):
            with pytest.raises(psycopg.errors.DivisionByZero):
                await courier.run(divide())
        assert await courier.run(first(BACKEND)) == before
        state = sql.execute("select state from pg_stat_activity where pid = %s", before)
        assert state.fetchone() == ("idle",)  # in no transaction


async def test_couriers_that_break_together_all_find_their_way_back(database: str, proxy: Proxy) -> None:
    """Their sockets' numbers are given to each other's new connections: none may be deaf then."""
    sender = [LoopConnection(PostgresConfig(database_url=proxy.url), "test") for _ in range(8)]
    try:
        for _ in range(3):
            assert await asyncio.gather(*(courier.run(first("select 1")) for courier in sender)) == [(1,)] * 8
            proxy.cut()
            broken = await asyncio.gather(
                *(courier.run(first("select 1")) for courier in sender), return_exceptions=True
            )
            assert all(isinstance(error, psycopg.OperationalError) for error in broken)
            proxy.heal()
    finally:
        for courier in sender:
            courier.close()


async def test_a_session_that_ends_while_it_idles_is_replaced_at_the_next_use(database: str, proxy: Proxy) -> None:
    async with courier_to(proxy.url) as courier:
        assert await courier.run(first("select 1")) == (1,)
        proxy.cut()
        proxy.heal()
        while not vars(courier)["_session"].is_broken:  # noqa: ASYNC110 - until the loop has heard of it, which tells nobody
            await asyncio.sleep(0.005)
        assert await courier.run(first("select 2")) == (2,)


async def test_what_the_server_says_to_an_idle_session_is_taken_in(database: str, sql: psycopg.Connection) -> None:
    async with courier_to(database) as courier:
        await courier.run(first("listen gossip"))
        for _ in range(20):
            sql.execute("notify gossip")
            await asyncio.sleep(0.005)  # some of it comes while nothing is asked
        assert await courier.run(first("select 1")) == (1,)


async def test_who_is_cancelled_while_he_waits_takes_his_connection_with_him(
    database: str, sql: psycopg.Connection
) -> None:
    with sql.transaction():
        sql.execute("lock table horsies.tasks")
        async with courier_to(database) as courier:
            waiting = asyncio.create_task(courier.run(first("select count(*) from {schema}.tasks")))
            await asyncio.to_thread(eventually, lambda: _is_blocked(database), what="it waits for the lock")
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert await courier.run(first("select 1")) == (1,)  # on a new one


def _is_blocked(database: str) -> bool:
    with psycopg.connect(database, autocommit=True) as other:
        return other.execute("select from pg_locks where not granted").rowcount > 0


async def test_a_server_that_ends_the_session_is_quoted(database: str, sql: psycopg.Connection) -> None:
    with sql.transaction():
        sql.execute("lock table horsies.tasks")
        async with courier_to(database) as courier:
            waiting = asyncio.create_task(courier.run(first("select count(*) from {schema}.tasks")))
            await asyncio.to_thread(eventually, lambda: _is_blocked(database), what="it waits for the lock")
            sql.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where application_name = 'horsies test' and datname = current_database()"
            )
            with pytest.raises(psycopg.errors.AdminShutdown):
                await waiting
            assert await courier.run(first("select 1")) == (1,)


async def test_closing_tells_whoever_waits(database: str, sql: psycopg.Connection) -> None:
    with sql.transaction():
        sql.execute("lock table horsies.tasks")
        async with courier_to(database) as courier:
            waiting = asyncio.create_task(courier.run(first("select count(*) from {schema}.tasks")))
            await asyncio.to_thread(eventually, lambda: _is_blocked(database), what="it waits for the lock")
            courier.close()
            with pytest.raises(psycopg.OperationalError, match="closed"):
                await waiting


async def test_more_than_the_sockets_hold_goes_both_ways(database: str) -> None:
    text = "x" * (8 << 20)
    statement = query("select %(text)s::text", text=text)
    async with courier_to(database) as courier:
        assert await courier.run(execute(statement, statement, statement)) == [[(text,)]] * 3


async def test_a_session_that_lost_its_prepared_statements_is_left(database: str) -> None:
    async with courier_to(database) as courier:
        assert await courier.run(first("select 1")) == (1,)
        await courier.run(first("discard all"))
        with pytest.raises(psycopg.errors.InvalidSqlStatementName):
            await courier.run(first("select 1"))
        assert await courier.run(first("select 1")) == (1,)


async def test_an_unreachable_server_says_why(database: str, proxy: Proxy) -> None:
    proxy.cut()
    async with courier_to(proxy.url) as courier:
        with pytest.raises(psycopg.OperationalError, match="refused"):
            await courier.run(first("select 1"))
        proxy.heal()
        assert await courier.run(first("select 1")) == (1,)


async def test_who_is_cancelled_while_a_silent_server_is_connected_to_leaves_no_thread_behind(
    database: str, proxy: Proxy
) -> None:
    """`asyncio.run` would wait for it, and the worker would not leave."""
    proxy.freeze()
    async with courier_to(proxy.url) as courier:
        opening = asyncio.create_task(courier.run(first("select 1")))
        while not proxy.connections:  # noqa: ASYNC110 - waiting in a thread would leave one, too
            await asyncio.sleep(0.005)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert [thread.name for thread in threading.enumerate() if thread.name.startswith("asyncio_")] == []


async def test_who_is_cancelled_while_he_rolls_back_takes_his_connection_with_him(database: str, proxy: Proxy) -> None:
    def fail_and_fall_silent() -> Op[object]:
        try:
            yield from execute(query("begin"), query("select 1 / 0"))
        except psycopg.Error:
            proxy.freeze()
            raise
        return None

    async with courier_to(proxy.url) as courier:
        failing = asyncio.create_task(courier.run(fail_and_fall_silent()))
        await asyncio.to_thread(eventually, lambda: proxy.is_frozen, what="the rollback is on its way")
        failing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await failing
        proxy.thaw()
        assert await courier.run(first("select 2")) == (2,)  # on a new one


async def test_a_process_without_descriptors_says_so_and_goes_on_when_there_are_some(database: str) -> None:
    async with courier_to(database) as courier:
        taken: list[int] = []
        try:
            with suppress(OSError):
                while True:
                    taken.append(os.dup(0))
            os.close(taken.pop())  # one is enough to connect with, but not to serve
            with pytest.raises(psycopg.OperationalError, match="Too many open files"):
                await courier.run(first("select 1"))
        finally:
            for number in taken:
                os.close(number)
        assert await courier.run(first("select 1")) == (1,)


@pytest.mark.parametrize("text", ["select 1", "select 1 / 0"])
async def test_whatever_becomes_of_what_was_posted_is_told_to_whoever_posted_it(database: str, text: str) -> None:
    """Also when the verb itself stumbles over its answer: nobody else would notice."""

    def stumbling() -> Op[None]:
        with suppress(psycopg.Error):
            yield from first(text)
        raise ValueError("of a test")

    async with courier_to(database) as courier:
        assert not courier.is_ready
        await courier.run(first("select 1"))
        assert courier.is_ready
        on_done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        courier.submit(stumbling(), on_done.set_result)
        assert not on_done.done()
        assert isinstance(await on_done, ValueError)
        assert await courier.run(first("select 2")) == (2,)


async def test_the_answer_to_what_was_posted_may_lead_to_the_next(database: str) -> None:
    """At once, from within the call that tells of it."""
    async with courier_to(database) as courier:
        await courier.run(first("select 0"))
        over: asyncio.Future[list[object]] = asyncio.get_running_loop().create_future()
        seen: list[object] = []

        def on_done(row: object) -> None:
            seen.append(row)
            if len(seen) == 3:
                over.set_result(seen)
            else:
                courier.submit(first("select %(n)s::integer", n=len(seen)), on_done)

        courier.submit(first("select 0"), on_done)
        assert await over == [(0,), (1,), (2,)]


async def test_what_was_posted_is_told_of_the_end_of_its_connection(database: str, sql: psycopg.Connection) -> None:
    async with courier_to(database) as courier:
        backend = await courier.run(first(BACKEND))
        on_done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        courier.submit(first("select pg_sleep(60)"), on_done.set_result)
        assert backend is not None
        sql.execute("select pg_terminate_backend(%s)", backend)
        error = await on_done
        assert isinstance(error, psycopg.OperationalError)
        assert not courier.is_ready
        await courier.recover(error)
        assert await courier.run(first("select 2")) == (2,)
