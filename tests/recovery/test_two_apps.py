"""Two apps in one schema and one queue, each with tasks and schedules, are restarted in turns: neither affects the other."""

from pathlib import Path

import psycopg
import pytest

from tests.fixtures.eventually import eventually
from tests.fixtures.journey import column
from tests.fixtures.workers import StartWorker
from tests.recovery.steps import insert_rows
from tests.worker.steps import statuses, wait_until_ended

SOURCE = """
import os
from datetime import time
from horsies import *

app = Horsies(AppConfig(
    name="{name}",
    broker=PostgresConfig(database_url=os.environ["HORSIES_DATABASE_URL"]),
    schedule=ScheduleConfig(schedules=[
        TaskSchedule(name="{name} ticks", task_name="{name}_tick", pattern=IntervalSchedule(hours=1)),
        TaskSchedule(name="{name} tocks", task_name="{name}_tick", pattern=DailySchedule(time=time(3))),
    ]),
))

@app.task("{name}_tick")
def tick() -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)

@app.task("{name}_work")
def work(value: int) -> TaskResult[str, TaskError]:
    return TaskResult(ok=f"{name} {{value}}")

@app.task("{shared}")
def shared(value: int) -> TaskResult[str, TaskError]:
    return TaskResult(ok="{name}")
"""
SCHEDULED = ("--scheduler",)


@pytest.mark.promise("D1", "D3")
def test_two_apps_that_are_restarted_in_turns_do_not_affect_each_other(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    apps: dict[str, str] = {}
    for name in ("shop", "bank"):
        file = tmp_path / f"{name}.py"
        file.write_text(SOURCE.format(name=name, shared=f"{name}_own"))
        apps[name] = f"{file}:app"
    running = {name: worker(app, options=SCHEDULED) for name, app in apps.items()}
    declared = ["bank ticks", "bank tocks", "shop ticks", "shop tocks"]
    stored = "select name || ' ' || app from horsies.schedules where declared order by 1"
    expected = [f"{schedule} {schedule.split()[0]}" for schedule in declared]
    eventually(lambda: column(sql, stored) == expected, 20, seen=lambda: column(sql, stored))
    sent = 0
    for name in ("shop", "bank", "shop", "bank"):
        for each in apps:
            insert_rows(sql, f"{each}_work", [{"value": number} for number in range(20)])
            sent += 20
        assert running[name].terminate() == 0
        running[name] = worker(apps[name], options=SCHEDULED)
        assert column(sql, stored) == expected
    assert wait_until_ended(sql, sent) == {"COMPLETED": sent}
    wrong = (
        "select count(*) from horsies.finished where result #>> '{}' not like split_part(task_name, '_', 1) || ' %%'"
    )
    assert column(sql, wrong) == [0]
    assert column(sql, "select distinct attempts from horsies.finished") == [1]
    assert not any("same name" in line for program in running.values() for line in program.logs)


@pytest.mark.promise("D3")
def test_a_task_name_that_both_apps_use_is_logged_at_start_up(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    for name in ("shop", "bank"):
        (tmp_path / f"{name}.py").write_text(SOURCE.format(name=name, shared="count"))
    worker(f"{tmp_path / 'shop.py'}:app")
    second = worker(f"{tmp_path / 'bank.py'}:app")
    second.wait_for_log("WARNING.*app 'shop' has tasks of the same name in the same queues as app 'bank': count")
    assert statuses(sql) == {}
