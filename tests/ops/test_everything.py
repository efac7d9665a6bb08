"""One of everything: what the other tests show is really there."""

import psycopg
from rich.cells import cell_len

from horsies import AppConfig, Horsies
from horsies.model.config import PostgresConfig
from tests.fixtures.everything import HOSTILE, NAME_LENGTH, Everything
from tests.ops.test_eight_situations import screen_of

STATUSES = {
    "completed": "COMPLETED", "failed": "FAILED", "retrying": "PENDING", "many_failed_attempts": "PENDING", "crashed": "FAILED",
    "crashed_and_retrying": "PENDING", "timed_out": "FAILED", "expired": "EXPIRED", "keyed": "COMPLETED", "long_running": "RUNNING",
    "asked_to_stop": "RUNNING", "lost": "FAILED", "lost_and_retrying": "PENDING", "large_result": "COMPLETED", "retried": "PENDING",
    "pending": "PENDING", "paused": "PENDING", "scheduled": "PENDING", "cancelled": "CANCELLED", "lagging": "PENDING", "unknown": "PENDING",
    "refused": "PENDING", "claimed": "CLAIMED",
}  # fmt: skip
RUNS = {
    "completed": "COMPLETED", "failed": "FAILED", "paused_by_error": "PAUSED", "running": "RUNNING", "paused": "PAUSED",
    "cancelled": "CANCELLED", "mapped": "COMPLETED", "nested": "COMPLETED", "large": "RUNNING",
}  # fmt: skip


def test_every_state_is_there(everything: Everything, sql: psycopg.Connection) -> None:
    found = dict(sql.execute("select id::text, status from horsies.all_tasks").fetchall())
    assert {name: found[everything.tasks[name]] for name in STATUSES} == STATUSES
    runs = dict(sql.execute("select id::text, status from horsies.workflows where id = root_id").fetchall())
    assert {name: runs[everything.workflows[name]] for name in RUNS} == RUNS
    nodes = {status for (status,) in sql.execute("select distinct status from horsies.nodes")}
    assert nodes >= {"PENDING", "ENQUEUED", "COMPLETED", "FAILED", "SKIPPED"}
    workers = {worker for (worker,) in sql.execute("select id::text from horsies.workers")}
    assert {everything.workers[name] for name in ("live", "stale", "leaving", "other_app")} < workers
    assert sql.execute(
        "select id::text from horsies.dead_workers where id = %s", [everything.workers["dead"]]
    ).fetchone()


def test_tables_and_findings_fit_80_columns(everything: Everything) -> None:
    task, run, worker = everything.tasks["failed"], everything.workflows["failed"], everything.workers["live"]
    commands = [
        ["status"], ["errors"], ["tasks", "list"], ["tasks", "list", "--running"], ["tasks", "show", task], ["queues", "list"], ["workers", "list"],
        ["workers", "list", "--dead"], ["workers", "show", worker], ["workflows", "list"], ["workflows", "show", run], ["schedules", "list"],
        ["schedules", "show", "sync stock"], ["audit"], ["limits"], ["events"], ["doctor"],
    ]  # fmt: skip
    for words in commands:
        screen = screen_of(*words, database=everything.database_url, lines=60, columns=80)
        shown, *_ = screen.split("\nerror:\n")  # a traceback stays as it is
        assert len(shown.splitlines()) > 2, words
        assert [line for line in shown.splitlines() if cell_len(line) > 80] == [], words


def test_operators_can_read_all_of_it(everything: Everything) -> None:
    """With hostile rows everywhere, every list still works, and has their texts as they are."""
    app = Horsies(AppConfig(broker=PostgresConfig(database_url=everything.database_url)))
    ops, texts = app.ops, set(HOSTILE.values())
    names = {text[:NAME_LENGTH] for text in texts}
    try:
        assert names <= {task.task_name for task in ops.list_tasks(limit=10_000).tasks}
        assert names <= {queue.name for queue in ops.list_queues()}
        assert names <= {worker.hostname for worker in ops.list_workers()}
        assert names <= {schedule.name for schedule in ops.list_schedules()}
        assert names <= {run.name for run in ops.list_workflows(limit=10_000).runs}
        assert texts <= {entry.target for entry in ops.list_audit(limit=10_000)}
        assert any(child.tasks for child in ops.list_children(everything.workers["live"]))
        assert [run.outcome for run in ops.list_schedule_runs("sync stock")] == ["ENQUEUED"] * 6
        (group,) = [group for group in ops.error_groups() if group.task_name == "deliver"]
        assert group.message == "mail # was refused by host-#.example: # mailbox # is full"
        assert sum(point.completed for point in ops.time_series(minutes=1440)) > 10_000
        for name, text in HOSTILE.items():
            view = ops.show_task(everything.tasks[f"hostile_{name}_failed"], payload=True)
            assert view is not None
            assert view.info.error is not None
            assert view.info.error.message == text
            assert ops.show_workflow(everything.workflows[f"hostile_{name}"])
        assert ops.findings()
    finally:
        app.close()
