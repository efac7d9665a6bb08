import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, time, timedelta
from functools import partial

import psycopg
import pytest

from horsies import ConfigError, DailySchedule, IntervalSchedule
from horsies.db.broker import PostgresBroker
from horsies.model.task import Claim, Ending, TaskOptions
from horsies.schedules.control import (
    get_failing_schedules,
    get_schedules,
    pause_schedule,
    resume_schedule,
    run_schedule,
)
from horsies.tasks.finish import finish_tasks
from horsies.tasks.ids import new_task_id
from tests.fixtures.faults import Plant
from tests.fixtures.journey import ME, claim, completed, do, failed, row
from tests.schedules.steps import declare, history, outcomes, store, stored_row, tick_at

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


@pytest.fixture(autouse=True)
def report(broker: PostgresBroker) -> None:
    """An hourly schedule, stored at noon."""
    store(broker, declare("report", IntervalSchedule(hours=1), terms=TaskOptions("pack", "parcels", 3)), now=NOON)


def test_a_resumed_schedule_continues_with_its_first_slot_after_the_pause(broker: PostgresBroker) -> None:
    assert broker.run(partial(pause_schedule, "report"))
    assert tick_at(broker, NOON + 3 * HOUR).decisions == []
    assert tick_at(broker, NOON).next_due_s is None
    assert broker.run(partial(resume_schedule, "report", NOON + 3.5 * HOUR))
    assert tick_at(broker, NOON + 3.5 * HOUR).decisions == []
    assert outcomes(tick_at(broker, NOON + 4 * HOUR)) == [("ENQUEUED", NOON + 4 * HOUR)]


def test_resuming_a_schedule_that_is_not_paused_changes_nothing(broker: PostgresBroker) -> None:
    assert broker.run(partial(resume_schedule, "report", NOON + 3.5 * HOUR))
    assert outcomes(tick_at(broker, NOON + HOUR)) == [("ENQUEUED", NOON + HOUR)]


def test_resuming_a_disabled_schedule_leaves_it_disabled(broker: PostgresBroker) -> None:
    broker.run(partial(pause_schedule, "report"))
    store(broker, declare("report", IntervalSchedule(hours=1), enabled=False), now=NOON)
    assert broker.run(partial(resume_schedule, "report", NOON))
    assert tick_at(broker, NOON + HOUR).decisions == []


def test_resuming_a_schedule_with_an_unknown_time_zone_raises(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    broker.run(partial(pause_schedule, "report"))
    sql.execute(
        """update horsies.schedules set timezone = 'Mars/Olympus', pattern = '{"kind": "daily", "time": "09:00:00"}'"""
    )
    with pytest.raises(ConfigError, match="timezone 'Mars/Olympus' is not known"):
        broker.run(partial(resume_schedule, "report", NOON))
    assert stored_row(sql, "report")["paused_at"] is not None


def test_a_manual_run_enqueues_now_and_moves_no_slot(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    task_id = new_task_id()
    assert broker.run(partial(run_schedule, "report", task_id))
    assert row(sql, "select id::text, task_name, queue_name, priority from horsies.tasks") == (
        task_id,
        "pack",
        "parcels",
        3,
    )
    (run,) = history(broker, "report")
    assert (run.outcome, run.task_id, run.slot_at) == ("BY_HAND", task_id, None)
    assert outcomes(tick_at(broker, NOON + HOUR)) == [("ENQUEUED", NOON + HOUR)]


def test_a_manual_run_counts_for_the_overlap_rule(broker: PostgresBroker) -> None:
    store(broker, declare("report", IntervalSchedule(hours=1), overlap="skip"), now=NOON)
    broker.run(partial(run_schedule, "report", new_task_id()))
    assert outcomes(tick_at(broker, NOON + HOUR)) == [("SKIPPED", NOON + HOUR)]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_manual_run_with_a_lost_answer_runs_once(
    broker: PostgresBroker, sql: psycopg.Connection, faults: Plant, when: str
) -> None:
    faults("run_schedule", "before" if when == "before" else "after", "drop")  # sent together with its COMMIT
    verb = partial(run_schedule, "report", new_task_id())
    assert broker.run(verb, again=verb)
    sql.execute("delete from horsies.tasks")  # as if it had ended
    assert broker.run(verb)
    assert row(sql, "select count(*) from horsies.tasks") == (0,)
    assert len(history(broker, "report")) == 1


def test_concurrent_attempts_of_one_manual_run_enqueue_it_once(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    verb = partial(run_schedule, "report", new_task_id())
    with ThreadPoolExecutor(4) as threads:
        attempts = [threads.submit(broker.run, verb) for _ in range(4)]
        assert [attempt.result() for attempt in attempts] == [True] * 4
    assert row(sql, "select count(*) from horsies.tasks") == (1,)


def test_an_unknown_name_is_reported(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    for verb in (
        partial(pause_schedule, "mail"),
        partial(resume_schedule, "mail"),
        partial(run_schedule, "mail", new_task_id()),
    ):
        assert not broker.run(verb)
    assert row(sql, "select count(*) from horsies.tasks") == (0,)


def test_schedules_are_found_by_task_and_queue(broker: PostgresBroker) -> None:
    daily = declare("mail", DailySchedule(time(9)), timezone="Europe/Berlin")
    store(broker, daily, declare("report", IntervalSchedule(hours=1), terms=TaskOptions("pack", "parcels")), now=NOON)

    def names(**filters: str) -> list[str]:
        return [info.name for info in broker.run(partial(get_schedules, **filters))]

    assert names() == ["mail", "report"]
    assert names(task_name="pack") == names(queue_name="parcels") == names(name="report") == ["report"]
    (info,) = broker.run(partial(get_schedules, "mail"))
    assert info.pattern_text == "daily at 09:00:00"
    assert info.next_slots(2) == [datetime(2026, 6, day, 7, tzinfo=UTC) for day in (2, 3)]


# -- how runs ended


def run_by_hand(broker: PostgresBroker) -> str:
    task_id = new_task_id()
    broker.run(partial(run_schedule, "report", task_id))
    return task_id


def end(broker: PostgresBroker, ending: Callable[[Claim], Ending]) -> None:
    (held,) = claim(broker, queues=["parcels"])
    do(broker, finish_tasks(ME, [ending(held)]))


def fail_with(message: str) -> Callable[[Claim], Ending]:
    return partial(failed, error=json.dumps({"error_code": "BROKEN", "message": message}))


def test_a_run_has_the_outcome_of_its_task(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    ids: list[str] = []
    for ending in (completed, fail_with('no "paper"\n\x00é🐎 left'), fail_with("é" * 5_000), fail_with("\x00" * 900)):
        ids.append(run_by_hand(broker))
        end(broker, ending)
    ids.append(run_by_hand(broker))
    runs = history(broker, "report")
    assert [run.task_id for run in runs] == ids
    assert [(run.task_status, run.error_code, run.message) for run in runs] == [
        ("COMPLETED", None, None),
        ("FAILED", "BROKEN", 'no "paper"'),
        ("FAILED", "BROKEN", "é" * 166),
        ("FAILED", "BROKEN", "\x00" * 166),
        ("PENDING", None, None),
    ]
    assert [run.finished_at is None for run in runs] == [False, False, False, False, True]
    sql.execute("delete from horsies.tasks")
    assert history(broker, "report")[-1].task_status is None


def test_failures_in_a_row_are_counted_since_the_last_success(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    def last() -> tuple[str | None, str | None, int]:
        (info,) = broker.run(partial(get_schedules, "report"))
        return info.last_status, info.last_error_code, info.failures_in_a_row

    assert last() == (None, None, 0)
    assert broker.run(partial(get_failing_schedules, 10)) == []
    for ending, expected, is_failing in (
        (fail_with("x"), ("FAILED", "BROKEN", 1), True),  # it has never succeeded
        (completed, ("COMPLETED", None, 0), False),
        (fail_with("x"), ("FAILED", "BROKEN", 1), False),
        (fail_with("x"), ("FAILED", "BROKEN", 2), False),
        (fail_with("no paper"), ("FAILED", "BROKEN", 3), True),
    ):
        run_by_hand(broker)
        end(broker, ending)
        assert last() == expected
        assert bool(broker.run(partial(get_failing_schedules, 10))) is is_failing
    run_by_hand(broker)  # still waiting: it changes nothing
    assert last() == ("FAILED", "BROKEN", 3)
    (failing,) = broker.run(partial(get_failing_schedules, 10))
    assert (failing.name, failing.failures_in_a_row, failing.message, failing.never_succeeded) == (
        "report",
        3,
        "no paper",
        False,
    )
    broker.run(partial(pause_schedule, "report"))
    assert broker.run(partial(get_failing_schedules, 10)) == []
