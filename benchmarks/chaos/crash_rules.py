"""Rules about what follows a failure: policies are kept, healthy workers are not declared dead, and what was cancelled stays so."""

from collections.abc import Iterator

from benchmarks.chaos.evidence import CRASHED, Attempt, Evidence, Finding
from benchmarks.chaos.history import Blow, Row

AFTERMATH_S = 5.0
"""For so long a fault still explains a crash: a worker that was paused learns of its death at its next heartbeat only."""


def against_policy(evidence: Evidence) -> Finding:
    """Retried for what the policy lists and as often as it says; given up only when it says so."""
    stopped = {cancel.task_id for cancel in evidence.history.cancels}
    for row in evidence.history.rows:
        for problem in _policy_problems(row, stopped=row.task_id in stopped):
            yield f"task {row.task_id}", f"({row.task_name}) {problem}"


def _policy_problems(row: Row, *, stopped: bool) -> Iterator[str]:
    if row.attempts > row.retries + 1:
        yield f"was tried {row.attempts} times, and its policy has {row.retries} retries"
    for failed in row.failed:
        if failed.error_code not in row.retry_for:
            yield f"was tried again after {failed.error_code}, which its policy does not list"
    may_end = stopped or row.good_until is not None  # a retry that would be due too late is none
    if row.status == "FAILED" and row.error_code in row.retry_for and row.attempts <= row.retries and not may_end:
        yield f"ended by {row.error_code} at attempt {row.attempts}, and had {row.retries} retries"
    if [failed.attempt for failed in row.failed] != list(range(1, len(row.failed) + 1)):
        yield f"has failed in attempts {[failed.attempt for failed in row.failed]}"


def without_cause(evidence: Evidence) -> Finding:
    """An outage is not a massacre: a task ends as crashed only if its child or its worker was struck."""
    if not evidence.history.judges_deaths:
        return
    suicides = {note.pid for note in evidence.history.notes if note.what == "dies"}
    for attempt in evidence.attempts:
        if attempt.error_code == CRASHED and not _has_cause(evidence, attempt, suicides):
            start = evidence.start(attempt.row.task_id, attempt.number)
            where = f"in {start.worker}/{start.pid}" if start else "before its first line"
            yield f"task {attempt.row.task_id}", f"attempt {attempt.number} crashed {where}, and nobody had struck it"


def _has_cause(evidence: Evidence, attempt: Attempt, suicides: set[int]) -> bool:
    start = evidence.start(attempt.row.task_id, attempt.number)
    blows = [blow for blow in evidence.history.blows if _meets(blow, attempt)]
    if start is None:  # of which worker it was, nothing is left
        return bool(suicides) or any(blow.workers or blow.pids for blow in blows)
    if start.pid in suicides:
        return True
    return any(start.worker in blow.workers or start.pid in blow.pids for blow in blows)


def _meets(blow: Blow, attempt: Attempt) -> bool:
    return blow.began <= attempt.ended and attempt.started <= blow.ended + AFTERMATH_S


def after_cancel(evidence: Evidence) -> Finding:
    """What had not begun never does; what ran is not tried again."""
    for cancel in evidence.history.cancels:
        row = evidence.rows.get(cancel.task_id)
        if row is None or cancel.outcome not in ("CANCELLED", "REQUESTED"):
            continue
        if cancel.outcome == "CANCELLED" and row.status != "CANCELLED":
            yield f"task {row.task_id}", f"was cancelled before it began, and is {row.status}"
        for attempt in evidence.attempts:
            if attempt.row is row and attempt.started > cancel.at:
                yield f"task {row.task_id}", f"attempt {attempt.number} was begun after it was {cancel.outcome.lower()}"
