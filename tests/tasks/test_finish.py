import queue
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import psycopg
import pytest

from horsies.db.broker import PostgresBroker
from horsies.db.channels import Channel
from horsies.db.statement import Query
from horsies.model.attempt_log import KeptLines, LoggedLine
from horsies.model.codec import encode_error
from horsies.model.error_codes import OutcomeCode
from horsies.model.result import TaskError
from horsies.model.retry_policy import RetryPolicy
from horsies.model.status import TaskStatus
from horsies.model.task import Claim, Ending, NewTask, TaskOptions
from horsies.tasks.finish import (
    end_or_retry_tasks,
    finish_tasks,
    notify_done,
    release_interrupted_tasks,
    release_tasks,
    store_logs,
)
from horsies.tasks.ids import new_task_id
from horsies.tasks.inspect import FailedAttempt, get_info
from tests.fixtures.eventually import wait_until_blocked
from tests.fixtures.journey import ME, OTHER, claim, column, completed, do, failed, new_task, row, send, send_new


def execute(connection: psycopg.Connection, query: Query) -> list[str]:
    """Execute on the test's own connection, and leave the transaction open."""
    cursor = connection.execute(query.statement.for_schema("horsies"), query.params)
    return [task_id for (task_id,) in cursor.fetchall()]


def ended(broker: PostgresBroker, query: Query) -> list[str]:
    (rows,) = do(broker, query)
    return sorted(task_id for (task_id,) in rows)


@pytest.mark.promise("W7")
def test_a_completed_task_moves_to_the_finished_table_with_all_columns(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    send(broker, new_task("resize", queue_name="default", priority=7, args='{"n": 1}'))
    columns = "id, task_name, queue_name, priority, args::text, sent_at, enqueued_at, good_until"
    before = row(sql, f"select {columns} from horsies.tasks")
    (held,) = claim(broker)
    assert ended(broker, finish_tasks(ME, [completed(held, '{"width": "\\u0000"}')])) == [held.id]
    assert column(sql, "select id from horsies.tasks") == []
    assert row(sql, f"select {columns} from horsies.finished") == before
    assert row(
        sql,
        "select status, result::text, error_code, error, attempts, claim_no, claimed_by::text, "
        "finished_at >= started_at and now() - finished_at < interval '1 minute' from horsies.finished",
    ) == ("COMPLETED", '{"width": "\\u0000"}', None, None, 1, 1, ME, True)


@pytest.mark.promise("W7")
def test_a_failed_task_keeps_its_code_and_its_error(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    send_new(broker)
    (held,) = claim(broker)
    do(broker, finish_tasks(ME, [failed(held, "CARD_DECLINED", '{"error_code": "CARD_DECLINED"}')]))
    assert row(sql, "select status, result, error_code, error::text from horsies.finished") == (
        "FAILED",
        None,
        "CARD_DECLINED",
        '{"error_code": "CARD_DECLINED"}',
    )


@pytest.mark.promise("D4")
def test_an_interrupted_task_is_released_uncounted_unless_it_may_not_run_again(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    """The others end by the statement that follows: those with a cancel request, without retries left, or without a policy."""
    retry = RetryPolicy.fixed([60], auto_retry_for=["BUSY"])
    again, cancelled, used_up, plain = (
        NewTask(new_task_id(), "{}", TaskOptions("add", "default", retry=policy))
        for policy in (retry, retry, retry, None)
    )
    for task in (again, cancelled, used_up, plain):
        send(broker, task)
    endings = [failed(held, OutcomeCode.INTERRUPTED, "{}") for held in claim(broker)]
    sql.execute("update horsies.tasks set cancel_requested_at = now() where id = %s", [cancelled.id])
    sql.execute("update horsies.tasks set attempts = 1 where id = %s", [used_up.id])
    assert ended(broker, release_interrupted_tasks(ME, endings)) == [again.id]
    assert row(
        sql,
        "select id::text, status, ready, attempts, claimed_by, failed_attempts[1]::text::jsonb->'counted' from horsies.tasks where status = 'PENDING'",
    ) == (again.id, "PENDING", True, 0, None, False)
    assert ended(broker, finish_tasks(ME, endings)) == sorted(task.id for task in (cancelled, used_up, plain))


@pytest.mark.promise("W9", "T1")
def test_a_failure_after_the_last_retry_ends_the_task_whatever_process_reports_it(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    """The maintenance leader reports the tasks of dead workers so, whatever retries they have left."""
    terms = TaskOptions("add", "default", retry=RetryPolicy.fixed([60], auto_retry_for=["WORKER_CRASHED"]))
    tasks = [NewTask(new_task_id(), "{}", terms) for _ in range(2)]
    for task in tasks:
        send(broker, task)
    sql.execute("update horsies.tasks set attempts = 1 where id = %s", [tasks[0].id])
    (found,) = do(broker, end_or_retry_tasks(ME, [failed(held, "WORKER_CRASHED") for held in claim(broker)]))
    assert {task_id: retry_s is not None for task_id, retry_s, *_ in found} == {tasks[0].id: False, tasks[1].id: True}
    assert column(sql, "select id::text from horsies.finished") == [tasks[0].id]


LONG = '{"error_code":"BUSY","message":"so it began\\u0000","data":"' + 50_000 * "ä" + ' and so it ended"}'


def retried(broker: PostgresBroker, error: str) -> FailedAttempt:
    """Fail a task with this error and retry it. Returns what is stored of the attempt."""
    terms = TaskOptions("add", "default", retry=RetryPolicy.fixed([60], auto_retry_for=["BUSY"]))
    task = NewTask(new_task_id(), "{}", terms)
    send(broker, task)
    do(broker, end_or_retry_tasks(ME, [failed(held, "BUSY", error) for held in claim(broker)]))
    info = broker.run(partial(get_info, task.id))
    assert info is not None
    (past,) = info.failed_attempts
    return past


@pytest.mark.promise("T1")
def test_a_failed_attempt_keeps_the_start_and_the_end_of_a_long_error(broker: PostgresBroker) -> None:
    """Every attempt rewrites the row with all stored attempts."""
    error = retried(broker, LONG).error
    assert error is not None
    assert (error.error_code, error.message) == (
        "BUSY",
        f"its error took {len(LONG.encode())} bytes; the beginning and the end are kept",
    )
    kept = error.data["truncated"]
    assert "so it began" in kept
    assert "so it ended" in kept
    assert len(kept) < 10_000


@pytest.mark.promise("T1")
def test_an_error_of_usual_length_is_not_shortened(broker: PostgresBroker) -> None:
    error = TaskError(error_code="BUSY", message="\0", data={"traceback": 10_000 * "x"})
    assert retried(broker, encode_error(error)).error == error


def test_a_batch_is_one_statement(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    send_new(broker, 20)
    claims = claim(broker, 20)
    endings = [completed(held, str(number)) if number % 2 else failed(held) for number, held in enumerate(claims)]
    assert ended(broker, finish_tasks(ME, list(reversed(endings)))) == [held.id for held in claims]
    found = sql.execute("select id::text, status, result::text from horsies.finished order by id").fetchall()
    assert found == [(ending.id, ending.status.value, ending.result) for ending in endings]


# -- the fence


def test_a_late_finisher_changes_nothing(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    """It has lost its claim, and another worker holds the task."""
    send_new(broker)
    (late,) = claim(broker, worker=ME)
    do(broker, release_tasks(ME, [late]))
    (held,) = claim(broker, worker=OTHER)
    assert ended(broker, finish_tasks(ME, [completed(late, '"late"')])) == []
    assert row(sql, "select status, claimed_by::text from horsies.tasks") == ("RUNNING", OTHER)
    assert ended(broker, finish_tasks(OTHER, [completed(held, '"in time"')])) == [held.id]
    assert row(sql, "select result::text from horsies.finished") == ('"in time"',)


def test_an_earlier_claim_of_the_same_worker_cannot_end_the_task(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    send_new(broker)
    (first,) = claim(broker)
    do(broker, release_tasks(ME, [first]))
    (second,) = claim(broker)
    assert ended(broker, finish_tasks(ME, [completed(first)])) == []
    assert ended(broker, finish_tasks(ME, [completed(second)])) == [second.id]


def test_another_incarnation_cannot_end_the_task(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    send_new(broker)
    (held,) = claim(broker)
    assert ended(broker, finish_tasks(OTHER, [completed(held)])) == []
    assert row(sql, "select count(*) from horsies.finished") == (0,)


def test_a_repeated_ending_is_stored_once(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    send_new(broker)
    (held,) = claim(broker)
    assert ended(broker, finish_tasks(ME, [completed(held)])) == [held.id]
    assert ended(broker, finish_tasks(ME, [completed(held)])) == []
    assert row(sql, "select count(*) from horsies.finished") == (1,)


def test_a_lost_claim_does_not_block_the_rest_of_the_batch(broker: PostgresBroker) -> None:
    send_new(broker, 3)
    mine = claim(broker, 2, worker=ME)
    (theirs,) = claim(broker, 1, worker=OTHER)
    stale = mine[0]._replace(claim_no=mine[0].claim_no + 1)
    assert ended(broker, finish_tasks(ME, [completed(stale), completed(mine[1]), completed(theirs)])) == [mine[1].id]


def test_a_finisher_that_waits_for_another_changes_nothing(
    broker: PostgresBroker, database: str, sql: psycopg.Connection
) -> None:
    send_new(broker)
    (held,) = claim(broker)
    with psycopg.connect(database) as winner, ThreadPoolExecutor(1) as thread:
        assert execute(winner, finish_tasks(ME, [completed(held, '"winner"')])) == [held.id]
        loser = thread.submit(ended, broker, finish_tasks(ME, [completed(held, '"loser"')]))
        wait_until_blocked(sql, on=winner)
        winner.commit()
        assert loser.result() == []
    assert column(sql, "select result::text from horsies.finished") == ['"winner"']


def test_a_waiting_finisher_succeeds_when_the_other_rolls_back(
    broker: PostgresBroker, database: str, sql: psycopg.Connection
) -> None:
    send_new(broker)
    (held,) = claim(broker)
    with psycopg.connect(database) as first, ThreadPoolExecutor(1) as thread:
        execute(first, finish_tasks(ME, [completed(held, '"first"')]))
        second = thread.submit(ended, broker, finish_tasks(ME, [completed(held, '"second"')]))
        wait_until_blocked(sql, on=first)
        first.rollback()
        assert second.result() == [held.id]
    assert column(sql, "select result::text from horsies.finished") == ['"second"']


def test_a_finisher_that_waits_for_a_release_changes_nothing(
    broker: PostgresBroker, database: str, sql: psycopg.Connection
) -> None:
    send_new(broker)
    (held,) = claim(broker)
    with psycopg.connect(database) as releaser, ThreadPoolExecutor(1) as thread:
        assert execute(releaser, release_tasks(ME, [held])) == [held.id]
        finisher = thread.submit(ended, broker, finish_tasks(ME, [completed(held)]))
        wait_until_blocked(sql, on=releaser)
        releaser.commit()
        assert finisher.result() == []
    assert row(sql, "select status, attempts from horsies.tasks") == ("PENDING", 0)
    assert row(sql, "select count(*) from horsies.finished") == (0,)


def test_two_batches_in_opposite_order_do_not_deadlock(
    broker: PostgresBroker, database: str, sql: psycopg.Connection
) -> None:
    send_new(broker, 20)
    claims = claim(broker, 20)
    with psycopg.connect(database) as first, ThreadPoolExecutor(1) as thread:
        execute(first, finish_tasks(ME, [completed(held) for held in claims[10:]]))
        second = thread.submit(ended, broker, finish_tasks(ME, [completed(held) for held in reversed(claims)]))
        wait_until_blocked(sql, on=first)
        # The second holds the locks of the lower ids now. A request for them would close the cycle, had it locked
        # the higher ones first.
        first.commit()
        assert second.result() == [held.id for held in claims[:10]]
    assert row(sql, "select count(*) from horsies.finished") == (20,)


# -- notifying waiters


@pytest.mark.parametrize(("count", "named"), [(1, True), (200, True), (201, False)])
def test_up_to_200_ids_are_named_and_beyond_all_waiters_read(broker: PostgresBroker, count: int, named: bool) -> None:  # noqa: FBT001 - a row of a table
    ids = [new_task().id for _ in range(count)]
    payloads: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    if not broker.listener().subscribe(Channel.DONE, None, payloads.put):
        assert payloads.get(timeout=5.0) is None, "LISTEN is in force"
    do(broker, notify_done(ids))
    payload = payloads.get(timeout=5.0) or ""
    assert payload == (" ".join(ids) if named else "*")
    assert len(payload.encode()) < 8_000


# -- release


def test_a_release_makes_the_task_pending_again(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    send_new(broker)
    columns = "status, claimed_by, claimed_at, lease_until, started_at, enqueued_at, attempts, ready"
    before = row(sql, f"select {columns} from horsies.tasks")
    (held,) = claim(broker, status=TaskStatus.CLAIMED)
    assert ended(broker, release_tasks(ME, [held])) == [held.id]
    assert row(sql, f"select {columns} from horsies.tasks") == before


def test_a_late_release_changes_nothing(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    send_new(broker)
    (late,) = claim(broker, worker=ME)
    do(broker, release_tasks(ME, [late]))
    claim(broker, worker=OTHER)
    assert ended(broker, release_tasks(ME, [late])) == []
    assert ended(broker, release_tasks(OTHER, [late])) == [], "another claim number"
    assert row(sql, "select status, claimed_by::text from horsies.tasks") == ("RUNNING", OTHER)


# -- the view


@pytest.mark.promise("A2")
def test_one_view_shows_live_and_finished_tasks(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    first, second, third = send_new(broker, 3)
    (held,) = claim(broker, 1)
    do(broker, finish_tasks(ME, [completed(held)]))
    claim(broker, 1)
    found = sql.execute(
        "select id::text, status, result::text, finished_at is not null from horsies.all_tasks order by id"
    )
    assert found.fetchall() == [
        (first.id, "COMPLETED", "1", True),
        (second.id, "RUNNING", None, False),
        (third.id, "PENDING", None, False),
    ]


# -- log lines


def logged(held: Claim, text: str = "hello") -> Ending:
    lines = KeptLines([LoggedLine(1, 1.0, "INFO", "shop", text, None)])
    return completed(held)._replace(log=lines.to_stored(held.attempt))


def test_lines_are_stored_only_for_claims_that_are_held(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    send_new(broker, 4)
    held, late, ended_before, released = claim(broker)
    do(broker, release_tasks(ME, [late]), finish_tasks(ME, [completed(ended_before)]))
    (again,) = claim(broker, worker=OTHER)
    do(broker, release_tasks(ME, [released]))
    do(broker, store_logs(ME, [logged(each) for each in (ended_before, late, released, held, again)]))
    assert column(sql, "select task_id::text from horsies.attempt_logs") == [held.id]


def test_lines_that_are_stored_twice_stay_as_they_were(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    send_new(broker)
    (held,) = claim(broker)
    for text in ("first", "second"):
        do(broker, store_logs(ME, [logged(held, text)]))
    assert column(sql, "select records -> 0 ->> 'message' from horsies.attempt_logs") == ["first"]


def test_a_claim_stays_held_between_its_lines_and_its_ending(
    broker: PostgresBroker, database: str, sql: psycopg.Connection
) -> None:
    """Another worker that takes the task over waits for the commit, and finds that it has ended."""
    send_new(broker)
    (held,) = claim(broker)
    with psycopg.connect(database) as holder, ThreadPoolExecutor(1) as thread:
        query = store_logs(ME, [logged(held)])
        holder.execute(query.statement.for_schema("horsies"), query.params)
        other = thread.submit(ended, broker, release_tasks(ME, [held]))
        wait_until_blocked(sql, on=holder)
        execute(holder, finish_tasks(ME, [completed(held)]))
        holder.commit()
        assert other.result() == []
    assert column(sql, "select task_id::text from horsies.attempt_logs") == [held.id]
