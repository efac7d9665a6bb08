"""One connection of a worker: opened at the first need, thrown away when it breaks. One thread at a time uses it."""

import asyncio
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar, cast

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from horsies.db.driver import drive, execute_on
from horsies.db.errors import broker_error
from horsies.db.pool import connect
from horsies.db.pooler import GENERIC_PLANS, UNLIMITED, PreparedStatements
from horsies.db.statement import AnyRequest, Op, Request, Rows, Statement, script
from horsies.model.config import PostgresConfig
from horsies.model.database_url import conninfo

T = TypeVar("T")


class DedicatedConnection:
    """Unlike a pool it says at once, and exactly, why the database cannot be reached: the caller decides when to try again."""

    def __init__(self, config: PostgresConfig, purpose: str, *, url: str | None = None) -> None:
        self._config = config
        self._url = url
        self._purpose = purpose
        self._preparing = PreparedStatements({**GENERIC_PLANS, **UNLIMITED})
        self._connection: psycopg.Connection | None = None
        self._is_cut = False
        self._opened = 0

    @property
    def own_session(self) -> int | None:
        """The number of the session that is open, if it is ours and no pooler's: what is kept in it lasts as long as it does."""
        connection = self._connection
        return None if connection is None or connection.prepare_threshold is None else self._opened

    def run(self, op: Op[T]) -> T:
        try:
            if self._connection is None:
                self._open()
            return drive(op, self._answer)
        except psycopg.Error as error:
            if self._preparing.has_failed(error):
                self.close()
            self._clean()
            raise

    def _open(self) -> None:
        self._connection = connect(self._config, self._purpose, url=self._url)
        self._opened += 1
        if self._is_cut:  # while it was being made
            raise psycopg.OperationalError("the connection was cut")
        self._preparing.begin(self._connection)

    def _answer(self, request: AnyRequest) -> list[Rows]:
        return execute_on(cast("psycopg.Connection", self._connection), cast("Request", request), self._config.schema)

    def _clean(self) -> None:
        """After an error the connection is idle again, or gone."""
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.rollback()
                return
            self.close()

    def cut(self) -> None:
        """From another thread, when nobody waits for the answer any more: whoever does gets an error now, and from now on."""
        self._is_cut = True
        connection = self._connection
        with suppress(psycopg.Error, OSError):
            if connection is not None:
                with socket.socket(fileno=os.dup(connection.fileno())) as wire:
                    wire.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


# --------
# A link with a thread of its own, for a service on an event loop that nobody else may hold up.

FINAL_OP_S = 3.0


class ThreadedConnection:
    """Used by one event loop, one verb at a time."""

    def __init__(self, config: PostgresConfig, purpose: str) -> None:
        self._link = DedicatedConnection(config, purpose)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"horsies-{purpose}")

    async def run(self, op: Op[T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._link.run, op)

    @property
    def own_session(self) -> int | None:
        """See `Link`. Between two verbs."""
        return self._link.own_session

    async def close(self, final_op: Op[object] | None) -> None:
        """Say this, if the server still listens. One that is silent is not waited for: a worker that was told to leave leaves."""
        try:
            if final_op is not None:
                with suppress(psycopg.Error, TimeoutError):
                    async with asyncio.timeout(FINAL_OP_S):
                        await self.run(final_op)
        finally:
            self._link.cut()
            self._thread.submit(self._link.close)
            self._thread.shutdown(wait=False)  # what is left to do it does, and ends, also if we are cancelled now
        await asyncio.to_thread(self._thread.shutdown)


# --------
# Databases as a whole: made, dropped, and named in a URL. For tests; an application lives in one that is there.


class DatabaseAdmin:
    """One connection, opened at the first need, of a user who may create databases. Names are not escaped: they are ours."""

    def __init__(self, config: PostgresConfig) -> None:
        self._link = DedicatedConnection(config, "databases")

    def create(self, name: str, *, template: str | None = None) -> None:
        copied = f' template "{template}"' if template else ""
        self._run(script(Statement("create_database", f'create database "{name}"{copied}')))

    def drop(self, name: str) -> None:
        """Also when somebody is still connected to it."""
        self._run(script(Statement("drop_database", f'drop database if exists "{name}" with (force)')))

    def close(self) -> None:
        self._link.close()

    def _run(self, op: Op[None]) -> None:
        try:
            self._link.run(op)
        except psycopg.Error as error:
            raise broker_error(error) from error


def with_database(url: str, name: str) -> str:
    """The same server and user, another database; as key=value pairs."""
    given = {key: str(value) for key, value in conninfo_to_dict(conninfo(url)).items() if value is not None}
    return make_conninfo("", **given | {"dbname": name})
