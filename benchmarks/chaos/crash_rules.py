"""Rules about what follows a failure: policies are followed, healthy workers are not declared dead, cancelled tasks stay cancelled."""

from collections.abc import Iterator

from benchmarks.chaos.evidence import CRASHED, Attempt, Evidence, Finding
from benchmarks.chaos.history import Injection, Row

AFTERMATH_S = 5.0
"""How long a fault still explains a crash: a paused worker notices only at its next heartbeat that it was declared dead."""


def against_policy(evidence: Evidence) -> Finding:
    """Find retries that the policy does not allow, and failures that it should have retried."""
    stopped = {cancel.task_id for cancel in evidence.history.cancels}
    for row in evidence.history.rows:
        for problem in _policy_problems(row, stopped=row.task_id in stopped):
            yield f"task {row.task_id}", f"({row.task_name}) {problem}"


def _policy_problems(row: Row, *, stopped: bool) -> Iterator[str]:
    if row.attempts > row.retries + 1:
        yield f"has {row.attempts} attempts, and its policy has {row.retries} retries"
    for failed in row.failed:
        if failed.error_code not in row.retry_for:
            yield f"was retried after {failed.error_code}, which its policy does not list"
    may_end = stopped or row.good_until is not None  # a retry that would be due after it is not made
    if row.status == "FAILED" and row.error_code in row.retry_for and row.attempts <= row.retries and not may_end:
        yield f"ended by {row.error_code} at attempt {row.attempts}, and had {row.retries} retries"
    if [failed.attempt for failed in row.failed] != list(range(1, len(row.failed) + 1)):
        yield f"has failed in attempts {[failed.attempt for failed in row.failed]}"


def without_cause(evidence: Evidence) -> Finding:
    """Find crashes without a cause: a task ends as crashed only if a fault hit its child or its worker."""
    if not evidence.history.checks_crashes:
        return
    self_killed = {note.pid for note in evidence.history.notes if note.what == "dies"}
    for attempt in evidence.attempts:
        if attempt.error_code == CRASHED and not _has_cause(evidence, attempt, self_killed):
            start = evidence.start(attempt.row.task_id, attempt.number)
            where = f"in {start.worker}/{start.pid}" if start else "before its first line"
            yield f"task {attempt.row.task_id}", f"attempt {attempt.number} crashed {where}, and no fault had hit it"


def _has_cause(evidence: Evidence, attempt: Attempt, self_killed: set[int]) -> bool:
    start = evidence.start(attempt.row.task_id, attempt.number)
    injections = [injection for injection in evidence.history.injections if _overlaps(injection, attempt)]
    if start is None:  # nothing shows which worker it was
        return bool(self_killed) or any(injection.workers or injection.pids for injection in injections)
    if start.pid in self_killed:
        return True
    return any(start.worker in injection.workers or start.pid in injection.pids for injection in injections)


def _overlaps(injection: Injection, attempt: Attempt) -> bool:
    return injection.began <= attempt.ended and attempt.started <= injection.ended + AFTERMATH_S


def after_cancel(evidence: Evidence) -> Finding:
    """Find attempts that began after the cancellation."""
    for cancel in evidence.history.cancels:
        row = evidence.rows.get(cancel.task_id)
        if row is None or cancel.outcome not in ("CANCELLED", "REQUESTED"):
            continue
        if cancel.outcome == "CANCELLED" and row.status != "CANCELLED":
            yield f"task {row.task_id}", f"was cancelled before it began, and is {row.status}"
        for attempt in evidence.attempts:
            if attempt.row is row and attempt.started > cancel.at:
                yield f"task {row.task_id}", f"attempt {attempt.number} began after it was {cancel.outcome.lower()}"
