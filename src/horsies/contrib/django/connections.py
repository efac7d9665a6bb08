"""The connections of Django, around tasks and sends.

**Attempts.** A child runs each attempt as Django handles a request. Before and after it, connections that are broken or too old are closed, so that a lost
connection makes at most one task fail. In addition, a connection on which the attempt has left a transaction open is discarded. That happens when
the attempt is stopped in the middle of `atomic()`; without it, all later tasks of the child would work in that transaction, which is never committed.

Code on other threads has connections of its own. `def` tasks run on one thread from their start to their end. An `async def` task gets a
`ThreadSensitiveContext`, as a request has under ASGI: its `sync_to_async` calls, and with them the queries of the ORM, use a thread of its own. The connections of that
thread are closed at the end of the attempt, because the thread ends, too.

**Sends.** Django marks a connection on which `atomic()` is open. From asyncio code the question is asked on the thread that runs its `sync_to_async` calls, because
transactions of a view that calls `async_to_sync` inside `atomic()` are open there.
"""

import os
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Final, TypeVar

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections, connections, reset_queries

from horsies.tasks.current_task import CurrentTask

T = TypeVar("T")

_loaded_by: Final = os.getpid()
_inherited: list[object] = []  # kept and never touched: collecting them would close the connections of the parent


class DjangoTransactions:
    """Implements `CallerTransactions` for one database."""

    def __init__(self, alias: str) -> None:
        self._alias = alias

    def open_connection(self) -> object | None:
        """Return the connection of this thread if `atomic()` is open on it, or if autocommit is off."""
        connection = connections[self._alias]
        autocommits = connection.autocommit if connection.connection else connection.settings_dict["AUTOCOMMIT"]
        return connection if connection.in_atomic_block or not autocommits else None

    async def call(self, function: Callable[[], T]) -> T:
        """Call a function on the thread of the caller's `sync_to_async` calls."""
        return await sync_to_async(function, thread_sensitive=True)()


def check_connections(_task: CurrentTask) -> Generator[None]:
    """Check the connections before and after a `def` task. A middleware."""
    reset_queries()
    _renew_connections()  # also those of a start hook, or of an attempt that was stopped before it could
    try:
        yield
    finally:
        _renew_connections()


async def end_connections(_task: CurrentTask) -> AsyncGenerator[None]:
    """Close the connections that an `async def` task has used. A middleware."""
    async with ThreadSensitiveContext() as context:
        try:
            yield
        finally:
            if context in SyncToAsync.context_to_thread_executor:  # else the task has made no call
                await sync_to_async(connections.close_all, thread_sensitive=True)()


def _renew_connections() -> None:
    """Discard the connections of this thread on which a transaction was left open, which rolls it back, and those that are broken or too old."""
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block:
            connection.close()
            del connections[connection.alias]
    close_old_connections()


def abandon_inherited() -> None:
    """Forget the connections that were opened before this process was forked: they belong to the other process."""
    if os.getpid() == _loaded_by:
        return
    for connection in connections.all(initialized_only=True):
        _inherited.append(connection)
        if pools := getattr(type(connection), "_connection_pools", None):
            _inherited.append(dict(pools))
            pools.clear()
        del connections[connection.alias]
