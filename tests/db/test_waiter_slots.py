"""Of the processes that wait for results only a few listen; the waiters of the others poll."""

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import psycopg
import pytest

from horsies.db.broker import PostgresBroker
from horsies.db.channels import Channel, waiters_slot_group
from horsies.db.listener import ListenerTimings
from horsies.db.statement import Op
from horsies.db.waiter import ReadResult
from horsies.model.config import PostgresConfig
from tests.fixtures.brokers import WITHOUT_POLLING
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import column

TIMINGS = ListenerTimings(waiter_slots=2, slot_retry_s=0.05, unused_s=0.1)
HELD = (
    f"select objid from pg_locks where locktype = 'advisory' and classid = {waiters_slot_group('horsies')} and objsubid = 2 "
    "and granted and database = (select oid from pg_database where datname = current_database()) order by 1"
)


class Process:
    """A process with a waiter, as a broker of its own."""

    def __init__(self, database: str, timings: ListenerTimings) -> None:
        self.broker = PostgresBroker(PostgresConfig(database_url=database), listener_timings=timings)
        self.listener = self.broker.listener()
        self.received: list[str | None] = []
        self.wait()

    def wait(self) -> None:
        self.listener.subscribe(Channel.DONE, None, self.received.append)

    def leave(self) -> None:
        self.listener.unsubscribe(Channel.DONE, None, self.received.append)

    @property
    def listens(self) -> bool:
        return self.listener.is_listening

    @property
    def polls(self) -> bool:
        return self.listener.is_polling or self.listener.lacks_waiter_slot

    @property
    def payloads(self) -> list[str]:
        return [payload for payload in self.received if payload is not None]


Start = Callable[..., list[Process]]


@pytest.fixture
def start(database: str) -> Generator[Start]:
    processes: list[Process] = []

    def start(count: int, timings: ListenerTimings = TIMINGS) -> list[Process]:
        for _ in range(count):
            process = Process(database, timings)
            processes.append(process)
            eventually(
                lambda process=process: process.received == [None], what="it listens, or knows that it must poll"
            )
        return processes

    yield start
    for process in processes:
        process.broker.close()


def notify(sql: psycopg.Connection, payload: str) -> None:
    sql.execute("select pg_notify(%s, %s)", [Channel.DONE.name_in("horsies"), payload])


def test_a_process_listens_for_a_while_after_its_last_wait(start: Start, sql: psycopg.Connection) -> None:
    """One that waits again and again would otherwise take the slot each time."""
    (process,) = start(1, ListenerTimings(first_test_s=0.5, unused_s=60.0))
    process.leave()
    eventually(lambda: process.listener.received_at is not None, what="the self-test of LISTEN is over")
    assert column(sql, HELD) == [0]
    assert process.listens


@pytest.mark.promise("A4")
def test_only_as_many_listen_as_there_are_slots_and_the_others_poll(start: Start, sql: psycopg.Connection) -> None:
    processes = start(4)
    assert column(sql, HELD) == [0, 1]
    assert [process.listens for process in processes] == [True, True, False, False]
    assert [process.polls for process in processes] == [False, False, True, True]
    notify(sql, "a")
    eventually(lambda: all(process.payloads == ["a"] for process in processes[:2]))
    assert [process.payloads for process in processes[2:]] == [[], []]
    assert not any(process.listener.is_polling for process in processes), "nothing is wrong with their sessions"


def test_a_process_that_polls_listens_when_another_one_has_ended(start: Start, sql: psycopg.Connection) -> None:
    processes = start(3)
    processes[0].broker.close()
    eventually(lambda: processes[2].listens)
    eventually(lambda: processes[2].received == [None, None], what="called again when LISTEN is in force")
    assert not processes[2].polls
    assert column(sql, HELD) == [0, 1]
    notify(sql, "a")
    eventually(lambda: processes[2].payloads == ["a"])


def test_a_process_whose_session_was_terminated_frees_its_slot(start: Start, sql: psycopg.Connection) -> None:
    processes = start(3)
    holder = column(sql, HELD.replace("objid from", "pid from"))[0]
    sql.execute("select pg_terminate_backend(%s)", [holder])
    eventually(lambda: column(sql, HELD) == [0, 1])
    eventually(lambda: [process.polls for process in processes].count(True) == 1)
    eventually(lambda: [process.listens for process in processes].count(True) == 2)


def test_a_process_without_waiters_gives_its_slot_up_and_takes_it_again(start: Start, sql: psycopg.Connection) -> None:
    processes = start(3)
    processes[0].leave()
    eventually(lambda: processes[2].listens, what="before the next self-test")
    eventually(lambda: not processes[0].listens)
    processes[1].leave()
    eventually(lambda: column(sql, HELD) == [0])
    processes[0].wait()
    eventually(lambda: processes[0].listens)
    assert column(sql, HELD) == [0, 1]
    notify(sql, "a")
    eventually(lambda: processes[0].payloads == ["a"])


def test_one_that_polled_and_has_no_waiters_does_not_poll_for_long(start: Start, sql: psycopg.Connection) -> None:
    """Its next waiter does not poll because of what was true long ago."""
    processes = start(3)
    processes[2].leave()
    eventually(lambda: not processes[2].polls)
    processes[0].broker.close()
    eventually(lambda: column(sql, HELD) == [1])
    processes[2].wait()
    eventually(lambda: processes[2].listens)
    assert column(sql, HELD) == [0, 1]


@pytest.mark.promise("D6")
def test_a_role_that_takes_all_slots_makes_waiters_poll(start: Start, sql: psycopg.Connection) -> None:
    for slot in range(2):
        sql.execute("select pg_advisory_lock(%s, %s)", [waiters_slot_group("horsies"), slot])
    (process,) = start(1)
    assert process.polls
    sql.execute("select pg_advisory_unlock_all()")
    eventually(lambda: process.listens)


@pytest.mark.promise("A4")
def test_more_waiting_processes_than_slots_all_get_their_results(database: str, sql: psycopg.Connection) -> None:
    ended: set[str] = set()

    def source(ids: list[str]) -> Op[dict[str, ReadResult[bool]]]:
        return {each: ReadResult(each in ended, is_final=each in ended) for each in ids}
        yield

    with ExitStack() as stack, ThreadPoolExecutor(5) as threads:
        config = PostgresConfig(database_url=database)
        brokers = [
            stack.enter_context(
                PostgresBroker(
                    config, listener_timings=TIMINGS, waiter_timings=WITHOUT_POLLING
                )  # unless without a slot
            )
            for _ in range(5)
        ]
        waits = [threads.submit(broker.wait, source, ["a"], None) for broker in brokers]
        eventually(lambda: sum(broker.listener().lacks_waiter_slot for broker in brokers) == 3)
        assert column(sql, HELD) == [0, 1]
        ended.add("a")
        notify(sql, "a")
        assert [wait.result(10)["a"].result() for wait in waits] == [True] * 5
