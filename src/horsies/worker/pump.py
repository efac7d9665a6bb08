"""The pump: the worker's conversation with the database about tasks.

Everything that happens (a notification, a child's report, a timer) comes in on the event loop, is entered in the books, and calls
`_go`, which sends as many *turns* as there is reason for: one transaction each, that ends what has ended, gives back what will not
run here, starts what is buffered and claims into the free places. Turns overlap: a few are in flight, each on its own connection
in its own thread, each carrying all that is on the books at that moment. While one waits for its commit to reach the disk, the
next is already on its way.

Nothing is forgotten before the database has answered. A turn that fails puts back what it carried; endings are fenced by claim
number, so writing one twice is harmless. What was claimed by a turn whose answer was lost is found by the heartbeat.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from horsies.child.wire import Done
from horsies.db.link import Link
from horsies.db.trouble import DatabaseError, Trouble, broker_error, trouble_of
from horsies.model.codec import encode_error
from horsies.model.codes import OperationalErrorCode
from horsies.model.config import PostgresConfig, WorkerResilienceConfig
from horsies.model.errors import HorsiesError
from horsies.model.result import TaskError
from horsies.model.status import TaskStatus
from horsies.model.task import Claim, Ending, TaskId
from horsies.worker.books import Books
from horsies.worker.frames import SLOW_AFTER_S
from horsies.worker.member import Member
from horsies.worker.turn import Outcome, Turn, take_turn

CONTENTION_PAUSE_S = 0.02

log = logging.getLogger("horsies.worker")


class GaveUp(HorsiesError):  # noqa: N818 - it says what happened
    """The database stayed away for longer than this worker was told to wait."""


class Pump:
    """A service: entering opens its threads, leaving closes them; `drain` is what a graceful stop waits for."""

    def __init__(
        self,
        group: asyncio.TaskGroup,
        books: Books,
        *,
        database: PostgresConfig,
        resilience: WorkerResilienceConfig,
        turns: int,
        in_doubt: Callable[[], None],
    ) -> None:
        self._group = group
        self._books = books
        self._resilience = resilience
        self._in_doubt = in_doubt
        self._links = [Link(database, "worker") for _ in range(turns)]
        self._idle_links = list(self._links)
        self._threads = ThreadPoolExecutor(turns, thread_name_prefix="horsies-turn")
        self._loop = asyncio.get_running_loop()
        self._heard_count = 0
        self._failures = 0
        self._pause_until = 0.0
        self._poll_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._drained = asyncio.Event()
        self._flights: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._go()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer:
            self._timer.cancel()
        await asyncio.to_thread(self._threads.shutdown)
        for link in self._links:
            link.close()

    async def drain(self) -> None:
        """Claim no more, give back what has not begun, and wait until the rest has ended and is written down."""
        self._books.stopping = True
        for member in self._books.roster:
            if member.has_unbegun:
                member.recall()
        self._go()
        await self._drained.wait()

    # -- what happens

    def heard(self, payload: str | None) -> None:
        """A notification: there is something to claim. None: there may be."""
        self._books.marks.heard(payload)
        self._heard_count += 1
        self._books.more = True
        self._go()

    def done(self, claim: Claim, done: Done) -> None:
        status = TaskStatus(done.status)
        self._books.frames.observe(done.duration_us)
        self._books.endings.append(Ending(claim.id, claim.claim_no, status, done.result, done.error_code, done.error))

    def returned(self, claims: list[Claim]) -> None:
        self._books.releases.extend(claims)

    def died(self, begun: list[Claim], unbegun: list[Claim], cause: str) -> None:
        """What had begun ends as crashed; what had not goes back as if nothing had happened."""
        crash = TaskError(error_code=OperationalErrorCode.WORKER_CRASHED, message=f"{cause} while it ran this task")
        self._books.endings.extend(_failed(claim.id, claim.claim_no, crash) for claim in begun)
        self._books.releases.extend(unbegun)
        self._go()

    def settled(self) -> None:
        """A child's reports are in the books."""
        self._go()

    async def strangers(self, held: Sequence[Claim]) -> list[Claim]:
        """Of the rows that the database says are ours, those we know nothing of."""
        if self._flights:
            await asyncio.wait(self._flights)  # one of them may just have claimed these: its answer comes first
        remembered = self._books.remembered()
        return [claim for claim in held if (claim.id, claim.claim_no) not in remembered]

    def release(self, claims: Sequence[Claim]) -> None:
        """Give back what no child was ever handed."""
        self._books.releases.extend(claims)
        self._go()

    # -- turns

    def _go(self) -> None:
        """Send every turn there is a reason, a connection and a good moment for."""
        now = time.monotonic()
        while self._idle_links and now >= self._pause_until and (turn := self._books.next_turn(now)):
            if not self._launch(turn):
                return
        if self._books.stopping and self._books.is_empty:
            self._drained.set()
        self._arm(now)

    def _launch(self, turn: Turn) -> bool:
        """False: the worker is coming to its end by an error, and its children's last words change nothing."""
        journey = self._fly(turn, self._idle_links.pop())
        try:
            flight = self._group.create_task(journey)
        except RuntimeError:
            journey.close()
            return False
        self._flights.add(flight)
        flight.add_done_callback(self._flights.discard)
        return True

    async def _fly(self, turn: Turn, link: Link) -> None:
        heard_count, moment, departed = self._heard_count, self._books.marks.moment, time.monotonic()
        try:
            outcome = await self._loop.run_in_executor(self._threads, link.run, take_turn(turn))
        except DatabaseError as error:
            self._failed(turn, error)
        else:
            self._recovered()
            self._note_claims(turn, outcome, heard_count, moment, departed)
            self._dispatch(self._books.settle(turn, outcome, until=departed + self._books.lease_ms / 1000))
        finally:
            self._idle_links.append(link)
        self._go()

    def _note_claims(self, turn: Turn, outcome: Outcome, heard_count: int, moment: int, departed: float) -> None:
        """Move the marks, and find out whether there is more to claim."""
        if not turn.wanted:
            return
        marks, now = self._books.marks, time.monotonic()
        claims = [claim for group in outcome.claimed for claim in group]
        asked = sum(wanted.limit for wanted in turn.wanted)
        if turn.lanes is None:
            marks.rescanned(claims, asked=asked, sent_at=moment, now=now, cost_s=now - departed)
        else:
            marks.claimed(claims, asked=asked, sent_at=moment)
        if len(claims) < asked and heard_count == self._heard_count:
            self._books.more = False

    def _dispatch(self, claims: list[Claim]) -> None:
        """Hand out what is RUNNING, in order of service, always to the child with the least before it."""
        order = {queue: position for position, queue in enumerate(self._books.marks.queues)}
        claims.sort(key=lambda claim: (order[claim.queue_name], claim.priority, claim.enqueued_at, claim.id))
        free = [member for member in self._books.roster if member.is_ready and not member.recalled]
        if self._books.stopping or not free:
            self._books.releases.extend(claims)
            return
        shares: dict[Member, list[Claim]] = {member: [] for member in free}
        for claim in claims:
            member = min(free, key=lambda member: member.load + len(shares[member]))
            if member.load + len(shares[member]) < self._books.frames.size:
                shares[member].append(claim)
            else:
                self._books.releases.append(claim)  # the child it was meant for has died meanwhile
        for member, share in shares.items():
            if share:
                member.assign(share)

    # -- trouble

    def _failed(self, turn: Turn, error: DatabaseError) -> None:
        self._books.put_back(turn)
        self._books.marks.heard(None)
        match trouble_of(error):
            case Trouble.EXPECTED:
                self._pause(CONTENTION_PAUSE_S * random.uniform(0.5, 1.5))  # noqa: S311 - jitter, no secret
            case Trouble.REFUSED if turn.endings:
                self._isolate(turn, error)
            case _:
                self._in_doubt()
                self._back_off(error)

    def _isolate(self, turn: Turn, error: DatabaseError) -> None:
        """One of these endings holds what the database cannot store. Alone, it is replaced by an error that it can."""
        endings = [self._books.endings.popleft() for _ in turn.endings]
        if len(endings) > 1:
            self._books.suspects.extend(endings)
            return
        refusal = TaskError(
            error_code=OperationalErrorCode.WORKER_SERIALIZATION_ERROR,
            message=f"the result cannot be stored. {broker_error(error)}",
        )
        self._books.endings.append(_failed(endings[0].id, endings[0].claim_no, refusal))

    def _back_off(self, error: DatabaseError) -> None:
        limit = self._resilience.db_retry_max_attempts
        if limit and self._failures >= limit:
            raise GaveUp(f"gave up after {self._failures} failed attempts; the last: {broker_error(error)}") from error
        delay_s = self._resilience.delay_ms(self._failures, random.uniform(-1, 1)) / 1000  # noqa: S311 - jitter
        self._failures += 1
        log.warning("the database does not serve, trying again in %.1f s: %s", delay_s, broker_error(error))
        self._pause(delay_s)

    def _pause(self, seconds: float) -> None:
        self._pause_until = max(self._pause_until, time.monotonic() + seconds)

    def _recovered(self) -> None:
        if self._failures:
            log.info("the database serves again")
        self._failures = 0

    # -- time

    def _arm(self, now: float) -> None:
        """Be called when time alone makes something due. A timer that rings too early does no harm, so it is seldom moved."""
        due = min(self._due_moments(now))
        if self._timer is None or due < self._timer_at - 0.001:
            if self._timer:
                self._timer.cancel()
            self._timer_at = due
            self._timer = self._loop.call_later(max(0.0, due - now), self._ring)

    def _due_moments(self, now: float) -> Iterator[float]:
        yield self._poll_at
        if now < self._pause_until:
            yield self._pause_until
        if (rescan_s := self._books.marks.rescan_in_s(now)) is not None and not self._books.more:
            yield now + max(rescan_s, 0.001)
        if self._books.buffer:
            yield self._books.buffer[0].until
        if any(member.has_unbegun and not member.recalled for member in self._books.roster):
            yield now + SLOW_AFTER_S / 2

    def _ring(self) -> None:
        self._timer = None
        now = time.monotonic()
        if now >= self._poll_at:
            self._poll_at = now + self._resilience.notify_poll_interval_ms / 1000
            self._books.marks.heard(None)
            self._books.more = True
        if self._books.marks.rescan_in_s(now) == 0.0:
            self._books.more = True
        for member in self._books.roster:
            if member.has_unbegun and member.is_stuck(now, SLOW_AFTER_S):
                member.recall()
        self._go()


def _failed(task_id: TaskId, claim_no: int, error: TaskError) -> Ending:
    return Ending(task_id, claim_no, TaskStatus.FAILED, None, error.error_code, encode_error(error))
