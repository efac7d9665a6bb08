"""Stored log lines of attempts, as operators read, hide, page and delete them. Workers store them in `tests/logs/test_attempt_logs.py`."""

import json
from collections.abc import Generator, Sequence

import psycopg
import pytest

from horsies import AppConfig, Horsies, TaskError, TaskResult
from horsies.db.broker import PostgresBroker
from horsies.model.attempt_log import KeptLines, LoggedLine
from horsies.model.config import PostgresConfig
from horsies.ops import AttemptLog, TaskFilter
from horsies.ops.api import Ops
from horsies.tasks.finish import finish_tasks
from tests.cli.conftest import run
from tests.fixtures.everything import HOSTILE, Everything
from tests.fixtures.journey import ME, claim, completed, do, send_new

NOW = 1_800_000_000.25


@pytest.fixture
def ops(database: str, broker: PostgresBroker) -> Generator[Ops]:
    app = Horsies(AppConfig(broker=PostgresConfig(database_url=database)))
    yield app.ops.acting_as("alice")
    app.close()


def add_log(sql: psycopg.Connection, task_id: str, claim_no: int, records: object, left_out: int = 0) -> None:
    text = records if isinstance(records, str) else json.dumps(records)
    statement = (
        "insert into horsies.attempt_logs (task_id, claim_no, attempt, records, left_out) values (%s, %s, %s, %s, %s)"
    )
    sql.execute(statement, [task_id, claim_no, claim_no, text, left_out])


def stored(*messages: str) -> str:
    lines = [LoggedLine(number, NOW, "INFO", "shop", text, None) for number, text in enumerate(messages, 1)]
    return KeptLines(lines).to_stored(1).records


def make_sensitive(sql: psycopg.Connection, task_id: str) -> None:
    sql.execute("update horsies.tasks set is_sensitive = true where id = %s", [task_id])


def test_the_newest_attempts_are_listed_oldest_first_a_page_at_a_time(
    ops: Ops, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    task, other = (task.id for task in send_new(broker, 2))
    for number in range(1, 6):
        add_log(sql, task, number, stored(f"line of {number}"))
    add_log(sql, other, 1, stored("of the other task"))

    def numbers(logs: Sequence[AttemptLog]) -> list[int]:
        return [log.claim_no for log in logs]

    assert numbers(ops.list_attempt_logs(task)) == [1, 2, 3, 4, 5]
    assert numbers(ops.list_attempt_logs(task, limit=2)) == [4, 5]
    assert numbers(ops.list_attempt_logs(task, limit=2, before=4)) == [2, 3]
    assert numbers(ops.list_attempt_logs(task, claim_no=3)) == [3]
    assert ops.list_attempt_logs("00000000-0000-4000-8000-000000000000") == []
    (log,) = ops.list_attempt_logs(task, claim_no=2)
    (line,) = log.lines
    assert (line.number, line.level, line.logger, line.message, line.exception) == (
        1,
        "INFO",
        "shop",
        "line of 2",
        None,
    )
    assert line.at is not None
    assert line.at.timestamp() == NOW


def test_those_of_a_sensitive_task_are_hidden_unless_revealed_and_that_is_recorded(
    ops: Ops, broker: PostgresBroker, sql: psycopg.Connection, database: str
) -> None:
    (task,) = (task.id for task in send_new(broker))
    add_log(sql, task, 1, stored("the card is 4111"))
    make_sensitive(sql, task)
    (hidden,) = ops.list_attempt_logs(task)
    assert (hidden.is_hidden, hidden.lines) == (True, [])
    assert ops.list_audit() == []
    for words in (("--logs",), ("--logs", "--json"), ("--logs", "--payload")):
        shown = run("tasks", "show", task, *words, database_url=database)
        assert shown.code == 0
        assert "4111" not in shown.out
    (revealed,) = ops.list_attempt_logs(task, reveal=True)
    assert (revealed.is_hidden, [line.message for line in revealed.lines]) == (False, ["the card is 4111"])
    assert [(entry.actor, entry.action, entry.target, entry.count) for entry in ops.list_audit()] == [
        ("alice", "reveal logs of task", task, 1)
    ]
    assert "4111" in run("tasks", "show", task, "--logs", "--reveal", database_url=database).out


def test_those_of_a_task_that_the_code_calls_sensitive_are_hidden(
    broker: PostgresBroker, sql: psycopg.Connection, database: str
) -> None:
    app = Horsies(AppConfig(broker=PostgresConfig(database_url=database)))

    @app.task("add", sensitive=True)
    def add() -> TaskResult[int, TaskError]:
        return TaskResult(ok=1)

    (task,) = (task.id for task in send_new(broker))
    add_log(sql, task, 1, stored("the card is 4111"))
    (hidden,) = app.ops.list_attempt_logs(task)
    app.close()
    assert hidden.is_hidden


@pytest.mark.parametrize(
    "records", ["1", "null", '"text"', "{}", "[1]", "[[]]", '[{"at": 1e300}]', '[{"at": "x", "message": {}}]', '[{"number": "\\u0000"}]', "[]"]
)  # fmt: skip
def test_what_other_software_has_written_is_shown_as_far_as_it_makes_sense(
    ops: Ops, broker: PostgresBroker, sql: psycopg.Connection, records: str, database: str
) -> None:
    (task,) = (task.id for task in send_new(broker))
    add_log(sql, task, 1, records)
    (log,) = ops.list_attempt_logs(task)
    assert len(log.lines) == (0 if records in {"[]", "{}"} else 1)
    assert run("tasks", "show", task, "--logs", database_url=database).code == 0


def test_the_command_shows_lines_gaps_and_tracebacks_and_nothing_that_a_terminal_obeys(everything: Everything) -> None:
    failed = run("tasks", "show", everything.tasks["failed"], "--logs", database_url=everything.database_url).out
    assert " ERROR shop: the second try has failed too\n    Traceback (most recent call last):\n" in failed
    assert "\n  ... 17 lines were left out ...\n" in failed
    assert failed.index("TimeoutError: no answer") < failed.index("left out") < failed.index("query took 3 ms")
    plain = run("tasks", "show", everything.tasks["failed"], database_url=everything.database_url).out
    assert "its attempts have log lines: add --logs" in plain
    spoken = run("tasks", "show", everything.tasks["failed"], "--logs", "--json", database_url=everything.database_url)
    (log,) = spoken.json["logs"]
    assert (log["left_out"], len(log["lines"]), log["lines"][0]["message"]) == (17, 4, "started")
    for name, text in HOSTILE.items():
        task = everything.tasks[f"hostile_{name}_failed"]
        shown = run("tasks", "show", task, "--logs", database_url=everything.database_url).out
        _, _, log_part = shown.rpartition("log of attempt")
        assert not set("\x1b\x07\x08\x7f\x9b\u202e\u2066\r") & set(log_part)
        shown = run("tasks", "show", task, "--logs", "--json", database_url=everything.database_url)
        assert shown.json["logs"][0]["lines"][0]["message"] == text


def test_a_line_cannot_pass_for_another(
    ops: Ops, broker: PostgresBroker, sql: psycopg.Connection, database: str
) -> None:
    (task,) = (task.id for task in send_new(broker))
    add_log(sql, task, 1, stored("first\n  2030-01-01 00:00:00.000 INFO shop: forged"))
    shown = run("tasks", "show", task, "--logs", database_url=database).out
    assert "\n      2030-01-01 00:00:00.000 INFO shop: forged" in shown


def test_a_purge_deletes_them_with_their_task_only(ops: Ops, broker: PostgresBroker, sql: psycopg.Connection) -> None:
    ended, live = (task.id for task in send_new(broker, 2))
    for task in (ended, live):
        add_log(sql, task, 1, stored("a"))
        add_log(sql, task, 2, stored("b"))
    (held, _) = claim(broker)
    do(broker, finish_tasks(ME, [completed(held)]))
    ops.purge_matching(TaskFilter()).run()
    assert held.id == ended
    left = sql.execute("select task_id::text from horsies.attempt_logs").fetchall()
    assert left == [(live,), (live,)]


def test_attempts_name_those_that_have_lines(everything: Everything) -> None:
    app = Horsies(AppConfig(broker=PostgresConfig(database_url=everything.database_url)))
    view = app.ops.show_task(everything.tasks["completed"])
    app.close()
    assert view is not None
    assert [attempt.has_logs for attempt in view.attempts] == [True]
