"""Calls a task's function in this very process, as a child would in its own.

A `def` runs on the thread that drains, or, when a coroutine drains, on another one: there it may block, send and wait, as it may in
a child. Its time-out strikes it by signal on the main thread and between two instructions elsewhere (`child/softstop.py`). An
`async def` runs on an event loop: the caller's, or one that lives as long as the drain.
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from typing import Any

from horsies.child.outcome import Call
from horsies.child.running import Outcome, Running
from horsies.child.softstop import SOFT_STOP, MainThread, OnLoop, OtherThread


@dataclass(frozen=True, slots=True)
class Job:
    """A call that is to be made now."""

    running: Running
    call: Call
    context: Context

    @property
    def timeout_s(self) -> float | None:
        timeout_ms = self.running.assignment.timeout_ms
        return None if timeout_ms is None else timeout_ms / 1000


def do(job: Job, runner: asyncio.Runner) -> Outcome:
    """Blocking."""
    if job.call.task.is_async:
        return runner.run(_on_loop(job), context=job.context)
    function = partial(job.context.run, job.call.function)
    if job.timeout_s is not None and threading.current_thread() is threading.main_thread():
        return _on_main_thread(job, function)
    return _on_thread(job, function)


async def do_async(job: Job) -> Outcome:
    """On the running event loop."""
    loop = asyncio.get_running_loop()
    if job.call.task.is_async:
        outcome = await loop.create_task(_on_loop(job), context=job.context)
    else:
        outcome = await loop.run_in_executor(None, _on_thread, job, partial(job.context.run, job.call.function))
    draining = asyncio.current_task()
    if draining and draining.cancelling():
        raise asyncio.CancelledError  # it was meant for us, and the task has taken it for its own
    return outcome


async def _on_loop(job: Job) -> Outcome:
    on_loop = OnLoop(job.running)
    if job.timeout_s is None:
        return await on_loop.call(job.call.function)
    alarm = asyncio.get_running_loop().call_later(job.timeout_s, _time_is_up, job.running, on_loop.stop)
    try:
        return await on_loop.call(job.call.function)
    finally:
        alarm.cancel()


def _on_thread(job: Job, function: Callable[[], Any]) -> Outcome:
    on_thread = OtherThread(job.running)
    with _alarm(job, on_thread.stop):
        return on_thread.call(function)


def _on_main_thread(job: Job, function: Callable[[], Any]) -> Outcome:
    before = signal.getsignal(SOFT_STOP)
    main = MainThread()
    try:
        with _alarm(job, partial(main.stop, job.running)):
            return main.call(job.running, function)
    finally:
        signal.signal(SOFT_STOP, before)


@contextmanager
def _alarm(job: Job, stop: Callable[[], object]) -> Generator[None]:
    if job.timeout_s is None:
        yield
        return
    timer = threading.Timer(job.timeout_s, _time_is_up, [job.running, stop])
    timer.name = "horsies-alarm"
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        job.running.is_over = True  # whoever still nudges it leaves it alone
        timer.cancel()
        timer.join()


def _time_is_up(running: Running, stop: Callable[[], object]) -> None:
    if not running.is_over:
        running.ask("timeout")
        stop()
