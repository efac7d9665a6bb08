"""A frozen child is killed, and one that only takes long in C is left alone."""

import asyncio
import os
import signal
import struct
import sys
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.model.config import RecoveryConfig
from horsies.worker.supervisor import (
    BUSY_SHARE,
    REGULAR_INTERVALS,
    Liveness,
    LivenessPolicy,
    ProcessActivity,
    Silence,
    ThreadTimes,
    compare_threads,
    observe_silence,
    read_threads,
    why_kill,
)
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import row
from tests.fixtures.pools import PATIENCE_S, FakeDispatcher, open_pool
from tests.fixtures.workers import StartWorker
from tests.recovery.steps import CLUSTER, insert_rows, settings
from tests.worker.steps import PATIENCE_MS, begun

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

AUTO = LivenessPolicy("auto", stopped_after_s=10.0, interval_s=3.0)
OFF = AUTO._replace(frozen_after=None)


# -- the decision


def silence_after(
    checks: list[tuple[float, ProcessActivity]], policy: LivenessPolicy, *, is_stuck: bool = False
) -> Silence:
    """Return the silence of a child that was checked after these gaps."""
    now, silence = 1_000.0, None
    for gap, activity in checks:
        now += gap
        silence = observe_silence(silence, now, activity, policy, is_stuck=is_stuck)
    assert silence is not None
    return silence


gaps = st.floats(0.1, AUTO.interval_s * REGULAR_INTERVALS - 0.01)  # a sum of such numbers is rounded
checks = st.lists(st.tuples(gaps, st.sampled_from(ProcessActivity)), min_size=1, max_size=60)


@given(checks)
def test_a_child_that_worked_within_the_last_minute_is_not_killed(seen: list[tuple[float, ProcessActivity]]) -> None:
    silence = silence_after([*seen, (1.0, ProcessActivity.WORKING)], AUTO)
    assert why_kill(silence, AUTO) is None
    for _ in range(19):
        silence = observe_silence(silence, silence.seen_at + 3.0, ProcessActivity.IDLE, AUTO)
        assert why_kill(silence, AUTO) is None


@given(checks, st.integers(1, 1_000), st.sampled_from(ProcessActivity))
def test_a_gap_between_checks_starts_the_count_again(
    seen: list[tuple[float, ProcessActivity]], gap: int, activity: ProcessActivity
) -> None:
    """The machine was paused: the length of the gap says nothing about the child."""
    for policy in (AUTO, AUTO._replace(frozen_after=9.5)):
        silence = silence_after([*seen, (REGULAR_INTERVALS * policy.interval_s + gap, activity)], policy, is_stuck=True)
        assert why_kill(silence, policy) is None
        assert why_kill(observe_silence(silence, silence.seen_at + 9.0, activity, policy), policy) is None


@given(checks, st.lists(st.floats(3.0, AUTO.interval_s * REGULAR_INTERVALS), min_size=25, max_size=40))
def test_a_child_that_does_nothing_for_a_minute_is_killed(
    seen: list[tuple[float, ProcessActivity]], later: list[float]
) -> None:
    silence = silence_after([*seen, *((gap, ProcessActivity.IDLE) for gap in later)], AUTO)
    assert why_kill(silence, AUTO) == "its process did nothing at all"


@given(checks, st.lists(st.floats(3.0, AUTO.interval_s * REGULAR_INTERVALS), min_size=6, max_size=40))
def test_a_child_that_stays_stopped_is_killed_soon(
    seen: list[tuple[float, ProcessActivity]], later: list[float]
) -> None:
    silence = silence_after([*seen, *((gap, ProcessActivity.STOPPED) for gap in later)], AUTO)
    assert why_kill(silence, AUTO) == "its process was stopped"


@given(checks)
def test_with_a_number_only_the_length_of_the_silence_counts(seen: list[tuple[float, ProcessActivity]]) -> None:
    policy = AUTO._replace(frozen_after=30.0)
    silence = silence_after(seen, policy)
    silent_s = sum(gap for gap, _ in seen[1:])
    assert (why_kill(silence, policy) is not None) == (silence.seen_at - silence.silent_since > 30.0)
    assert silence.seen_at - silence.silent_since == pytest.approx(silent_s)


@given(checks)
def test_when_switched_off_no_child_is_killed(seen: list[tuple[float, ProcessActivity]]) -> None:
    assert why_kill(silence_after(seen, OFF), OFF) is None


def test_a_child_that_sent_half_a_message_is_killed_whatever_the_setting() -> None:
    silence = silence_after([(3.0, ProcessActivity.WORKING)] * 6, OFF, is_stuck=True)
    assert why_kill(silence, OFF) == "it sent a part of a message and not the rest"


threads = st.dictionaries(
    st.integers(1, 5), st.builds(ThreadTimes, st.sampled_from("RSDTt"), st.floats(0, 100)), max_size=4
)


@given(threads, threads, st.floats(0.1, 10.0))
def test_a_process_is_idle_when_none_of_its_threads_works(
    before: dict[int, ThreadTimes], now: dict[int, ThreadTimes], elapsed_s: float
) -> None:
    activity = compare_threads(before, now, elapsed_s)
    if activity is ProcessActivity.STOPPED:
        assert {thread.state for thread in now.values()} == {"T"}
    if activity is ProcessActivity.IDLE:
        assert before.keys() == now.keys() != set()
        for number, thread in now.items():
            assert thread.state not in "Dt"
            assert (thread.state, before[number].state) != ("R", "R")
            assert thread.cpu_s - before[number].cpu_s < max(0.02, BUSY_SHARE * elapsed_s)


def test_a_process_that_cannot_be_inspected_counts_as_working() -> None:
    asleep = {1: ThreadTimes("S", 1.0)}
    assert compare_threads(asleep, None, 3.0) is ProcessActivity.WORKING
    assert compare_threads(None, asleep, 3.0) is ProcessActivity.WORKING
    assert compare_threads(asleep, {}, 3.0) is ProcessActivity.WORKING
    assert compare_threads(asleep, asleep, 3.0) is ProcessActivity.IDLE
    assert read_threads(2**22 + 1) is None  # there is no such process


def test_the_policy_follows_the_settings() -> None:
    assert LivenessPolicy.of(RecoveryConfig()) == AUTO
    assert LivenessPolicy.of(RecoveryConfig(frozen_after_ms=None)) == OFF
    assert LivenessPolicy.of(RecoveryConfig(frozen_after_ms=60_000)).frozen_after == 60.0
    assert LivenessPolicy.of(RecoveryConfig(heartbeat_ms=60_000, dead_after_ms=120_000)).interval_s == 3.0


# -- real children

QUICK = LivenessPolicy("auto", stopped_after_s=1.0, interval_s=0.3, idle_after_s=3.0)
UNWATCHED = RecoveryConfig(frozen_after_ms=None)
FORGING = "tests.apps.forging:app"


async def check_often(dispatcher: FakeDispatcher, policy: LivenessPolicy, count: int) -> None:
    liveness = Liveness(policy)
    for _ in range(count):
        liveness.check(dispatcher.children)
        await asyncio.sleep(policy.interval_s)


@linux_only
async def test_a_child_that_is_deadlocked_in_c_is_killed() -> None:
    async with open_pool(FORGING, recovery=UNWATCHED) as dispatcher:
        stuck = dispatcher.send("sleep_in_c", seconds=600, holding=True)
        child, _assignment_no = await dispatcher.beginning(stuck)
        async with asyncio.timeout(PATIENCE_S):
            watch = asyncio.create_task(Liveness(QUICK).watch(dispatcher.children))
            error = await dispatcher.crash(stuck)
            watch.cancel()
        assert error.error_code == "WORKER_CRASHED"
        assert f"the child process (pid {child.pid}) that ran it has not answered" in error.message
        assert "(its process did nothing at all) and was killed" in error.message
        assert await dispatcher.value("whoami") != child.pid


@linux_only
async def test_a_child_that_works_in_c_is_left_alone() -> None:
    """It holds the GIL and does not answer, for far longer than an idle child may."""
    async with open_pool(FORGING, recovery=UNWATCHED) as dispatcher:
        busy = dispatcher.send("work_in_c")
        child, _assignment_no = await dispatcher.beginning(busy)
        await check_often(dispatcher, QUICK, 20)
        assert child.unanswered_since is not None  # it has not answered
        assert psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE
        assert busy not in dispatcher.crashed
        child.kill()
        await dispatcher.crash(busy)


@linux_only
async def test_a_child_that_waits_in_c_and_lets_others_run_is_never_silent() -> None:
    async with open_pool(FORGING, recovery=UNWATCHED) as dispatcher:
        waiting = dispatcher.send("sleep_in_c", seconds=6, holding=False)
        await dispatcher.beginning(waiting)
        await check_often(dispatcher, QUICK._replace(frozen_after=1.0), 15)
        assert (await dispatcher.ending(waiting)).status == "COMPLETED"


@linux_only
async def test_a_stopped_idle_child_is_replaced_and_its_tasks_run_elsewhere() -> None:
    async with open_pool(FORGING, recovery=UNWATCHED) as dispatcher:
        (child,) = dispatcher.children
        os.kill(child.pid, signal.SIGSTOP)
        given = dispatcher.send("whoami")
        watch = asyncio.create_task(Liveness(QUICK).watch(dispatcher.children))
        await dispatcher.until(lambda: given in dispatcher.returned)
        watch.cancel()
        assert (await dispatcher.ending(given)).status == "COMPLETED"
        assert dispatcher.done_by[given] != child.pid


@linux_only
async def test_a_stopped_child_is_not_killed_when_the_check_is_off() -> None:
    async with open_pool(FORGING, recovery=UNWATCHED) as dispatcher:
        (child,) = dispatcher.children
        os.kill(child.pid, signal.SIGSTOP)
        await check_often(dispatcher, QUICK._replace(frozen_after=None), 10)
        assert psutil.Process(child.pid).status() == psutil.STATUS_STOPPED
        os.kill(child.pid, signal.SIGCONT)
        assert await dispatcher.value("whoami") == child.pid


@linux_only
async def test_a_pause_of_the_worker_itself_kills_no_child() -> None:
    """A late check starts the count again, and by the next one the child has answered."""
    async with open_pool(FORGING, recovery=UNWATCHED) as dispatcher:
        (child,) = dispatcher.children
        liveness = Liveness(QUICK)
        os.kill(child.pid, signal.SIGSTOP)
        for _ in range(4):
            liveness.check(dispatcher.children)
            await asyncio.sleep(2 * REGULAR_INTERVALS * QUICK.interval_s)
        assert child.unanswered_since is not None
        os.kill(child.pid, signal.SIGCONT)
        assert await dispatcher.value("whoami") == child.pid


async def test_a_child_that_sends_half_a_message_and_nothing_more_is_killed(tmp_path: Path) -> None:
    """Nothing that it sends from then on can be read: it seems silent, although it works."""
    async with open_pool(FORGING, recovery=UNWATCHED, processes=2) as dispatcher:
        half = struct.pack("!IB", 1 << 24, 17).hex()  # the beginning of a long result
        forger = dispatcher.send("forge", frames=half, until=str(tmp_path / "never"))
        other = dispatcher.send("gate", until=str(tmp_path / "go"))
        forging, _assignment_no = await dispatcher.beginning(forger)
        await dispatcher.beginning(other)
        watch = asyncio.create_task(Liveness(QUICK._replace(frozen_after=None)).watch(dispatcher.children))
        error = await dispatcher.crash(forger)
        watch.cancel()
        assert "it sent a part of a message and not the rest" in error.message
        (tmp_path / "go").touch()
        assert (await dispatcher.ending(other)).status == "COMPLETED"
        assert dispatcher.done_by[other] != forging.pid


# -- a whole worker


def freeze_a_child(sql: psycopg.Connection, folder: Path) -> tuple[str, int]:
    """Stop a child while it runs a task; the task's id and the child's process id."""
    args = {"begun": str(folder / "begun"), "until": str(folder / "never")}
    (task_id,) = insert_rows(sql, "gate", [args])
    pid = begun(folder / "begun")
    os.kill(pid, signal.SIGSTOP)
    return task_id, pid


@linux_only
@pytest.mark.promise("W6", "T2")
def test_a_child_that_is_stopped_is_noticed_with_default_settings(
    basic: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    """Nothing is configured: a child that has been stopped for ten seconds is killed."""
    running = worker("tests.apps.basic:app", processes=2)
    task_id, pid = freeze_a_child(sql, tmp_path)
    eventually(lambda: row(sql, "select count(*) from horsies.finished") == (1,), 30.0)
    code, message = row(sql, "select error_code, error->>'message' from horsies.finished where id = %s", task_id)
    assert code == "WORKER_CRASHED"
    assert f"(pid {pid}) that ran it has not answered" in str(message)
    assert "its process was stopped" in str(message)
    running.wait_for_log(f"child {pid} has not answered .* and is killed; it runs gate")
    assert basic.add.send(1, 1).get(PATIENCE_MS).ok_value == 2
    assert running.terminate() == 0


@linux_only
@pytest.mark.promise("W10")
def test_a_worker_stops_though_one_of_its_children_is_stopped(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    running = worker(CLUSTER, processes=2, env=settings())
    freeze_a_child(sql, tmp_path)
    assert running.terminate() == 0
