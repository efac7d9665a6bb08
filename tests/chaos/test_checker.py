"""The checker finds each violation: each of these histories breaks exactly one rule."""

from dataclasses import replace

import pytest

from benchmarks.chaos.check import RULES, Rule, by_rule, check
from benchmarks.chaos.history import Cancel, Failed, Flow, Got, History, KeyedSend, Outcome, Sent
from tests.chaos.histories import GOOD, flow, note, ran, retried, row, with_notes, with_row, without_notes

COMMITTED = Sent(7, Outcome.COMMITTED, 9.0, "nowhere")
EXPIRED = row("t", n=0, status="EXPIRED", error_code="TASK_EXPIRED", result=None, attempts=0, started=None)

FORGED: dict[str, tuple[Rule, History]] = {
    "a committed send is not in the database": (Rule.LOST, replace(GOOD, sent=(*GOOD.sent, COMMITTED))),
    "a keyed send came back with an unknown id": (
        Rule.LOST,
        replace(GOOD, keyed=(*GOOD.keyed, KeyedSend("key", "nowhere"))),
    ),
    "a task has run and is not in the database": (Rule.LOST, with_notes(*ran("nowhere", 50, 51))),
    "a task is still running": (Rule.NOT_ENDED, with_row(row("t", n=0, status="RUNNING", started=None, attempts=1))),
    "one send made two tasks": (
        Rule.SENT_TWICE,
        replace(
            GOOD,
            notes=(*GOOD.notes, *ran("u", 10.1, 10.9)),
            rows=(*GOOD.rows, row("u", n=0)),
        ),
    ),
    "a send of unknown outcome made two tasks": (
        Rule.SENT_TWICE,
        replace(
            GOOD,
            notes=(*GOOD.notes, *ran("u", 10.1, 10.9), *ran("v", 10.1, 10.9)),
            rows=(*GOOD.rows, row("u", n=1), row("v", n=1)),
        ),
    ),
    "a send that was rolled back is there": (
        Rule.SENT_TWICE,
        replace(GOOD, notes=(*GOOD.notes, *ran("u", 10.1, 10.9)), rows=(*GOOD.rows, row("u", n=2))),
    ),
    "a task ended twice": (Rule.ENDED_TWICE, replace(GOOD, rows=(*GOOD.rows, row("t", n=0)))),
    "an attempt started twice": (Rule.STARTED_TWICE, with_notes(note("start", "t", 10.3))),
    "an attempt started that was never counted": (Rule.UNCOUNTED, with_notes(note("start", "t", 12, attempt=2))),
    "an expired task has run": (Rule.UNCOUNTED, replace(with_row(EXPIRED), got=())),
    "three of a capped queue ran at once": (
        Rule.CAP,
        replace(GOOD, notes=(*(n for n in GOOD.notes if n.task_id != "c22"), *ran("c22", 21.5, 23.9))),
    ),
    "three of a capped queue were in flight at once": (
        Rule.CAP,
        with_row(row("c22", 21.5, 24, queue="capped")),
    ),
    "a key's next task began before the last one ended": (Rule.KEY, with_row(row("k2", 30.95, 32, key="key"))),
    "a send with a key returned a task of another key": (
        Rule.KEY,
        replace(GOOD, keyed=(*GOOD.keyed, KeyedSend("other", "k1"))),
    ),
    "what is stored is not what was returned": (Rule.RESULT, with_row(row("t", n=0, result="2"))),
    "a task is completed whose attempt never ended": (Rule.RESULT, without_notes("t", "end")),
    "a task failed by a code that it did not return": (
        Rule.RESULT,
        with_row(row("t", n=0, status="FAILED", error_code="FLAKY", result=None)),
    ),
    "a waiter received another result": (Rule.RESULT, replace(GOOD, got=(Got("t", "ok 3"),))),
    "a waiter received an error that a committed task is unknown": (
        Rule.RESULT,
        replace(GOOD, got=(Got("t", "err TASK_NOT_FOUND"),)),
    ),
    "a task was retried for a code that its policy does not list": (
        Rule.POLICY,
        with_row(replace(retried(), retry_for=("FLAKY",))),
    ),
    "a task had more attempts than its policy allows": (Rule.POLICY, with_row(replace(retried(), retries=0))),
    "a task failed although its policy allows a retry": (
        Rule.POLICY,
        with_row(retried(status="FAILED", error_code="WORKER_CRASHED", result=None)),
    ),
    "an attempt is missing from the record": (
        Rule.POLICY,
        with_row(retried(failed=(Failed(2, "WORKER_CRASHED", 10, 11),))),
    ),
    "a task crashed in a child that no fault had hit": (Rule.DEATH, replace(GOOD, injections=())),
    "a task began before its delay was over": (
        Rule.EARLY,
        replace(GOOD, sent=(Sent(0, Outcome.COMMITTED, 9.5, "t", delay_s=1.0),)),
    ),
    "a task began after its good_until": (Rule.LATE, with_row(row("t", n=0, good_until=10.0))),
    "a cancelled task began afterwards": (
        Rule.CANCEL,
        replace(GOOD, cancels=(Cancel("r", "REQUESTED", 11.5),)),
    ),
    "a task that was cancelled before it began has completed": (
        Rule.CANCEL,
        replace(GOOD, cancels=(Cancel("t", "CANCELLED", 12.0),)),
    ),
    "a workflow that was started is not in the database": (Rule.FLOW, replace(GOOD, started_flows=("flow", "other"))),
    "a workflow has not ended": (Rule.FLOW, replace(GOOD, flows=(replace(flow(), status="RUNNING"),))),
    "a completed workflow has a failed node": (
        Rule.FLOW,
        replace(with_row(row("tb", 10, 12, node="b", status="FAILED", error_code="WORKER_CRASHED")), flows=(
            replace(flow(b="FAILED"), status="COMPLETED"),
        ), checks_crashes=False),
    ),
    "a failed workflow has no failed node": (Rule.FLOW, replace(GOOD, flows=(replace(flow(), status="FAILED"),))),
    "a workflow ended before its nodes": (
        Rule.FLOW,
        replace(GOOD, flows=(*GOOD.flows, Flow("late", "COMPLETED", (replace(flow().nodes[0], id="z", status="READY", task_id=None),)))),
    ),
    "a skipped node had a task": (
        Rule.FLOW,
        replace(GOOD, flows=(replace(flow(c="SKIPPED"), status="COMPLETED"),)),
    ),
    "a node had two tasks": (
        Rule.FLOW,
        replace(GOOD, notes=(*GOOD.notes, *ran("tz", 13.1, 13.2)), rows=(*GOOD.rows, row("tz", 13, 14, node="a"))),
    ),
    "a node began before its dependencies had ended": (
        Rule.FLOW,
        replace(GOOD, notes=(*(n for n in GOOD.notes if n.task_id != "tc"), *ran("tc", 11.8, 12.9))),
    ),
}  # fmt: skip


def test_a_good_history_breaks_no_rule() -> None:
    assert check(GOOD) == []


@pytest.mark.parametrize("forged", FORGED, ids=lambda name: name.replace(" ", "_"))
def test_the_checker_finds_the_violation(forged: str) -> None:
    rule, history = FORGED[forged]
    broken = {found for found, count in by_rule(check(history)).items() if count}
    assert broken == {rule}


def test_tasks_out_of_order_are_found() -> None:
    rows = tuple(row(name, at, at + 1, n=n, enqueued=n) for n, (name, at) in enumerate([("a", 1), ("b", 2), ("c", 3)]))
    starts = {"a": 1.1, "b": 2.1, "c": 3.1}
    history = History(
        rows=rows, notes=tuple(n for t, at in starts.items() for n in ran(t, at, at + 0.5)), in_order=True
    )
    assert check(history) == []
    urgent = replace(history, rows=(*rows[:2], replace(rows[2], priority=1)))
    assert [found.rule for found in check(urgent)] == [Rule.ORDER]
    swapped = replace(history, rows=(replace(rows[0], enqueued=9), *rows[1:]))
    assert [found.rule for found in check(swapped)] == [Rule.ORDER]


def test_every_rule_has_a_history_that_breaks_it() -> None:
    assert {rule for rule, _ in FORGED.values()} | {Rule.ORDER} == set(Rule) == set(RULES)


def test_a_run_that_continues_after_its_attempt_ended_does_not_count_for_a_cap() -> None:
    """Its attempt ended in the database at 11. What it does until its worker notices does not belong to the queue."""
    zombie = retried(queue="capped")
    notes = (*ran("r", 10.1, 20.0), *ran("r", 12.1, 12.9, attempt=2), *ran("o", 12.2, 12.8))
    history = replace(
        GOOD, notes=notes, rows=(zombie, row("o", 12.1, 13, queue="capped")), sent=(), keyed=(), cancels=(), got=(),
        flows=(), started_flows=(),
    )  # fmt: skip
    assert check(history) == []
