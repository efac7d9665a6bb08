"""The LISTEN connection of a process, shared by all its waiters.

A thread holds the connection and calls the subscribers. A subscriber reads the tables when it is called: a needless call costs a read,
a missing one would cost a wait. So in every doubt all of them are called: when LISTEN comes into force, when the connection is lost,
and when notifications turn out not to arrive.

**Self-test.** A LISTEN that looks healthy may receive nothing: on a half-open socket, or in another database. So from time to time a
token is notified *from another connection* while this one is idle. A listener that has received tokens and misses one reconnects.
One that never received any logs one line, and waiters poll. At the same time it stops listening on channels without
subscribers, which saves other processes their notifications (`channels.py`); on DONE earlier, because others may wait for its slot.

**Poolers.** A LISTEN through a transaction pooler stays in a session that others use next, and every notification then wakes the wrong
client. So if the session may not be ours (`pooler.py`), nothing is sent before it is known not to be shared. It is shared if our
process changes from one statement to the next, or serves another connection while we are connected; a pooler that hands out the
session used last shows this at once. Without such proof (most likely a session pooler) the self-test decides, on its own
channel only, and what it leaves in a session is undone.

**Reading on an event loop.** A worker is woken by a notification for nearly every task, and the hand-over from one thread to another
is among the most expensive steps on the way to its child. So the thread lets the worker's loop read the connection, and keeps everything
else: connecting, LISTEN, the self-test, closing. All waiters of that process are then woken by that loop.
"""

import asyncio
import logging
import os
import random
import secrets
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, TypeVar

import psycopg

from horsies.db.channels import ALL_KEYS, Channel, waiters_lock, waiters_slot_group
from horsies.db.driver import drive, execute_on
from horsies.db.errors import broker_error
from horsies.db.listen_group import CHANGED, SQL, ListenGroup, RunOp
from horsies.db.pool import connect
from horsies.db.pooler import (
    POOLER_CHECKS,
    PREPARE_THRESHOLD,
    get_backend_pid,
    is_direct,
    is_shared,
    undo_in_session,
)
from horsies.db.statement import Op, one
from horsies.events import NotificationsLost, NotificationsRestored, emit, subscribers
from horsies.model.config import PostgresConfig, WorkerResilienceConfig

CLOSE_S = 5.0
IDLE_S = 3_600.0
OPS_MAX = 10

# Not `DefaultSelector`: that takes a file descriptor, and the thread must go on when none is left.
_Selector = selectors.PollSelector

T = TypeVar("T")
Wake: TypeAlias = Callable[[str | None], None]
"""Called with the payload, or with None when anything may have happened. Must be quick and safe from any thread."""
Subscriptions: TypeAlias = dict[tuple[Channel, str | None, Wake], None]
"""Callbacks by channel and key; those with the key None are called for every payload. A process has a handful.

Any thread may change it: each use is one operation of a dict, which needs no lock.
"""

log = logging.getLogger("horsies.listen")


@dataclass(frozen=True, slots=True)
class ListenerTimings:
    first_test_s: float = 1.0
    test_interval_s: float = 30.0
    test_timeout_s: float = 3.0
    pooler_retry_s: float = 300.0
    pooler_checks: int = POOLER_CHECKS
    waiter_slots: int = 8
    """How many processes listen on DONE at a time."""
    slot_retry_s: float = 1.0
    unused_s: float = 3.0
    """How long DONE may have no subscriber before the slot is given up; at most twice as long in effect."""


def call_subscribers(subscriptions: Subscriptions, channel: Channel | None, payload: str | None) -> None:
    """Call those of this channel that want this payload; None stands for all channels, and for anything that may have happened.

    One that fails must not prevent the next, nor end the thread or the loop that delivers.
    """
    keys = None if payload is None or payload == ALL_KEYS else {None, *payload.split(" ")}
    for of, key, wake in list(subscriptions):
        if channel in {of, None} and (keys is None or key in keys):
            try:
                wake(payload)
            except Exception:
                log.exception("a subscriber failed on a notification")


class SharedSession(Exception):  # noqa: N818 - it states what was found
    """A pooler lends us a session for one transaction at a time: what we leave in it is left to other clients."""


class Listener:
    """Calls the subscribers of this process. `notify` sends over some *other* connection and returns its server process id."""

    def __init__(
        self,
        config: PostgresConfig,
        *,
        notify: Callable[[Channel, str], int],
        resilience: WorkerResilienceConfig,
        timings: ListenerTimings,
    ) -> None:
        self._config = config
        self._notify = notify
        self._resilience = resilience
        self._timings = timings
        self._subscriptions: Subscriptions = {}
        self._channels = {channel.name_in(config.schema): channel for channel in Channel}
        self._in_force: set[Channel] = set()
        self.is_polling = False
        """Notifications are known not to arrive: waiters must poll."""
        self.received_at: float | None = None
        """When the last notification arrived, or a group without a slot has polled, on the monotonic clock; None before the first."""
        self._has_logged_polling = False
        self._tried_at = self._reached_at = 0.0
        self._has_polled = False
        """A group without a slot has been served by the current connection."""
        self._waiter_slot: int | None = None
        """The slot of our session that allows it to listen on DONE."""
        self.lacks_waiter_slot = False
        """There are waiters, and no slot is free: they poll, and the thread tries again."""
        self._waiter_slot_due_at = 0.0
        """When to try again to take the slot, or to check whether it is still used."""
        self._unsubscribed_at = 0.0
        self._wanted_locks: set[str] = set()
        self._held_locks: set[str] = set()
        self._groups: list[ListenGroup] = []
        self._left_groups: list[ListenGroup] = []
        self._ops: deque[Callable[[], Op[object]]] = deque(maxlen=OPS_MAX)
        self._is_closing = False
        # A literal without a unary minus, which is an operator and cannot be qualified with a schema.
        self._waiters_lock = f"'{waiters_lock(config.schema)}'::pg_catalog.int8"
        self._handoff = ReaderHandoff(self._on_notification, self._wake)
        self.read_on_this_loop = self._handoff.read_on_this_loop
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_writer.setblocking(False)  # noqa: FBT003 - if it is full, the thread wakes anyway
        self._thread = threading.Thread(target=self._run, name="horsies-listener", daemon=True)
        self._thread.start()

    # -- from any thread

    def subscribe(self, channel: Channel, key: str | None, wake: Wake) -> bool:
        """Call `wake` for this key (None: every payload). Return False if LISTEN is not in force and it need not poll yet: it is called when that changes."""
        self._subscriptions[channel, key, wake] = None
        if channel in self._in_force or (channel is Channel.DONE and self.lacks_waiter_slot):
            return True
        self._wake()
        return self.is_polling

    def unsubscribe(self, channel: Channel, key: str | None, wake: Wake) -> None:
        self._unsubscribed_at = time.monotonic()
        self._subscriptions.pop((channel, key, wake), None)

    def hold(self, lock: str) -> None:
        """Hold the advisory lock of this name, shared, while there is a session of our own. Does not wait: see `holds`."""
        self._wanted_locks.add(lock)
        self._wake()

    def let_go(self, lock: str) -> None:
        self._wanted_locks.discard(lock)
        self._wake()

    def holds(self, lock: str) -> bool:
        return lock in self._held_locks

    def join(self, group: ListenGroup) -> None:
        """Listen on the channels of this group only while it has a slot. Call it before `subscribe`."""
        self._groups = [*self._groups, group]
        self._wake()

    def leave(self, group: ListenGroup) -> None:
        self._groups = [other for other in self._groups if other is not group]
        self._left_groups.append(group)
        self._wake()

    def resign(self, group: ListenGroup) -> None:
        """Give up its slot, and take no other."""
        group.is_resigned, group.due_at = True, 0.0
        self._wake()

    def run_soon(self, make_op: Callable[[], Op[object]]) -> None:
        """Have the thread run an operation on its connection. It is lost if the connection is."""
        self._ops.append(make_op)
        self._wake()

    @property
    def is_listening(self) -> bool:
        """Whether LISTEN is in force on a connection. The self-test finds out whether anything arrives there."""
        return bool(self._in_force)

    def retry_now(self) -> None:
        """Do not wait any longer before the next attempt to connect: another connection has reached the database."""
        self._reached_at = time.monotonic()
        self._wake()

    def close(self) -> None:
        """Close it. The thread may be waiting for an unresponsive server; it is not waited for for long, and ends when it can."""
        self._is_closing = True
        self._wake()
        self._thread.join(CLOSE_S)
        self._wake_writer.close()

    def _wake(self) -> None:
        with suppress(OSError):  # full, or closed
            self._wake_writer.send(b"!")

    # -- on the thread

    def _run(self) -> None:
        attempt = 0
        with self._wake_reader:
            while not self._is_closing:
                self._tried_at = time.monotonic()
                try:
                    with connect(self._config, "listener", url=self._config.listen_conninfo) as connection:
                        self._serve(connection)
                except psycopg.Error as error:
                    # A connection that has received notifications is replaced at once. Only failing attempts are spaced out.
                    has_served = self._has_polled or (self._in_force and self._test.has_passed)
                    attempt = 0 if has_served else attempt + 1
                    self._has_polled = False  # or attempts that fail would follow each other without a pause
                    self._on_connection_lost(error, attempt)
                except SharedSession:
                    self._log_polling("LISTEN does not work through a transaction pooler")
                    self._sleep(self._timings.pooler_retry_s)

    def _serve(self, connection: psycopg.Connection) -> None:
        self._is_direct = is_direct(connection)
        self._has_polled = False
        if not self._is_direct:
            self._start_polling()  # until the opposite is known
            if is_shared(connection, lambda: self._notify(Channel.TEST, ""), self._timings.pooler_checks):
                raise SharedSession
        else:
            connection.prepare_threshold = PREPARE_THRESHOLD  # an idle worker repeats its poll for hours
        self._test = ListenSelfTest()
        # psycopg reads what arrives while a LISTEN is under way, and passes it on only to a handler.
        connection.add_notify_handler(lambda received: self._on_notification(received.channel, received.payload))
        pid = 0
        if not self._is_direct:
            with connection.transaction():
                self._listen(connection, {Channel.TEST})
                pid = get_backend_pid(connection)
        try:
            self._read_until_closed(connection)
        except SharedSession:
            self._undo_listen(connection, pid)
            raise
        if not self._is_direct:
            self._undo_listen(connection, pid)  # not every pooler cleans up after its clients

    def _undo_listen(self, connection: psycopg.Connection, pid: int) -> None:
        commands = [self._unlisten_command(channel) for channel in self._in_force]
        self._in_force.clear()
        undo_in_session(connection, commands, pid)

    def _read_until_closed(self, connection: psycopg.Connection) -> None:
        with _Selector() as selector:
            selector.register(connection.fileno(), selectors.EVENT_READ)
            selector.register(self._wake_reader, selectors.EVENT_READ)
            due_at = 0.0
            try:
                while not self._is_closing:
                    # Not for each notification: a process that sends and waits receives many.
                    if time.monotonic() >= due_at:
                        due_at = self._update(connection, selector)
                    ready = selector.select(max(0.0, due_at - time.monotonic()))
                    if any(key.fileobj is self._wake_reader for key, _ in ready):
                        self._wake_reader.recv(4096)
                        due_at = 0.0
                    self._handoff.read(connection)
            finally:
                self._handoff.withdraw()

    def _update(self, connection: psycopg.Connection, selector: selectors.BaseSelector) -> float:
        """Do what other threads have asked for, and what has become due. Return when there is something to do, whatever arrives until then."""
        if self._test.sent is not None and self._test.received == self._test.sent:
            self._test.has_passed = True
            self._test.schedule(self._timings.test_interval_s)
            self._set_polling(is_polling=False)
        if self._in_force and time.monotonic() >= self._test.due_at:
            self._unlisten(connection, self._in_force - self._wanted_channels())
            if self._in_force:
                self._continue_test()
        self._update_groups(connection)
        missing = self._wanted_channels() - self._in_force
        if missing and (self._is_direct or self._test.has_passed):
            self._listen(connection, missing)
        if self._is_direct and self._wanted_locks != self._held_locks:
            self._update_locks(connection)
        self._handoff.assign(connection, selector, is_listening=bool(self._in_force))
        due_at = [group.due_at for group in self._groups]
        due_at += [self._test.due_at] if self._in_force else []  # without a channel in force there is nothing to test
        due_at += [self._waiter_slot_due_at] if self.lacks_waiter_slot or self._waiter_slot is not None else []
        return min(due_at, default=time.monotonic() + IDLE_S)

    def _listen(self, connection: psycopg.Connection, channels: set[Channel]) -> None:
        if not self._in_force:
            self._test.schedule(self._timings.first_test_s if self._is_direct else 0.0)
        for channel in sorted(channels, key=lambda channel: channel is not Channel.TEST):
            command = f'listen "{channel.name_in(self._config.schema)}"'
            if channel is Channel.DONE:
                # With a short timeout: a session in the way hangs, and waiters had better poll.
                lock = f"select pg_catalog.pg_advisory_lock_shared({self._waiters_lock})"
                command = f"select pg_catalog.set_config('lock_timeout', '1s', true); {lock}; {command}"
            with self._handoff.in_use:
                connection.execute(command.encode(), prepare=False)  # it may be several commands
            self._in_force.add(channel)
            call_subscribers(self._subscriptions, channel, None)

    def _wanted_channels(self) -> set[Channel]:
        """The channels with subscribers, except those for which there is no slot; and with any of them the self-test's."""
        wanted = {channel for channel, _, _ in list(self._subscriptions)}
        if self._is_direct and self._waiter_slot is None:
            wanted.discard(Channel.DONE)
        elif self._waiter_slot is not None and time.monotonic() < self._unsubscribed_at + self._timings.unused_s:
            wanted.add(Channel.DONE)  # there may soon be another waiter
        withheld = {channel for group in self._groups if group.slot is None for channel in group.channels}
        wanted -= withheld - {channel for group in self._groups if group.slot is not None for channel in group.channels}
        return wanted | {Channel.TEST} if wanted or not self._is_direct else set()

    def _update_groups(self, connection: psycopg.Connection) -> None:
        """Do what groups and `run_soon` ask for, on our own session."""

        def run(op: Op[T]) -> T:
            with self._handoff.in_use:
                return drive(op, lambda request: execute_on(connection, request, self._config.schema))

        due = [group for group in self._groups if group.due_at <= time.monotonic()]
        if not self._is_direct:
            for group in due:
                group.share_nothing()
            return
        while self._ops:
            run(self._ops.popleft()())
        while self._left_groups:
            self._left_groups.pop().leave(run)
        for group in due:
            self._update_group(connection, group, run)
        if self._waiter_slot_due_at <= time.monotonic() or not (
            self.lacks_waiter_slot or self._waiter_slot is not None
        ):
            self._update_waiter_slot(connection, run)
        self._handoff.read(connection)  # libpq may have read notifications along with the answers

    def _update_group(self, connection: psycopg.Connection, group: ListenGroup, run: RunOp) -> None:
        had_slot, had_none_in_force = group.slot is not None, not self._in_force
        for channel in group.update(run):
            call_subscribers(self._subscriptions, channel, None)
        if had_slot and group.slot is None:
            self._unlisten(connection, self._in_force - self._wanted_channels())
        if had_none_in_force:
            self._has_polled = True
            self.received_at = time.monotonic()
            self._set_polling(is_polling=False)

    def _update_waiter_slot(self, connection: psycopg.Connection, run: RunOp) -> None:
        """Take a slot while this process has waiters; stop listening, and give it up, when it has had none for a while."""
        now = time.monotonic()
        if self._waiter_slot is None:
            self._take_waiter_slot(connection, run, now)
            return
        self._waiter_slot_due_at = now + self._timings.unused_s
        if now >= self._unsubscribed_at + self._timings.unused_s:
            self._unlisten(connection, self._in_force - self._wanted_channels())

    def _take_waiter_slot(self, connection: psycopg.Connection, run: RunOp, now: float) -> None:
        if not self._has_waiters():
            self.lacks_waiter_slot = False  # first: a later subscriber sees this, and wakes the thread
            if not self._has_waiters():  # one that polls may have come before
                return
        slots = self._timings.waiter_slots
        found = run(one(SQL["take_listen_slot"](group=waiters_slot_group(self._config.schema), slots=slots)))
        if found is not None:
            self._waiter_slot, self.lacks_waiter_slot = found[0], False
            self._waiter_slot_due_at = now + self._timings.unused_s
            self._listen(connection, {Channel.DONE})  # even if no waiter is left: who holds a slot listens
            return
        self._waiter_slot_due_at = now + self._timings.slot_retry_s
        if not self._in_force:
            self._has_polled = True
            self._set_polling(is_polling=False)
        if not self.lacks_waiter_slot:
            self.lacks_waiter_slot = True
            call_subscribers(self._subscriptions, Channel.DONE, None)

    def _has_waiters(self) -> bool:
        return any(channel is Channel.DONE for channel, _, _ in list(self._subscriptions))

    def _unlisten(self, connection: psycopg.Connection, channels: set[Channel]) -> None:
        for channel in channels:
            self._in_force.discard(channel)  # first: a later subscriber sees that it is not in force
            if channel in self._wanted_channels():  # this one may have seen that it was
                self._in_force.add(channel)
                call_subscribers(self._subscriptions, channel, None)
            else:
                with self._handoff.in_use:
                    connection.execute(self._unlisten_command(channel), prepare=False)
                if channel is Channel.DONE:
                    self._waiter_slot = None

    def _unlisten_command(self, channel: Channel) -> bytes:
        command = f'unlisten "{channel.name_in(self._config.schema)}"'
        if channel is Channel.DONE:
            command += f"; select pg_catalog.pg_advisory_unlock_shared({self._waiters_lock})"
            if self._waiter_slot is not None:
                group = waiters_slot_group(self._config.schema)
                command += f"; select pg_catalog.pg_advisory_unlock({group}, {self._waiter_slot})"
        return command.encode()

    def _update_locks(self, connection: psycopg.Connection) -> None:
        # `_held_locks` is replaced, never mutated: other threads read it.
        for lock in self._held_locks - self._wanted_locks:
            self._call_lock_function(connection, "advisory_unlock_shared", lock)
            self._held_locks = self._held_locks - {lock}
        for lock in self._wanted_locks - self._held_locks:
            if self._call_lock_function(connection, "try_advisory_lock_shared", lock):
                self._held_locks = self._held_locks | {lock}
            else:
                self._wanted_locks.discard(lock)  # until it is requested again

    def _call_lock_function(self, connection: psycopg.Connection, name: str, lock: str) -> bool:
        try:
            with self._handoff.in_use:
                cursor = connection.execute(f"select pg_{name}(hashtextextended(%s::text, 0))".encode(), [lock])
                return cursor.fetchone() == (True,)
        except psycopg.Error as error:
            if connection.closed:
                raise
            log.debug("an advisory lock could not be taken or released: %s", broker_error(error))
            return False

    def _on_notification(self, name: str, payload: str) -> None:
        """Called by whichever thread reads."""
        self.received_at = time.monotonic()
        channel = self._channels.get(name)
        if channel is None or channel not in self._in_force:
            return
        if channel is Channel.NEW and payload.startswith(CHANGED):
            for group in self._groups:
                if group.on_changed(payload):
                    self._wake()
            return
        if channel is not Channel.TEST:
            call_subscribers(self._subscriptions, channel, payload)
        elif payload == self._test.sent:  # other processes test themselves, too
            self._test.received = payload
            self._wake()

    def _continue_test(self) -> None:
        if self._test.sent is None:
            self._test.sent = secrets.token_hex(8)
            try:
                self._notify(Channel.TEST, self._test.sent)
            except psycopg.Error as error:
                # Nothing was sent, so a missing token says nothing about this connection.
                log.debug("the self-test of LISTEN could not be sent: %s", broker_error(error))
                self._test.sent = None
            # From now: a busy pool may have delayed the sending.
            self._test.due_at = time.monotonic() + self._timings.test_timeout_s
            return
        if self._test.has_passed:
            raise psycopg.OperationalError("the connection became unresponsive")
        if not self._is_direct:
            raise SharedSession
        self._test.schedule(self._timings.test_interval_s)
        self._log_polling("LISTEN/NOTIFY does not arrive on this connection")
        self._start_polling()

    def _log_polling(self, reason: str) -> None:
        if not self._has_logged_polling:
            log.warning("%s; polling instead. Set listen_url to a direct connection to the same database.", reason)
        self._has_logged_polling = True

    def _start_polling(self) -> None:
        self._set_polling(is_polling=True)
        call_subscribers(self._subscriptions, None, None)

    def _set_polling(self, *, is_polling: bool) -> None:
        was_polling, self.is_polling = self.is_polling, is_polling
        if subscribers and was_polling != is_polling:
            emit(NotificationsLost() if is_polling else NotificationsRestored())

    def _on_connection_lost(self, error: psycopg.Error, attempt: int) -> None:
        self._in_force.clear()
        self._waiter_slot, self.lacks_waiter_slot = None, False
        self._held_locks = set()
        for group in self._groups:
            group.forget()
        if attempt <= 1:
            log.warning("LISTEN connection lost, polling until it is restored: %s", broker_error(error))
        self._start_polling()
        if attempt:
            delay_ms = self._resilience.delay_ms(attempt - 1, random.uniform(-1, 1))  # noqa: S311 - jitter, not a secret
            self._sleep(delay_ms / 1000, until_reached=True)

    def _sleep(self, seconds: float, *, until_reached: bool = False) -> None:
        wake_at = time.monotonic() + seconds
        with _Selector() as selector:
            selector.register(self._wake_reader, selectors.EVENT_READ)
            while not self._is_closing and (left := wake_at - time.monotonic()) > 0:
                if until_reached and self._reached_at > self._tried_at:
                    return
                if selector.select(left):
                    self._wake_reader.recv(4096)


@dataclass(slots=True)
class ListenSelfTest:
    """The self-test of one connection. A token may be received on any thread; only the listener's thread acts on it."""

    has_passed: bool = False
    """At least once: notifications can arrive here."""
    sent: str | None = None
    """The token of the test under way."""
    received: str | None = None
    due_at: float = 0.0
    """When the next test starts, or when the token of the current one is overdue."""

    def schedule(self, in_s: float) -> None:
        self.sent, self.due_at = None, time.monotonic() + in_s


class ReaderHandoff:
    """Decides who reads the connections of one listener: its thread, or an event loop in its place."""

    def __init__(self, on_notification: Callable[[str, str], None], wake_thread: Callable[[], None]) -> None:
        self._on_notification = on_notification
        self._wake_thread = wake_thread
        self._requested_by: LoopNotificationReader | None = None
        self._assigned_to: LoopNotificationReader | None = None
        self.in_use = threading.Lock()
        """Held while the thread, or the loop that reads, uses the connection: libpq is not thread-safe."""

    # -- on a loop

    @contextmanager
    def read_on_this_loop(self) -> Generator[None]:
        """Let the running event loop read, so that its subscribers are called there, mostly without a change of threads."""
        reader = self._requested_by = LoopNotificationReader()
        self._wake_thread()
        try:
            yield
        finally:
            if self._requested_by is reader:
                self._requested_by = None
            reader.close()
            self._wake_thread()

    # -- on that loop, or on the thread

    def read(self, connection: psycopg.Connection, reader: "LoopNotificationReader | None" = None) -> None:
        """Read what has arrived, and pass it on. `reader` is that of the loop which calls this; it never waits for the thread."""
        if not self.in_use.acquire(blocking=reader is None):
            return  # the thread uses it, and reads what there is
        received: list[tuple[str, str]] = []
        try:
            if reader is self._assigned_to or reader is None:
                connection.pgconn.consume_input()
                while notification := connection.pgconn.notifies():
                    # Any user may have sent it, and a database with the encoding SQL_ASCII does not check the bytes.
                    name, payload = notification.relname, notification.extra
                    received.append((name.decode(errors="replace"), payload.decode(errors="replace")))
        except psycopg.Error:
            if reader is None:
                raise
            reader.stop()  # the thread finds the error itself
            self._wake_thread()
        finally:
            self.in_use.release()
        for channel, text in received:
            self._on_notification(channel, text)

    # -- on the thread

    def assign(self, connection: psycopg.Connection, selector: selectors.BaseSelector, *, is_listening: bool) -> None:
        """Assign the reading to the loop that requests it; without one the selector of the thread watches the connection.

        Not while LISTEN is not in force: the answer to each poll of the thread would wake the loop, too.
        """
        requested_by = self._requested_by if is_listening else None
        reader = None if requested_by is None or requested_by.loop.is_closed() else requested_by
        if reader is self._assigned_to:
            return
        if self._assigned_to is None:
            selector.unregister(connection.fileno())
        self.withdraw()
        if reader is not None and reader.watch(connection.fileno(), partial(self.read, connection, reader)):
            self._assigned_to = reader
        else:
            selector.register(connection.fileno(), selectors.EVENT_READ)

    def withdraw(self) -> None:
        with self.in_use:  # no loop reads now; one that still tries later gets nothing, or an error of psycopg
            reader, self._assigned_to = self._assigned_to, None
        if reader is not None:
            with suppress(RuntimeError):
                reader.loop.call_soon_threadsafe(reader.stop)


class LoopNotificationReader:
    """Watches one connection after another on its event loop; none if the loop is closed."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._watched: int | None = None
        self._is_closed = False

    # -- on the listener's thread

    def watch(self, fileno: int, read: Callable[[], None]) -> bool:
        """Call `read` on the loop whenever there is something to read. Return False if that is not possible."""
        try:
            # The thread may close its own, and its number may be reused before the loop runs.
            duplicate = os.dup(fileno)
        except OSError:
            return False  # too many open files
        try:
            self.loop.call_soon_threadsafe(self._start, duplicate, read)
        except RuntimeError:
            os.close(duplicate)
            return False
        return True

    # -- on the loop

    def _start(self, duplicate: int, read: Callable[[], None]) -> None:
        if self._is_closed:
            os.close(duplicate)
            return
        self._watched = duplicate
        self.loop.add_reader(duplicate, read)

    def stop(self) -> None:
        if self._watched is not None:
            self.loop.remove_reader(self._watched)
            os.close(self._watched)
            self._watched = None

    def close(self) -> None:
        self._is_closed = True
        self.stop()
