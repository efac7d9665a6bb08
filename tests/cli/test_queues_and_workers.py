"""`horsies queues`, `horsies workers` and `horsies status` for an operator."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from horsies.cli import status
from horsies.db.broker import PostgresBroker
from horsies.maintenance.rescue import expire_tasks
from horsies.ops import statistics
from horsies.tasks.finish import finish_tasks
from tests.cli.conftest import Cli, run
from tests.cli.test_tasks import register
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import ME, OTHER, claim, column, completed, do, new_task, send, send_new
from tests.fixtures.roles import PlainUser
from tests.fixtures.workers import StartWorker
from tests.maintenance.test_minutes import current, end_task
from tests.ops.test_eight_situations import screen_of
from tests.recovery.steps import insert_rows

DEAD = "insert into horsies.dead_workers values (%s, 'here', 1, 'shop', '1', '{default}', now(), now(), now(), 0, '{}')"
DELAY = "update horsies.tasks set ready = false, enqueued_at = now() + interval '1 h' where id = %s"


def test_a_list_of_queues_counts_waiting_delayed_and_running_tasks(
    cli: Cli, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    send_new(broker)
    claim(broker)
    *_, delayed = send_new(broker, 4)
    sql.execute(DELAY, [delayed.id])
    send(broker, new_task(queue_name="mail", priority=1), new_task(queue_name="mail", priority=2))
    sql.execute(
        "update horsies.tasks set enqueued_at = now() - interval '90 s' where queue_name = 'mail' and priority = 2"
    )
    register(sql, ME)
    cli("queues", "pause", "stock")
    found = {line["name"]: line for line in cli("queues", "list", "--json").json["queues"]}
    assert found.keys() == {"default", "mail", "stock"}
    assert {
        "waiting": 3,
        "scheduled": 1,
        "retrying": 0,
        "running": 1,
        "workers": 1,
        "more_waiting": False,
    }.items() <= found["default"].items()
    assert found["mail"]["waiting"] == 2
    assert 90 <= found["mail"]["oldest_waiting_s"] < 190
    assert found["stock"]["paused_at"]
    assert found["stock"]["oldest_waiting_s"] is None
    assert "1m 3" in cli("queues", "list").out


def test_a_long_queue_is_counted_up_to_a_limit(
    cli: Cli, broker: PostgresBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horsies.tasks.queues.MAX_COUNTED", 3)
    send_new(broker, 5)
    (line,) = cli("queues", "list", "--json").json["queues"]
    assert (line["waiting"], line["more_waiting"], line["more_not_due"]) == (3, True, False)
    assert " 3+ " in cli("queues", "list").out


def test_with_an_app_its_empty_queues_priorities_and_caps_are_listed(cli: Cli, app_file: str) -> None:
    found = cli("queues", "list", "--json", "--app", app_file).json["queues"]
    assert [(line["name"], line["priority"], line["max_concurrency"]) for line in found] == [
        ("mail", 10, None),
        ("media", 100, 2),
    ]


def test_limits_show_what_is_taken_and_what_set_them(
    cli: Cli, broker: PostgresBroker, sql: psycopg.Connection, app_file: str
) -> None:
    send(
        broker,
        *(new_task(queue_name="media") for _ in range(3)),
        new_task(queue_name="mail"),
        new_task(queue_name="mail"),
    )
    claim(broker, queues=["media"], limit=1)
    register(sql, ME)

    def of_queue(*words: str) -> dict[str, tuple[object, ...]]:
        found = cli("limits", "--json", *words).json["limits"]
        return {
            each["name"] or each["kind"]: (
                each["max"],
                each["set_by"],
                each["in_flight"],
                each["free"],
                each["waiting"],
            )
            for each in found
        }

    shown = of_queue(app_file)
    assert shown["media"] == (2, "app", 1, 1, 2)
    assert shown["mail"] == (None, "", 0, None, 2)
    assert shown["slots"][1] == "1 worker"
    cli("queues", "cap", "media", "1")
    cli("queues", "pause", "mail")
    shown = of_queue()
    assert shown["media"] == (1, "operator", 1, 0, 2)
    assert shown["mail"] == (0, "pause", 0, 0, 2)
    lines = [line.split() for line in cli("limits", app_file).out.splitlines()]
    assert ["queue", "media", "1", "operator", "1", "0", "2"] in lines


def test_a_queue_is_paused_and_resumed(cli: Cli, broker: PostgresBroker, app_file: str) -> None:
    send(broker, new_task(queue_name="mail"))
    assert cli("queues", "pause", "mail", "--app", app_file).out == "queue 'mail' is paused\n"
    assert claim(broker, queues=["mail"]) == []
    assert cli("queues", "resume", "mail").out == "queue 'mail' is active\n"
    assert len(claim(broker, queues=["mail"])) == 1


def test_an_unknown_queue_is_refused_with_an_app_and_a_warning_without(cli: Cli, app_file: str) -> None:
    with_app = cli("queues", "pause", "mial", "--app", app_file)
    assert (with_app.code, with_app.out) == (1, "")
    assert "there is no queue 'mial'; this app has 'mail', 'media'" in with_app.err
    without = cli("queues", "pause", "mial")
    assert without.code == 0
    assert "names a queue 'mial'" in without.err
    assert cli("queues", "resume", "mial").err == ""
    empty = cli("queues", "pause", "")
    assert (empty.code, empty.err) == (1, "Error: '' is not the name of a queue\n")
    assert "'' is not the name of a queue" in cli("queues", "cap", "", "3").err


def test_purging_a_queue_cancels_tasks_that_have_not_started(
    cli: Cli, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    send_new(broker)
    claim(broker)
    *_, delayed = send_new(broker, 3)
    sql.execute(DELAY, [delayed.id])
    send(broker, new_task(queue_name="mail"))
    (expired,) = send_new(broker)
    sql.execute("update horsies.tasks set good_until = now() where id = %s", [expired.id])
    assert broker.run(expire_tasks) == 1
    assert cli("queues", "purge", "default", "--dry-run").out == "would cancel 3 tasks\n"
    assert cli("queues", "purge", "default", "--yes").out == "3: cancelled\n"
    ended = column(sql, "select status || ' ' || error_code from horsies.finished order by 1")
    assert ended == ["CANCELLED TASK_CANCELLED"] * 3 + ["EXPIRED TASK_EXPIRED"]
    assert column(sql, "select queue_name from horsies.tasks order by 1") == ["default", "mail"]
    assert column(sql, "select id from horsies.tasks where cancel_requested_at is not null") == []


# -- workers


def test_workers_are_listed_and_shown_by_a_prefix_of_their_ids(
    cli: Cli, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    for worker in (ME, OTHER):
        register(sql, worker)
    sql.execute("update horsies.workers set heartbeat_at = now() - interval '75 s' where id = %s", [OTHER])
    send_new(broker, 2)
    claim(broker, worker=OTHER)
    ours, others = cli("workers", "list", "--json").json["workers"]
    assert (ours["tasks_running"], others["tasks_running"]) == (0, 2)
    assert others["heartbeat_age_s"] >= 75
    assert "1m 1" in cli("workers", "list").out
    assert "the ids of several workers start with" in cli("workers", "show", ME[:8]).err
    assert cli("workers", "show", ME, "--json").json["is_registered"]
    assert "is not the id of a worker" in cli("workers", "show", "not an id").err


def test_a_worker_that_died_is_found_by_a_prefix_of_its_id(cli: Cli, sql: psycopg.Connection) -> None:
    sql.execute(DEAD, [ME])
    assert f"{ME[:13]}" in cli("workers", "list", "--dead").out
    assert cli("workers", "show", ME[:8], "--json").json["dead"]["hostname"] == "here"


def test_the_health_of_a_worker_that_is_gone_is_still_shown(cli: Cli, sql: psycopg.Connection) -> None:
    sql.execute(
        "insert into horsies.worker_states (worker_id, hostname, pid, processes, concurrency, queues, tasks_running, "
        "tasks_claimed, memory_usage_mb, children_memory_mb, cpu_percent, children_cpu_percent, worker_started_at) "
        "values (%s, 'here', 1, 2, 3, '{default}', 5, 6, 70, 80, 1, 2, now())",
        [ME],
    )
    assert "no longer registered" in cli("workers", "show", ME[:8]).out
    (state,) = cli("workers", "show", ME[:8], "--json").json["states"]
    assert (state["tasks_running"], state["memory_usage_mb"]) == (5, 70)


def test_a_worker_with_busy_children_answers_a_ping_and_one_that_is_gone_does_not(
    cli: Cli, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    env = {
        "HORSIES_TEST_HEARTBEAT_MS": "60000",
        "HORSIES_TEST_DEAD_AFTER_MS": "180000",
    }  # no regular heartbeat comes during the test
    worker("tests.apps.tuned:app", env=env)
    insert_rows(sql, "gate", [{"begun": str(tmp_path / "begun"), "until": str(tmp_path / "open")}])
    eventually((tmp_path / "begun").exists)
    (answer,) = cli("workers", "ping", "--timeout=30", "--json").json["workers"]
    assert answer["answered_ms"] is not None
    register(sql, ME)
    ran = cli("workers", "ping", ME, "--timeout=0.1")
    assert ran.code == 1
    assert f"{ME}  no answer" in ran.out
    (tmp_path / "open").touch()


# -- status


def test_the_status_has_queues_workers_and_finished_tasks(
    cli: Cli, broker: PostgresBroker, sql: psycopg.Connection, app_file: str
) -> None:
    send_new(broker, 3)
    first, *_ = claim(broker)
    do(broker, finish_tasks(ME, [completed(first)]))
    register(sql, ME)
    found = cli("status", app_file, "--json").json
    assert found.keys() == {
        "now", "server", "findings", "queues", "error_groups", "longest_running", "workers", "dead_workers", "schedules",
        "failing_schedules", "unknown", "workflows",
        "finished_last_hour", "oldest_waiting_s", "not_permitted", "timed_out",
    }  # fmt: skip
    assert [line["name"] for line in found["queues"]] == ["default", "mail", "media"]
    assert found["finished_last_hour"] == {"COMPLETED": 1, "FAILED": 0, "CANCELLED": 0, "EXPIRED": 0}
    text = cli("status").out
    assert "1 ended, 0.0 a minute: 1 COMPLETED" in text
    assert ME in text


def test_a_watch_repeats_until_ctrl_c_and_exits_without_an_error(database: str) -> None:
    code = "import signal; signal.signal(2, signal.default_int_handler); from horsies.cli.main import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, "status", "--watch=0.1"],
        env={**os.environ, "HORSIES_DATABASE_URL": database},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        seen = 0
        while seen < 2:
            seen += "workflows " in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "Traceback" not in errors
    assert "Aborted" not in errors


def test_the_status_shows_what_its_role_may_read_and_names_the_rest(
    database: str, plain_user: PlainUser, sql: psycopg.Connection, broker: PostgresBroker
) -> None:
    send_new(broker, 1)
    sql.execute(f"grant usage on schema horsies to {plain_user.name}".encode())
    for table in ("schema_versions", "tasks", "queues", "finished"):
        sql.execute(f"grant select on horsies.{table} to {plain_user.name}".encode())
    ran = run("status", database_url=plain_user.url(database))
    assert (ran.code, ran.err) == (0, "")
    hidden = {"queues", "error groups", "workers", "dead workers", "schedules", "workflows", "ended"}
    (line,) = [line for line in ran.out.splitlines() if line.startswith("not permitted")]
    assert hidden == set(line.removeprefix("not permitted").partition(":")[0].strip().split(", "))
    assert "CHECK_NOT_PERMITTED: workers: permission denied for table workers; " in ran.out
    assert "none is registered" not in ran.out
    assert "last hour" not in ran.out
    found = run("status", "--json", database_url=plain_user.url(database)).json
    assert {name.replace("_", " ") for name in found["not_permitted"]} == hidden
    assert (found["unknown"], found["finished_last_hour"]) == ([], {})


def test_while_a_table_is_locked_the_status_shows_the_rest_and_names_what_it_could_not_read(
    database: str, sql: psycopg.Connection, broker: PostgresBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "READ_TIMEOUT_S", 1)
    send_new(broker, 1)
    with psycopg.connect(database) as holder:
        holder.execute("lock table horsies.workflows in access exclusive mode")
        text = run("status", database_url=database)
        found = run("status", "--json", database_url=database).json
    assert (text.code, text.err) == (0, "")
    assert "timed out      workflows: not read in 1 s; look for a session that holds a lock (`pg_locks`)" in text.out
    assert "NO_WORKERS: " in text.out
    assert "CHECK_TIMED_OUT: " in text.out
    assert "none under way" not in text.out
    assert (found["timed_out"], found["not_permitted"], found["workflows"]) == (["workflows"], [], {})


def test_what_is_not_counted_completely_has_a_plus(
    cli: Cli, sql: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "MAX_TAIL", 2)
    for _ in range(3):
        end_task(sql, current(sql))
    assert "2+ ended, 0.0+ a minute: 2 COMPLETED" in cli("status").out
    assert cli("status", "--json").json["finished_last_hour"]["COMPLETED"] == 2


def test_many_problems_of_one_kind_hide_no_other_on_a_small_screen(database: str, sql: psycopg.Connection) -> None:
    sql.execute(
        "insert into horsies.tasks (task_name, queue_name) select 't', 'q' || number from generate_series(1, 40) as number"
    )
    sql.execute("insert into horsies.queues (name, paused_at) select queue_name, now() from horsies.tasks")
    sql.execute(DEAD, [OTHER])
    screen = screen_of("status", database=database, lines=24, columns=80)
    assert "QUEUE_PAUSED (40 of them): queue 'q1' has been paused" in screen
    assert "DEAD_WORKERS: 1 worker died" in screen
    assert "37 more: horsies queues list" in screen
    assert len(screen.splitlines()) < 24
    assert screen_of("status", "--wide", database=database, lines=24, columns=80).count("QUEUE_PAUSED: ") == 40
