"""Waiting for results: callers wait for futures, and one reader completes them.

All threads of a process share one reader, and so do the coroutines of an event loop. So a notification causes one read however many
wait, and a loop that is blocked delays only its own waiters. The reader runs while there are waiters: as a task of its loop, or
in a thread. A blocking caller that waits alone needs no such thread: it runs the reader itself, and a thread continues if others have come by
the time it leaves: a lone `get` is spared a change of threads between the notification and the caller.

**Only the reader changes its state.** Callers and the listener put what has happened into its inbox: a waiter has arrived or left, ids
were notified. The reader takes from the inbox between two reads. So whatever happens after a read began causes another read, and
the state needs no lock.

**No ending is missed.** The reader subscribes before the first read for a waiter, and LISTEN is in force by then (if it takes too
long, it polls). *Requested* are the keys to be read next: those of new waiters (for a task that was just sent a little later,
`first_read_at`), those that a notification named, all of them when anything may have happened (LISTEN came into force or was lost, more
tasks ended than a payload can name, the poll is due), and those whose own time has come (`read_again_s`, a deadline).

**Every future is completed**: with the final answer, at the deadline with what a last read found, or with the error of a read.
An error is given to all waiters with requested keys: the broker has retried by then, and the database is unavailable for all of
them. If a loop ends, its reader is cancelled, and the futures with it.

**Pace.** Thousands of endings that are notified one by one must not cause thousands of reads. A waiter that has waited for long can
wait a little longer: with many waiters, a notified key may stay unread for up to a tenth of the time that its waiter has waited, or
until a batch is full. So the number of reads grows with the logarithm of the time. With a few waiters this delay is next to nothing, and a
lone one is never delayed. Only `*`, which any user may send, causes at most one read of everything per interval.
"""

import asyncio
import heapq
import queue
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Generic, Self, TypeAlias, TypeVar

from horsies.db.channels import ALL_KEYS, Channel
from horsies.db.driver import drive, drive_async
from horsies.db.statement import Op
from horsies.model.errors import BrokerError

if TYPE_CHECKING:
    from horsies.db.listener import Listener

A = TypeVar("A")

BATCH = 1_000  # results may be large
MANY_WAITERS = 1_000
MAX_SLEEP_S = 3_600.0  # accepted by every clock


@dataclass(frozen=True, slots=True)
class WaiterTimings:
    poll_s: float = 5.0
    """In case a notification was lost."""
    poll_without_listen_s: float = 0.25
    """While notifications are known not to arrive."""
    listen_timeout_s: float = 2.0
    """How long the first read waits for LISTEN to come into force."""
    read_all_interval_s: float = 0.01
    """Between two reads of everything that notifications request."""
    slack: float = 0.1
    """The delay of a notified key, as a share of the time waited so far, if there are many waiters."""


@dataclass(frozen=True, slots=True)
class ReadResult(Generic[A]):
    """What a read returns for one id."""

    answer: A
    is_final: bool = False
    read_again_s: float | None = None
    """The answer changes after this time, with or without a notification."""


WaitSource: TypeAlias = Callable[[list[str]], Op[Mapping[str, ReadResult[A]]]]
"""What can be waited for: an operation that returns a result for every id. `Channel.DONE` announces it."""

Key: TypeAlias = tuple[WaitSource[Any], str]


@dataclass(slots=True, eq=False)
class Waiter:
    """What one call waits for."""

    source: WaitSource[Any]
    futures: dict[str, Any]
    pending: dict[Key, Any]
    deadline: float | None
    first_read_at: float
    since: float
    timed_out: bool = False  # it waits only for its last read
    has_left: bool = False


@dataclass(frozen=True, slots=True)
class Read:
    """The operation that reads these keys; it returns a `ReadResult` for each."""

    keys: list[Key]

    def __call__(self) -> Op[dict[Key, ReadResult[Any]]]:
        results: dict[Key, ReadResult[Any]] = {}
        for source in {source: None for source, _ in self.keys}:
            found = yield from source([each for of, each in self.keys if of is source])
            results |= {(source, each): result for each, result in found.items()}
        return results


Step: TypeAlias = float | Read
"""Read, or wait for the inbox for as many seconds; return what is in it, or nothing after this time."""
ReaderSteps: TypeAlias = Generator[Step, Any, None]
Input: TypeAlias = Waiter | list[str] | str | None
"""A waiter that has arrived or left, ids that were notified, `*`, or None when anything may have happened."""


class ResultReader:
    """What the two readers have in common. `make_future` and `put`, into the inbox, are called on any thread."""

    def __init__(
        self,
        listener: "Callable[[], Listener]",
        timings: WaiterTimings | None,
        make_future: Callable[[], Any],
        put: Callable[[Input], None],
    ) -> None:
        self._get_listener = listener
        self._timings = timings or WaiterTimings()
        self._make_future = make_future
        self._put = put
        self._all: set[Waiter] = set()  # changed by callers
        self._listener: Listener | None = None  # the one subscribed to
        self._sources: tuple[WaitSource[Any], ...] = ()
        self._waiters: dict[Key, dict[Waiter, None]] = {}
        self._requested: dict[Key, None] = {}
        self._timers: list[tuple[float, int, Key | Waiter]] = []  # a heap
        self._numbers = count()
        self._last_arrival_at = 0.0
        self._requested_all_at = 0.0
        self._read_at = float("inf")  # when the requested keys are to be read
        self._in_force_at = 0.0  # when LISTEN is in force, or no longer waited for
        self._read_all_at = 0.0  # when everything is, or was, read because of a notification

    @contextmanager
    def register(
        self, source: WaitSource[Any], ids: Iterable[str], deadline: float | None, first_read_at: float = 0.0
    ) -> Generator[Waiter]:
        """Complete a future for each id, if the reader runs; stop at the end of the context.

        Times are on the monotonic clock. Before `first_read_at` only a notification causes a read.
        """
        futures = {each: self._make_future() for each in ids}
        pending: dict[Key, Any] = {(source, each): future for each, future in futures.items()}
        waiter = Waiter(source, futures, pending, deadline, first_read_at, time.monotonic())
        try:
            self._all.add(waiter)
            self._put(waiter)
            yield waiter
        finally:
            # An abandoned generator leaves when it is garbage-collected, which may happen in the middle of anything: no locks here.
            self._all.discard(waiter)
            if waiter.pending:
                waiter.has_left = True
                self._put(waiter)

    def _on_notification(self, payload: str | None) -> None:
        """Called by the thread, or the loop, that reads notifications. Ids without a waiter do not wake the reader.

        An id whose waiter is still in the inbox is not found here. Its first read comes later, and sees the ending.
        """
        if payload is None or payload == ALL_KEYS:
            self._put(payload)
        elif known := [
            each for each in payload.split(" ") for source in self._sources if (source, each) in self._waiters
        ]:
            self._put(known)

    # -- the reader itself

    def _steps(self, until: Waiter | None = None) -> ReaderSteps:
        """Run until there is no waiter, or until this one has its results."""
        timeout_s = 0.0
        while True:
            for each in (yield timeout_s):
                if isinstance(each, Waiter):
                    self._add_or_remove(each, time.monotonic())
                else:
                    self._on_event(each, time.monotonic())
            if not self._waiters:
                self._timers.clear()
                self._sources = ()
                self._unsubscribe()
                return
            if until is not None and not until.pending:
                return
            now = time.monotonic()
            listener = self._get_listener()
            if listener is not self._listener:  # the first one, or the broker has a new one
                self._unsubscribe()
                self._listener = listener  # first: if a soft stop interrupts this, `_restart` unsubscribes
                is_in_force = listener.subscribe(Channel.DONE, None, self._on_notification)
                self._in_force_at = now if is_in_force or listener.is_polling else now + self._timings.listen_timeout_s
            wake_at = self._request_due(now)
            timeout_s = min(max(wake_at - now, 0.0), MAX_SLEEP_S)
            if wake_at <= now:
                yield from self._read_batch()

    def _abandon(self, error: BaseException) -> None:
        """Complete all futures: the loop ends, or an error has ended the reader."""
        self._unsubscribe()
        self._waiters.clear()
        self._requested.clear()
        for waiter in list(self._all):
            waiter.pending.clear()
            for future in waiter.futures.values():
                with suppress(RuntimeError):  # the loop is closed
                    if isinstance(error, Exception) and not future.done():
                        future.set_exception(error)
                    future.cancel()

    def _add_or_remove(self, waiter: Waiter, now: float) -> None:
        if waiter.has_left:
            for key in list(waiter.pending):
                self._remove(waiter, key)
            return
        if not self._waiters:
            self._requested_all_at = now
        self._last_arrival_at = waiter.since
        if waiter.source not in self._sources:
            self._sources += (waiter.source,)
        for key in waiter.pending:
            self._waiters.setdefault(key, {})[waiter] = None
        self._request(waiter.pending, max(now, waiter.first_read_at))
        if waiter.deadline is not None:
            heapq.heappush(self._timers, (waiter.deadline, next(self._numbers), waiter))
        if len(self._timers) > 100 + 4 * len(self._waiters):
            self._drop_timers()

    def _on_event(self, event: list[str] | str | None, now: float) -> None:
        if event is None:
            self._in_force_at = now  # or it is known not to be
            self._request_all(now, now)
        elif event == ALL_KEYS:
            if self._read_all_at <= now:
                latest = self._latest_read(now, max(self._requested_all_at, self._last_arrival_at))
                self._read_all_at = max(latest, self._read_all_at + self._timings.read_all_interval_s)
            self._request_all(now, self._read_all_at)
        else:
            for key in ((source, name) for name in event for source in self._sources):
                if waiters := self._waiters.get(key):
                    self._request([key], self._latest_read(now, max(waiter.since for waiter in waiters)))

    def _remove(self, waiter: Waiter, key: Key) -> Any:
        """Return the future, which the reader completes now, or no longer."""
        waiters = self._waiters.get(key, {})
        waiters.pop(waiter, None)
        if not waiters:
            self._waiters.pop(key, None)
            self._requested.pop(key, None)
        return waiter.pending.pop(key)

    def _request(self, keys: Iterable[Key], read_at: float) -> None:
        for key in keys:
            self._requested[key] = None
            self._read_at = min(self._read_at, read_at)

    def _request_all(self, now: float, read_at: float) -> None:
        self._requested_all_at = now
        self._request(self._waiters, read_at)

    def _request_due(self, now: float) -> float:
        """Request the keys whose time has come; return when to read the requested ones, or when the next ones are due."""
        listener = self._listener
        is_polling = listener is not None and (listener.is_polling or listener.lacks_waiter_slot)
        poll_s = self._timings.poll_without_listen_s if is_polling else self._timings.poll_s
        poll_s *= 1 + len(self._waiters) // BATCH  # as many reads
        if now >= self._requested_all_at + poll_s:
            self._request_all(now, now)
        while self._timers and self._timers[0][0] <= now:
            each = heapq.heappop(self._timers)[2]
            if isinstance(each, Waiter):  # a notification may have been lost: read once more
                each.timed_out = True
                if each.pending:
                    self._in_force_at = min(self._in_force_at, now)  # do not wait for LISTEN, either
                self._request(each.pending, now)
            elif each in self._waiters:
                self._request([each], now)
        due_at = min(self._requested_all_at + poll_s, self._timers[0][0] if self._timers else float("inf"))
        if not self._requested:
            return due_at
        if len(self._requested) >= BATCH:
            return 0.0
        return min(due_at, max(self._read_at, self._in_force_at))

    def _latest_read(self, now: float, waiting_since: float) -> float:
        """Return until when a key may stay unread that has been waited for since then."""
        crowding = min((len(self._waiters) - 1) / MANY_WAITERS, 1.0)
        return now + (now - waiting_since) * self._timings.slack * crowding

    def _drop_timers(self) -> None:
        """Most of them belong to waiters that have left."""
        self._timers = [
            timer
            for timer in self._timers
            if (timer[2].pending if isinstance(timer[2], Waiter) else timer[2] in self._waiters)
        ]
        heapq.heapify(self._timers)

    def _unsubscribe(self) -> None:
        listener = self._listener
        if listener is not None:
            listener.unsubscribe(Channel.DONE, None, self._on_notification)
        self._listener = None

    def _read_batch(self) -> ReaderSteps:
        keys = list(islice(self._requested, BATCH))
        for key in keys:
            del self._requested[key]
        if not self._requested:
            self._read_at = float("inf")
        try:
            results: Mapping[Key, ReadResult[Any]] = yield Read(keys)
        except BrokerError as error:
            self._fail((*keys, *self._requested), error)
            return
        for key in keys:
            result = results[key]
            for waiter in list(self._waiters.get(key, ())):
                if result.is_final or waiter.timed_out:
                    with suppress(asyncio.InvalidStateError):  # it was cancelled
                        self._remove(waiter, key).set_result(result.answer)
            if result.read_again_s is not None and key in self._waiters:
                read_again_at = time.monotonic() + max(result.read_again_s, 0.001)
                heapq.heappush(self._timers, (read_again_at, next(self._numbers), key))

    def _fail(self, keys: Iterable[Key], error: BrokerError) -> None:
        for waiter in {waiter for key in keys for waiter in self._waiters.get(key, ())}:
            for future in [self._remove(waiter, key) for key in list(waiter.pending)]:
                if not future.done():
                    future.set_exception(error)


class ThreadFuture(Generic[A]):
    """The future of a thread, which a soft stop can interrupt anywhere.

    A `concurrent.futures.Future` has a Condition, which is entered by a function of Python: if that is interrupted, its lock stays
    locked, and the reader would wait for it forever. A plain lock, entered by `with`, is always released.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.is_done = False
        self._answer: Any = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Self], object]] = []

    def done(self) -> bool:
        return self.is_done

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for it; return whether it is complete."""
        if not self.is_done:
            done: queue.SimpleQueue[object] = queue.SimpleQueue()
            self.add_done_callback(done.put)
            with suppress(queue.Empty):
                done.get(timeout=timeout_s)
        return self.is_done

    def result(self, timeout_s: float | None = None) -> A:
        if not self.is_done and not self.wait(timeout_s):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._answer

    def exception(self) -> BaseException | None:
        self.wait()
        return self._error

    def set_result(self, answer: A | None, error: BaseException | None = None) -> None:
        """The first outcome is kept."""
        with self._lock:
            if not self.is_done:
                self._answer, self._error, self.is_done = answer, error, True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def set_exception(self, error: BaseException) -> None:
        self.set_result(None, error)

    def cancel(self) -> None:
        self.set_result(None, CancelledError())

    def add_done_callback(self, callback: Callable[[Self], object]) -> None:
        with self._lock:
            if not self.is_done:
                self._callbacks.append(callback)
                return
        callback(self)


class ThreadReader(ResultReader):
    """Completes the futures of all threads. Belongs to one process."""

    def __init__(
        self, listener: "Callable[[], Listener]", read: Callable[..., Any], timings: WaiterTimings | None = None
    ) -> None:
        """`read` is the `run` of a broker: it takes the operation, and `again` for the next attempt."""
        self._inbox: queue.SimpleQueue[Input] = queue.SimpleQueue()  # re-entrant
        super().__init__(listener, timings, ThreadFuture, self._inbox.put)
        self._read = read
        self._lock = threading.Lock()  # to set `_runner`
        self._runner: object | None = None  # the call of `_run` that runs the reader

    def wait(self, waiter: Waiter) -> None:
        """Block until all futures of the waiter are complete. Run the reader unless another thread does."""
        self._run(waiter)
        for future in waiter.futures.values():
            while not future.is_done and not future.wait(self._timings.poll_s):  # another thread runs it
                self._run(waiter)  # if that was interrupted in the moment of passing it on, this one continues

    def completed(self, waiter: Waiter) -> "Generator[tuple[str, ThreadFuture[Any]]]":
        """Yield each future of the waiter when it is complete, with its id. A thread runs the reader, unless another waiter does."""
        done: queue.SimpleQueue[ThreadFuture[Any]] = queue.SimpleQueue()
        left = {future: each for each, future in waiter.futures.items()}
        for future in waiter.futures.values():
            future.add_done_callback(done.put)
        self.start()
        while left:
            try:
                ready = [done.get(timeout=self._timings.poll_s)]
            except queue.Empty:
                # Another waiter may have been interrupted while it ran the reader: in the moment of passing it on, or after it
                # had completed a future and before it called us.
                self.start()
                ready = [future for future in left if future.is_done]
            for future in ready:
                if (each := left.pop(future, None)) is not None:
                    yield each, future

    def start(self) -> None:
        """Run the reader in a thread, unless another thread does: that one passes it on."""
        threading.Thread(target=self._run, name="horsies-reader", daemon=True).start()

    def _run(self, until: Waiter | None = None) -> None:
        # A soft stop may raise an exception after any call. A lock that is held while the reader runs could stay locked, if that
        # happened between `acquire` and `try`: then no other thread could ever run the reader. So the runner is an attribute, which is
        # set inside the `try`, and reset by the first lines of `finally`, which call nothing.
        me = object()
        try:
            with self._lock:
                if self._runner is None:
                    self._runner = me
            if self._runner is me:
                drive(self._steps(until), self._take_step)
        except BaseException as error:
            if self._runner is me:
                if until is None:
                    self._abandon(error)
                else:
                    self._restart()
            raise
        finally:
            if self._runner is me:
                self._runner = None
                if self._waiters or not self._inbox.empty():
                    self.start()

    def _restart(self) -> None:
        """The caller was interrupted at any point, by Ctrl-C or the soft stop of a task: what it has left undone is done again."""
        self._unsubscribe()
        for waiter in list(self._all):
            pending = {(waiter.source, each): future for each, future in waiter.futures.items() if not future.done()}
            waiter.pending = pending
            self._put(waiter)
        self._put(None)

    def _take_step(self, step: Step) -> Any:
        if isinstance(step, Read):
            return self._read(step, again=step)
        inputs: list[Input] = []
        with suppress(queue.Empty):
            inputs.append(self._inbox.get(timeout=step))
            while True:
                inputs.append(self._inbox.get_nowait())
        return inputs


class LoopReader(ResultReader):
    """Completes the futures of the running event loop."""

    def __init__(
        self,
        listener: "Callable[[], Listener]",
        read: Callable[..., Awaitable[Any]],
        timings: WaiterTimings | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        super().__init__(listener, timings, self._loop.create_future, self._put_and_wake)
        self._read = read
        self._inbox: deque[Input] = deque()
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Run the reader as a task, unless it runs."""
        if self._task is None or self._task.done():
            # In an empty context: it does not belong to the first caller.
            self._task = self._loop.create_task(self._run(), name="horsies-reader", context=Context())
            self._task.add_done_callback(self._on_task_ended)

    def _on_task_ended(self, task: asyncio.Task[None]) -> None:
        """A task that is cancelled before its first step does not run at all."""
        if self._task is task:
            self._task = None
            if task.cancelled():
                self._abandon(asyncio.CancelledError())

    def _put_and_wake(self, each: Input) -> None:
        self._inbox.append(each)
        try:
            self._loop.call_soon_threadsafe(self._woken.set)
        except RuntimeError:  # the loop was closed while the reader ran
            self._inbox.clear()
            self._unsubscribe()

    async def _run(self) -> None:
        try:
            await drive_async(self._steps(), self._take_step)
        except BaseException as error:
            self._abandon(error)
            raise
        finally:
            self._task = None

    async def _take_step(self, step: Step) -> Any:
        if isinstance(step, Read):
            return await self._read(step, again=step)
        if not self._inbox and step:
            with suppress(TimeoutError):
                async with asyncio.timeout(step):
                    await self._woken.wait()
        self._woken.clear()
        return [self._inbox.popleft() for _ in range(len(self._inbox))]
