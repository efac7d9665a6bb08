"""A blocked claim or start must not take tasks that expire while it waits, although it knows only the time it began."""

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
BLOCK_UPDATES = """
create function block_update() returns trigger language plpgsql as
$$ begin perform pg_advisory_xact_lock(1); return null; end $$;
create trigger block_update before update on horsies.tasks for each statement execute function block_update();
"""


def from_start(broker: PostgresBroker) -> list[str]:
    return [held.id for held in claim(broker)]


def from_watermarks(broker: PostgresBroker) -> list[str]:
    return [held.id for held in claim_lanes(broker, [("default", 100, LONG_AGO)])]


def take_after_expiry(sql: psycopg.Connection, database: str, task_id: str, take: Callable[[], list[str]]) -> list[str]:
    """Block `take` until the task has expired. Returns what it takes then."""
    (limit,) = row(
        sql,
        "update horsies.tasks set good_until = clock_timestamp() + interval '1 s' where id = %s returning good_until",
        task_id,
    )
    sql.execute(BLOCK_UPDATES)
    with psycopg.connect(database, autocommit=True) as other, ThreadPoolExecutor(1) as thread:
        other.execute("select pg_advisory_lock(1)")
        taken = thread.submit(take)
        wait_until_blocked(sql, on=other)
        eventually(lambda: row(sql, "select clock_timestamp() > %s::timestamptz", limit) == (True,))
        other.execute("select pg_advisory_unlock(1)")
        return taken.result(10)


@pytest.mark.promise("W4")
@pytest.mark.parametrize("take", [from_start, from_watermarks])
def test_a_blocked_claim_does_not_take_a_task_that_has_expired(
    take: Callable[[PostgresBroker], list[str]], broker: PostgresBroker, sql: psycopg.Connection, database: str
) -> None:
    late, good = new_task(), new_task()
    send(broker, late, good)
    assert take_after_expiry(sql, database, late.id, lambda: take(broker)) == [good.id]
    assert row(sql, "select status, claim_no from horsies.tasks where id = %s", late.id) == ("PENDING", 0)


@pytest.mark.promise("W5")
def test_a_blocked_start_does_not_start_a_task_that_has_expired(
    broker: PostgresBroker, sql: psycopg.Connection, database: str
) -> None:
    late, good = new_task(), new_task()
    send(broker, late, good)
    claims = claim(broker, status=TaskStatus.CLAIMED)

    def take() -> list[str]:
        (rows,) = do(broker, start_tasks(ME, claims))
        return [task_id for (task_id,) in rows]

    assert take_after_expiry(sql, database, late.id, take) == [good.id]
    assert row(sql, "select status from horsies.tasks where id = %s", late.id) == ("CLAIMED",)
