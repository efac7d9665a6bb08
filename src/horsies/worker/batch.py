"""A turn of the pump: one transaction in one round trip. End what has ended, give back, start, claim.

The statements travel together and the server works through them without waiting for us. The notifications go after the
COMMIT in the same round trip: inside the transaction, NOTIFY would hold a cluster-wide lock while the commit is written to disk.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache
from typing import TypeAlias

from horsies.db.statement import Op, Query, Request, Rows, TransactionFrame, load
from horsies.model.config import PostgresConfig
from horsies.model.result import TaskError
from horsies.model.status import Misfit
from horsies.model.task import Claim, Ending, TaskId
from horsies.tasks.claim import (
    Caps,
    ClaimRequest,
    Lane,
    Payload,
    claim_from_queues,
    claim_from_watermarks,
    claims_from_rows,
    fail_unclaimable_task,
    get_next_due,
    get_queue_heads,
    list_claimable_tasks,
    load_payloads,
    lock_caps,
    payloads_from_rows,
    promote_tasks,
    start_tasks,
    try_claim,
)
from horsies.tasks.finish import end_or_retry_tasks, finish_tasks, notify_done
from horsies.tasks.release import (
    notify_all_queues,
    notify_capacity_freed,
    notify_new_tasks,
    release_interrupted_tasks,
    release_tasks,
    report_progress,
)
from horsies.tasks.unknown import UnfitClaim, UnfitOutcome, set_aside_claims, set_aside_following_tasks
from horsies.workflows.advance import full_step, lock_roots, quick_step, unfinished_roots

SQL = load(__file__)


class ClaimFrom(Enum):
    WATERMARKS = auto()
    """A lane for each queue and priority, each from its mark."""
    QUEUES = auto()
    """A lane for each queue, from its mark: where queues are counted."""
    START = auto()
    """A lane for each queue, from its start."""


@dataclass(frozen=True, slots=True)
class ListClaimable:
    """Which rows would such a claim take?"""

    wanted: ClaimRequest
    lanes: Sequence[Lane]


@dataclass(frozen=True, slots=True)
class TryClaim:
    """Would the server let this row be claimed?"""

    task_id: TaskId


@dataclass(frozen=True, slots=True)
class FailUnclaimable:
    """End a row that cannot be claimed."""

    task_id: TaskId
    error: TaskError


SearchStep: TypeAlias = ListClaimable | TryClaim | FailUnclaimable


@dataclass(frozen=True, slots=True)
class Batch:
    """What one pass is to do."""

    worker: str
    database: PostgresConfig
    caps: Caps
    endings: Sequence[Ending]
    interrupted: Sequence[Ending] = ()
    """Of a shutdown: released if their policy lets them run again, ended otherwise."""
    releases: Sequence[Claim] = ()
    starts: Sequence[Claim] = ()
    progress: Sequence[tuple[TaskId, int, str]] = ()
    promotes: bool = False
    wanted: Sequence[ClaimRequest] = ()
    claim_from: ClaimFrom = ClaimFrom.START
    lanes: Sequence[Lane] = ()
    frees_capped: bool = False
    """Something is capped, so others may be waiting for what these endings free."""
    unsettled: Sequence[str] = ()
    """Roots of workflows in which a step has left something to do."""
    loads: Sequence[Claim] = ()
    """Claims whose payload is large and still to be read. They travel by themselves."""
    unfit: Sequence[UnfitClaim] = ()
    """Claims that this worker cannot run."""
    is_alone: bool = False
    """One part of a turn that was refused: it may take its time."""
    search: SearchStep | None = None
    """A step in the search for a row that cannot be claimed. It travels by itself."""

    @property
    def only_claims(self) -> bool:
        return bool(self.wanted) and not (
            self.endings
            or self.interrupted
            or self.releases
            or self.unfit
            or self.starts
            or self.progress
            or self.promotes
            or self.unsettled
        )

    @property
    def name_of_part(self) -> str:
        """Of a turn that has but one: what it is, for the log."""
        for what, held in (("the result of task", self.endings), ("the interruption of task", self.interrupted)):
            if held:
                return f"{what} {held[0].id}"
        if self.releases:
            return f"the release of task {self.releases[0].id}"
        if self.unfit:
            return f"the return of task {self.unfit[0].id}"
        if self.unsettled:
            return f"the next step of workflow {self.unsettled[0]}"
        return "what is due" if self.promotes else "a batch"

    @property
    def of_workflows(self) -> Sequence[Ending]:
        return [ending for ending in (*self.endings, *self.interrupted) if ending.root_id is not None]


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What the database made of it; `claimed` has a list for each of the turn's `wanted`."""

    ended: frozenset[TaskId] = frozenset()
    retried: Mapping[TaskId, float] = field(default_factory=dict[TaskId, float])
    """Of these, those that were only put off, and for how many seconds."""
    started: frozenset[TaskId] = frozenset()
    claimed: Sequence[Sequence[Claim]] = ()
    promoted: Sequence[str] = ()
    waiting: Sequence[str] = ()
    """What a claim from the start of many queues has left in them."""
    due_s: float | None = None
    """In how many seconds the next task that was put off is due, as far as this turn has seen."""
    overdue: bool = False
    """Something is due and was not promoted: it is locked, there is more than one batch of it, or it cannot be changed."""
    unsettled: Sequence[str] = ()
    """Roots of workflows in which this turn has left something to do."""
    payloads: Mapping[TaskId, Payload] = field(default_factory=dict[TaskId, Payload])
    """Of `loads`: what was read. A claim that is missing is no longer ours."""
    found: Sequence[TaskId] = ()
    """By a step of a search."""
    unfit_outcomes: Mapping[TaskId, UnfitOutcome] = field(default_factory=dict[TaskId, UnfitOutcome])
    """Of `unfit`: what became of each. One that is missing is no longer ours."""


def run_batch(batch: Batch) -> Op[BatchResult]:
    if batch.search is not None:
        return (yield from _search(batch.worker, batch.search))
    finals = [*(ending for ending in batch.endings if not ending.may_retry), *batch.interrupted]
    retriable = [ending for ending in batch.endings if ending.may_retry]
    counted = {lane.queue_name for lane in batch.lanes} if batch.wanted else set[str]()
    keys = batch.caps.lock_keys(counted | {claim.queue_name for claim in batch.starts})
    lock, advance = _workflows(batch)
    steps: list[tuple[str, Query]] = [
        *([("limit", SQL["disable_statement_timeout"]())] if batch.is_alone else []),
        *(("lock roots", query) for query in lock),
        *([("interrupt", release_interrupted_tasks(batch.worker, batch.interrupted))] if batch.interrupted else []),
        *([("finish", finish_tasks(batch.worker, finals))] if finals else []),
        *([("retry", end_or_retry_tasks(batch.worker, retriable))] if retriable else []),
        *(("advance", query) for query in advance),
        *(
            [("release", release_tasks(batch.worker, batch.releases, _deaths(batch.releases)))]
            if batch.releases
            else []
        ),
        *([("set aside", set_aside_claims(batch.worker, batch.unfit))] if batch.unfit else []),
        *([("ahead", set_aside_following_tasks(unknown))] if batch.unfit and (unknown := _unknown(batch)) else []),
        *([("progress", report_progress(batch.worker, batch.progress))] if batch.progress else []),
        *([("promote", promote_tasks()), ("next due", get_next_due())] if batch.promotes else []),
        *([("lock", lock_caps(keys, batch.database.schema))] if keys and (batch.starts or batch.wanted) else []),
        *([("start", start_tasks(batch.worker, batch.starts, batch.caps))] if batch.starts else []),
        *(("claim", _claim(batch, wanted)) for wanted in batch.wanted),
        *([("survey", get_queue_heads(batch.lanes))] if _surveys(batch) else []),
        *([("load", load_payloads(batch.worker, batch.loads))] if batch.loads else []),
    ]
    frame = _frame(batch.database.statement_timeout_ms)
    answers: list[Rows] = yield Request([query for _, query in steps], _notices(batch), frame)
    by_step: dict[str, list[Rows]] = {}
    for (step, _), answer in zip(steps, answers, strict=True):
        by_step.setdefault(step, []).append(answer)
    return _outcome(by_step)


def _unknown(batch: Batch) -> list[UnfitClaim]:
    return [each for each in batch.unfit if each.misfit is Misfit.UNKNOWN and each.may_wait]


def _deaths(claims: Sequence[Claim]) -> dict[TaskId, int]:
    return {claim.id: claim.child_deaths for claim in claims if claim.child_deaths}


def _search(worker: str, step: SearchStep) -> Op[BatchResult]:
    match step:
        case ListClaimable(wanted, lanes):
            answers: list[Rows] = yield Request([list_claimable_tasks(wanted, lanes)])
            return BatchResult(found=[task_id for (task_id,) in answers[0]])
        case TryClaim(task_id):
            yield Request(try_claim(worker, task_id))
            return BatchResult()
        case FailUnclaimable(task_id, error):
            answers = yield Request([fail_unclaimable_task(task_id, error)], [notify_done([task_id])])
            return BatchResult(found=[task_id for (task_id,) in answers[0]])


@lru_cache
def _frame(statement_timeout_ms: int) -> TransactionFrame:
    limits = SQL["set_batch_limits"](statement_timeout_ms=statement_timeout_ms)
    return TransactionFrame((SQL["begin_batch"](), limits), SQL["commit_batch"]())


def _workflows(batch: Batch) -> tuple[list[Query], list[Query]]:
    """What advances the workflows of what ends in this turn: the locks, first of all, and the step, once it has ended."""
    ended = batch.of_workflows
    roots = sorted({ending.root_id for ending in ended if ending.root_id} | set(batch.unsettled))
    if not roots:
        return [], []
    task_ids = [ending.id for ending in ended]
    # In a turn of its own a step may take its time; in one that ends tasks, others wait for it.
    step = full_step(roots, task_ids) if batch.unsettled else quick_step(roots, task_ids)
    return [lock_roots(roots)], step


def _claim(batch: Batch, wanted: ClaimRequest) -> Query:
    if batch.claim_from is ClaimFrom.WATERMARKS:
        return claim_from_watermarks(wanted, batch.lanes)
    return claim_from_queues(wanted, batch.lanes)


def _surveys(batch: Batch) -> bool:
    """A claim that is filled by the first of many queues has not seen the others, and nobody tells again of what was there before us.

    Where queues are counted, each claim asks all of them anyway.
    """
    is_counted = batch.caps.has_limits or any(wanted.queue_limit is not None for wanted in batch.wanted)
    return batch.claim_from is ClaimFrom.START and bool(batch.wanted) and len(batch.lanes) > 1 and not is_counted


def _notices(batch: Batch) -> list[Query]:
    back = [*batch.releases, *[each.claim for each in batch.unfit]] if batch.unfit else batch.releases
    notices: list[Query] = notify_new_tasks(back)
    if batch.endings:
        # Also those that turn out not to be ours: an earlier COMMIT whose answer was lost may have ended them unannounced.
        notices.append(notify_done([ending.id for ending in batch.endings]))
    if batch.interrupted:
        notices += [notify_done([ending.id for ending in batch.interrupted]), notify_all_queues()]
    if batch.frees_capped:
        notices.append(notify_capacity_freed())
    return notices


def _outcome(answers: Mapping[str, list[Rows]]) -> BatchResult:
    def rows(step: str) -> Rows:
        found = answers.get(step)
        if found is None:
            return []
        return found[0] if len(found) == 1 else [row for answer in found for row in answer]

    due = [seconds for _, seconds in rows("retry")] + [seconds for seconds, _ in rows("next due")]
    return BatchResult(
        ended=frozenset(row[0] for row in rows("finish") + rows("retry")),
        retried={task_id: seconds for task_id, seconds in rows("retry") if seconds is not None},
        started=frozenset(row[0] for row in rows("start")),
        claimed=[claims_from_rows(answer) for answer in answers.get("claim", ())],
        promoted=[lane for (lane,) in rows("promote")],
        waiting=[lane for (lane,) in rows("survey")],
        unsettled=unfinished_roots(step[0], step[-1]) if (step := answers.get("advance")) else (),
        payloads=payloads_from_rows(rows("load")),
        unfit_outcomes={task_id: UnfitOutcome(unfit_outcome) for task_id, unfit_outcome in rows("set aside")},
        due_s=min((seconds for seconds in due if seconds is not None), default=None),
        overdue=any(is_due for _, is_due in rows("next due")),
    )
