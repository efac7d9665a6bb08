"""One connection of a worker: opened at the first need, thrown away when it breaks. One thread at a time uses it."""

import asyncio
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar, cast

import psycopg

from horsies.db.connect import connect
from horsies.db.drive import answer_on, drive
from horsies.db.op import Ask, Op, Request, Rows
from horsies.db.session import Preparing
from horsies.model.config import PostgresConfig

FAREWELL_S = 3.0

T = TypeVar("T")


class Link:
    """Unlike a pool it says at once, and exactly, why the database cannot be reached: the caller decides when to try again."""

    def __init__(self, config: PostgresConfig, purpose: str, *, url: str | None = None) -> None:
        self._config = config
        self._url = url
        self._purpose = purpose
        self._preparing = Preparing()
        self._connection: psycopg.Connection | None = None
        self._is_cut = False

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
        if self._is_cut:  # while it was being made
            raise psycopg.OperationalError("the connection was cut")
        self._preparing.begin(self._connection)

    def _answer(self, request: Request) -> list[Rows]:
        return answer_on(cast("psycopg.Connection", self._connection), cast("Ask", request), self._config.schema)

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


class Aside:
    """A link with a thread of its own, for a service on an event loop that nobody else may hold up."""

    def __init__(self, config: PostgresConfig, purpose: str) -> None:
        self._link = Link(config, purpose)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"horsies-{purpose}")

    async def run(self, op: Op[T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._link.run, op)

    async def close(self, farewell: Op[object] | None) -> None:
        """Say this, if the server still listens. One that is silent is not waited for: a worker that was told to leave leaves."""
        if farewell is not None:
            with suppress(psycopg.Error, TimeoutError):
                async with asyncio.timeout(FAREWELL_S):
                    await self.run(farewell)
        self._link.cut()
        await asyncio.to_thread(self._thread.shutdown)
        self._link.close()
