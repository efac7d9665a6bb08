"""Put an app into a sandbox: for the duration of a test it uses another database than the configured one.

Everything in this package works only on an app in a sandbox. A test without one cannot drain, or advance the clock of, the
database that the app is configured with.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from horsies.app import Horsies
from horsies.db.broker import PostgresBroker, UnpooledBroker
from horsies.db.statement import Op, Statement, load, rows, script
from horsies.model.config import PostgresConfig
from horsies.model.errors import HorsiesError
from horsies.tasks.task import BaseTask

SQL = load(__file__)
T = TypeVar("T")


class SandboxError(HorsiesError, RuntimeError):
    """There is no sandbox to work in."""


class TaskCalls:
    """How a drain calls the functions of tasks. A framework whose tests run in a transaction has another way."""

    joins_transactions = False
    """What is sent in a transaction of the caller can be drained before it is committed."""

    def can_drain(self) -> bool:
        """Whether a drain is allowed now, because of a send: not while a transaction is open whose end the tasks must wait for."""
        return True

    def before(self) -> Callable[[], object]:
        """Prepare a call. Return what to do after it."""
        return lambda: None

    def run_coroutine(self, runner: asyncio.Runner, coroutine: Coroutine[Any, Any, T], context: Context) -> T:
        return runner.run(coroutine, context=context)

    async def run_blocking(self, function: Callable[[], T]) -> T:
        """Call `before`, and what it has returned, from asyncio code."""
        return function()

    async def run_function(self, function: Callable[[], T]) -> T:
        """Call the function of a task from asyncio code."""
        return await asyncio.get_running_loop().run_in_executor(None, function)


@dataclass(frozen=True, slots=True)
class Sandbox:
    """An app and its temporary database."""

    app: Horsies
    broker: PostgresBroker
    calls: TaskCalls = field(default_factory=TaskCalls)

    @property
    def database_url(self) -> str:
        """The URL of the temporary database."""
        return self.broker.config.database_url


_open: list[Sandbox] = []
finders: list[Callable[[], Sandbox]] = []
"""Return the sandbox of a framework that creates the test database itself, or raise SandboxError."""


@contextmanager
def open_sandbox(app: Horsies, database_url: str) -> Generator[Sandbox]:
    """Connect the app to this database, and finally restore it. Create the tables that are missing.

    Nothing is removed, neither before nor after: pass a fresh database, or use `clear`.
    """
    configured = app.config.broker or PostgresConfig(database_url=database_url)
    database = replace(configured, database_url=database_url, listen_url=None)  # it belongs to the configured one
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
    """Empty the horsies tables in the sandbox's database, for a database that several tests use in turn."""
    broker = sandbox_of(app).broker
    broker.run(partial(_clear, broker.config.schema))


def _clear(schema: str) -> Op[None]:
    names = yield from rows(SQL["get_tables"](schema=schema))
    yield from script(Statement("clear", f"truncate {', '.join('{schema}.' + name for (name,) in names)}"))


def sandbox_of(owner: Horsies | BaseTask[..., Any] | None) -> Sandbox:
    """Return the sandbox of this app, or of the app that defines this task, or the one that was opened last."""
    for sandbox in [*reversed(_open), *(find() for find in finders)]:
        owned = sandbox.app.tasks.get(owner.name) if isinstance(owner, BaseTask) else sandbox.app
        if owner is None or owned is owner:
            return sandbox
    if isinstance(owner, BaseTask):
        raise SandboxError(
            f"task {owner.name!r} belongs to no app in a sandbox; use the fixture horsies_sandbox in the test, and let the "
            "fixture horsies_app return the app that defines the task"
        )
    raise SandboxError(
        f"{'no app is' if owner is None else 'this app is not'} in a sandbox; use the fixture horsies_sandbox in the test, "
        "or `with open_sandbox(app, database_url):`"
    )
