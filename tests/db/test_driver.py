"""The same operations run with all drivers, blocking, asyncio and of workers: every test uses each of them, on real connections."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pytest
from psycopg import errors

from horsies.db.driver import drive, drive_async, execute_on, execute_on_async
from horsies.db.loop_connection import LoopConnection
from horsies.db.statement import Op, Query, Request, Statement, TransactionFrame, execute, one, rows, script
from horsies.model.config import PostgresConfig
from tests.fixtures.faults import Plant

SCHEMA = "horsies"
Drive = Callable[[Callable[[], Op[Any]]], Any]


@pytest.fixture(params=["blocking", "asyncio", "loop"])
def driven(request: pytest.FixtureRequest, database: str) -> Drive:
    """Run an operation with one of the drivers."""
    return {"blocking": _blocking, "asyncio": _asyncio, "loop": _on_loop_connection}[request.param](database)


def _blocking(database: str) -> Drive:
    def run(verb: Callable[[], Op[Any]]) -> Any:
        with psycopg.connect(database, autocommit=True) as connection:
            return drive(verb(), lambda request: execute_on(connection, request, SCHEMA))

    return run


def _asyncio(database: str) -> Drive:
    async def run(verb: Callable[[], Op[Any]]) -> Any:
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
            return await drive_async(verb(), lambda request: execute_on_async(connection, request, SCHEMA))

    return lambda verb: asyncio.run(run(verb))


def _on_loop_connection(database: str) -> Drive:
    async def run(verb: Callable[[], Op[Any]]) -> Any:
        connection = LoopConnection(PostgresConfig(database_url=database), "test")
        try:
            return await connection.run(verb())
        finally:
            connection.close()

    return lambda verb: asyncio.run(run(verb))


def query(text: str, /, **params: object) -> Query:
    return Statement("of_a_test", text)(**params)


def test_an_operation_gets_the_rows_of_its_statements(driven: Drive) -> None:
    def verb() -> Op[Any]:
        first = yield from rows(query("select * from generate_series(1, %(n)s::integer)", n=3))
        second = yield from one(query("select %(text)s::text", text="%s {schema} \"'"))
        nothing = yield from one(query("select 1 where false"))
        return first, second, nothing

    assert driven(verb) == ([(1,), (2,), (3,)], ("%s {schema} \"'",), None)


def test_statements_in_one_round_trip_have_results_of_their_own(driven: Drive) -> None:
    def verb() -> Op[Any]:
        return (
            yield from execute(
                query("begin"),
                query("create temporary table seen (n integer)"),
                query("insert into seen values (1), (2) returning n"),
                query("select count(*) from seen"),
                query("commit"),
            )
        )

    assert driven(verb) == [[], [], [(1,), (2,)], [(2,)], []]


def test_an_error_in_a_batch_rolls_back_all_of_it_and_leaves_the_connection_usable(driven: Drive) -> None:
    def verb() -> Op[Any]:
        yield from rows(query("create temporary table kept (n integer)"))
        with pytest.raises(errors.DivisionByZero):
            yield from execute(
                query("begin"),
                query("insert into kept values (1)"),
                query("select 1 / 0"),
                query("insert into kept values (2)"),
                query("commit"),
            )
        yield from rows(query("rollback"))
        return (yield from execute(query("select count(*) from kept"), query("select 5")))

    assert driven(verb) == [[(0,)], [(5,)]]


FRAME = TransactionFrame((query("begin isolation level serializable"), query("select 'limits'")), query("commit"))


def test_a_framed_request_is_one_transaction_and_its_frame_has_no_results(driven: Drive) -> None:
    def verb() -> Op[Any]:
        yield from rows(query("create temporary table kept (n integer)"))
        for number in range(2):
            with pytest.raises(errors.DivisionByZero):
                yield Request(
                    [query("insert into kept values (1)"), query("select 1 / %(n)s::integer", n=0)], frame=FRAME
                )
            yield from rows(query("rollback"))
            answers = yield Request(
                [query("insert into kept values (2)"), query("select count(*) from kept")], (query("select 7"),), FRAME
            )
            assert answers == [[], [(number + 1,)]]
        return (yield from one(query("select array_agg(n) from kept")))

    assert driven(verb) == ([2, 2],)


@pytest.mark.parametrize("after_commit", [(), (query("select 7"), query("select 8"))])
def test_a_commit_that_fails_is_an_error(driven: Drive, sql: psycopg.Connection, after_commit: Sequence[Query]) -> None:
    sql.execute("create table parents (id integer primary key)")
    sql.execute("create table kids (parent integer references parents deferrable initially deferred)")

    def verb() -> Op[Any]:
        with pytest.raises(errors.ForeignKeyViolation):
            yield Request(
                [query("insert into public.kids values (1) returning parent"), query("select 2")], after_commit
            )
        return (yield from one(query("select count(*) from public.kids")))

    assert driven(verb) == (0,)


@pytest.mark.parametrize("nth", [0, 1])
def test_an_error_after_the_commit_undoes_nothing(driven: Drive, nth: int, caplog: pytest.LogCaptureFixture) -> None:
    def verb() -> Op[Any]:
        yield from rows(query("create temporary table kept (n integer)"))
        after_commit = [query("select 7"), query("select 8")]
        after_commit[nth] = query("select 1 / 0")
        yield Request([query("insert into kept values (1)")], after_commit)
        return (yield from one(query("select count(*) from kept")))

    assert driven(verb) == (1,)
    assert "a notification could not be sent" in caplog.text


def test_an_error_that_an_operation_does_not_handle_is_raised(driven: Drive) -> None:
    with pytest.raises(errors.UndefinedTable, match="nowhere"):
        driven(lambda: rows(query("select * from nowhere")))


def test_the_schema_is_inserted_quoted(driven: Drive) -> None:
    assert driven(lambda: one(query("select count(*) from {schema}.tasks"))) == (0,)


@pytest.mark.parametrize("driven", ["blocking", "asyncio"], indirect=True)
def test_a_script_is_several_commands_without_parameters(driven: Drive) -> None:
    def verb() -> Op[Any]:
        yield from script(Statement("s", "create temporary table a (t text); insert into a values ('100 %s')"))
        return (yield from one(query("select t from a")))

    assert driven(verb) == ("100 %s",)


# -- faults


def test_a_connection_dropped_before_a_statement_never_sent_it(
    driven: Drive, faults: Plant, sql: psycopg.Connection
) -> None:
    sql.execute("create table marks (n integer)")
    faults("of_a_test", "before", "drop")
    with pytest.raises(psycopg.OperationalError, match="planted fault: drop before of_a_test"):
        driven(lambda: rows(query("insert into public.marks values (1)")))
    assert sql.execute("select count(*) from marks").fetchone() == (0,)


def test_a_connection_dropped_after_a_statement_lost_only_its_result(
    driven: Drive, faults: Plant, sql: psycopg.Connection
) -> None:
    sql.execute("create table marks (n integer)")
    faults("of_a_test", "after", "drop")
    with pytest.raises(psycopg.OperationalError, match="planted fault: drop after of_a_test"):
        driven(
            lambda: execute(query("insert into public.marks values (1)"), query("insert into public.marks values (2)"))
        )
    assert sql.execute("select count(*) from marks").fetchone() == (2,)


def test_a_planted_error_is_raised_once_and_keeps_the_connection(driven: Drive, faults: Plant) -> None:
    faults("of_a_test", "before", "error")

    def verb() -> Op[Any]:
        with pytest.raises(errors.InternalError_, match="planted fault"):
            yield from rows(query("select 1"))
        return (yield from one(query("select 2")))

    assert driven(verb) == (2,)


def test_a_fault_for_another_statement_is_not_raised(driven: Drive, faults: Plant) -> None:
    faults("some_other", "before", "error")
    assert driven(lambda: one(query("select 1"))) == (1,)
