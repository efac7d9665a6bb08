"""Run many tasks at a time: coroutines on the main thread's event loop, functions on other threads.

All endings and starts of one iteration of the loop are reported in one write, and starts are reported before the
user's code runs. What exceeds the slots waits in the inbox. Thousands of sleeping coroutines cost one small object each.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from horsies.executor.attempt_logs import LogReports
from horsies.executor.execute import PreparedCall, ProgressReports, RunningTask, finish, prepare
from horsies.executor.inbox import Inbox
from horsies.executor.interrupt import InterruptCoroutine, InterruptThread
from horsies.executor.os_process import ChildEventLoop, set_title
from horsies.executor.protocol import NO_ASSIGNMENT, Done, LoopAlive, Message, StopReason, pack, pack_began
from horsies.tasks.task import BaseTask


@dataclass(slots=True)
class _Slot:
    """A slot with its running task."""

    running: RunningTask
    stop: Callable[[], None]
    task: asyncio.Task[None] | None = None  # a reference, because the loop itself holds its tasks only weakly


class ConcurrentRunner:
    """Run the assignments of the inbox, up to `concurrency` at a time.

    All methods run on the event loop, except `_run_on_thread` and those in the last section.
    """

    def __init__(
        self, tasks: Mapping[str, BaseTask[..., Any]], inbox: Inbox, loop: ChildEventLoop, concurrency: int
    ) -> None:
        self._tasks = tasks
        self._inbox = inbox
        self._concurrency = concurrency
        self._child_loop, self._loop = loop, loop.get()
        self._progress = ProgressReports(inbox.send)
        self._logs = LogReports(inbox.send)
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="horsies-task")
        self._slots: dict[int, _Slot] = {}
        self._endings: list[bytes] = []
        self._wakeup = asyncio.Event()
        self._has_pinged_loop = False

    def run(self, received: Sequence[Message]) -> None:
        """Run until stopped with nothing left."""
        self._child_loop.run(self._run(received))
        self._threads.shutdown()

    async def _run(self, received: Sequence[Message]) -> None:
        if received:
            self._inbox.receive(self, received)
        threading.Thread(target=self._read, name="horsies-reader", daemon=True).start()
        while True:
            self._wakeup.clear()  # before the inbox is checked, or a message between the two would be missed
            self._report_and_start()
            if self._inbox.is_stopping and not (self._slots or self._endings or self._inbox.pending):
                return
            await self._wakeup.wait()

    def _report_and_start(self) -> None:
        """Report what has ended and what starts, then start it."""
        # Not inlined in `_run`: its frame would keep the last results in memory while it waits.
        starting = [RunningTask(assignment) for assignment in self._inbox.take(self._concurrency - len(self._slots))]
        frames, self._endings = self._endings, []
        frames += [pack_began(running.assignment.assignment_no) for running in starting]
        if frames:
            self._inbox.send(b"".join(frames))
            count = len(self._slots) + len(starting)
            set_title(f"{count} at once" if count else "idle")
        for running in starting:
            self._start(running)

    def _start(self, running: RunningTask) -> None:
        prepared = prepare(self._tasks, running, self._progress.report, self._logs.capture)
        if isinstance(prepared, Done):
            self._end(running, prepared)
            return
        assignment_no = running.assignment.assignment_no
        if prepared.task.is_async:
            coroutine = InterruptCoroutine(running)
            task = self._loop.create_task(self._run_on_loop(coroutine, running, prepared), context=prepared.context)
            self._slots[assignment_no] = _Slot(running, coroutine.stop, task)
        else:
            thread = InterruptThread(running)
            self._slots[assignment_no] = _Slot(running, thread.stop)
            self._threads.submit(prepared.context.run, self._run_on_thread, thread, running, prepared)

    async def _run_on_loop(self, coroutine: InterruptCoroutine, running: RunningTask, call: PreparedCall) -> None:
        # Only now: otherwise the duration would include the tasks that began in the same iteration of the loop, and no task would look short.
        running.began_ns = time.perf_counter_ns()
        outcome = await coroutine.call(call.function)
        self._end(running, finish(running, call.task, outcome))

    def _run_on_thread(self, thread: InterruptThread, running: RunningTask, call: PreparedCall) -> None:
        done = finish(running, call.task, thread.call(call.function))
        self._call_on_loop(self._end, running, done)

    def _end(self, running: RunningTask, done: Done) -> None:
        assignment_no = running.assignment.assignment_no
        self._slots.pop(assignment_no, None)
        if assignment_no in self._progress.reporting:
            self._endings.append(self._progress.take_last(assignment_no))
        if running.lines is not None:
            self._endings.append(self._logs.take_last(running.lines))
        self._endings.append(self._inbox.pack_ending(done))
        self._wakeup.set()

    def _interrupt(self, assignment_no: int, reason: StopReason) -> None:
        if slot := self._slots.get(assignment_no):
            slot.running.request_stop(reason)
            slot.stop()

    def _answer_ping(self) -> None:
        self._has_pinged_loop = False
        self._inbox.send(pack(LoopAlive()))

    # -- on the thread that reads

    def _read(self) -> None:
        while True:
            self._inbox.receive(self)

    def wake(self) -> None:
        self._call_on_loop(self._wakeup.set)

    def on_ping(self) -> int:
        if not self._has_pinged_loop:  # else a loop that is blocked for hours would collect thousands of callbacks
            self._has_pinged_loop = True
            self._call_on_loop(self._answer_ping)
        current = asyncio.current_task(self._loop)
        slots = list(self._slots.items()) if current else ()  # copied in one step: the loop may change it
        return next((assignment_no for assignment_no, slot in slots if slot.task is current), NO_ASSIGNMENT)

    def interrupt(self, assignment_no: int, reason: StopReason) -> None:
        self._call_on_loop(self._interrupt, assignment_no, reason)

    def _call_on_loop(self, callback: Callable[..., object], *args: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: the child exits
            self._loop.call_soon_threadsafe(callback, *args)
