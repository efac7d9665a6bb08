"""Waiting for results: many wait, one reads for all of them.

A waiter registers the keys it waits for with the hub and blocks. One of the blocked waiters is the *reader*. Only the reader keeps time
and queries the database; all others sleep until there is a result for them or their own time has run out. So a wake-up costs one
read however many wait. A lone waiter is its own reader and reads at once, on its own thread.

**Requested** are the keys to be read next: keys just registered (those of new tasks a little later, `first_read_at`), keys that a
notification named, all keys when anything may have happened (LISTEN came into force or was lost, more tasks ended than a payload can
name, the poll is due), and keys whose own time has come (`read_again_s`). The reader takes a batch of them, reads, and delivers the
results. A key that is requested during a read, even one of that batch, stays requested: whatever happens after a read began causes
another read.

**Pace.** Thousands of endings that are notified one by one must not cause thousands of reads. A waiter that has waited for long can
wait a little longer: with many waiters, a notified key may stay unread for up to a tenth of the time that its waiter has waited, or
until a batch is full. So the number of reads grows with the logarithm of the time. With a few waiters this delay is next to nothing, and a
lone one is never delayed. Only `*`, which any user may send, causes at most one read of everything per interval.

**No waiter is lost.** The reader may leave at any moment: complete, timed out, or cancelled in the middle of a read. Then its batch is
requested again, and the first blocked waiter that lacks a result becomes the reader and is woken. When a read fails, all waiters with
requested keys get the error: the broker has retried by then, and the database is unavailable for all of them.

**One hub per event loop, and one for all threads** (`PostgresBroker.hub`). A reader uses the pool of its own loop, and a loop that is
blocked, or never runs again, delays only its own waiters. (A worker's loop is an exception: it reads the notifications of its process.)
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from horsies.db.channels import ALL_KEYS, Channel
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
    """What a read returns for one key."""

    answer: A
    is_final: bool = False
    read_again_s: float | None = None
    """The answer changes after this time, with or without a notification."""


@dataclass(frozen=True, slots=True)
class WaitSource(Generic[A]):
    """What can be waited for: its channel, and an operation that returns a result for every key."""

    channel: Channel
    read: Callable[[list[str]], Op[Mapping[str, ReadResult[A]]]]


@dataclass(frozen=True, slots=True)
class Sleep:
    timeout_s: float


@dataclass(frozen=True, slots=True)
class ReadKeys(Generic[A]):
    keys: list[str]
    verb: Callable[[], Op[Mapping[str, ReadResult[A]]]]


WaitSteps: TypeAlias = Generator[Sleep | ReadKeys[A], Any, None]
"""Sleeps and reads, carried out by a `BlockingSleeper` or an `AsyncSleeper`."""


def do_nothing() -> None:
    """The `wake` of a waiter that is not blocked."""


class Waiter(Generic[A]):
    """The keys that one caller waits for, and the answers so far. The hub fills it in."""

    def __init__(self, keys: Iterable[str], *, first_read_at: float = 0.0) -> None:
        """Before `first_read_at`, on the monotonic clock, only a notification causes a read."""
        self.first_read_at = first_read_at
        self.answers: dict[str, A] = {}
        self.pending = dict.fromkeys(keys)  # without a final answer
        self.ready: deque[str] = deque()  # keys in the order of their final answers; the caller may take them out
        self.requested: set[str] = set()  # to be read, or being read
        self.registered_at = 0.0
        self.error: BrokerError | None = None
        self.timed_out = False  # it waits only for its last read
        self.wake: Callable[[], None] = do_nothing

    def is_complete(self) -> bool:
        return not self.pending

    def has_ready(self) -> bool:
        return bool(self.ready) or not self.pending


class WaiterHub(Generic[A]):
    """Thread-safe."""

    def __init__(
        self, source: WaitSource[A], listener: "Callable[[], Listener]", timings: WaiterTimings | None = None
    ) -> None:
        self._source = source
        self._get_listener = listener
        self._timings = timings or WaiterTimings()
        self._listener: Listener | None = None  # the one subscribed to
        # Re-entrant, and iterations under it use copies: an abandoned waiter leaves when it is garbage-collected, which may happen in
        # the middle of anything.
        self._lock = threading.RLock()
        self._waiters: dict[str, list[Waiter[A]]] = {}
        self._requested: dict[str, None] = {}
        self._read_again_at: dict[str, float] = {}
        self._blocked: dict[Waiter[A], None] = {}
        self._reader: Waiter[A] | None = None
        self._last_registered_at = 0.0
        self._requested_all_at = 0.0
        self._read_at = float("inf")  # when the requested keys are to be read
        self._in_force_at = 0.0  # when LISTEN is in force, or no longer waited for
        self._read_all_at = 0.0  # when everything is, or was, read because of a notification

    @contextmanager
    def register(self, waiter: Waiter[A]) -> Generator[None]:
        """Miss no notification for this waiter from now on, whether or not it is blocked."""
        with self._lock:
            now = self._last_registered_at = waiter.registered_at = time.monotonic()
            if not self._waiters:
                self._requested_all_at = now
            for key in waiter.pending:
                self._waiters.setdefault(key, []).append(waiter)
            self._request(waiter.pending, max(now, waiter.first_read_at))
            self._wake_reader()
        try:
            yield
        finally:
            with self._lock:
                for key in waiter.pending:
                    self._waiters[key].remove(waiter)
                    if not self._waiters[key]:
                        self._forget(key)
                if not self._waiters and self._listener is not None:
                    self._listener.unsubscribe(self._source.channel, None, self._on_notification)
                    self._listener = None

    def wait(
        self,
        waiter: Waiter[A],
        wake: Callable[[], None],
        deadline: float | None,
        until: Callable[[Waiter[A]], bool],
    ) -> WaitSteps[A]:
        """Block until the condition holds, or the deadline has passed and a last read was made. Be the reader if there is none."""
        with self._lock:
            waiter.wake = wake
            self._blocked[waiter] = None
            self._reader = self._reader or waiter
        try:
            while not until(waiter):
                if waiter.error is not None:
                    raise waiter.error
                if deadline is not None and time.monotonic() >= deadline:
                    if not waiter.timed_out:
                        self._request_last_read(waiter)
                    elif not waiter.requested:
                        return
                yield from self._take_step(waiter, deadline)
        finally:
            with self._lock:
                waiter.wake = do_nothing
                del self._blocked[waiter]
                if self._reader is waiter:
                    self._reader = next((other for other in self._blocked if other.pending), None)
                    self._wake_reader()

    def _take_step(self, waiter: Waiter[A], deadline: float | None) -> WaitSteps[A]:
        step = self._next_step(waiter, deadline)
        if isinstance(step, Sleep):
            yield step
            return
        try:
            results = yield step
        except BrokerError as error:
            self._fail(error)
        except BaseException:
            with self._lock:  # the next reader reads this batch
                self._requested = {key: None for key in step.keys if key in self._waiters} | self._requested
                self._read_at = time.monotonic()
            raise
        else:
            self._deliver(step.keys, results)

    def _wake_reader(self) -> None:
        if self._reader is not None:
            self._reader.wake()

    # -- requests

    def _request(self, keys: Iterable[str], read_at: float) -> None:
        for key in list(keys):
            self._requested[key] = None
            self._read_at = min(self._read_at, read_at)
            for waiter in list(self._waiters[key]):
                waiter.requested.add(key)

    def _request_all(self, now: float, read_at: float) -> None:
        self._requested_all_at = now
        self._request(self._waiters, read_at)

    def _request_last_read(self, waiter: Waiter[A]) -> None:
        """Request a read at the deadline: a notification may have been lost. Keys requested already are only read sooner."""
        with self._lock:
            waiter.timed_out = True
            self._read_at = time.monotonic()
            if not waiter.requested:
                self._request(waiter.pending, self._read_at)
            self._wake_reader()

    def _on_notification(self, payload: str | None) -> None:
        """Called by the thread, or the loop, that reads notifications."""
        with self._lock:
            now = time.monotonic()
            if payload is None:
                self._in_force_at = now  # or it is known not to be
                self._request_all(now, now)
            elif payload == ALL_KEYS:
                if self._read_all_at <= now:
                    latest = self._latest_read(now, max(self._requested_all_at, self._last_registered_at))
                    self._read_all_at = max(latest, self._read_all_at + self._timings.read_all_interval_s)
                self._request_all(now, self._read_all_at)
            else:
                for key in payload.split(" "):
                    if waiters := self._waiters.get(key):
                        self._request([key], self._latest_read(now, max(waiter.registered_at for waiter in waiters)))
            if self._requested:
                self._wake_reader()

    def _latest_read(self, now: float, waiting_since: float) -> float:
        """Return until when a key may stay unread that has been waited for since then."""
        crowding = min((len(self._waiters) - 1) / MANY_WAITERS, 1.0)
        return now + (now - waiting_since) * self._timings.slack * crowding

    # -- the reader

    def _next_step(self, waiter: Waiter[A], deadline: float | None) -> Sleep | ReadKeys[A]:
        with self._lock:
            now = time.monotonic()
            wake_at = float("inf") if deadline is None or waiter.timed_out else deadline
            if self._reader is waiter:
                self._subscribe(now)
                wake_at = min(wake_at, self._request_due(now))
                if self._requested:
                    is_urgent = waiter.timed_out or len(self._requested) >= BATCH
                    read_at = now if is_urgent else max(self._read_at, self._in_force_at)
                    if read_at <= now:
                        return self._take_batch()
                    wake_at = min(wake_at, read_at)
            return Sleep(min(max(wake_at - now, 0.0), MAX_SLEEP_S))

    def _subscribe(self, now: float) -> None:
        """Subscribe before the first read, or an ending could be missed in between; and again if the broker has a new listener."""
        listener = self._get_listener()
        if listener is self._listener:
            return
        if self._listener is not None:
            self._listener.unsubscribe(self._source.channel, None, self._on_notification)
        self._listener = listener
        is_in_force = listener.subscribe(self._source.channel, None, self._on_notification)
        self._in_force_at = now if is_in_force or listener.is_polling else now + self._timings.listen_timeout_s

    def _request_due(self, now: float) -> float:
        """Request the keys that are due to be read again; return when the next ones are."""
        is_polling = self._listener is not None and self._listener.is_polling
        poll_s = self._timings.poll_without_listen_s if is_polling else self._timings.poll_s
        poll_s *= 1 + len(self._waiters) // BATCH  # as many reads
        if now >= self._requested_all_at + poll_s:
            self._request_all(now, now)
        due = [key for key, read_at in list(self._read_again_at.items()) if read_at <= now]
        for key in due:
            del self._read_again_at[key]
        self._request(due, now)
        return min([self._requested_all_at + poll_s, *self._read_again_at.values()])

    def _take_batch(self) -> ReadKeys[A]:
        keys = list(islice(self._requested, BATCH))
        for key in keys:
            del self._requested[key]
        if not self._requested:
            self._read_at = float("inf")
        return ReadKeys(keys, lambda: self._source.read(keys))

    def _deliver(self, keys: Iterable[str], results: Mapping[str, ReadResult[A]]) -> None:
        with self._lock:
            now = time.monotonic()
            changed: dict[Waiter[A], None] = {}
            for key in keys:
                result = results[key]
                for waiter in list(self._waiters.get(key, ())):
                    self._update(waiter, key, result)
                    changed[waiter] = None
                if result.is_final:
                    self._forget(key)
                elif key in self._waiters and result.read_again_s is not None:
                    self._read_again_at[key] = now + max(result.read_again_s, 0.001)
            for waiter in changed:
                if waiter.ready or waiter.timed_out:
                    waiter.wake()

    def _update(self, waiter: Waiter[A], key: str, result: ReadResult[A]) -> None:
        waiter.answers[key] = result.answer
        if key not in self._requested or result.is_final:
            waiter.requested.discard(key)
        if result.is_final:
            waiter.ready.append(key)
            waiter.pending.pop(key, None)  # last: a caller that checks without the lock leaves when nothing is pending

    def _forget(self, key: str) -> None:
        self._waiters.pop(key, None)
        self._requested.pop(key, None)
        self._read_again_at.pop(key, None)

    def _fail(self, error: BrokerError) -> None:
        with self._lock:
            for waiter in list(self._blocked):
                if waiter.requested:
                    waiter.requested.clear()
                    waiter.error = error
                    waiter.wake()
            # The keys of waiters that are not blocked now stay requested, until one of them blocks again.
            away = {waiter for waiters in list(self._waiters.values()) for waiter in waiters} - self._blocked.keys()
            self._requested = dict.fromkeys(key for waiter in away for key in waiter.requested)
            self._read_at = time.monotonic()


class BlockingSleeper:
    """Carries out the steps of a wait in a thread."""

    def __init__(self, read: Callable[[ReadKeys[Any]], Any]) -> None:
        self._read = read
        self._woken = threading.Event()

    def wake(self) -> None:
        self._woken.set()

    def __call__(self, step: Sleep | ReadKeys[Any]) -> Any:
        if isinstance(step, ReadKeys):
            return self._read(step)
        self._woken.wait(step.timeout_s)
        self._woken.clear()
        return None


class AsyncSleeper:
    """Carries out the steps of a wait in a coroutine; belongs to its event loop."""

    def __init__(self, read: Callable[[ReadKeys[Any]], Awaitable[Any]]) -> None:
        self._read = read
        self._woken = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def wake(self) -> None:
        with suppress(RuntimeError):  # the loop was closed while this waiter was being collected
            self._loop.call_soon_threadsafe(self._woken.set)

    async def __call__(self, step: Sleep | ReadKeys[Any]) -> Any:
        if isinstance(step, ReadKeys):
            return await self._read(step)
        with suppress(TimeoutError):
            async with asyncio.timeout(step.timeout_s):
                await self._woken.wait()
        self._woken.clear()
        return None
