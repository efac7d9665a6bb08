"""`app.ops`: one source for blocking and asyncio code, bulk actions, and the audit."""

from collections.abc import Generator
from functools import partial
from typing import Any

import psycopg
import pytest

from horsies import AppConfig, Horsies
from horsies.db.broker import PostgresBroker
from horsies.maintenance import rescue
from horsies.model.config import PostgresConfig
from horsies.model.errors import QueueError
from horsies.model.status import TaskStatus
from horsies.ops import bulk
from horsies.ops.api import Ops
from horsies.tasks import inspect, queues
from horsies.tasks.control import CancelOutcome, RetryOutcome
from horsies.tasks.finish import finish_tasks
from horsies.tasks.inspect import TaskCount, TaskFilter
from tests.cli.test_tasks import register
from tests.fixtures.journey import ME, claim, do, failed, new_task, send, send_new
from tests.fixtures.workers import ROOT


@pytest.fixture
def ops(database: str, broker: PostgresBroker) -> Generator[Ops]:
    app = Horsies(AppConfig(broker=PostgresConfig(database_url=database)))
    yield app.ops.acting_as("alice")
    app.close()


def fail_all(broker: PostgresBroker) -> list[str]:
    held = claim(broker, 1000)
    do(broker, finish_tasks(ME, [failed(one) for one in held]))
    return [one.id for one in held]


async def test_both_forms_of_a_method_give_the_same(ops: Ops, broker: PostgresBroker) -> None:
    sent = [task.id for task in send_new(broker, 3)]
    page = ops.list_tasks(limit=2)
    assert ([task.id for task in page.tasks], page.next_after) == ([sent[2], sent[1]], sent[1])
    assert await ops.list_tasks_async(limit=2) == page
    assert [task.id for task in ops.list_tasks(limit=2, after=page.next_after).tasks] == [sent[0]]
    assert ops.count_tasks() == await ops.count_tasks_async() == 3
    await ops.broker.close_async()


def test_every_method_is_documented_and_has_a_twin() -> None:
    public = {name for name in vars(Ops) if not name.startswith("_")} - {"broker"}
    methods = {name for name in public if not name.endswith("_async")}
    documented = (ROOT / "docs" / "ops.md").read_text(encoding="utf-8")
    assert [name for name in sorted(methods) if f"`{name}`" not in documented] == []
    without_twin = {
        "acting_as",
        "cancel_matching",
        "retry_matching",
        "purge_matching",
        "retry_error_group",
        "purge_queue",
    }
    assert methods - without_twin == {name.removesuffix("_async") for name in public if name.endswith("_async")}


def test_ids_are_checked_before_anything_is_changed(ops: Ops, broker: PostgresBroker) -> None:
    (task,) = send_new(broker, 1)
    with pytest.raises(ValueError, match="'x' is not a valid task id"):
        ops.cancel_tasks([task.id, "x"])
    assert ops.count_tasks(TaskFilter(statuses=[TaskStatus.PENDING])) == 1
    assert ops.list_audit() == []


def test_actions_are_recorded_with_their_count(ops: Ops, broker: PostgresBroker) -> None:
    first, second = (task.id for task in send_new(broker, 2))
    assert ops.cancel_tasks([first]) == {first: CancelOutcome.CANCELLED}
    assert ops.retry_tasks([first, second]) == {first: RetryOutcome.RETRIED, second: RetryOutcome.NOT_ENDED}
    ops.pause_queue("default")
    found = [(entry.actor, entry.action, entry.target, entry.count) for entry in ops.list_audit()]
    assert found == [
        ("alice", "pause queue", "default", 1),
        ("alice", "retry tasks", f"{first}, {second}", 1),
        ("alice", "cancel tasks", first, 1),
    ]


def test_a_bulk_action_that_is_stopped_has_done_its_batches_and_can_be_continued(
    ops: Ops, broker: PostgresBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "BATCH", 2)
    send_new(broker, 5)
    fail_all(broker)
    filters = TaskFilter(task_name="add")
    for progress in ops.retry_matching(filters):
        assert (progress.selected, progress.outcomes) == (2, {"RETRIED": 2})
        break
    assert ops.list_audit()[0].count == 2
    assert ops.retry_matching(filters).run().outcomes == {"RETRIED": 3}
    assert [entry.count for entry in ops.list_audit()] == [3, 2]
    assert ops.list_audit()[0].target == "task_name=add"


async def test_a_bulk_action_for_asyncio(ops: Ops, broker: PostgresBroker) -> None:
    send_new(broker, 3)
    assert (await ops.cancel_matching(TaskFilter()).run_async()).outcomes == {"CANCELLED": 3}
    assert (await ops.purge_matching(TaskFilter()).run_async()).outcomes == {"PURGED": 3}
    assert ops.count_tasks() == 0
    await ops.broker.close_async()


def test_a_bulk_action_refuses_tasks_that_it_cannot_change(ops: Ops) -> None:
    with pytest.raises(ValueError, match=r"retry tasks: for tasks that are .* and not for RUNNING"):
        ops.retry_matching(TaskFilter(statuses=[TaskStatus.RUNNING]))


def test_a_task_that_ended_again_since_it_was_selected_is_not_retried(
    ops: Ops, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    send_new(broker, 2)
    first, second = fail_all(broker)
    action = ops.retry_matching(TaskFilter(error_code="BROKEN"))
    verb = action.act(ops.list_tasks(action.filters).tasks)
    ops.retry_tasks([first])  # by someone else
    fail_all(broker)
    sql.execute("update horsies.finished set error_code = 'OTHER' where id = %s", [first])
    assert broker.run(verb) == {"RETRIED": 1, "NOT_ENDED": 1}
    assert ops.get_statuses([first, second]) == {first: TaskStatus.FAILED, second: TaskStatus.PENDING}


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([], {"CANCELLED": 1, "REQUESTED": 1}),
        (["PENDING", "CLAIMED"], {"CANCELLED": 1, "LEFT": 1}),
        (["RUNNING"], {"LEFT": 1, "REQUESTED": 1}),
        (["RUNNING", "PENDING"], {"CANCELLED": 1, "REQUESTED": 1}),
    ],
)
def test_tasks_are_cancelled_only_in_the_statuses_of_the_filter(
    statuses: list[str], expected: dict[str, int], ops: Ops, broker: PostgresBroker
) -> None:
    tasks = send_new(broker, 2)
    selected = ops.list_tasks().tasks
    action = ops.cancel_matching(TaskFilter(statuses=[TaskStatus(status) for status in statuses]))
    assert claim(broker, 1)[0].id == tasks[0].id  # starts before it can be cancelled
    assert broker.run(action.act(selected)) == expected


async def test_a_group_of_errors_is_previewed_and_retried(
    ops: Ops, broker: PostgresBroker, sql: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_new(broker, 3)
    first, second, third = fail_all(broker)
    sql.execute("update horsies.finished set error_code = 'OTHER' where id = %s", [third])
    groups = {group.error_code: group for group in ops.error_groups()}
    action = ops.retry_error_group(groups["BROKEN"])
    assert action.preview() == await action.preview_async() == TaskCount(2, is_complete=True)
    monkeypatch.setattr(inspect, "MAX_PREVIEWED", 1)
    assert not action.preview().is_complete
    assert action.run().outcomes == {"RETRIED": 2}
    assert ops.get_statuses([first, second, third]) == {
        first: TaskStatus.PENDING, second: TaskStatus.PENDING, third: TaskStatus.FAILED
    }  # fmt: skip
    await ops.broker.close_async()


# -- queues


def test_queues_share_the_limit_of_what_is_counted(
    ops: Ops, broker: PostgresBroker, sql: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The age is that of the oldest task also where not all tasks were counted."""
    urgent, usual = [[new_task(queue_name="long", priority=number) for _ in range(4)] for number in (1, 9)]
    few = [new_task(queue_name="short") for _ in range(2)]
    later = new_task(queue_name="later")
    send(broker, *urgent, *usual, *few, later)
    sql.execute("update horsies.tasks set enqueued_at = now() - interval '1 h' where id = %s", [usual[0].id])
    sql.execute(
        "update horsies.tasks set ready = false, enqueued_at = now() + interval '1 h' where id = %s", [later.id]
    )
    monkeypatch.setattr(queues, "MAX_COUNTED", 6)
    monkeypatch.setattr(queues, "MIN_COUNTED", 1)
    found = {queue.name: queue for queue in ops.list_queues()}
    counts = {name: (queue.waiting, queue.more_waiting, queue.scheduled) for name, queue in found.items()}
    assert counts == {"long": (3, True, 0), "short": (2, False, 0), "later": (0, False, 1)}
    assert (found["long"].oldest_waiting_s or 0) >= 3600
    states = {queue.name: (queue.waiting, queue.more_waiting) for queue in ops.list_queue_states()}
    assert states == {"long": (3, True), "short": (2, False)}, "those that are not due are not read"


# -- dead workers


def test_a_dead_worker_is_listed_with_what_became_of_its_tasks(
    ops: Ops, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    send_new(broker, 4)
    first, second, third, _ = (task.id for task in claim(broker, 4))
    register(sql, ME)
    (heartbeat,) = broker.run(rescue.get_heartbeats).values()
    assert broker.run(partial(rescue.remove_dead_worker, ME, heartbeat))
    (dead,) = ops.list_dead_workers()
    assert (dead.id, dead.tasks_held, dead.outcomes) == (ME, 4, {"RUNNING": 4})
    assert list(dead.task_ids[:3]) == [first, second, third]
    broker.run(rescue.rescue_orphans)
    ops.retry_tasks([first])
    ops.purge_matching(TaskFilter(ids=[second])).run()
    (dead,) = ops.list_dead_workers()
    assert dead.outcomes == {"PENDING": 1, "GONE": 1, "FAILED": 2}
    sql.execute("update horsies.dead_workers set found_at = found_at - interval '2 hours'")
    assert ops.list_dead_workers(hours=1) == []


def test_a_worker_that_was_found_dead_twice_is_listed_once(
    ops: Ops, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    for tasks in (0, 1):
        register(sql, ME)
        send_new(broker, tasks)
        claim(broker)
        (heartbeat,) = broker.run(rescue.get_heartbeats).values()
        broker.run(partial(rescue.remove_dead_worker, ME, heartbeat))
    assert [dead.tasks_held for dead in ops.list_dead_workers()] == [1]


# -- what operators may give


def test_statuses_may_be_words(ops: Ops, broker: PostgresBroker) -> None:
    send_new(broker, 1)
    words: list[Any] = ["PENDING"]
    assert len(ops.list_tasks(TaskFilter(statuses=words)).tasks) == 1
    words.append("LOST")
    with pytest.raises(ValueError, match="'LOST' is not a valid TaskStatus"):
        ops.list_tasks(TaskFilter(statuses=words))


@pytest.mark.parametrize("limit", [-1, 0, 10**30])
def test_a_limit_is_brought_into_its_range(limit: int, ops: Ops) -> None:
    assert ops.list_schedule_runs("x", limit=limit) == []
    assert ops.list_recent_runs(["x"], limit=limit) == {"x": []}
    assert ops.find_task_ids("0", limit=limit) == ops.find_worker_ids("0", limit=limit) == []
    assert ops.find_workflow_ids("0", limit=limit) == ops.list_audit(limit=limit) == []


@pytest.mark.parametrize("hours", [float("inf"), float("nan"), -1.0, 1e300])
def test_hours_are_brought_into_their_range(hours: float, ops: Ops) -> None:
    assert ops.error_groups(hours=hours) == []


@pytest.mark.parametrize("name", ["", "x\0", "x" * 1001])
def test_what_is_not_the_name_of_a_queue_is_neither_paused_nor_capped(name: str, ops: Ops) -> None:
    for act in (ops.pause_queue, partial(ops.set_queue_cap, max_concurrency=3)):
        with pytest.raises(QueueError, match="is not the name of a queue"):
            act(name)
    assert (ops.list_queues(), ops.list_audit()) == ([], [])


def test_the_audit_keeps_texts_of_a_bounded_length(ops: Ops) -> None:
    ops.acting_as("a" * 5000).record_stop("b" * 5000, "c" * 5000)
    (entry,) = ops.list_audit()
    assert [len(text) for text in (entry.actor, entry.action, entry.target)] == [1000, 1000, 1000]
