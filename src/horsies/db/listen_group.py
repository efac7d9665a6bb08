"""Groups of processes of which only a few listen.

A NOTIFY signals every session of the database that listens, on whatever channel (before PostgreSQL 19), and each worker that receives one would
claim. So a send would cost more with every idle worker. The workers that serve the same queues form a *group*, and the group has a few
*slots*: who holds one listens. The others poll a tiny query several times a second, which also takes a slot that has become free.

**A slot** is an advisory lock of the listener's session: a process that dies frees it. A listener that has no capacity left for a while gives its slot
to a process that waits for one and has capacity.

**One of the listeners acts.** Each notification about a task has a number, the time of the task. It belongs to the listener at that number modulo the count
of the slots in use; the others act on it a moment later (`BACKUP_S`), in case that one is dead, or has gone without notice. Which slots are in use is read
from `pg_locks`: after a notification `listeners`, which is sent when a slot is taken or given up, and now and then. A wrong number leads to two
claims, or to a delay by `BACKUP_S`; to nothing worse.

No wake-up is lost: a process takes its slot, then listens, then looks at the rows, as any listener does when LISTEN comes into force. One that gives up
its slot polls. Advisory locks are open to every role: one that takes all slots makes all workers poll.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Protocol, TypeVar

from horsies.db.channels import Channel
from horsies.db.statement import Op, Query, execute, load, one, rows

SLOTS = 4
WAITING_MARK = 1 << 20
"""The lock that the processes hold which wait for a slot; beyond all slots."""
POLL_S, POLL_MAX_S, POLLS_PER_S = 0.5, 1.0, 32
"""How often a process without a slot polls. Where many wait for one, their polls are spread over a longer time: together they notice as soon."""
REFRESH_S = 5.0
REFRESH_PAUSE_S = 0.05
"""Notifications cause at most one look at the slots per interval."""
BACKUP_S = 0.3
POLL_PAUSE_PER_COST, POLL_PAUSE_MAX_S = 10, 5.0
"""A poll that is slow, because the index has many dead entries, is made less often."""

CHANGED = "listeners"

SQL = load(__file__)
T = TypeVar("T")


class RunOp(Protocol):
    """Runs an operation on the session of the listener."""

    def __call__(self, op: Op[T]) -> T: ...


@dataclass(slots=True, eq=False)
class ListenGroup:
    """The part of this process in a group. The listener's thread changes it; others read it.

    `poll` returns one row: for each of the channels, whether something may have been missed. `has_capacity` says whether the process could act on a notification.
    """

    name: str
    channels: Sequence[Channel]
    poll: Query
    has_capacity: Callable[[], bool]
    slots: int = SLOTS
    slot: int | None = None
    """Held by this process; None: it polls."""
    occupied: Sequence[int] = ()
    """The slots in use, as far as known."""
    is_resigned: bool = False
    """It wants no slot any more."""
    is_waiting: bool = False
    """Its session holds the mark of those that wait for a slot."""
    due_at: float = 0.0
    """When there is something to do, on the monotonic clock."""
    pause_s: float = POLL_S
    """Between two polls."""
    _full_since: float | None = None
    _refresh_at: float = 0.0
    _refreshed_at: float = 0.0
    _key: int = field(init=False)
    _changed_payload: str = field(init=False)

    def __post_init__(self) -> None:
        self._key = int(sha256(self.name.encode()).hexdigest()[:8], 16) >> 1
        self._changed_payload = f"{CHANGED} {self._key}"

    # -- from any thread

    def owns(self, number: int) -> bool:
        """Return whether this process is to act on a notification with this number."""
        slot, occupied = self.slot, self.occupied
        return slot is not None and (not occupied or occupied[number % len(occupied)] == slot)

    @property
    def has_others(self) -> bool:
        """There are other listeners in the group."""
        return len(self.occupied) > 1

    def on_changed(self, payload: str) -> bool:
        """Return whether the slots of this group are to be read again."""
        if payload != self._changed_payload:
            return False
        self.due_at = self._refresh_at = min(self._refresh_at, self._refreshed_at + REFRESH_PAUSE_S)
        return True

    # -- on the listener's thread

    def forget(self) -> None:
        """The session is gone, and its locks with it."""
        self.slot, self.occupied, self.is_waiting, self.due_at = None, (), False, 0.0

    def share_nothing(self) -> None:
        """Listen without a slot: the session may not be ours, so it cannot hold locks."""
        self.slot, self.occupied, self.due_at = 0, (0,), float("inf")

    def update(self, run: RunOp) -> frozenset[Channel]:
        """Do what is due. Return the channels on which something may have been missed."""
        now = time.monotonic()
        if self.slot is None:
            return self._poll(run, now)
        if self._should_give_up(run, now):
            slot, self.slot, self.occupied, self._full_since = self.slot, None, (), None
            self.due_at = now + POLL_S
            run(self._give_up(slot))
            return frozenset()
        if now >= self._refresh_at:
            self._refresh(run)
        self.due_at = min(now + POLL_S, self._refresh_at)
        return frozenset()

    def leave(self, run: RunOp) -> None:
        """Give everything back, because the worker stops."""
        if self.is_waiting:
            run(rows(SQL["unmark_waiting"](group=self._key, mark=WAITING_MARK)))
        if self.slot is not None:
            run(self._give_up(self.slot))
        self.forget()

    def _should_give_up(self, run: RunOp, now: float) -> bool:
        """Return whether another process has more use for the slot."""
        if self.is_resigned:
            return True
        if self.has_capacity():
            self._full_since = None
            return False
        if self._full_since is None:
            self._full_since = now
        if now - self._full_since < POLL_S:
            return False
        return run(one(SQL["check_waiting"](group=self._key, mark=WAITING_MARK))) != (True,)

    def _poll(self, run: RunOp, now: float) -> frozenset[Channel]:
        has_capacity = self.has_capacity() and not self.is_resigned
        # In one round trip: most processes of a large group do nothing else, for hours.
        take_slot = [SQL["take_listen_slot"](group=self._key, slots=self.slots)] if has_capacity else []
        count = [SQL["count_waiting"](group=self._key, mark=WAITING_MARK)] if now >= self._refresh_at else []
        (missed,), *others = reversed(run(execute(*count, *take_slot, self.poll)))
        slot = others[0][0] if take_slot and others[0] else None
        if count:
            self._refresh_at = now + REFRESH_S
            self.pause_s = min(max(POLL_S, others[-1][0][0] / POLLS_PER_S), POLL_MAX_S)
        wants = has_capacity and slot is None
        if wants != self.is_waiting:
            mark = SQL["mark_waiting" if wants else "unmark_waiting"]
            row = run(one(mark(group=self._key, mark=WAITING_MARK)))
            # Not if another process checks at this moment: then the next poll tries again.
            self.is_waiting = wants and row == (True,)
        if slot is not None:
            self._refresh(run)
            self.slot = slot[0]
            self.due_at = now + POLL_S
            run(rows(SQL["notify_listeners"](payload=self._changed_payload)))
            return frozenset()  # LISTEN comes into force, and everything is looked at
        cost_s = time.monotonic() - now
        self.due_at = now + max(self.pause_s, min(POLL_PAUSE_PER_COST * cost_s, POLL_PAUSE_MAX_S))
        return frozenset(channel for channel, is_missed in zip(self.channels, missed, strict=True) if is_missed)

    def _refresh(self, run: RunOp) -> None:
        found = run(rows(SQL["get_listen_slots"](group=self._key, slots=self.slots)))
        self.occupied = tuple(slot for (slot,) in found)
        self._refreshed_at = time.monotonic()
        self._refresh_at = self._refreshed_at + REFRESH_S

    def _give_up(self, slot: int) -> Op[None]:
        yield from execute(
            SQL["release_listen_slot"](group=self._key, slot=slot),
            SQL["notify_listeners"](payload=self._changed_payload),
        )
