"""A turn of the pump: one transaction in one round trip. End what has ended, give back, start, claim.

The statements travel together and the server works through them without waiting for us. The notifications go after the
COMMIT in the same round trip: inside the transaction, NOTIFY would hold a cluster-wide lock while the commit is written to disk.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from horsies.db.load import load
from horsies.db.op import Op, Query, ask
from horsies.model.task import Claim, Ending, TaskId
from horsies.tasks.claim import Lane, Wanted, as_claims, claim_from_marks, claim_from_start, start
from horsies.tasks.finish import finish, notify_done
from horsies.tasks.release import notify_new, release

SQL = load(__file__)


@dataclass(frozen=True, slots=True)
class Turn:
    """What one pass is to do. `lanes` None claims from the start of the queues."""

    worker: str
    statement_timeout_ms: int
    endings: Sequence[Ending]
    releases: Sequence[Claim]
    starts: Sequence[Claim]
    wanted: Sequence[Wanted]
    queues: Sequence[str]
    lanes: Sequence[Lane] | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the database made of it; `claimed` has a list for each of the turn's `wanted`."""

    ended: frozenset[TaskId]
    started: frozenset[TaskId]
    claimed: Sequence[Sequence[Claim]]


def take_turn(turn: Turn) -> Op[Outcome]:
    opening: list[Query] = [SQL["begin_turn"](), SQL["set_limits"](statement_timeout_ms=turn.statement_timeout_ms)]
    finishes = [finish(turn.worker, turn.endings)] if turn.endings else []
    releases = [release(turn.worker, turn.releases)] if turn.releases else []
    starts = [start(turn.worker, turn.starts)] if turn.starts else []
    claims = [_claim(turn, wanted) for wanted in turn.wanted]
    notices = notify_new(turn.releases)
    if turn.endings:
        # Also those that turn out not to be ours: an earlier COMMIT whose answer was lost may have ended them unannounced.
        notices.append(notify_done([ending.id for ending in turn.endings]))
    answers = yield from ask(*opening, *finishes, *releases, *starts, *claims, SQL["commit_turn"](), *notices)
    rest = iter(answers[len(opening) :])
    ended = frozenset(row[0] for _ in finishes for row in next(rest))
    for _ in releases:
        next(rest)
    started = frozenset(row[0] for _ in starts for row in next(rest))
    return Outcome(ended, started, [as_claims(next(rest)) for _ in claims])


def _claim(turn: Turn, wanted: Wanted) -> Query:
    if turn.lanes is None:
        return claim_from_start(wanted, turn.queues)
    return claim_from_marks(wanted, turn.lanes)
