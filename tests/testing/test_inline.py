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
        assert [one.task_name for one in ran] == ["note"]
        assert handle.status() is TaskStatus.COMPLETED
    assert handle.get(timeout_ms=1_000).unwrap() == "now"


def test_every_way_of_sending_runs_in_line() -> None:
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


def test_retries_follow_at_once() -> None:
    with run_inline() as ran:
        assert shop.flaky.send(2).get(timeout_ms=1_000).unwrap() == 3
    assert [one.attempt for one in ran] == [1, 2, 3]


def test_what_is_scheduled_waits_for_its_time() -> None:
    with run_inline() as ran:
        handle = shop.note.schedule(60, "later")
        assert ran == []
        clock.advance(61)
        assert handle.get(timeout_ms=1_000).unwrap() == "later"


def test_tasks_may_wait_for_tasks_and_are_warned_of_the_slot_that_they_hold() -> None:
    holds = pytest.warns(UserWarning, match="task 'wait_for_note' waits for another task and occupies a slot")
    with run_inline() as ran, holds as warned:
        assert shop.wait_for_note.send("inner").get(timeout_ms=1_000).unwrap() == "inner"
    assert [one.task_name for one in ran] == ["note", "wait_for_note"]
    assert [warning.filename for warning in warned] == [shop.__file__], "it names the line that waits"


async def test_tasks_that_wait_for_many_are_warned_too() -> None:
    with run_inline(), pytest.warns(UserWarning, match="task 'gather_notes' waits") as warned:
        await shop.gather_notes.send_async(["a", "b"])
    assert sorted(shop.log) == ["a", "b"]
    assert [warning.filename for warning in warned] == [shop.__file__]


def test_a_task_may_look_for_a_result_without_a_warning() -> None:
    note = shop.note.schedule(60, "later")
    handle = shop.look.send(note.task_id)
    drain()
    assert handle.get(timeout_ms=0).unwrap() == "WAIT_TIMEOUT"


def test_tasks_that_send_each_other_for_ever_are_found_out() -> None:
    with run_inline(), pytest.raises(EndlessDrainError, match="each sent the next"):
        shop.again.send()


def test_caps_hold_in_line_too() -> None:
    with run_inline():
        shop.nested.send("outer")
    assert shop.log == ["begin outer", "end outer", "begin inner", "end inner"]


def test_what_a_transaction_holds_back_runs_after_its_commit(sandbox: Sandbox) -> None:
    with run_inline() as ran:
        with psycopg.connect(sandbox.database_url) as connection:
            handle = shop.note.with_options(connection=connection).send("committed")
            assert ran == []
        assert handle.info() is not None
        assert shop.log == ["committed"]


@pytest.mark.filterwarnings("ignore:task 'wait_for_note' waits")
def test_a_wait_runs_what_is_due_even_what_waits_itself() -> None:
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
    assert [one.task_name for one in ran] == ["greet", "order_async"]


async def test_a_blocking_send_is_refused_where_an_event_loop_runs_and_sends_nothing() -> None:
    blocks = pytest.warns(UserWarning, match="blocks the running event loop")
    with run_inline(), blocks, pytest.raises(BlockingCallError, match=r"await task\.send_async"):
        shop.note.send("blocked")
    assert enqueued() == []


def test_afterwards_sends_wait_for_a_drain_again() -> None:
    with run_inline():
        pass
    shop.note.send("queued")
    assert shop.log == []
    assert len(drain()) == 1
