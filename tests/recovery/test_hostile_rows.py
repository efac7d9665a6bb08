"""Hostile rows, inserted with SQL, stop no worker and affect no other task."""

from collections import Counter
from pathlib import Path

import psycopg
import pytest

from tests.fixtures.eventually import eventually
from tests.fixtures.journey import column, row
from tests.fixtures.workers import StartWorker
from tests.recovery import hostile
from tests.recovery.steps import CLUSTER, FORKED, settings
from tests.worker.steps import insert_lines, numbers

VALID = {"task_name": "'echo'", "args": "'{\"value\": 1}'"}
WRAP = 2_147_483_646
# Other queues are not served; and tasks that are due later, or become unknown later, may wait.
LATER = "status = 'PENDING' and (queue_name <> 'default' or enqueued_at > now() or unknown_since > now())"
UNSERVED = f"select count(*) from horsies.tasks where ({LATER}) is not true"
LEFT = f"select left(to_json(tasks)::text, 1000) from horsies.tasks where ({LATER}) is not true"
PATIENCE = {"unknown_task_patience_ms": 0, "changed_task_patience_ms": 0}


def held(row: dict[str, str], number: int, living: str) -> dict[str, str]:
    """Make every fourth row a claim: of the live worker, or of one that never existed."""
    if number % 4:
        return row
    status = "RUNNING" if number % 8 else "CLAIMED"
    return {**row, "status": f"'{status}'", "claimed_by": f"'{living}'" if number % 3 else "gen_random_uuid()"}


@pytest.mark.timeout(300)
@pytest.mark.promise("D6")
@pytest.mark.parametrize("seed", [1, 2])
def test_a_thousand_hostile_tasks_stop_no_worker_and_affect_no_other_task(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path, seed: int
) -> None:
    env = settings(recovery={"dead_after_ms": 5_000, **PATIENCE})
    started = worker(CLUSTER, processes=2, options=FORKED, env=env)
    living = started.wait_for_log(r"worker (\S+) is ready")[1]
    log, accepted, refused = tmp_path / "log", dict[str, int](), 0
    for number, values in enumerate(hostile.hostile(hostile.TASKS, VALID, 1_000, seed)):
        if number % 10 == 0:
            insert_lines(sql, log, 1, first=number)
        made = hostile.insert(sql, "tasks", held(values, number, living), "id::text, claim_no")
        refused += made is None
        if made is not None:
            accepted[str(made[0])] = int(str(made[1]))
    assert refused > 100
    assert len(accepted) > 400
    eventually(lambda: len(numbers(log)) == 100, 120, what="all valid tasks have run")
    eventually(
        lambda: row(sql, UNSERVED) == (0,), 120, what="all hostile tasks have ended", seen=lambda: column(sql, LEFT)[:3]
    )
    assert sorted(numbers(log)) == list(range(0, 1_000, 10))
    valid = "select status, attempts, claim_no, count(*) from horsies.finished where task_name = 'write_line' group by 1, 2, 3"
    assert sql.execute(valid).fetchall() == [("COMPLETED", 1, 1, 100)]
    claims = {
        str(task_id): claim_no for task_id, claim_no in sql.execute("select id::text, claim_no from horsies.all_tasks")
    }
    assert accepted.keys() <= claims.keys()
    assert {task_id for task_id in accepted if (claims[task_id] - accepted[task_id]) % WRAP > 12} == set()
    assert started.process.poll() is None
    assert started.terminate() == 0


OTHERS = {
    "finished": (hostile.FINISHED, {**VALID, "id": "gen_random_uuid()", "queue_name": "'default'", "priority": "100", "status": "'COMPLETED'",
        "sent_at": "now()", "enqueued_at": "now()", "attempts": "1", "claim_no": "1", "finished_at": "now()"}),
    "keys": (hostile.KEYS, {"task_name": "'echo'", "key": "gen_random_uuid()::text", "task_id": "gen_random_uuid()", "send_id": "gen_random_uuid()",
        "args_hash": "''", "key_window": "'1 day'"}),
    "schedules": (hostile.SCHEDULES, {**VALID, "name": "gen_random_uuid()::text", "queue_name": "'default'", "priority": "100", "timezone": "'UTC'",
        "pattern": "'{\"kind\": \"interval\", \"seconds\": 1}'", "catch_up_missed": "true", "max_catch_up_runs": "1", "jitter_ms": "0",
        "overlap": "'allow'", "enabled": "true", "next_slot_at": "now()"}),
    "workflows": (hostile.WORKFLOWS, {"name": "'w'", "status": "'RUNNING'", "unresolved": "0"}),
}  # fmt: skip


def insert_others(sql: psycopg.Connection, trees: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    for table, (columns, valid) in OTHERS.items():
        for number, values in enumerate(hostile.hostile(columns, valid, 150, 3)):
            identified = values
            if table == "workflows":
                run = f"'00000000-0000-4000-8000-{number:012}'"
                identified = {**values, "id": run, "root_id": run}
            counts[table] += hostile.insert(sql, table, identified, "1") is not None
    valid_node = {"id": "gen_random_uuid()", "kind": "'task'", "status": "'READY'", "node_id": "'n'", "waits_for": "'{}'", "dependents": "'{}'",
        "needed": "0", "allow_failed_deps": "false", "task_name": "'echo'", "queue_name": "'default'", "priority": "100", "args": "'{\"value\": 1}'",
        "retry_jitter": "0"}  # fmt: skip
    for number, values in enumerate(hostile.hostile(hostile.NODES, valid_node, 150, 4)):
        run = f"'00000000-0000-4000-{trees}-{number:012}'"
        hostile.insert(sql, "workflows", {**OTHERS["workflows"][1], "id": run, "root_id": run, "unresolved": "1"}, "1")
        node = {**values, "root_id": run, "workflow_id": run, "index": "0"}
        counts["nodes"] += hostile.insert(sql, "nodes", node, "1") is not None
    return counts


@pytest.mark.timeout(300)
@pytest.mark.promise("D6")
@pytest.mark.parametrize(
    "trees",
    [
        pytest.param("9000", id="nodes of valid workflows"),
        pytest.param("8000", id="nodes of hostile workflows"),
    ],
)
def test_hostile_rows_in_other_tables_stop_neither_worker_nor_leader_nor_scheduler(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path, trees: str
) -> None:
    counts = insert_others(sql, trees)
    assert min(counts.values()) > 30
    started = worker(CLUSTER, processes=2, options=(*FORKED, "--scheduler"), env=settings())
    log = tmp_path / "log"
    insert_lines(sql, log, 50)
    valid = OTHERS["schedules"][1] | {
        "name": "'valid'",
        "task_name": "'write_line'",
        "args": f"json_build_object('path', '{tmp_path / 'scheduled'}', 'line', '7')",
    }
    assert hostile.insert(sql, "schedules", valid, "name")
    (workflow,) = row(
        sql,
        "insert into horsies.workflows (id, root_id, name, status, unresolved) "
        "select id, id, 'valid', 'RUNNING', 0 from (select gen_random_uuid()) as made (id) returning id::text",
    )
    (orphan,) = row(
        sql,
        "insert into horsies.tasks (task_name, status, claimed_by) values ('echo', 'RUNNING', gen_random_uuid()) returning id::text",
    )
    eventually(lambda: sorted(numbers(log)) == list(range(50)), 60, what="all valid tasks have run")
    eventually(
        lambda: column(sql, "select status from horsies.workflows where id = %s", workflow) == ["COMPLETED"],
        60,
        what="the valid workflow is settled",
    )
    eventually(
        lambda: column(sql, "select error_code from horsies.finished where id = %s", orphan) == ["WORKER_CRASHED"],
        60,
        what="the valid orphan has ended",
    )
    eventually(lambda: len(numbers(tmp_path / "scheduled")) >= 3, 60, what="the valid schedule is served")
    assert started.process.poll() is None
    assert started.terminate() == 0


@pytest.mark.promise("D6")
@pytest.mark.parametrize("event", ["claim", "ending"])
def test_a_trigger_that_refuses_one_task_does_not_block_others(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path, event: str
) -> None:
    when = "update" if event == "claim" else "delete"
    sql.execute(
        "create function refuse() returns trigger language plpgsql as $$ begin raise exception 'not this one'; end $$; "
        f"create trigger refuse before {when} on horsies.tasks for each row when (old.task_name = 'echo') "
        "execute function refuse()".encode()
    )
    bad = str(row(sql, "insert into horsies.tasks (task_name, args) values ('echo', '{\"value\": 1}') returning id")[0])
    started = worker(CLUSTER, processes=2, options=FORKED, env=settings())
    insert_lines(sql, tmp_path / "log", 50)
    eventually(lambda: sorted(numbers(tmp_path / "log")) == list(range(50)), 30, what="all others have run")
    eventually(lambda: [str(task_id) for task_id in column(sql, "select id from horsies.tasks")] == [bad])
    assert started.process.poll() is None


@pytest.mark.promise("D6")
@pytest.mark.parametrize(
    ("table", "columns"),
    [
        ("tasks", {"queue_name": "repeat('q', 8000)"}),
        ("tasks", {"enqueued_at": "'infinity'"}),
        ("tasks", {"enqueued_at": "'0044-03-15 BC'"}),
        ("tasks", {"attempts": "2147483647"}),
        ("tasks", {"attempts": "-1"}),
        ("schedules", {"next_slot_at": "'-infinity'"}),
        ("schedules", {"max_catch_up_runs": "2000000000"}),
        ("keys", {"key_window": "'100000000 years'"}),
    ],
)
def test_values_that_no_statement_could_process_are_refused_by_a_constraint(
    sql: psycopg.Connection, table: str, columns: dict[str, str]
) -> None:
    valid = VALID if table == "tasks" else OTHERS[table][1]
    assert hostile.insert(sql, table, valid, "1")
    names, values = ", ".join({**valid, **columns}), ", ".join({**valid, **columns}.values())
    with pytest.raises(psycopg.errors.CheckViolation, match=f'"{table}_'):
        sql.execute(f"insert into horsies.{table} ({names}) values ({values})".encode())
