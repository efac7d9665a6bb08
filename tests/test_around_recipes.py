"""The recipes of docs/around.md, run as they stand in the page."""

import re
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg
import pytest
import sentry_sdk
import sqlalchemy
import structlog
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport
from structlog.testing import LogCapture

from horsies.testing import Ran, drain, drain_async, open_sandbox

PAGE = Path(__file__).parents[1] / "docs" / "around.md"
Recipe = Callable[..., Any]


@pytest.fixture
def recipe(database: str) -> Generator[Recipe]:
    """Run the snippet below a heading as a module, and connect its app to the database of the test."""
    opened: list[Any] = []

    def run(heading: str, **replaced: str) -> Any:
        _, _, rest = PAGE.read_text().partition(f"### {heading}\n")
        code, *_ = re.findall(r"```python\n(.*?)```", rest, re.DOTALL)
        for old, new in replaced.items():
            assert old in code
            code = code.replace(old, new)
        module = ModuleType(f"recipe_{heading.replace(' ', '_')}")
        sys.modules[module.__name__] = module
        exec(compile(code, str(PAGE), "exec"), vars(module))  # noqa: S102 - our own page
        sandbox = open_sandbox(module.app, database)
        sandbox.__enter__()
        opened.append(sandbox)
        return module

    yield run
    for sandbox in reversed(opened):
        sandbox.__exit__(None, None, None)


def test_a_task_works_in_a_transaction_that_is_committed_if_it_succeeds(
    recipe: Recipe, database: str, sql: psycopg.Connection
) -> None:
    shop = recipe("A transaction per task")
    shop.engine.dispose()
    shop.engine = sqlalchemy.create_engine(database.replace("postgresql://", "postgresql+psycopg://", 1))
    sql.execute("create table shops (id int primary key, name text); insert into shops values (1, 'one')")
    shop.rename_shop.send(1, "two")
    drain()
    assert sql.execute("select name from shops").fetchall() == [("two",)]
    shop.rename_shop.send(1, "")
    drain()
    assert sql.execute("select name from shops").fetchall() == [("two",)]
    sql.execute("alter table shops add unique (name) deferrable initially deferred; insert into shops values (2, 'x')")
    shop.rename_shop.send(1, "x")
    (ran,) = drain()
    assert ran.error is not None
    assert ran.error.message.startswith("middleware transaction raised IntegrityError")
    shop.engine.dispose()


class Recorder(Transport):
    """Keeps the events instead of sending them."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Any] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.events += [event for item in envelope.items if (event := item.get_event())]


def test_sentry_receives_the_exception_with_the_task(recipe: Recipe) -> None:
    recorder = Recorder()
    sentry_sdk.init(dsn="http://key@localhost/1", transport=recorder, default_integrations=False)
    try:
        shop = recipe("Sentry")
        shop.divide.send(4, 2)
        handle = shop.divide.send(4, 0)
        assert [ran.status.value for ran in drain()] == ["COMPLETED", "FAILED"]
        shop.flush_sentry()
    finally:
        sentry_sdk.get_client().close()
        sentry_sdk.get_global_scope().set_client(None)
    (event,) = recorder.events
    assert event["exception"]["values"][0]["type"] == "ZeroDivisionError"
    assert event["transaction"] == "divide"
    assert event["tags"] == {"task_id": handle.task_id}
    assert event["contexts"]["task"] == {"queue": "default", "attempt": 1}


async def test_lines_of_structlog_have_the_task(recipe: Recipe) -> None:
    shop, lines = recipe("structlog"), LogCapture()
    structlog.configure(processors=[structlog.contextvars.merge_contextvars, lines])
    try:
        handle = await shop.greet.send_async("ann")
        ran: list[Ran] = await drain_async()
    finally:
        structlog.reset_defaults()
    assert [each.status.value for each in ran] == ["COMPLETED"]
    assert lines.entries == [
        {
            "event": "greeting", "name": "ann", "log_level": "info", "task_id": handle.task_id, "task": "greet", "attempt": 1,
        }
    ]  # fmt: skip
    assert structlog.contextvars.get_contextvars() == {}


def test_a_tenant_is_taken_from_the_arguments(recipe: Recipe) -> None:
    shop = recipe("Tenants")
    handle = shop.bill.send("acme")
    drain()
    assert handle.get(timeout_ms=0).unwrap() == "billed acme"
