"""The pump: the worker's conversation with the database about tasks.

Everything that happens comes in on the event loop and is entered in the books: what children report by the clerk, notifications by the news, what time
makes due by the alarm. Then `_go` is called, which sends as many *turns* as there is reason for: one transaction each, that ends what has ended, gives back
what will not run here, starts what is buffered and claims into the free places. Turns overlap: a few are in flight, each with its own courier, each
carrying all that is on the books at that moment. While one waits for its commit to reach the disk, the next is already on its way.

Nothing is forgotten before the database has answered. A turn that fails puts back what it carried; endings are fenced by claim
number, so writing one twice is harmless. What was claimed by a turn whose answer was lost is found by the heartbeat.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Sequence
from types import TracebackType
from typing import Self, TypeVar

from horsies.child.wire import ANY
from horsies.db.op import Op
from horsies.db.trouble import (
    DatabaseError,
    Trouble,
    WaitedForLock,
    broker_error,
    is_about_server,
    is_about_values,
    trouble_of,
)
from horsies.events import DatabaseTrouble, emit, subscribers
from horsies.model.config import PostgresConfig
from horsies.model.durations import duration
from horsies.model.recovery import WorkerResilienceConfig
from horsies.model.task import Claim, TaskId
from horsies.worker.alarm import Alarm
from horsies.worker.backoff import Backoff, GaveUp
from horsies.worker.books import Books
from horsies.worker.clerk import Clerk
from horsies.worker.couriers import Couriers, Flight, Loss
from horsies.worker.dispatch import dispatch
from horsies.worker.herald import Herald
from horsies.worker.news import News
from horsies.worker.quarantine import Refusal, SearchAnswer
from horsies.worker.stops import Stops
from horsies.worker.turn import Outcome, Turn

LAST_WORDS_S = 5.0
ANSWER_S = 1.0
CLAIMED_LATELY_S = 60.0
WARN_EVERY_S = 1.0
TASKS_SHOWN = 3

T = TypeVar("T")
log = logging.getLogger("horsies.worker")


class Pump:
    """A service: leaving closes its connections; `drain` is what a graceful stop waits for."""

    def __init__(
        self,
        group: asyncio.TaskGroup,
        books: Books,
        *,
        database: PostgresConfig,
        resilience: WorkerResilienceConfig,
        grace_ms: int,
        turns: int,
        coalesce: int,
        in_doubt: Callable[[], None],
    ) -> None:
        self._books = books
        self._backoff = Backoff(resilience)
        self._coalesce = coalesce
        self._unread = 0
        self._gather_until: float | None = None
        self._in_doubt = in_doubt
        self._grace_s = grace_ms / 1000
        self._stops = Stops(books, self._grace_s)
        self.herald = Herald()
        self.alarm = Alarm(books, self._stops, poll_s=resilience.notify_poll_interval_ms / 1000, rung=self._go)
        self._news = News(books, due_in=self.alarm.due_in)
        self.clerk = Clerk(books, self._stops, self.herald, entered=self._go, armed=self.alarm.mind_deadlines)
        self._couriers = Couriers(
            group,
            database,
            turns,
            resilience=resilience,
            landed=self._landed,
            lost=self._lost,
            connected=self._connected,
        )
        self._loop = asyncio.get_running_loop()
        self._drained = asyncio.Event()
        self._claimed_at = -math.inf
        self._claim_error: DatabaseError | None = None
        """Why the last claim was refused."""
        self._warn_after = 0.0

    async def __aenter__(self) -> Self:
        self._couriers.open()
        self._go()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._couriers.close()
        self.alarm.close()

    async def drain(self, timeout_ms: int | None) -> None:
        """Claim no more, give back what has not begun, and wait until the rest has ended and is written down."""
        self._books.stopping = True
        log.info("stopping: no more claims; %s", self._describe_wait(timeout_ms))
        for member in self._books.roster:
            if member.tickets.has_unbegun:
                member.recall(ANY)
        self._go()
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await self._drained.wait()
        except TimeoutError:
            log.warning("what still runs had %d ms to end", timeout_ms)
            self.hurry()
            self._loop.call_later(self._grace_s, self._leave_soon)
            await self._drained.wait()
        if not self._books.is_empty:
            raise GaveUp("the database is away and it is time to leave: what has ended here could not be written down")

    def hurry(self) -> None:
        """Stop what runs: softly at first, by a kill when asked again, and then not even the database is waited for."""
        if self._stops.is_interrupting:
            log.warning("killing what still runs: %s", self._describe_running())
            self._stops.kill_all()
            self._leave_soon()
        else:
            log.warning("interrupting what still runs: %s", self._describe_running())
            self._stops.interrupt_all()
        self._go()

    def _describe_wait(self, timeout_ms: int | None) -> str:
        count = sum(len(member.tickets.running_since()) for member in self._books.roster)
        if not count:
            return "no task is running"
        limit = "without a time limit" if timeout_ms is None else f"up to {timeout_ms / 1000:g} s"
        return f"waiting {limit} for {count} task{'' if count == 1 else 's'} to end: {self._describe_running()}"

    def _describe_running(self) -> str:
        """Name the tasks that have run for the longest."""
        running = [each for member in self._books.roster for each in member.tickets.running_since()]
        running.sort(key=lambda each: each[0])
        now = time.monotonic()
        shown = [
            f"{claim.task_name} ({claim.id}, running for {duration(now - at)})" for at, claim in running[:TASKS_SHOWN]
        ]
        more = len(running) - TASKS_SHOWN
        return (", ".join(shown) or "nothing") + (f" and {more} more" if more > 0 else "")

    def _leave_soon(self) -> None:
        """The last endings still get a moment to be written down."""
        self._loop.call_later(LAST_WORDS_S, self._drained.set)

    @property
    def has_killed(self) -> bool:
        """Tasks were interrupted, because they did not end in time."""
        return self._stops.has_interrupted

    # -- what happens

    def heard(self, payload: str | None) -> None:
        """A notification."""
        if self._news.heard(payload):
            self._go_soon()

    def cancel(self, task_ids: Collection[TaskId]) -> None:
        """These are asked to stop, and killed when their grace is over."""
        self._stops.cancel(task_ids)
        self.alarm.mind_deadlines()

    def reached(self) -> None:
        """Somebody else has just reached the database: a pause because it was away is over."""
        if self._backoff.reached():
            self._go()

    async def lend_connection(self, op: Op[T]) -> T | None:
        """Run this on a connection of ours, if one is idle; None if not."""
        return await self._couriers.lend(op)

    # -- what the database says is ours

    async def strangers(self, held: Sequence[Claim]) -> list[Claim]:
        """Of the rows that the database says are ours, those we know nothing of."""
        # A turn under way may just have claimed them: its answer comes first. Not for long: this is the heartbeat's time.
        if self._unknown(held) and not await self._couriers.have_landed(within_s=ANSWER_S):
            return []
        return self._unknown(held)

    def _unknown(self, held: Sequence[Claim]) -> list[Claim]:
        remembered = self._books.remembered()
        return [claim for claim in held if (claim.id, claim.claim_no) not in remembered]

    def release(self, claims: Sequence[Claim]) -> None:
        """Give back what no child was ever handed."""
        self._books.releases.extend(claims)
        self._go()

    # -- turns

    def _go_soon(self) -> None:
        """Notifications come in crowds: take in what has arrived, then look once."""
        self._unread += 1
        if self._unread >= self._coalesce:
            self._go()
        elif self._unread == 1:
            self._loop.call_soon(self._go)

    def _go(self) -> None:
        """Send every turn there is a reason, a connection and a good moment for.

        Children report that they are ready before the worker is registered: what it claimed then would be taken for an orphan's.
        """
        self._unread = 0
        if not self._couriers.is_open:
            return
        now = time.monotonic()
        while self._may_send(now) and (turn := self._books.next_turn(now)):
            self._gather_until = None
            self._couriers.send(turn, self._news.known)
        if self._books.stopping and self._books.is_empty:
            self._drained.set()
        self.alarm.set(now, self._next_departure(now))

    def _may_send(self, now: float) -> bool:
        if now < self._backoff.until or not self._couriers.can_send(now):
            return False
        if self._books.should_gather():
            self._gather_until = self._gather_until or now + self._books.frames.gather_s
            return now >= self._gather_until
        self._gather_until = None
        return True

    def _next_departure(self, now: float) -> float | None:
        """When a turn may leave, though nothing has happened by then."""
        if now < self._backoff.until:
            return self._backoff.until
        if not self._couriers.can_send(now):
            return self._couriers.can_send_at()  # and whoever comes back looks for what has become due meanwhile
        # What is over has not led to a turn: what waits, waits for one that is in flight.
        moments = [self._gather_until] if self._gather_until is not None and self._gather_until > now else []
        if self._books.buffer:
            moments.append(self._books.buffer[0].until)
        if suspects := self._books.quarantine.waiting:
            moments += [suspect.not_before for suspect in suspects if suspect.not_before > now]
        return min(moments, default=None)

    def _landed(self, flight: Flight, outcome: Outcome | DatabaseError) -> None:
        if isinstance(outcome, DatabaseError):
            self._failed(flight.turn, outcome)
        else:
            self._arrived(flight, outcome)
        self._go()

    def _arrived(self, flight: Flight, outcome: Outcome) -> None:
        turn, departed = flight.turn, flight.departed
        if turn.search is not None:
            self._searched(turn, outcome.found, None)
            return
        self._backoff.succeeded()
        if any(outcome.claimed):
            self._claimed_at = time.monotonic()
        if subscribers:
            self.herald.turned(turn, outcome, time.monotonic() - departed)
        self._news.found(turn, outcome, flight.known, departed)
        dispatch(self._books, self._books.settle(turn, outcome, until=departed + self._books.limits.lease_ms / 1000))

    # -- trouble

    def _connected(self) -> None:
        self._backoff.connected()
        self._go()

    def _lost(self, loss: Loss) -> None:
        """A connection was lost, or could not be made. The worker pauses only when it has no other."""
        if loss.flight is not None:
            self._books.put_back(loss.flight.turn)
            self._books.marks.heard(None)
        if subscribers:
            emit(DatabaseTrouble(trouble_of(loss.error).name.lower()))
        self._in_doubt()
        if loss.is_first:
            log.warning("a database connection was lost, connecting again: %s", broker_error(loss.error))
        elif self._couriers.has_session:
            log.warning("a database connection is missing, the others go on: %s", broker_error(loss.error))
        else:
            self._backoff.failed(broker_error(loss.error), unreached=True)
        self._go()

    def _failed(self, turn: Turn, error: DatabaseError) -> None:
        self._books.marks.heard(None)
        trouble = trouble_of(error)
        if subscribers:
            emit(DatabaseTrouble(trouble.name.lower()))
        match trouble:
            case Trouble.EXPECTED:
                self._books.put_back(turn)
                self._backoff.contended()
                if isinstance(error, WaitedForLock):
                    # Ours hold theirs for milliseconds, so it is somebody else who does: a stranger, or a transaction left open.
                    log.warning(
                        "a batch waited in vain for a lock that another session holds, trying again; "
                        "`select * from pg_locks where not granted` shows it while it waits: %s",
                        broker_error(error),
                    )
            case Trouble.LOST:
                self._books.put_back(turn)
                self._in_doubt()
                self._backoff.failed(broker_error(error))
            case _:
                self._refused(turn, error)

    def _refused(self, turn: Turn, error: DatabaseError) -> None:
        """The server has rolled it back, and says why. Some part of it was at fault: see `quarantine`."""
        refusal = Refusal(str(broker_error(error)), is_about_values(error), is_about_server(error))
        if turn.search is not None:
            self._searched(turn, refusal, error)
        elif turn.is_alone:
            self._refused_alone(turn, refusal)
        elif turn.only_claims:
            # What was answered may be what we cannot read: then it is committed.
            self._in_doubt()
            self._claim_error = error
            has_claimed = time.monotonic() - self._claimed_at < CLAIMED_LATELY_S
            self._books.begin_search(turn, time.monotonic, has_claimed=has_claimed)
        else:
            log.info("the database refused a batch, its parts are sent again one by one: %s", refusal.words)
            self._in_doubt()
            self._books.take_apart(turn)

    def _refused_alone(self, turn: Turn, refusal: Refusal) -> None:
        now = time.monotonic()
        rest_s = self._books.refused_alone(turn, refusal, now)
        if rest_s and now >= self._warn_after:  # a full disk refuses hundreds of them
            self._warn_after = now + WARN_EVERY_S
            log.warning("%s cannot be stored yet, trying again in %.1f s: %s", turn.name_of_part, rest_s, refusal.words)

    def _searched(self, turn: Turn, answer: SearchAnswer, error: DatabaseError | None) -> None:
        """A step in the search for a row that cannot be claimed was answered."""
        is_found = self._books.continue_search(turn, answer)
        if is_found is False:
            reason = error or self._claim_error
            if reason is not None:
                self._backoff.failed(broker_error(reason))
