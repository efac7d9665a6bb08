"""A statement knows the moment of its own start. One that is held up after it must not start what expires meanwhile."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import psycopg
import pytest

from horsies.db.broker import PostgresBroker
from horsies.model.status import TaskStatus
from horsies.tasks.claim import start_tasks
from tests.fixtures.eventually import eventually, wait_until_blocked
from tests.fixtures.journey import ME, claim, claim_lanes, do, new_task, row, send

LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)
HELD_UP = """
create function hold_up() returns trigger language plpgsql as
$$ begin perform pg_advisory_xact_lock(1); return null; end $$;
create trigger hold_up before update on horsies.tasks for each statement execute function hold_up();
"""


def from_start(broker: PostgresBroker) -> list[str]:
    return [held.id for held in claim(broker)]


def from_marks(broker: PostgresBroker) -> list[str]:
    return [held.id for held in claim_lanes(broker, [("default", 100, LONG_AGO)])]


def expire_while_held_up(
    sql: psycopg.Connection, database: str, task_id: str, take: Callable[[], list[str]]
) -> list[str]:
    """What is taken by who was let go after that task's time was over."""
    (limit,) = row(
        sql,
        "update horsies.tasks set good_until = clock_timestamp() + interval '1 s' where id = %s returning good_until",
        task_id,
    )
    sql.execute(HELD_UP)
    with psycopg.connect(database, autocommit=True) as other, ThreadPoolExecutor(1) as aside:
        other.execute("select pg_advisory_lock(1)")
        taken = aside.submit(take)
        wait_until_blocked(sql, on=other)
        eventually(lambda: row(sql, "select clock_timestamp() > %s::timestamptz", limit) == (True,))
        other.execute("select pg_advisory_unlock(1)")
        return taken.result(10)


@pytest.mark.promise("W4")
@pytest.mark.parametrize("take", [from_start, from_marks])
def test_a_claim_leaves_what_has_expired_since_it_was_asked_for(
    take: Callable[[PostgresBroker], list[str]], broker: PostgresBroker, sql: psycopg.Connection, database: str
) -> None:
    late, good = new_task(), new_task()
    send(broker, late, good)
    assert expire_while_held_up(sql, database, late.id, lambda: take(broker)) == [good.id]
    assert row(sql, "select status, claim_no from horsies.tasks where id = %s", late.id) == ("PENDING", 0)


@pytest.mark.promise("W5")
def test_what_has_expired_since_it_was_to_be_started_is_not(
    broker: PostgresBroker, sql: psycopg.Connection, database: str
) -> None:
    late, good = new_task(), new_task()
    send(broker, late, good)
    claims = claim(broker, status=TaskStatus.CLAIMED)

    def take() -> list[str]:
        (rows,) = do(broker, start_tasks(ME, claims))
        return [task_id for (task_id,) in rows]

    assert expire_while_held_up(sql, database, late.id, take) == [good.id]
    assert row(sql, "select status from horsies.tasks where id = %s", late.id) == ("CLAIMED",)
