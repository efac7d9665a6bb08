"""Rules about single tasks: each exists once, starts once per attempt, in order and in time, and its result is what it returned."""

import json
from collections import Counter, defaultdict
from itertools import pairwise

from benchmarks.chaos.evidence import FINAL, Evidence, Finding, most_at_once
from benchmarks.chaos.history import Got, Outcome, Row

LIBRARY_CODES = frozenset(
    {"WORKER_CRASHED", "TASK_CANCELLED", "TASK_EXPIRED", "TASK_TIMEOUT"}
)  # set by the library, never returned by a task


def lost(evidence: Evidence) -> Finding:
    """Find committed tasks that are not in the database at the end."""
    history = evidence.history
    for sent in history.sent:
        if sent.outcome is Outcome.COMMITTED and sent.task_id not in evidence.rows:
            yield f"task {sent.task_id}", f"was sent as number {sent.n}, and is not in the database"
    for keyed in history.keyed:
        if keyed.task_id not in evidence.rows:
            yield f"task {keyed.task_id}", f"was returned for key {keyed.key}, and is not in the database"
    for note in history.notes:
        if note.what == "start" and note.task_id not in evidence.rows:
            yield f"task {note.task_id}", "has run, and is not in the database"


def not_ended(evidence: Evidence) -> Finding:
    """Find tasks that have not ended."""
    for row in evidence.history.rows:
        if row.status not in FINAL:
            yield f"task {row.task_id}", f"({row.task_name}) is still {row.status} after {row.attempts} attempts"


def sent_twice(evidence: Evidence) -> Finding:
    """Find sends that have created more than one task, however often they were repeated; none if rolled back."""
    times = Counter(row.n for row in evidence.rows.values() if row.n is not None)
    for sent in evidence.history.sent:
        most = 0 if sent.outcome is Outcome.ROLLED_BACK else 1
        if times[sent.n] > most:
            yield f"number {sent.n}", f"was {sent.outcome}, and exists {times[sent.n]} times"


def ended_twice(evidence: Evidence) -> Finding:
    for task_id, times in Counter(row.task_id for row in evidence.history.rows).items():
        if times > 1:
            yield f"task {task_id}", f"exists {times} times"


def started_twice(evidence: Evidence) -> Finding:
    for (task_id, attempt), starts in evidence.starts.items():
        if len(starts) > 1:
            where = ", ".join(f"{note.worker}/{note.pid} at {note.at:.3f}" for note in starts)
            yield f"task {task_id}", f"attempt {attempt} started {len(starts)} times: {where}"


def uncounted(evidence: Evidence) -> Finding:
    """User code runs only in attempts that the database has counted."""
    for task_id, attempt in evidence.starts:
        row = evidence.rows.get(task_id)
        if row is not None and row.status in FINAL and attempt > row.attempts:
            yield f"task {task_id}", f"started attempt {attempt}, and {row.attempts} were counted ({row.status})"


def cap_exceeded(evidence: Evidence) -> Finding:
    """Compare with the notes of the tasks, and with the times in the database."""
    for queue, cap in evidence.history.caps.items():
        rows = [row for row in evidence.history.rows if row.queue == queue]
        running = most_at_once(evidence.spans(rows))
        if running > cap:
            yield f"queue {queue}", f"has a cap of {cap}, and {running} of its tasks ran at once"
        held = most_at_once(
            (attempt.started, attempt.ended) for attempt in evidence.attempts if attempt.row.queue == queue
        )
        if held > cap:
            yield f"queue {queue}", f"has a cap of {cap}, and {held} of its tasks were in flight at once"


def key_shared(evidence: Evidence) -> Finding:
    """A key's next task is not claimed before the last one has ended, and what is returned for a key is a task of that key."""
    for keyed in evidence.history.keyed:
        row = evidence.rows.get(keyed.task_id)
        if row is not None and row.key != keyed.key:
            yield f"key {keyed.key}", f"returned task {row.task_id}, which has key {row.key}"
    by_key: defaultdict[str, list[tuple[float, float, str]]] = defaultdict(list)
    for row in evidence.history.rows:
        began = row.failed[0].started if row.failed else row.started
        if row.key is not None and began is not None and row.finished is not None:
            by_key[row.key].append((began, row.finished, row.task_id))
    for key, spans in by_key.items():
        for (_, finished, task_id), (began, _, other) in pairwise(sorted(spans)):
            if began < finished:
                yield f"key {key}", f"task {other} began {finished - began:.3f} s before {task_id} ended"


def wrong_result(evidence: Evidence) -> Finding:
    """Find stored results that differ from what the last attempt returned, and waiters that received another result."""
    for row in evidence.history.rows:
        if (problem := _result_problem(evidence, row)) is not None:
            yield f"task {row.task_id}", problem
    for got in evidence.history.got:
        row = evidence.rows.get(got.task_id)
        if row is not None and row.status in FINAL and not _same(got, row):
            yield f"task {row.task_id}", f"a waiter received {got.outcome}, and it is {_outcome(row)}"


def _result_problem(evidence: Evidence, row: Row) -> str | None:
    if row.status not in ("COMPLETED", "FAILED") or row.error_code in LIBRARY_CODES:
        return None
    end = evidence.ends.get((row.task_id, row.attempts))
    if end is None:
        return f"is {_outcome(row)}, and its attempt {row.attempts} never ended"
    same = _outcome(row) == end.outcome or _value(_outcome(row)) == _value(end.outcome)
    return None if same else f"is {_outcome(row)}, and its attempt {row.attempts} returned {end.outcome}"


def _outcome(row: Row) -> str:
    return f"ok {row.result}" if row.status == "COMPLETED" else f"err {row.error_code}"


def _value(outcome: str | None) -> object:
    return json.loads(outcome[3:]) if outcome is not None and outcome.startswith("ok ") else outcome


def _same(got: Got, row: Row) -> bool:
    return got.outcome == "err WAIT_TIMEOUT" or _value(got.outcome) == _value(_outcome(row))


def too_early(evidence: Evidence) -> Finding:
    for sent in evidence.history.sent:
        row = None if sent.task_id is None else evidence.rows.get(sent.task_id)
        if row is None or not sent.delay_s:
            continue
        for start in evidence.starts_of(row.task_id, row.attempts):
            if start.clock < sent.at + sent.delay_s:
                early = sent.at + sent.delay_s - start.clock
                yield (
                    f"task {row.task_id}",
                    f"was delayed by {sent.delay_s:g} s, and began {early:.3f} s before its time",
                )


def too_late(evidence: Evidence) -> Finding:
    """By the database's clock, which decides. An EXPIRED one that was never counted has not run at all."""
    for attempt in evidence.attempts:
        limit = attempt.row.good_until
        if limit is not None and attempt.started >= limit:
            late = attempt.started - limit
            yield f"task {attempt.row.task_id}", f"attempt {attempt.number} began {late:.3f} s after its good_until"


def out_of_order(evidence: Evidence) -> Finding:
    if not evidence.history.in_order:
        return
    begun = sorted((starts[0].at, task_id) for (task_id, _), starts in evidence.starts.items())
    rows = [evidence.rows[task_id] for _, task_id in begun if task_id in evidence.rows]
    for earlier, later in pairwise(rows):
        if _place(earlier) > _place(later):
            yield f"task {later.task_id}", f"(number {later.n}) began after {earlier.task_id} (number {earlier.n})"


def _place(row: Row) -> tuple[int, float, str]:
    return row.priority, row.enqueued, row.task_id
