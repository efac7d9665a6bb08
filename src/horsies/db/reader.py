"""Reading the LISTEN connection on an event loop, in place of the listener's thread.

A worker is woken by a notification for nearly every task, and a hand-over from thread to thread is among the dearest
things on the way to its child. So the thread lends the reading to the worker's loop and keeps everything else:
connecting, LISTEN, the self-test, the end. All who wait in this process then wait for that loop to turn.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress


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
