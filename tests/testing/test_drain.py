import asyncio
import signal

import psycopg
import pytest

from horsies import BlockingCallError, Horsies, TaskStatus
from horsies.testing import EndlessDrainError, Ran, Sandbox, SandboxError, clock, drain, drain_async, enqueued
from horsies.testing.drainer import Drain
from tests.testing import shop

pytestmark = pytest.mark.usefixtures("sandbox")


def statuses() -> list[tuple[str, int, TaskStatus]]:
    return [(ran.task_name, ran.attempt, ran.status) for ran in drain()]


def test_an_enqueued_task_runs_and_its_handle_reads_the_result() -> None:
    handle = shop.note.send("hello")
    (ran,) = drain()
    assert (ran.task_name, ran.task_id, ran.status) == ("note", handle.task_id, TaskStatus.COMPLETED)
    assert handle.get(timeout_ms=1_000).unwrap() == "hello"
    assert handle.status() is TaskStatus.COMPLETED


def test_an_empty_queue_drains_to_nothing() -> None:
    assert drain() == []


def test_arguments_and_results_are_encoded_as_for_a_worker() -> None:
    parcel = shop.Parcel(1.5, shop.date(2030, 1, 2))
    handle = shop.ship.send(parcel)
    drain()
    received = handle.get(timeout_ms=1_000).unwrap()
    assert received == parcel
    assert received is not parcel


def test_a_result_of_the_wrong_type_fails_as_it_does_in_a_worker() -> None:
    handle = shop.broken.send()
    (ran,) = drain()
    assert ran.status is TaskStatus.FAILED
    assert ran.error is not None
    assert handle.get(timeout_ms=1_000).unwrap_err().error_code == ran.error.error_code == "RETURN_TYPE_MISMATCH"


def test_coroutines_and_functions_run_in_one_drain() -> None:
    shop.greet.send("ann")
    shop.note.send("bob")
    assert [ran.task_name for ran in drain()] == ["greet", "note"]
    assert shop.log == ["ann", "bob"]


def test_tasks_that_are_sent_by_tasks_run_too() -> None:
    shop.order.send(7)
    shop.order_async.send(8)
    assert [ran.task_name for ran in drain()] == ["order", "order_async", "note", "greet"]
    assert shop.log == ["order 7", "confirm 7", "confirm 8"]


def test_queues_and_priorities_are_served_in_order() -> None:
    shop.note.send("second")
    shop.note.with_options(priority=5).send("first")
    shop.alert.send("zeroth")
    drain()
    assert shop.log == ["zeroth", "first", "second"]


def test_a_paused_queue_is_not_drained() -> None:
    shop.note.send("paused")
    shop.app.pause_queue("normal")
    assert drain() == []
    shop.app.resume_queue("normal")
    assert len(drain()) == 1


def test_a_limit_leaves_the_rest_queued() -> None:
    for text in "abc":
        shop.note.send(text)
    assert len(drain(limit=2)) == 2
    assert shop.log == ["a", "b"]
    assert len(drain()) == 1


def drain_at_most(max_attempts: int, sandbox: Sandbox) -> list[Ran]:
    """Like `drain()`, which allows more attempts."""
    return Drain(sandbox, None, "later", max_attempts).run(sandbox.broker.run)


def test_an_endless_drain_raises_and_releases_its_last_claim(sandbox: Sandbox) -> None:
    shop.again.send()
    with pytest.raises(EndlessDrainError, match="'again' 5 times"):
        drain_at_most(5, sandbox)
    (waiting,) = enqueued()
    assert waiting.attempts == 0


def test_exactly_the_allowed_number_of_attempts_is_not_endless(sandbox: Sandbox) -> None:
    shop.note.send("a")
    shop.note.send("b")
    assert len(drain_at_most(2, sandbox)) == 2


def test_a_retry_waits_for_its_time() -> None:
    handle = shop.flaky.send(2)
    assert statuses() == [("flaky", 1, TaskStatus.PENDING)]
    assert statuses() == []
    clock.advance(59)
    assert statuses() == []
    clock.advance(2)
    assert statuses() == [("flaky", 2, TaskStatus.PENDING)]
    clock.advance(600)
    assert statuses() == [("flaky", 3, TaskStatus.COMPLETED)]
    assert handle.get(timeout_ms=1_000).unwrap() == 3


def test_retries_can_run_immediately_and_end_by_their_policy() -> None:
    handle = shop.flaky.send(99)
    assert [(ran.attempt, ran.status) for ran in drain(retries="now")] == [
        (1, TaskStatus.PENDING),
        (2, TaskStatus.PENDING),
        (3, TaskStatus.FAILED),
    ]
    info = handle.info()
    assert info is not None
    assert info.attempts == 3


def test_retries_now_includes_those_of_an_earlier_drain_but_not_scheduled_tasks() -> None:
    shop.flaky.send(1)
    shop.note.schedule(60, "later")
    assert statuses() == [("flaky", 1, TaskStatus.PENDING)]
    assert [(ran.task_name, ran.attempt) for ran in drain(retries="now")] == [("flaky", 2)]


def test_the_exception_of_a_task_is_returned() -> None:
    shop.flaky.send(1)
    (ran,) = drain()
    assert isinstance(ran.raised, ConnectionError)
    assert ran.error is not None
    assert "no. 1" in ran.error.message


def test_a_task_that_was_cancelled_is_not_run() -> None:
    handle = shop.note.send("never")
    handle.cancel()
    assert drain() == []
    assert handle.status() is TaskStatus.CANCELLED


@pytest.mark.parametrize("name", ["slow", "slow_async", "busy"])
def test_a_task_is_stopped_at_its_timeout(name: str) -> None:
    handle = shop.app.tasks[name].send()
    (ran,) = drain()
    assert ran.status is TaskStatus.FAILED
    assert handle.get(timeout_ms=1_000).unwrap_err().error_code == "TASK_TIMEOUT"


def test_the_signal_handler_is_restored_after_a_soft_stop() -> None:
    before = signal.getsignal(signal.SIGURG)
    shop.slow.send()
    drain()
    assert signal.getsignal(signal.SIGURG) is before


def test_progress_is_saved() -> None:
    handle = shop.measured.send()
    drain()
    info = handle.info()
    assert info is not None
    assert info.progress == {"fraction": 0.5, "message": "half"}


def test_a_task_that_this_app_does_not_have_fails_as_it_does_in_a_worker(sql: psycopg.Connection) -> None:
    sql.execute("insert into horsies.tasks (task_name, queue_name) values ('unknown', 'normal')")
    (ran,) = drain()
    assert ran.error is not None
    assert ran.error.error_code == "WORKER_RESOLUTION_ERROR"


def test_an_exception_that_ends_the_test_run_is_raised_and_the_task_fails() -> None:
    handle = shop.interrupted.send()
    with pytest.raises(KeyboardInterrupt):
        drain()
    assert handle.status() is TaskStatus.FAILED


async def test_a_coroutine_drains_on_its_own_loop() -> None:
    handle = await shop.order_async.send_async(1)
    ran = await drain_async()
    assert [each.task_name for each in ran] == ["order_async", "greet"]
    assert (await handle.get_async(timeout_ms=1_000)).is_ok()


async def test_a_function_that_a_coroutine_drains_may_block_and_send() -> None:
    await shop.order.send_async(1)
    ran = await drain_async()
    assert [each.task_name for each in ran] == ["order", "note"]


@pytest.mark.parametrize("name", ["slow_async", "busy"])
async def test_timeouts_apply_when_a_coroutine_drains(name: str) -> None:
    handle = await shop.app.tasks[name].send_async()
    (ran,) = await drain_async()
    assert ran.error is not None
    assert ran.error.error_code == "TASK_TIMEOUT"
    assert await handle.status_async() is TaskStatus.FAILED


async def test_draining_can_be_cancelled() -> None:
    await shop.endless_async.send_async()
    shop.begun.append(asyncio.Event())
    draining = asyncio.ensure_future(drain_async())
    await shop.begun[-1].wait()
    draining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await draining


async def test_a_blocking_drain_is_refused_where_an_event_loop_runs() -> None:
    with pytest.raises(BlockingCallError, match="await drain_async"):
        drain()


def test_an_app_without_a_sandbox_is_refused() -> None:
    with pytest.raises(SandboxError, match="this app is not in a sandbox"):
        drain(Horsies())
