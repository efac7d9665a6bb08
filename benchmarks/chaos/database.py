"""Read the final state of the database as values of a history."""

import time
from collections.abc import Callable
from dataclasses import replace

import psycopg
from psycopg.rows import class_row

from benchmarks.chaos.history import Failed, Flow, Node, Row

SETTLED = """
    select (select count(*) from horsies.tasks)
    + (select count(*) from horsies.workflows where status in ('PENDING', 'RUNNING', 'PAUSED'))
"""
ROWS = """
    select
        id::text as task_id, task_name, queue_name as queue, status, (args ->> 'n')::integer as n, args ->> 'key' as key,
        priority, extract(epoch from enqueued_at)::float8 as enqueued, extract(epoch from good_until)::float8 as good_until,
        error_code, result::text as result, attempts, coalesce(cardinality(retry_delays_ms), 0) as retries,
        coalesce(retry_for, '{}') as retry_for, extract(epoch from started_at)::float8 as started,
        extract(epoch from finished_at)::float8 as finished, node_id::text as node
    from horsies.all_tasks
"""
FAILED = """
    select id::text, (item ->> 'attempt')::integer, item ->> 'error_code',
        extract(epoch from (item ->> 'started_at')::timestamptz)::float8,
        extract(epoch from (item ->> 'ended_at')::timestamptz)::float8
    from horsies.all_tasks, unnest(failed_attempts) as item
    order by 1, 2
"""
NODES = """
    select nodes.workflow_id::text, nodes.id::text, nodes.status, nodes.task_id::text, nodes.needed, nodes.allow_failed_deps,
        array(
            select other.id::text from horsies.nodes as other
            where other.workflow_id = nodes.workflow_id and other.index = any(nodes.waits_for)
        )
    from horsies.nodes
"""


def unsettled(connection: psycopg.Connection) -> int:
    """Count the tasks and workflows that have not ended."""
    row = connection.execute(SETTLED).fetchone()
    return 0 if row is None else int(row[0])


def wait_until_settled(url: str, patience_s: float, on_progress: Callable[[int], None]) -> int:
    """Wait until everything has ended or the time is over. Return how many have not ended."""
    deadline = time.monotonic() + patience_s
    with psycopg.connect(url, autocommit=True) as connection:
        while (left := unsettled(connection)) and time.monotonic() < deadline:
            on_progress(left)
            time.sleep(0.1)
    return left


def read_rows(connection: psycopg.Connection) -> list[Row]:
    failed: dict[str, list[Failed]] = {}
    for task_id, *values in connection.execute(FAILED).fetchall():
        failed.setdefault(task_id, []).append(Failed(*values))
    with connection.cursor(row_factory=class_row(Row)) as cursor:
        rows = cursor.execute(ROWS).fetchall()
    return [replace(row, retry_for=tuple(row.retry_for), failed=tuple(failed.get(row.task_id, ()))) for row in rows]


def read_flows(connection: psycopg.Connection) -> list[Flow]:
    nodes: dict[str, list[Node]] = {}
    for workflow_id, node_id, status, task_id, needed, allows, before in connection.execute(NODES).fetchall():
        nodes.setdefault(workflow_id, []).append(Node(node_id, status, task_id, tuple(before), needed, allows))
    rows = connection.execute("select id::text, status from horsies.workflows").fetchall()
    return [Flow(workflow_id, status, tuple(nodes.get(workflow_id, ()))) for workflow_id, status in rows]
