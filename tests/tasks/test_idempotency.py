"""Idempotency keys: at most one live task per task name and key, also with concurrent senders."""

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import Barrier

import psycopg
import pytest

from horsies import KeyConflictError, Sender, TaskStatus
from horsies.model.send_options import OnConflict
from horsies.model.task import Claim
from horsies.tasks.claim import ClaimRequest, claim_tasks, lanes_from_start
from horsies.tasks.control import cancel_task
from horsies.tasks.finish import end_or_retry_tasks, finish_tasks
from tests.fixtures.eventually import wait_until_blocked
from tests.fixtures.journey import ME, claim, column, completed, do, failed, row
from tests.fixtures.shops import Shop
from tests.tasks.test_enqueue import listen_to_new, read_notifications

QUEUES = ["parcels", "letters"]


@pytest.fixture
def thread() -> Generator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


def claim_one(shop: Shop) -> Claim:
    (held,) = claim(shop.app.broker, 1, queues=QUEUES)
    return held


def run(shop: Shop) -> None:
    do(shop.app.broker, finish_tasks(ME, [completed(claim_one(shop))]))


def live(sql: psycopg.Connection) -> list[object]:
    return column(sql, "select id::text from horsies.tasks order by id")


# -- the holder of a key


def test_a_second_send_returns_the_first_task(shop: Shop, sql: psycopg.Connection) -> None:
    keyed = shop.pack.with_options(key="invoice-7")
    first, second = keyed.send(1), keyed.send(1)
    assert first.task_id == second.task_id
    assert live(sql) == [first.task_id]


async def test_a_second_async_send_returns_the_first_task(shop: Shop, sql: psycopg.Connection) -> None:
    first = await shop.pack.with_options(key="k").send_async(1)
    (second,) = await shop.pack.with_options(key="k").send_many_async([shop.pack.call(1)])
    third = await shop.pack.with_options(key="k").schedule_async(5, 1)
    assert live(sql) == [first.task_id] == [second.task_id] == [third.task_id]
    await shop.app.close_async()


def test_another_key_and_another_task_are_free(shop: Shop, sql: psycopg.Connection) -> None:
    shop.pack.with_options(key="a").send(1)
    shop.pack.with_options(key="A").send(1)
    shop.label.with_options(key="a").send("x", {})
    shop.pack.send(1)
    assert len(live(sql)) == 4


def test_a_running_task_holds_its_key(shop: Shop, sql: psycopg.Connection) -> None:
    keyed = shop.pack.with_options(key="k")
    first = keyed.send(1)
    claim_one(shop)
    assert keyed.send(1).task_id == first.task_id
    assert live(sql) == [first.task_id]


def test_a_key_is_free_when_its_task_has_ended(shop: Shop, sql: psycopg.Connection) -> None:
    keyed = shop.pack.with_options(key="k")
    first = keyed.send(1)
    run(shop)
    second = keyed.send(2)
    assert second.task_id != first.task_id
    assert live(sql) == [second.task_id]
    assert keyed.send(2).task_id == second.task_id


def test_a_key_is_held_for_its_window_after_the_end(shop: Shop, sql: psycopg.Connection) -> None:
    keyed = shop.pack.with_options(key="k", key_window=timedelta(hours=1))
    first = keyed.send(1)
    run(shop)
    assert keyed.send(1).task_id == first.task_id
    assert shop.pack.with_options(key="k").send(1).task_id == first.task_id  # the window of the holder counts
    sql.execute("update horsies.finished set finished_at = finished_at - interval '1 hour'")
    assert keyed.send(1).task_id != first.task_id


def test_a_task_that_waits_for_its_retry_holds_its_key(shop: Shop) -> None:
    keyed = shop.pack.with_options(key="k", on_conflict="replace")
    first = keyed.send(1)
    do(shop.app.broker, end_or_retry_tasks(ME, [failed(claim_one(shop), code="OUT_OF_PAPER")]))
    assert first.status() is TaskStatus.PENDING
    assert keyed.send(1).task_id == first.task_id
    with pytest.raises(KeyConflictError):  # it has begun with its present arguments
        keyed.send(2)


def test_an_expired_task_frees_its_key(shop: Shop, sql: psycopg.Connection) -> None:
    keyed = shop.pack.with_options(key="k", good_until=datetime(2001, 1, 1, tzinfo=UTC), on_conflict="replace")
    first = keyed.send(1)
    second = keyed.send(2)
    assert live(sql) == [first.task_id, second.task_id]


def test_a_key_is_free_when_its_task_was_deleted_with_sql(shop: Shop, sql: psycopg.Connection) -> None:
    shop.pack.with_options(key="k").send(1)
    sql.execute("truncate horsies.tasks")
    second = shop.pack.with_options(key="k").send(1)
    assert live(sql) == [second.task_id]


# -- conflicts


def test_raise_names_the_task_that_holds_the_key(shop: Shop, sql: psycopg.Connection) -> None:
    first = shop.pack.with_options(key="k", on_conflict="raise").send(1)
    with pytest.raises(KeyConflictError, match=rf"key 'k' of task 'pack' is held by {first.task_id}, and") as refused:
        shop.pack.with_options(key="k", on_conflict="raise").send(1)
    assert (refused.value.task_id, refused.value.key) == (first.task_id, "k")
    assert live(sql) == [first.task_id]


@pytest.mark.parametrize("on_conflict", ["return", "raise"])
def test_other_arguments_under_the_same_key_are_refused(shop: Shop, on_conflict: OnConflict) -> None:
    first = shop.pack.with_options(key="k").send(1)
    with pytest.raises(KeyConflictError, match="which was sent with other arguments; use another key") as refused:
        shop.pack.with_options(key="k", on_conflict=on_conflict).send(2)
    assert refused.value.task_id == first.task_id


def test_the_order_of_dict_keys_does_not_make_arguments_different(shop: Shop) -> None:
    keyed = shop.label.with_options(key="k")
    assert keyed.send("x", {"a": 1, "b": 2}).task_id == keyed.send("x", {"b": 2, "a": 1}).task_id


# -- replace


def test_replace_changes_the_waiting_task_in_place(shop: Shop, sql: psycopg.Connection) -> None:
    first = shop.pack.with_options(key="k").send(1)
    other = shop.pack.send(7)
    good_until = datetime.now(UTC) + timedelta(days=1)
    second = shop.pack.with_options(
        key="k", on_conflict="replace", queue_name="letters", priority=5, good_until=good_until
    ).send(2)
    assert second.task_id == first.task_id
    assert row(
        sql,
        "select args::text, queue_name, priority, good_until, enqueued_at = sent_at, ready from horsies.tasks "
        "where task_name = 'pack' and id <> %s",
        other.task_id,
    ) == ('{"number":2}', "letters", 5, good_until, True, True)
    assert shop.pack.with_options(key="k").send(2).task_id == first.task_id  # these are its arguments now


def test_replace_can_postpone_a_task_repeatedly(shop: Shop, sql: psycopg.Connection) -> None:
    keyed = shop.pack.with_options(key="k", on_conflict="replace")
    keyed.schedule(60, 1)
    keyed.schedule(600, 2)
    assert row(
        sql, "select args::text, ready, enqueued_at > now() + interval '500 s' from horsies.tasks"
    ) == ('{"number":2}', False, True)  # fmt: skip
    listen_to_new(sql)
    keyed.send(3)
    assert row(sql, "select args::text, ready, enqueued_at <= now() from horsies.tasks") == ('{"number":3}', True, True)
    assert [payload.split()[2] for payload in read_notifications(sql)] == ["parcels"]
    keyed.schedule(60, 4)
    assert [payload.split()[0] for payload in read_notifications(sql)] == ["later"]


def test_replace_sends_a_new_task_when_the_old_one_has_ended(shop: Shop, sql: psycopg.Connection) -> None:
    keyed = shop.pack.with_options(key="k", on_conflict="replace")
    keyed.send(1)
    run(shop)
    second = keyed.send(2)
    assert live(sql) == [second.task_id]


def test_replace_acts_as_return_once_the_task_has_started(shop: Shop, sql: psycopg.Connection) -> None:
    keyed = shop.pack.with_options(key="k", on_conflict="replace")
    first = keyed.send(1)
    claim_one(shop)
    assert keyed.send(1).task_id == first.task_id
    with pytest.raises(KeyConflictError, match="other arguments"):
        keyed.send(2)
    assert row(sql, "select args::text, status from horsies.tasks") == ('{"number":1}', "RUNNING")


def test_a_replacement_that_waits_for_a_claim_leaves_the_started_task_alone(
    shop: Shop, database: str, sql: psycopg.Connection, thread: ThreadPoolExecutor
) -> None:
    keyed = shop.pack.with_options(key="k", on_conflict="replace")
    keyed.send(1)
    with psycopg.connect(database) as worker:
        query = claim_tasks(ClaimRequest(ME, TaskStatus.RUNNING, 1, 60_000), lanes_from_start(QUEUES))
        worker.execute(query.statement.for_schema("horsies"), query.params)  # not committed yet
        replacing = thread.submit(keyed.send, 2)
        wait_until_blocked(sql, on=worker)
        worker.commit()
        with pytest.raises(KeyConflictError, match="other arguments"):
            replacing.result()
    assert row(sql, "select args::text, status from horsies.tasks") == ('{"number":1}', "RUNNING")


def test_a_replacement_that_waits_for_a_cancellation_sends_a_new_task(
    shop: Shop, database: str, sql: psycopg.Connection, thread: ThreadPoolExecutor
) -> None:
    keyed = shop.pack.with_options(key="k", on_conflict="replace")
    first = keyed.send(1)
    with psycopg.connect(database) as canceller:
        canceller.execute("delete from horsies.tasks where id = %s", [first.task_id])
        replacing = thread.submit(keyed.send, 2)
        wait_until_blocked(sql, on=canceller)
        canceller.commit()
        second = replacing.result()
    assert live(sql) == [second.task_id] != [first.task_id]


def test_a_claim_gets_the_old_or_the_new_arguments_and_never_a_mixture(
    shop: Shop, database: str, sql: psycopg.Connection
) -> None:
    """A claim skips a task that is being replaced, and finds it after the commit."""
    first = shop.pack.with_options(key="k").send(1)
    with psycopg.connect(database) as caller:
        shop.pack.with_options(key="k", on_conflict="replace", connection=caller).send(2)
        assert claim(shop.app.broker, queues=QUEUES) == []
    held = claim_one(shop)
    assert (held.id, held.args) == (first.task_id, '{"number":2}')


# -- races


def test_one_of_many_concurrent_producers_sends_and_all_get_its_task(shop: Shop, sql: psycopg.Connection) -> None:
    """Repeatedly: with a key that is free, and with one whose task has ended."""
    together = Barrier(8)

    def produce(keyed: Sender[[int], int]) -> str:
        together.wait()
        return keyed.send(1).task_id

    with ThreadPoolExecutor(8) as producers:
        for _ in range(10):
            keyed = shop.pack.with_options(key="k")
            ids = set(producers.map(produce, [keyed] * 8))
            assert live(sql) == list(ids)
            run(shop)


@pytest.mark.parametrize("had_a_task_before", ["a new key", "a key to take over"])
def test_a_send_waits_for_an_uncommitted_holder_and_returns_it(
    shop: Shop, database: str, sql: psycopg.Connection, thread: ThreadPoolExecutor, had_a_task_before: str
) -> None:
    keyed = shop.pack.with_options(key="k")
    if had_a_task_before == "a key to take over":
        keyed.send(1)
        run(shop)
    with psycopg.connect(database) as caller:
        first = shop.pack.with_options(key="k", connection=caller).send(1)
        waiting = thread.submit(keyed.send, 1)
        wait_until_blocked(sql, on=caller)
        caller.commit()
        assert waiting.result().task_id == first.task_id
    assert live(sql) == [first.task_id]


@pytest.mark.parametrize("had_a_task_before", ["a new key", "a key to take over"])
def test_a_send_that_waits_for_a_holder_is_sent_when_that_is_rolled_back(
    shop: Shop, database: str, sql: psycopg.Connection, thread: ThreadPoolExecutor, had_a_task_before: str
) -> None:
    keyed = shop.pack.with_options(key="k", on_conflict="raise")
    if had_a_task_before == "a key to take over":
        keyed.send(1)
        run(shop)
    with psycopg.connect(database) as caller:
        first = shop.pack.with_options(key="k", connection=caller).send(1)
        waiting = thread.submit(keyed.send, 2)
        wait_until_blocked(sql, on=caller)
        caller.rollback()
        second = waiting.result()
    assert live(sql) == [second.task_id] != [first.task_id]


def test_a_holder_that_ends_while_a_second_send_waits_frees_its_key(
    shop: Shop, database: str, sql: psycopg.Connection, thread: ThreadPoolExecutor
) -> None:
    """The second send waits for the first to commit. By then the first task has run."""
    with psycopg.connect(database) as caller:
        first = shop.pack.with_options(key="k", connection=caller).send(1)
        waiting = thread.submit(shop.pack.with_options(key="k").send, 2)
        wait_until_blocked(sql, on=caller)
        # End it as a worker would, in the transaction that the other send waits for.
        caller.execute(
            "with gone as (delete from horsies.tasks returning *) insert into horsies.finished (id, task_name, queue_name, "
            "priority, status, args, sent_at, enqueued_at, attempts, claim_no, finished_at) select id, task_name, "
            "queue_name, priority, 'COMPLETED', args, sent_at, enqueued_at, 1, 1, now() from gone"
        )
        caller.commit()
        second = waiting.result()
    assert column(sql, "select id::text from horsies.finished") == [first.task_id]
    assert live(sql) == [second.task_id]


def test_a_holder_whose_ending_is_not_committed_still_holds_its_key(shop: Shop, database: str) -> None:
    first = shop.pack.with_options(key="k").send(1)
    with psycopg.connect(database) as finisher:
        query = finish_tasks(ME, [completed(claim_one(shop))])
        finisher.execute(query.statement.for_schema("horsies"), query.params)  # not committed yet
        assert shop.pack.with_options(key="k").send(1).task_id == first.task_id
        finisher.commit()
    assert shop.pack.with_options(key="k").send(1).task_id != first.task_id


def test_a_key_can_be_sent_twice_in_one_transaction(shop: Shop, database: str, sql: psycopg.Connection) -> None:
    with psycopg.connect(database) as caller:
        keyed = shop.pack.with_options(key="k", connection=caller)
        with caller.transaction(force_rollback=True):
            undone = keyed.send(1)
        first, second = keyed.send(2), keyed.send(2)
        assert first.task_id == second.task_id != undone.task_id
    assert live(sql) == [first.task_id]


def test_a_serializable_caller_gets_the_serialization_error(
    shop: Shop, database: str, thread: ThreadPoolExecutor, sql: psycopg.Connection
) -> None:
    with psycopg.connect(database) as caller:
        caller.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        caller.execute("select")
        shop.pack.with_options(key="k").send(1)
        with pytest.raises(psycopg.errors.SerializationFailure):
            shop.pack.with_options(key="k", connection=caller).send(1)
    assert len(live(sql)) == 1


def test_a_cancelled_task_frees_its_key(shop: Shop, sql: psycopg.Connection) -> None:
    first = shop.pack.with_options(key="k").send(1)
    shop.app.broker.run(partial(cancel_task, first.task_id))
    second = shop.pack.with_options(key="k").send(1)
    assert live(sql) == [second.task_id]
