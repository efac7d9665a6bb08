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
        self, tasks: Mapping[str, BaseTask[..., Any]], desk: ExecutorInbox, loop: ChildEventLoop, concurrency: int
    ) -> None:
        self._tasks = tasks
        self._desk = desk
        self._concurrency = concurrency
        self._own_loop, self._loop = loop, loop.get()
        self._progress = ProgressReports(desk.send)
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="horsies-task")
        self._seats: dict[int, _Slot] = {}
        self._ended: list[bytes] = []
        self._changed = asyncio.Event()
        self._has_asked_loop = False

    def work(self, early: Sequence[Message]) -> None:
        """Until told to stop and nothing is left."""
        self._own_loop.run(self._work(early))
        self._threads.shutdown()

    async def _work(self, early: Sequence[Message]) -> None:
        if early:
            self._desk.hear(self, early)
        threading.Thread(target=self._hear, name="horsies-reader", daemon=True).start()
        while True:
            self._changed.clear()
            self._turn()
            if self._desk.is_stopping and not (self._seats or self._ended or self._desk.has_more):
                return
            await self._changed.wait()

    def _turn(self) -> None:
        """Tell what has ended and what begins, then begin it."""
        batch = [begin(assignment) for assignment in self._desk.take(self._concurrency - len(self._seats))]
        frames, self._ended = self._ended, []
        frames += [pack(Began(running.assignment.ticket)) for running in batch]
        if frames:
            self._desk.send(b"".join(frames))
            set_title(f"{len(self._seats) + len(batch)} at once" if self._seats or batch else "idle")
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
            self._seats[running.assignment.ticket] = _Slot(running, on_loop.stop, task)
        else:
            on_thread = InterruptThread(running)
            self._seats[running.assignment.ticket] = _Slot(running, on_thread.stop)
            self._threads.submit(context.run, self._run_on_thread, on_thread, running, prepared)

    async def _run_on_loop(self, on_loop: InterruptCoroutine, running: RunningTask, call: PreparedCall) -> None:
        outcome = await on_loop.call(call.function)
        self._end(running, finish(running, call.task, outcome))

    def _run_on_thread(self, on_thread: InterruptThread, running: RunningTask, call: PreparedCall) -> None:
        done = finish(running, call.task, on_thread.call(call.function))
        self._soon(self._end, running, done)

    def _end(self, running: RunningTask, done: Done) -> None:
        ticket = running.assignment.ticket
        self._seats.pop(ticket, None)
        self._ended += (self._progress.ended(ticket), self._desk.ending(done))
        self._changed.set()

    def _interrupt(self, ticket: int, reason: Reason) -> None:
        if seat := self._seats.get(ticket):
            seat.running.ask(reason)
            seat.stop()

    def _show_life(self) -> None:
        self._has_asked_loop = False
        self._desk.send(pack(LoopAlive()))

    # -- other threads

    def _hear(self) -> None:
        while True:
            self._desk.hear(self)

    def woken(self) -> None:
        self._soon(self._changed.set)

    def pinged(self) -> int:
        if not self._has_asked_loop:  # else a loop that is blocked for hours would find thousands of questions
            self._has_asked_loop = True
            self._soon(self._show_life)
        current = asyncio.current_task(self._loop)
        seats = list(self._seats.items()) if current else ()
        return next((ticket for ticket, seat in seats if seat.task is current), ANY)

    def interrupt(self, ticket: int, reason: Reason) -> None:
        self._soon(self._interrupt, ticket, reason)

    def _soon(self, callback: Callable[..., object], *args: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: the child is leaving
            self._loop.call_soon_threadsafe(callback, *args)
