import asyncio
from functools import partial

import psycopg
import pytest

from horsies import BlockingCallError, TaskStatus
from horsies.testing import EndlessDrainError, Sandbox, clock, drain, enqueued, run_inline
from tests.testing import shop

pytestmark = pytest.mark.usefixtures("sandbox")


def test_a_send_returns_when_its_task_has_run() -> None:
    with run_inline() as ran:
        handle = shop.note.send("now")
        assert shop.log == ["now"]
        assert [each.task_name for each in ran] == ["note"]
        assert handle.status() is TaskStatus.COMPLETED
    assert handle.get(timeout_ms=1_000).unwrap() == "now"


def test_every_way_of_sending_runs_inline() -> None:
    with run_inline() as ran:
        shop.note.send_many([shop.note.call("a"), shop.note.call("b")])
        shop.note.with_options(key="c").send("c")
        shop.note.with_options(key="c", key_window=60).send("d")
        asyncio.run(partial(shop.greet.send_async, "e")())
    assert shop.log == ["a", "b", "c", "d", "e"]
    assert len(ran) == 5


def test_a_key_within_its_window_runs_nothing() -> None:
    with run_inline() as ran:
        first = shop.note.with_options(key="k", key_window=60).send("x")
        assert shop.note.with_options(key="k").send("x").task_id == first.task_id
    assert len(ran) == 1


def test_retries_run_immediately() -> None:
    with run_inline() as ran:
        assert shop.flaky.send(2).get(timeout_ms=1_000).unwrap() == 3
    assert [each.attempt for each in ran] == [1, 2, 3]


def test_what_is_scheduled_waits_for_its_time() -> None:
    with run_inline() as ran:
        handle = shop.note.schedule(60, "later")
        assert ran == []
        clock.advance(61)
        assert handle.get(timeout_ms=1_000).unwrap() == "later"


def test_a_task_may_wait_for_another_and_is_warned_that_it_occupies_a_slot() -> None:
    holds = pytest.warns(UserWarning, match="task 'wait_for_note' waits for another task and occupies a slot")
    with run_inline() as ran, holds as warned:
        assert shop.wait_for_note.send("inner").get(timeout_ms=1_000).unwrap() == "inner"
    assert [each.task_name for each in ran] == ["note", "wait_for_note"]
    assert [warning.filename for warning in warned] == [shop.__file__], "it names the line that waits"


async def test_a_task_that_gathers_is_warned_too() -> None:
    with run_inline(), pytest.warns(UserWarning, match="task 'gather_notes' waits") as warned:
        await shop.gather_notes.send_async(["a", "b"])
    assert sorted(shop.log) == ["a", "b"]
    assert [warning.filename for warning in warned] == [shop.__file__]


def test_a_task_may_poll_for_a_result_without_a_warning() -> None:
    note = shop.note.schedule(60, "later")
    handle = shop.error_code_of.send(note.task_id)
    drain()
    assert handle.get(timeout_ms=0).unwrap() == "WAIT_TIMEOUT"


def test_tasks_that_send_each_other_endlessly_raise() -> None:
    with run_inline(), pytest.raises(EndlessDrainError, match="each sent the next"):
        shop.again.send()


def test_caps_apply_inline() -> None:
    with run_inline():
        shop.nested.send("outer")
    assert shop.log == ["begin outer", "end outer", "begin inner", "end inner"]


def test_what_is_sent_in_a_transaction_runs_after_its_commit(sandbox: Sandbox) -> None:
    with run_inline() as ran:
        with psycopg.connect(sandbox.database_url) as connection:
            handle = shop.note.with_options(connection=connection).send("committed")
            assert ran == []
        assert handle.info() is not None
        assert shop.log == ["committed"]


@pytest.mark.filterwarnings("ignore:task 'wait_for_note' waits")
def test_a_wait_runs_what_is_due_even_tasks_that_wait_themselves() -> None:
    shop.wait_for_note.schedule(60, "inner")
    handle = shop.wait_for_note.schedule(60, "other")
    with run_inline() as ran:
        clock.advance(61)
        assert handle.get(timeout_ms=5_000).unwrap() == "other"
    assert len(ran) == 4


async def test_coroutines_send_and_run_on_their_own_loop() -> None:
    with run_inline() as ran:
        handle = await shop.order_async.send_async(1)
        assert (await handle.get_async(timeout_ms=1_000)).is_ok()
    assert [each.task_name for each in ran] == ["greet", "order_async"]


async def test_a_blocking_send_in_an_event_loop_is_refused_and_sends_nothing() -> None:
    blocks = pytest.warns(UserWarning, match="blocks the running event loop")
    with run_inline(), blocks, pytest.raises(BlockingCallError, match=r"await task\.send_async"):
        shop.note.send("blocked")
    assert enqueued() == []


def test_after_the_context_sends_wait_for_a_drain() -> None:
    with run_inline():
        pass
    shop.note.send("queued")
    assert shop.log == []
    assert len(drain()) == 1
