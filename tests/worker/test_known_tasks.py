"""Several releases of an app at the same time: what one of them cannot run is left to another, and nothing is lost."""

import json
import os
import re
import secrets
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

import psycopg
import pytest

from horsies.db.broker import PostgresBroker
from horsies.db.statement import rows
from horsies.model.task import Claim
from horsies.tasks.unknown import set_aside_claims, unknown_task_claim
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import ME, OTHER, column, row
from tests.fixtures.processes import run_module
from tests.fixtures.workers import ROOT, StartWorker
from tests.recovery.steps import insert_rows
from tests.worker.steps import statuses, wait_until_ended

ECHO = """
    @app.task("echo")
    def echo(value: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=value)
"""
ADDED = """
    @app.task("added")
    def added(value: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=value)
"""
SLY = """
    import os
    if os.environ["HORSIES_TEST_PARENT"] == str(os.getppid()):
        @app.task("added")
        def added(value: int) -> TaskResult[int, TaskError]:
            return TaskResult(ok=value)
"""
OLD_RESIZE = """
    @app.task("resize")
    def resize(image: int) -> TaskResult[str, TaskError]:
        return TaskResult(ok=f"old {image}")
"""
NEW_RESIZE = """
    @app.task("resize")
    def resize(image: int, width: int) -> TaskResult[str, TaskError]:
        return TaskResult(ok=f"new {image} {width}")
"""
TEXT_RESIZE = """
    @app.task("resize")
    def resize(image: str) -> TaskResult[str, TaskError]:
        return TaskResult(ok=f"text {image}")
"""


def release(folder: Path, name: str, *tasks: str, recovery: str = "", **fields: object) -> str:
    """Write the source of an app. Returns its locator."""
    given = "".join(f", {field}={value!r}" for field, value in fields.items())
    head = f"""
    import os
    from horsies import AppConfig, Horsies, PostgresConfig, RecoveryConfig, RetryPolicy, TaskError, TaskResult

    app = Horsies(AppConfig(
        broker=PostgresConfig(database_url=os.environ["HORSIES_DATABASE_URL"]), recovery=RecoveryConfig({recovery}){given}
    ))
    """
    file = folder / f"{name}.py"
    file.write_text(dedent(head) + "".join(dedent(task) for task in tasks))
    return f"{file}:app"


def waiting(sql: psycopg.Connection) -> list[tuple[Any, ...]]:
    """Return the tasks that wait for a worker that can run them: name, and whether their arguments were refused."""
    return sql.execute(
        "select task_name, refused_by is not null, count(*) from horsies.tasks "
        "where unknown_since is not null and not ready group by 1, 2 order by 1, 2"
    ).fetchall()


def results(sql: psycopg.Connection, name: str) -> list[Any]:
    """Return the result or the error code of all tasks of this name that have ended."""
    rows = sql.execute(
        "select coalesce(result #>> '{}', error_code) from horsies.finished where task_name = %s order by id", [name]
    ).fetchall()
    return [value for (value,) in rows]


def attempts(sql: psycopg.Connection) -> set[int]:
    return {count for (count,) in sql.execute("select attempts from horsies.finished").fetchall()}


def horsies(database: str, *words: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "HORSIES_DATABASE_URL": database}
    return run_module("horsies.cli.main", *words, env=env, cwd=ROOT, timeout_s=60)


# -- unknown tasks


@pytest.mark.promise("D1")
@pytest.mark.parametrize("prefetch", [0, 5, "auto"])
def test_a_task_that_one_worker_does_not_know_is_left_to_one_that_does(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path, prefetch: int | str
) -> None:
    worker(release(tmp_path, "old", ECHO, prefetch_buffer=prefetch, claim_lease_ms=5_000), processes=2)
    worker(release(tmp_path, "new", ECHO, ADDED, prefetch_buffer=prefetch, claim_lease_ms=5_000), processes=2)
    for number in range(40):
        insert_rows(sql, "added" if number % 2 else "echo", [{"value": number}])
    assert wait_until_ended(sql, 40) == {"COMPLETED": 40}
    assert sorted(map(int, results(sql, "added"))) == list(range(1, 40, 2))
    assert attempts(sql) == {1}, "a released claim is not counted"


@pytest.mark.promise("D1")
def test_a_task_that_no_worker_knows_is_shown_and_runs_when_a_worker_knows_it(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path, database: str
) -> None:
    old = release(tmp_path, "old", ECHO)
    worker(old, processes=2)
    insert_rows(sql, "added", [{"value": number} for number in range(30)])
    insert_rows(sql, "echo", [{"value": number} for number in range(30)])
    eventually(lambda: statuses(sql) == {"COMPLETED": 30, "PENDING": 30}, 30, seen=lambda: statuses(sql))
    eventually(lambda: waiting(sql) == [("added", False, 30)], 30, seen=lambda: waiting(sql))

    shown = json.loads(horsies(database, "status", "--json").stdout)
    assert [(line["task_name"], line["count"]) for line in shown["unknown"]] == [("added", 30)]
    assert re.search(r"30 wait for .*: no worker knows added\n", horsies(database, "status").stdout)
    found = json.loads(horsies(database, "doctor", "--json").stdout)
    assert [each["data"]["count"] for each in found["findings"] if each["code"] == "TASKS_UNKNOWN"] == [30]

    worker(release(tmp_path, "new", ECHO, ADDED), processes=2)
    assert wait_until_ended(sql, 60) == {"COMPLETED": 60}
    assert attempts(sql) == {1}
    assert waiting(sql) == []


@pytest.mark.promise("D1")
@pytest.mark.timeout(120)  # it waits for a dead worker, and then until the other one looks again
def test_a_task_left_to_another_worker_waits_when_that_worker_is_gone(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    worker(release(tmp_path, "old", ECHO))
    busy = worker(release(tmp_path, "new", ECHO, ADDED, BUSY), processes=1)
    insert_rows(sql, "busy", [{"file": str(tmp_path / "go")}])
    # Not only RUNNING: the other worker claims it, too, and gives it back.
    eventually((tmp_path / "go.begun").exists, 20)
    insert_rows(sql, "added", [{"value": 1}])
    eventually(lambda: row(sql, "select claim_no from horsies.tasks where task_name = 'added'")[0] > 0, 20)
    assert waiting(sql) == [], "the other one will run it"
    busy.kill()
    stored = "select status, ready, claim_no, claimed_by, unknown_since, clock_timestamp() from horsies.tasks where task_name = 'added'"
    eventually(lambda: waiting(sql) == [("added", False, 1)], 90, seen=lambda: row(sql, stored))


BUSY = """
    @app.task("busy")
    def busy(file: str) -> TaskResult[int, TaskError]:
        import pathlib, time
        pathlib.Path(file + ".begun").touch()
        while not pathlib.Path(file).exists():
            time.sleep(0.05)
        return TaskResult(ok=1)
"""


@pytest.mark.promise("D1", "C22")
def test_a_task_that_no_worker_knows_expires_at_its_good_until(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    worker(release(tmp_path, "old", ECHO))
    insert_rows(sql, "added", [{"value": 1}], good_until="now() + interval '3 seconds'")
    assert wait_until_ended(sql, 1) == {"EXPIRED": 1}


@pytest.mark.promise("D1", "W8")
def test_a_task_that_no_worker_knows_fails_after_the_configured_time(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    worker(release(tmp_path, "old", ECHO, recovery="unknown_task_patience_ms=0, maintenance_ms=100"))
    insert_rows(sql, "added", [{"value": 1}])
    assert wait_until_ended(sql, 1) == {"FAILED": 1}
    assert results(sql, "added") == ["WORKER_RESOLUTION_ERROR"]
    (message,) = row(sql, "select error ->> 'message' from horsies.finished")
    assert "'added'" in message
    assert "discover_tasks" in message


@pytest.mark.promise("D1")
def test_many_unknown_tasks_are_set_aside_together(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    insert_rows(sql, "added", [{"value": number} for number in range(3_000)])
    insert_rows(sql, "echo", [{"value": 1}])
    worker(release(tmp_path, "old", ECHO))
    expected = {"COMPLETED": 1, "PENDING": 3_000}
    eventually(lambda: statuses(sql) == expected, 30, seen=lambda: statuses(sql))
    assert waiting(sql) == [("added", False, 3_000)]
    (claims,) = row(sql, "select sum(claim_no) from horsies.tasks")
    assert claims < 10, "not one by one"


@pytest.mark.promise("D1")
def test_unknown_tasks_are_set_aside_also_where_no_worker_would_claim_them_soon(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    """In another priority, and far behind others: the maintenance leader reads the whole table."""
    insert_rows(sql, "added", [{"value": number} for number in range(20)])
    insert_rows(sql, "added", [{"value": number} for number in range(20)], priority="200")
    insert_rows(sql, "busy", [{"file": str(tmp_path / "go")}], priority="150")
    worker(release(tmp_path, "old", ECHO, BUSY))
    eventually(lambda: waiting(sql) == [("added", False, 40)], 30, seen=lambda: waiting(sql))
    assert statuses(sql) == {"PENDING": 40, "RUNNING": 1}
    (tmp_path / "go").touch()


@pytest.mark.promise("D1")
def test_a_task_that_only_a_stopping_worker_knows_is_unknown(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    """A stopping worker claims no more, however long it waits for running tasks."""
    leaving = worker(release(tmp_path, "new", ADDED, BUSY))
    worker(release(tmp_path, "old", ECHO))
    insert_rows(sql, "busy", [{"file": str(tmp_path / "go")}])
    eventually(lambda: statuses(sql).get("RUNNING") == 1, 20)
    leaving.signal(signal.SIGTERM)
    leaving.wait_for_log("shutdown: claiming no more")
    insert_rows(sql, "added", [{"value": 1}])
    eventually(lambda: waiting(sql) == [("added", False, 1)], 60, seen=lambda: waiting(sql))
    (tmp_path / "go").touch()
    assert leaving.wait() == 0


@pytest.mark.promise("D1")
def test_a_task_that_the_children_do_not_have_is_left_to_other_workers(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    """Only the parent has it, as when code is replaced while a worker runs."""
    worker(release(tmp_path, "sly", ECHO, SLY), env={"HORSIES_TEST_PARENT": str(os.getpid())}, processes=2)
    worker(release(tmp_path, "new", ECHO, ADDED))
    insert_rows(sql, "added", [{"value": number} for number in range(20)])
    assert wait_until_ended(sql, 20) == {"COMPLETED": 20}
    assert attempts(sql) == {1}


@pytest.mark.promise("D1", "D6")
def test_two_names_that_no_task_can_have_do_not_delay_each_other(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    names = ["".join(secrets.token_hex(16) for _ in range(200)) for _ in range(3)]
    for name in names:
        insert_rows(sql, name, [{}, {}])
    insert_rows(sql, "echo", [{"value": 1}])
    worker(release(tmp_path, "old", ECHO))
    assert wait_until_ended(sql, 7) == {"COMPLETED": 1, "FAILED": 6}


@pytest.mark.promise("D2")
def test_a_claim_that_another_worker_has_taken_is_not_set_aside(
    broker: PostgresBroker, sql: psycopg.Connection, database: str
) -> None:
    """While the statement waited for a lock, another worker claimed the task."""
    insert_rows(sql, "added", [{}, {}], status="'RUNNING'", claimed_by=f"'{ME}'", claim_no="1")
    first, second = sorted(map(str, column(sql, "select id::text from horsies.tasks")))
    unfit = [unknown_task_claim(held_claim(task_id)) for task_id in (first, second)]
    with psycopg.connect(database) as other, ThreadPoolExecutor(1) as threads:
        other.execute("select from horsies.tasks where id = %s for update", [first])
        setting_aside = threads.submit(broker.run, partial(rows, set_aside_claims(ME, unfit)))
        blocked = "select count(*) from pg_locks where not granted"
        eventually(lambda: row(sql, blocked) == (1,), 20)
        sql.execute("update horsies.tasks set claim_no = 2, claimed_by = %s where id = %s", [OTHER, second])
        other.rollback()
        answer = setting_aside.result(20)
    assert answer == [(first, "unknown")]
    assert row(sql, "select status, claimed_by::text from horsies.tasks where id = %s", second) == ("RUNNING", OTHER)


def held_claim(task_id: str) -> Claim:
    return Claim(task_id, 1, "added", "default", 100, datetime.now(UTC), 1, "{}")


@pytest.mark.promise("D1", "D6")
def test_a_task_with_a_name_that_no_task_can_have_fails_at_once(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    """Its name is too long for an index."""
    name = "".join(secrets.token_hex(16) for _ in range(500))
    insert_rows(sql, name, [{}])
    insert_rows(sql, "echo", [{"value": 1}])
    worker(release(tmp_path, "old", ECHO))
    assert wait_until_ended(sql, 2) == {"COMPLETED": 1, "FAILED": 1}
    assert results(sql, name) == ["WORKER_RESOLUTION_ERROR"]


@pytest.mark.promise("D1")
def test_a_worker_without_tasks_logs_an_error_and_exits(worker: StartWorker, tmp_path: Path) -> None:
    made = worker(release(tmp_path, "empty"), until_ready=False)
    assert made.wait() == 1
    assert any("has no task" in line and "discover_tasks" in line for line in made.logs), made.logs


# -- changed parameters


@pytest.mark.promise("D2")
def test_a_task_with_arguments_of_another_release_waits_for_a_worker_of_that_release(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path, database: str
) -> None:
    """Also when no such worker runs yet: producers are often deployed first."""
    worker(release(tmp_path, "old", OLD_RESIZE, ECHO), processes=2)
    insert_rows(sql, "resize", [{"image": number, "width": 9} for number in range(10)])
    insert_rows(sql, "resize", [{"image": number} for number in range(10)])
    insert_rows(sql, "echo", [{"value": 1}])
    eventually(lambda: statuses(sql) == {"COMPLETED": 11, "PENDING": 10}, 30, seen=lambda: statuses(sql))
    eventually(lambda: waiting(sql) == [("resize", True, 10)], 30, seen=lambda: waiting(sql))
    found = json.loads(horsies(database, "doctor", "--json").stdout)
    assert "TASKS_CHANGED" in {each["code"] for each in found["findings"]}

    worker(release(tmp_path, "new", NEW_RESIZE, ECHO), processes=2)
    assert wait_until_ended(sql, 21) == {"COMPLETED": 21}
    assert attempts(sql) == {1}
    assert min(results(sql, "resize")) == "new 0 9"


@pytest.mark.promise("D2")
def test_values_that_one_release_cannot_read_are_offered_to_another(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    worker(release(tmp_path, "old", OLD_RESIZE), processes=2)
    worker(release(tmp_path, "new", TEXT_RESIZE), processes=2)
    insert_rows(sql, "resize", [{"image": f"no number {number}"} for number in range(20)])
    assert wait_until_ended(sql, 20) == {"COMPLETED": 20}
    assert {value.split()[0] for value in results(sql, "resize")} == {"text"}
    assert attempts(sql) == {1}


@pytest.mark.promise("D2", "W8")
def test_values_that_every_live_worker_refuses_fail_at_once(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    app = release(tmp_path, "old", OLD_RESIZE)
    worker(app)
    worker(app)
    insert_rows(sql, "resize", [{"image": "no number"}])
    assert wait_until_ended(sql, 1) == {"FAILED": 1}
    assert results(sql, "resize") == ["WORKER_SERIALIZATION_ERROR"]


@pytest.mark.promise("D2", "W8")
def test_a_task_with_arguments_of_a_release_that_never_starts_fails_after_the_configured_time(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    worker(release(tmp_path, "old", OLD_RESIZE, recovery="changed_task_patience_ms=0, maintenance_ms=100"))
    insert_rows(sql, "resize", [{"image": 1, "width": 9}])
    assert wait_until_ended(sql, 1) == {"FAILED": 1}
    assert results(sql, "resize") == ["WORKER_SERIALIZATION_ERROR"]
    (message,) = row(sql, "select error ->> 'message' from horsies.finished")
    assert "width" in message


@pytest.mark.promise("D2")
def test_a_task_refused_by_both_releases_fails(worker: StartWorker, sql: psycopg.Connection, tmp_path: Path) -> None:
    worker(release(tmp_path, "old", OLD_RESIZE))
    worker(release(tmp_path, "new", TEXT_RESIZE))
    insert_rows(sql, "resize", [{"image": [1]}])
    assert wait_until_ended(sql, 1) == {"FAILED": 1}
    assert results(sql, "resize") == ["WORKER_SERIALIZATION_ERROR"]


# -- renamed tasks


@pytest.mark.promise("D1")
def test_a_renamed_task_runs_tasks_sent_under_its_old_name(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    renamed = ECHO.replace('"echo"', '"repeat", aliases=["echo"]')
    worker(release(tmp_path, "new", renamed))
    insert_rows(sql, "echo", [{"value": 1}])
    insert_rows(sql, "repeat", [{"value": 2}])
    assert wait_until_ended(sql, 2) == {"COMPLETED": 2}
