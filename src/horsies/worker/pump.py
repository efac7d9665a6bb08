"""The pump: the worker's conversation with the database about tasks.

Everything that happens (a notification, a child's report, a timer) comes in on the event loop, is entered in the books (what
children report, by the clerk), and calls `_go`, which sends as many *turns* as there is reason for: one transaction each, that ends what has ended, gives back what will not
run here, starts what is buffered and claims into the free places. Turns overlap: a few are in flight, each with its own courier,
each carrying all that is on the books at that moment. While one waits for its commit to reach the disk, the next is already on
its way.

Nothing is forgotten before the database has answered. A turn that fails puts back what it carried; endings are fenced by claim
number, so writing one twice is harmless. What was claimed by a turn whose answer was lost is found by the heartbeat.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from types import TracebackType
from typing import Self

from horsies.db.courier import Courier
from horsies.db.trouble import DatabaseError, Trouble, broker_error, trouble_of
from horsies.events import DatabaseTrouble, emit, subscribers
from horsies.model.config import PostgresConfig
from horsies.model.recovery import WorkerResilienceConfig
from horsies.model.task import Claim, TaskId
from horsies.worker.backoff import Backoff, GaveUp
from horsies.worker.books import Books
from horsies.worker.clerk import Clerk
from horsies.worker.dispatch import dispatch
from horsies.worker.frames import SLOW_AFTER_S, SLOW_TOGETHER_S
from horsies.worker.herald import Herald
from horsies.worker.stops import Stops
from horsies.worker.turn import ClaimFrom, Outcome, Turn, take_turn

GATHER_S = 0.001
LAST_WORDS_S = 5.0
ANSWER_S = 1.0
LOCKED_S = 0.02

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
        self._group = group
        self._books = books
        self._backoff = Backoff(resilience)
        self._poll_s = resilience.notify_poll_interval_ms / 1000
        self._coalesce = coalesce
        self._unread = 0
        self._gather_until: float | None = None
        self._in_doubt = in_doubt
        self._grace_s = grace_ms / 1000
        self._stops = Stops(books, self._grace_s)
        self.herald = Herald()
        self.clerk = Clerk(books, self._stops, self.herald, entered=self._go, armed=self._arm_now)
        self._due_at: float | None = None
        self._couriers = [Courier(database, "worker") for _ in range(turns)]
        self._idle_couriers = list(self._couriers)
        self._loop = asyncio.get_running_loop()
        self._heard_count = 0
        self._poll_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._drained = asyncio.Event()
        self._is_open = False
        self._flights: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._is_open = True
        self._go()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        if self._timer:
            self._timer.cancel()
        for courier in self._couriers:
            courier.close()

    async def drain(self, timeout_ms: int | None) -> None:
        """Claim no more, give back what has not begun, and wait until the rest has ended and is written down."""
        self._books.stopping = True
        for member in self._books.roster:
            if member.tickets.has_unbegun:
                member.recall()
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
            log.warning("killing what still runs")
            self._stops.kill_all()
            self._leave_soon()
        else:
            log.warning("interrupting what still runs")
            self._stops.interrupt_all()
        self._go()

    def _leave_soon(self) -> None:
        """The last endings still get a moment to be written down."""
        self._loop.call_later(LAST_WORDS_S, self._drained.set)

    @property
    def has_killed(self) -> bool:
        """Tasks were interrupted, because they did not end in time."""
        return self._stops.has_interrupted

    # -- what happens

    def heard(self, payload: str | None) -> None:
        """A notification: there is something to claim, now or later. None: there may be."""
        match (payload or "").split(" "):
            case ["later", microseconds]:
                self._heard_count += 1
                self.due_in(int(microseconds) / 1_000_000)
                return
            case ["freed"]:
                pass
            case _:
                if not self._books.marks.heard(payload):
                    return  # of a queue that others serve: were each to look, every send would cost a transaction per worker
        self._heard_count += 1
        self._books.more = True
        self._go_soon()

    def due_in(self, seconds: float) -> None:
        """A task that was put off becomes due then."""
        now = time.monotonic()
        due_at = now + max(0.0, seconds)
        if self._due_at is None or due_at < self._due_at:
            self._due_at = due_at
            self._arm(now)

    def cancel(self, task_ids: Collection[TaskId]) -> None:
        """These are asked to stop, and killed when their grace is over."""
        self._stops.cancel(task_ids)
        self._arm_now()

    # -- what the database says is ours

    async def strangers(self, held: Sequence[Claim]) -> list[Claim]:
        """Of the rows that the database says are ours, those we know nothing of."""
        if self._unknown(held) and self._flights:
            # One of these may just have claimed them: its answer comes first. Not for long: this is the heartbeat's time.
            # Those that leave from now on do not matter, and under load there are always some.
            _, unanswered = await asyncio.wait(self._flights, timeout=ANSWER_S)
            if unanswered:
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
        if not self._is_open:
            return
        now = time.monotonic()
        while self._may_send(now) and (turn := self._books.next_turn(now)):
            self._gather_until = None
            if not self._launch(turn):
                return
        if self._books.stopping and self._books.is_empty:
            self._drained.set()
        self._arm(now)

    def _launch(self, turn: Turn) -> bool:
        """False: the worker is coming to its end by an error, and its children's last words change nothing."""
        # What is heard from now on is not in its lanes, even if it leaves a moment later.
        journey = self._fly(turn, self._idle_couriers.pop(), self._heard_count, self._books.marks.moment)
        try:
            flight = self._group.create_task(journey)
        except RuntimeError:
            journey.close()
            return False
        self._flights.add(flight)
        flight.add_done_callback(self._flights.discard)
        return True

    def _may_send(self, now: float) -> bool:
        if not self._idle_couriers or now < self._backoff.until:
            return False
        if self._books.should_gather():
            self._gather_until = self._gather_until or now + GATHER_S
            return now >= self._gather_until
        self._gather_until = None
        return True

    async def _fly(self, turn: Turn, courier: Courier, heard_count: int, moment: int) -> None:
        departed = time.monotonic()
        try:
            outcome = await courier.run(take_turn(turn))
        except DatabaseError as error:
            self._failed(turn, error)
        else:
            self._backoff.succeeded()
            if subscribers:
                self.herald.turned(turn, outcome, time.monotonic() - departed)
            self._note_claims(turn, outcome, heard_count, moment, departed)
            dispatch(
                self._books, self._books.settle(turn, outcome, until=departed + self._books.limits.lease_ms / 1000)
            )
        finally:
            self._idle_couriers.append(courier)
        self._go()

    def _note_claims(self, turn: Turn, outcome: Outcome, heard_count: int, moment: int, departed: float) -> None:
        """Move the marks, and find out whether there is more to claim."""
        if outcome.due_s is not None:
            # What is due and was not promoted is held locked by somebody: not again at once, and for ever.
            self.due_in(outcome.due_s if outcome.promoted else max(outcome.due_s, LOCKED_S))
        for lane in outcome.promoted:
            self._books.marks.heard(lane)
            self._books.more = True
        if not turn.wanted:
            return
        marks, now = self._books.marks, time.monotonic()
        claims = [claim for group in outcome.claimed for claim in group]
        asked = len(claims) if _met_a_batch(turn, outcome) else sum(wanted.limit for wanted in turn.wanted)
        if turn.claim_from is ClaimFrom.START:
            marks.rescanned(claims, asked=asked, sent_at=moment, now=now, cost_s=now - departed)
        else:
            lanes = turn.lanes if turn.claim_from is ClaimFrom.MARKS else ()
            marks.claimed(claims, lanes=lanes, asked=asked, sent_at=moment)
        for lane in outcome.waiting:
            marks.heard(lane)
        if len(claims) < asked and heard_count == self._heard_count:
            self._books.more = turn.claim_from is ClaimFrom.MARKS and marks.are_left

    # -- trouble

    def _failed(self, turn: Turn, error: DatabaseError) -> None:
        self._books.put_back(turn)
        self._books.marks.heard(None)
        trouble = trouble_of(error)
        if subscribers:
            emit(DatabaseTrouble(trouble.name.lower()))
        match trouble:
            case Trouble.EXPECTED:
                self._backoff.contended()
            case Trouble.REFUSED if turn.endings:
                self._books.isolate(turn, f"the result cannot be stored. {broker_error(error)}")
            case _:
                self._in_doubt()
                self._backoff.failed(broker_error(error))

    # -- time

    def _arm(self, now: float) -> None:
        """Be called when time alone makes something due. A timer that rings too early does no harm, so it is seldom moved."""
        due = min(self._due_moments(now))
        if self._timer is None or due < self._timer_at - 0.001:
            if self._timer:
                self._timer.cancel()
            self._timer_at = due
            self._timer = self._loop.call_later(max(0.0, due - now), self._ring)

    def _arm_now(self) -> None:
        self._arm(time.monotonic())

    def _due_moments(self, now: float) -> Iterator[float]:
        yield self._poll_at
        if now < self._backoff.until:
            yield self._backoff.until
        elif self._idle_couriers:  # else no turn could leave then, and these moments would ring again and again in vain
            yield from self._departures()
        if (rescan_s := self._books.marks.rescan_in_s(now)) is not None and not self._books.more:
            yield now + max(rescan_s, 0.001)
        if self._books.frames.is_framed and any(m.tickets.has_unbegun and not m.recalled for m in self._books.roster):
            yield now + SLOW_AFTER_S / 2
        if self._due_at is not None:
            yield self._due_at
        if (deadline := self._stops.next_at) is not None:
            yield deadline

    def _departures(self) -> Iterator[float]:
        """When there is a reason for a turn, though nothing has happened."""
        if self._gather_until is not None:
            yield self._gather_until
        if self._books.buffer:
            yield self._books.buffer[0].until

    def _ring(self) -> None:
        self._timer = None
        now = time.monotonic()
        if now >= self._poll_at:
            self._poll_at = now + self._poll_s
            self._books.marks.heard(None)
            self._books.more = self._books.promotes = True
        if self._due_at is not None and now >= self._due_at:
            self._due_at = None
            self._books.promotes = True
        self._stops.enforce(now)
        if self._books.marks.rescan_in_s(now) == 0.0:
            self._books.more = True
        for member in self._books.roster:
            if member.tickets.has_unbegun and member.is_stuck(now, SLOW_AFTER_S, SLOW_TOGETHER_S):
                member.recall()
        self._go()


def _met_a_batch(turn: Turn, outcome: Outcome) -> bool:
    """Some queue gave all that one claim may take from it: there may be more."""
    return any(
        wanted.queue_limit in Counter(claim.queue_name for claim in claims).values()
        for wanted, claims in zip(turn.wanted, outcome.claimed, strict=True)
    )
