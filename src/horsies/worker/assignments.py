"""What one child has been given and has not ended: claims by *ticket*, the number they have between the parent and this child."""

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from horsies.executor.protocol import AssignmentFields, RunTasks
from horsies.model.error_codes import OperationalErrorCode
from horsies.model.result import TaskError
from horsies.model.task import Claim

KEPT_BYTES = 1 << 16
"""A larger payload is forgotten once the child has it: the parent would hold those of all that run."""
SLOW_AFTER_S = 0.02
"""A task that has run this long is slow: what waits behind it in its child is recalled."""
SLOW_TOGETHER_S = 0.05
"""The same for many that have run this long together. More, because a busy machine makes all of them slower, wherever they run."""


class Assignments:
    """Given, then begun, then ended, taken back or abandoned. A *verdict* is how a task ends if its child dies under it."""

    def __init__(self) -> None:
        self._given: dict[int, Claim] = {}
        self._begun: dict[int, float] = {}
        """When each of them began, on the monotonic clock."""
        self._kill_reasons: dict[int, TaskError] = {}
        self._abandoned: set[int] = set()
        self._prefetch: deque[tuple[int, int]] = deque()
        """Of those that have not all begun: the last ticket, and what the child had worked when they were given."""
        self._last = 0

    def __len__(self) -> int:
        return len(self._given)

    def __contains__(self, assignment_no: int) -> bool:
        return assignment_no in self._given

    def __getitem__(self, assignment_no: int) -> Claim:
        return self._given[assignment_no]

    @property
    def has_running(self) -> bool:
        return bool(self._begun)

    @property
    def has_waiting(self) -> bool:
        return len(self._given) > len(self._begun)

    def work_ahead_us(self, worked_us: int) -> int:
        """How much of its work the child has done since the first that has not begun was given."""
        return worked_us - self._prefetch[0][1] if self._prefetch else 0

    @property
    def has_only_abandoned(self) -> bool:
        """Nothing is left but what was abandoned."""
        return bool(self._abandoned) and not self._given

    def items(self) -> list[tuple[int, Claim]]:
        return list(self._given.items())

    def running(self) -> list[tuple[int, Claim]]:
        """What has begun."""
        return [(assignment_no, self._given[assignment_no]) for assignment_no in self._begun]

    def running_since(self) -> list[tuple[float, Claim]]:
        """What has begun, and when, on the monotonic clock."""
        return [(began_at, self._given[assignment_no]) for assignment_no, began_at in self._begun.items()]

    def running_claim(self, assignment_no: int) -> Claim | None:
        """What runs under this ticket, if it still does."""
        return self._given.get(assignment_no) if assignment_no in self._begun else None

    def is_waiting(self, assignment_no: int) -> bool:
        """It has been given and has not begun."""
        return assignment_no in self._given and assignment_no not in self._begun

    def has_kill_reason(self, assignment_no: int) -> bool:
        """It is decided how it ends if its child dies."""
        return assignment_no in self._kill_reasons

    def add(self, claims: Iterable[Claim], worked_us: int) -> RunTasks:
        """To a child that has worked so much in its life."""
        if not self.has_waiting:
            self._prefetch.clear()
        run = RunTasks([])
        for claim in claims:
            self._last += 1
            run.assignments.append(fields_of(self._last, claim))
            self._given[self._last] = claim if claim.weight <= KEPT_BYTES else replace(claim, args="", inputs=None)
        self._prefetch.append((self._last, worked_us))
        return run

    def begin(self, assignment_no: int, began_at: float) -> Claim:
        self._begun[assignment_no] = began_at
        while self._prefetch and self._prefetch[0][0] <= assignment_no:
            self._prefetch.popleft()
        return self._given[assignment_no]

    def end(self, assignment_no: int) -> Claim:
        self._begun.pop(assignment_no, None)
        self._kill_reasons.pop(assignment_no, None)
        return self._given.pop(assignment_no)

    def take_back(self, assigned: Iterable[int]) -> list[Claim]:
        return [self._given.pop(assignment_no) for assignment_no in assigned]

    def set_kill_reason(self, assignment_no: int, kill_reason: TaskError) -> None:
        if assignment_no in self._given:
            self._kill_reasons[assignment_no] = kill_reason

    def abandon(self, assignment_no: int) -> tuple[Claim, TaskError]:
        """Forget a task that does not stop; how it ends."""
        kill_reason = self._kill_reasons.get(assignment_no) or TaskError(
            error_code=OperationalErrorCode.WORKER_CRASHED, message="it was left behind because it did not stop"
        )
        self._abandoned.add(assignment_no)
        return self.end(assignment_no), kill_reason

    def is_abandoned(self, assignment_no: int) -> bool:
        return assignment_no in self._abandoned

    def forget_abandoned(self, assignment_no: int) -> None:
        """An abandoned one has ended after all, and nobody wants to know any more."""
        self._abandoned.remove(assignment_no)

    def remove_all(self, crash: TaskError) -> tuple[list[tuple[Claim, TaskError]], list[Claim]]:
        """The child is dead: what had begun and how it ends, and what had not. (Whom a verdict waits for counts as begun.)"""
        begun = self._begun.keys() | self._kill_reasons.keys()
        ended = [
            (claim, self._kill_reasons.get(assignment_no, crash))
            for assignment_no, claim in self._given.items()
            if assignment_no in begun
        ]
        unbegun = [claim for assignment_no, claim in self._given.items() if assignment_no not in begun]
        self._given.clear()
        self._begun.clear()
        return ended, unbegun


def fields_of(assignment_no: int, claim: Claim) -> AssignmentFields:
    """What a child is told of a claim."""
    return (
        assignment_no,
        claim.id,
        claim.task_name,
        claim.queue_name,
        claim.attempt,
        claim.timeout_ms,
        claim.args or "{}",
        claim.inputs,
        claim.root_id,
        claim.trace,
    )
