"""One connection of a worker: opened at the first need, thrown away when it breaks. One thread at a time uses it."""

import os
import socket
from contextlib import suppress
from typing import TypeVar, cast

import psycopg

from horsies.db.connect import connect
from horsies.db.drive import answer_on, drive
from horsies.db.op import Ask, Op, Request, Rows
from horsies.db.session import STEADY, UNLIMITED, Preparing
from horsies.model.config import PostgresConfig

T = TypeVar("T")


class Link:
    """Unlike a pool it says at once, and exactly, why the database cannot be reached: the caller decides when to try again."""

    def __init__(self, config: PostgresConfig, purpose: str, *, url: str | None = None) -> None:
        self._config = config
        self._url = url
        self._purpose = purpose
        self._preparing = Preparing({**STEADY, **UNLIMITED})
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
