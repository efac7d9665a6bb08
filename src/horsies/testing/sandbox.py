"""An app in a sandbox: for the time of a test it has a database of its own, whatever it was configured with.

All that this room does, it does to an app in a sandbox and to no other: a test that forgot to open one cannot drain, or move the
clock of, the database that the app is configured with.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from horsies.app import Horsies
from horsies.db.statement import Op, Statement, load, rows, script
from horsies.model.config import PostgresConfig
from horsies.model.errors import HorsiesError
from horsies.tasks.task import BaseTask

if TYPE_CHECKING:
    from horsies.db.broker import PostgresBroker

SQL = load(__file__)


class SandboxError(HorsiesError, RuntimeError):
    """Something was to be done in a sandbox, and there is none."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """An app and the database that it has for now."""

    app: Horsies
    broker: "PostgresBroker"

    @property
    def database_url(self) -> str:
        return self.broker.config.database_url


_open: list[Sandbox] = []


@contextmanager
def open_sandbox(app: Horsies, database_url: str) -> Generator[Sandbox]:
    """Put the app on this database, and at the end back to where it was. Makes the tables that are missing.

    Nothing is removed, neither before nor after: give it a database that is fresh, or see `clear`.
    """
    from horsies.db.broker import UnpooledBroker  # noqa: PLC0415 - with it comes psycopg: not before a test needs it

    configured = app.config.broker or PostgresConfig(database_url=database_url)
    database = replace(configured, database_url=database_url, listen_url=None)  # which led to the other one
    with UnpooledBroker(database, resilience=app.config.resilience) as broker:
        broker.migrate()
        sandbox = Sandbox(app, broker)
        with app.using(broker):
            _open.append(sandbox)
            try:
                yield sandbox
            finally:
                _open.remove(sandbox)


def clear(app: Horsies | None = None) -> None:
    """Remove everything that horsies has in the sandbox's database: for databases that serve one test after another."""
    broker = sandbox_of(app).broker
    broker.run(partial(_clear, broker.config.schema))


def _clear(schema: str) -> Op[None]:
    names = yield from rows(SQL["get_tables"](schema=schema))
    yield from script(Statement("clear", f"truncate {', '.join('{schema}.' + name for (name,) in names)}"))


def sandbox_of(app: Horsies | None) -> Sandbox:
    """The sandbox of this app, or the one opened last."""
    for sandbox in reversed(_open):
        if app is None or sandbox.app is app:
            return sandbox
    raise SandboxError(
        f"{'no app is' if app is None else 'this app is not'} in a sandbox; let the test have the fixture horsies_sandbox, "
        "or use `with open_sandbox(app, database_url):`"
    )


def sandbox_of_task(task: BaseTask[..., Any]) -> Sandbox:
    for sandbox in reversed(_open):
        if sandbox.app.tasks.get(task.name) is task:
            return sandbox
    raise SandboxError(
        f"task {task.name!r} belongs to no app in a sandbox; let the test have the fixture horsies_sandbox, and the fixture "
        "horsies_app return the app that the task was made with"
    )
