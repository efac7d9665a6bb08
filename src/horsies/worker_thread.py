"""`Worker`: a worker that runs on a thread of this process, from `app.worker(...)`.

It has an event loop of its own, so that code that blocks the caller's event loop does not make the worker miss its heartbeats. No signal handler is
installed: the program that embeds the worker decides when it stops.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Self

from horsies.model.errors import HorsiesError
from horsies.tasks.handle import refuse_in_event_loop


class WorkerControl:
    """Requests to stop the worker, from any thread, and the signal that it is ready."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests = 0
        self._request_stop: Callable[[], object] | None = None
        self.stop_requested = threading.Event()
        self.ready: Future[None] = Future()
        self.ready.set_running_or_notify_cancel()

    def stop(self) -> None:
        """The first request drains, the second interrupts running tasks, the third kills them."""
        with self._lock:
            self._requests += 1
            self.stop_requested.set()
            if self._request_stop is not None:
                with suppress(RuntimeError):  # the loop was closed in the meantime
                    self._request_stop()

    def attach(self, request_stop: Callable[[], None]) -> None:
        """Call `request_stop` on the running event loop for every request, including earlier ones."""
        with self._lock:
            self._request_stop = partial(asyncio.get_running_loop().call_soon_threadsafe, request_stop)
            for _ in range(self._requests):
                request_stop()

    def set_ready(self) -> None:
        if not self.ready.done():  # a worker that was declared dead starts again
            self.ready.set_result(None)


class Worker:
    """A worker in this process: `async with app.worker(WorkerConfig(...)) as worker`, or `with` in blocking code.

    Entering starts it and waits until it is ready; it raises the reason if the worker cannot start. Leaving stops it, lets running tasks end, and waits
    for the end. Each object runs once.
    """

    def __init__(self, run: Callable[[WorkerControl], int]) -> None:
        self._run = run
        self._control = WorkerControl()
        self._end: Future[int] = Future()
        self._end.set_running_or_notify_cancel()  # it cannot be cancelled, only stopped
        # Not a daemon: children are killed when the thread that started them ends.
        self._thread = threading.Thread(target=self._main, name="horsies-worker")

    def stop(self) -> None:
        """Request a stop and return at once; safe on any thread. A second call interrupts running tasks, a third kills them."""
        self._control.stop()

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for its end and return its exit code, as of `horsies worker`. Raise the exception that ended it, or TimeoutError when the time runs out."""
        refuse_in_event_loop("wait()", "await worker.wait_async()")
        self._check_started()
        return self._end.result(timeout_s)

    async def wait_async(self) -> int:
        """The same for asyncio code. Cancelling it does not stop the worker."""
        self._check_started()
        return await asyncio.shield(asyncio.wrap_future(self._end))

    @property
    def exit_code(self) -> int | None:
        """Return None while it runs, and if an exception has ended it."""
        return self._end.result() if self._end.done() and self._end.exception() is None else None

    # -- blocking

    def __enter__(self) -> Self:
        refuse_in_event_loop("with app.worker(...)", "async with app.worker(...)")
        self._start()
        try:
            self._control.ready.result()
        except BaseException:
            self._join()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._join()
        if kind is None:
            self._end.result()

    def _join(self) -> None:
        """Stop it, unless that was requested, and wait for the end. Each Ctrl-C in the meantime is one more request."""
        if not self._control.stop_requested.is_set():
            self.stop()
        interrupted: KeyboardInterrupt | None = None
        while self._thread.is_alive():
            try:
                self._thread.join()
            except KeyboardInterrupt as error:
                interrupted = error
                self.stop()
        if interrupted is not None:
            raise interrupted

    # -- asyncio

    async def __aenter__(self) -> Self:
        self._start()
        try:
            await asyncio.shield(asyncio.wrap_future(self._control.ready))
        except BaseException:
            await self._join_async()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._join_async()
        if kind is None:
            self._end.result()

    async def _join_async(self) -> None:
        """Stop it, unless that was requested, and wait for the end. Each cancellation in the meantime is one more request."""
        if not self._control.stop_requested.is_set():
            self.stop()
        cancelled: asyncio.CancelledError | None = None
        while not self._end.done():
            try:
                await asyncio.wait([asyncio.wrap_future(self._end)])
            except asyncio.CancelledError as error:
                cancelled = error
                self.stop()
        self._thread.join()  # its work is done, so this does not block the loop
        if cancelled is not None:
            raise cancelled

    # -- the thread

    def _start(self) -> None:
        if self._thread.ident is not None:
            raise HorsiesError("this worker has run already; make another one with app.worker(...)")
        self._thread.start()

    def _check_started(self) -> None:
        if self._thread.ident is None:
            raise HorsiesError("this worker has not been started; write `async with app.worker(...) as worker:`")

    def _main(self) -> None:
        try:
            code = self._run(self._control)
        except BaseException as error:  # noqa: BLE001 - raised where the worker is waited for
            reason: BaseException = error
            self._end.set_exception(error)
        else:
            reason = HorsiesError(f"the worker ended before it was ready (exit code {int(code)}); its log says why")
            self._end.set_result(int(code))
        if not self._control.ready.done():
            self._control.ready.set_exception(reason)
