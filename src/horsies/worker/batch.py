"""A batch of the dispatcher: one transaction in one round trip. Store endings, release, start, claim.

The statements are sent together, and the server executes them without waiting for the worker. The notifications follow the COMMIT in the
same round trip: inside the transaction, NOTIFY would hold a cluster-wide lock while the commit is written to disk.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from horsies.db.statement import Op, Query, Request, Rows, TransactionFrame, load
from horsies.executor.protocol import Done
from horsies.model.codec import encode_error
from horsies.model.config import PostgresConfig
from horsies.model.error_codes import OperationalErrorCode, OutcomeCode
from horsies.model.result import TaskError
from horsies.model.status import Misfit, TaskStatus
from horsies.model.task import Claim, Ending, TaskId
from horsies.tasks.claim import (
    Caps,
    ClaimFrom,
    ClaimRequest,
    Lane,
    Payload,
    claim_tasks,
    fail_unclaimable_task,
    get_caps_set_at_run_time,
    get_in_flight_from,
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
from horsies.tasks.finish import (
    end_or_retry_tasks,
    finish_tasks,
    notify_all_queues,
    notify_capacity_freed,
    notify_done,
    notify_new_tasks,
    release_interrupted_tasks,
    release_tasks,
    report_progress,
    store_logs,
)
from horsies.tasks.unknown import UnfitClaim, UnfitOutcome, set_aside_claims, set_aside_following_tasks
from horsies.workflows.advance import full_step, lock_roots, quick_step, unfinished_roots

SQL = load(__file__)


@dataclass(frozen=True, slots=True)
class ListClaimable:
    """Read which rows such a claim would take."""

    request: ClaimRequest
    lanes: Sequence[Lane]


@dataclass(frozen=True, slots=True)
class TryClaim:
    """Check whether the server lets this row be claimed."""

    task_id: TaskId


@dataclass(frozen=True, slots=True)
class FailUnclaimable:
    """End a row that cannot be claimed."""

    task_id: TaskId
    error: TaskError


SearchStep: TypeAlias = ListClaimable | TryClaim | FailUnclaimable


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Compared by identity: each is sent once, and one that failed is planned again."""

    worker: str
    database: PostgresConfig
    caps: Caps
    endings: Sequence[Ending] = ()
    interrupted: Sequence[Ending] = ()
    """Tasks interrupted by a shutdown: released if their policy lets them run again, ended otherwise."""
    releases: Sequence[Claim] = ()
    unfit: Sequence[UnfitClaim] = ()
    """Claims that this worker cannot run."""
    starts: Sequence[Claim] = ()
    progress: Sequence[tuple[TaskId, int, str]] = ()
    promotes: bool = False
    claim_requests: Sequence[ClaimRequest] = ()
    claim_from: ClaimFrom = ClaimFrom.START
    lanes: Sequence[Lane] = ()
    reads_caps: bool = False
    """Caps may have been set at run time, or removed."""
    frees_capped: bool = False
    """There are caps, so other workers may wait for what these endings free."""
    unsettled: Sequence[str] = ()
    """Roots of workflows in which a step has left something to do."""
    loads: Sequence[Claim] = ()
    """Claims whose payload is large and not yet read. They have a batch of their own."""
    search: SearchStep | None = None
    """A step in the search for a row that cannot be claimed. It has a batch of its own."""
    is_single_part: bool = False
    """One part of a batch that was refused. It has no statement timeout."""
    failures: int = 0
    """How often this single part was refused alone."""
    not_before: float = 0.0
    """When this single part may be sent again, on the monotonic clock."""

    @property
    def held(self) -> Sequence[Claim | Ending | UnfitClaim]:
        """The claims that it ends, releases, starts or loads."""
        return [*self.endings, *self.interrupted, *self.releases, *self.unfit, *self.starts, *self.loads]

    @property
    def only_claims(self) -> bool:
        return bool(self.claim_requests) and not (self.held or self.progress or self.promotes or self.unsettled)

    def describe_part(self) -> str:
        """Describe a single part, for the log."""
        for description, items in (
            ("result of task", self.endings),
            ("interruption of task", self.interrupted),
            ("release of task", self.releases),
            ("return of task", self.unfit),
        ):
            if items:
                return f"{description} {items[0].id}"
        if self.unsettled:
            return f"next step of workflow {self.unsettled[0]}"
        return "promotion of due tasks" if self.promotes else "batch"


class FailedAttemptRow(NamedTuple):
    """An attempt that failed while retries were left, and what follows."""

    task_id: TaskId
    retry_in_s: float | None
    task_name: str
    attempt: int
    attempts: int
    """With all retries."""
    error_code: str

    def describe(self) -> str:
        follows = "no retry follows" if self.retry_in_s is None else f"retry in {max(0.0, self.retry_in_s):.1f} s"
        return f"attempt {self.attempt} of {self.attempts} failed with {self.error_code}; {follows}"


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What a committed batch has changed; `claimed` has a list for each of its `claim_requests`."""

    ended: frozenset[TaskId] = frozenset()
    retried: Mapping[TaskId, float] = field(default_factory=dict[TaskId, float])
    """Those in `ended` that will be retried, and after how many seconds."""
    failed: Sequence[FailedAttemptRow] = ()
    """The attempts in `ended` that had retries left."""
    started: frozenset[TaskId] = frozenset()
    claimed: Sequence[Sequence[Claim]] = ()
    promoted_lanes: Sequence[str] = ()
    waiting_lanes: Sequence[str] = ()
    """Lanes in which a claim from the start of many queues has left rows."""
    caps_set_at_run_time: Mapping[str, int] | None = None
    """The caps in the database, if this batch has read them."""
    in_flight_from: str | None = None
    """Where the next counts of tasks in flight may start, if caps were checked."""
    due_s: float | None = None
    """In how many seconds the next delayed task is due, as far as this batch has seen."""
    overdue: bool = False
    """A due task was not promoted: it is locked, there is more than one batch of them, or it cannot be changed."""
    unsettled: Sequence[str] = ()
    """Roots of workflows in which this batch has left something to do."""
    payloads: Mapping[TaskId, Payload] = field(default_factory=dict[TaskId, Payload])
    """The payloads of `loads`. A claim that is missing is no longer held."""
    found_ids: Sequence[TaskId] = ()
    """The result of a search step."""
    unfit_outcomes: Mapping[TaskId, UnfitOutcome] = field(default_factory=dict[TaskId, UnfitOutcome])
    """What became of each `unfit` claim. One that is missing is no longer held."""


def run_batch(batch: Batch) -> Op[BatchResult]:
    if batch.search is not None:
        return (yield from _search(batch.worker, batch.search))
    steps = _steps(batch)
    frame = _frame(batch.database.statement_timeout_ms)
    answers: list[Rows] = yield Request([query for _, query in steps], _notifications(batch), frame)
    claimed: list[Rows] = []
    advanced: list[Rows] = []
    rows: dict[str, Rows] = {}
    for (step, _), answer in zip(steps, answers, strict=True):
        if step == "claim":
            claimed.append(answer)
        elif step == "advance":
            advanced.append(answer)
        else:
            rows[step] = answer
    ended, retried, next_due = rows.get("finish", []), rows.get("retry", []), rows.get("next due", [])
    due = [row[1] for row in retried] + [seconds for seconds, _ in next_due]
    return BatchResult(
        ended=frozenset([row[0] for row in ended] + [row[0] for row in retried]),
        retried={row[0]: row[1] for row in retried if row[1] is not None},
        failed=[FailedAttemptRow(*row) for row in retried],
        started=frozenset(row[0] for row in rows.get("start", [])),
        claimed=[[Claim(*row) for row in answer] for answer in claimed],
        promoted_lanes=[lane for (lane,) in rows.get("promote", [])],
        waiting_lanes=[lane for (lane,) in rows.get("queue heads", [])],
        caps_set_at_run_time=dict(rows["caps"]) if "caps" in rows else None,
        in_flight_from=rows["in flight"][0][0] if "in flight" in rows else None,
        unsettled=unfinished_roots(advanced[0], advanced[-1]) if advanced else (),
        payloads=payloads_from_rows(rows["load"]) if "load" in rows else {},
        unfit_outcomes={task_id: UnfitOutcome(outcome) for task_id, outcome in rows.get("set aside", [])},
        due_s=min([seconds for seconds in due if seconds is not None], default=None),
        overdue=any([is_due for _, is_due in next_due]),  # noqa: C419 - at most one row
    )


def _search(worker: str, step: SearchStep) -> Op[BatchResult]:
    match step:
        case ListClaimable(request, lanes):
            answers: list[Rows] = yield Request([list_claimable_tasks(request, lanes)])
            return BatchResult(found_ids=[task_id for (task_id,) in answers[0]])
        case TryClaim(task_id):
            yield Request(try_claim(worker, task_id))
            return BatchResult()
        case FailUnclaimable(task_id, error):
            answers = yield Request([fail_unclaimable_task(task_id, error)], [notify_done([task_id])])
            return BatchResult(found_ids=[task_id for (task_id,) in answers[0]])


@lru_cache
def _frame(statement_timeout_ms: int) -> TransactionFrame:
    limits = SQL["set_batch_limits"](statement_timeout_ms=statement_timeout_ms)
    return TransactionFrame((SQL["begin_batch"](), limits), SQL["commit_batch"]())


def _steps(batch: Batch) -> list[tuple[str, Query]]:  # noqa: C901, PLR0912 - one branch for each kind of part
    """Return the statements in order. The order of locks is the same in all workers: roots of workflows, tasks, caps."""
    worker, steps = batch.worker, list[tuple[str, Query]]()
    if batch.is_single_part:
        steps.append(("limit", SQL["disable_statement_timeout"]()))
    nodes = [ending for ending in (*batch.endings, *batch.interrupted) if ending.root_id is not None]
    roots = sorted({ending.root_id for ending in nodes if ending.root_id} | set(batch.unsettled))
    if roots:
        steps.append(("lock roots", lock_roots(roots)))
    if any([ending.log is not None for ending in (*batch.endings, *batch.interrupted)]):  # noqa: C419 - a generator takes longer
        steps.append(("store logs", store_logs(worker, [*batch.endings, *batch.interrupted])))
    if batch.interrupted:
        steps.append(("interrupt", release_interrupted_tasks(worker, batch.interrupted)))
    if finals := [*[ending for ending in batch.endings if not ending.may_retry], *batch.interrupted]:
        steps.append(("finish", finish_tasks(worker, finals)))
    if retriable := [ending for ending in batch.endings if ending.may_retry]:
        steps.append(("retry", end_or_retry_tasks(worker, retriable)))
    if roots:
        # A step that is left over may take long; beside endings it must be quick, because others wait for them.
        advance = full_step if batch.unsettled else quick_step
        steps += [("advance", query) for query in advance(roots, [ending.id for ending in nodes])]
    if batch.releases:
        deaths = {claim.id: claim.child_deaths for claim in batch.releases if claim.child_deaths}
        steps.append(("release", release_tasks(worker, batch.releases, deaths)))
    if batch.unfit:
        steps.append(("set aside", set_aside_claims(worker, batch.unfit)))
        if unknown := [each for each in batch.unfit if each.misfit is Misfit.UNKNOWN and each.may_wait]:
            steps.append(("set aside ahead", set_aside_following_tasks(unknown)))
    if batch.progress:
        steps.append(("progress", report_progress(worker, batch.progress)))
    if batch.promotes:
        steps += [("promote", promote_tasks()), ("next due", get_next_due())]
    if batch.starts or batch.claim_requests:
        steps += _claim_steps(batch)
    if batch.loads:
        steps.append(("load", load_payloads(worker, batch.loads)))
    return steps


def _claim_steps(batch: Batch) -> list[tuple[str, Query]]:
    steps: list[tuple[str, Query]] = []
    keys: list[str] = []
    if batch.caps.has_limits:
        queues = {lane.queue_name for lane in batch.lanes} if batch.claim_requests else set[str]()
        keys = batch.caps.lock_keys(queues | {claim.queue_name for claim in batch.starts})
    if keys:
        steps.append(("lock", lock_caps(keys, batch.database.schema)))
    if batch.starts:
        steps.append(("start", start_tasks(batch.worker, batch.starts, batch.caps)))
    steps += [("claim", claim_tasks(request, batch.lanes, batch.claim_from)) for request in batch.claim_requests]
    if keys:
        steps.append(("in flight", get_in_flight_from(batch.caps)))
    if batch.reads_caps:
        # After the claim: it skips a queue with a cap that is not known here, so a cap that it has met must be found.
        steps.append(("caps", get_caps_set_at_run_time(batch.lanes)))
    # A claim that the first of many queues has filled has not read the others, and their rows are not announced again. Where the tasks of queues
    # are counted, each claim reads all queues anyway.
    if batch.claim_from is ClaimFrom.START and batch.claim_requests and len(batch.lanes) > 1:
        is_counted = batch.caps.has_limits or any(request.queue_limit is not None for request in batch.claim_requests)
        if not is_counted:
            steps.append(("queue heads", get_queue_heads(batch.lanes)))
    return steps


def _notifications(batch: Batch) -> list[Query]:
    released = [*batch.releases, *[each.claim for each in batch.unfit]] if batch.unfit else batch.releases
    notifications: list[Query] = notify_new_tasks(released) if released else []
    if batch.endings:
        # Also those that turn out not to be held: an earlier COMMIT whose answer was lost may have ended them without a notification.
        notifications.append(notify_done([ending.id for ending in batch.endings]))
    if batch.interrupted:
        notifications += [notify_done([ending.id for ending in batch.interrupted]), notify_all_queues()]
    if batch.frees_capped:
        notifications.append(notify_capacity_freed())
    return notifications


# -- endings


def ending_from_done(claim: Claim, done: Done, child_pid: int) -> Ending:
    """Return the ending that a child reported."""
    status = TaskStatus(done.status)
    return Ending(
        claim.id,
        claim.claim_no,
        status,
        done.result,
        done.error_code,
        done.error,
        may_retry=claim.retries_left and status is TaskStatus.FAILED,
        wants_retry=done.wants_retry,
        retry_after_ms=done.retry_after_ms,
        root_id=claim.root_id,
        child_pid=child_pid,
    )


def failed_ending(
    held: Claim | Ending, error: TaskError, *, may_retry: bool = False, child_pid: int | None = None
) -> Ending:
    """Return an ending with this error in place of a result."""
    is_cancelled = error.error_code == OutcomeCode.TASK_CANCELLED
    return Ending(
        held.id,
        held.claim_no,
        TaskStatus.CANCELLED if is_cancelled else TaskStatus.FAILED,
        error_code=error.error_code,
        error=encode_error(error, task_id=held.id),
        may_retry=may_retry and not is_cancelled,
        root_id=held.root_id,
        child_pid=child_pid,
    )


def serialization_error(message: str) -> TaskError:
    """Return the error of a task whose values cannot be stored, or read."""
    return TaskError(error_code=OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message=message)
