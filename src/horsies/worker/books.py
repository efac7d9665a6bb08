"""The pump's books: what must be told to the database, and what is on its way there.

Pure bookkeeping, no I/O: `next_turn` takes from the books all that can travel now, and `put_back` or `settle` closes the turn.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from horsies.model.codec import encode_error
from horsies.model.codes import OperationalErrorCode
from horsies.model.config import PostgresConfig
from horsies.model.result import TaskError
from horsies.model.status import TaskStatus
from horsies.model.task import Claim, Ending, TaskId
from horsies.tasks.claim import Lane, Wanted
from horsies.worker.frames import Frames
from horsies.worker.marks import Marks
from horsies.worker.member import Member
from horsies.worker.room import Limits, Room
from horsies.worker.turn import ClaimFrom, Outcome, Turn

ENDINGS_PER_TURN = 500
BYTES_PER_TURN = 1 << 25


@dataclass(frozen=True, slots=True)
class Buffered:
    """A CLAIMED row in the parent. Its lease is counted from before the claim was sent: we let go before others may take it."""

    claim: Claim
    until: float


@dataclass(slots=True)
class Books:
    worker: str
    database: PostgresConfig
    limits: Limits
    roster: Sequence[Member]
    frames: Frames
    marks: Marks
    endings: deque[Ending] = field(default_factory=deque[Ending])
    suspects: deque[Ending] = field(default_factory=deque[Ending])
    """Endings of a turn whose values the database refused: they travel alone, to find the one that is at fault."""
    interrupted: list[Ending] = field(default_factory=list[Ending])
    releases: list[Claim] = field(default_factory=list[Claim])
    buffer: deque[Buffered] = field(default_factory=deque[Buffered])
    progress: dict[tuple[TaskId, int], str] = field(default_factory=dict[tuple[TaskId, int], str])
    unsettled: set[str] = field(default_factory=set[str])
    """Roots of workflows in which a turn has left something to do."""
    in_flight: list[Turn] = field(default_factory=list[Turn])
    more: bool = True
    """There may be something to claim."""
    promotes: bool = True
    """Something that was put off may be due."""
    stopping: bool = False
    _room: Room = field(init=False)

    def __post_init__(self) -> None:
        self._room = Room(self.worker, self.limits, self.frames, self.roster, self.buffer, self.in_flight)

    def should_gather(self) -> bool:
        """Tiny tasks travel together: while others will report in a moment, a turn for one of them alone costs as much as one for
        all. Only while there is more to do: a single task is never kept waiting.
        """
        if not (self.endings and self.more and self.frames.are_tiny) or self.stopping:
            return False
        if self.frames.is_framed:
            # The children have enough to do until the next claim, which takes along what has ended by then.
            return not self._room.to_run() and len(self.endings) < ENDINGS_PER_TURN
        return bool(self.in_flight) or any(member.load for member in self.roster)

    # -- taking a turn

    def next_turn(self, now: float) -> Turn | None:
        """All that can be done now, or None when there is nothing to do."""
        if self.suspects:
            return self._depart(self._alone(self.suspects.popleft()))
        self._let_go(now)
        endings = self._endings()
        # What ends a node may make the next one ready, in the very turn that could claim it.
        self.more = self.more or any(ending.root_id is not None for ending in endings)
        starts = self._starts()
        wanted = self._wanted(starts)
        told = endings or self.interrupted or self.releases or self.progress or self.unsettled
        if not (told or starts or wanted or self._may_promote):
            return None
        releases, self.releases = self.releases, []
        return self._depart(self._turn(endings, releases, starts, wanted, now))

    def _endings(self) -> list[Ending]:
        """As many as travel well together: PostgreSQL takes no message of a gigabyte."""
        taken: list[Ending] = []
        waiting: list[Ending] = []
        busy, size = self._busy_roots(), 0
        while self.endings and len(taken) < ENDINGS_PER_TURN and size < BYTES_PER_TURN:
            ending = self.endings.popleft()
            if ending.root_id in busy:
                waiting.append(ending)
                continue
            taken.append(ending)
            size += len(ending.result or "") + len(ending.error or "")
        self.endings.extendleft(reversed(waiting))
        return taken

    def _busy_roots(self) -> set[str]:
        """Workflows that a turn is at: another would only wait for its lock, and carry less than one that is sent afterwards. With frames
        the children have other work meanwhile.
        """
        if not self.frames.is_framed:
            return set()
        return {ending.root_id for turn in self.in_flight for ending in turn.of_workflows if ending.root_id is not None}

    def _alone(self, ending: Ending) -> Turn:
        return Turn(
            worker=self.worker,
            database=self.database,
            caps=self.limits.caps,
            endings=[ending],
            frees_capped=self.limits.caps.is_any,
        )

    def _let_go(self, now: float) -> None:
        """Leases that run out here are given back before another worker has to take them."""
        while self.buffer and (self.stopping or self.buffer[0].until <= now):
            self.releases.append(self.buffer.popleft().claim)

    @property
    def _may_promote(self) -> bool:
        return self.promotes and not self.stopping

    def _starts(self) -> list[Claim]:
        if self.stopping or not self.buffer:
            return []
        return [self.buffer.popleft().claim for _ in range(min(self._room.to_run(), len(self.buffer)))]

    def _wanted(self, starts: Sequence[Claim]) -> list[Wanted]:
        if self.stopping or not self.more or (self.limits.caps.is_any and any(turn.wanted for turn in self.in_flight)):
            return []  # while something is capped, claims of one worker would only wait for each other's lock
        return self._room.wanted(len(starts))

    def _turn(
        self, endings: list[Ending], releases: list[Claim], starts: list[Claim], wanted: list[Wanted], now: float
    ) -> Turn:
        claim_from, lanes = self._place(wanted, now) if wanted else (ClaimFrom.START, [])
        progress, self.progress = self.progress, {}
        interrupted, self.interrupted = self.interrupted, []
        promotes, self.promotes = self._may_promote, False
        unsettled, self.unsettled = self.unsettled, set()
        return Turn(
            worker=self.worker,
            database=self.database,
            caps=self.limits.caps,
            endings=endings,
            interrupted=interrupted,
            releases=releases,
            starts=starts,
            progress=[(*claim, text) for claim, text in progress.items()],
            promotes=promotes,
            wanted=wanted,
            claim_from=claim_from,
            lanes=lanes,
            frees_capped=self.limits.caps.is_any and bool(endings or releases or interrupted),
            unsettled=sorted(unsettled),
        )

    def _place(self, wanted: Sequence[Wanted], now: float) -> tuple[ClaimFrom, list[Lane]]:
        if self.marks.wants_start(now):
            return ClaimFrom.START, self.marks.starts()
        if self.limits.caps.is_any or self.limits.max_claim_batch:
            # By queue, also those without a mark: a claim that met a cap has not seen all that waits.
            return ClaimFrom.QUEUES, self.marks.first_lanes()
        return ClaimFrom.MARKS, self.marks.lanes(sum(each.limit for each in wanted))

    def _depart(self, turn: Turn) -> Turn:
        self.in_flight.append(turn)
        return turn

    # -- closing a turn

    def put_back(self, turn: Turn) -> None:
        """It failed, or nobody knows: everything it carried is still to be done."""
        self._land(turn)
        self.endings.extendleft(reversed(turn.endings))
        self.interrupted.extend(turn.interrupted)
        self.releases.extend(turn.releases)
        self.releases.extend(turn.starts)  # whether or not they were started: their user code has not run
        for task_id, claim_no, text in turn.progress:
            self.progress.setdefault((task_id, claim_no), text)  # unless there is news of it
        self.promotes = self.promotes or turn.promotes
        self.unsettled.update(turn.unsettled)

    def isolate(self, turn: Turn, words: str) -> None:
        """Of a turn that was put back: one of its endings holds what the database cannot store. Alone, it is replaced by an error."""
        endings = [self.endings.popleft() for _ in turn.endings]
        if len(endings) > 1:
            self.suspects.extend(endings)
            return
        error = TaskError(error_code=OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message=words)
        self.endings.append(
            Ending(
                endings[0].id,
                endings[0].claim_no,
                TaskStatus.FAILED,
                error_code=error.error_code,
                error=encode_error(error),
                root_id=endings[0].root_id,
            )
        )

    def settle(self, turn: Turn, outcome: Outcome, until: float) -> list[Claim]:
        """It was committed. Returns what is now RUNNING and waits for a child."""
        self._land(turn)
        self.unsettled.update(outcome.unsettled)
        runnable = [claim for claim in turn.starts if claim.id in outcome.started]
        # Lost, or their queue is full: what is still ours goes back.
        self.releases.extend(claim for claim in turn.starts if claim.id not in outcome.started)
        for wanted, claims in zip(turn.wanted, outcome.claimed, strict=True):
            if wanted.status is TaskStatus.RUNNING:
                runnable.extend(claims)
            else:
                self.buffer.extend(Buffered(claim, until) for claim in self.marks.in_order(claims))
        return runnable

    def _land(self, turn: Turn) -> None:
        self.in_flight.remove(turn)

    # -- questions

    @property
    def is_empty(self) -> bool:
        """Nothing is held, and nothing is left to be told."""
        idle = not any(member.load for member in self.roster)
        return idle and not (
            self.endings
            or self.suspects
            or self.interrupted
            or self.releases
            or self.buffer
            or self.unsettled
            or self.in_flight
        )

    @property
    def running_count(self) -> int:
        return sum(member.load for member in self.roster)

    def remembered(self) -> set[tuple[TaskId, int]]:
        """Every claim that this worker knows of, wherever it is."""
        return {(item.id, item.claim_no) for item in self._everything()}

    def _everything(self) -> Iterator[Claim | Ending]:
        for member in self.roster:
            yield from (claim for _, claim in member.tickets.all())
        yield from self.endings
        yield from self.suspects
        yield from self.interrupted
        yield from self.releases
        yield from (buffered.claim for buffered in self.buffer)
        for turn in self.in_flight:
            yield from turn.endings
            yield from turn.interrupted
            yield from turn.releases
            yield from turn.starts
