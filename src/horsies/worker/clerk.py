"""The clerk: enters in the books what the children report."""

import json
import logging
from collections.abc import Callable
from dataclasses import replace

from horsies.child.wire import Done
from horsies.events import subscribers
from horsies.model.codes import OperationalErrorCode
from horsies.model.result import TaskError
from horsies.model.status import Misfit
from horsies.model.task import Claim
from horsies.tasks.unknown import Unfit, unknown_here
from horsies.worker.books import Books
from horsies.worker.herald import Herald
from horsies.worker.member import Member
from horsies.worker.stops import Stops, ending_of

DEATHS_MAX = 3

log = logging.getLogger("horsies.worker")


class Clerk:
    """Hears all members of the pool. `entered`: there is something new in the books; `armed`: there is a new deadline."""

    def __init__(
        self, books: Books, stops: Stops, herald: Herald, *, entered: Callable[[], None], armed: Callable[[], None]
    ) -> None:
        self._books = books
        self._stops = stops
        self._herald = herald
        self._entered = entered
        self._armed = armed

    def began(self, member: Member, ticket: int, claim: Claim) -> None:
        self._stops.began(member, ticket, claim)
        if subscribers:
            self._herald.began(claim)
        if self._stops.next_at is not None:
            self._armed()

    def progressed(self, claim: Claim, fraction: float | None, message: str | None) -> None:
        self._books.progress[claim.id, claim.claim_no] = json.dumps({"fraction": fraction, "message": message})

    def done(self, claim: Claim, done: Done) -> None:
        if done.duration_us:  # else it was cancelled before it began
            self._books.frames.observe(done.duration_us)
        self._books.progress.pop((claim.id, claim.claim_no), None)
        if done.misfit is Misfit.NONE:
            self._stops.end(claim, ending_of(claim, done))
        else:
            self._stops.dismiss(claim)
            self._books.unfit.append(self._unfit(claim, done))
        if subscribers:
            self._herald.done(claim, done)

    def _unfit(self, claim: Claim, done: Done) -> Unfit:
        """What a child cannot run."""
        if done.misfit is Misfit.UNKNOWN:
            if claim.task_name in self._books.known.signatures:
                log.warning(
                    "child processes of this worker do not have task %s; it is left to other workers", claim.task_name
                )
                self._books.known.forget(claim.task_name)
            return unknown_here(claim)
        signature = self._books.known.signatures.get(claim.task_name)
        log.info("task %s (%s) cannot be run by this worker: %s", claim.task_name, claim.id, done.misfit.name)
        return Unfit(claim, done.misfit, signature, done.error_code or "", done.error or "{}")

    def returned(self, claims: list[Claim]) -> None:
        self._books.releases.extend(claims)

    def died(self, begun: list[tuple[Claim, TaskError]], unbegun: list[Claim]) -> None:
        """What had begun ends as its verdict says; what had not goes back, and costs no attempt, unless children die with it again and again.

        The task that runs is to blame for the death, if only one does at a time. Where none had begun, or many run at once, it may be one
        that was on its way.
        """
        for claim, error in begun:
            self._stops.fail(claim, error)
        counts = not self._books.stopping and (not begun or self._books.frames.concurrency > 1)
        for claim in unbegun:
            deaths = claim.child_deaths + 1 if counts else claim.child_deaths
            if counts and deaths >= DEATHS_MAX:
                self._stops.fail(claim, _never_begun(deaths))
            else:
                self._books.releases.append(replace(claim, child_deaths=deaths))
        self._entered()

    def settled(self) -> None:
        """All that one child had to say for now has been heard."""
        self._entered()


def _never_begun(deaths: int) -> TaskError:
    return TaskError(
        error_code=OperationalErrorCode.WORKER_CRASHED,
        message=f"{deaths} child processes died one after the other before they began this task",
    )
