"""No statement of ours calls objects that were planted in a schema of the search_path.

Otherwise a user who may create objects in `public` could run code with the privileges of producers, workers and migrations.
"""

from collections.abc import Generator
from typing import Any

import psycopg
import pytest

from horsies.db.broker import PostgresBroker
from horsies.db.dedicated import DedicatedConnection
from horsies.db.loop_connection import LoopConnection
from horsies.db.migrate import migrations
from horsies.db.pooler import PINNED, set_locally
from horsies.db.statement import Statement, one
from horsies.doctor.findings import CheckContext, FindingCode
from horsies.doctor.run import run_doctor
from horsies.model.config import PostgresConfig
from tests.cli.conftest import run
from tests.cli.test_every_operation import COMMANDS
from tests.db.test_statements import NOT_PLANNED, STATEMENTS, planned
from tests.fixtures.apps import load_fresh
from tests.fixtures.callers import KINDS, Caller
from tests.fixtures.eventually import eventually
from tests.fixtures.hostile_sessions import intrude, run_journeys, trusting
from tests.fixtures.journey import column, row, send_new
from tests.fixtures.roles import PlainUser
from tests.fixtures.server import DatabaseServer
from tests.fixtures.workers import StartWorker
from tests.recovery.steps import FORKED

SHOWN = Statement(
    "shown", "select current_setting('search_path'), current_setting('DateStyle'), current_setting('TimeZone')"
)
EXPECTED = ("pg_catalog, pg_temp", "ISO, MDY", "UTC")

pytestmark = pytest.mark.promise("D6")


def test_planted_objects_are_called_if_the_search_path_is_not_pinned(intruded: str) -> None:
    with psycopg.connect(intruded, autocommit=True) as sql:
        for statement in ("select 1 || 'x'", "select now()", "select cardinality(array[1])", "select 'a'::text"):
            with pytest.raises(psycopg.Error):
                sql.execute(statement.encode())


def test_a_role_that_may_create_in_public_gains_nothing_by_a_send(
    database: str, basic: Any, sql: psycopg.Connection, plain_user: PlainUser
) -> None:
    sql.execute(f"grant create on schema public to {plain_user.name}".encode())
    with psycopg.connect(plain_user.url(database), autocommit=True) as intruder:
        intruder.execute(
            "create function public.take(integer, text) returns text language plpgsql as $$ begin "
            f"execute 'alter role {plain_user.name} superuser'; return $1::text operator(pg_catalog.||) $2; end $$".encode()
        )
        intruder.execute("create operator public.|| (leftarg = integer, rightarg = text, function = public.take)")
    basic.add.send(1, 2)
    with psycopg.connect(database) as connection:
        basic.add.with_options(connection=connection).send(1, 2)
    sql.execute("insert into horsies.tasks (task_name, args) values ('add', '{}')")
    assert row(sql, "select rolsuper from pg_roles where rolname = %s", plain_user.name) == (False,)
    assert row(sql, "select count(*) from horsies.tasks") == (3,)


@pytest.mark.parametrize("name", STATEMENTS)
def test_no_statement_is_bound_to_a_planted_object(name: str, planted_sql: psycopg.Connection) -> None:
    """In a session set up as ours are: whatever is not PostgreSQL's own or the schema's is named with its schema in a plan."""
    if not NOT_PLANNED.match(STATEMENTS[name].text):
        assert "public." not in planned(name, planted_sql)


@pytest.fixture(scope="module")
def planted_sql(server: DatabaseServer, planted: str) -> Generator[psycopg.Connection]:
    name = server.create(planted)
    with psycopg.connect(server.url(name), autocommit=True) as connection:
        connection.execute(set_locally(PINNED).replace("true", "false").encode())
        yield connection
    server.drop(name)


def test_every_kind_of_session_is_pinned(intruded: str) -> None:
    config = PostgresConfig(database_url=intruded)
    with PostgresBroker(config) as broker:
        assert broker.run(lambda: one(SHOWN())) == EXPECTED
    connection = DedicatedConnection(config, "worker")
    assert connection.run(one(SHOWN())) == EXPECTED
    connection.close()


async def test_sessions_on_event_loops_are_pinned_too(intruded: str) -> None:
    config = PostgresConfig(database_url=intruded)
    broker = PostgresBroker(config)
    assert await broker.run_async(lambda: one(SHOWN())) == EXPECTED
    await broker.close_async()
    loop_connection = LoopConnection(config, "worker")
    for _ in range(3):
        assert await loop_connection.run(one(SHOWN())) == EXPECTED
    loop_connection.close()


def test_an_installation_is_made_beside_planted_objects_and_bound_to_none(empty_database: str) -> None:
    intrude(empty_database)
    with PostgresBroker(PostgresConfig(database_url=empty_database)) as broker:
        assert broker.migrate() == [migration.name for migration in migrations()]
        send_new(broker)
    report = run_doctor(PostgresConfig(database_url=empty_database), CheckContext(schema="horsies"))
    assert not report.has(FindingCode.SEARCH_PATH_UNPINNED, FindingCode.CHECK_FAILED), report.findings


def test_the_script_of_the_migrations_is_bound_to_none_either(empty_database: str) -> None:
    intrude(empty_database)
    ran = run("migrate", "--sql", database_url=empty_database)
    assert ran.code == 0, ran.err
    with psycopg.connect(empty_database, autocommit=True) as sql:
        sql.execute(ran.out.encode())
    report = run_doctor(PostgresConfig(database_url=empty_database), CheckContext(schema="horsies"))
    assert not report.has(FindingCode.SEARCH_PATH_UNPINNED, FindingCode.SCHEMA_MISSING, FindingCode.CHECK_FAILED), (
        report.findings
    )


@pytest.mark.parametrize("words", [*COMMANDS, ("doctor",), ("migrate",)], ids=" ".join)
def test_no_command_of_an_operator_calls_a_planted_object(words: tuple[str, ...], commanded: str) -> None:
    ran = run(*words, database_url=commanded)
    output = ran.out + ran.err
    assert "intrusion" not in output, output
    assert "does not exist" not in output, output
    assert "CHECK_FAILED" not in output, output


@pytest.fixture(scope="module")
def commanded(server: DatabaseServer, planted: str) -> Generator[str]:
    """A database with tasks. It does not matter what the commands change."""
    name = server.create(planted)
    with trusting(server.url(name)) as sql:
        sql.execute(f'alter database "{name}" set search_path = public, pg_catalog'.encode())
    with PostgresBroker(PostgresConfig(database_url=server.url(name))) as broker:
        send_new(broker, 3)
    yield server.url(name)
    server.drop(name)


@pytest.fixture
def graphs(intruded: str, monkeypatch: pytest.MonkeyPatch) -> Generator[Any]:
    monkeypatch.setenv("HORSIES_DATABASE_URL", intruded)
    module = load_fresh("graphs")
    yield module
    module.app.close()


def test_no_operation_of_a_producer_or_a_worker_calls_a_planted_object(
    intruded: str, graphs: Any, worker: StartWorker
) -> None:
    running = worker("tests.apps.graphs:app", options=FORKED, database_url=intruded)
    run_journeys(intruded, graphs)
    assert running.terminate() == 0
    assert not [line for line in running.logs if "intrusion" in line or "ERROR" in line]


def test_a_scheduler_calls_no_planted_object(intruded: str, worker: StartWorker) -> None:
    running = worker("tests.apps.scheduled:app", options=("--scheduler",), database_url=intruded)
    with trusting(intruded) as sql:
        ended = "select count(*) > 0 from horsies.finished where status = 'COMPLETED'"
        eventually(lambda: row(sql, ended) == (True,), what="a slot was served", timeout_s=30.0)
    assert running.terminate() == 0
    assert not [line for line in running.logs if "intrusion" in line or "ERROR" in line]


@pytest.mark.parametrize("kind", KINDS)
def test_a_send_on_a_callers_connection_prefers_no_planted_object_and_leaves_their_path_alone(
    kind: str, with_planted: str, graphs: Any
) -> None:
    expect_sends(KINDS[kind](with_planted), '"$user", public', graphs)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("psycopg") or kind == "django"])
def test_a_send_on_a_callers_connection_calls_no_planted_object_that_comes_first(
    kind: str, intruded: str, graphs: Any
) -> None:
    """Only with libraries whose own statements do not call them."""
    expect_sends(KINDS[kind](intruded), "public, pg_catalog", graphs)


def expect_sends(caller: Caller, search_path: str, graphs: Any) -> None:
    url = caller.url
    try:
        with caller.transaction():
            caller.send(graphs.add, 1)
            caller.send(graphs.add, 1, key="k")
            caller.send(graphs.add, 2, key="k", on_conflict="replace")
            assert shown(caller) == search_path
    finally:
        caller.close()
    with trusting(url) as sql:
        assert column(sql, "select args::text from horsies.tasks order by id") == ['{"a":1}', '{"a":2}']


def shown(caller: Caller) -> str:
    return str(caller.run(PostgresBroker(PostgresConfig(database_url=caller.url)), lambda: one(SHOWN_TO_CALLER()))[0])


SHOWN_TO_CALLER = Statement("shown", "select pg_catalog.current_setting('search_path')")


def test_a_workflow_started_on_a_callers_connection_calls_none(intruded: str, graphs: Any) -> None:
    with psycopg.connect(intruded) as connection:
        first = graphs.chain.start(connection=connection)
        assert graphs.chain.start(workflow_id=first.workflow_id, connection=connection).workflow_id == first.workflow_id
    with trusting(intruded) as sql:
        assert row(sql, "select count(*) from horsies.tasks") == (1,)


def test_rows_by_hand_call_none_where_the_path_leads_to_them_second(intruded: str) -> None:
    """As it is by default: PostgreSQL's own objects come first, and only better matches are preferred."""
    with psycopg.connect(intruded, autocommit=True, options='-c search_path="$user",public') as sql:
        sql.execute("listen horsies_7474d027_new")
        sql.execute("insert into horsies.tasks (task_name, args) values ('add', '{}')")
        (received,) = sql.notifies(timeout=5.0, stop_after=1)
    assert received.payload.startswith("100 ")
