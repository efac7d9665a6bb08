from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import psycopg
import pytest

from horsies.db.broker import PostgresBroker
from horsies.db.channels import Channel
from horsies.db.statement import Op
from horsies.model.errors import BrokerError
from horsies.model.task import NewTask
from horsies.tasks.enqueue import enqueue, enqueue_again
from horsies.tasks.finish import finish_tasks
from tests.fixtures.eventually import wait_until_blocked
from tests.fixtures.faults import Plant
from tests.fixtures.journey import ME, claim, column, completed, do, new_task, row, send, send_new


def send_safely(broker: PostgresBroker, tasks: list[NewTask], before_again: Callable[[], object] | None = None) -> None:
    """Send as `Task.send` does. `before_again` runs between a send of unknown outcome and its repetition."""

    def again() -> Op[Sequence[str]]:
        if before_again:
            before_again()
        return enqueue_again(tasks)

    broker.run(partial(enqueue, tasks), again=again)


def listen_to_new(sql: psycopg.Connection) -> None:
    sql.execute(f'listen "{Channel.NEW.name_in("horsies")}"'.encode())


def read_notifications(sql: psycopg.Connection) -> list[str]:
    """Return the payloads received so far. A notification of our own marks the end."""
    sql.execute("select pg_notify(%s, 'end')", [Channel.NEW.name_in("horsies")])
    payloads: list[str] = []
    for notification in sql.notifies(timeout=5.0):
        if notification.payload == "end":
            return payloads
        payloads.append(notification.payload)
    raise AssertionError("the end was never read_notifications")


@pytest.mark.promise("A3")
def test_a_task_becomes_a_pending_row(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    sent = new_task("resize", queue_name="media", priority=7, args='{"text": "\\u0000 \\"é"}')
    send(broker, sent)
    found = row(
        sql,
        "select id::text, task_name, queue_name, priority, args::text, status, ready, attempts, claim_no, claimed_by, "
        "enqueued_at = sent_at, now() - sent_at < interval '1 minute' from horsies.tasks",
    )
    assert found[:5] == (sent.id, "resize", "media", 7, '{"text": "\\u0000 \\"é"}')
    assert found[5:] == ("PENDING", True, 0, 0, None, True, True)


def test_tasks_are_claimed_in_the_order_they_were_sent(broker: PostgresBroker) -> None:
    tasks = send_new(broker, 500)
    found = [claim(broker, 1)[0].id for _ in range(5)] + [held.id for held in claim(broker, 500)]
    assert found == [task.id for task in tasks]


def test_a_batch_is_sent_completely_or_not_at_all(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    with pytest.raises(BrokerError, match="invalid input syntax for type json"):
        send(broker, new_task(), new_task(args="{"), new_task())
    assert row(sql, "select count(*) from horsies.tasks") == (0,)


def test_an_existing_id_is_not_sent_again(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    (sent,) = send_new(broker)
    with pytest.raises(BrokerError, match="tasks_pkey"):
        send(broker, new_task(), sent)
    assert row(sql, "select count(*) from horsies.tasks") == (1,)


# -- notifications


@pytest.mark.promise("A7")
def test_an_insert_with_sql_wakes_workers(sql: psycopg.Connection) -> None:
    listen_to_new(sql)
    sql.execute("insert into horsies.tasks (task_name, enqueued_at) values ('add', '2001-02-03 04:05:06.000007+00')")
    assert read_notifications(sql) == ["100 981173106000007 default"]


@pytest.mark.promise("A7")
def test_a_statement_notifies_once_per_queue_and_priority_with_the_oldest_row(sql: psycopg.Connection) -> None:
    listen_to_new(sql)
    sql.execute(
        "insert into horsies.tasks (task_name, queue_name, priority, enqueued_at) "
        "select 'add', queue, priority, to_timestamp(1000 + n) "
        "from generate_series(1, 300) as n, unnest(array['a', 'b c']) as queue, unnest(array[1, 2]) as priority"
    )
    assert sorted(read_notifications(sql)) == [
        "1 1001000000 a",
        "1 1001000000 b c",
        "2 1001000000 a",
        "2 1001000000 b c",
    ]


def test_an_insert_without_rows_sends_no_notification(sql: psycopg.Connection) -> None:
    listen_to_new(sql)
    sql.execute("insert into horsies.tasks (task_name) select 'add' where false")
    assert read_notifications(sql) == []


def test_a_send_that_is_rolled_back_sends_no_notification(database: str, sql: psycopg.Connection) -> None:
    listen_to_new(sql)
    with psycopg.connect(database) as connection:
        connection.execute("insert into horsies.tasks (task_name) values ('add')")
        connection.rollback()
    assert read_notifications(sql) == []


# -- a send whose outcome is unknown


def test_a_send_that_did_not_reach_the_server_is_repeated(
    broker: PostgresBroker, faults: Plant, sql: psycopg.Connection
) -> None:
    tasks = [new_task(), new_task()]
    faults("enqueue_tasks", "before", "drop")
    send_safely(broker, tasks)
    assert column(sql, "select id::text from horsies.tasks order by id") == [task.id for task in tasks]


def test_a_send_with_a_lost_answer_enqueues_once(
    broker: PostgresBroker, faults: Plant, sql: psycopg.Connection
) -> None:
    tasks = [new_task(), new_task()]
    faults("enqueue_tasks", "after", "drop")
    send_safely(broker, tasks)
    assert column(sql, "select id::text from horsies.tasks order by id") == [task.id for task in tasks]


def test_a_send_with_two_lost_answers_enqueues_once(
    broker: PostgresBroker, faults: Plant, sql: psycopg.Connection
) -> None:
    faults("enqueue_tasks", "after", "drop")
    faults("commit_send", "after", "drop")
    send_safely(broker, [new_task()])
    assert row(sql, "select count(*) from horsies.tasks") == (1,)


async def test_an_async_send_with_a_lost_answer_enqueues_once(
    async_broker: PostgresBroker, faults: Plant, sql: psycopg.Connection
) -> None:
    tasks = [new_task()]
    faults("enqueue_tasks", "after", "drop")
    await async_broker.run_async(partial(enqueue, tasks), again=partial(enqueue_again, tasks))
    assert row(sql, "select count(*) from horsies.tasks") == (1,)


def test_a_repeated_send_leaves_a_claimed_task_claimed(
    broker: PostgresBroker, faults: Plant, sql: psycopg.Connection
) -> None:
    faults("enqueue_tasks", "after", "drop")
    send_safely(broker, [new_task()], before_again=lambda: claim(broker))
    assert row(sql, "select status, claim_no, claimed_by::text from horsies.tasks") == ("RUNNING", 1, ME)


def test_a_repeated_send_does_not_run_a_finished_task_again(
    broker: PostgresBroker, faults: Plant, sql: psycopg.Connection
) -> None:
    finished, pending = new_task(), new_task()

    def run_the_first() -> None:
        (held,) = claim(broker, 1)
        do(broker, finish_tasks(ME, [completed(held)]))

    faults("enqueue_tasks", "after", "drop")
    send_safely(broker, [finished, pending], before_again=run_the_first)
    assert column(sql, "select id::text from horsies.finished") == [finished.id]
    assert column(sql, "select id::text from horsies.tasks") == [pending.id]


def test_a_repeated_send_does_not_run_a_task_again_that_is_being_finished(
    broker: PostgresBroker, database: str, faults: Plant, sql: psycopg.Connection
) -> None:
    with psycopg.connect(database) as finisher, ThreadPoolExecutor(1) as thread:

        def begin_to_finish() -> None:
            (held,) = claim(broker)
            query = finish_tasks(ME, [completed(held)])
            finisher.execute(query.statement.for_schema("horsies"), query.params)  # not committed yet

        faults("enqueue_tasks", "after", "drop")
        sending = thread.submit(send_safely, broker, [new_task()], begin_to_finish)
        wait_until_blocked(sql, on=finisher)
        finisher.commit()
        sending.result()
    assert row(sql, "select count(*) from horsies.tasks") == (0,)
    assert row(sql, "select count(*) from horsies.finished") == (1,)


def test_only_a_lost_connection_repeats_a_send(broker: PostgresBroker, faults: Plant, sql: psycopg.Connection) -> None:
    faults("enqueue_tasks", "after", "error")
    with pytest.raises(BrokerError, match="planted fault"):
        send_safely(broker, [new_task()])
    assert row(sql, "select count(*) from horsies.tasks") == (1,)
