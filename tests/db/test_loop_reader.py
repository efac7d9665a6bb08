"""An event loop reads the LISTEN connection in place of the listener's thread."""

import asyncio
import operator
import os
import queue
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path

import psycopg
import pytest

from horsies.db.broker import PostgresBroker
from horsies.db.channels import Channel
from horsies.db.listen_group import ListenGroup
from horsies.db.listener import Listener, ListenerTimings, LoopNotificationReader, ReaderHandoff
from horsies.model.config import PostgresConfig
from tests.db.test_listen_group import POLL
from tests.db.test_listener import LISTENERS, QUICK, notify
from tests.fixtures.eventually import eventually
from tests.fixtures.proxies import Proxy
from tests.fixtures.server import DatabaseServer


class RecordingSubscriber:
    """Keeps what it receives, and on which thread."""

    def __init__(self, broker: PostgresBroker, channel: Channel) -> None:
        self._loop = asyncio.get_running_loop()
        self._received: asyncio.Queue[tuple[str | None, int]] = asyncio.Queue()
        self._place = channel, None, self._wake_callback
        self._listener = broker.listener()
        self._listener.subscribe(*self._place)

    def _wake_callback(self, payload: str | None) -> None:
        self._loop.call_soon_threadsafe(self._received.put_nowait, (payload, threading.get_ident()))

    async def thread_of(self, payload: str | None) -> int:
        """Which received this one, which comes some time."""
        async with asyncio.timeout(10):
            while True:
                received, thread = await self._received.get()
                if received == payload:
                    return thread

    def close(self) -> None:
        self._listener.unsubscribe(*self._place)


@asynccontextmanager
async def subscribed(broker: PostgresBroker, channel: Channel = Channel.NEW) -> AsyncGenerator[RecordingSubscriber]:
    subscriber = RecordingSubscriber(broker, channel)
    await subscriber.thread_of(None)  # LISTEN is in force
    try:
        yield subscriber
    finally:
        subscriber.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - another thread has no signal for it
            await asyncio.sleep(0.005)


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def until_loop_reads(broker: PostgresBroker) -> None:
    """Wait until the loop reads the connection."""
    await until(lambda: loop_reads(broker))
    await asyncio.sleep(0)


def loop_reads(broker: PostgresBroker) -> bool:
    return operator.attrgetter("_handoff._assigned_to")(broker.listener()) is not None  # not visible otherwise


async def receiving_thread(subscriber: RecordingSubscriber, sql: psycopg.Connection) -> int:
    notify(sql, Channel.NEW, "who")
    return await subscriber.thread_of("who")


async def test_the_loop_reads_while_it_requests_to_and_the_thread_before_and_after(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    here = threading.get_ident()
    async with subscribed(broker) as subscriber:
        notify(sql, Channel.NEW, "before")
        assert await subscriber.thread_of("before") != here
        for batch in ("first", "second"):
            with broker.listener().read_on_this_loop():
                await until_loop_reads(broker)
                notify(sql, Channel.NEW, batch)
                assert await subscriber.thread_of(batch) == here
            notify(sql, Channel.NEW, f"after {batch}")
            assert await subscriber.thread_of(f"after {batch}") != here


async def test_the_loop_does_not_read_for_a_group_without_a_slot(broker: PostgresBroker) -> None:
    """Each answer to a poll would wake it, and it has nothing to do."""
    polls: asyncio.Queue[None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def has_capacity() -> bool:  # asked before each poll
        loop.call_soon_threadsafe(polls.put_nowait, None)
        return True

    group = ListenGroup("jobs", [Channel.NEW], POLL(is_missed=False), has_capacity, slots=0)
    listener = broker.listener()
    listener.join(group)
    with listener.read_on_this_loop():
        await polls.get()
        await polls.get()
        assert not loop_reads(broker)
    listener.leave(group)


async def test_a_channel_that_is_subscribed_while_the_loop_reads_is_delivered(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    async with subscribed(broker):
        with broker.listener().read_on_this_loop():
            await until_loop_reads(broker)
            async with subscribed(broker, Channel.DONE) as done:
                notify(sql, Channel.DONE, "a")
                assert await done.thread_of("a") == threading.get_ident()


@pytest.mark.promise("W12")
async def test_a_lost_connection_is_replaced_and_the_loop_reads_the_new_one(
    database: str, sql: psycopg.Connection
) -> None:
    config = PostgresConfig(database_url=database)
    with PostgresBroker(config, resilience=QUICK, listener_timings=ListenerTimings(first_test_s=60.0)) as broker:
        async with subscribed(broker) as subscriber:
            with broker.listener().read_on_this_loop():
                await until_loop_reads(broker)
                before = open_files()
                for batch in ("once", "twice"):
                    sql.execute(f"select pg_terminate_backend(pid) from ({LISTENERS}) as listeners".encode())
                    await subscriber.thread_of(None)  # it is lost
                    await subscriber.thread_of(None)  # and back
                    await until_loop_reads(broker)
                    notify(sql, Channel.NEW, batch)
                    assert await subscriber.thread_of(batch) == threading.get_ident()
                await until(lambda: open_files() == before)
            await asyncio.to_thread(broker.close)


async def test_an_unresponsive_connection_is_detected_while_the_loop_reads(
    proxy: Proxy, database: str, sql: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop receives the token of the self-test; the thread notices that one is missing."""
    # Only the listener goes through the proxy; the self-test's notification takes another way.
    config = PostgresConfig(database_url=database, listen_url=proxy.url)
    timings = ListenerTimings(first_test_s=0.0, test_interval_s=0.1, test_timeout_s=0.3)
    with PostgresBroker(config, resilience=QUICK, listener_timings=timings) as broker:
        async with subscribed(broker) as subscriber:
            with broker.listener().read_on_this_loop():
                await until_loop_reads(broker)
                received_at = broker.listener().received_at
                await until(lambda: broker.listener().received_at != received_at)
                proxy.freeze()
                await subscriber.thread_of(None)  # it is lost
                # On the next connection the thread, which reads whenever it tests itself, does so only once.
                slow = ListenerTimings(first_test_s=0.0, test_interval_s=60.0, test_timeout_s=60.0)
                monkeypatch.setattr(broker.listener(), "_timings", slow)
                proxy.thaw()
                await subscriber.thread_of(None)  # and back
                await until(lambda: operator.attrgetter("_test.has_passed")(broker.listener()))
                await until_loop_reads(broker)
                assert await receiving_thread(subscriber, sql) == threading.get_ident()
            await asyncio.to_thread(broker.close)


async def test_a_reader_that_was_closed_in_between_watches_nothing() -> None:
    reader, (ours, theirs) = LoopNotificationReader(), os.pipe()
    before = open_files()
    assert reader.watch(ours, lambda: None)
    reader.close()
    os.write(theirs, b"!")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert open_files() == before
    os.close(ours)
    os.close(theirs)


def test_the_thread_reads_again_when_the_loop_is_gone(database: str, sql: psycopg.Connection) -> None:
    """If it ended without notice, the thread finds out when the next self-test is due, and reads from then on."""
    received: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    left_open: list[AbstractContextManager[None]] = []

    async def come_and_go(broker: PostgresBroker) -> None:
        left_open.append(broker.listener().read_on_this_loop())
        left_open[0].__enter__()
        await until_loop_reads(broker)

    timings = ListenerTimings(first_test_s=0.5, test_timeout_s=60.0)
    with PostgresBroker(PostgresConfig(database_url=database), resilience=QUICK, listener_timings=timings) as broker:
        broker.listener().subscribe(Channel.NEW, None, received.put)
        asyncio.run(come_and_go(broker))
        eventually(lambda: (notify(sql, Channel.NEW, "still"), "still" in take_all(received))[1])
        sql.execute(f"select pg_terminate_backend(pid) from ({LISTENERS}) as listeners".encode())
        eventually(lambda: (notify(sql, Channel.NEW, "again"), "again" in take_all(received))[1])
        broker.listener().unsubscribe(Channel.NEW, None, received.put)


def take_all(received: "queue.SimpleQueue[str | None]") -> list[str | None]:
    return [received.get() for _ in range(received.qsize())]


async def test_without_a_file_descriptor_the_thread_keeps_reading() -> None:
    assert not LoopNotificationReader().watch(-1, lambda: None)


async def test_the_later_of_two_loops_reads(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    async with subscribed(broker) as subscriber:
        first, second = broker.listener().read_on_this_loop(), broker.listener().read_on_this_loop()
        before = open_files()
        first.__enter__()
        await until_loop_reads(broker)
        second.__enter__()
        first.__exit__(None, None, None)
        async with asyncio.timeout(10):
            while await receiving_thread(subscriber, sql) != threading.get_ident():
                pass
        second.__exit__(None, None, None)
        await until(lambda: open_files() == before)


async def test_a_token_that_the_loop_reads_before_the_notify_returns_ends_the_test(
    database: str, sql: psycopg.Connection
) -> None:
    asked: list[str] = []
    loop, received = asyncio.get_running_loop(), threading.Event()

    def notify_slowly(channel: Channel, payload: str) -> int:
        notify(sql, channel, payload)
        asked.append(payload)
        loop.call_soon_threadsafe(loop.call_later, 0.1, received.set)  # and the loop has read it before
        received.wait()
        return 0

    timings = ListenerTimings(first_test_s=0.2, test_timeout_s=0.1)
    config = PostgresConfig(database_url=database)
    listener = Listener(config, notify=notify_slowly, resilience=QUICK, timings=timings)
    woken: list[str | None] = []
    listener.subscribe(Channel.NEW, None, woken.append)  # without a subscriber there is nothing to test
    with listener.read_on_this_loop():
        await until(received.is_set)
        await asyncio.sleep(0.4)
        await asyncio.to_thread(listener.close)
    assert len(asked) == 1, "the next is due in half a minute"


async def test_the_loop_and_the_thread_do_not_use_the_connection_at_once(
    database: str, sql: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """Libpq is not thread-safe. The loop reads many notifications while the thread repeats LISTEN and UNLISTEN."""
    is_over = threading.Event()

    def chatter() -> None:
        with psycopg.connect(database, autocommit=True) as connection:
            while not is_over.is_set():
                notify(connection, Channel.NEW, "chatter")

    def wake(_payload: str | None) -> None:
        pass

    config = PostgresConfig(database_url=database)
    timings = ListenerTimings(first_test_s=0.0, test_interval_s=0.005)
    with PostgresBroker(config, resilience=QUICK, listener_timings=timings) as broker:
        async with subscribed(broker) as subscriber:
            with broker.listener().read_on_this_loop():
                await until_loop_reads(broker)
                chattering = threading.Thread(target=chatter)
                chattering.start()
                for _ in range(100):
                    broker.listener().subscribe(Channel.DONE, None, wake)
                    await asyncio.sleep(0.005)
                    broker.listener().unsubscribe(Channel.DONE, None, wake)
                    await asyncio.sleep(0.005)
                is_over.set()
                await asyncio.to_thread(chattering.join)
                notify(sql, Channel.NEW, "last")
                await subscriber.thread_of("last")
        await asyncio.to_thread(broker.close)
    assert caplog.messages == []


@pytest.mark.promise("D6")
def test_a_payload_that_is_not_text_is_read(server: DatabaseServer) -> None:
    """A database with the encoding SQL_ASCII holds any bytes, and any user may notify there."""
    name = f"bytes_{os.getpid()}"
    server.admin.execute(f"create database {name} encoding 'SQL_ASCII' locale 'C' template template0".encode())
    try:
        with psycopg.connect(server.url(name), autocommit=True) as connection:
            connection.execute("listen anything")
            connection.pgconn.exec_(b"select pg_notify('anything', 'x' || convert_from('\\xff'::bytea, 'SQL_ASCII'))")
            received: list[tuple[str, str]] = []
            handoff = ReaderHandoff(lambda channel, payload: received.append((channel, payload)), lambda: None)
            eventually(lambda: handoff.read(connection) or received)
            assert received == [("anything", "x\ufffd")]
    finally:
        server.admin.execute(f"drop database {name} with (force)".encode())
