"""The clerk: enters in the books what the children report."""

import json
from collections.abc import Callable

from horsies.child.wire import Done
from horsies.events import subscribers
from horsies.model.result import TaskError
from horsies.model.task import Claim
from horsies.worker.books import Books
from horsies.worker.herald import Herald
from horsies.worker.member import Member
from horsies.worker.stops import Stops, ending_of


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
        self._stops.end(claim, ending_of(claim, done))
        if subscribers:
            self._herald.done(claim, done)

    def returned(self, claims: list[Claim]) -> None:
        self._books.releases.extend(claims)

    def died(self, begun: list[tuple[Claim, TaskError]], unbegun: list[Claim]) -> None:
        """What had begun ends as its verdict says; what had not goes back as if nothing had happened."""
        for claim, error in begun:
            self._stops.fail(claim, error)
        self._books.releases.extend(unbegun)
        self._entered()

    def settled(self) -> None:
        """All that one child had to say for now has been heard."""
        self._entered()
