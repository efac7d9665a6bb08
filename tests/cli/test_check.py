"""`horsies check`: what an app contains, and everything that is wrong with it."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner, Result

from horsies import AppConfig, BlockingCallError, Horsies
from horsies.cli.main import main
from horsies.locate import find_app
from tests.cli.test_commands import GONE
from tests.fixtures.roles import PlainUser

SHOP = """
from horsies import *

app = Horsies(AppConfig(
    queue_mode=QueueMode.CUSTOM,
    custom_queues=[CustomQueueConfig(name="parcels", max_concurrency=3), CustomQueueConfig(name="letters", priority=5)],
))
app.discover_tasks([MODULES])

@app.task("pack", queue_name="parcels", timeout_ms=90_000,
          retry_policy=RetryPolicy.fixed([1, 5], auto_retry_for=["OUT_OF_PAPER", ConnectionError]))
async def pack(number: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=number)

@app.on_child_start
def open_shop() -> None: ...

class Shipping(WorkflowDefinition[int]):
    name = "shipping"
    first = pack.node()(1)
    second = pack.node()(from_node(first))

    class Meta:
        output = "second"

class Parametrised(WorkflowDefinition[int]):
    name = "parametrised"

    @classmethod
    def build_with(cls, app, *, count):
        return app.workflow(name="parametrised", tasks=[pack.node()(count)])
"""


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`check("shop_1:app")` in its own folder, without a database."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delenv("HORSIES_APP", raising=False)
    monkeypatch.setenv("HORSIES_DATABASE_URL", GONE)
    return lambda *words: CliRunner().invoke(main, ["check", *words])


def write(name: str, text: str = SHOP, modules: str = "") -> str:
    Path(f"{name}.py").write_text(text.replace("MODULES", modules))
    return f"{name}:app"


def test_everything_in_an_app_is_shown(check: Callable[..., Result]) -> None:
    found = check(write("whole_shop"))
    assert (found.exit_code, found.stderr) == (0, "")
    lines = [line.split() for line in found.stdout.splitlines()]
    assert ["database:", "postgresql://somebody:***@127.0.0.1:1/nothing"] in lines
    assert ["on", "child", "start:", "whole_shop.open_shop"] in lines
    assert ["letters", "5", "-", "0"] in lines
    assert ["parcels", "100", "3", "1"] in lines
    assert ["pack", "parcels", "2", "OUT_OF_PAPER,", "ConnectionError", "1m", "30s", "whole_shop.pack"] in lines
    assert ["shipping", "2", "whole_shop.Shipping"] in lines
    assert ["parametrised", "-", "whole_shop.Parametrised"] in lines


def test_json_has_the_same(check: Callable[..., Result]) -> None:
    printed = json.loads(check(write("json_shop"), "--json").stdout)
    assert printed.keys() == {
        "app", "modules", "queues", "tasks", "workflows", "schedules", "child_start_hooks", "child_stop_hooks", "middleware", "problems", "live",
    }  # fmt: skip
    assert printed["tasks"] == [
        {
            "name": "pack",
            "queue": "parcels",
            "retries": 2,
            "retry_for": ["OUT_OF_PAPER", "ConnectionError"],
            "timeout_ms": 90_000,
            "is_async": True,
            "on_failure": None,
            "function": "json_shop.pack",
        }
    ]
    assert {"name": "shipping", "definition": "json_shop.Shipping", "nodes": 2} in printed["workflows"]
    assert (printed["problems"], printed["live"]) == ([], None)


def test_all_problems_are_reported_together(check: Callable[..., Result]) -> None:
    Path("broken_tasks.py").write_text("1 / 0\n")
    looping = SHOP.replace("second = pack.node()(from_node(first))", 'second = pack.node(waits_for=["third"])(2)')
    app = write("bad_shop", looping, '"no_such_tasks", "broken_tasks"')
    found = check(app)
    assert found.exit_code == 1
    assert "there is no module 'no_such_tasks' here" in found.stderr
    assert "ZeroDivisionError" in found.stderr
    assert "1 problem in workflow 'shipping'" in found.stderr
    assert len(json.loads(check(app, "--json").stdout)["problems"]) == 3


def test_an_app_that_cannot_be_loaded_is_reported_in_one_message(check: Callable[..., Result]) -> None:
    found = check("no_such_shop:app")
    assert found.exit_code == 1
    assert found.stderr.startswith("Error: cannot import 'no_such_shop'")
    assert check().exit_code == 2


def test_workflows_of_another_app_are_left_out(check: Callable[..., Result]) -> None:
    write("other_shop")
    app = write("own_shop", "import other_shop\nfrom horsies import *\napp = Horsies()\n")
    printed = json.loads(check(app, "--json").stdout)
    assert "other_shop.Shipping" not in {workflow["definition"] for workflow in printed["workflows"]}
    assert printed["problems"] == []


# -- live


def test_live_an_unreachable_database_is_a_finding(check: Callable[..., Result]) -> None:
    found = check(write("far_shop"), "--live")
    assert found.exit_code == 1
    assert "DATABASE_UNREACHABLE" in found.stdout


def test_live_the_database_and_the_workers_are_checked(
    check: Callable[..., Result], database: str, sql: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HORSIES_DATABASE_URL", database)
    app = write("live_shop")
    idle = json.loads(check(app, "--live", "--json").stdout)["live"]
    assert [finding["code"] for finding in idle["findings"]] == ["NO_WORKERS"]
    assert {check["name"] for check in idle["checks"]} == {
        "database", "privileges", "schema", "notifications", "workers", "caps",
            "schedules of other apps",
    }  # fmt: skip
    sql.execute(
        "insert into horsies.workers (id, hostname, pid, processes, concurrency, queues, library_version) "
        "values (gen_random_uuid(), 'here', 1, 1, 1, '{parcels}', '1')"
    )
    found = check(app, "--live")
    assert found.exit_code == 0
    assert "warning QUEUE_WITHOUT_WORKER: no worker serves letters" in found.stdout


def test_live_missing_privileges_are_an_error(
    check: Callable[..., Result],
    database: str,
    sql: psycopg.Connection,
    plain_user: PlainUser,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HORSIES_DATABASE_URL", plain_user.url(database))
    found = check(write("poor_shop"), "--live")
    assert found.exit_code == 1
    assert "PRIVILEGES_MISSING: this user has no" in found.stdout


# -- from Python


def test_from_python_an_app_returns_what_the_command_prints(
    check: Callable[..., Result], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HORSIES_DATABASE_URL", database)
    Path("more_parcels_1.py").write_text(
        "from python_shop import app\nfrom horsies import *\n"
        "@app.task('wrap', queue_name='parcels')\ndef wrap() -> TaskResult[int, TaskError]: ...\n"
    )
    locator = write("python_shop", modules="'more_parcels_*.py', 'nothing_*.py'")
    app = find_app(locator)
    offline = app.check()
    assert [task.name for task in offline.tasks] == ["pack", "wrap"]
    assert offline.modules == ["more_parcels_1.py"]
    (problem,) = offline.problems
    assert "task modules 'nothing_*.py' of python_shop:app match nothing" in problem
    assert offline.findings is None
    assert not offline.is_good

    live = app.check(live=True)
    printed = json.loads(check(locator, "--live", "--json").stdout)
    returned = asdict(live)
    assert returned.pop("name") == printed.pop("app") == locator
    assert returned.pop("findings") == printed.pop("live")["findings"]
    assert returned == printed
    assert [finding.code for finding in live.findings or ()] == ["NO_WORKERS"]
    app.close()


def test_from_python_an_unreachable_database_is_a_finding(check: Callable[..., Result]) -> None:
    app = find_app(write("gone_shop"))
    assert app.check().is_good
    found = app.check(live=True)
    assert [(finding.code, finding.severity) for finding in found.findings or ()] == [("DATABASE_UNREACHABLE", "error")]
    assert not found.is_good


async def test_from_asyncio_code_a_live_check_runs_beside_the_event_loop() -> None:
    app = Horsies(AppConfig.for_database_url(GONE))
    with pytest.raises(BlockingCallError, match="check_async"):
        app.check(live=True)
    assert app.check().is_good
    assert not (await app.check_async(live=True)).is_good
