"""What the product's first documents tell users to type, as they type it."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import psycopg
import pytest

from horsies import (
    AppConfig,
    Horsies,
    PostgresBroker,
    PostgresConfig,
    QueueMode,
    TaskError,
    TaskResult,
    WorkerConfig,
    WorkerResilienceConfig,
)
from tests.fixtures.processes import run_module
from tests.fixtures.workers import READY, Program

INSTANCE = """
import os
from horsies import AppConfig, Horsies, PostgresConfig

config = AppConfig(broker=PostgresConfig(database_url=os.environ["HORSIES_DATABASE_URL"]))
app = Horsies(config)
app.discover_tasks(["myapp.tasks", "myapp.jobs.worker_tasks"])
"""
TASKS = """
from horsies import TaskError, TaskResult
from myapp.instance import app

@app.task("add")
def add(left: int, right: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=left + right)
"""
JOBS = TASKS.replace('"add"', '"subtract"').replace("def add", "def subtract").replace("left + right", "left - right")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A package `myapp`, as the documents have it."""
    for name, source in {
        "__init__": "",
        "instance": INSTANCE,
        "tasks": TASKS,
        "jobs/__init__": "",
        "jobs/worker_tasks": JOBS,
    }.items():
        file = tmp_path / "myapp" / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(source)
    return tmp_path


@pytest.fixture
def programs() -> Generator[list[Program]]:
    started: list[Program] = []
    yield started
    for program in started:
        program.close()


# -- the command line


@pytest.mark.promise("A9", "W1", "W2")
@pytest.mark.parametrize(
    "options",
    [
        "--processes=8",
        "--processes=8 --max-tasks-per-child=500",
        "--processes=8 --max-tasks-per-child=0",
        "--processes=6 --max-memory-per-child-mb=200",
        "--processes=6 --max-tasks-per-child=500 --max-memory-per-child-mb=200",
        "--processes=6 --max-tasks-per-child=500 --max-memory-per-child-mb=180",
        "--processes=6 --max-tasks-per-child=0 --max-memory-per-child-mb=180",
        "--max-claim-batch=4",
        "--max-claim-per-worker=10",
    ],
)
def test_a_worker_starts_with_these_options_and_runs_the_discovered_tasks(
    project: Path, database: str, sql: psycopg.Connection, programs: list[Program], options: str
) -> None:
    worker = Program(
        "worker", "myapp.instance:app", *options.split(), env={"HORSIES_DATABASE_URL": database}, cwd=project
    )
    programs.append(worker)
    worker.wait_for_log(READY, 60)
    (project / "send.py").write_text(
        "from myapp.tasks import add; from myapp.jobs.worker_tasks import subtract; "
        "print(add.send(3, 2).get(20000).unwrap(), subtract.send(3, 2).get(20000).unwrap())"
    )
    env = {**os.environ, "HORSIES_DATABASE_URL": database}
    sent = run_module("send", env=env, cwd=project, timeout_s=60)
    assert sent.stdout == "5 1\n", sent.stderr
    assert worker.terminate() == 0


@pytest.mark.promise("C21")
def test_a_worker_logs_its_concurrency_settings(project: Path, database: str, programs: list[Program]) -> None:
    instance = project / "myapp" / "instance.py"
    instance.write_text(instance.read_text().replace("AppConfig(broker", "AppConfig(cluster_wide_cap=20, broker"))
    worker = Program(
        "worker", "myapp.instance:app", "--processes=4", env={"HORSIES_DATABASE_URL": database}, cwd=project
    )
    programs.append(worker)
    worker.wait_for_log(
        "Concurrency config: processes=4, cluster_wide_cap=20, max_claim_per_worker=4, max_claim_batch=0", 30
    )


# -- configuration


@pytest.mark.promise("C9", "C10")
def test_queues_with_limits() -> None:
    from horsies.core.models.queues import CustomQueueConfig  # noqa: PLC0415 - as it is written there

    config = AppConfig(
        queue_mode=QueueMode.CUSTOM,
        custom_queues=[
            CustomQueueConfig(name="api_calls", priority=1, max_concurrency=5),
            CustomQueueConfig(name="low", priority=100, max_concurrency=2),
        ],
        broker=PostgresConfig(database_url="postgresql://localhost/horsies"),
    )
    assert [(queue.name, queue.max_concurrency) for queue in config.queues] == [("api_calls", 5), ("low", 2)]


@pytest.mark.promise("C11", "C12")
@pytest.mark.parametrize("more", [{}, {"prefetch_buffer": 0}, {"queue_mode": QueueMode.DEFAULT}])
def test_a_cluster_wide_cap(more: dict[str, object]) -> None:
    config = AppConfig.for_database_url("postgresql://localhost/horsies", cluster_wide_cap=50, **more)
    assert (config.cluster_wide_cap, config.prefetch_buffer) == (50, 0)


@pytest.mark.promise("C13", "C14")
def test_a_prefetch_buffer_with_its_lease() -> None:
    config = AppConfig(
        prefetch_buffer=4, claim_lease_ms=5000, broker=PostgresConfig(database_url="postgresql://localhost/horsies")
    )
    assert (config.prefetch_buffer, config.claim_lease_ms) == (4, 5000)


@pytest.mark.promise("C9", "C11")
def test_queues_with_limits_and_a_cluster_wide_cap() -> None:
    from horsies.core.models.queues import CustomQueueConfig  # noqa: PLC0415 - as it is written there

    config = AppConfig(
        queue_mode=QueueMode.CUSTOM,
        custom_queues=[
            CustomQueueConfig(name="stripe", priority=1, max_concurrency=3),
            CustomQueueConfig(name="email", priority=50, max_concurrency=10),
            CustomQueueConfig(name="reports", priority=100, max_concurrency=2),
        ],
        cluster_wide_cap=15,
        broker=PostgresConfig(database_url="postgresql://localhost/horsies"),
    )
    assert config.cluster_wide_cap == 15


@pytest.mark.promise("W13")
def test_resilience() -> None:
    config = AppConfig(
        broker=PostgresConfig(database_url="postgresql://localhost/horsies"),
        resilience=WorkerResilienceConfig(
            db_retry_initial_ms=500,
            db_retry_max_ms=30_000,
            db_retry_max_attempts=0,
            notify_poll_interval_ms=5_000,
        ),
    )
    assert config.resilience.db_retry_max_ms == 30_000


# -- from code


@pytest.mark.promise("W2")
def test_modules_and_files_to_discover() -> None:
    app = Horsies()
    app.discover_tasks(["myapp.tasks", "myapp.jobs.worker_tasks"])
    app.discover_tasks(["tasks.py", "more_tasks.py"])
    assert app.task_modules == ("myapp.tasks", "myapp.jobs.worker_tasks", "tasks.py", "more_tasks.py")


@pytest.mark.promise("W3")
def test_sends_are_suppressed_around_imports(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    app = Horsies(AppConfig(broker=broker.config))

    @app.task("add")
    def add(left: int, right: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=left + right)

    app.suppress_sends(True)  # noqa: FBT003 - as it is written there
    add.send(1, 2)
    app.suppress_sends(False)  # noqa: FBT003 - the same
    add.send(3, 4)
    app.close()
    sent = sql.execute("select args from horsies.tasks").fetchall()
    assert sent == [({"left": 3, "right": 4},)]


@pytest.mark.promise("W15")
@pytest.mark.parametrize("call", ["run_worker()", "run_worker_with(WorkerConfig(concurrency=8))"])
def test_a_worker_is_run_from_code(project: Path, database: str, sql: psycopg.Connection, call: str) -> None:
    script = project / "serve.py"
    script.write_text(
        "from horsies import WorkerConfig\nfrom myapp.instance import app\n"
        f'if __name__ == "__main__":\n    raise SystemExit(app.{call})\n'
    )
    worker = subprocess.Popen(
        [sys.executable, str(script)],
        cwd=project,
        env={**os.environ, "HORSIES_DATABASE_URL": database},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert worker.stderr is not None
        assert any(READY in line for line in worker.stderr)
        (seen,) = sql.execute("select concurrency from horsies.workers").fetchall()
        assert seen == (8 if "concurrency" in call else 1,)
        worker.terminate()
        worker.communicate(timeout=30)
        assert worker.returncode == 0
    finally:
        worker.kill()
        worker.communicate()


@pytest.mark.promise("W15")
def test_a_worker_configuration_has_the_documented_fields() -> None:
    config = WorkerConfig(
        queues=["default"],
        processes=2,
        concurrency=8,
        max_claim_batch=2,
        max_claim_per_worker=10,
        app_locator="myapp.instance:app",
        imports=["myapp.tasks"],
        loglevel="INFO",
        dsn="postgresql://localhost/horsies",
        queue_priorities={"default": 1},
        queue_max_concurrency={"default": 5},
        coalesce_notifies=10,
    )
    assert config.concurrency == 8


@pytest.mark.promise("W16")
def test_the_schema_is_prepared_without_an_app(empty_database: str) -> None:
    config = PostgresConfig(database_url=empty_database)
    broker = PostgresBroker.connect_with(config)
    broker.ensure_schema_initialized()
    assert broker.migrate() == []

    async def prepare() -> None:
        other = PostgresBroker.connect_with(config)
        await other.ensure_schema_initialized_async()
        await other.close_async()

    asyncio.run(prepare())
    broker.close()


@pytest.mark.promise("A3", "A4")
def test_a_task_is_sent_and_its_result_awaited(project: Path, database: str, programs: list[Program]) -> None:
    worker = Program("worker", "myapp.instance:app", env={"HORSIES_DATABASE_URL": database}, cwd=project)
    programs.append(worker)
    worker.wait_for_log(READY, 60)
    script = (
        "import asyncio, json\nfrom myapp.tasks import add\n"
        "handle = add.send(1, 2)\nfirst = handle.get()\nagain = handle.get()\n"
        "async def main():\n    handle = await add.send_async(3, 4)\n    return await handle.get_async()\n"
        "print(json.dumps([first.ok_value, again.ok_value, asyncio.run(main()).ok_value]))\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", script],
        cwd=project,
        env={**os.environ, "HORSIES_DATABASE_URL": database},
        capture_output=True,
        text=True,
        check=False,
    )
    assert json.loads(shown.stdout or "null") == [3, 3, 7], shown.stderr
