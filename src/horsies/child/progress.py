"""Progress reports on their way to the parent: at most one a second per task, and never less than the last one.

A soft stop may strike a task while it reports. So reporting is nothing but putting something into a queue, which is one indivisible
step; a lock might be left locked, and a write might leave half a frame behind. A thread of its own does the rest. What comes too
early waits for its second to pass, and only the newest of it is kept.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

from horsies.child.wire import Progress, pack

INTERVAL_S = 1.0


class _Told:
    """Of one ticket."""

    def __init__(self) -> None:
        self.due_at = 0.0  # when something may be sent again
        self.waiting: Progress | None = None


class ProgressReports:
    """Used by any thread. No report of a ticket goes out after `ended` has returned for it."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._talkers: set[int] = set()
        self._inbox: SimpleQueue[Progress] = SimpleQueue()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._told: dict[int, _Told] = {}
        self._state = threading.Lock()  # for `_told`, and for taking from the inbox
        threading.Thread(target=self._deliver, name="horsies-progress", daemon=True).start()

    def report(self, ticket: int, fraction: float | None, message: str | None) -> None:
        self._talkers.add(ticket)
        self._inbox.put(Progress(ticket, fraction, message))
        self._bell.put(None)

    def ended(self, ticket: int) -> bytes:
        """The last report, if it still waits, to be sent ahead of the ending."""
        if ticket not in self._talkers:  # the usual case, at the cost of one look
            return b""
        self._talkers.discard(ticket)
        with self._state:
            self._take_in()
            told = self._told.pop(ticket, None)
            return pack(told.waiting) if told and told.waiting else b""

    def _deliver(self) -> None:
        due_in_s: float | None = None
        while True:
            with suppress(Empty):
                self._bell.get(timeout=due_in_s)
            with self._state:
                self._take_in()
                now = time.monotonic()
                self._send_due(now)
                dues = [told.due_at for told in self._told.values() if told.waiting]
            due_in_s = max(0.0, min(dues) - now) if dues else None

    def _take_in(self) -> None:
        with suppress(Empty):
            while True:
                progress = self._inbox.get_nowait()
                self._told.setdefault(progress.ticket, _Told()).waiting = progress

    def _send_due(self, now: float) -> None:
        due = [told for told in self._told.values() if told.waiting and told.due_at <= now]
        if due:
            self._send(pack(*(told.waiting for told in due if told.waiting)))
        for told in due:
            told.due_at, told.waiting = now + INTERVAL_S, None
