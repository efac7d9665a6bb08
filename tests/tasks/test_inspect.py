"""Listing tasks: filters, order and pages."""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial

import psycopg
import pytest

from horsies.db.broker import PostgresBroker
from horsies.model.status import TaskStatus
from horsies.tasks.control import Requeue, purge_finished
from horsies.tasks.finish import finish_tasks
from horsies.tasks.inspect import TaskFilter, TaskSummary, count_tasks, list_running, list_tasks, read_clock
from tests.fixtures.journey import ME, OTHER, claim, column, completed, do, failed, new_task, send, send_new


@pytest.fixture
def ids(broker: PostgresBroker, sql: psycopg.Connection) -> dict[str, str]:
    """Send one task of each kind, in this order. Returns their ids by what became of them."""
    names = ["completed", "failed", "running", "pending", "elsewhere", "late"]
    tasks = {
        name: new_task("pay" if name == "failed" else "add", queue_name="mail" if name == "elsewhere" else "default")
        for name in names
    }
    send(broker, *(tasks[name] for name in ("completed", "failed", "running")))
    first, second, _ = claim(broker)
    do(broker, finish_tasks(ME, [completed(first), failed(second)]))
    send(broker, *(tasks[name] for name in ("pending", "elsewhere", "late")))
    sql.execute("update horsies.tasks set good_until = now() - interval '1 s' where id = %s", [tasks["late"].id])
    return {name: task.id for name, task in tasks.items()}


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (TaskFilter(), ["late", "elsewhere", "pending", "running", "failed", "completed"]),
        (TaskFilter(statuses=[TaskStatus.FAILED]), ["failed"]),
        (TaskFilter(statuses=[TaskStatus.RUNNING, TaskStatus.COMPLETED]), ["running", "completed"]),
        (TaskFilter(statuses=[TaskStatus.PENDING]), ["elsewhere", "pending"]),
        (TaskFilter(statuses=[TaskStatus.EXPIRED]), ["late"]),
        (TaskFilter(statuses=[TaskStatus.CANCELLED]), []),
        (TaskFilter(queue_name="mail"), ["elsewhere"]),
        (TaskFilter(task_name="pay"), ["failed"]),
        (TaskFilter(error_code="BROKEN"), ["failed"]),
        (TaskFilter(error_code="OTHER"), []),
        (TaskFilter(worker=ME), ["running", "failed", "completed"]),
        (TaskFilter(worker=OTHER), []),
        (TaskFilter(workflow_id=ME), []),
        (TaskFilter(queue_name="default", statuses=[TaskStatus.PENDING]), ["pending"]),
    ],
)
def test_matching_tasks_are_listed_newest_first(
    broker: PostgresBroker, ids: dict[str, str], wanted: TaskFilter, expected: list[str]
) -> None:
    found = broker.run(partial(list_tasks, wanted, limit=10)).tasks
    names = {task_id: name for name, task_id in ids.items()}
    assert [names[line.id] for line in found] == expected
    assert broker.run(partial(count_tasks, wanted)) == len(expected)


def test_time_filters_use_the_end_of_a_task_or_the_send_time_of_a_live_one(
    broker: PostgresBroker, sql: psycopg.Connection, ids: dict[str, str]
) -> None:
    hour = timedelta(hours=1)
    sql.execute("update horsies.tasks set sent_at = sent_at - interval '2 h' where id = %s", [ids["pending"]])
    sql.execute("update horsies.finished set finished_at = finished_at - interval '2 h' where status = 'FAILED'")
    sql.execute("update horsies.finished set sent_at = sent_at - interval '2 h' where status = 'COMPLETED'")
    now = broker.run(read_clock)
    recent = broker.run(partial(list_tasks, TaskFilter(since=now - hour), limit=10)).tasks
    older = broker.run(partial(list_tasks, TaskFilter(until=now - hour), limit=10)).tasks
    assert {line.id for line in older} == {ids["pending"], ids["failed"]}
    assert {line.id for line in recent} == set(ids.values()) - {ids["pending"], ids["failed"]}


def test_pages_have_no_gaps(broker: PostgresBroker, ids: dict[str, str]) -> None:
    seen, after = list[str](), None
    for number in (2, 2, 2):
        page = broker.run(partial(list_tasks, TaskFilter(), limit=2, after=after))
        assert len(page.tasks) == number
        assert page.is_complete
        seen += [line.id for line in page.tasks]
        after = page.next_after
    assert after is None
    assert seen == sorted(ids.values(), reverse=True)


def test_a_purge_deletes_only_the_listed_endings(
    broker: PostgresBroker, sql: psycopg.Connection, ids: dict[str, str]
) -> None:
    seen = broker.run(partial(list_tasks, TaskFilter(), limit=10)).tasks
    broker.run(Requeue([ids["failed"]]))
    assert broker.run(partial(purge_finished, seen)) == 1
    assert broker.run(partial(purge_finished, seen)) == 0
    assert column(sql, "select id from horsies.finished") == []
    assert {str(task_id) for task_id in column(sql, "select id::text from horsies.tasks")} == {*ids.values()} - {
        ids["completed"]
    }


def test_a_task_that_is_tried_again_shows_its_last_error(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    crashed, retrying, again = (task.id for task in send_new(broker, 3))
    text = '{"error_code": "BUSY", "message": "no \\"room\\"\\nfor 7", "data": null}'
    sql.execute(
        "update horsies.tasks set attempts = 1, ready = id = %s, enqueued_at = now() + interval '1 h', "
        "failed_attempts = horsies.add_failed_attempt("
        "horsies.add_failed_attempt(null, 1, 1, 'OLD', null, null, null, null, now(), true), "
        "2, 2, 'BUSY', %s::json, null, null, null, now(), true) where id <> %s",
        [again, text, crashed],
    )
    sql.execute("update horsies.tasks set child_deaths = 7 where id = %s", [crashed])
    found = {task.id: (task.error_code, task.message) for task in listed(broker, TaskFilter())}
    assert found == {
        crashed: ("WORKER_CRASHED", "7 child processes died before it started"),
        retrying: ("BUSY", 'no "room"'),
        again: ("BUSY", 'no "room"'),
    }
    for wanted in (TaskFilter(error_code="BUSY"), TaskFilter(message='NO "room'), TaskFilter(message='room"\nFOR')):
        assert {task.id for task in listed(broker, wanted)} == {retrying, again}
    assert [task.id for task in listed(broker, TaskFilter(error_code="WORKER_CRASHED"))] == [crashed]
    for other in (TaskFilter(error_code="OLD"), TaskFilter(message="error_code"), TaskFilter(message="100%")):
        assert listed(broker, other) == []


def test_running_tasks_are_listed_with_the_longest_first(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    sent = [task.id for task in send_new(broker, 3)]
    claim(broker, 2)
    sql.execute("update horsies.tasks set started_at = now() - interval '1 h' where id = %s", [sent[1]])
    assert [task.id for task in broker.run(partial(list_running, 10))] == [sent[1], sent[0]]
    (longest,) = broker.run(partial(list_running, 1))
    assert longest.running_for_s is not None
    assert 3600 <= longest.running_for_s < 3700
    assert [task.running_for_s is None for task in listed(broker, TaskFilter())] == [True, False, False]


def listed(broker: PostgresBroker, filters: TaskFilter) -> Sequence[TaskSummary]:
    page = broker.run(partial(list_tasks, filters, limit=100))
    assert page.is_complete
    assert page.next_after is None
    assert broker.run(partial(count_tasks, filters)) == len(page.tasks)
    return page.tasks


@pytest.mark.parametrize("time_of_id", ["now() + interval '3 days'", "now() - interval '300 days'", None])
def test_named_tasks_are_found_whatever_time_their_ids_have(
    broker: PostgresBroker, sql: psycopg.Connection, ids: dict[str, str], time_of_id: str | None
) -> None:
    """The time of an id tells in which partition to look first. Clocks may be wrong, and other software makes other ids."""
    digits = f"lpad(to_hex((extract(epoch from {time_of_id}) * 1000)::bigint), 12, '0') || '7'" if time_of_id else "''"
    statement = f"""
        update horsies.finished
        set id = overlay(replace(gen_random_uuid()::text, '-', '') placing {digits} from 1)::uuid
        where id = %s
        returning id::text
    """
    (strange,) = column(sql, statement, [ids["failed"]])
    wanted = [str(strange), ids["completed"], ids["pending"]]
    assert {task.id for task in listed(broker, TaskFilter(ids=wanted))} == set(wanted)
    assert broker.run(partial(count_tasks, TaskFilter(ids=wanted))) == len(wanted)
    assert [task.id for task in listed(broker, TaskFilter(ids=wanted, statuses=[TaskStatus.FAILED]))] == [strange]
