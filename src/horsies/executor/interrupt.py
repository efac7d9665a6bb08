"""Calling a task's function so that a soft stop reaches it, and nothing but it.

*On the main thread* by SIGURG, whose handler raises. A signal, because it interrupts blocking calls (`time.sleep`, a read from a
socket, waiting for a process). SIGURG, because hardly any program uses it, and because its default is to be ignored: where user
code has put another handler in place, or one comes late, nothing is killed. *On other threads* by the interpreter's
asynchronous exception, which strikes between two instructions only: a blocking call there ends first. *Coroutines* are
cancelled, as everything in asyncio is.

On threads the exception may strike just before or just after the function's own code, so the calls below are nested: it is raised
at most once for a task (`Running`), hence what the inner `except` lets slip, the outer one gets.
"""

import ctypes
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

from horsies.executor.execute import Attempt, RunningTask
from horsies.executor.os_process import exit_if_copy

if TYPE_CHECKING:
    import asyncio

SOFT_STOP_SIGNAL = signal.SIGURG
FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 1.0

_set_async_exc = ctypes.pythonapi.PyThreadState_SetAsyncExc
_set_async_exc.argtypes = (ctypes.c_ulong, ctypes.c_void_p)


class _Withdrawn(BaseException):
    """Takes the place of a soft stop."""


def _withdraw() -> None:
    """Take back a soft stop that may not have struck this thread yet: what takes its place strikes at once, in here.

    None at all could take its place, too. But CPython 3.11 and 3.12 then go on looking for one, at every call on every thread, and on
    3.11 a thread that is traced (for coverage, by a debugger) never gets beyond that.
    """
    with suppress(_Withdrawn):
        _set_async_exc(threading.get_ident(), id(_Withdrawn))
        while True:
            pass


class InterruptMainThread:
    """Functions called on the main thread, one at a time. To be made there."""

    def __init__(self) -> None:
        self._guarded: RunningTask | None = None
        self._ident = threading.get_ident()
        signal.signal(SOFT_STOP_SIGNAL, self._on_signal)

    def call(self, running: RunningTask, function: Callable[[], Any]) -> Attempt:
        try:
            try:
                self._guarded = running
                running.strike()  # asked before it began
                returned = function()
                exit_if_copy(None)
                self._guarded = None
            except BaseException as error:  # noqa: BLE001 - user code
                exit_if_copy(error)
                self._guarded = None
                return None, error
        except BaseException as error:  # noqa: BLE001 - the soft stop, while the task's own exception was on its way
            self._guarded = None
            return None, error
        return returned, None

    def stop(self, running: RunningTask) -> None:
        """From any thread."""
        threading.Thread(
            target=self._signal_until_raised, args=[running], name="horsies-soft-stop", daemon=True
        ).start()

    def _signal_until_raised(self, running: RunningTask) -> None:
        """Again and again: a signal that comes just before a blocking call does not interrupt it, and its handler waits, too."""
        pause_s = FIRST_PAUSE_S
        while not (running.is_interrupted or running.is_over):
            signal.pthread_kill(self._ident, SOFT_STOP_SIGNAL)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _on_signal(self, _signal: int, _frame: FrameType | None) -> None:
        if self._guarded:
            self._guarded.strike()


class InterruptThread:
    """One function called on whatever thread `call` is called on."""

    def __init__(self, running: RunningTask) -> None:
        self._running = running
        self._ident: int | None = None  # while it is inside the function
        # Struck inside `_leave`, the thread may leave it locked, and comes back to it: it must be able to enter again.
        self._gate = threading.RLock()

    def call(self, function: Callable[[], Any]) -> Attempt:
        try:
            try:
                self._enter()
                returned = function()
                exit_if_copy(None)  # first: whoever held the gate when it was copied does not exist in the copy
                self._leave()
            except BaseException as error:  # noqa: BLE001 - user code
                exit_if_copy(error)
                self._leave()
                return None, error
        except BaseException as error:  # noqa: BLE001 - the soft stop, while the task's own exception was on its way
            self._leave()
            return None, error
        return returned, None

    def stop(self) -> None:
        """From another thread."""
        if self._running.is_interrupted:
            return
        with self._gate:
            if self._ident is not None:
                self._running.is_interrupted = True
                _set_async_exc(self._ident, id(self._running.soft_stop))

    def _enter(self) -> None:
        with self._gate:
            self._running.strike()  # asked before it began
            self._ident = threading.get_ident()

    def _leave(self) -> None:
        with self._gate:
            self._ident = None
            if self._running.is_interrupted:
                _withdraw()  # else it would strike the next task


class InterruptCoroutine:
    """One coroutine, awaited on the event loop that `stop` is called on, too."""

    def __init__(self, running: RunningTask) -> None:
        self._running = running
        self._task: asyncio.Task[Any] | None = None  # while it is inside the coroutine

    async def call(self, function: Callable[[], Coroutine[Any, Any, Any]]) -> Attempt:
        import asyncio  # noqa: PLC0415 - a coroutine runs, so it is loaded

        try:
            self._task = asyncio.current_task()
            self._running.strike()  # asked before it began
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
