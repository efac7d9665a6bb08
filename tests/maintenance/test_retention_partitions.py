"""Finished tasks are dropped by the day, and nothing has to wait for it."""

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from threading import Event
from typing import Any

import psycopg
import pytest

from horsies import BrokerError, RetentionConfig, RetrievalCode, TaskStatus
from horsies.db.broker import PostgresBroker
from horsies.db.faults import When
from horsies.db.partitions import MOVE_AT_MOST, prepare_partitions
from horsies.model.config import PostgresConfig
from horsies.tasks.finish import finish_tasks
from horsies.tasks.inspect import get_status
from tests.fixtures.eventually import eventually, wait_until_blocked
from tests.fixtures.faults import Plant
from tests.fixtures.journey import ME, claim, column, completed, do, row, send_new, wait_for
from tests.fixtures.roles import PlainUser
from tests.maintenance.aged_rows import age, ago, days_of, finish, is_postponed, make_day, places, retained, table_of


def run_one(broker: PostgresBroker) -> str:
    """A task from its send to its end."""
    send_new(broker)
    (held,) = claim(broker)
    assert do(broker, finish_tasks(ME, [completed(held)])) == [[(held.id,)]]
    return held.id


# -- days


def test_a_day_goes_when_even_its_last_task_is_old_enough(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    ahead = days_of(sql)
    for days in (30, 8, 7, 1):
        make_day(sql, days)
    kept = finish(sql, ago(7)) + finish(sql, ago(1)) + finish(sql, ago(0))
    finish(sql, ago(8), 10)
    finish(sql, ago(30), 10)
    assert retained(broker)["finished tasks"].count == 2
    assert days_of(sql) == [table_of(ago(7)), table_of(ago(1)), *ahead]
    assert set(places(sql)) == set(kept)


def test_what_is_kept_without_a_limit_is_kept(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    table = make_day(sql, 400)
    (old,) = finish(sql, ago(400))
    (older,) = finish(sql, ago(500))
    retained(broker, RetentionConfig(finished=None))
    assert places(sql) == {old: table, older: table_of(ago(500))}


def test_a_task_whose_day_is_gone_is_not_found(basic: Any, sql: psycopg.Connection) -> None:
    broker = basic.app.broker
    run_one(broker)
    make_day(sql, 9)
    (task_id,) = column(sql, "select id::text from horsies.finished")
    age(sql, str(task_id), 9)
    assert basic.app.handle(task_id).get().ok_value == 1
    retained(broker)
    assert basic.app.handle(task_id).get(timeout_ms=0).err_value.error_code == RetrievalCode.TASK_NOT_FOUND


def test_look_ups_that_were_planned_before_find_what_has_moved_since(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    """With plans that serve for any parameters, which PostgreSQL makes after five looks."""
    task_id = run_one(broker)
    for _ in range(8):
        assert broker.run(partial(get_status, task_id)) is TaskStatus.COMPLETED
        assert wait_for(broker, task_id, 0)
    for days in (0, 3, 20):  # 20: its day is not kept, so it stays where it fell
        make_day(sql, 10)
        age(sql, task_id, days)
        retained(broker, RetentionConfig(finished=timedelta(days=9)) if days < 9 else RetentionConfig(finished=None))
        assert broker.run(partial(get_status, task_id)) is TaskStatus.COMPLETED
        assert wait_for(broker, task_id, 0)


# -- the default partition


def test_the_default_partition_is_emptied(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    """Into days what is to be kept, out of the world what is old; what lies beyond the days ahead waits there for its time."""
    (kept,), (later,) = finish(sql, ago(3)), finish(sql, ago(-40))
    gone = finish(sql, ago(20), 2_500)
    assert set(places(sql).values()) == {"finished_default"}
    assert retained(broker)["finished tasks"].count == len(gone)
    assert places(sql) == {kept: table_of(ago(3)), later: "finished_default"}


def test_what_is_too_much_to_be_moved_at_once_stays_until_it_is_old(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    many = finish(sql, ago(3), MOVE_AT_MOST + 1)
    (few,) = finish(sql, ago(4))
    assert not is_postponed(retained(broker))
    assert places(sql) == {few: table_of(ago(4))} | dict.fromkeys(many, "finished_default")
    sql.execute("update horsies.finished set finished_at = finished_at - interval '10 days'")
    retained(broker)
    assert places(sql) == {}


def test_no_task_is_missed_that_finishes_while_its_day_is_made(
    broker: PostgresBroker, database: str, sql: psycopg.Connection
) -> None:
    today = str(days_of(sql)[0])
    seen: list[str] = []
    over = Event()

    def finish_and_look() -> None:
        with PostgresBroker(PostgresConfig(database_url=database)) as other:
            while not over.is_set():
                task_id = run_one(other)
                assert other.run(partial(get_status, task_id)) is TaskStatus.COMPLETED
                seen.append(task_id)

    for name in days_of(sql):
        sql.execute(f"drop table horsies.{name}".encode())
    with ThreadPoolExecutor(1) as thread:
        finishing = thread.submit(finish_and_look)
        try:
            eventually(lambda: len(seen) > 20 or finishing.done())
            eventually(lambda: broker.run(partial(prepare_partitions, "horsies")) == [], what="all days are made")
            assert today in days_of(sql)
        finally:
            over.set()
        finishing.result()
    assert places(sql) == dict.fromkeys(seen, today)
    assert run_one(broker) in places(sql)


# -- locks of other sessions


@pytest.fixture
def dump(database: str) -> Generator[psycopg.Connection]:
    with psycopg.connect(database) as connection:
        yield connection


def begin_dump(dump: psycopg.Connection) -> None:
    """As pg_dump does: one snapshot, and a lock on every table."""
    dump.execute("set transaction isolation level repeatable read")
    dump.execute("lock table horsies.finished, horsies.tasks in access share mode")  # the parts of it too


def test_behind_an_open_dump_nothing_is_dropped_and_no_session_waits(
    broker: PostgresBroker, dump: psycopg.Connection, sql: psycopg.Connection
) -> None:
    table = make_day(sql, 9)
    old = finish(sql, ago(9), 3)
    begin_dump(dump)
    assert is_postponed(retained(broker))
    assert set(places(sql)) == set(old), "nor is it emptied"
    waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    assert row(sql, waiting) == (0,)
    run_one(broker)
    assert row(dump, "select count(*) from horsies.finished where finished_at < now() - interval '8 days'") == (3,)
    dump.rollback()
    assert not is_postponed(retained(broker))
    assert table not in days_of(sql)


@contextmanager
def trying(database: str) -> Generator[None]:
    """A session that tries again and again, and never succeeds."""
    over = Event()

    def try_again() -> None:
        with PostgresBroker(PostgresConfig(database_url=database)) as broker:
            while not over.is_set():
                assert is_postponed(retained(broker))

    with ThreadPoolExecutor(1) as thread:
        attempts = thread.submit(try_again)
        try:
            yield
        finally:
            over.set()
        attempts.result()


def test_an_attempt_to_drop_a_day_lets_others_go_on_soon(
    broker: PostgresBroker, database: str, dump: psycopg.Connection, sql: psycopg.Connection
) -> None:
    """A session has locked the whole table, but not the partition: that is emptied, and the lock on the table is not waited for."""
    table = make_day(sql, 9)
    finish(sql, ago(9), 3)
    finish(sql, ago(0))
    dump.execute("select from horsies.finished where finished_at > %s", [ago(0.01)])
    with trying(database):
        for _ in range(5):
            wait_until_blocked(sql, dump)
            assert run_one(broker)
    assert table in days_of(sql)
    assert table not in places(sql).values()
    dump.rollback()
    retained(broker)
    assert table not in days_of(sql)


def test_an_attempt_to_make_a_day_out_of_the_default_lets_others_go_on_soon(
    broker: PostgresBroker, database: str, dump: psycopg.Connection, sql: psycopg.Connection
) -> None:
    (kept,) = finish(sql, ago(3))
    dump.execute("select from horsies.finished where finished_at > %s", [ago(0.01)])
    with trying(database):
        for _ in range(5):
            wait_until_blocked(sql, dump)
            assert run_one(broker)
    assert places(sql)[kept] == "finished_default"
    dump.rollback()
    retained(broker)
    assert places(sql)[kept] == table_of(ago(3))


# -- several at once, and deaths


def test_two_leaders_do_it_once(broker: PostgresBroker, database: str, sql: psycopg.Connection) -> None:
    ahead = days_of(sql)
    for days in (9, 10, 11):
        make_day(sql, days)
        finish(sql, ago(days), 10)
    kept = finish(sql, ago(2)) + finish(sql, ago(3)) + finish(sql, ago(4))
    finish(sql, ago(20), 3_000)
    with PostgresBroker(PostgresConfig(database_url=database)) as other, ThreadPoolExecutor(2) as threads:
        both = [threads.submit(retained, one) for one in (broker, other)]
        for one in both:
            one.result()
    eventually(lambda: not is_postponed(retained(broker)))  # the two may have been in each other's way
    assert places(sql) == dict(zip(kept, [table_of(ago(days)) for days in (2, 3, 4)], strict=True))
    assert days_of(sql) == [table_of(ago(days)) for days in (4, 3, 2)] + ahead


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "statement",
    [
        "get_missing_partitions",
        "move_rows",
        "get_old_partitions",
        "truncate_partition",
        "drop_partition",
        "record_key_endings",
        "delete_finished",
    ],
)
def test_a_process_that_dies_at_it_loses_no_task_and_leaves_the_rest_to_the_next(
    statement: str, when: When, broker: PostgresBroker, sql: psycopg.Connection, faults: Plant
) -> None:
    ahead = days_of(sql)
    make_day(sql, 9)
    finish(sql, ago(9), 3)
    finish(sql, ago(20), 3)
    (kept,) = finish(sql, ago(3))
    faults(statement, when, "drop")
    with pytest.raises(BrokerError, match="planted fault"):
        retained(broker)
    assert kept in places(sql)
    assert not is_postponed(retained(broker))
    assert places(sql) == {kept: table_of(ago(3))}
    assert days_of(sql) == [table_of(ago(3)), *ahead]


# -- without the right to


def test_a_user_who_may_not_drop_days_deletes_what_is_old(
    database: str, sql: psycopg.Connection, plain_user: PlainUser
) -> None:
    table = make_day(sql, 9)
    finish(sql, ago(9), 2_500)
    finish(sql, ago(20))
    kept = finish(sql, ago(3)) + finish(sql, ago(0))
    sql.execute(f"grant usage on schema horsies to {plain_user.name}".encode())
    sql.execute(f"grant select, insert, update, delete on all tables in schema horsies to {plain_user.name}".encode())
    with PostgresBroker(PostgresConfig(database_url=plain_user.url(database))) as broker:
        assert retained(broker)["finished tasks"].count == 2_501
    assert set(places(sql)) == set(kept)
    assert table in days_of(sql)
