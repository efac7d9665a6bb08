"""Retrying a finished task: it is enqueued once, however many callers retry it."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import psycopg
import pytest

from horsies import RetryOutcome, TaskStatus
from horsies.db.broker import PostgresBroker
from horsies.db.faults import When
from horsies.model.task import Claim
from horsies.tasks.control import CancelOutcome, Requeue, cancel_tasks, cancel_unstarted_tasks
from horsies.tasks.finish import finish_tasks
from horsies.tasks.ids import new_task_id
from tests.fixtures.eventually import eventually, wait_until_blocked
from tests.fixtures.faults import Plant
from tests.fixtures.journey import ME, claim, column, completed, do, failed, row, send_new
from tests.fixtures.shops import Shop

QUEUES = ("parcels", "letters")


def run_one(broker: PostgresBroker, ending: Callable[[Claim], Any] = failed) -> Claim:
    """Claim and end the pending task."""
    (held,) = claim(broker, queues=("default", *QUEUES))
    do(broker, finish_tasks(ME, [ending(held)]))
    return held


def fail_one(broker: PostgresBroker) -> Claim:
    send_new(broker)
    return run_one(broker)


def retry(broker: PostgresBroker, task_id: str, *, force: bool = False) -> RetryOutcome:
    verb = Requeue([task_id], force=force)
    return broker.run(verb, again=verb)[task_id]


def test_a_retried_task_is_due_now_with_a_new_claim_number(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    first = fail_one(broker)
    assert retry(broker, first.id) is RetryOutcome.RETRIED
    assert column(sql, "select id from horsies.finished") == []
    status, ready, due, claim_no, attempts, attempt = row(
        sql,
        "select status, ready, enqueued_at <= now(), claim_no, attempts, failed_attempts[1]::text from horsies.tasks",
    )
    assert (status, ready, due, claim_no, attempts) == ("PENDING", True, True, first.claim_no + 1, 1)
    assert {"attempt": 1, "error_code": "BROKEN", "worker": ME}.items() <= json.loads(attempt).items()
    (second,) = claim(broker)
    assert (second.id, second.attempt, second.claim_no) == (first.id, 2, first.claim_no + 2)


def test_a_late_finisher_of_the_attempt_before_the_retry_changes_nothing(broker: PostgresBroker) -> None:
    first = fail_one(broker)
    retry(broker, first.id)
    assert do(broker, finish_tasks(ME, [completed(first)])) == [[]]
    (second,) = claim(broker)
    assert do(broker, finish_tasks(ME, [completed(first)])) == [[]]
    assert do(broker, finish_tasks(ME, [completed(second)])) == [[(first.id,)]]


def test_a_retry_clears_the_result_kept_on_the_handle(shop: Shop) -> None:
    handle = shop.pack.send(7)
    run_one(shop.app.broker)
    assert handle.get().err_value.error_code == "BROKEN"
    assert handle.retry() is RetryOutcome.RETRIED
    assert handle.get(0).err_value.error_code == "WAIT_TIMEOUT"
    run_one(shop.app.broker, partial(completed, result="7"))
    assert handle.get().ok_value == 7


async def test_an_async_retry_makes_the_task_pending(shop: Shop) -> None:
    handle = await shop.pack.send_async(7)
    run_one(shop.app.broker)
    assert await handle.retry_async() is RetryOutcome.RETRIED
    assert await handle.status_async() is TaskStatus.PENDING
    await shop.app.close_async()


def test_a_retry_distinguishes_live_and_unknown_tasks(broker: PostgresBroker) -> None:
    (task,) = send_new(broker)
    assert retry(broker, task.id) is RetryOutcome.NOT_ENDED
    assert retry(broker, new_task_id()) is RetryOutcome.NOT_FOUND


def test_a_task_that_succeeded_runs_again_only_with_force(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    (task,) = send_new(broker)
    run_one(broker, completed)
    assert retry(broker, task.id) is RetryOutcome.SUCCEEDED
    assert retry(broker, task.id, force=True) is RetryOutcome.RETRIED
    ended = "failed_attempts[1]->>'error_code', failed_attempts[1]->>'attempt', cardinality(failed_attempts)"
    assert row(sql, f"select {ended} from horsies.tasks") == (None, "1", 1)


def test_a_task_past_its_good_until_runs_again_only_with_force_and_loses_it(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    ended = fail_one(broker)
    sql.execute("update horsies.finished set good_until = now() - interval '1 s'")
    assert retry(broker, ended.id) is RetryOutcome.TOO_LATE
    assert retry(broker, ended.id, force=True) is RetryOutcome.RETRIED
    assert row(sql, "select good_until from horsies.tasks") == (None,)


def test_a_good_until_in_the_future_is_kept(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    ended = fail_one(broker)
    sql.execute("update horsies.finished set good_until = now() + interval '1 h'")
    assert retry(broker, ended.id) is RetryOutcome.RETRIED
    assert row(sql, "select good_until > now() from horsies.tasks") == (True,)


@pytest.mark.parametrize("force", [False, True])
def test_the_task_of_a_workflow_node_is_not_retried(
    broker: PostgresBroker, sql: psycopg.Connection, *, force: bool
) -> None:
    ended = fail_one(broker)
    sql.execute("update horsies.finished set node_id = gen_random_uuid()")
    assert retry(broker, ended.id, force=force) is RetryOutcome.IN_WORKFLOW
    assert column(sql, "select id from horsies.tasks") == []


# -- lost answers


@pytest.mark.parametrize(
    ("statement", "when"),
    [("get_finished_tasks", "after"), ("lock_keys", "after"), ("requeue_tasks", "before"), ("commit_retry", "after")],
)
def test_a_retry_with_a_lost_answer_is_made_once(
    broker: PostgresBroker, sql: psycopg.Connection, faults: Plant, statement: str, when: When
) -> None:
    ended = fail_one(broker)
    faults(statement, when, "drop")
    assert retry(broker, ended.id) is RetryOutcome.RETRIED
    assert row(sql, "select status, claim_no from horsies.tasks") == ("PENDING", ended.claim_no + 1)


@pytest.mark.parametrize("ended_by", ["a worker", "a cancellation"])
def test_a_repeated_retry_does_not_undo_a_later_ending(
    broker: PostgresBroker, sql: psycopg.Connection, ended_by: str
) -> None:
    ended = fail_one(broker)
    before = row(sql, "select finished_at from horsies.finished")[0]
    verb = Requeue([ended.id], force=True)
    broker.run(verb)
    if ended_by == "a worker":
        run_one(broker)
    else:
        broker.run(partial(cancel_unstarted_tasks, [ended.id]))
    sql.execute("update horsies.finished set finished_at = %s", [before])  # as if the server's clock had been set back
    assert broker.run(verb) == {ended.id: RetryOutcome.RETRIED}
    assert column(sql, "select id from horsies.tasks") == []
    assert row(sql, "select count(*) from horsies.finished") == (1,)


# -- concurrent changes


def test_two_concurrent_retries_enqueue_the_task_once(
    broker: PostgresBroker, sql: psycopg.Connection, database: str
) -> None:
    ended = fail_one(broker)
    with psycopg.connect(database) as holder, ThreadPoolExecutor(2) as threads:
        holder.execute("select from horsies.finished for update")
        both = [threads.submit(retry, broker, ended.id) for _ in range(2)]
        eventually(lambda: len(column(sql, BLOCKED)) == 2, what="both wait for the row")
        holder.rollback()
        outcomes = [one.result(10) for one in both]
    assert sorted(outcome.name for outcome in outcomes) == ["NOT_ENDED", "RETRIED"]
    assert row(sql, "select claim_no from horsies.tasks") == (ended.claim_no + 1,)


BLOCKED = "select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"


def test_a_retry_while_the_partition_is_dropped_finds_nothing(
    broker: PostgresBroker, sql: psycopg.Connection, database: str
) -> None:
    ended = fail_one(broker)
    day = row(sql, "select tableoid::regclass::text from horsies.finished")[0]
    with psycopg.connect(database) as leader, ThreadPoolExecutor(1) as threads:
        leader.execute(f"truncate {day}".encode())
        late = threads.submit(retry, broker, ended.id)
        wait_until_blocked(sql, leader)
        leader.commit()  # the maintenance leader truncates a partition before it drops it
        assert late.result(10) is RetryOutcome.NOT_FOUND
    assert column(sql, "select id from horsies.tasks") == []


def test_a_concurrent_cancellation_and_ending_store_one_ending(
    broker: PostgresBroker, sql: psycopg.Connection, database: str
) -> None:
    (task,) = send_new(broker)
    (held,) = claim(broker)
    with psycopg.connect(database) as holder, ThreadPoolExecutor(2) as threads:
        holder.execute("select from horsies.tasks for update")
        ending = threads.submit(do, broker, finish_tasks(ME, [completed(held)]))
        wait_until_blocked(sql, holder)
        cancelling = threads.submit(broker.run, partial(cancel_tasks, [task.id]))
        eventually(lambda: len(column(sql, BLOCKED)) == 2, what="both wait for the row")
        holder.rollback()
        assert ending.result(10) == [[(task.id,)]]
        assert cancelling.result(10)[task.id] in {CancelOutcome.ALREADY_ENDED, CancelOutcome.REQUESTED}
    assert column(sql, "select status from horsies.all_tasks") == ["COMPLETED"]


# -- keys


def test_a_retried_task_holds_its_key_again(shop: Shop) -> None:
    keyed = shop.pack.with_options(key="invoice-7")
    first = keyed.send(7)
    run_one(shop.app.broker)
    assert first.retry() is RetryOutcome.RETRIED
    assert keyed.send(7).task_id == first.task_id


@pytest.mark.parametrize("is_live", [True, False])
def test_a_task_whose_key_was_taken_is_retried_only_with_force(shop: Shop, *, is_live: bool) -> None:
    keyed = shop.pack.with_options(key="invoice-7")
    first = keyed.send(7)
    run_one(shop.app.broker)
    second = keyed.send(7)
    assert second.task_id != first.task_id
    if not is_live:
        run_one(shop.app.broker, completed)
    assert first.retry() is RetryOutcome.KEY_TAKEN
    assert first.retry(force=True) is RetryOutcome.RETRIED
    assert keyed.send(7).task_id == second.task_id if is_live else True


def test_a_taken_key_is_noticed_after_many_holders(shop: Shop) -> None:
    keyed = shop.pack.with_options(key="invoice-7")
    handles = [keyed.send(7)]
    for _ in range(3):
        run_one(shop.app.broker)
        handles.append(keyed.send(7))
    assert [handle.retry() for handle in handles] == [*[RetryOutcome.KEY_TAKEN] * 3, RetryOutcome.NOT_ENDED]


def test_a_send_during_the_retry_of_the_former_holder_returns_that_task(
    shop: Shop, sql: psycopg.Connection, database: str
) -> None:
    keyed = shop.pack.with_options(key="invoice-7")
    first = keyed.send(7)
    run_one(shop.app.broker)
    with psycopg.connect(database) as holder, ThreadPoolExecutor(2) as threads:
        holder.execute("select from horsies.finished for update")
        retried = threads.submit(first.retry)
        wait_until_blocked(sql, holder)  # the retry has locked the key
        sent = threads.submit(keyed.send, 7)
        eventually(lambda: len(column(sql, BLOCKED)) == 2, what="the send waits for the key")
        holder.rollback()
        assert retried.result(10) is RetryOutcome.RETRIED
        assert sent.result(10).task_id == first.task_id
    assert row(sql, "select count(*) from horsies.tasks") == (1,)


def test_a_retry_while_another_send_takes_the_key_is_refused(
    shop: Shop, sql: psycopg.Connection, database: str
) -> None:
    keyed = shop.pack.with_options(key="invoice-7")
    first = keyed.send(7)
    run_one(shop.app.broker)
    with psycopg.connect(database) as mine, ThreadPoolExecutor(1) as threads:
        second = shop.pack.with_options(key="invoice-7", connection=mine).send(7)
        retried = threads.submit(first.retry)
        wait_until_blocked(sql, mine)
        mine.commit()
        assert retried.result(10) is RetryOutcome.KEY_TAKEN
    assert column(sql, "select id::text from horsies.tasks") == [second.task_id]
