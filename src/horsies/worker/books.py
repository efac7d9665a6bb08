"""The pump's books: what must be told to the database, what is on its way there, and what there is room for.

Pure bookkeeping, no I/O: `next_turn` takes from the books all that can travel now, and `put_back` or `settle` closes the turn.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from horsies.model.status import TaskStatus
from horsies.model.task import Claim, Ending, TaskId
from horsies.tasks.claim import Wanted
from horsies.worker.frames import Frames
from horsies.worker.marks import Marks
from horsies.worker.member import Member
from horsies.worker.turn import Outcome, Turn

ENDINGS_PER_TURN = 500


@dataclass(frozen=True, slots=True)
class Buffered:
    """A CLAIMED row in the parent. Its lease is counted from before the claim was sent: we let go before others may take it."""

    claim: Claim
    until: float


@dataclass(slots=True)
class Books:
    worker: str
    statement_timeout_ms: int
    lease_ms: int
    roster: Sequence[Member]
    frames: Frames
    marks: Marks
    endings: deque[Ending] = field(default_factory=deque[Ending])
    suspects: deque[Ending] = field(default_factory=deque[Ending])
    """Endings of a turn whose values the database refused: they travel alone, to find the one that is at fault."""
    releases: list[Claim] = field(default_factory=list[Claim])
    buffer: deque[Buffered] = field(default_factory=deque[Buffered])
    in_flight: list[Turn] = field(default_factory=list[Turn])
    more: bool = True
    """There may be something to claim."""
    stopping: bool = False

    # -- taking a turn

    def next_turn(self, now: float) -> Turn | None:
        """All that can be done now, or None when there is nothing to do."""
        if self.suspects:
            return self._depart(self._turn([self.suspects.popleft()], [], [], [], now))
        self._let_go(now)
        starts, wanted = self._starts_and_wanted()
        if not (self.endings or self.releases or starts or wanted):
            return None
        endings = [self.endings.popleft() for _ in range(min(len(self.endings), ENDINGS_PER_TURN))]
        releases, self.releases = self.releases, []
        return self._depart(self._turn(endings, releases, starts, wanted, now))

    def _let_go(self, now: float) -> None:
        """Leases that run out here are given back before another worker has to take them."""
        while self.buffer and (self.stopping or self.buffer[0].until <= now):
            self.releases.append(self.buffer.popleft().claim)

    def _starts_and_wanted(self) -> tuple[list[Claim], list[Wanted]]:
        if self.stopping:
            return [], []
        promised = sum(len(turn.starts) + sum(wanted.limit for wanted in turn.wanted) for turn in self.in_flight)
        loads = [member.load for member in self.roster if member.is_ready and not member.recalled]
        held = sum(member.load for member in self.roster) + len(self.buffer) + promised
        running = promised - sum(
            w.limit for turn in self.in_flight for w in turn.wanted if w.status is TaskStatus.CLAIMED
        )
        room = max(0, sum(self.frames.room(load) for load in loads) - running)
        starts = [self.buffer.popleft().claim for _ in range(min(room, len(self.buffer)))]
        if not self.more:
            return starts, []
        free = self.frames.ceiling - held
        run = max(0, min(room - len(starts), free))
        hold = max(0, free - run) if self.frames.buffers else 0
        wanted = [
            Wanted(self.worker, status, limit, self.lease_ms)
            for status, limit in ((TaskStatus.RUNNING, run), (TaskStatus.CLAIMED, hold))
            if limit
        ]
        return starts, wanted

    def _turn(
        self, endings: list[Ending], releases: list[Claim], starts: list[Claim], wanted: list[Wanted], now: float
    ) -> Turn:
        return Turn(
            worker=self.worker,
            statement_timeout_ms=self.statement_timeout_ms,
            endings=endings,
            releases=releases,
            starts=starts,
            wanted=wanted,
            queues=self.marks.queues,
            lanes=self.marks.lanes(now) if wanted else None,
        )

    def _depart(self, turn: Turn) -> Turn:
        self.in_flight.append(turn)
        return turn

    # -- closing a turn

    def put_back(self, turn: Turn) -> None:
        """It failed, or nobody knows: everything it carried is still to be done."""
        self._land(turn)
        self.endings.extendleft(reversed(turn.endings))
        self.releases.extend(turn.releases)
        self.releases.extend(turn.starts)  # whether or not they were started: their user code has not run

    def settle(self, turn: Turn, outcome: Outcome, until: float) -> list[Claim]:
        """It was committed. Returns what is now RUNNING and waits for a child."""
        self._land(turn)
        runnable = [claim for claim in turn.starts if claim.id in outcome.started]
        for wanted, claims in zip(turn.wanted, outcome.claimed, strict=True):
            if wanted.status is TaskStatus.RUNNING:
                runnable.extend(claims)
            else:
                self.buffer.extend(Buffered(claim, until) for claim in claims)
        return runnable

    def _land(self, turn: Turn) -> None:
        self.in_flight.remove(turn)

    # -- questions

    @property
    def is_empty(self) -> bool:
        """Nothing is held, and nothing is left to be told."""
        idle = not any(member.load for member in self.roster)
        return idle and not (self.endings or self.suspects or self.releases or self.buffer or self.in_flight)

    def remembered(self) -> set[tuple[TaskId, int]]:
        """Every claim that this worker knows of, wherever it is."""
        return {(item.id, item.claim_no) for item in self._everything()}

    def _everything(self) -> Iterator[Claim | Ending]:
        for member in self.roster:
            yield from member.assigned()
        yield from self.endings
        yield from self.suspects
        yield from self.releases
        yield from (buffered.claim for buffered in self.buffer)
        for turn in self.in_flight:
            yield from turn.endings
            yield from turn.releases
            yield from turn.starts
