"""Call a task's function so that a soft stop reaches it, and nothing else.

*On the main thread* a signal handler for SIGURG raises it. A signal, because it interrupts blocking calls (`time.sleep`, a read from a
socket, waiting for a process). SIGURG, because hardly any program uses it, and because it is ignored by default: if user
code has installed another handler, or a signal arrives late, nothing is killed. *On other threads* it is the interpreter's
asynchronous exception, which is raised between two instructions only: a blocking call there ends first. *Coroutines* are
cancelled in the usual way of asyncio.

On threads the exception may be raised just before or just after the function's own code, so the calls below are nested. It is raised
at most once for a task (`RunningTask`), hence the outer `except` catches what the inner one misses.
"""

import asyncio
import ctypes
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import FrameType
from typing import Any

from horsies.executor.execute import CallOutcome, RunningTask
from horsies.executor.os_process import exit_if_copy

SOFT_STOP_SIGNAL = signal.SIGURG
FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 1.0
LOGGING_PAUSE_S = 0.001

_set_async_exc = ctypes.pythonapi.PyThreadState_SetAsyncExc
_set_async_exc.argtypes = (ctypes.c_ulong, ctypes.c_void_p)


class InterruptMainThread:
    """Call functions on the main thread, one at a time. Create it there: it installs the signal handler."""

    def __init__(self) -> None:
        self._guarded: RunningTask | None = None
        self._ident = threading.get_ident()
        signal.signal(SOFT_STOP_SIGNAL, self._on_signal)

    def call(self, running: RunningTask, function: Callable[[], Any]) -> CallOutcome:
        try:
            try:
                self._guarded = running
                running.raise_once()  # a stop was requested before the start
                returned = function()
                exit_if_copy(None)
                self._guarded = None
            except BaseException as error:  # noqa: BLE001 - user code
                exit_if_copy(error)
                self._guarded = None
                return None, error
        except BaseException as error:  # noqa: BLE001 - the soft stop, raised while the task's own exception was handled
            self._guarded = None
            return None, error
        return returned, None

    def stop(self, running: RunningTask) -> None:
        """Stop the task, from any thread."""

        def signal_until_raised() -> None:
            # Repeated: a signal that arrives just before a blocking call does not interrupt it, and its handler runs only after the call.
            pause_s = FIRST_PAUSE_S
            while not (running.is_interrupted or running.is_over):
                signal.pthread_kill(self._ident, SOFT_STOP_SIGNAL)
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

        threading.Thread(target=signal_until_raised, name="horsies-soft-stop", daemon=True).start()

    def _on_signal(self, _signal: int, frame: FrameType | None) -> None:
        if self._guarded and not _is_logging(frame):  # otherwise the next signal raises it
            self._guarded.raise_once()


def _is_logging(frame: FrameType | None) -> bool:
    """Whether it is inside a call of `logging`, where handlers go on after any error and a lock might stay locked: a soft stop would be lost."""
    while frame is not None and frame.f_globals is not logging.__dict__:
        frame = frame.f_back
    return frame is not None


class InterruptThread:
    """Call one function on the thread that calls `call`."""

    def __init__(self, running: RunningTask) -> None:
        self._running = running
        self._ident: int | None = None  # set while the thread is inside the function
        # Reentrant: if the exception is raised inside `_leave`, the thread may still hold the lock when it enters `_leave` again.
        self._gate = threading.RLock()

    def call(self, function: Callable[[], Any]) -> CallOutcome:
        try:
            try:
                with self._gate:
                    self._running.raise_once()  # a stop was requested before the start
                    self._ident = threading.get_ident()
                returned = function()
                # Before `_leave`: a thread that held the gate during the fork does not exist in the copy.
                exit_if_copy(None)
                self._leave()
            except BaseException as error:  # noqa: BLE001 - user code
                exit_if_copy(error)
                self._leave()
                return None, error
        except BaseException as error:  # noqa: BLE001 - the soft stop, raised while the task's own exception was handled
            self._leave()
            return None, error
        return returned, None

    def stop(self) -> None:
        """Stop the task, from another thread."""
        if not self._try_to_stop():
            threading.Thread(target=self._stop_after_logging, name="horsies-soft-stop", daemon=True).start()

    def _stop_after_logging(self) -> None:
        while not self._try_to_stop():
            time.sleep(LOGGING_PAUSE_S)

    def _try_to_stop(self) -> bool:
        """Stop it unless it is logging. Return whether nothing is left to do."""
        with self._gate:
            if self._ident is None or self._running.is_interrupted:
                return True
            if _is_logging(sys._current_frames().get(self._ident)):  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - public
                return False
            self._running.is_interrupted = True
            _set_async_exc(self._ident, id(self._running.soft_stop))
            return True

    def _leave(self) -> None:
        with self._gate:
            self._ident = None
            if self._running.is_interrupted:
                _withdraw_soft_stop()  # or it could be raised in the next task of this thread


class _Withdrawn(BaseException):
    """Replaces a soft stop that has not been raised."""


def _withdraw_soft_stop() -> None:
    """Replace a soft stop that may not have been raised on this thread yet by an exception that is raised and caught here.

    Passing NULL would clear it too. But CPython 3.11 and 3.12 then go on checking for one, at every call on every thread, and on
    3.11 a thread that is traced (for coverage, by a debugger) never leaves that loop.
    """
    with suppress(_Withdrawn):
        _set_async_exc(threading.get_ident(), id(_Withdrawn))
        while True:
            pass


class InterruptCoroutine:
    """Await one coroutine. `stop` must be called on the same event loop."""

    def __init__(self, running: RunningTask) -> None:
        self._running = running
        self._task: asyncio.Task[Any] | None = None  # set while it is inside the coroutine

    async def call(self, function: Callable[[], Coroutine[Any, Any, Any]]) -> CallOutcome:
        try:
            self._task = asyncio.current_task()
            self._running.raise_once()  # a stop was requested before the start
            returned = await function()
        except BaseException as error:  # noqa: BLE001 - user code
            exit_if_copy(error)
            return None, error
        else:
            exit_if_copy(None)
            return returned, None
        finally:
            self._task = None

    def stop(self) -> None:
        if self._task and not self._running.is_interrupted:
            self._running.is_interrupted = True
            self._task.cancel()
