"""One task at a time, on the main thread."""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from typing import Any

from horsies.child.desk import Desk
from horsies.child.loop import Loop
from horsies.child.outcome import Call, conclude, prepare, refused
from horsies.child.progress import ProgressReports
from horsies.child.relief import Relief
from horsies.child.running import Outcome, Running, begin, context_of, trace
from horsies.child.softstop import MainThread, OnLoop
from horsies.child.title import set_title
from horsies.child.wire import ANY, Assignment, Began, Done, Message, Reason, pack
from horsies.model.result import TaskError
from horsies.tasks.task import Sendable


class Solo:
    """Works through the desk.

    Coroutines run on an event loop that lives as long as the child but runs only while one of them does, so that sync
    tasks never find themselves on a thread with a running loop: `asyncio.run()` in them works.
    """

    def __init__(self, tasks: Mapping[str, Sendable[..., Any]], desk: Desk, loop: Loop) -> None:
        self._tasks = tasks
        self._desk = desk
        self._loop = loop
        self._main = MainThread()
        self._progress = ProgressReports(desk.send)
        self._changed = threading.Event()
        self._relief = Relief(lambda: desk.hear(self), self._changed)
        self._title = ""
        self._running: Running | None = None
        self._asked: tuple[int, Reason] | None = None  # to stop, the last one
        self._stop: Callable[[], object] = lambda: None

    def work(self, early: Sequence[Message]) -> None:
        """Until told to stop and nothing is left. One write per task: an ending and the next beginning."""
        if early:
            self._desk.hear(self, early)
        self._relief.start()
        ended = b""
        while True:
            self._changed.clear()
            if batch := self._desk.take(1):
                ended = self._run(batch[0], ended)
            elif ended:
                self._desk.send(ended)
                ended = b""
            elif self._desk.is_stopping and not self._desk.has_more:
                return
            else:
                self._show("idle")
                self._relief.wait()

    def _run(self, assignment: Assignment, ended: bytes) -> bytes:
        """Report what ended before and what begins now; the frames of its own ending."""
        self._show(assignment.task_name)
        running = begin(assignment)
        self._running, self._stop = running, lambda: self._main.stop(running)
        if self._asked and self._asked[0] == assignment.ticket:
            running.ask(self._asked[1])  # on its way from the tray it was found neither there nor here
        self._desk.send(ended + pack(Began(assignment.ticket)))
        done = self._done(running)
        running.is_over, self._running = True, None
        return self._progress.ended(assignment.ticket) + self._desk.ending(done)

    def _done(self, running: Running) -> Done:
        prepared = prepare(self._tasks, running)
        context = context_of(running, self._progress.report)
        if isinstance(prepared, TaskError):
            return context.run(refused, running, prepared)
        trace(running, context, prepared.task.tracer)
        outcome = self._call(running, prepared, context)
        return context.run(conclude, running, prepared.task, outcome)

    def _call(self, running: Running, call: Call, context: Context) -> Outcome:
        if not call.task.is_async:
            return self._main.call(running, lambda: context.run(call.function))
        on_loop, loop = OnLoop(running), self._loop.get()
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

    def interrupt(self, ticket: int, reason: Reason) -> None:
        self._asked = ticket, reason
        running = self._running
        if running and running.assignment.ticket == ticket:
            running.ask(reason)
            self._stop()
