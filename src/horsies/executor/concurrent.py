"""Many tasks at a time: coroutines on the main thread's event loop, functions on threads beside it.

All that ends and all that begins within one turn of the loop is told to the parent in one write, and the beginnings are told before
the user's code starts. Thousands of sleeping coroutines cost one small object each.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from horsies.executor.event_loop import ChildEventLoop
from horsies.executor.execute import (
    PreparedCall,
    ProgressReports,
    RunningTask,
    begin,
    context_of,
    finish,
    prepare,
    refused_before_start,
    trace,
)
from horsies.executor.inbox import ExecutorInbox
from horsies.executor.interrupt import InterruptCoroutine, InterruptThread
from horsies.executor.os_process import set_title
from horsies.executor.protocol import ANY, Began, Done, LoopAlive, Message, Reason, pack
from horsies.model.result import TaskError
from horsies.tasks.task import BaseTask


@dataclass(slots=True)
class _Slot:
    """One of the tasks at once."""

    running: RunningTask
    stop: Callable[[], None]
    task: asyncio.Task[None] | None = None  # the loop itself holds its tasks only weakly


class ConcurrentRunner:
    """Works through the desk. Everything but `_run_on_thread`, `_hear` and the two calls from there happens on the event loop."""

    def __init__(
        self,
        tasks: Mapping[str, BaseTask[..., Any]],
        tasks_inbox: ExecutorInbox,
        loop: ChildEventLoop,
        concurrency: int,
    ) -> None:
        self._tasks = tasks
        self._tasks_inbox = tasks_inbox
        self._concurrency = concurrency
        self._own_loop, self._loop = loop, loop.get()
        self._progress = ProgressReports(tasks_inbox.send)
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="horsies-task")
        self._occupied: dict[int, _Slot] = {}
        self._ended: list[bytes] = []
        self._changed = asyncio.Event()
        self._has_asked_loop = False

    def work(self, early: Sequence[Message]) -> None:
        """Until told to stop and nothing is left."""
        self._own_loop.run(self._work(early))
        self._threads.shutdown()

    async def _work(self, early: Sequence[Message]) -> None:
        if early:
            self._tasks_inbox.receive_message(self, early)
        threading.Thread(target=self._on_message, name="horsies-reader", daemon=True).start()
        while True:
            self._changed.clear()
            self._batch()
            if self._tasks_inbox.is_stopping and not (self._occupied or self._ended or self._tasks_inbox.has_more):
                return
            await self._changed.wait()

    def _batch(self) -> None:
        """Tell what has ended and what begins, then begin it."""
        batch = [begin(assignment) for assignment in self._tasks_inbox.take(self._concurrency - len(self._occupied))]
        frames, self._ended = self._ended, []
        frames += [pack(Began(running.assignment.assignment_no)) for running in batch]
        if frames:
            self._tasks_inbox.send(b"".join(frames))
            set_title(f"{len(self._occupied) + len(batch)} at once" if self._occupied or batch else "idle")
        for running in batch:
            self._start(running)

    def _start(self, running: RunningTask) -> None:
        prepared = prepare(self._tasks, running)
        context = context_of(running, self._progress.report)
        if isinstance(prepared, TaskError):
            self._end(running, context.run(refused_before_start, running, prepared))
            return
        trace(running, context, prepared.task.tracer)
        if prepared.task.is_async:
            on_loop = InterruptCoroutine(running)
            task = self._loop.create_task(self._run_on_loop(on_loop, running, prepared), context=context)
            self._occupied[running.assignment.assignment_no] = _Slot(running, on_loop.stop, task)
        else:
            on_thread = InterruptThread(running)
            self._occupied[running.assignment.assignment_no] = _Slot(running, on_thread.stop)
            self._threads.submit(context.run, self._run_on_thread, on_thread, running, prepared)

    async def _run_on_loop(self, on_loop: InterruptCoroutine, running: RunningTask, call: PreparedCall) -> None:
        outcome = await on_loop.call(call.function)
        self._end(running, finish(running, call.task, outcome))

    def _run_on_thread(self, on_thread: InterruptThread, running: RunningTask, call: PreparedCall) -> None:
        done = finish(running, call.task, on_thread.call(call.function))
        self._soon(self._end, running, done)

    def _end(self, running: RunningTask, done: Done) -> None:
        assignment_no = running.assignment.assignment_no
        self._occupied.pop(assignment_no, None)
        self._ended += (self._progress.ended(assignment_no), self._tasks_inbox.ending(done))
        self._changed.set()

    def _interrupt(self, assignment_no: int, reason: Reason) -> None:
        if slot := self._occupied.get(assignment_no):
            slot.running.ask(reason)
            slot.stop()

    def _show_life(self) -> None:
        self._has_asked_loop = False
        self._tasks_inbox.send(pack(LoopAlive()))

    # -- other threads

    def _on_message(self) -> None:
        while True:
            self._tasks_inbox.receive_message(self)

    def woken(self) -> None:
        self._soon(self._changed.set)

    def pinged(self) -> int:
        if not self._has_asked_loop:  # else a loop that is blocked for hours would find thousands of questions
            self._has_asked_loop = True
            self._soon(self._show_life)
        current = asyncio.current_task(self._loop)
        occupied = list(self._occupied.items()) if current else ()
        return next((assignment_no for assignment_no, slot in occupied if slot.task is current), ANY)

    def interrupt(self, assignment_no: int, reason: Reason) -> None:
        self._soon(self._interrupt, assignment_no, reason)

    def _soon(self, callback: Callable[..., object], *args: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: the child is leaving
            self._loop.call_soon_threadsafe(callback, *args)
