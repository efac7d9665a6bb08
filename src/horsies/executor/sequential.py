"""Run one task at a time, on the main thread.

While the main thread is idle it also reads the socket: handing every task over from another thread would take longer than
most of the other work per task. But while it runs a task it does not read that the task is to be stopped, or that the others are to
be returned. So a second thread, the *standby reader*, checks at an interval whether the main thread has read. If not, the standby
reader reads, until a message comes while the main thread is idle again. While the main thread blocks in a read, the
standby reader sleeps without an interval, and is woken after that read.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from horsies.executor.attempt_logs import LogReports
from horsies.executor.execute import ProgressReports, RunningTask, finish, prepare
from horsies.executor.inbox import Inbox
from horsies.executor.interrupt import InterruptCoroutine, InterruptMainThread
from horsies.executor.os_process import ChildEventLoop, set_title
from horsies.executor.protocol import NO_ASSIGNMENT, Assignment, Done, Message, StopReason, pack_began
from horsies.tasks.task import BaseTask

STANDBY_INTERVAL_S = 0.01
"""The standby reader reads when the main thread has not read for this time, or twice it: a stop of a task may be delayed by that."""


class SequentialRunner:
    """Run the assignments of the inbox, one after the other.

    Coroutines run on an event loop that lasts as long as the child but runs only while one of them does. So sync tasks never
    run on a thread with a running loop, and `asyncio.run()` works in them.
    """

    def __init__(self, tasks: Mapping[str, BaseTask[..., Any]], inbox: Inbox, loop: ChildEventLoop) -> None:
        self._tasks = tasks
        self._inbox = inbox
        self._loop = loop
        self._main_thread = InterruptMainThread()
        self._progress = ProgressReports(inbox.send)
        self._logs = LogReports(inbox.send)
        self._wakeup = threading.Event()
        self.wake = self._wakeup.set
        self._standby = StandbyReader(partial(inbox.receive, self), self._wakeup)
        self._running: RunningTask | None = None
        self._last_interrupt: tuple[int, StopReason] | None = None
        self._stop: Callable[[], object] = lambda: None

    def run(self, received: Sequence[Message]) -> None:
        """Run until stopped with nothing left. One write per task: an ending and the next start."""
        if received:
            self._inbox.receive(self, received)
        self._standby.start()
        ending = b""
        while True:
            self._wakeup.clear()  # before the inbox is checked, or a message between the two would be missed
            if assignments := self._inbox.take(1):
                ending = self._run(assignments[0], ending)
            elif ending:
                self._inbox.send(ending)
                ending = b""
            elif self._inbox.is_stopping and not self._inbox.pending:
                return
            else:
                set_title("idle")
                self._standby.wait()

    def _run(self, assignment: Assignment, last_ending: bytes) -> bytes:
        """Report the last ending and this start, run the task, and return the frames of its ending."""
        set_title(assignment.task_name)
        running = RunningTask(assignment)
        self._running, self._stop = running, partial(self._main_thread.stop, running)
        if self._last_interrupt and self._last_interrupt[0] == assignment.assignment_no:
            # The interrupt came after the task left the inbox and before it was in `_running`, so it was found in neither.
            running.request_stop(self._last_interrupt[1])
        self._inbox.send(last_ending + pack_began(assignment.assignment_no))
        prepared = prepare(self._tasks, running, self._progress.report, self._logs.capture)
        if isinstance(prepared, Done):
            done = prepared
        else:
            task, function, context = prepared
            if task.is_async:
                coroutine, loop = InterruptCoroutine(running), self._loop.get()
                # A thread that still uses the former `_stop` requested the stop before this line; `coroutine.call` checks for it after.
                self._stop = partial(loop.call_soon_threadsafe, coroutine.stop)
                outcome = self._loop.run(coroutine.call(function), context=context)
            else:
                outcome = self._main_thread.call(running, partial(context.run, function))
            done = context.run(finish, running, task, outcome)
        running.is_over, self._running = True, None
        ending = self._inbox.pack_ending(done)
        if running.lines is not None:
            ending = self._logs.take_last(running.lines) + ending
        if assignment.assignment_no in self._progress.reporting:
            return self._progress.take_last(assignment.assignment_no) + ending
        return ending

    # -- called by the thread that reads

    def on_ping(self) -> int:
        return NO_ASSIGNMENT  # no task waits for another here

    def interrupt(self, assignment_no: int, reason: StopReason) -> None:
        self._last_interrupt = assignment_no, reason  # before `_running` is read: see `_run`
        running = self._running
        if running and running.assignment.assignment_no == assignment_no:
            running.request_stop(reason)
            self._stop()


class StandbyReader:
    """Reads for the main thread while that is busy.

    `receive` waits for messages and applies them. `wakeup` wakes the main thread when it waits without reading.
    """

    def __init__(
        self, receive: Callable[[], None], wakeup: threading.Event, interval_s: float = STANDBY_INTERVAL_S
    ) -> None:
        self._receive = receive
        self._wakeup = wakeup
        self._interval_s = interval_s
        self._reading = threading.Lock()  # held by the thread that reads
        self._reads = self._waits = 0  # counted by the main thread
        self._is_sleeping = False
        self._wake_standby = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="horsies-standby", daemon=True).start()

    def wait(self) -> None:
        """Read, or wait for the standby reader to read. For the idle main thread; returns when there may be something to do."""
        if not self._reading.acquire(blocking=False):
            self._waits += 1
            self._wakeup.wait()
            return
        try:
            self._receive()
        finally:
            self._reading.release()
        self._reads += 1
        if self._is_sleeping:
            self._is_sleeping = False
            self._wake_standby.set()

    def _run(self) -> None:
        while True:
            reads = self._reads
            self._wake_standby.clear()
            self._wake_standby.wait(self._interval_s)
            if self._reads != reads:
                continue
            if self._reading.acquire(blocking=False):
                waits = self._waits
                while self._waits == waits:  # until the main thread is idle and waits for us
                    self._receive()
                self._reading.release()
                self._wakeup.set()  # after the release: from now on the main thread reads, even if the message was not for it
                continue
            self._wake_standby.clear()  # the main thread blocks in a read: sleep until that ends
            self._is_sleeping = True
            # Checked after the flag is set: otherwise the main thread may have finished its read without seeing the flag.
            if self._reading.locked():
                self._wake_standby.wait()
            self._is_sleeping = False
