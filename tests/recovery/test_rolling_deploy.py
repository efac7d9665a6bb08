"""A rolling deploy: producers and workers of two releases of one app run side by side, and no task is lost.

The new release adds a task, renames one and keeps its old name as an alias, adds a parameter, removes a task, and changes a workflow.
"""

import subprocess
import sys
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.fixtures.eventually import eventually
from tests.fixtures.journey import column
from tests.fixtures.workers import StartWorker
from tests.worker.steps import statuses

STAGES = 4
TASKS, RUNS = 250, 13
"""That each producer sends in a stage."""

HEAD = """
import os, sys
from datetime import datetime, timedelta, timezone
from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult, from_node

app = Horsies(AppConfig(broker=PostgresConfig(database_url=os.environ["HORSIES_DATABASE_URL"])))

@app.task("unchanged")
def unchanged(value: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=value)
"""
OLD = """
@app.task("mail")
def mail(address: str) -> TaskResult[str, TaskError]:
    return TaskResult(ok=f"old {address}")

@app.task("resize")
def resize(image: int) -> TaskResult[str, TaskError]:
    return TaskResult(ok=f"{image}")

@app.task("removed")
def removed(value: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=value)

def send(number):
    soon = datetime.now(timezone.utc) + timedelta(seconds=15)
    calls = [
        lambda: unchanged.send(number),
        lambda: mail.send(f"{number}"),
        lambda: resize.send(number),
        lambda: removed.with_options(good_until=soon).send(number),
    ]
    calls[number % len(calls)]()

def start(number):
    first = unchanged.node(node_id="first")(value=number)
    last = resize.node(node_id="last")(image=from_node(first))
    app.workflow("album", tasks=[first, last], output=last).start()
"""
NEW = """
@app.task("send_mail", aliases=["mail"])
def send_mail(address: str) -> TaskResult[str, TaskError]:
    return TaskResult(ok=f"new {address}")

@app.task("resize")
def resize(image: int, width: int = 800) -> TaskResult[str, TaskError]:
    return TaskResult(ok=f"{image} {width}")

@app.task("added")
def added(value: str) -> TaskResult[str, TaskError]:
    return TaskResult(ok=value)

def send(number):
    calls = [
        lambda: unchanged.send(number),
        lambda: send_mail.send(f"{number}"),
        lambda: resize.send(number, width=9),
        lambda: added.send(f"{number}"),
    ]
    calls[number % len(calls)]()

def start(number):
    first = unchanged.node(node_id="first")(value=number)
    middle = resize.node(node_id="middle")(image=from_node(first), width=5)
    last = added.node(node_id="last")(value=from_node(middle))
    app.workflow("album", tasks=[first, middle, last], output=last).start()
"""
PRODUCE = """
if __name__ == "__main__":
    for line in sys.stdin:
        tasks, runs = map(int, line.split())
        for number in range(max(tasks, runs)):
            if number < runs:
                start(number)
            if number < tasks:
                send(number)
        print("sent", flush=True)
"""


class Producer:
    def __init__(self, file: Path, database: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(file)],
            env={"HORSIES_DATABASE_URL": database, "PATH": ""},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self) -> None:
        """Send the tasks and the workflows of a stage."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{TASKS} {RUNS}\n")
        self.process.stdin.flush()

    def wait(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "sent\n"


@contextmanager
def producers(database: str, *files: Path) -> Generator[list[Producer]]:
    made = [Producer(file, database) for file in files]
    try:
        yield made
    finally:
        for producer in made:
            producer.process.kill()
            producer.process.communicate()


@pytest.mark.promise("D1", "D2")
@pytest.mark.parametrize("prefetch", [0, "auto"])
def test_a_rolling_deploy_loses_no_task_and_fails_none(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path, database: str, prefetch: int | str
) -> None:
    files: list[Path] = []
    for name, source in (("old", OLD), ("new", NEW)):
        file = tmp_path / name / "shop.py"
        file.parent.mkdir()
        head = HEAD.replace("AppConfig(", f"AppConfig(prefetch_buffer={prefetch!r}, claim_lease_ms=5_000, ")
        file.write_text(head + source + PRODUCE)
        files.append(file)
    old, new = (f"{file}:app" for file in files)

    running = [worker(old, options=("--max-tasks-per-child=0",)) for _ in range(STAGES)]
    with producers(database, *files) as sending:
        for stage in range(STAGES):
            for producer in sending:
                producer.begin()
            # Alternate: start the new worker first, or stop the old one first, as deployments without capacity for both do.
            if stage % 2:
                assert running[stage].terminate() == 0
                worker(new, options=("--max-tasks-per-child=0",))
            else:
                worker(new, options=("--max-tasks-per-child=0",))
                assert running[stage].terminate() == 0
            for producer in sending:
                producer.wait()
    # As soon as the last worker runs the new release, all tasks that it knows continue without a wait.
    left = "select distinct task_name from horsies.tasks"
    eventually(lambda: set(column(sql, left)) <= {"removed"}, 90, seen=lambda: (column(sql, left), statuses(sql)))
    eventually(lambda: not column(sql, left), 60, what="the tasks that no running release knows expire")
    runs = Counter(column(sql, "select status from horsies.workflows"))
    assert runs == {"COMPLETED": 2 * STAGES * RUNS}
    endings = Counter(
        sql.execute("select task_name, status, error_code from horsies.finished where node_id is null").fetchall()
    )
    assert sum(endings.values()) == 2 * STAGES * TASKS
    assert {ending for ending in endings if ending[1] != "COMPLETED"} <= {("removed", "EXPIRED", "TASK_EXPIRED")}
    assert column(sql, "select distinct attempts from horsies.finished where status = 'COMPLETED'") == [1]
