"""`make bench-operators`: how long pages of the dashboard and queries of `app.ops` take with 1 000 000 finished and 100 000 waiting tasks.

Every page and every query is timed next to a page that only does `select 1`, so that other load meets both. The bar: the 95th percentile is at most 25 times that
of the page with `select 1`, and none reads more than a small part of `finished`. Exit code 1 if one misses it.
"""

import argparse
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

import psycopg

from benchmarks.bars import Bar, judge
from benchmarks.measures import percentile
from benchmarks.operator_pages import Pages, page_paths, serve_pages
from benchmarks.place import SETTINGS
from benchmarks.terminal import INTERRUPTED, end_like_ctrl_c, show_progress
from horsies import AppConfig, Horsies
from horsies.db.broker import PostgresBroker
from horsies.db.statement import Statement, load, render, rows
from horsies.maintenance.minutes import roll_up_minutes
from horsies.model.config import DEFAULT_SCHEMA, PostgresConfig
from horsies.model.graph import NodeStatus, WorkflowStatus
from horsies.model.status import TaskStatus
from horsies.ops import TaskFilter
from horsies.ops.api import Ops
from horsies.ops.statistics import ErrorGroup
from tests.fixtures.scratch_server import scratch_server

FINISHED, WAITING, WORKFLOWS = 1_000_000, 100_000, 5_000
QUICK_SHARE = 20
TIMES, MAX_ROWS_SHARE = 25, 0.05
ROUNDS, WARM_UP = 60, 24  # a statement is prepared at its third execution, and the dashboard has eight sessions
READS = 5
FILL = (
    "create_past_days", "insert_finished", "insert_waiting", "insert_workers", "insert_worker_states", "insert_dead_workers", "insert_schedules",
    "insert_schedule_runs", "insert_keys", "insert_workflows", "insert_nodes", "insert_audit", "vacuum",
)  # fmt: skip

LARGE_WORKFLOW = "select workflow_id::text from horsies.nodes group by workflow_id order by count(*) desc limit 1"

SQL = load(__file__)


@dataclass(frozen=True, slots=True)
class Timing:
    name: str
    p50_ms: float
    p95_ms: float
    one_p95_ms: float
    rows_read: float = 0.0
    """Of `finished`, for each call."""

    @property
    def times(self) -> float:
        return self.p95_ms / self.one_p95_ms


def main() -> int:
    end_like_ctrl_c()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operator_queries", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a twentieth of the tasks, ten rounds; the bar is not judged"
    )
    parser.add_argument("--only", default="", help="the queries whose name contains this")
    parser.add_argument("--database-url", help="a filled database: it is measured as it is")
    options = parser.parse_args()
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)  # sessions are ended on purpose
    try:
        if options.database_url:
            return _measure(options.database_url, options.only, is_quick=options.quick)
        with scratch_server(settings=SETTINGS) as server:
            show_progress("filling a database")
            fill(server.url(), FINISHED // QUICK_SHARE if options.quick else FINISHED, WAITING, WORKFLOWS)
            return _measure(server.url(), options.only, is_quick=options.quick)
    except KeyboardInterrupt:
        show_progress("interrupted; the server is stopped")
        return INTERRUPTED


def fill(url: str, finished: int, waiting: int, workflows: int) -> None:
    """Migrate the database, and put this many tasks and workflows into it, with statistics by minute."""
    counts = {"insert_finished": finished, "insert_waiting": waiting, "insert_workflows": workflows}
    with PostgresBroker(PostgresConfig(database_url=url)) as broker, psycopg.connect(url, autocommit=True) as sql:
        broker.migrate()
        for name in FILL:
            began = time.perf_counter()
            sql.execute(render(SQL[name].text, DEFAULT_SCHEMA).encode(), {"count": counts.get(name)})
            show_progress(f"{name}: {time.perf_counter() - began:.1f} s")
        began = time.perf_counter()
        broker.run(partial(roll_up_minutes, 24 * 60 + 1))
        sql.execute(_text(SQL["leave_newest_minutes"]).encode(), {})
        show_progress(f"statistics by minute: {time.perf_counter() - began:.1f} s")


def _measure(url: str, only: str, *, is_quick: bool) -> int:
    config = PostgresConfig(database_url=url, pool_max_size=1)
    app = Horsies(AppConfig(broker=config))
    rounds = 10 if is_quick else ROUNDS
    with (
        closing(app),
        psycopg.connect(url, autocommit=True) as admin,
        serve_pages(url, SQL["select_one"]) as pages,
    ):
        finished = _count(admin, "finished")
        large = _one(admin, LARGE_WORKFLOW)
        group = next(group for group in app.ops.error_groups() if group.task_name)  # not the rest of a minute
        flush = partial(app.ops.broker.run, partial(rows, SQL["flush_statistics"]()))
        calls = [(name, call, flush) for name, call in _calls(app.ops, admin, group, large).items()]
        end_sessions = partial(admin.execute, _text(SQL["end_sessions"]).encode())
        calls += [
            (name, partial(pages.get, path), end_sessions) for name, path in page_paths(app.ops, group, large).items()
        ]
        chosen = [each for each in calls if only in each[0]]
        timings = [_time(name, call, pages, rounds) for name, call, _ in chosen]
        # Later, because it ends the sessions of the dashboard, and those that follow have nothing prepared.
        timings = [
            replace(timing, rows_read=_count_reads(admin, call, flush))
            for timing, (_, call, flush) in zip(timings, chosen, strict=True)
        ]
    _print(timings, finished)
    return judge(_bars(timings, finished), are_judged=not is_quick)


def _calls(ops: Ops, admin: psycopg.Connection, group: ErrorGroup, large: str) -> dict[str, Callable[[], object]]:
    now = ops.read_clock()
    page = ops.list_tasks(limit=50)
    (failed,) = ops.list_tasks(TaskFilter(statuses=[TaskStatus.FAILED]), limit=1).tasks
    deep = _one(
        admin,
        "select id::text from horsies.finished where finished_at < now() - interval '4 days' order by finished_at desc limit 1",
    )
    key = _one(admin, "select key from horsies.keys limit 1")
    small = _one(admin, "select workflow_id::text from horsies.nodes group by workflow_id order by count(*) limit 1")

    def listed(after: str | None = None, **filters: object) -> Callable[[], object]:
        return lambda: ops.list_tasks(TaskFilter(**filters), after=after)  # pyright: ignore[reportArgumentType] - for short lines below

    worker, stored = ops.list_workers()[3].id, ops.list_schedules()
    by_status = {f"list {status.lower()}": listed(statuses=[status]) for status in TaskStatus}
    return {
        "list": listed(),
        "list, second page": listed(page.next_after),
        "list, deep page": listed(deep),
        **by_status,
        "list failed, deep page": listed(deep, statuses=[TaskStatus.FAILED]),
        "list live": listed(statuses=[TaskStatus.PENDING, TaskStatus.CLAIMED, TaskStatus.RUNNING]),
        "list queue": listed(queue_name="queue_3"),
        "list quiet queue": listed(queue_name="quiet"),
        "list rare task": listed(task_name="rare"),
        "list rare failed task": listed(task_name="rare", statuses=[TaskStatus.FAILED]),
        "list unknown queue": listed(queue_name="nowhere"),
        "list worker": listed(worker=worker),
        "list worker, running": listed(worker=worker, statuses=[TaskStatus.RUNNING]),
        "list error code": listed(error_code="CODE_3"),
        "list unknown error code": listed(error_code="NEVER"),
        "search message": listed(message="host 7"),
        "search rare message": listed(message="needle"),
        "search message that does not exist": listed(message="nothing has this"),
        "search message of live tasks": listed(message="no room", statuses=[TaskStatus.PENDING]),
        "list error group": lambda: ops.list_tasks(group.to_filter()),
        "list since an hour": listed(since=now - timedelta(hours=1)),
        "list an hour of yesterday": listed(since=now - timedelta(hours=25), until=now - timedelta(hours=24)),
        "list before six days": listed(until=now - timedelta(days=6)),
        "list failed, an hour of yesterday": listed(
            statuses=[TaskStatus.FAILED], since=now - timedelta(hours=25), until=now - timedelta(hours=24)
        ),
        "list failed task of a queue since a day": listed(
            statuses=[TaskStatus.FAILED], task_name="task_3", queue_name="queue_3", since=now - timedelta(days=1)
        ),
        "list key": listed(key=key),
        "list key of a task": listed(key=key, task_name=_one(admin, "select task_name from horsies.keys limit 1")),
        "list unknown key": listed(key="no such key"),
        "list schedule": listed(schedule_name="schedule_7"),
        "list schedule, failed": listed(schedule_name="schedule_7", statuses=[TaskStatus.FAILED]),
        "list workflow": listed(workflow_id=small),
        "list workflow of 2 000 nodes": listed(workflow_id=large),
        "list workflow of 2 000 nodes, failed": listed(workflow_id=large, statuses=[TaskStatus.FAILED]),
        "list selection of 50": listed(ids=[task.id for task in page.tasks]),
        "list running, longest first": ops.list_running,
        "preview of failed": lambda: ops.preview_count(TaskFilter(statuses=[TaskStatus.FAILED])),
        "preview of a queue": lambda: ops.preview_count(TaskFilter(queue_name="queue_3")),
        "preview of an error group": lambda: ops.preview_count(group.to_filter()),
        "show task": lambda: ops.show_task(failed.id, payload=True),
        "find task ids": lambda: ops.find_task_ids(failed.id[:13]),
        "get statuses of 50": lambda: ops.get_statuses([task.id for task in page.tasks]),
        "unknown tasks": ops.list_unknown_tasks,
        "queues": ops.list_queues,
        "queue totals, an hour": ops.queue_totals,
        "workers": ops.list_workers,
        "worker states": lambda: ops.list_worker_states(worker),
        "dead workers": ops.list_dead_workers,
        "children": lambda: ops.list_children(worker),
        "find worker ids": lambda: ops.find_worker_ids("0000"),
        "workflows": ops.list_workflows,
        "workflows, failed": lambda: ops.list_workflows(statuses=[WorkflowStatus.FAILED]),
        "workflows, by name": lambda: ops.list_workflows(name="flow_7"),
        "workflows, unknown name": lambda: ops.list_workflows(name="never"),
        "workflows, by error": lambda: ops.list_workflows(message="node charge"),
        "workflows, unknown error": lambda: ops.list_workflows(message="never"),
        "workflow": lambda: ops.show_workflow(small),
        "workflow summary": lambda: ops.get_workflow_summary(large),
        "workflow state of 2 000 nodes": lambda: ops.get_workflow_state(large),
        "nodes of 2 000": lambda: ops.list_workflow_nodes(large),
        "nodes of 2 000, failed": lambda: ops.list_workflow_nodes(large, statuses=[NodeStatus.FAILED]),
        "count workflows": ops.count_workflows,
        "find workflow ids": lambda: ops.find_workflow_ids(small[:8]),
        "schedules": ops.list_schedules,
        "recent runs of all schedules": lambda: ops.list_recent_runs([info.name for info in stored]),
        "schedule runs": lambda: ops.list_schedule_runs("schedule_7"),
        "audit": ops.list_audit,
        "time series, an hour": ops.time_series,
        "time series, a day": lambda: ops.time_series(minutes=1440),
        "time series, a day of a queue": lambda: ops.time_series(minutes=1440, queue_name="queue_3"),
        "task totals, an hour": ops.task_totals,
        "counts, an hour": ops.count_ended,
        "error groups, an hour": lambda: ops.error_groups(hours=1),
        "error groups, a day": ops.error_groups,
        "findings": ops.findings,
    }


def _time(name: str, call: Callable[[], object], pages: Pages, rounds: int) -> Timing:
    calls, ones = list[float](), list[float]()
    for _ in range(WARM_UP + rounds):
        ones.append(_ms(pages.select_one))
        calls.append(_ms(call))
    del ones[:WARM_UP], calls[:WARM_UP]
    timing = Timing(name, percentile(calls, 50), percentile(calls, 95), percentile(ones, 95))
    show_progress(f"{name}: {timing.times:.1f} x select 1")
    return timing


def _count_reads(admin: psycopg.Connection, call: Callable[[], object], flush: Callable[[], object]) -> float:
    """Return how many rows of `finished` a call reads. `flush` lets the sessions that it uses report what they have read."""
    flush()
    before = _count_read_rows(admin)
    for _ in range(READS):
        call()
    flush()
    return (_count_read_rows(admin) - before) / READS


def _ms(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000


def _count_read_rows(admin: psycopg.Connection) -> int:
    return int(_one(admin, _text(SQL["count_read_rows"])))


def _text(statement: Statement) -> str:
    return render(statement.text, DEFAULT_SCHEMA)


def _count(admin: psycopg.Connection, table: str) -> int:
    return int(_one(admin, f"select count(*) from horsies.{table}"))


def _one(admin: psycopg.Connection, query: str) -> str:
    ((found,),) = admin.execute(query.encode(), {}).fetchall()
    return str(found)


def _print(timings: list[Timing], finished: int) -> None:
    print(f"{'query':<42}{'p50 ms':>9}{'p95 ms':>9}{'select 1':>10}{'times':>8}{'rows read':>11}")
    for each in timings:
        print(
            f"{each.name:<42}{each.p50_ms:>9.2f}{each.p95_ms:>9.2f}{each.one_p95_ms:>10.2f}{each.times:>8.1f}{each.rows_read:>11.0f}"
        )
    print(f"{len(timings)} queries, {finished} finished tasks")


def _bars(timings: list[Timing], finished: int) -> Iterator[Bar]:
    for each in timings:
        yield Bar(f"{each.name}: p95, in times that of a page with select 1", each.times, TIMES, "<=", "")
        yield Bar(f"{each.name}: rows of finished read", each.rows_read, finished * MAX_ROWS_SHARE, "<=", "rows")


if __name__ == "__main__":
    sys.exit(main())
