"""The test database of a Django project, for sends, drains and waits.

A `TestCase` runs in a transaction that is never committed. So whatever horsies does while a transaction is open on Django's connection, it does there: it sees
what was sent in it, and is rolled back with it. Its own transactions are savepoints. Outside of one (`TransactionTestCase`), it uses connections of its own, and
closes them at once: Django could not drop a database that still has connections.
"""

# pyright: basic, reportAttributeAccessIssue=false, reportGeneralTypeIssues=false, reportIndexIssue=false
# (Django comes without types)

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable
from contextlib import asynccontextmanager, suppress
from contextvars import Context
from functools import partial
from itertools import count
from typing import Any, Final, TypeVar

from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections, transaction

from horsies.contrib.django.application import DjangoHorsies, the_app
from horsies.db.broker import UnpooledBroker, Verb
from horsies.db.statement import Copy, Op, Query, Request, Script, Statement, render, render_script
from horsies.db.waiter import ThreadFuture, WaitSource
from horsies.model.config import PostgresConfig
from horsies.testing.sandbox import Sandbox, SandboxError, TaskCalls
from horsies.testing.sandbox import clear as clear_sandbox

_FRAME: Final = re.compile(r"\s*(begin|commit|rollback)\b", re.IGNORECASE)
_SETTINGS: Final = re.compile(r"\s*select pg_catalog\.set_config\(", re.IGNORECASE)
_numbers: Final = count()

T = TypeVar("T")


class DjangoTestBroker(UnpooledBroker):
    """Runs operations on the test database; inside the open transaction, if there is one."""

    def __init__(self, app: DjangoHorsies, config: PostgresConfig) -> None:
        super().__init__(config, resilience=app.config.resilience)
        self.app = app
        self.alias = app.alias

    def run(self, verb: Verb[T], *, again: Verb[T] | None = None) -> T:
        connection = self._connection()
        if connection.in_atomic_block:
            with transaction.atomic(using=self.alias):
                return super().run_on(connection, partial(_within_transaction, verb, connection, self.config.schema))
        try:
            return super().run(verb, again=again)
        finally:
            self.pools.close()

    async def run_async(self, verb: Verb[T], *, again: Verb[T] | None = None) -> T:
        return await sync_to_async(self.run, thread_sensitive=True)(verb, again=again)

    def wait(
        self, source: WaitSource[T], ids: Iterable[str], deadline: float | None, first_read_at: float = 0.0
    ) -> Any:
        if not self._connection().in_atomic_block:
            try:
                return super().wait(source, ids, deadline, first_read_at)
            finally:
                self.close()
        return self._read(source, list(ids), deadline)

    def as_completed(self, source: WaitSource[T], ids: Iterable[str], deadline: float | None) -> Generator[Any]:
        yield from self.wait(source, ids, deadline).items()

    @asynccontextmanager
    async def waiting_async(
        self, source: WaitSource[T], ids: Iterable[str], deadline: float | None, first_read_at: float = 0.0
    ) -> AsyncGenerator[Any]:
        found = await sync_to_async(self.wait, thread_sensitive=True)(source, ids, deadline, first_read_at)
        futures: dict[str, asyncio.Future[Any]] = {}
        for key, known in found.items():
            futures[key] = asyncio.get_running_loop().create_future()
            futures[key].set_result(known.result())
        yield futures

    def _read(self, source: WaitSource[T], ids: list[str], deadline: float | None) -> dict[str, ThreadFuture[T]]:
        """Read once: what the transaction does not contain now, no worker will add."""
        answers, futures = self.run(partial(source, ids)), {}
        is_late = deadline is not None and deadline <= time.monotonic()
        for key in ids:
            if not answers[key].is_final and not is_late:
                raise SandboxError(
                    f"task {key} was sent in the transaction of this test, which no worker sees, so it does not end by itself; call drain() "
                    "of horsies.contrib.django.testing before, or send inside run_inline()"
                )
            futures[key] = ThreadFuture()
            futures[key].set_result(answers[key].answer)
        return futures

    def _connection(self) -> Any:
        """Return Django's connection of this thread. Raise if this test may not use it, or if it is not that of a test."""
        connection, settings = connections[self.alias], connections.settings[self.alias]
        own_name = settings.get("TEST", {}).get("NAME")
        if settings["NAME"] == self.app.original_name and own_name != settings["NAME"]:
            raise SandboxError(
                f"this would use {settings['NAME']!r}, the database of the project, in a test; derive the test from django.test.TestCase instead "
                "of SimpleTestCase, or mark it with pytest.mark.django_db"
            )
        if not connection.in_atomic_block:
            with connection.cursor():  # raises what Django or pytest-django raise in a test without a database
                pass
        return connection


def _within_transaction(verb: Verb[T], connection: Any, schema: str) -> Op[T]:
    """Run an operation inside the transaction of a test: its transactions become savepoints."""
    op, savepoints = verb(), list[str]()
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            request = op.throw(error) if error is not None else op.send(answer)
        except StopIteration as end:
            return end.value
        answer, error = None, None
        try:
            if isinstance(request, Request):
                framed = [_to_savepoint(query, savepoints) for query in request.queries]
                answer = yield Request(framed)
            else:
                _execute_text(request, connection, schema)
        except GeneratorExit:
            raise
        except BaseException as raised:  # noqa: BLE001 - the operation may handle it
            error = raised


def _to_savepoint(query: Query, open_savepoints: list[str]) -> Query:
    found = _FRAME.match(query.statement.text)
    if found is None:
        return query
    word = found[1].lower()
    if word == "begin":
        open_savepoints.append(f"horsies_{next(_numbers)}")
        return Query(Statement(word, f"savepoint {open_savepoints[-1]}"), {})
    if not open_savepoints:
        return Query(Statement(word, "select 1"), {})
    name = open_savepoints.pop()
    return Query(Statement(word, f"{'release' if word == 'commit' else 'rollback to'} savepoint {name}"), {})


def _execute_text(request: Copy | Script, connection: Any, schema: str) -> None:
    connection.ensure_connection()
    with connection.connection.cursor() as cursor:
        if isinstance(request, Copy):
            with cursor.copy(render(request.statement.text, schema)) as rows:
                for line in request.lines:
                    rows.write(line)
            return
        # The settings would hold for the rest of the test.
        parts = render_script(request.statement.text, schema).split("; ")
        kept = [part for part in parts if not (_FRAME.match(part) or _SETTINGS.match(part))]
        cursor.execute("; ".join(kept))


class DjangoTaskCalls(TaskCalls):
    """Calls tasks on the connection of the test."""

    joins_transactions = True

    def __init__(self, alias: str) -> None:
        self._alias = alias

    def can_drain(self) -> bool:
        """Whether no `atomic()` of the code under test is open: its tasks run after it."""
        blocks = getattr(connections[self._alias], "atomic_blocks", ())
        return all(getattr(block, "_from_testcase", False) for block in blocks)

    def before(self) -> Callable[[], object]:
        """Set a savepoint, for the case that a task fails with an error of the database, which would end the transaction of the test."""
        connection = connections[self._alias]
        if not connection.in_atomic_block or (savepoint := connection.savepoint()) is None:
            return lambda: None

        def after() -> None:
            if connection.needs_rollback or connection.connection.info.transaction_status.name != "INTRANS":
                connection.needs_rollback = False
                connection.savepoint_rollback(savepoint)
            else:
                connection.savepoint_commit(savepoint)

        return after

    def run_coroutine(self, runner: asyncio.Runner, coroutine: Coroutine[Any, Any, T], context: Context) -> T:
        """Run it as a view is run: queries of the ORM are made on this thread, and so in the transaction."""
        del runner

        async def run() -> T:
            return await coroutine

        return context.run(async_to_sync(run))

    async def run_blocking(self, function: Callable[[], T]) -> T:
        return await sync_to_async(function, thread_sensitive=True)()

    run_function = run_blocking


def sandbox() -> Sandbox:
    """Return the app on its test database. Raise SandboxError outside a test."""
    app = the_app()
    broker = app.broker
    if not isinstance(broker, DjangoTestBroker):
        raise SandboxError("Django runs no test here; use manage.py test or pytest-django")
    return Sandbox(app, broker, DjangoTaskCalls(app.alias))


def clear() -> None:
    """Empty the tables of horsies in the test database."""
    with suppress(SandboxError):
        clear_sandbox(sandbox().app)
