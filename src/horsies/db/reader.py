"""Who reads the LISTEN connection: the listener's thread, or an event loop in its place.

A worker is woken by a notification for nearly every task, and a hand-over from thread to thread is among the dearest
things on the way to its child. So the thread lends the reading to the worker's loop and keeps everything else:
connecting, LISTEN, the self-test, the end. All who wait in this process then wait for that loop to turn.
"""

import asyncio
import os
import selectors
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial

import psycopg


class Reading:
    """Of the connections of one listener. `heard` is told of each notification by whoever reads; `wake` wakes the thread."""

    def __init__(self, heard: Callable[[str, str], None], wake: Callable[[], None]) -> None:
        self._heard = heard
        self._wake = wake
        self._wanted_by: LoopReader | None = None
        self._lent_to: LoopReader | None = None
        self.using = threading.Lock()
        """Held by whoever uses the connection: the thread, or the loop that it is lent to."""

    # -- on a loop

    @contextmanager
    def on_this_loop(self) -> Generator[None]:
        reader = self._wanted_by = LoopReader()
        self._wake()
        try:
            yield
        finally:
            if self._wanted_by is reader:
                self._wanted_by = None
            reader.close()
            self._wake()

    def _read_on_loop(self, connection: psycopg.Connection, reader: "LoopReader") -> None:
        if not self.using.acquire(blocking=False):
            return  # the thread is at it, and hears what there is
        try:
            heard = notifications(connection) if self._lent_to is reader else []
        except psycopg.Error:
            reader.stop()  # the thread finds out by itself
            self._wake()
            return
        finally:
            self.using.release()
        self._tell(heard)

    # -- on the thread

    def read(self, connection: psycopg.Connection) -> None:
        with self.using:
            heard = notifications(connection)
        self._tell(heard)

    def lend(self, connection: psycopg.Connection, selector: selectors.BaseSelector) -> None:
        """To the loop that wants it, if there is one. The selector watches what is lent to nobody."""
        wanted_by = self._wanted_by
        reader = None if wanted_by is None or wanted_by.is_gone else wanted_by
        if reader is self._lent_to:
            return
        if self._lent_to is None:
            selector.unregister(connection.fileno())
        self.end_loan()
        if reader is not None and reader.watch(connection.fileno(), partial(self._read_on_loop, connection, reader)):
            self._lent_to = reader
        else:
            selector.register(connection.fileno(), selectors.EVENT_READ)

    def end_loan(self) -> None:
        with self.using:  # nobody reads it now, and hardly anybody later: psycopg refuses to read what is closed
            reader, self._lent_to = self._lent_to, None
        if reader is not None:
            reader.let_go()

    def _tell(self, heard: list[tuple[str, str]]) -> None:
        for channel, payload in heard:
            self._heard(channel, payload)


def notifications(connection: psycopg.Connection) -> list[tuple[str, str]]:
    """Channel and payload of each that has arrived."""
    connection.pgconn.consume_input()
    heard: list[tuple[str, str]] = []
    while notification := connection.pgconn.notifies():
        # Anyone may have sent it, and a database without an encoding does not check what it holds.
        heard.append((notification.relname.decode(errors="replace"), notification.extra.decode(errors="replace")))
    return heard


class LoopReader:
    """Belongs to its loop, and watches one connection after another. A loop that is closed watches nothing."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._watched: int | None = None
        self._is_closed = False

    # -- for the listener's thread

    def watch(self, fileno: int, read: Callable[[], None]) -> bool:
        """Call `read` on the loop whenever there is something to read. False: it will not."""
        try:
            own = os.dup(fileno)  # the number of one that the thread closes may be another's by the time the loop looks
        except OSError:
            return False  # too many are open
        try:
            self._loop.call_soon_threadsafe(self._start, own, read)
        except RuntimeError:
            os.close(own)
            return False
        return True

    def let_go(self) -> None:
        """The connection is over."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.stop)

    @property
    def is_gone(self) -> bool:
        return self._loop.is_closed()

    # -- on the loop, whoever has asked for it

    def _start(self, own: int, read: Callable[[], None]) -> None:
        if self._is_closed:
            os.close(own)
            return
        self._watched = own
        self._loop.add_reader(own, read)

    def stop(self) -> None:
        if self._watched is not None:
            self._loop.remove_reader(self._watched)
            os.close(self._watched)
            self._watched = None

    def close(self) -> None:
        self._is_closed = True
        self.stop()
