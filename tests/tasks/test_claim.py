from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import psycopg
import pytest

from horsies.db.broker import PostgresBroker
from horsies.model.config import PostgresConfig
from horsies.model.status import TaskStatus
from horsies.tasks.claim import (
    Caps,
    ClaimRequest,
    InFlight,
    claim_tasks,
    get_in_flight_from,
    get_queue_heads,
    lanes_from_start,
)
from horsies.tasks.finish import finish_tasks, release_tasks
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import ME, OTHER, claim, claim_lanes, column, completed, do, new_task, row, send, send_new

LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)

Take = Callable[..., list[str]]


@pytest.fixture(params=["from_start", "from_watermarks"])
def take(request: pytest.FixtureRequest, broker: PostgresBroker) -> Take:
    """Claim with one of the two statements. Returns the names of the claimed tasks."""

    def from_start(limit: int = 10) -> list[str]:
        return sorted(held.task_name for held in claim(broker, limit))

    def from_watermarks(limit: int = 10) -> list[str]:
        lanes = [("default", priority, LONG_AGO) for priority in (1, 100, 200)]
        return sorted(held.task_name for held in claim_lanes(broker, lanes, limit))

    return from_start if request.param == "from_start" else from_watermarks


def insert(sql: psycopg.Connection, name: str, columns: str = "", values: str = "") -> None:
    sql.execute(f"insert into horsies.tasks (task_name{columns}) values ('{name}'{values})".encode())


# -- which tasks are claimed, and in which order


@pytest.mark.promise("W4")
def test_tasks_are_claimed_by_priority_then_age_then_id(sql: psycopg.Connection, take: Take) -> None:
    rows = [
        ("fifth", 200, 0, "1"),
        ("fourth", 100, 2, "1"),
        ("third", 100, 1, "3"),
        ("second", 100, 1, "2"),
        ("first", 1, 9, "9"),
    ]
    for name, priority, age, digit in rows:
        sql.execute(
            "insert into horsies.tasks (id, task_name, priority, enqueued_at) "
            f"values ('{digit}0000000-0000-7000-8000-00000000000{age}', '{name}', {priority}, to_timestamp({1_000_000_000 + age}))".encode()
        )
    taken = [take(1) for _ in range(6)]
    assert taken == [["first"], ["second"], ["third"], ["fourth"], ["fifth"], []]


@pytest.mark.promise("W4")
def test_only_tasks_that_are_due_ready_and_not_expired_are_claimed(sql: psycopg.Connection, take: Take) -> None:
    insert(sql, "not_due", ", enqueued_at", ", now() + interval '1 hour'")
    insert(sql, "not_ready", ", ready", ", false")
    insert(sql, "expired", ", good_until", ", now() - interval '1 ms'")
    insert(sql, "still_good", ", good_until", ", now() + interval '1 hour'")
    insert(sql, "of_another_queue", ", queue_name", ", 'elsewhere'")
    insert(sql, "running", ", status, claimed_by", f", 'RUNNING', '{OTHER}'")
    insert(sql, "due")
    assert take() == ["due", "still_good"]


@pytest.mark.promise("W4", "C22")
def test_expired_tasks_leave_the_limit_of_a_claim_to_those_behind_them(sql: psycopg.Connection, take: Take) -> None:
    for _ in range(2):
        insert(sql, "expired", ", good_until", ", now() - interval '1 ms'")
    insert(sql, "good")
    assert take(1) == ["good"]


def test_a_claim_takes_no_more_than_its_limit(broker: PostgresBroker, sql: psycopg.Connection, take: Take) -> None:
    send_new(broker, 20)
    assert len(take(7)) == 7
    assert row(sql, "select count(*) from horsies.tasks where status = 'PENDING'") == (13,)


@pytest.mark.promise("C20")
def test_the_next_queue_gets_what_the_first_leaves_of_the_limit(broker: PostgresBroker) -> None:
    for queue_name, count in (("low", 5), ("high", 2), ("middle", 1)):
        send(broker, *(new_task(queue_name=queue_name) for _ in range(count)))
    taken = claim(broker, 5, queues=["high", "middle", "low"])
    assert sorted(held.queue_name for held in taken) == ["high", "high", "low", "low", "middle"]


@pytest.mark.promise("C20")
def test_queues_are_served_in_the_order_given_and_not_by_name(broker: PostgresBroker) -> None:
    for queue_name in ("a", "b", "c"):
        send(broker, *(new_task(queue_name=queue_name, priority=1) for _ in range(2)))
    assert [held.queue_name for held in claim(broker, 2, queues=["c", "a"])] == ["c", "c"]
    assert [held.queue_name for held in claim(broker, 2, queues=["c", "a"])] == ["a", "a"]
    assert claim(broker, 2, queues=["c", "a"]) == []


def test_lanes_are_served_in_the_order_given(broker: PostgresBroker) -> None:
    for queue_name, priority in (("b", 1), ("a", 1), ("a", 2)):
        send(broker, *(new_task(queue_name=queue_name, priority=priority) for _ in range(2)))
    taken = claim_lanes(broker, [("a", 2, LONG_AGO), ("b", 1, LONG_AGO), ("a", 1, LONG_AGO)], 3)
    assert sorted((held.queue_name, held.priority) for held in taken) == [("a", 2), ("a", 2), ("b", 1)]


def test_rows_before_the_watermark_are_not_read(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    for age in range(5):
        insert(sql, f"t{age}", ", enqueued_at", f", to_timestamp({1_000_000_000 + age})")
    watermark = datetime.fromtimestamp(1_000_000_002, UTC)
    taken = claim_lanes(broker, [("default", 100, watermark)])
    assert sorted(held.task_name for held in taken) == ["t2", "t3", "t4"]
    assert [held.task_name for held in claim_lanes(broker, [("default", 100, watermark - timedelta(seconds=1))])] == [
        "t1"
    ]
    assert [held.task_name for held in claim(broker)] == ["t0"], "a claim from the start finds it"


# -- the claimed row


def test_a_claim_for_a_free_slot_is_running_at_once(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    sent = new_task("resize", priority=7, args='{"n": 1}')
    send(broker, sent)
    (held,) = claim(broker)
    assert (held.id, held.claim_no, held.task_name, held.queue_name) == (sent.id, 1, "resize", "default")
    assert (held.priority, held.attempt, held.args) == (7, 1, '{"n": 1}')
    assert row(
        sql,
        "select status, claimed_by::text, lease_until, started_at = claimed_at, enqueued_at from horsies.tasks",
    ) == ("RUNNING", ME, None, True, held.enqueued_at)


@pytest.mark.promise("C14")
def test_a_claim_into_the_buffer_has_a_lease_and_has_not_started(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    send_new(broker)
    claim(broker, status=TaskStatus.CLAIMED, lease_ms=2_500)
    lease = "extract(milliseconds from lease_until - claimed_at)::integer"
    assert row(sql, f"select status, {lease}, started_at from horsies.tasks") == ("CLAIMED", 2500, None)


def test_the_claim_number_rises_with_every_claim_and_is_never_reset(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    send_new(broker)
    for expected in (1, 2, 3):
        (held,) = claim(broker, worker=ME if expected % 2 else OTHER)
        assert (held.claim_no, held.attempt) == (expected, 1), "released claims are not attempts"
        do(broker, release_tasks(ME if expected % 2 else OTHER, [held]))
    assert row(sql, "select claim_no, attempts from horsies.tasks") == (3, 0)


# -- concurrent claims


@pytest.mark.promise("W4", "W14")
def test_a_locked_row_is_skipped_without_waiting(
    broker: PostgresBroker, database: str, sql: psycopg.Connection
) -> None:
    first, second = send_new(broker, 2)
    with psycopg.connect(database) as winner:
        query = claim_tasks(ClaimRequest(OTHER, TaskStatus.RUNNING, 1, 0), lanes_from_start(["default"]))
        winner.execute(query.statement.for_schema("horsies"), query.params)  # no COMMIT yet: the row is locked
        assert [held.id for held in claim(broker)] == [second.id]
        winner.rollback()
    assert [held.id for held in claim(broker)] == [first.id], "the other claim was rolled back, so it can be claimed"


@pytest.mark.promise("W4", "W14")
def test_a_row_that_is_locked_for_any_reason_is_skipped(database: str, sql: psycopg.Connection, take: Take) -> None:
    insert(sql, "first")
    insert(sql, "second")
    with psycopg.connect(database) as other:
        other.execute("select from horsies.tasks where task_name = 'first' for update")
        other.execute("set local idle_in_transaction_session_timeout = '5s'")  # a claim that waits would wait for this
        assert take() == ["second"]
    assert take() == ["first"]


@pytest.mark.promise("W4", "W14")
def test_no_row_is_claimed_twice(database: str, sql: psycopg.Connection) -> None:
    claimers, count = 8, 400
    config = PostgresConfig(database_url=database, pool_max_size=claimers)
    with PostgresBroker(config) as broker, ThreadPoolExecutor(claimers) as threads:
        sent = send_new(broker, count)

        def take_all(worker: str) -> list[str]:
            taken: list[str] = []
            while found := claim(broker, 3, worker=worker):
                taken += [held.id for held in found]
            return taken

        workers = [f"00000000-0000-4000-8000-00000000000{number}" for number in range(claimers)]
        shares = [result.result() for result in [threads.submit(partial(take_all, worker)) for worker in workers]]
    assert sorted(task_id for share in shares for task_id in share) == [task.id for task in sent]
    assert row(sql, "select max(claim_no), count(*) from horsies.tasks where status = 'RUNNING'") == (1, count)


def test_a_survey_finds_the_first_row_of_each_queue(sql: psycopg.Connection, broker: PostgresBroker) -> None:
    sql.execute(
        "insert into horsies.tasks (task_name, queue_name, priority, enqueued_at, ready) "
        "select 'add', queue, priority, to_timestamp(moment), ready from (values "
        "('a', 100, 7, true), ('a', 1, 9, true), ('a', 1, 8, true), ('b', 100, 5, true), ('c', 1, 1, false), ('d', 1, 1, true)"
        ") as new (queue, priority, moment, ready)"
    )
    (surveyed,) = do(broker, get_queue_heads(lanes_from_start(["a", "b", "c", "empty"])))
    assert sorted(payload for (payload,) in surveyed) == ["1 8000000 a", "100 5000000 b"]


# -- counts that start at the oldest claim in flight


@pytest.mark.promise("C10")
@pytest.mark.promise("C11")
@pytest.mark.parametrize("caps", [Caps(queues={"default": 2}), Caps(cluster_wide=2)], ids=["queue", "cluster"])
def test_a_later_count_finds_a_claim_that_was_not_committed_yet(
    broker: PostgresBroker, sql: psycopg.Connection, caps: Caps
) -> None:
    caps = replace(caps, in_flight=InFlight())
    send_new(broker, 5)
    request = ClaimRequest(ME, TaskStatus.RUNNING, 5, 1_000, caps=caps)
    uncommitted = claim_tasks(replace(request, worker=OTHER, limit=1, caps=Caps()), lanes_from_start(["default"]))
    with sql.transaction():
        sql.execute(uncommitted.statement.for_schema("horsies"), dict(uncommitted.params))
        do(broker, finish_tasks(ME, [completed(held) for held in claim(broker, 1)]))
        ((caps.in_flight.since,),) = do(broker, get_in_flight_from(caps))[0]
    assert caps.in_flight.since != "0"
    (claimed,) = do(broker, claim_tasks(request, lanes_from_start(["default"])))
    assert len(claimed) == 1


def test_a_count_starts_at_the_oldest_claim_in_flight(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    caps = Caps(queues={"default": 10})
    send_new(broker, 3)
    oldest, newer = claim(broker, 1), claim(broker, 1)
    claimed_in = int(str(column(sql, "select min(claimed_in) from horsies.tasks where status <> 'PENDING'")[0]))

    def since() -> int:
        ((caps.in_flight.since,),) = do(broker, get_in_flight_from(caps))[0]
        return int(caps.in_flight.since)

    # Other tests use the same server: a transaction of theirs that is older may still run.
    eventually(lambda: since() == claimed_in)
    do(broker, finish_tasks(ME, [completed(held) for held in newer]))
    assert since() == claimed_in
    do(broker, finish_tasks(ME, [completed(held) for held in oldest]))
    eventually(lambda: since() > claimed_in)
