"""What one child has been given and has not ended: claims by *ticket*, the number they have between the parent and this child."""

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from horsies.executor.protocol import Fields, RunTasks
from horsies.model.error_codes import OperationalErrorCode
from horsies.model.result import TaskError
from horsies.model.task import Claim

KEPT_BYTES = 1 << 16
"""A larger payload is forgotten once the child has it: the parent would hold those of all that run."""


class Assignments:
    """Given, then begun, then ended, taken back or abandoned. A *verdict* is how a task ends if its child dies under it."""

    def __init__(self) -> None:
        self._given: dict[int, Claim] = {}
        self._begun: dict[int, float] = {}
        """When each of them began, on the monotonic clock."""
        self._verdicts: dict[int, TaskError] = {}
        self._abandoned: set[int] = set()
        self._frames: deque[tuple[int, int]] = deque()
        """Of those that have not all begun: the last ticket, and what the child had worked when they were given."""
        self._last = 0

    def __len__(self) -> int:
        return len(self._given)

    def __contains__(self, ticket: int) -> bool:
        return ticket in self._given

    def __getitem__(self, ticket: int) -> Claim:
        return self._given[ticket]

    @property
    def has_begun(self) -> bool:
        return bool(self._begun)

    @property
    def has_unbegun(self) -> bool:
        return len(self._given) > len(self._begun)

    def worked_before(self, worked_us: int) -> int:
        """How much of its work the child has done since the first that has not begun was given."""
        return worked_us - self._frames[0][1] if self._frames else 0

    @property
    def is_deserted(self) -> bool:
        """Nothing is left but what was abandoned."""
        return bool(self._abandoned) and not self._given

    def all(self) -> list[tuple[int, Claim]]:
        return list(self._given.items())

    def running(self) -> list[tuple[int, Claim]]:
        """What has begun."""
        return [(ticket, self._given[ticket]) for ticket in self._begun]

    def running_since(self) -> list[tuple[float, Claim]]:
        """What has begun, and when, on the monotonic clock."""
        return [(began_at, self._given[ticket]) for ticket, began_at in self._begun.items()]

    def running_claim(self, ticket: int) -> Claim | None:
        """What runs under this ticket, if it still does."""
        return self._given.get(ticket) if ticket in self._begun else None

    def is_waiting(self, ticket: int) -> bool:
        """It has been given and has not begun."""
        return ticket in self._given and ticket not in self._begun

    def is_condemned(self, ticket: int) -> bool:
        """It is decided how it ends if its child dies."""
        return ticket in self._verdicts

    def give(self, claims: Iterable[Claim], worked_us: int) -> RunTasks:
        """To a child that has worked so much in its life."""
        if not self.has_unbegun:
            self._frames.clear()
        run = RunTasks([])
        for claim in claims:
            self._last += 1
            run.assignments.append(fields_of(self._last, claim))
            self._given[self._last] = claim if claim.weight <= KEPT_BYTES else replace(claim, args="", inputs=None)
        self._frames.append((self._last, worked_us))
        return run

    def begin(self, ticket: int, began_at: float) -> Claim:
        self._begun[ticket] = began_at
        while self._frames and self._frames[0][0] <= ticket:
            self._frames.popleft()
        return self._given[ticket]

    def end(self, ticket: int) -> Claim:
        self._begun.pop(ticket, None)
        self._verdicts.pop(ticket, None)
        return self._given.pop(ticket)

    def take_back(self, tickets: Iterable[int]) -> list[Claim]:
        return [self._given.pop(ticket) for ticket in tickets]

    def condemn(self, ticket: int, verdict: TaskError) -> None:
        if ticket in self._given:
            self._verdicts[ticket] = verdict

    def abandon(self, ticket: int) -> tuple[Claim, TaskError]:
        """Forget a task that does not stop; how it ends."""
        verdict = self._verdicts.get(ticket) or TaskError(
            error_code=OperationalErrorCode.WORKER_CRASHED, message="it was left behind because it did not stop"
        )
        self._abandoned.add(ticket)
        return self.end(ticket), verdict

    def is_abandoned(self, ticket: int) -> bool:
        return ticket in self._abandoned

    def forget(self, ticket: int) -> None:
        """An abandoned one has ended after all, and nobody wants to know any more."""
        self._abandoned.remove(ticket)

    def bequeath(self, crash: TaskError) -> tuple[list[tuple[Claim, TaskError]], list[Claim]]:
        """The child is dead: what had begun and how it ends, and what had not. (Whom a verdict waits for counts as begun.)"""
        begun = self._begun.keys() | self._verdicts.keys()
        ended = [(claim, self._verdicts.get(ticket, crash)) for ticket, claim in self._given.items() if ticket in begun]
        unbegun = [claim for ticket, claim in self._given.items() if ticket not in begun]
        self._given.clear()
        self._begun.clear()
        return ended, unbegun


def fields_of(ticket: int, claim: Claim) -> Fields:
    """What a child is told of a claim."""
    return (
        ticket,
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
