"""One LISTEN connection per process, shared by everyone who waits.

A plain thread holds the connection and rings bells (a worker's event loop may read in its place, see `reader.py`).
Whoever waits re-reads the truth when its bell rings: a bell rung in vain costs a read, a bell not rung would cost a
wait. So every doubt rings all of them: when LISTEN comes into force, when the connection is lost, and when
notifications turn out not to arrive.

**Self-test.** A LISTEN that looks healthy may hear nothing: on a half-open socket, or in another database. So from time to
time a token is notified *from another connection* while this one idles. A listener that has heard before and misses a
token reconnects; one that never heard any is declared deaf: one log line, and waiters poll. At that time a channel that nobody waits for is
given up: those who would notify save themselves the trouble (`channels.py`).

**Poolers.** A LISTEN sent through a transaction pooler stays behind in a session that others use next, and every
notification then wakes a stranger. So where the session may not be ours (`session.py`), nothing is sent before it is known
not to be shared. It is, when our process changes from one statement to the next, or when it serves somebody else while we
are connected; a pooler that hands out the last used session first shows that at once. Without such proof (a session
pooler, most likely) the self-test decides, on the test's channel alone, and what it leaves in a session is taken back.
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
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial

import psycopg

from horsies.db.channels import Channel, Subscriptions, Wake, waiters_lock
from horsies.db.errors import broker_error
from horsies.db.pool import connect
from horsies.db.pooler import backend_pid, is_direct, is_shared, undo_in_session
from horsies.model.config import PostgresConfig, WorkerResilienceConfig
from horsies.subscribers import emit, subscribers

# --------
# Who reads the LISTEN connection: the listener's thread, or an event loop in its place.
#
# A worker is woken by a notification for nearly every task, and a hand-over from thread to thread is among the dearest
# things on the way to its child. So the thread lends the reading to the worker's loop and keeps everything else:
# connecting, LISTEN, the self-test, the end. All who wait in this process then wait for that loop to turn.


class ReaderHandoff:
    """Of the connections of one listener. `heard` is told of each notification by whoever reads; `wake` wakes the thread."""

    def __init__(self, heard: Callable[[str, str], None], wake: Callable[[], None]) -> None:
        self._received = heard
        self._wake = wake
        self._wanted_by: LoopNotificationReader | None = None
        self._lent_to: LoopNotificationReader | None = None
        self.using = threading.Lock()
        """Held by whoever uses the connection: the thread, or the loop that it is lent to."""

    # -- on a loop

    @contextmanager
    def on_this_loop(self) -> Generator[None]:
        reader = self._wanted_by = LoopNotificationReader()
        self._wake()
        try:
            yield
        finally:
            if self._wanted_by is reader:
                self._wanted_by = None
            reader.close()
            self._wake()

    def _read_on_loop(self, connection: psycopg.Connection, reader: "LoopNotificationReader") -> None:
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
        self.end_use()
        if reader is not None and reader.watch(connection.fileno(), partial(self._read_on_loop, connection, reader)):
            self._lent_to = reader
        else:
            selector.register(connection.fileno(), selectors.EVENT_READ)

    def end_use(self) -> None:
        with self.using:  # nobody reads it now, and hardly anybody later: psycopg refuses to read what is closed
            reader, self._lent_to = self._lent_to, None
        if reader is not None:
            reader.let_go()

    def _tell(self, heard: list[tuple[str, str]]) -> None:
        for channel, payload in heard:
            self._received(channel, payload)


def notifications(connection: psycopg.Connection) -> list[tuple[str, str]]:
    """Channel and payload of each that has arrived."""
    connection.pgconn.consume_input()
    heard: list[tuple[str, str]] = []
    while notification := connection.pgconn.notifies():
        # Anyone may have sent it, and a database without an encoding does not check what it holds.
        heard.append((notification.relname.decode(errors="replace"), notification.extra.decode(errors="replace")))
    return heard


class LoopNotificationReader:
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


# --------
# How a listener finds out whether it hears: a token that is notified over another connection must come back.
#
# Whoever reads hears it, on whatever thread that is. What follows from it is the business of the listener's thread alone.

EVERY_S = 30.0
ANSWER_S = 3.0


class ListenSelfTest:
    """Of one connection."""

    def __init__(self, first_in_s: float) -> None:
        self.due_at = time.monotonic() + first_in_s
        self.has_passed = False
        """Once at least: something can be heard here."""
        self._asked: str | None = None
        self._received: str | None = None

    @property
    def is_due(self) -> bool:
        """It is time to ask; or, if that was done, for the answer to be there."""
        return time.monotonic() >= self.due_at

    @property
    def is_under_way(self) -> bool:
        return self._asked is not None

    def ask(self, notify: Callable[[str], object]) -> None:
        self._asked = secrets.token_hex(8)
        notify(self._asked)
        self.due_at = time.monotonic() + ANSWER_S  # from now: a busy pool may have taken its time to send it

    def receive_message(self, token: str) -> bool:
        """From any thread. Whether it is ours: other processes test themselves, too."""
        if token != self._asked:
            return False
        self._received = token
        return True

    def take_answer(self) -> bool:
        """Whether it has come since the last time."""
        if self._asked is None or self._received != self._asked:
            return False
        self.has_passed = True
        self.rest()
        return True

    def postpone(self) -> None:
        """It could not be sent; soon again."""
        self._asked = None
        self.due_at = time.monotonic() + ANSWER_S

    def rest(self) -> None:
        """Until the next test."""
        self._asked = None
        self.due_at = time.monotonic() + EVERY_S


RECONNECT_POLL_S = 300.0
CLOSE_S = 5.0

log = logging.getLogger("horsies.listen")


class SharedSession(Exception):  # noqa: N818 - it says what was found
    """A pooler lends us a session for a transaction at a time: what is left in it is left to strangers."""


class Listener:
    """Rings the bells of this process. `notify` sends a notification over some *other* connection, and says by which process."""

    def __init__(
        self,
        config: PostgresConfig,
        *,
        notify: Callable[[Channel, str], int],
        resilience: WorkerResilienceConfig,
        first_test_s: float,
    ) -> None:
        self._config = config
        self._notify = notify
        self._resilience = resilience
        self._first_test_s = first_test_s
        self._subscriptions = Subscriptions()
        self._channels = {channel.name_in(config.schema): channel for channel in Channel}
        self._in_force: set[Channel] = set()
        self._deaf = False
        self.received_at: float | None = None
        """When the last notification came in, on the monotonic clock; None before the first."""
        self._has_logged_polling = False
        self._tried_at = self._reached_at = 0.0
        self._locks: set[str] = set()
        self._held: set[str] = set()
        self._closing = False
        self._reading = ReaderHandoff(self._received, self._wake)
        self._wake_reader, self._waker = socket.socketpair()
        self._waker.setblocking(False)  # noqa: FBT003 - when it is full, the thread will wake anyway
        self._thread = threading.Thread(target=self._run, name="horsies-listener", daemon=True)
        self._thread.start()

    # -- for those who wait

    def subscribe(self, channel: Channel, key: str | None, wake_callback: Wake) -> bool:
        """Ring this bell for this key (None: every payload). False: LISTEN is not in force yet, but soon; the bell will tell."""
        self._subscriptions.add(channel, key, wake_callback)
        if channel in self._in_force:
            return True
        self._wake()
        return self._deaf

    def unsubscribe(self, channel: Channel, key: str | None, wake_callback: Wake) -> None:
        self._subscriptions.remove(channel, key, wake_callback)

    def hold(self, lock: str) -> None:
        """Hold the advisory lock of this name, shared, while there is a connection that is ours alone. Never waited for: see `holds`."""
        self._locks.add(lock)
        self._wake()

    def let_go(self, lock: str) -> None:
        self._locks.discard(lock)
        self._wake()

    def holds(self, lock: str) -> bool:
        return lock in self._held

    def read_on_this_loop(self) -> AbstractContextManager[None]:
        """Bells are rung on the running event loop meanwhile, mostly: whoever waits there is spared a change of threads."""
        return self._reading.on_this_loop()

    @property
    def is_listening(self) -> bool:
        """It has a connection on which LISTEN is in force. Whether anything arrives there, the self-test tells."""
        return bool(self._in_force)

    def retry_now(self) -> None:
        """The database was reached by another connection: do not wait any longer before the next attempt."""
        self._reached_at = time.monotonic()
        self._wake()

    @property
    def is_polling(self) -> bool:
        """Notifications are known not to arrive: whoever waits must poll."""
        return self._deaf

    def close(self) -> None:
        """The thread may be waiting for a silent server. It has nothing left to do and leaves when it can; nobody waits for long."""
        self._closing = True
        self._wake()
        self._thread.join(CLOSE_S)
        self._waker.close()

    # -- the thread

    def _run(self) -> None:
        with self._wake_reader:
            self._listen_until_closed()

    def _listen_until_closed(self) -> None:
        attempt = 0
        while not self._closing:
            self._tried_at = time.monotonic()
            try:
                with connect(self._config, "listener", url=self._config.listen_conninfo) as connection:
                    self._refuse_shared(connection)
                    self._serve(connection)
            except psycopg.Error as error:
                # One that was heard on has served: it is replaced at once. Only attempts that fail are spaced out.
                attempt = 0 if self._in_force and self._test.has_passed else attempt + 1
                self._lost(error, attempt)
            except SharedSession:
                self._log_polling("LISTEN does not work through a transaction pooler")
                self._sleep(RECONNECT_POLL_S)

    def _refuse_shared(self, connection: psycopg.Connection) -> None:
        self._is_direct = is_direct(connection)
        if self._is_direct:
            return
        self._start_polling()  # until the opposite is known
        if is_shared(connection, lambda: self._notify(Channel.TEST, "")):
            raise SharedSession

    def _serve(self, connection: psycopg.Connection) -> None:
        self._test = ListenSelfTest(self._first_test_s if self._is_direct else 0.0)
        # What arrives while a LISTEN is being answered is read by psycopg, which hands it on only to a handler.
        connection.add_notify_handler(lambda heard: self._received(heard.channel, heard.payload))
        with connection.transaction():
            self._listen(connection, {Channel.TEST})
            self._process = backend_pid(connection)
        try:
            self._listen_and_hear(connection)
        except SharedSession:
            self._withdraw(connection)
            raise
        if not self._is_direct:
            self._withdraw(connection)  # not every pooler cleans up after its clients

    def _listen_and_hear(self, connection: psycopg.Connection) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(connection.fileno(), selectors.EVENT_READ)
            selector.register(self._wake_reader, selectors.EVENT_READ)
            try:
                while not self._closing:
                    if self._is_direct or self._test.has_passed:
                        self._listen(connection, self._subscriptions.channels() - self._in_force)
                    self._mind_locks(connection)
                    self._reading.lend(connection, selector)
                    ready = selector.select(max(0.0, self._test.due_at - time.monotonic()))
                    if any(key.fileobj is self._wake_reader for key, _ in ready):
                        self._wake_reader.recv(4096)
                    self._reading.read(connection)
                    if self._test.take_answer():
                        self._batch(to_polling=False)
                    if self._test.is_due:
                        self._give_up_unwanted(connection)
                        self._go_on_testing()
            finally:
                self._reading.end_use()

    def _withdraw(self, connection: psycopg.Connection) -> None:
        commands = [self._unlisten(channel) for channel in self._in_force]
        self._in_force.clear()
        undo_in_session(connection, commands, self._process)

    def _listen(self, connection: psycopg.Connection, channels: set[Channel]) -> None:
        for channel in channels:
            command = f'listen "{channel.name_in(self._config.schema)}"'
            if channel.is_for_waiters:
                # At once, or not at all: whoever is in the way has hung, and those who wait had better poll.
                lock = f"select pg_catalog.pg_advisory_lock_shared({self._waiters_lock})"
                command = f"select pg_catalog.set_config('lock_timeout', '1s', true); {lock}; {command}"
            with self._reading.using:
                connection.execute(command.encode())
            self._in_force.add(channel)
            self._subscriptions.wake_all(channel)

    def _mind_locks(self, connection: psycopg.Connection) -> None:
        if not self._is_direct:
            return
        for lock in self._held - self._locks:
            self._say_of_lock(connection, "advisory_unlock_shared", lock)
            self._held = self._held - {lock}
        for lock in self._locks - self._held:
            if self._say_of_lock(connection, "try_advisory_lock_shared", lock):
                self._held = self._held | {lock}
            else:
                self._locks.discard(lock)  # until it is wanted again

    def _say_of_lock(self, connection: psycopg.Connection, verb: str, lock: str) -> bool:
        try:
            with self._reading.using:
                done = connection.execute(
                    f"select pg_{verb}(hashtextextended(%s::text, 0))".encode(), [lock]
                ).fetchone()
        except psycopg.Error as error:
            if connection.closed:
                raise
            log.debug("an advisory lock could not be taken or left: %s", broker_error(error))
            return False
        return done == (True,)

    def _give_up_unwanted(self, connection: psycopg.Connection) -> None:
        for channel in self._in_force - self._subscriptions.channels() - {Channel.TEST}:
            self._in_force.discard(channel)  # first: whoever subscribes from now on sees that it is not
            if channel in self._subscriptions.channels():  # and this one may not have seen it
                self._in_force.add(channel)
                self._subscriptions.wake_all(channel)
            else:
                with self._reading.using:
                    connection.execute(self._unlisten(channel))

    def _unlisten(self, channel: Channel) -> bytes:
        command = f'unlisten "{channel.name_in(self._config.schema)}"'
        if channel.is_for_waiters:
            command += f"; select pg_catalog.pg_advisory_unlock_shared({self._waiters_lock})"
        return command.encode()

    @property
    def _waiters_lock(self) -> str:
        """As a literal without an operator: its schema cannot be named in front of a sign."""
        return f"'{waiters_lock(self._config.schema)}'::pg_catalog.int8"

    def _received(self, name: str, payload: str) -> None:
        self.received_at = time.monotonic()
        channel = self._channels.get(name)
        if channel is None or channel not in self._in_force:
            return
        if channel is not Channel.TEST:
            self._subscriptions.wake_subscribers(channel, payload)
        elif self._test.receive_message(payload):
            self._wake()

    def _go_on_testing(self) -> None:
        if self._test.is_under_way:
            self._failed()
            return
        try:
            self._test.ask(lambda token: self._notify(Channel.TEST, token))
        except psycopg.Error as error:
            # Nothing was sent, so nothing can be missed: that says nothing about this connection.
            log.debug("the self-test of LISTEN could not be sent: %s", broker_error(error))
            self._test.postpone()

    def _failed(self) -> None:
        if self._test.has_passed:
            raise psycopg.OperationalError("the connection went silent")
        if not self._is_direct:
            raise SharedSession
        self._test.rest()
        self._log_polling("LISTEN/NOTIFY does not arrive on this connection")
        self._start_polling()

    def _log_polling(self, why: str) -> None:
        if not self._has_logged_polling:
            log.warning("%s; polling instead. Set listen_url to a direct connection to the same database.", why)
        self._has_logged_polling = True

    def _start_polling(self) -> None:
        self._batch(to_polling=True)
        self._subscriptions.wake_all()

    def _batch(self, *, to_polling: bool) -> None:
        was_deaf, self._deaf = self._deaf, to_polling
        if subscribers and was_deaf != to_polling:
            from horsies.events import NotificationsLost, NotificationsRestored  # noqa: PLC0415 - for nobody else

            emit(NotificationsLost() if to_polling else NotificationsRestored())

    def _lost(self, error: psycopg.Error, attempt: int) -> None:
        self._in_force.clear()
        self._held = set()
        if attempt <= 1:
            log.warning("the LISTEN connection was lost; polling until it is back: %s", broker_error(error))
        self._start_polling()
        if attempt:
            delay_ms = self._resilience.delay_ms(attempt - 1, random.uniform(-1, 1))  # noqa: S311 - jitter, no secret
            self._sleep(delay_ms / 1000, may_be_cut_short=True)

    def _sleep(self, seconds: float, *, may_be_cut_short: bool = False) -> None:
        until = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_reader, selectors.EVENT_READ)
            while not self._closing and (left := until - time.monotonic()) > 0:
                if may_be_cut_short and self._reached_at > self._tried_at:
                    return
                if selector.select(left):
                    self._wake_reader.recv(4096)

    def _wake(self) -> None:
        with suppress(OSError):  # it is full, or was closed meanwhile
            self._waker.send(b"!")
