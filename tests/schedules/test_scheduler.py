"""Scheduler processes: start, outages, kills and shutdown."""

import asyncio
import signal
from collections.abc import Generator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Protocol

import psycopg
import pytest

from horsies import AppConfig, Horsies, events
from horsies.db.broker import PostgresBroker
from horsies.model.schedule import IntervalSchedule
from horsies.schedules.control import change_schedule, create_schedule, pause_schedule, resume_schedule
from horsies.worker.scheduler import Scheduler
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import row
from tests.fixtures.pgbouncer import StartPgBouncer
from tests.fixtures.proxies import Proxy
from tests.fixtures.web import Response, fetch, free_port
from tests.fixtures.workers import Program, StartWorker
from tests.schedules.steps import declare, store

APP = "tests.apps.scheduled:app"
READY = "scheduler is ready"
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)
# Counts the schedules that have not run every slot from the first to the last exactly once, each with its own task.
INCOMPLETE_SCHEDULES = (
    "select count(*) from (select schedule_name, count(*), count(distinct slot_at) as slots, count(distinct task_id) as tasks, "
    "extract(epoch from max(slot_at) - min(slot_at)) + 1 as seconds from horsies.schedule_runs where outcome = 'ENQUEUED' "
    "group by schedule_name) as runs where count <> slots or tasks <> slots or slots <> seconds"
)


class StartScheduler(Protocol):
    def __call__(
        self,
        app: str = ...,
        *,
        options: tuple[str, ...] = ...,
        env: Mapping[str, str] | None = ...,
        faults: str = ...,
        until_ready: bool = ...,
    ) -> Program: ...


@pytest.fixture
def scheduler(database: str) -> Generator[StartScheduler]:
    started: list[Program] = []

    def start(
        app: str = APP,
        *,
        options: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
        faults: str = "",
        until_ready: bool = True,
    ) -> Program:
        variables = {"HORSIES_DATABASE_URL": database, "HORSIES_FAULTS": faults, **(env or {})}
        started.append(Program("scheduler", app, *options, env=variables))
        if until_ready:
            started[-1].wait_for_log(READY)
        return started[-1]

    yield start
    for made in started:
        made.close()


def runs(sql: psycopg.Connection) -> int:
    (count,) = row(sql, "select count(*) from horsies.schedule_runs where outcome = 'ENQUEUED'")
    return count


def wait_until_settled(sql: psycopg.Connection) -> None:
    """Wait until it has enqueued and listens, so that all its connections exist before a cut."""
    listening = (
        "select count(*) from pg_stat_activity where datname = current_database() and query like 'listen%%_schedules\"'"
    )
    eventually(lambda: runs(sql) >= 1, what="it works")
    eventually(lambda: row(sql, listening) == (1,), what="it listens")


@pytest.mark.promise("A1", "A9", "T4")
def test_a_scheduler_enqueues_due_tasks_and_a_worker_runs_them(
    scheduler: StartScheduler, worker: StartWorker, sql: psycopg.Connection
) -> None:
    worker(APP)
    running = scheduler()
    finished = "select count(*) from horsies.finished where status = 'COMPLETED' and task_name = 'note'"
    eventually(lambda: row(sql, finished) >= (2,), what="two runs are done")
    assert running.terminate() == 0
    assert "stopped" in running.logs[-1]
    assert row(sql, INCOMPLETE_SCHEDULES) == (0,)


@pytest.mark.promise("T4")
def test_a_worker_can_also_be_the_scheduler(worker: StartWorker, sql: psycopg.Connection) -> None:
    running = worker(APP, options=("--scheduler",))
    eventually(lambda: row(sql, "select count(*) from horsies.finished") >= (1,), what="a run is done")
    assert running.terminate() == 0


@pytest.mark.promise("T4")
def test_killed_schedulers_neither_skip_nor_repeat_a_slot(scheduler: StartScheduler, sql: psycopg.Connection) -> None:
    env = {"HORSIES_TEST_SCHEDULES": "5"}
    steady = scheduler(env=env)
    killed = [
        scheduler(env=env, faults=f"{fault}:kill", until_ready=False)
        for fault in ("lock_due_schedules:after", "record_decisions:before", "record_decisions:after")
    ]
    assert [each.wait() for each in killed] == [-signal.SIGKILL] * 3
    before = runs(sql)
    eventually(lambda: runs(sql) >= before + 5, what="another second is enqueued")
    steady.kill()
    last = scheduler(env=env)
    before = runs(sql)
    eventually(lambda: runs(sql) >= before + 5, what="another second is enqueued")
    assert last.terminate() == 0
    assert row(sql, INCOMPLETE_SCHEDULES) == (0,)


@pytest.mark.promise("T4")
def test_a_scheduler_survives_an_outage(scheduler: StartScheduler, sql: psycopg.Connection, proxy: Proxy) -> None:
    running = scheduler(env={"HORSIES_DATABASE_URL": proxy.url})
    wait_until_settled(sql)
    proxy.cut()
    running.wait_for_log("database unavailable")
    proxy.heal()
    before = runs(sql)
    eventually(lambda: runs(sql) > before, what="it works again")
    assert running.terminate() == 0
    assert row(sql, INCOMPLETE_SCHEDULES) == (0,)


def test_a_scheduler_serves_metrics_and_readiness_over_http(
    scheduler: StartScheduler, sql: psycopg.Connection, proxy: Proxy
) -> None:
    port = free_port()
    running = scheduler(options=(f"--metrics-port={port}",), env={"HORSIES_DATABASE_URL": proxy.url})
    eventually(lambda: fetch(port, "/readyz").status == 200)
    eventually(lambda: enqueued(fetch(port, "/metrics")) >= 1, what="its slots are counted")
    assert enqueued(fetch(port, "/metrics")) <= runs(sql)  # counted after the commit
    seen = fetch(port, "/metrics").samples()
    assert seen["horsies_database_up"] == 1
    assert seen["horsies_pool_connections"] >= 1
    assert "horsies_worker_slots" not in seen

    proxy.cut()
    eventually(lambda: fetch(port, "/readyz").status == 503)
    (reason,) = fetch(port, "/readyz").json["reasons"]
    assert "the database has not answered" in reason
    assert fetch(port, "/healthz").json == {"status": "alive"}
    proxy.heal()
    eventually(lambda: fetch(port, "/readyz").status == 200)
    assert running.terminate() == 0
    assert fetch(port, "/healthz").status == 0


def enqueued(response: Response) -> float:
    return response.samples().get('horsies_schedule_slots_total{outcome="ENQUEUED"}', 0.0)


def test_a_scheduler_that_waits_for_its_database_is_alive_but_not_ready(scheduler: StartScheduler) -> None:
    port = free_port()
    env = {"HORSIES_DATABASE_URL": "postgresql://127.0.0.1:1/nothing"}
    scheduler(options=(f"--metrics-port={port}",), env=env, until_ready=False)
    eventually(lambda: fetch(port, "/healthz").status == 200)
    assert fetch(port, "/readyz").json["reasons"] == ["the database has not been reached yet"]


def test_a_scheduler_works_through_a_transaction_pooler_and_leaves_no_session_settings(
    scheduler: StartScheduler, sql: psycopg.Connection, pgbouncer: StartPgBouncer
) -> None:
    pooler = pgbouncer(server_round_robin=1)
    running = scheduler(env={"HORSIES_DATABASE_URL": pooler.url})
    eventually(lambda: runs(sql) >= 2, what="it works")
    with psycopg.connect(pooler.url, autocommit=True, prepare_threshold=None) as other_client:
        assert {row(other_client, "select current_setting('enable_nestloop')") for _ in range(6)} == {("on",)}
    assert running.terminate() == 0
    assert row(sql, INCOMPLETE_SCHEDULES) == (0,)


def test_a_scheduler_with_limited_retries_gives_up(
    scheduler: StartScheduler, sql: psycopg.Connection, proxy: Proxy
) -> None:
    running = scheduler(env={"HORSIES_DATABASE_URL": proxy.url, "HORSIES_TEST_ATTEMPTS": "1"})
    wait_until_settled(sql)
    proxy.cut()
    assert running.wait() == 4
    assert any("gave up after 1 failed attempts" in line for line in running.logs)


def test_a_sleeping_scheduler_wakes_when_schedules_change(
    scheduler: StartScheduler, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    running = scheduler(env={"HORSIES_TEST_SCHEDULES": "0"})
    running.wait_for_log("0 schedules are declared")
    store(broker, declare("report", IntervalSchedule(seconds=1)))
    eventually(lambda: runs(sql) >= 1, what="a schedule that was stored later is served")
    broker.run(partial(pause_schedule, "report"))
    paused_at = runs(sql)
    broker.run(partial(resume_schedule, "report"))
    eventually(lambda: runs(sql) > paused_at, what="it continues")


def test_a_schedule_that_a_scheduler_cannot_read_is_served_once_it_was_changed(
    scheduler: StartScheduler, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    """A release that is newer than this scheduler has stored it."""
    every_second = declare("report", IntervalSchedule(seconds=1))
    broker.run(partial(create_schedule, every_second))
    sql.execute("""update horsies.schedules set pattern = '{"kind": "lunar"}' where name = 'report'""")
    running = scheduler("tests.apps.basic:app")
    running.wait_for_log("schedule 'report' cannot be served by this process")
    assert broker.run(partial(change_schedule, every_second))
    eventually(lambda: runs(sql) >= 1, what="it is served")


def test_an_app_without_declared_schedules_serves_the_stored_ones(
    scheduler: StartScheduler, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    store(broker, declare("report", IntervalSchedule(seconds=1)))
    running = scheduler("tests.apps.basic:app")
    running.wait_for_log("this app declares no schedules; stored schedules are served")
    eventually(lambda: runs(sql) >= 1, what="it is served")


SEVERAL = """
from horsies import *

def make(name, *schedules):
    app = Horsies(AppConfig(name=name, schedule=ScheduleConfig(schedules=[
        TaskSchedule(name=schedule, task_name=f"{schedule} task", pattern=IntervalSchedule(hours=1)) for schedule in schedules
    ])))
    for schedule in schedules:
        @app.task(f"{schedule} task")
        def run() -> TaskResult[int, TaskError]:
            return TaskResult(ok=1)
    return app

shop = make("shop", "report", "mail")
smaller_shop = make("shop", "report")
bank = make("bank", "count", "report")
unnamed = make(None, "tidy")
"""


@pytest.mark.promise("D3")
def test_apps_in_one_schema_do_not_change_each_other_s_schedules(
    database: str, sql: psycopg.Connection, tmp_path: Path
) -> None:
    (tmp_path / "several.py").write_text(SEVERAL)

    def restart(app: str, command: tuple[str, ...] = ("scheduler",)) -> list[str]:
        program = Program(*command, f"several:{app}", env={"HORSIES_DATABASE_URL": database}, cwd=tmp_path)
        try:
            program.wait_for_log("schedules are declared")
            assert program.terminate() == 0
        finally:
            program.close()
        return program.logs

    def stored() -> dict[str, tuple[str, bool, str]]:
        found = sql.execute("select name, app, declared, task_name from horsies.schedules").fetchall()
        return {name: (app, declared, task) for name, app, declared, task in found}

    def has_logged(logs: list[str], text: str) -> bool:
        return any(text in line for line in logs)

    expected = {
        "report": ("shop", True, "report task"),
        "mail": ("shop", True, "mail task"),
        "count": ("bank", True, "count task"),
        "tidy": ("several:unnamed", True, "tidy task"),
    }
    restart("shop")
    clash = "schedule 'report' belongs to app 'shop' and is not stored for app 'bank'"
    assert has_logged(restart("bank"), clash)
    restart("unnamed", ("worker", "--scheduler", "--processes=1"))
    assert stored() == expected
    for app in ("shop", "unnamed", "bank"):
        restart(app)
        assert stored() == expected
    assert has_logged(restart("smaller_shop"), "0 new, 0 changed, 1 removed ('mail')")
    assert stored() == expected | {"mail": ("shop", False, "mail task")}


def test_ctrl_c_stops_a_scheduler_during_an_outage(
    scheduler: StartScheduler, sql: psycopg.Connection, proxy: Proxy
) -> None:
    running = scheduler(env={"HORSIES_DATABASE_URL": proxy.url})
    wait_until_settled(sql)
    proxy.cut()
    running.wait_for_log("database unavailable")
    running.signal(signal.SIGINT)
    assert running.wait() == 0
    assert not any("Traceback" in line for line in running.logs)


async def test_a_scheduler_publishes_an_event_for_each_decided_slot(broker: PostgresBroker) -> None:
    await asyncio.to_thread(store, broker, declare("report", IntervalSchedule(hours=1)), now=LONG_AGO)
    received: list[events.ScheduleSlotDecided] = []
    is_enqueued = asyncio.Event()

    def receive_message(event: events.Event) -> None:
        if isinstance(event, events.ScheduleSlotDecided):
            received.append(event)
            if event.outcome == "ENQUEUED":
                is_enqueued.set()

    events.subscribe(receive_message)
    app = Horsies(AppConfig(broker=broker.config))
    try:
        async with (
            asyncio.timeout(10),
            asyncio.TaskGroup() as group,
            Scheduler(group, app, declared=None),
        ):
            await is_enqueued.wait()
    finally:
        events.unsubscribe(receive_message)
        await app.close_async()
    assert received == [
        events.ScheduleSlotDecided("report", "MISSED"),
        events.ScheduleSlotDecided("report", "ENQUEUED"),
    ]
