"""Every statement of every `.sql` file is planned against the migrated schema; the hot ones must use their indexes."""

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

import horsies
from horsies.db.pooler import GENERIC_PLANS, set_locally
from horsies.db.statement import Query, Statement, load
from horsies.model.status import TaskStatus
from horsies.model.task import Claim, Ending, TaskOptions
from horsies.tasks import control, enqueue, finish, handle, queues
from horsies.tasks.claim import (
    ClaimFrom,
    ClaimRequest,
    Lane,
    claim_tasks,
    lanes_from_start,
    start_tasks,
)
from horsies.tasks.enqueue import option_params
from horsies.tasks.finish import finish_tasks, get_held_tasks
from horsies.tasks.inspect import TaskFilter, list_tasks_query
from horsies.workflows import advance
from tests.fixtures.journey import ME, column, row
from tests.fixtures.server import DatabaseServer

SCHEMA = "horsies"
ROOT = Path(horsies.__file__).parent
TWINS = sorted(path for path in ROOT.rglob("*.sql") if path.with_suffix(".py").exists())
STATEMENTS = {
    f"{twin.relative_to(ROOT).with_suffix('')}.{name}": found
    for twin in TWINS
    for name, found in load(str(twin)).items()
}

_PARAMETER = re.compile(r"%\((\w+)\)s::((?:pg_catalog\.)?[a-z0-9]+(?:\[\])?)")
NOT_PLANNED = re.compile(r"(begin|commit|rollback|create|alter|drop|truncate|lock|copy|do)\b")
_ROWS = 20_000
KEYED = {"id": ME, "task_name": "add", "key": "k", "args_hash": "", "window_s": 60.0}


def test_the_sql_files_are_found() -> None:
    some = {
        "tasks/claim.claim_from_watermarks",
        "tasks/finish.finish_tasks",
        "worker/batch.set_batch_limits",
        "tasks/handle.get_results",
    }
    assert some <= STATEMENTS.keys()


@pytest.mark.parametrize("name", STATEMENTS)
def test_every_statement_is_valid_on_the_migrated_schema(name: str, shared_sql: psycopg.Connection) -> None:
    if not NOT_PLANNED.match(STATEMENTS[name].text):  # the others take no plan; migrations and turns run these
        assert planned(name, shared_sql)


def planned(name: str, sql: psycopg.Connection) -> str:
    """Return the plan for unknown parameters."""
    text = STATEMENTS[name].text.rstrip(";").replace("{partition}", "finished_default")
    text = re.sub(r"\{(first|after)\}", "2020-01-01", text)
    types: dict[str, str] = {}
    for parameter, kind in _PARAMETER.findall(text):
        assert types.setdefault(parameter, kind) == kind, f"{parameter} is cast in two ways"
    numbers = {parameter: f"${position}" for position, parameter in enumerate(types, 1)}
    text = _PARAMETER.sub(lambda found: f"{numbers[found[1]]}::{found[2]}", text)
    assert "%(" not in text, "every parameter is cast, or the server guesses its type"
    declared = f"({', '.join(types.values())})" if types else ""
    prepared = Statement(name, f"prepare planned {declared} as {text}")
    sql.execute(prepared.for_schema(SCHEMA).replace(b"%%", b"%"))
    try:
        nulls = f"({', '.join(['null'] * len(types))})" if types else ""
        return "\n".join(map(str, column(sql, f"explain execute planned{nulls}")))
    finally:
        sql.execute("deallocate planned")


@pytest.fixture(scope="module")
def shared_sql(server: DatabaseServer) -> Iterator[psycopg.Connection]:
    """These tests only read, so one database is enough for all of them."""
    name = server.create_migrated()
    with psycopg.connect(server.url(name), autocommit=True) as connection:
        yield connection
    server.drop(name)


# -- index plans on tables that were just filled and never analysed


@pytest.fixture(scope="module")
def filled(server: DatabaseServer) -> Iterator[psycopg.Connection]:
    name = server.create_migrated()
    with psycopg.connect(server.url(name), autocommit=True) as connection:
        connection.execute(
            "create table horsies.finished_20200101 partition of horsies.finished "
            "for values from ('2020-01-01 00:00+00') to ('2020-01-02 00:00+00')"
        )
        for table in column(
            connection,
            "select relname from pg_class where relkind = 'r' and relname ~ '^(tasks|finished_|nodes|workflows)'",
        ):
            connection.execute(f"alter table horsies.{table} set (autovacuum_enabled = off)".encode())
        connection.execute(
            "insert into horsies.tasks (task_name, queue_name, args) "
            "select 'add', 'default', '{}' from generate_series(1, %s)",
            [_ROWS],
        )
        connection.execute(
            "insert into horsies.finished (id, task_name, queue_name, priority, status, args, sent_at, enqueued_at, "
            "attempts, claim_no, finished_at) select gen_random_uuid(), 'add', 'default', 100, 'COMPLETED', '{}', "
            "now(), now(), 1, 1, now() from generate_series(1, %s)",
            [_ROWS],
        )
        connection.execute(
            "with run as (insert into horsies.workflows (id, root_id, name, status, unresolved) "
            "select id, id, 'w', 'RUNNING', 2 from (select gen_random_uuid() from generate_series(1, %s / 4)) as new (id) "
            "returning id) insert into horsies.nodes (id, root_id, workflow_id, index, node_id, kind, status, waits_for, "
            "dependents, needed, allow_failed_deps, task_id) select gen_random_uuid(), id, id, index, 'n', 'task', 'ENQUEUED', "
            "'{}', '{}', 0, false, gen_random_uuid() from run cross join generate_series(0, 3) as index",
            [_ROWS],
        )
        yield connection
        assert row(
            connection,
            "select count(*) from pg_stats where schemaname = 'horsies' and tablename in ('tasks', 'nodes', 'workflows')",
        ) == (0,)
    server.drop(name)


def held(filled: psycopg.Connection) -> list[Claim]:
    rows = filled.execute(
        "select id::text, 1, task_name, queue_name, priority, enqueued_at, 1, '' from horsies.tasks limit 100"
    ).fetchall()
    return [Claim(*row) for row in rows]


def plan(filled: psycopg.Connection, query: Query) -> str:
    text = b"explain " + query.statement.for_schema(SCHEMA)
    lines = "\n".join(line for (line,) in filled.execute(text, query.params).fetchall())
    return re.sub(r"\{[^}]*\}", "{...}", lines)  # a hundred ids make no plan easier to read


def hot(filled: psycopg.Connection) -> Mapping[str, Query]:
    claims = held(filled)
    running = ClaimRequest(ME, TaskStatus.RUNNING, 8, 60_000)
    ids = [claim.id for claim in claims]
    roots = [str(root) for root in column(filled, "select id::text from horsies.workflows limit 3")]
    endings = [Ending(task_id, 1, TaskStatus.COMPLETED, "1") for task_id in ids]
    return {
        "claim_from_queues": claim_tasks(running, lanes_from_start(["default", "other"])),
        "claim_from_watermarks": claim_tasks(
            running, [Lane("default", 100, claims[0].enqueued_at)], ClaimFrom.WATERMARKS
        ),
        "claim_one": claim_tasks(ClaimRequest(ME, TaskStatus.RUNNING, 1, 60_000), lanes_from_start(["default"])),
        "claim_hundreds": claim_tasks(ClaimRequest(ME, TaskStatus.CLAIMED, 500, 60_000), lanes_from_start(["default"])),
        "start_one": start_tasks(ME, claims[:1]),
        "start_hundred": start_tasks(ME, claims),
        "finish_one": finish_tasks(ME, endings[:1]),
        "finish_hundred": finish_tasks(ME, endings),
        "release_one": finish.release_tasks(ME, claims[:1]),
        "release_hundred": finish.release_tasks(ME, claims),
        "get_held_tasks": get_held_tasks(ME),
        "lock_roots": advance.lock_roots(roots),
        **{query.statement.name: query for query in advance.full_step(roots, ids)},
        "get_unfinished_trees": advance.unfinished_trees(),
        "get_one_ended": get_ended(claims[:1]),
        "get_hundred_ended": get_ended(claims),
        "get_results_unpruned": handle.SQL["get_results_unpruned"](ids=ids),
        "list_newest": list_tasks_query(TaskFilter(), 50, None),
        "get_finished_tasks": control.SQL["get_finished_tasks"](ids=ids),
        "get_queue_depths": queues.SQL["get_queue_depths"](queues=["default", "other"], counted=100, priorities=10),
        "delete_probe": enqueue.SQL["delete_probe"](id=ids[0]),
        "take_key": enqueue.SQL["take_key"](**KEYED),
        "replace_pending_task": enqueue.SQL["replace_pending_task"](
            holder=ids[0], args="{}", **option_params(TaskOptions("add", "default")) | KEYED
        ),
    }


def get_ended(claims: list[Claim]) -> Query:
    since = claims[0].enqueued_at
    return handle.SQL["get_results"](ids=[claim.id for claim in claims], since=since, until=since + timedelta(days=1))


HOT = [
    "claim_from_queues", "claim_from_watermarks", "claim_one", "claim_hundreds", "start_one", "start_hundred",
    "finish_one", "finish_hundred", "release_one", "release_hundred",
    "lock_roots", "advance_nodes", "withdraw_tasks", "expand_maps", "start_runs", "enqueue_ready_nodes", "finish_runs", "get_unfinished_trees",
    "get_held_tasks", "get_one_ended", "get_hundred_ended", "get_results_unpruned", "delete_probe", "take_key", "replace_pending_task",
    "list_newest", "get_finished_tasks", "get_queue_depths",
]  # fmt: skip


@pytest.mark.parametrize("name", HOT)
def test_the_hot_statements_keep_their_index_plans_without_statistics(name: str, filled: psycopg.Connection) -> None:
    found = plan(filled, hot(filled)[name])
    assert not re.search(r"Seq Scan on (tasks|finished|nodes|workflows)", found), found
    assert "Index" in found, found


@pytest.mark.parametrize(
    "name", ["advance_nodes", "expand_maps", "start_runs", "enqueue_ready_nodes", "finish_runs", "withdraw_tasks"]
)
def test_the_statements_of_a_step_keep_their_index_plans_when_they_are_planned_once(
    name: str, filled: psycopg.Connection
) -> None:
    with filled.transaction():
        filled.execute("set local plan_cache_mode = force_generic_plan")
        found = planned(f"workflows/advance.{name}", filled)
    assert re.search(r"\$\d", found), found
    assert not re.search(r"Seq Scan on (tasks|finished|nodes|workflows)", found), found


@pytest.mark.parametrize(
    "name",
    [
        "tasks/enqueue.notify_enqueued", "tasks/handle.get_results", "tasks/handle.get_results_unpruned", "tasks/enqueue.take_key",
        "tasks/enqueue.replace_pending_task", "tasks/control.end_unstarted_tasks", "tasks/control.requeue_tasks", "tasks/queues.get_queue_depths",
        "tasks/queues.list_queues", "workflows/start.insert_tree", "workflows/start.notify_started", "workflows/handle.get_run_results",
        "workflows/inspect.get_nodes", "workflows/inspect.get_nodes_of_runs", "workflows/inspect.get_run_place", "workflows/inspect.get_node_letters",
        "workflows/inspect.count_inner_nodes", "workflows/inspect.list_nodes", "worker/wakeups.look_for_work", "worker/wakeups.call_for_help",
    ],
)  # fmt: skip
def test_statements_of_producers_and_operators_keep_their_index_plans_when_they_are_planned_once(
    name: str, filled: psycopg.Connection
) -> None:
    with filled.transaction():
        filled.execute(set_locally(GENERIC_PLANS).encode())
        found = planned(name, filled)
    assert not re.search(r"Seq Scan on (tasks|finished|nodes|workflows)", found), found


def test_conditions_that_may_be_left_out_are_known() -> None:
    """A generic plan cannot use an index for such a condition: a statement with one goes through `plan_for_values`, or reads little anyway."""
    found = {name for name, statement in STATEMENTS.items() if re.search(r"%\(\w+\)s::\S+ is null", statement.text)}
    asked_for_values = {
        "tasks/inspect.list_tasks",
        "tasks/inspect.count_tasks",
        "tasks/inspect.list_selected_tasks",
        "tasks/inspect.count_selected_tasks",
        "workflows/inspect.list_runs",
        "tasks/inspect.get_worker_states",
        "ops/events.list_events",
        "ops/statistics.get_time_series",
        "ops/statistics.get_totals",
        "ops/statistics.get_error_groups",
    }
    of_few_rows = {
        "schedules/control.get_schedules",
        "tasks/attempts.get_attempt_logs",
        "workflows/inspect.get_nodes",
        "db/partitions.get_missing_partitions",
    }
    of_caps = {"tasks/claim.claim_from_watermarks", "tasks/claim.claim_from_queues", "tasks/claim.start_tasks"}
    of_caps |= {"worker/wakeups.look_for_work", "worker/wakeups.call_for_help"}
    assert found == asked_for_values | of_few_rows | of_caps


@pytest.mark.parametrize("name", ["claim_from_queues", "claim_from_watermarks"])
def test_a_claim_reads_in_the_order_of_service_and_sorts_nothing(name: str, filled: psycopg.Connection) -> None:
    found = plan(filled, hot(filled)[name])
    assert "tasks_claim_idx" in found, found
    assert "Sort" not in found, found


def test_waiting_reads_only_partitions_since_the_task_was_created(filled: psycopg.Connection) -> None:
    assert "finished_20200101" not in plan(filled, hot(filled)["get_hundred_ended"])
    assert "finished_20200101" in plan(filled, hot(filled)["get_results_unpruned"])
