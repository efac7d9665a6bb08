"""The waiting desk: many wait, one reads for all of them.

Whoever waits for something that notifications announce takes a *ticket* with its keys, enters it at the desk and sits
down. One of those who sit is the *clerk*. The clerk alone looks at the clock and asks the database; everybody else sleeps
until there is an answer for them or their own time is over. So a wake-up costs one read however many wait, and a lone
waiter, being its own clerk, reads at once and on its own thread, as if there were no desk.

**Wanted** are the keys to be read next: those just entered (new ones a little later, `look_from`), those a notification
named, all of them when anything may have happened (LISTEN came into force or was lost, more ended than a payload can name,
the poll is due), and those whose own moment has come (`look_again_s`). The clerk takes a batch of them, reads, and hands out
what it found. What becomes wanted meanwhile, a key of that very batch included, is wanted again: whatever happened after a
read began leads to another read.

**Pace.** Thousands of endings that are announced one by one must not lead to thousands of reads. Who has waited for long
can wait a little longer: in a crowd what is announced may lie until a tenth of the time that its waiter has waited already
has passed, or a batch is full. So the number of reads grows with the logarithm of the time. Among a handful of waiters that
share is next to nothing, and a lone one is never kept waiting. Only `*`, which anyone may send, leads to at most one read
of everything per interval.

**Nobody is forgotten.** The clerk may leave at any moment: answered, out of time, cancelled in the middle of a read. Then
its batch is wanted again, and the first of those who sit and lack an answer is clerk and is rung. When a read fails, the
error is everyone's who is being asked for: the broker has tried again by then, and the database is away for all of them.

**One desk per event loop, and one for all threads** (`PostgresBroker.desk`). A clerk reads with the pool of its own loop;
and a loop that is blocked, or never runs again, keeps no one waiting but its own. (A worker's loop is an exception: it
reads the notifications of its whole process.)
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from horsies.db.channels import ALL_KEYS, Channel
from horsies.db.statement import Op
from horsies.model.errors import BrokerError

if TYPE_CHECKING:
    from horsies.db.listener import Listener

# --------
# What a waiter takes to the desk, what the desk tells it to do next, and what is found. Values; `desk.py` moves them.

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class ReadResult(Generic[A]):
    """What a read says about one key."""

    answer: A
    is_final: bool = False
    look_again_s: float | None = None
    """The answer will be another by then, announced or not."""


@dataclass(frozen=True, slots=True)
class WaitSource(Generic[A]):
    """What can be waited for: where it is announced, and how it is read."""

    channel: Channel
    read: Callable[[list[str]], Op[Mapping[str, ReadResult[A]]]]
    """Finds something for every key."""


@dataclass(frozen=True, slots=True)
class Sleep:
    timeout_s: float


@dataclass(frozen=True, slots=True)
class ReadKeys(Generic[A]):
    keys: list[str]
    verb: Callable[[], Op[Mapping[str, ReadResult[A]]]]


NextStep: TypeAlias = Generator[Sleep | ReadKeys[A], Any, None]
"""Sleeps and reads, for a blocking or an asyncio seat to carry out."""


class Waiter(Generic[A]):
    """One waiter and what it waits for. The desk fills it in."""

    def __init__(self, keys: Iterable[str], *, look_from: float = 0.0) -> None:
        """`look_from`: before that moment, on the monotonic clock, only a notification is a reason to look."""
        self.look_from = look_from
        self.answers: dict[str, A] = {}
        self.open = dict.fromkeys(keys)  # without a final answer
        self.news: deque[str] = deque()  # keys in the order of their final answers; whoever waits may take them out
        self.asked: set[str] = set()  # wanted, or being read
        self.entered_at = 0.0
        self.error: BrokerError | None = None
        self.is_over = False  # its time has run out; it waits for the last look
        self.wake_subscribers: Callable[[], None] = do_nothing

    def is_answered(self) -> bool:
        return not self.open

    def has_news(self) -> bool:
        return bool(self.news) or not self.open


def do_nothing() -> None:
    """The ring of a ticket whose holder does something else."""


POLL_S = 5.0  # the net under a lost notification
POLL_WITHOUT_LISTEN_S = 0.25  # when notifications are known not to arrive
LISTEN_IN_FORCE_S = 2.0
LONGEST_REST_S = 3_600.0  # what no clock refuses
BATCH = 1_000  # results may be large
SLACK = 0.1  # of the time waited so far, when there is a crowd
MANY_WAITERS = 1_000
ALL_EVERY_S = 0.01  # between two reads of everything that notifications ask for


class WaiterHub(Generic[A]):
    """Safe from any thread."""

    def __init__(self, subject: WaitSource[A], listener: "Callable[[], Listener]") -> None:
        self._subject = subject
        self._listener = listener
        self._hearing: Listener | None = None
        # Re-entrant, and what is looped over under it is a copy: an abandoned waiter leaves when it is garbage-collected, which
        # may be in the middle of anything.
        self._lock = threading.RLock()
        self._waiters: dict[str, list[Waiter[A]]] = {}
        self._wanted: dict[str, None] = {}
        self._look_again: dict[str, float] = {}
        self._sleeping: dict[Waiter[A], None] = {}
        self._reader: Waiter[A] | None = None
        self._entered_at = 0.0  # when the newest ticket was
        self._looked_at = 0.0  # when everything was last wanted
        self._read_at = float("inf")  # when what is wanted is to be read
        self._in_force_at = 0.0  # when LISTEN is, or is given up
        self._all_at = 0.0  # when everything is read, or was, because a notification asked for it

    # -- for those who wait

    @contextmanager
    def registered(self, waiter: Waiter[A]) -> Generator[None]:
        """What is announced from now on is not missed, whether or not anybody sits."""
        self._enter(waiter)
        try:
            yield
        finally:
            self._leave(waiter)

    def wait_until(
        self,
        waiter: Waiter[A],
        wake_subscribers: Callable[[], None],
        deadline: float | None,
        is_enough: Callable[[Waiter[A]], bool],
    ) -> NextStep[A]:
        """Sit until the ticket has enough, or its time is over and it was looked at once more. Serves as clerk if need be."""
        self._sit(waiter, wake_subscribers)
        try:
            while not is_enough(waiter):
                if waiter.error is not None:
                    raise waiter.error
                if deadline is not None and time.monotonic() >= deadline:
                    if not waiter.is_over:
                        self._look_once_more(waiter)
                    elif not waiter.asked:
                        return
                yield from self._serve(waiter, deadline)
        finally:
            self._rise(waiter)

    def _serve(self, waiter: Waiter[A], deadline: float | None) -> NextStep[A]:
        step = self._next_step(waiter, deadline)
        if isinstance(step, Sleep):
            yield step
            return
        try:
            found = yield step
        except BrokerError as error:
            self._fail(error)
        except BaseException:
            self._put_back(step.keys)
            raise
        else:
            self._hand_out(step.keys, found)

    # -- tickets

    def _enter(self, waiter: Waiter[A]) -> None:
        with self._lock:
            now = self._entered_at = waiter.entered_at = time.monotonic()
            if not self._waiters:
                self._looked_at = now
            for key in waiter.open:
                self._waiters.setdefault(key, []).append(waiter)
            self._want(waiter.open, max(now, waiter.look_from))
            self._wake_reader()

    def _leave(self, waiter: Waiter[A]) -> None:
        with self._lock:
            for key in waiter.open:
                self._waiters[key].remove(waiter)
                if not self._waiters[key]:
                    self._forget(key)
            if not self._waiters and self._hearing is not None:
                self._hearing.unsubscribe(self._subject.channel, None, self._received)
                self._hearing = None

    def _sit(self, waiter: Waiter[A], wake_subscribers: Callable[[], None]) -> None:
        with self._lock:
            waiter.wake_subscribers = wake_subscribers
            self._sleeping[waiter] = None
            self._reader = self._reader or waiter

    def _rise(self, waiter: Waiter[A]) -> None:
        with self._lock:
            waiter.wake_subscribers = do_nothing
            del self._sleeping[waiter]
            if self._reader is waiter:
                self._reader = next((other for other in self._sleeping if other.open), None)
                self._wake_reader()

    def _wake_reader(self) -> None:
        if self._reader is not None:
            self._reader.wake_subscribers()

    # -- what is wanted

    def _want(self, keys: Iterable[str], read_at: float) -> None:
        for key in list(keys):
            self._wanted[key] = None
            self._read_at = min(self._read_at, read_at)
            for waiter in list(self._waiters[key]):
                waiter.asked.add(key)

    def _want_all(self, now: float, read_at: float) -> None:
        self._looked_at = now
        self._want(self._waiters, read_at)

    def _look_once_more(self, waiter: Waiter[A]) -> None:
        """At the end of its time: it may have ended unheard. What is asked for already is only hurried."""
        with self._lock:
            waiter.is_over = True
            self._read_at = time.monotonic()
            if not waiter.asked:
                self._want(waiter.open, self._read_at)
            self._wake_reader()

    def _received(self, payload: str | None) -> None:
        """Called by the listener's thread."""
        with self._lock:
            now = time.monotonic()
            if payload is None:
                self._in_force_at = now  # or it is known not to be
                self._want_all(now, now)
            elif payload == ALL_KEYS:
                if self._all_at <= now:
                    late = self._late(now, max(self._looked_at, self._entered_at))
                    self._all_at = max(late, self._all_at + ALL_EVERY_S)
                self._want_all(now, self._all_at)
            else:
                for key in payload.split(" "):
                    if waiters := self._waiters.get(key):
                        self._want([key], self._late(now, max(waiter.entered_at for waiter in waiters)))
            if self._wanted:
                self._wake_reader()

    def _late(self, now: float, waiting_since: float) -> float:
        """How late an answer may be read that somebody has waited for since then."""
        crowd = min((len(self._waiters) - 1) / MANY_WAITERS, 1.0)
        return now + (now - waiting_since) * SLACK * crowd

    # -- the clerk

    def _next_step(self, waiter: Waiter[A], deadline: float | None) -> Sleep | ReadKeys[A]:
        with self._lock:
            now = time.monotonic()
            wake_at = float("inf") if deadline is None or waiter.is_over else deadline
            if self._reader is waiter:
                self._on_message(now)
                wake_at = min(wake_at, self._look_round(now))
                if self._wanted:
                    ready_at = self._ready_at(waiter, now)
                    if ready_at <= now:
                        return self._take_batch()
                    wake_at = min(wake_at, ready_at)
            return Sleep(min(max(wake_at - now, 0.0), LONGEST_REST_S))

    def _ready_at(self, reader: Waiter[A], now: float) -> float:
        if reader.is_over or len(self._wanted) >= BATCH:
            return now
        return max(self._read_at, self._in_force_at)

    def _on_message(self, now: float) -> None:
        """Before the first read, or an ending could slip between; and again when the broker was closed and has another listener."""
        listener = self._listener()
        if listener is self._hearing:
            return
        if self._hearing is not None:
            self._hearing.unsubscribe(self._subject.channel, None, self._received)
        self._hearing = listener
        is_in_force = listener.subscribe(self._subject.channel, None, self._received)
        self._in_force_at = now if is_in_force or listener.is_polling else now + LISTEN_IN_FORCE_S

    def _look_round(self, now: float) -> float:
        """Want what is due to be looked at; when to look round again."""
        poll_s = POLL_WITHOUT_LISTEN_S if self._hearing is not None and self._hearing.is_polling else POLL_S
        poll_s *= 1 + len(self._waiters) // BATCH  # that many reads
        if now >= self._looked_at + poll_s:
            self._want_all(now, now)
        due = [key for key, moment in list(self._look_again.items()) if moment <= now]
        for key in due:
            del self._look_again[key]
        self._want(due, now)
        return min([self._looked_at + poll_s, *self._look_again.values()])

    def _take_batch(self) -> ReadKeys[A]:
        keys = list(islice(self._wanted, BATCH))
        for key in keys:
            del self._wanted[key]
        if not self._wanted:
            self._read_at = float("inf")
        return ReadKeys(keys, lambda: self._subject.read(keys))

    def _hand_out(self, keys: Collection[str], found: Mapping[str, ReadResult[A]]) -> None:
        with self._lock:
            now = time.monotonic()
            concerned: dict[Waiter[A], None] = {}
            for key in keys:
                for waiter in list(self._waiters.get(key, ())):
                    self._tell(waiter, key, found[key])
                    concerned[waiter] = None
                if found[key].is_final:
                    self._forget(key)
                elif key in self._waiters and (look_again_s := found[key].look_again_s) is not None:
                    self._look_again[key] = now + max(look_again_s, 0.001)
            for waiter in concerned:
                if waiter.news or waiter.is_over:
                    waiter.wake_subscribers()

    def _tell(self, waiter: Waiter[A], key: str, found: ReadResult[A]) -> None:
        waiter.answers[key] = found.answer
        if key not in self._wanted or found.is_final:
            waiter.asked.discard(key)
        if found.is_final:
            waiter.news.append(key)
            waiter.open.pop(key, None)  # last: whoever looks without the lock goes when nothing is open

    def _forget(self, key: str) -> None:
        self._waiters.pop(key, None)
        self._wanted.pop(key, None)
        self._look_again.pop(key, None)

    def _put_back(self, keys: Iterable[str]) -> None:
        with self._lock:
            self._wanted = {key: None for key in keys if key in self._waiters} | self._wanted
            self._read_at = time.monotonic()

    def _fail(self, error: BrokerError) -> None:
        with self._lock:
            for waiter in list(self._sleeping):
                if waiter.asked:
                    waiter.asked.clear()
                    waiter.error = error
                    waiter.wake_subscribers()
            # Whoever does something else meanwhile asks again when it sits down.
            away = {waiter for waiters in list(self._waiters.values()) for waiter in waiters} - self._sleeping.keys()
            self._wanted = dict.fromkeys(key for waiter in away for key in waiter.asked)
            self._read_at = time.monotonic()


# --------
# Where a waiter sits: how a thread, or a coroutine, sleeps until it is rung, and how it reads when it is the clerk.


class BlockingSleeper:
    """For a thread."""

    def __init__(self, read: Callable[[ReadKeys[Any]], Any]) -> None:
        self._read = read
        self._wake_callback = threading.Event()

    def wake_subscribers(self) -> None:
        self._wake_callback.set()

    def __call__(self, step: Sleep | ReadKeys[Any]) -> Any:
        if isinstance(step, ReadKeys):
            return self._read(step)
        self._wake_callback.wait(step.timeout_s)
        self._wake_callback.clear()
        return None


class AsyncSleeper:
    """For a coroutine; belongs to its event loop."""

    def __init__(self, read: Callable[[ReadKeys[Any]], Awaitable[Any]]) -> None:
        self._read = read
        self._wake_callback = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def wake_subscribers(self) -> None:
        with suppress(RuntimeError):  # the loop was closed while this waiter was being thrown away
            self._loop.call_soon_threadsafe(self._wake_callback.set)

    async def __call__(self, step: Sleep | ReadKeys[Any]) -> Any:
        if isinstance(step, ReadKeys):
            return await self._read(step)
        with suppress(TimeoutError):
            async with asyncio.timeout(step.timeout_s):
                await self._wake_callback.wait()
        self._wake_callback.clear()
        return None
