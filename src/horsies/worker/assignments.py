"""The claims that one child holds, by *assignment number*: the number that a claim has between the parent and this child."""

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from horsies.executor.protocol import AssignmentFields, RunTasks
from horsies.model.error_codes import OperationalErrorCode
from horsies.model.result import TaskError
from horsies.model.task import Claim

KEPT_BYTES = 1 << 16
"""A larger payload is dropped once it is sent to the child: the parent would otherwise hold the payloads of all running tasks."""
SLOW_AFTER_S = 0.02
"""A task that has run this long is slow: what waits behind it in its child is recalled."""
SLOW_TOGETHER_S = 0.05
"""The same for many tasks that have run this long together. More, because a busy machine slows all of them, wherever they run."""


class Assignments:
    """A claim is added, then begun, then ended, taken back or abandoned.

    A *kill reason* is the error with which a task ends if its child dies before the task has ended.
    """

    def __init__(self) -> None:
        self._claims: dict[int, Claim] = {}
        self._begun: dict[int, float] = {}
        """When each running task began, on the monotonic clock."""
        self._kill_reasons: dict[int, TaskError] = {}
        self._abandoned: set[int] = set()
        self._groups: deque[tuple[int, int]] = deque()
        """Groups in which a task waits: their last assignment number, and how long the child had worked when they were assigned."""
        self._last_no = 0

    def __len__(self) -> int:
        return len(self._claims)

    def __contains__(self, assignment_no: int) -> bool:
        return assignment_no in self._claims

    def __getitem__(self, assignment_no: int) -> Claim:
        return self._claims[assignment_no]

    # -- changes

    def add(self, claims: Iterable[Claim], worked_us: int) -> RunTasks:
        """Assign these to the child, whose tasks have taken `worked_us` until now. Returns the message to send."""
        if not self.has_waiting:
            self._groups.clear()
        run = RunTasks([])
        for claim in claims:
            self._last_no += 1
            run.assignments.append(fields_from_claim(self._last_no, claim))
            self._claims[self._last_no] = claim if claim.weight <= KEPT_BYTES else replace(claim, args="", inputs=None)
        self._groups.append((self._last_no, worked_us))
        return run

    def begin(self, assignment_no: int, began_at: float) -> Claim:
        self._begun[assignment_no] = began_at
        while self._groups and self._groups[0][0] <= assignment_no:
            self._groups.popleft()
        return self._claims[assignment_no]

    def end(self, assignment_no: int) -> Claim:
        self._begun.pop(assignment_no, None)
        self._kill_reasons.pop(assignment_no, None)
        return self._claims.pop(assignment_no)

    def take_back(self, assignment_nos: Iterable[int]) -> list[Claim]:
        return [self._claims.pop(assignment_no) for assignment_no in assignment_nos]

    def set_kill_reason(self, assignment_no: int, kill_reason: TaskError) -> None:
        if assignment_no in self._claims:
            self._kill_reasons[assignment_no] = kill_reason

    def abandon(self, assignment_no: int) -> tuple[Claim, TaskError]:
        """Remove a task that does not stop. Returns the error with which it ends."""
        kill_reason = self._kill_reasons.get(assignment_no) or TaskError(
            error_code=OperationalErrorCode.WORKER_CRASHED, message="the task was abandoned because it did not stop"
        )
        self._abandoned.add(assignment_no)
        return self.end(assignment_no), kill_reason

    def forget_abandoned(self, assignment_no: int) -> None:
        """An abandoned task has ended after all; its result is ignored."""
        self._abandoned.remove(assignment_no)

    def remove_all(self, crash: TaskError) -> tuple[list[tuple[Claim, TaskError]], list[Claim]]:
        """Remove everything, because the child is dead. Returns what had begun, with its error, and what had not.

        A task with a kill reason counts as begun.
        """
        begun = self._begun.keys() | self._kill_reasons.keys()
        ended = [(claim, self._kill_reasons.get(no, crash)) for no, claim in self._claims.items() if no in begun]
        waiting = [claim for no, claim in self._claims.items() if no not in begun]
        self._claims.clear()
        self._begun.clear()
        return ended, waiting

    # -- queries

    @property
    def has_running(self) -> bool:
        return bool(self._begun)

    @property
    def has_waiting(self) -> bool:
        return len(self._claims) > len(self._begun)

    @property
    def has_only_abandoned(self) -> bool:
        return bool(self._abandoned) and not self._claims

    def items(self) -> list[tuple[int, Claim]]:
        return list(self._claims.items())

    def running(self) -> list[tuple[int, Claim]]:
        return [(assignment_no, self._claims[assignment_no]) for assignment_no in self._begun]

    def running_since(self) -> list[tuple[float, Claim]]:
        """Return the running tasks, with when they began on the monotonic clock."""
        return [(began_at, self._claims[assignment_no]) for assignment_no, began_at in self._begun.items()]

    def running_claim(self, assignment_no: int) -> Claim | None:
        """Return the claim with this number, if it is still running."""
        return self._claims.get(assignment_no) if assignment_no in self._begun else None

    def is_waiting(self, assignment_no: int) -> bool:
        return assignment_no in self._claims and assignment_no not in self._begun

    def is_abandoned(self, assignment_no: int) -> bool:
        return assignment_no in self._abandoned

    def has_kill_reason(self, assignment_no: int) -> bool:
        return assignment_no in self._kill_reasons

    def work_ahead_us(self, worked_us: int) -> int:
        """Return how long the child has worked since the first task that still waits was assigned."""
        return worked_us - self._groups[0][1] if self._groups else 0


def fields_from_claim(assignment_no: int, claim: Claim) -> AssignmentFields:
    """Return the fields of a claim that are sent to a child."""
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
