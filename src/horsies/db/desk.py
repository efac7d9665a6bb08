"""The waiting desk: many wait, one reads for all of them.

Whoever waits for something that notifications announce takes a *ticket* with its keys, enters it at the desk and sits
down. One of those who sit is the *clerk*. The clerk alone looks at the clock and asks the database; everybody else sleeps
until there is an answer for them or their own time is over. So a wake-up costs one read however many wait, and a lone
waiter, being its own clerk, reads at once and on its own thread, as if there were no desk.

**Wanted** are the keys to be read next: those just entered, those a notification named, all of them when anything may have
happened (LISTEN came into force or was lost, more ended than a payload can name, the poll is due), and those whose own moment
has come (`look_again_s`). The clerk takes a batch of them, reads, and hands out what it found. What becomes wanted meanwhile,
a key of that very batch included, is wanted again: whatever happened after a read began leads to another read.

**Pace.** After a read the clerk pauses in proportion to the number of keys that wait, so that thousands of answers that
come one by one are read a few hundred at a time; at most `MAX_PAUSE_S`, and nothing to speak of for a handful. A ticket that
is worthless until all is answered may be *patient*: what is announced for it is read when that fills a batch, or is all it
still waits for.

**Nobody is forgotten.** The clerk may leave at any moment: answered, out of time, cancelled in the middle of a read. Then
its batch is wanted again, and the first of those who sit and lack an answer is clerk and is rung. When a read fails, the
error is everyone's who is being asked for: the broker has tried again by then, and the database is away for all of them.

**One desk per event loop, and one for all threads** (`PostgresBroker.desk`). A clerk reads with the pool of its own loop;
and a loop that is blocked, or never runs again, keeps no one waiting but its own.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from horsies.db.bells import EVERYONE
from horsies.db.channels import Channel
from horsies.db.op import Op
from horsies.model.errors import BrokerError

if TYPE_CHECKING:
    from horsies.db.listen import Listener  # brings psycopg, and every handle is made of tickets

POLL_S = 5.0  # the net under a lost notification
DEAF_POLL_S = 0.25  # when notifications are known not to arrive
LISTEN_IN_FORCE_S = 2.0
BATCH = 1_000  # results may be large
PAUSE_PER_KEY_S = 0.000_05
MAX_PAUSE_S = 0.05

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Found(Generic[A]):
    """What a read says about one key."""

    answer: A
    is_final: bool = False
    look_again_s: float | None = None
    """The answer will be another by then, announced or not."""


@dataclass(frozen=True, slots=True)
class Subject(Generic[A]):
    """What can be waited for: where it is announced, and how it is read."""

    channel: Channel
    read: Callable[[list[str]], Op[Mapping[str, Found[A]]]]
    """Finds something for every key."""


@dataclass(frozen=True, slots=True)
class Rest:
    timeout_s: float | None


@dataclass(frozen=True, slots=True)
class Read(Generic[A]):
    keys: list[str]
    verb: Callable[[], Op[Mapping[str, Found[A]]]]


Waiting: TypeAlias = Generator[Rest | Read[A], Any, None]
"""Sleeps and reads, for a blocking or an asyncio seat to carry out."""


class Ticket(Generic[A]):
    """One waiter and what it waits for. The desk fills it in."""

    def __init__(self, keys: Iterable[str], *, patience: int = 1) -> None:
        self.answers: dict[str, A] = {}
        self.open = set(keys)  # without a final answer
        self.news: deque[str] = deque()  # keys in the order of their final answers; whoever waits may take them out
        self.asked: set[str] = set()  # wanted, or being read
        self.heard: set[str] = set()  # announced, and not asked for yet out of patience
        self.patience = patience
        self.error: BrokerError | None = None
        self.is_over = False  # its time has run out; it waits for the last look
        self.ring: Callable[[], None] = _nobody

    def is_answered(self) -> bool:
        return not self.open

    def has_news(self) -> bool:
        return bool(self.news) or not self.open


def _nobody() -> None:
    """The ring of a ticket whose holder does something else."""


class Desk(Generic[A]):
    """Safe from any thread."""

    def __init__(self, subject: Subject[A], listener: "Callable[[], Listener]") -> None:
        self._subject = subject
        self._listener = listener
        self._hearing: Listener | None = None
        # Re-entrant, and what is looped over under it is a copy: an abandoned waiter leaves when it is garbage-collected, which
        # may be in the middle of anything.
        self._lock = threading.RLock()
        self._tickets: dict[str, list[Ticket[A]]] = {}
        self._wanted: dict[str, None] = {}
        self._look_again: dict[str, float] = {}
        self._sitting: dict[Ticket[A], None] = {}
        self._clerk: Ticket[A] | None = None
        self._looked_at = 0.0  # when everything was last wanted
        self._not_before = 0.0

    # -- for those who wait

    @contextmanager
    def entered(self, ticket: Ticket[A]) -> Generator[None]:
        """What is announced from now on is not missed, whether or not anybody sits."""
        self._enter(ticket)
        try:
            yield
        finally:
            self._leave(ticket)

    def attend(
        self,
        ticket: Ticket[A],
        ring: Callable[[], None],
        deadline: float | None,
        is_enough: Callable[[Ticket[A]], bool],
    ) -> Waiting[A]:
        """Sit until the ticket has enough, or its time is over and it was looked at once more. Serves as clerk if need be."""
        self._sit(ticket, ring)
        try:
            while not is_enough(ticket):
                if ticket.error is not None:
                    raise ticket.error
                if deadline is not None and time.monotonic() >= deadline:
                    if ticket.is_over and not ticket.asked:
                        return
                    self._look_once_more(ticket)
                yield from self._serve(ticket, deadline)
        finally:
            self._rise(ticket)

    def _serve(self, ticket: Ticket[A], deadline: float | None) -> Waiting[A]:
        step = self._next_step(ticket, deadline)
        if isinstance(step, Rest):
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

    def _enter(self, ticket: Ticket[A]) -> None:
        with self._lock:
            if not self._tickets:
                self._looked_at = time.monotonic()
            for key in ticket.open:
                self._tickets.setdefault(key, []).append(ticket)
            self._want(ticket.open)
            self._ring_clerk()

    def _leave(self, ticket: Ticket[A]) -> None:
        with self._lock:
            for key in ticket.open:
                self._tickets[key].remove(ticket)
                if not self._tickets[key]:
                    self._forget(key)
            if not self._tickets and self._hearing is not None:
                self._hearing.unsubscribe(self._subject.channel, None, self._heard)
                self._hearing = None

    def _sit(self, ticket: Ticket[A], ring: Callable[[], None]) -> None:
        with self._lock:
            ticket.ring = ring
            self._sitting[ticket] = None
            self._clerk = self._clerk or ticket

    def _rise(self, ticket: Ticket[A]) -> None:
        with self._lock:
            ticket.ring = _nobody
            del self._sitting[ticket]
            if self._clerk is ticket:
                self._clerk = next((other for other in self._sitting if other.open), None)
                self._ring_clerk()

    def _ring_clerk(self) -> None:
        if self._clerk is not None:
            self._clerk.ring()

    # -- what is wanted

    def _want(self, keys: Iterable[str]) -> None:
        for key in list(keys):
            self._wanted[key] = None
            for ticket in list(self._tickets[key]):
                ticket.asked.add(key)
                ticket.heard.discard(key)

    def _want_all(self, now: float) -> None:
        self._looked_at = now
        self._want(self._tickets)

    def _look_once_more(self, ticket: Ticket[A]) -> None:
        """It may have ended unheard. What is being asked for already need not be asked for again."""
        with self._lock:
            ticket.is_over = True
            if not ticket.asked:
                self._want(ticket.open)
                self._ring_clerk()

    def _heard(self, payload: str | None) -> None:
        """Called by the listener's thread."""
        with self._lock:
            if payload is None:
                self._not_before = 0.0  # LISTEN is in force, or is known not to be
            if payload is None or payload == EVERYONE:
                self._want_all(time.monotonic())
            else:
                for key in payload.split(" "):
                    for ticket in list(self._tickets.get(key, ())):
                        ticket.heard.add(key)
                        self._try_patience(ticket)
            if self._wanted:
                self._ring_clerk()

    def _try_patience(self, ticket: Ticket[A]) -> None:
        if ticket.heard and len(ticket.heard) >= min(ticket.patience, len(ticket.open)):
            self._want(ticket.heard)

    # -- the clerk

    def _next_step(self, ticket: Ticket[A], deadline: float | None) -> Rest | Read[A]:
        with self._lock:
            now = time.monotonic()
            until = deadline if deadline is not None and not ticket.asked else None
            if self._clerk is not ticket:
                return Rest(None if until is None else min(max(until - now, 0.0), threading.TIMEOUT_MAX))
            self._hear(now)
            look_at = self._look_round(now)
            if self._wanted and (now >= self._not_before or ticket.is_over):
                return self._take_batch()
            moments = [self._not_before if self._wanted else look_at, *([] if until is None else [until])]
            return Rest(max(min(moments) - now, 0.0))

    def _hear(self, now: float) -> None:
        """Before the first read, or an ending could slip between; and again when the broker was closed and has another listener."""
        listener = self._listener()
        if listener is self._hearing:
            return
        if self._hearing is not None:
            self._hearing.unsubscribe(self._subject.channel, None, self._heard)
        self._hearing = listener
        if not listener.subscribe(self._subject.channel, None, self._heard) and not listener.is_deaf:
            self._not_before = now + LISTEN_IN_FORCE_S

    def _look_round(self, now: float) -> float:
        """Want what is due to be looked at; when to look round again."""
        poll_s = DEAF_POLL_S if self._hearing is not None and self._hearing.is_deaf else POLL_S
        if now >= self._looked_at + poll_s:
            self._want_all(now)
        due = [key for key, moment in list(self._look_again.items()) if moment <= now]
        for key in due:
            del self._look_again[key]
        self._want(due)
        return min([self._looked_at + poll_s, *self._look_again.values()])

    def _take_batch(self) -> Read[A]:
        keys = list(islice(self._wanted, BATCH))
        for key in keys:
            del self._wanted[key]
        return Read(keys, lambda: self._subject.read(keys))

    def _hand_out(self, keys: Collection[str], found: Mapping[str, Found[A]]) -> None:
        with self._lock:
            now = time.monotonic()
            concerned: dict[Ticket[A], None] = {}
            for key in keys:
                for ticket in list(self._tickets.get(key, ())):
                    self._tell(ticket, key, found[key])
                    concerned[ticket] = None
                if found[key].is_final:
                    self._forget(key)
                elif key in self._tickets and (look_again_s := found[key].look_again_s) is not None:
                    self._look_again[key] = now + max(look_again_s, 0.001)
            for ticket in concerned:
                self._try_patience(ticket)
                if ticket.news or ticket.is_over:
                    ticket.ring()
            pause_s = min(MAX_PAUSE_S, PAUSE_PER_KEY_S * len(self._tickets))
            self._not_before = now if len(self._wanted) >= BATCH else now + pause_s

    def _tell(self, ticket: Ticket[A], key: str, found: Found[A]) -> None:
        ticket.answers[key] = found.answer
        if key not in self._wanted or found.is_final:
            ticket.asked.discard(key)
        if found.is_final:
            ticket.heard.discard(key)
            ticket.news.append(key)
            ticket.open.discard(key)  # last: whoever looks without the lock goes when nothing is open

    def _forget(self, key: str) -> None:
        self._tickets.pop(key, None)
        self._wanted.pop(key, None)
        self._look_again.pop(key, None)

    def _put_back(self, keys: Iterable[str]) -> None:
        with self._lock:
            self._wanted = {key: None for key in keys if key in self._tickets} | self._wanted

    def _fail(self, error: BrokerError) -> None:
        with self._lock:
            self._wanted.clear()
            for ticket in {ticket: None for tickets in self._tickets.values() for ticket in tickets}:
                if ticket.asked:
                    ticket.asked.clear()
                    ticket.error = error
                    ticket.ring()
