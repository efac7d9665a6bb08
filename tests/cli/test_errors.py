"""`horsies errors`: an operator finds a group of failures, and retries all of it."""

import json

import psycopg

from horsies.db.broker import PostgresBroker
from horsies.tasks.finish import finish_tasks
from horsies.tasks.inspect import MAX_SCANNED
from tests.cli.conftest import Cli
from tests.fixtures.journey import ME, claim, column, do, failed, new_task, send
from tests.maintenance.test_minutes import current, end_task

STATUSES = "select task_name || ' ' || status from horsies.all_tasks order by 1"


def fail(broker: PostgresBroker, **messages: str) -> None:
    """End all tasks with the message for their name."""
    held = claim(broker, 100)
    errors = {name: json.dumps({"error_code": "BROKEN", "message": text}) for name, text in messages.items()}
    do(broker, finish_tasks(ME, [failed(one, error=errors[one.task_name]) for one in held]))


def test_a_group_is_found_shown_and_retried(cli: Cli, broker: PostgresBroker, sql: psycopg.Connection) -> None:
    send(broker, *(new_task(name) for name in ("pay", "pay", "add")))
    fail(broker, pay="order 17 is lost", add="no sum")
    pay, add = cli("errors", "list", "--json").json["error_groups"]
    assert [pay["task_name"], pay["message"], pay["count"], add["count"]] == ["pay", "order # is lost", 2, 1]
    prefix = pay["id"][:5]

    shown = cli("errors", "show", prefix).out
    assert "order 17 is lost\n\nretry all of them: horsies errors retry " + pay["id"] in shown

    tried = cli("errors", "retry", prefix, "--dry-run")
    assert tried.out == "would retry 2 tasks\n"
    assert tried.err.startswith("pay: BROKEN: order # is lost (2 failures, the last one ")
    assert cli("errors", "retry", prefix, "--yes").out == "2: it is in its queue again, and due now\n"
    again = cli("errors", "retry", prefix, "--yes")
    assert (again.code, again.out) == (1, ""), "nothing of it is left"
    assert column(sql, STATUSES) == ["add FAILED", "pay PENDING", "pay PENDING"]


def test_one_failure_is_not_many(cli: Cli, broker: PostgresBroker) -> None:
    send(broker, new_task("add"))
    fail(broker, add="no sum")
    (group,) = cli("errors", "list", "--json").json["error_groups"]
    tried = cli("errors", "retry", group["id"], "--dry-run")
    assert tried.out == "would retry 1 task\n"
    assert "(1 failure, the last one " in tried.err


def test_the_tasks_of_a_group_are_found_behind_many_other_failures(cli: Cli, sql: psycopg.Connection) -> None:
    now = current(sql)
    newest, oldest = end_task(sql, now, name="pay", status="FAILED"), "00000000-0000-7000-8000-000000000000"
    sql.execute("update horsies.finished set id = %s where id = %s", [oldest, newest])
    for _ in range(MAX_SCANNED + 5):
        end_task(sql, now, name="add", status="FAILED")
    _, group = cli("errors", "list", "--json").json["error_groups"]
    assert [task["id"] for task in cli("errors", "show", group["id"], "--json").json["tasks"]] == [oldest]
    assert "none of these tasks is still FAILED" not in cli("errors", "show", group["id"]).out
