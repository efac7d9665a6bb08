"""Single connections of one process: opened at first use, discarded when they break, used by one thread at a time."""

import asyncio
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from horsies.db.driver import drive, execute_on
from horsies.db.errors import broker_error
from horsies.db.pool import connect
from horsies.db.pooler import INDEX_SCANS, UNLIMITED, PreparedStatements
from horsies.db.statement import Op, Statement, script
from horsies.model.config import PostgresConfig
from horsies.model.database_url import conninfo

FINAL_OP_S = 3.0

T = TypeVar("T")


class DedicatedConnection:
    """Unlike a pool it reports at once, and exactly, why the database cannot be reached; the caller decides when to retry."""

    def __init__(self, config: PostgresConfig, purpose: str, *, url: str | None = None) -> None:
        self._config = config
        self._url = url
        self._purpose = purpose
        self._prepared = PreparedStatements({**INDEX_SCANS, **UNLIMITED})
        self._connection: psycopg.Connection | None = None
        self._is_aborted = False
        self._session_no = 0

    @property
    def own_session(self) -> int | None:
        """The number of the open session if it is ours and not a pooler's: its locks last as long as it does."""
        connection = self._connection
        return None if connection is None or connection.prepare_threshold is None else self._session_no

    def run(self, op: Op[T]) -> T:
        """Run an operation. After an error the connection is idle again, or closed."""
        try:
            connection = self._connection
            if connection is None:
                connection = self._connection = connect(self._config, self._purpose, url=self._url)
                self._session_no += 1
                if self._is_aborted:  # while it was being opened
                    raise psycopg.OperationalError("the connection was aborted")
                self._prepared.configure(connection)
            return drive(op, lambda request: execute_on(connection, request, self._config.schema))
        except psycopg.Error as error:
            if self._prepared.has_failed(error):
                self.close()
            elif self._connection is not None:
                try:
                    self._connection.rollback()
                except psycopg.Error:
                    self.close()
            raise

    def abort(self) -> None:
        """Make the operation under way, and every later one, fail. Called from another thread."""
        self._is_aborted = True
        connection = self._connection
        with suppress(psycopg.Error, OSError):
            if connection is not None:
                with socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
                    duplicate.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class ThreadedConnection:
    """A connection with a thread of its own, for a service on an event loop; one operation at a time."""

    def __init__(self, config: PostgresConfig, purpose: str) -> None:
        self._connection = DedicatedConnection(config, purpose)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"horsies-{purpose}")

    async def run(self, op: Op[T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._connection.run, op)

    @property
    def own_session(self) -> int | None:
        """See `DedicatedConnection`. Read it between two operations."""
        return self._connection.own_session

    async def close(self, final_op: Op[object] | None) -> None:
        """Run a last operation if the server responds in time, and close: a worker that stops must not wait for its database."""
        try:
            if final_op is not None:
                with suppress(psycopg.Error, TimeoutError):
                    async with asyncio.timeout(FINAL_OP_S):
                        await self.run(final_op)
        finally:
            self._connection.abort()
            with suppress(RuntimeError):  # no thread can be started: there never was one, nor a connection
                self._thread.submit(self._connection.close)
            self._thread.shutdown(wait=False)  # the thread does what is left and ends, even if we are cancelled now
        with suppress(RuntimeError):  # no thread can be started to wait for it
            await asyncio.to_thread(self._thread.shutdown)


class DatabaseAdmin:
    """Creates and drops databases, for tests. Names are not escaped: they are ours."""

    def __init__(self, config: PostgresConfig) -> None:
        self._connection = DedicatedConnection(config, "databases")

    def create(self, name: str, *, template: str | None = None) -> None:
        suffix = f' template "{template}"' if template else ""
        self._run(script(Statement("create_database", f'create database "{name}"{suffix}')))

    def drop(self, name: str) -> None:
        """Drop it, even while others are connected to it."""
        self._run(script(Statement("drop_database", f'drop database if exists "{name}" with (force)')))

    def close(self) -> None:
        self._connection.close()

    def _run(self, op: Op[None]) -> None:
        try:
            self._connection.run(op)
        except psycopg.Error as error:
            raise broker_error(error) from error


def with_database(url: str, name: str) -> str:
    """Return key=value pairs for the same server and user and another database."""
    params = {key: str(value) for key, value in conninfo_to_dict(conninfo(url)).items() if value is not None}
    return make_conninfo("", **params | {"dbname": name})
