import psycopg
import pytest

from horsies.db.broker import PostgresBroker
from horsies.db.channels import Channel
from horsies.model.status import TaskStatus
from horsies.model.task import Claim
from horsies.tasks.claim import start_tasks
from horsies.tasks.finish import finish_tasks, get_held_tasks, notify_new_tasks, release_tasks
from tests.fixtures.journey import ME, OTHER, claim, completed, do, new_task, row, send, send_new


def buffer(broker: PostgresBroker, count: int = 1) -> list[Claim]:
    send_new(broker, count)
    return claim(broker, count, status=TaskStatus.CLAIMED)


def started(broker: PostgresBroker, claims: list[Claim], worker: str = ME) -> list[str]:
    (rows,) = do(broker, start_tasks(worker, claims))
    return sorted(task_id for (task_id,) in rows)


def test_buffered_claims_start_together(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    claims = buffer(broker, 5)
    assert started(broker, claims) == [held.id for held in claims]
    assert row(
        sql,
        "select count(*) from horsies.tasks where status = 'RUNNING' and started_at >= claimed_at and lease_until is null",
    ) == (5,)


@pytest.mark.promise("C14")
def test_a_claim_with_an_expired_lease_does_not_start(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    claims = buffer(broker, 2)
    sql.execute("update horsies.tasks set lease_until = now() - interval '1 ms' where id = %s", [claims[0].id])
    assert started(broker, claims) == [claims[1].id]


@pytest.mark.promise("W5")
def test_a_task_that_expired_in_the_buffer_does_not_start(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    claims = buffer(broker, 2)
    sql.execute("update horsies.tasks set good_until = now() - interval '1 ms' where id = %s", [claims[0].id])
    assert started(broker, claims) == [claims[1].id]


@pytest.mark.promise("C14")
def test_a_lost_claim_does_not_start(broker: PostgresBroker) -> None:
    claims = buffer(broker)
    do(broker, release_tasks(ME, claims))
    again = claim(broker, worker=OTHER, status=TaskStatus.CLAIMED)
    assert started(broker, claims, ME) == []
    assert started(broker, claims, OTHER) == [], "another claim number"
    assert started(broker, again, OTHER) == [claims[0].id]


def test_a_task_starts_once(broker: PostgresBroker) -> None:
    claims = buffer(broker)
    assert len(started(broker, claims)) == 1
    assert started(broker, claims) == []


def test_a_started_claim_ends_under_the_same_number(broker: PostgresBroker) -> None:
    claims = buffer(broker)
    started(broker, claims)
    assert do(broker, finish_tasks(ME, [completed(claims[0])])) == [[(claims[0].id,)]]


# -- held and released tasks


def test_a_worker_can_list_its_claims(broker: PostgresBroker) -> None:
    send_new(broker, 4)
    mine = claim(broker, 1) + claim(broker, 1, status=TaskStatus.CLAIMED)
    claim(broker, 1, worker=OTHER)
    (rows,) = do(broker, get_held_tasks(ME))
    held = sorted([Claim(*row) for row in rows], key=lambda claim: claim.id)
    assert held == [claim._replace(args=None) for claim in mine]


def test_a_release_notifies_once_per_queue_and_priority(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    sql.execute(
        "insert into horsies.tasks (task_name, queue_name, priority, enqueued_at) "
        "select 'add', queue, priority, to_timestamp(1000 + n) "
        "from generate_series(1, 3) as n, unnest(array['a', 'b']) as queue, unnest(array[1, 2]) as priority"
    )
    claims = claim(broker, 100, queues=["a", "b"])
    assert len(claims) == 12
    sql.execute(f'listen "{Channel.NEW.name_in("horsies")}"'.encode())
    do(broker, release_tasks(ME, claims), *notify_new_tasks(claims))
    payloads = [notification.payload for notification in sql.notifies(timeout=5.0, stop_after=4)]
    assert sorted(payloads) == ["any 1 1001000000 a", "any 1 1001000000 b", "any 2 1001000000 a", "any 2 1001000000 b"]


def test_a_release_notifies_with_the_payload_of_the_insert_for_any_worker(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    """Not only the one whose turn it is: that may be the one that released it, because it cannot run it."""
    sql.execute(f'listen "{Channel.NEW.name_in("horsies")}"'.encode())
    send(broker, new_task(queue_name="odd:queue.name", priority=3))
    (held,) = claim(broker, queues=["odd:queue.name"])
    do(broker, release_tasks(ME, [held]), *notify_new_tasks([held]))
    inserted, released = [notification.payload for notification in sql.notifies(timeout=5.0, stop_after=2)]
    assert released == f"any {inserted}"
