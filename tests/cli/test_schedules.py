"""`horsies schedules` and `horsies scheduler`."""

import json
import os
import secrets
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result

from horsies import AppConfig, Horsies
from horsies.cli.main import main
from horsies.db.broker import PostgresBroker
from horsies.model.schedule import CronSchedule, DailySchedule, IntervalSchedule
from horsies.model.task import TaskOptions
from tests.fixtures.journey import column, row
from tests.fixtures.processes import run_module
from tests.schedules.steps import declare, store, tick_at

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
Run = Callable[..., Result]


@pytest.fixture
def schedules(database: str) -> Run:
    """`schedules("list", "--json")`, in this process."""

    def run(*words: str) -> Result:
        return CliRunner().invoke(main, ["schedules", *words, "--database-url", database])

    return run


@pytest.fixture
def stored(broker: PostgresBroker) -> PostgresBroker:
    store(
        broker,
        declare("report", DailySchedule(time(9, 30)), timezone="Europe/Berlin", args='{"n":1}', jitter=2),
        declare("mail", IntervalSchedule(minutes=5), terms=TaskOptions("send", "letters")),
        declare("off", CronSchedule("*/5 9-17 * * mon-fri"), enabled=False),
        now=NOON,
    )
    return broker


def output_of(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.output


def as_json(result: Result) -> Any:
    return json.loads(output_of(result))


def test_the_status_counts_schedules_by_state(database: str, stored: PostgresBroker) -> None:
    result = CliRunner().invoke(main, ["status", "--json", "--database-url", database])
    assert as_json(result)["schedules"] == {"active": 2, "disabled": 1}


def test_the_list_shows_what_is_stored(schedules: Run, stored: PostgresBroker) -> None:
    mail, off, report = output_of(schedules("list")).splitlines()[1:]
    assert mail.startswith("mail")
    assert "every 5 minutes" in mail
    assert "disabled" in off
    assert "*/5 9-17 * * mon-fri" in off
    assert "daily at 09:30:00" in report
    assert "Europe/Berlin" in report


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--task", "send"), ["mail"]),
        (("--queue", "default"), ["off", "report"]),
        (("--state", "active"), ["mail", "report"]),
        (("--state", "disabled"), ["off"]),
        (("--task", "none"), []),
    ],
)
def test_the_list_can_be_filtered(
    schedules: Run, stored: PostgresBroker, words: tuple[str, ...], expected: list[str]
) -> None:
    assert [each["name"] for each in as_json(schedules("list", "--json", *words))["schedules"]] == expected


def test_a_schedule_is_shown_with_its_next_slots_and_its_history(schedules: Run, stored: PostgresBroker) -> None:
    tick_at(stored, NOON + timedelta(days=3))
    shown = as_json(schedules("show", "report", "--json"))
    assert shown["pattern"] == {"kind": "daily", "time": "09:30:00"}
    assert shown["state"] == "active"
    slots = [datetime.fromisoformat(slot) for slot in shown["next_slots"]]
    assert slots == [datetime(2026, 6, day, 7, 30, tzinfo=UTC) for day in (5, 6, 7, 8, 9)]
    assert [run["outcome"] for run in shown["runs"]] == ["ENQUEUED", "MISSED"]
    text = output_of(schedules("show", "report"))
    assert "daily at 09:30:00" in text
    assert " to " in text
    assert shown["last_task_id"] in text
    assert len(as_json(schedules("show", "report", "--json", "--limit", "1"))["runs"]) == 1


def test_a_schedule_can_be_run_now(schedules: Run, stored: PostgresBroker, sql: psycopg.Connection) -> None:
    task_id = as_json(schedules("run", "report", "--json"))["task_id"]
    assert row(sql, "select id::text, args::text from horsies.tasks") == (task_id, '{"n":1}')
    assert "enqueued task " in output_of(schedules("run", "off"))
    assert column(sql, "select outcome from horsies.schedule_runs") == ["BY_HAND", "BY_HAND"]


def test_a_schedule_can_be_paused_and_resumed(schedules: Run, stored: PostgresBroker) -> None:
    assert output_of(schedules("pause", "report")) == "schedule 'report' is paused\n"
    shown = as_json(schedules("show", "report", "--json"))
    assert (shown["state"], shown["next_slots"], shown["next_slot_at"]) == ("paused", [], None)
    assert output_of(schedules("resume", "report")) == "schedule 'report' is active\n"
    assert as_json(schedules("show", "report", "--json"))["state"] == "active"
    assert as_json(schedules("pause", "report", "--json")) == {"name": "report", "is_paused": True}
    assert as_json(schedules("resume", "report", "--json")) == {"name": "report", "is_paused": False}


@pytest.mark.parametrize("verb", ["show", "run", "pause", "resume"])
def test_an_unknown_schedule_is_reported(schedules: Run, verb: str) -> None:
    result = schedules(verb, "report")
    assert result.exit_code == 1
    assert "there is no schedule 'report'; see `horsies schedules list`" in result.output


SHOP = """
from datetime import date
from horsies import AppConfig, Horsies, TaskError, TaskResult

app = Horsies(AppConfig())

@app.task("report")
def report(since: date, number: int = 0) -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)

@app.task("secret", sensitive=True)
def secret(number: int) -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)
"""


@pytest.fixture
def shop(database: str, broker: PostgresBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`shop("create", …)` with the code of an app."""
    file = tmp_path / f"shop_{secrets.token_hex(4)}.py"  # not loaded before in this process
    monkeypatch.setattr(sys, "path", list(sys.path))
    file.write_text(SHOP.replace("AppConfig()", f"AppConfig.for_database_url({database!r})"))

    def run(*words: str) -> Result:
        return CliRunner().invoke(main, ["schedules", *words, "--app", f"{file}:app"])

    return run


def test_a_schedule_can_be_created_changed_and_removed(shop: Run, database: str) -> None:
    arguments = '{"since": "2026-01-31"}'
    created = shop(
        "create", "report", "--task=report", "--cron", "30 2 * * *", "--timezone=Europe/Berlin", "--args", arguments
    )
    assert output_of(created).startswith("schedule 'report' is stored: 30 2 * * *, next slot: 20")
    stored = as_json(shop("show", "report", "--json"))
    assert (stored["pattern"], stored["timezone"], stored["queue_name"]) == (
        {"kind": "cron", "expression": "30 2 * * *"}, "Europe/Berlin", "default",
    )  # fmt: skip
    assert json.loads(stored["args"]) == {"since": "2026-01-31"}
    assert (stored["catch_up_missed"], stored["max_catch_up_runs"], stored["overlap"]) == (False, 100, "allow")
    options = ("--every=90s", "--catch-up=3", "--overlap=skip", "--jitter=2s")
    changed = as_json(shop("change", "report", *options, "--json"))
    assert changed["pattern"] == {"kind": "interval", "days": 0, "hours": 0, "minutes": 0, "seconds": 90}
    assert (changed["catch_up_missed"], changed["max_catch_up_runs"]) == (True, 3)
    assert (changed["overlap"], changed["jitter_ms"]) == ("skip", 2_000)
    kept = ("timezone", "args", "task_name", "queue_name")
    assert [changed[name] for name in kept] == [stored[name] for name in kept], "what is not given stays"
    assert output_of(shop("remove", "report", "--dry-run")) == "would remove schedule 'report'\n"
    unconfirmed = shop("remove", "report")
    assert (unconfirmed.exit_code, "--yes" in unconfirmed.output) == (2, True)
    assert as_json(shop("remove", "report", "--yes", "--json")) == {
        "name": "report",
        "dry_run": False,
        "is_removed": True,
    }
    with closing(Horsies(AppConfig.for_database_url(database))) as app:
        assert [entry.action for entry in app.ops.list_audit()] == [
            "remove schedule",
            "change schedule",
            "create schedule",
        ]


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (("create", "x", "--task=report"), 2, "give --every or --cron"),
        (("create", "x", "--task=report", "--every=1h", "--cron=* * * * *"), 2, "both --every and --cron are given"),
        (("create", "x", "--task=lost", "--every=1h"), 1, "there is no task 'lost'; this app has 'report', 'secret'"),
        (("create", "x", "--task=report", "--every=1h", "--args", '{"since": "soon"}'), 1, "since"),
        (("create", "x", "--task=report", "--every=1h", "--args", "{"), 1, "report()"),
        (("create", "x", "--task=report", "--every=1h"), 1, "since"),
        (("create", "x", "--task=report", "--cron=* *"), 1, "has 2 fields"),
        (("create", "x", "--task=report", "--every=0s"), 1, "the interval is 0:00:00"),
        (("create", "x", "--task=report", "--every=1.5s"), 2, "'1.5s' is not a number of whole seconds"),
        (("change", "x", "--every=1h"), 1, "there is no schedule 'x'"),
        (("change", "hidden", "--every=2h"), 2, "give --args: those of a sensitive task are hidden"),
        (("change", "hidden", "--task=report"), 2, "another task takes others"),
        (("remove", "x", "--yes"), 1, "there is no schedule 'x'"),
    ],
)
def test_a_schedule_that_cannot_be_created_changed_or_removed_is_refused(
    shop: Run, words: tuple[str, ...], code: int, reason: str
) -> None:
    output_of(shop("create", "hidden", "--task=secret", "--every=1h", "--args", '{"number": 1}'))
    refused = shop(*words)
    assert (refused.exit_code, reason in " ".join(refused.output.split())) == (code, True), refused.output
    assert "Traceback" not in refused.output
    (only,) = as_json(shop("list", "--json"))["schedules"]
    assert (only["name"], only["pattern"]["seconds"] + only["pattern"]["hours"] * 3600) == ("hidden", 3_600)


def test_an_empty_list_is_not_an_error(schedules: Run) -> None:
    result = schedules("list")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "no schedule matches" in result.stderr
    assert as_json(schedules("list", "--json")) == {"schedules": []}


@pytest.mark.promise("A9")
def test_the_scheduler_reports_problems_of_an_app_before_it_connects(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from horsies import AppConfig, Horsies, IntervalSchedule, ScheduleConfig, TaskSchedule\n"
        "app = Horsies(AppConfig(schedule=ScheduleConfig(schedules=["
        "TaskSchedule(name='a', task_name='lost', pattern=IntervalSchedule(hours=1))])))\n"
    )
    env = {**os.environ, "HORSIES_DATABASE_URL": "postgresql://unknown@127.0.0.1:1/nothing"}
    done = run_module("horsies.cli.main", "scheduler", "shop:app", env=env, cwd=tmp_path, timeout_s=30)
    assert done.returncode == 1
    assert "schedule 'a': there is no task 'lost'; this app has none" in done.stderr
    assert "Traceback" not in done.stderr
    usage = CliRunner().invoke(main, ["scheduler"], env={"HORSIES_APP": ""})
    assert usage.exit_code == 2
    assert "name the APP" in usage.stderr
