"""Of the processes that serve the same queues only a few listen, and one of them acts on each notification."""

from collections.abc import Callable, Generator
from contextlib import ExitStack

import psycopg
import pytest

from horsies.db.broker import PostgresBroker
from horsies.db.channels import Channel
from horsies.db.listen_group import POLLS_PER_S, WAITING_MARK, ListenGroup
from horsies.db.statement import Statement
from horsies.model.config import PostgresConfig, WorkerResilienceConfig
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import column
from tests.fixtures.proxies import Proxy

LOCKS = (
    "from pg_locks where locktype = 'advisory' and objsubid = 2 and objid < 100 and granted "
    "and database = (select oid from pg_database where datname = current_database())"
)
POLL = Statement("poll", "select %(is_missed)s::boolean")
HELD = f"select objid {LOCKS} order by 1"


class Member:
    """A process of the group `jobs`, as a broker of its own."""

    def __init__(self, database: str, slots: int, resilience: WorkerResilienceConfig | None = None) -> None:
        self.broker = PostgresBroker(PostgresConfig(database_url=database), resilience=resilience)
        self.received: list[str | None] = []
        self.has_capacity = True
        self.group = ListenGroup(
            "jobs",
            [Channel.NEW],
            poll=POLL(is_missed=False),
            has_capacity=lambda: self.has_capacity,
            slots=slots,
        )
        self.listener = self.broker.listener()
        self.listener.join(self.group)
        self.listener.subscribe(Channel.NEW, None, self.received.append)

    @property
    def payloads(self) -> list[str]:
        return [payload for payload in self.received if payload is not None]


Join = Callable[[int], list[Member]]


@pytest.fixture
def join(database: str) -> Generator[Join]:
    """Start so many members of a group with two slots, one after the other."""
    members: list[Member] = []

    def start(count: int) -> list[Member]:
        for _ in range(count):
            member = Member(database, slots=2)
            members.append(member)
            eventually(lambda member=member: member.group.slot is not None or member.group.is_waiting)
        return members

    yield start
    for member in members:
        member.broker.close()


def listening(members: list[Member]) -> list[Member]:
    return [member for member in members if member.group.slot is not None]


def notify(sql: psycopg.Connection, payload: str) -> None:
    sql.execute("select pg_notify(%s, %s)", [Channel.NEW.name_in("horsies"), payload])


def test_only_as_many_listen_as_there_are_slots(join: Join, sql: psycopg.Connection) -> None:
    members = join(5)
    assert column(sql, HELD) == [0, 1]
    eventually(lambda: all(member.received for member in members[:2]), what="LISTEN is in force")
    notify(sql, "hello")
    eventually(lambda: all(member.payloads == ["hello"] for member in members[:2]))
    assert [member.payloads for member in members[2:]] == [[], [], []]


def test_each_number_belongs_to_one_of_those_that_listen(join: Join) -> None:
    members = join(4)
    eventually(lambda: all(list(member.group.occupied) == [0, 1] for member in listening(members)))
    for number in range(10):
        assert [member.group.owns(number) for member in members].count(True) == 1


def test_a_lone_member_owns_everything(join: Join) -> None:
    (member,) = join(1)
    assert all(member.group.owns(number) for number in range(10))
    assert not member.group.has_others


def test_a_slot_whose_session_is_gone_is_taken_by_a_member_that_waits(join: Join, sql: psycopg.Connection) -> None:
    """Before it has taken the slot it listens to nothing; afterwards it is called to look at everything, and receives what follows."""
    members = join(3)
    members[0].broker.close()
    eventually(lambda: members[2].group.slot == 0)
    eventually(lambda: members[2].received == [None], what="called when LISTEN is in force")
    eventually(lambda: list(members[1].group.occupied) == [0, 1], what="the other one knows")
    notify(sql, "hello")
    eventually(lambda: members[2].payloads == ["hello"])


def test_a_member_without_capacity_gives_its_slot_to_one_that_waits(join: Join, sql: psycopg.Connection) -> None:
    members = join(3)
    members[0].has_capacity = False
    eventually(lambda: members[0].group.slot is None and members[2].group.slot == 0)
    eventually(lambda: members[2].received, what="LISTEN is in force")
    notify(sql, "hello")
    eventually(lambda: members[2].payloads == ["hello"])
    assert members[0].payloads == []


def test_a_member_that_could_not_say_that_it_waits_says_so_later(
    join: Join, sql: psycopg.Connection, database: str
) -> None:
    """At that moment another one checks whether any waits, which takes the same lock."""
    members = join(2)
    (key,) = column(sql, f"select distinct classid::bigint {LOCKS}")
    with psycopg.connect(database) as checking:
        checking.execute("select pg_advisory_xact_lock(%s::integer, %s::integer)", [key, WAITING_MARK])
        member = Member(database, slots=2)
        members.append(member)
        member.group.poll = POLL(is_missed=True)
        eventually(lambda: member.received, what="it polls")
    members[0].has_capacity = False
    eventually(lambda: member.group.slot == 0, what="it gets the slot of one without capacity")


def test_a_member_without_capacity_keeps_its_slot_if_none_waits(join: Join, sql: psycopg.Connection) -> None:
    members = join(2)
    members[0].has_capacity = False
    join(1)  # it waits, and has capacity: so a check was made
    members[2].has_capacity = False
    eventually(lambda: len(listening(members)) == 2)
    assert len(column(sql, HELD)) == 2


def test_a_member_that_has_resigned_takes_no_slot_again(join: Join, sql: psycopg.Connection) -> None:
    members = join(2)
    members[0].listener.resign(members[0].group)
    eventually(lambda: column(sql, HELD) == [1])
    eventually(lambda: list(members[1].group.occupied) == [1])
    assert members[1].group.owns(0)
    assert members[1].group.owns(1)


def test_a_member_without_a_slot_polls(join: Join) -> None:
    members = join(3)
    members[2].group.poll = POLL(is_missed=True)
    eventually(lambda: members[2].received[:2] == [None, None])


def test_where_many_wait_for_a_slot_each_polls_less_often(join: Join, sql: psycopg.Connection, database: str) -> None:
    members = join(2)
    (key,) = column(sql, f"select distinct classid::bigint {LOCKS}")
    with ExitStack() as waiting:
        for _ in range(24):
            session = waiting.enter_context(psycopg.connect(database, autocommit=True))
            session.execute("select pg_advisory_lock_shared(%s::integer, %s::integer)", [key, WAITING_MARK])
        members += join(1)
        assert members[2].group.pause_s == 24 / POLLS_PER_S
        members[2].group.poll = POLL(is_missed=True)
        eventually(lambda: members[2].received[:2] == [None, None])


def test_a_stranger_that_takes_all_slots_makes_all_members_poll(
    join: Join, sql: psycopg.Connection, database: str
) -> None:
    (member,) = join(1)
    (key,) = column(sql, f"select classid::bigint {LOCKS}")
    with psycopg.connect(database, autocommit=True) as stranger:
        stranger.execute("select pg_advisory_lock(%s::integer, 1)", [key])
        member.has_capacity = False
        member.broker.close()
        stranger.execute("select pg_advisory_lock(%s::integer, 0)", [key])
        *_, late = join(1)
        late.group.poll = POLL(is_missed=True)
        eventually(lambda: late.received, what="it polls")
        assert late.group.slot is None
    eventually(lambda: late.group.slot is not None, what="the slots are free again")


def test_a_member_without_a_slot_does_not_reconnect_without_pauses_during_an_outage(
    join: Join, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    join(2)
    member = Member(proxy.url, slots=2, resilience=WorkerResilienceConfig(db_retry_initial_ms=100, db_retry_max_ms=500))
    try:
        eventually(lambda: member.group.is_waiting)
        proxy.cut()
        eventually(lambda: len(member.received) >= 4, what="called for the loss, and for every attempt that fails")
        proxy.heal()
        eventually(lambda: member.group.is_waiting, what="it is back")
    finally:
        member.broker.close()
    # The later attempts are not logged. Without pauses each one would count as the first.
    assert 1 <= sum("LISTEN connection lost" in record.message for record in caplog.records) <= 2


def test_a_lost_connection_loses_the_slot_and_takes_it_again(join: Join, sql: psycopg.Connection) -> None:
    (member,) = join(1)
    eventually(lambda: member.received == [None])
    sql.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where datname = current_database() and application_name = 'horsies listener'"
    )
    eventually(lambda: len(member.received) >= 3, what="called for the loss, and when LISTEN is in force again")
    eventually(lambda: member.group.slot == 0)
    notify(sql, "hello")
    eventually(lambda: member.payloads == ["hello"])
