"""Rows that no release of horsies has written: every list, detail, status and doctor can still be read, as text and as JSON."""

import contextlib
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from horsies import AppConfig, Horsies
from horsies.cli.output import show_json, to_text
from horsies.db.pooler import EARLIEST, LATEST
from horsies.model.config import PostgresConfig
from horsies.ops.api import Ops
from tests.cli.conftest import run

NOW = datetime.now(UTC)
MINUTE = NOW.replace(second=0, microsecond=0) - timedelta(minutes=5)
TIMES = ["infinity", "-infinity", "4714-11-24 00:00:00+00 BC", "294276-12-31 23:59:59.999999+00"]
JSON = [
    "null", "[]", "5", '"x"', "1e400", '[{"tasks": 5}]', "[" * 4_000 + "]" * 4_000, '{"a":' + "9" * 5_000 + "}",
    '{"message": 5, "error_code": 7, "data": [1]}', '{"message": "\\u0000"}',
]  # fmt: skip
ODD: dict[str, list[Any]] = {
    "timestamptz": TIMES,
    "int4": [2**31 - 1, -(2**31)],
    "int8": [2**63 - 1],
    "_int4": [[], [[1, 2], [3, 4]], [2**31 - 1] * 27, [-1] * 27, [1] * 2_000],
    "float4": ["NaN", "Infinity", "-Infinity"],
    "json": JSON,
    "jsonb": JSON[:6],
    "_json": [[], [None], *([text] for text in JSON), ['{"attempt": "x", "error_code": 5, "error": 5, "worker": 5, "started_at": "infinity", "ended_at": 1}']],
    "_text": [[], [""]],
    "_uuid": [[], [None]],
    "text": ["", "\x01\u202e", "x" * 100_000],
}  # fmt: skip
"""Odd values, by the type of the column."""


def new_rows() -> dict[str, dict[str, Any]]:
    """A row of each table."""
    run, error = str(uuid4()), '{"error_code": "X", "message": "m", "data": null}'
    times = {"sent_at": NOW, "enqueued_at": NOW, "started_at": NOW, "finished_at": NOW}
    place = {"hostname": "h", "pid": 1, "processes": 1, "concurrency": 1, "queues": ["q"]}
    numbers = (
        "tasks_running",
        "tasks_claimed",
        "memory_usage_mb",
        "children_memory_mb",
        "cpu_percent",
        "children_cpu_percent",
    )
    sent = {"task_name": "t", "queue_name": "q", "priority": 1, "args": "{}"}
    return {
        "tasks": {"task_name": "t", "queue_name": "q"},
        "finished": sent | times | {"id": str(uuid4()), "status": "FAILED", "attempts": 1, "claim_no": 1, "error_code": "X", "error": error},
        "workers": place | {"id": str(uuid4()), "library_version": "1"},
        "worker_states": place | {"worker_id": str(uuid4()), "worker_started_at": NOW} | dict.fromkeys(numbers, 1),
        "queues": {"name": f"q{uuid4()}"},
        "workflows": {"id": run, "root_id": run, "name": "w", "unresolved": 0, "status": "PAUSED", "on_error": "pause"},
        "schedules": sent | {
            "name": f"s{uuid4()}", "pattern": '{"kind": "odd"}', "timezone": "UTC", "catch_up_missed": False, "max_catch_up_runs": 1, "jitter_ms": 0,
            "overlap": "x", "enabled": True,
        },
        "schedule_runs": {"schedule_name": "s", "outcome": "ENQUEUED", "task_id": str(uuid4())},
        "dead_workers": {
            "id": str(uuid4()), "hostname": "h", "pid": 1, "library_version": "1", "queues": ["q"], "started_at": NOW, "last_heartbeat_at": NOW,
            "tasks_held": 1, "task_ids": [str(uuid4())],
        },
        "task_minutes": {
            "minute": MINUTE, "queue_name": f"q{uuid4()}", "task_name": "t", "completed": 1, "failed": 1, "cancelled": 0, "expired": 0, "retried": 0,
            "waited": [1] * 27, "ran": [1] * 27,
        },
        "error_minutes": {
            "minute": MINUTE, "task_name": f"t{uuid4()}", "error_code": "x", "message": "m", "count": 1, "first_at": NOW, "last_at": NOW,
            "example_id": str(uuid4()),
        },
        "audit": {"actor": "a", "action": "b", "target": "c"},
    }  # fmt: skip


def insert(sql: psycopg.Connection, table: str, **values: Any) -> None:
    """Insert a row, unless a constraint refuses it."""
    query = f"insert into horsies.{table} ({', '.join(values)}) values ({', '.join(['%s'] * len(values))})"
    with contextlib.suppress(psycopg.IntegrityError):
        sql.execute(query.encode(), list(values.values()))


@pytest.fixture
def odd_rows(sql: psycopg.Connection) -> None:
    """One row for each odd value of each column of each table; running tasks, too."""
    columns = sql.execute(
        "select table_name, column_name, udt_name from information_schema.columns where table_schema = 'horsies' and is_identity = 'NO'"
    ).fetchall()
    worker = str(uuid4())
    insert(sql, "workers", **new_rows()["workers"] | {"id": worker})
    running = {"status": "RUNNING", "claimed_by": worker, "claimed_at": NOW, "started_at": NOW - timedelta(hours=1)}
    for table, name, kind in columns:
        for value in ODD.get(kind, []) if table in new_rows() else []:
            insert(sql, table, **new_rows()[table] | {name: value})
            if table == "tasks":
                insert(sql, table, **new_rows()[table] | running | {name: value})
    assert sql.execute("select count(*) > 200 from horsies.all_tasks").fetchone() == (True,)


def reads(ops: Ops) -> Iterator[object]:
    """Everything that `app.ops` reads."""
    page = ops.list_tasks(limit=10_000)
    yield page
    yield [ops.show_task(task.id, payload=True, reveal=number % 2 == 0) for number, task in enumerate(page.tasks)]
    yield ops.list_running(limit=10_000)
    yield ops.list_unknown_tasks()
    yield ops.list_queues()
    workers = [worker.id for worker in ops.list_workers()]
    yield [(ops.list_children(worker), ops.list_worker_states(worker)) for worker in workers]
    yield ops.list_dead_workers()
    yield [ops.get_workflow_summary(run.id) for run in ops.list_workflows(limit=10_000).runs]
    yield [ops.get_workflow_state(run.id) for run in ops.list_workflows(limit=10_000).runs]
    yield ops.list_schedules()
    yield ops.list_recent_runs(["", "s"])
    yield [ops.list_schedule_runs(name) for name in ("", "s")]
    yield ops.time_series(minutes=1440)
    yield ops.queue_totals(minutes=1440)
    yield ops.task_totals(minutes=1440)
    yield [ops.list_tasks(group.to_filter()) for group in ops.error_groups() if group.task_name]
    yield ops.list_audit(limit=10_000)


@pytest.mark.usefixtures("odd_rows")
def test_all_of_it_can_be_read(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    app = Horsies(AppConfig(broker=PostgresConfig(database_url=database)))
    try:
        for found in reads(app.ops):
            show_json(found)
            json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
        failed = [finding for finding in app.ops.findings(all_checks=True) if finding.code.name.startswith("CHECK_")]
        assert failed == []
        ids = [task.id for task in app.ops.list_tasks(limit=10_000).tasks]
    finally:
        app.close()
    lists = [["status"], ["errors"], ["audit"]] + [
        [kind, "list"] for kind in ("tasks", "queues", "workers", "workflows", "schedules")
    ]
    for words in [*lists, *(["tasks", "show", task, "--payload"] for task in ids[::7])]:
        assert run(*words, database_url=database).code == 0, words


def test_a_time_at_the_end_of_the_range_can_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for zone in ("UTC-14", "UTC+12"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        assert to_text(EARLIEST)
        assert to_text(LATEST)
    monkeypatch.undo()
    time.tzset()
