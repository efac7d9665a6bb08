"""`on_failure`: a task that is enqueued in the transaction in which another one finally fails."""

import json
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from horsies import (
    AppConfig,
    Horsies,
    RetryPolicy,
    ScheduleConfig,
    TaskDefinitionError,
    TaskError,
    TaskFailure,
    TaskResult,
    TaskSchedule,
    TaskStatus,
)
from horsies.db.channels import Channel
from horsies.maintenance.rescue import rescue_orphans
from horsies.model.schedule import HourlySchedule
from horsies.schedules.sync import declared_schedules
from horsies.testing import Sandbox, clock, drain, open_sandbox
from tests.apps import failing
from tests.fixtures.workers import READY, StartWorker


@pytest.fixture
def sandbox(database: str) -> Generator[Sandbox]:
    with open_sandbox(failing.app, database) as opened:
        yield opened


def reports(sql: psycopg.Connection) -> list[dict[str, Any]]:
    """The failures that `tell` was enqueued with, and that are not finished."""
    return [args["failure"] for (args,) in sql.execute("select args from horsies.tasks where task_name = 'tell'")]


@pytest.mark.usefixtures("sandbox")
def test_the_task_is_enqueued_after_the_last_attempt_only_with_what_has_failed(sql: psycopg.Connection) -> None:
    handle = failing.charge.send(7, "busy")
    assert [ran.status for ran in drain(limit=1)] == [TaskStatus.PENDING]
    assert reports(sql) == []
    clock.advance(1)
    assert [ran.task_name for ran in drain()] == ["charge", "tell"]
    (result,) = sql.execute("select result from horsies.finished where task_name = 'tell'").fetchall()
    assert result == (f"told charge {handle.task_id} default 2 BUSY 'try later' amount=7,how=busy",)


@pytest.mark.usefixtures("sandbox")
def test_any_text_in_arguments_and_errors_arrives(sql: psycopg.Connection) -> None:
    failing.charge.send(1, "raise")
    drain(limit=1)
    (failure,) = reports(sql)
    assert failure["error"]["message"] == "ValueError: what's \\ this \N{SNOWMAN}?"
    assert "Traceback" in failure["error"]["data"]["traceback"]
    assert [ran.status for ran in drain()] == [TaskStatus.COMPLETED]


@pytest.mark.usefixtures("sandbox")
def test_it_has_its_own_options_and_is_sensitive_if_either_task_is(sql: psycopg.Connection) -> None:
    failing.charge.send(1, "raise")
    failing.charge_secretly.send("4711")
    drain(limit=2)
    options = (
        "queue_name, priority, timeout_ms, retry_delays_ms, retry_jitter, retry_for, is_sensitive, on_failure, status"
    )
    assert sql.execute(f"select {options} from horsies.tasks order by id").fetchall() == [
        ("default", 100, 5_000, [1_000, 2_000], 0.0, ["BUSY"], None, None, "PENDING"),
        ("default", 100, 5_000, [1_000, 2_000], 0.0, ["BUSY"], True, None, "PENDING"),
    ]


@pytest.mark.usefixtures("sandbox")
def test_what_succeeds_is_cancelled_or_expires_has_not_failed(sql: psycopg.Connection) -> None:
    failing.charge.send(1)
    failing.charge.schedule(600, 1).cancel()
    failing.charge.with_options(good_until=datetime.now(UTC) + timedelta(minutes=5)).schedule(60, 1)
    clock.advance(600)
    drain()
    statuses = sql.execute("select status from horsies.finished order by status").fetchall()
    assert statuses == [("CANCELLED",), ("COMPLETED",), ("EXPIRED",)]
    assert reports(sql) == []


def test_the_maintenance_leader_enqueues_it_for_tasks_of_a_dead_worker_once(
    sandbox: Sandbox, sql: psycopg.Connection
) -> None:
    failing.charge_secretly.send("4711")
    sql.execute(
        "update horsies.tasks set status = 'RUNNING', claimed_by = %s, claimed_at = now(), started_at = now(), claim_no = 1",
        [uuid4()],
    )
    sandbox.broker.run(rescue_orphans)
    sandbox.broker.run(rescue_orphans)
    (failure,) = reports(sql)
    assert failure["error"]["error_code"] == "WORKER_CRASHED"


def test_a_task_that_kills_its_process_has_failed(
    sandbox: Sandbox, worker: StartWorker, sql: psycopg.Connection, database: str
) -> None:
    running = worker("tests.apps.failing:app", processes=1)
    running.wait_for_log(READY)
    handle = failing.charge.send(7, "exit")
    assert handle.get(20_000).err_value.error_code == "WORKER_CRASHED"
    (id_,) = sql.execute("select id::text from horsies.all_tasks where task_name = 'tell'").fetchall()
    assert f"{handle.task_id} default 1 WORKER_CRASHED" in sandbox.app.handle(id_[0], failing.tell).get(20_000).unwrap()


MOVE = "with gone as (delete from horsies.tasks returning *) insert into horsies.finished (id, task_name, queue_name, args, on_failure, status, attempts, error_code, finished_at, sent_at, enqueued_at, priority, claim_no) select id, task_name, queue_name, args, on_failure, 'FAILED', 1, 'X', now(), sent_at, enqueued_at, priority, claim_no from gone"


@pytest.mark.usefixtures("sandbox")
def test_nothing_is_enqueued_if_the_ending_is_rolled_back(sql: psycopg.Connection) -> None:
    failing.charge_secretly.send("4711")
    sql.execute("update horsies.tasks set status = 'RUNNING', claimed_by = gen_random_uuid(), claim_no = 1")
    with sql.transaction(force_rollback=True):
        sql.execute(MOVE)
        assert len(reports(sql)) == 1
    assert reports(sql) == []


@pytest.mark.usefixtures("sandbox")
def test_workers_are_notified_of_it_also_in_a_transaction_that_notifies_of_its_own_tasks_later(
    sql: psycopg.Connection, database: str
) -> None:
    failing.charge_secretly.send("4711")
    with psycopg.connect(database, autocommit=True) as listener:
        listener.execute(f"listen {Channel.NEW.name_in('horsies')}".encode())
        with sql.transaction():
            sql.execute("select set_config('horsies.notify', 'after_commit', true)")
            sql.execute(MOVE)
        assert [each.payload.split()[2] for each in listener.notifies(timeout=20, stop_after=1)] == ["default"]


@pytest.mark.promise("D6")
@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize(
    "stored",
    [
        "not json",
        "[]",
        "{}",
        '{"task_name": "tell"}',
        json.dumps({"task_name": "tell", "queue_name": "q" * 2_000, "priority": 1}),
    ],
)
def test_options_that_no_task_can_use_do_not_keep_a_task_from_failing(sql: psycopg.Connection, stored: str) -> None:
    handle = failing.charge_secretly.send("4711")
    sql.execute("update horsies.tasks set on_failure = %s", [stored])
    drain()
    assert handle.status() is TaskStatus.FAILED
    assert reports(sql) == []


@pytest.mark.usefixtures("sandbox")
def test_a_target_that_no_worker_knows_waits(sql: psycopg.Connection) -> None:
    handle = failing.charge_secretly.send("4711")
    sql.execute("update horsies.tasks set on_failure = replace(on_failure, 'tell', 'tell_later')")
    drain(limit=1)
    assert handle.status() is TaskStatus.FAILED
    assert sql.execute("select task_name, status from horsies.tasks").fetchall() == [("tell_later", "PENDING")]


@pytest.mark.usefixtures("sandbox")
def test_a_failure_after_a_retry_by_hand_is_reported_again(sql: psycopg.Connection) -> None:
    handle = failing.charge_secretly.send("4711")
    drain()
    handle.retry()
    drain()
    count = "select count(*) from horsies.finished where task_name = 'tell'"
    assert sql.execute(count).fetchone() == (2,)


def test_nodes_and_scheduled_tasks_name_it_too(sandbox: Sandbox, sql: psycopg.Connection) -> None:
    spec = failing.app.workflow("charging", tasks=[failing.charge_secretly.node()(card="4711")])
    spec.start()
    drain(limit=1)
    assert len(reports(sql)) == 1
    every = TaskSchedule(name="hourly", task_name="charge_secretly", pattern=HourlySchedule(), kwargs={"card": "1"})
    config = AppConfig(schedule=ScheduleConfig(schedules=[every]), broker=sandbox.broker.config)
    declared = declared_schedules(config, failing.app.known_tasks)
    assert declared is not None
    assert json.loads(declared[0].options.on_failure or "")["task_name"] == "tell"
    failing.app.config, before = config, failing.app.config
    try:
        clock.advance(7_200)
    finally:
        failing.app.config = before
    sql.execute("delete from horsies.tasks where task_name = 'tell'")
    assert {ran.task_name for ran in drain(limit=1)} == {"charge_secretly"}
    assert len(reports(sql)) == 1


# -- definition


def test_what_cannot_be_an_on_failure_is_refused_with_what_to_write() -> None:
    app, other = Horsies(), Horsies()

    @other.task("far")
    def far(failure: TaskFailure) -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    @app.task("tell")
    def tell(failure: TaskFailure) -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    @app.task("log")
    def log(text: str) -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    @app.task("charge", on_failure=tell)
    def charge(failure: TaskFailure) -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    def define(name: str, on_failure: Any) -> None:
        @app.task(name, on_failure=on_failure)
        def pay() -> TaskResult[None, TaskError]:
            return TaskResult(ok=None)

        _ = pay.options

    for number, (on_failure, message) in enumerate(
        [
            (far, "of another app"),
            (log, r"write it as `def log\(failure: TaskFailure\)`"),
            (charge, "has an on_failure itself"),
            ("pay", "has an on_failure itself"),
            ("", "give a task, or the name of one"),
            (7, "give a task, or the name of one"),
            ("gone", "give the task instead of its name, or import its module"),
        ]
    ):
        with pytest.raises(TaskDefinitionError, match=message):
            define("pay" if on_failure == "pay" else f"pay {number}", on_failure)


def test_a_name_that_is_not_defined_fails_the_check_and_the_send(sandbox: Sandbox) -> None:
    app = Horsies(AppConfig(broker=sandbox.broker.config))

    @app.task("pay", on_failure="tell")
    def pay() -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    (problem,) = app.check().problems
    assert problem.startswith("task 'pay': on_failure names 'tell', which is not defined here")
    with pytest.raises(TaskDefinitionError, match="not defined here"):
        pay.send()

    @app.task("tell", retry_policy=RetryPolicy.fixed([1], auto_retry_for=["BUSY"]))
    def tell(failure: TaskFailure) -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    assert app.check().problems == []
    assert [task.on_failure for task in app.check().tasks] == ["tell", None]
