"""One task at a time, on the main thread."""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from typing import Any

from horsies.executor.event_loop import ChildEventLoop
from horsies.executor.execute import (
    Attempt,
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
from horsies.executor.interrupt import InterruptCoroutine, InterruptMainThread
from horsies.executor.os_process import set_title
from horsies.executor.protocol import ANY, Assignment, Began, Done, Message, Reason, pack
from horsies.model.result import TaskError
from horsies.tasks.task import BaseTask

# --------
# Who reads what the worker says, in a child that runs one task at a time: whoever has nothing else to do.
#
# That is the main thread, as long as it is idle. Were another to read for it, each task would be handed over from thread to thread, which takes longer than most of what
# is done for it here. But while the main thread is at its tasks it does not hear that one of them is to be stopped, or that the others are wanted back. So a second thread,
# the *relief*, looks again and again whether it has read meanwhile. If not, the relief reads, and goes on until something comes when the main thread is idle again.
#
# While the main thread reads for long there is nothing to watch: the relief rests, and is woken when something has come.

TICK_S = 0.01
"""The main thread is relieved when it has not read for so long, or twice that: a task that has just begun may be stopped that much later."""


class StandbyReader:
    """`hear` waits for messages and takes them in; `changed` wakes the main thread when it waits and does not read."""

    def __init__(self, receive_message: Callable[[], None], changed: threading.Event) -> None:
        self._on_message = receive_message
        self._changed = changed
        self._reading = threading.Lock()  # held by the one who reads
        self._readings = self._waits = 0  # of the main thread
        self._rests = False
        self._wake = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._watch, name="horsies-relief", daemon=True).start()

    def wait(self) -> None:
        """For the main thread, when it has nothing to do. Returns when there may be something."""
        if not self._reading.acquire(blocking=False):
            self._waits += 1
            self._changed.wait()
            return
        try:
            self._on_message()
        finally:
            self._reading.release()
        self._readings += 1
        if self._rests:
            self._rests = False
            self._wake.set()

    def _watch(self) -> None:
        while True:
            readings = self._readings
            self._wake.clear()
            self._wake.wait(TICK_S)
            if self._readings != readings:
                continue
            if self._reading.acquire(blocking=False):
                self._read()
            else:
                self._rest()

    def _read(self) -> None:
        waits = self._waits
        while self._waits == waits:
            self._on_message()
        self._reading.release()
        self._changed.set()  # from now on the main thread reads, also if what came was not for it

    def _rest(self) -> None:
        self._wake.clear()
        self._rests = True
        if self._reading.locked():  # else something has just come, and the main thread may not have seen that we rest
            self._wake.wait()
        self._rests = False


class SequentialRunner:
    """Works through the desk.

    Coroutines run on an event loop that lives as long as the child but runs only while one of them does, so that sync
    tasks never find themselves on a thread with a running loop: `asyncio.run()` in them works.
    """

    def __init__(
        self, tasks: Mapping[str, BaseTask[..., Any]], tasks_inbox: ExecutorInbox, loop: ChildEventLoop
    ) -> None:
        self._tasks = tasks
        self._tasks_inbox = tasks_inbox
        self._loop = loop
        self._main = InterruptMainThread()
        self._progress = ProgressReports(tasks_inbox.send)
        self._changed = threading.Event()
        self._standby = StandbyReader(lambda: tasks_inbox.receive_message(self), self._changed)
        self._title = ""
        self._running: RunningTask | None = None
        self._asked: tuple[int, Reason] | None = None  # to stop, the last one
        self._stop: Callable[[], object] = lambda: None

    def work(self, early: Sequence[Message]) -> None:
        """Until told to stop and nothing is left. One write per task: an ending and the next beginning."""
        if early:
            self._tasks_inbox.receive_message(self, early)
        self._standby.start()
        ended = b""
        while True:
            self._changed.clear()
            if batch := self._tasks_inbox.take(1):
                ended = self._run(batch[0], ended)
            elif ended:
                self._tasks_inbox.send(ended)
                ended = b""
            elif self._tasks_inbox.is_stopping and not self._tasks_inbox.has_more:
                return
            else:
                self._show("idle")
                self._standby.wait()

    def _run(self, assignment: Assignment, ended: bytes) -> bytes:
        """Report what ended before and what begins now; the frames of its own ending."""
        self._show(assignment.task_name)
        running = begin(assignment)
        self._running, self._stop = running, lambda: self._main.stop(running)
        if self._asked and self._asked[0] == assignment.assignment_no:
            running.ask(self._asked[1])  # on its way from the tray it was found neither there nor here
        self._tasks_inbox.send(ended + pack(Began(assignment.assignment_no)))
        done = self._done(running)
        running.is_over, self._running = True, None
        return self._progress.ended(assignment.assignment_no) + self._tasks_inbox.ending(done)

    def _done(self, running: RunningTask) -> Done:
        prepared = prepare(self._tasks, running)
        context = context_of(running, self._progress.report)
        if isinstance(prepared, TaskError):
            return context.run(refused_before_start, running, prepared)
        trace(running, context, prepared.task.tracer)
        outcome = self._call(running, prepared, context)
        return context.run(finish, running, prepared.task, outcome)

    def _call(self, running: RunningTask, call: PreparedCall, context: Context) -> Attempt:
        if not call.task.is_async:
            return self._main.call(running, lambda: context.run(call.function))
        on_loop, loop = InterruptCoroutine(running), self._loop.get()
        # Whoever still finds the former way to stop it has asked before this line, and `call` looks after it.
        self._stop = lambda: loop.call_soon_threadsafe(on_loop.stop)
        return self._loop.run(on_loop.call(call.function), context=context)

    def _show(self, title: str) -> None:
        if title != self._title:
            self._title = title
            set_title(title)

    # -- whoever hears

    def woken(self) -> None:
        self._changed.set()

    def pinged(self) -> int:
        return ANY  # no task waits for another here

    def interrupt(self, assignment_no: int, reason: Reason) -> None:
        self._asked = assignment_no, reason
        running = self._running
        if running and running.assignment.assignment_no == assignment_no:
            running.ask(reason)
            self._stop()
