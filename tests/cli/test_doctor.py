"""`horsies doctor` for an operator: text, JSON, exit codes."""

import json
from collections.abc import Callable

import psycopg
import pytest
from click.testing import CliRunner, Result

from horsies.cli.main import main
from horsies.doctor.findings import FindingCode
from horsies.doctor.run import ALL
from tests.cli.test_commands import GONE, Horsies, folder, horsies

__all__ = ["folder", "horsies"]  # fixtures

Run = Callable[..., Result]
INSERT_OLD_TASK = "insert into horsies.tasks (task_name, enqueued_at) values ('add', now() - interval '1 hour')"
INSERT_WORKER = (
    "insert into horsies.workers (id, hostname, pid, processes, concurrency, queues, library_version) "
    "values (gen_random_uuid(), 'here', 1, 1, 1, '{default}', '1')"
)


@pytest.fixture
def doctor(database: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.delenv("HORSIES_APP", raising=False)
    monkeypatch.setenv("HORSIES_DATABASE_URL", database)
    return lambda *words: CliRunner().invoke(main, ["doctor", *words])


def test_a_finding_is_printed_with_its_fix_and_what_passed_in_one_line(doctor: Run, sql: psycopg.Connection) -> None:
    sql.execute("drop trigger tasks_notify_new on horsies.tasks")
    found = doctor()
    assert found.exit_code == 1
    assert (
        "error   NOTIFY_TRIGGER_OFF: trigger tasks_notify_new on tasks does not exist\n"
        f"        fix: {FindingCode.NOTIFY_TRIGGER_OFF.value.fix}\n" in found.stdout
    )
    assert "\nok      database, " in found.stdout
    assert found.stdout.splitlines()[-1].startswith("1 error")
    assert "\x1b" not in found.stdout
    assert found.stderr == ""


def test_the_worst_comes_first(doctor: Run, sql: psycopg.Connection) -> None:
    sql.execute("insert into horsies.queues (name, paused_at) values ('invoices', now() - interval '1 hour')")
    sql.execute("insert into horsies.tasks (task_name, queue_name) values ('send_invoice', 'invoices')")
    sql.execute("insert into horsies.tasks (task_name, unknown_since) values ('send_gift', now() - interval '1 hour')")
    sql.execute(INSERT_WORKER)
    severities = [finding["severity"] for finding in json.loads(doctor("--json").stdout)["findings"]]
    assert {"error", "warning"} <= {*severities}
    assert severities == sorted(severities, key=["error", "warning", "info"].index)
    first, *_ = doctor().stdout.split()
    assert first == "error"


@pytest.mark.parametrize(("words", "code"), [((), 0), (("--strict",), 1), (("--max-wait", "2h"), 0)])
def test_warnings_fail_only_with_strict(
    doctor: Run, sql: psycopg.Connection, words: tuple[str, ...], code: int
) -> None:
    sql.execute(INSERT_OLD_TASK)
    sql.execute(INSERT_WORKER)
    found = doctor(*words)
    assert found.exit_code == code
    assert ("WAITING_LONG" in found.stdout) is ("--max-wait" not in words)


def test_json_has_codes_numbers_and_fixes(doctor: Run, sql: psycopg.Connection) -> None:
    sql.execute(INSERT_OLD_TASK)
    sql.execute(INSERT_WORKER)
    report = json.loads(doctor("--json").stdout)
    assert report.keys() == {"severity", "findings", "checks"}
    (waiting,) = [finding for finding in report["findings"] if finding["code"] == "WAITING_LONG"]
    assert waiting.keys() == {"code", "severity", "seen", "fix", "target", "data"}
    assert waiting["target"] == {"kind": "queue", "id": "default"}
    assert (waiting["severity"], waiting["data"]["queue"], waiting["data"]["waiting"]) == ("warning", "default", 1)
    assert [check["name"] for check in report["checks"]] == [check.name for check in ALL]
    assert len({check["name"] for check in report["checks"]}) == len(ALL)


def test_the_queues_of_an_app_are_compared_with_those_of_the_workers(
    doctor: Run, sql: psycopg.Connection, app_file: str
) -> None:
    sql.execute(INSERT_WORKER.replace("{default}", "{email}").encode())
    assert "QUEUE_WITHOUT_WORKER: no worker serves mail, media" in doctor(app_file).stdout
    assert "QUEUE_WITHOUT_WORKER" not in doctor().stdout  # no app is given


@pytest.mark.parametrize("words", [("--max-wait", "long"), ("--timeout", "-1s"), ("--no-such-flag",)])
def test_wrong_usage(doctor: Run, words: tuple[str, ...]) -> None:
    assert doctor(*words).exit_code == 2


def test_an_unreachable_database_is_a_finding_and_the_command_exits(horsies: Horsies) -> None:
    result = horsies("doctor", "--database-url", GONE)
    assert result.code == 1
    assert result.out.startswith("error   DATABASE_UNREACHABLE: PostgreSQL: connection failed")
    assert "my-secret" not in result.out + result.err
    assert result.err == ""
    assert json.loads(horsies("doctor", "--json", "--database-url", GONE).out)["severity"] == "error"
