"""Large payloads are not part of the claim and are read separately."""

from dataclasses import replace

import psycopg
import pytest

from horsies.db.broker import PostgresBroker
from horsies.model.payload_errors import MOST_BYTES
from horsies.model.result import TaskError
from horsies.model.status import TaskStatus
from horsies.model.task import Claim
from horsies.tasks.claim import (
    INLINE_BYTES_MAX,
    INLINE_BYTES_MIN,
    MAX_CLAIM_BYTES,
    MAX_LOAD_BYTES,
    ClaimRequest,
    Payload,
    claim_tasks,
    fail_unclaimable_task,
    lanes_from_start,
    list_claimable_tasks,
    load_payloads,
    payloads_from_rows,
    try_claim,
)
from horsies.tasks.finish import release_tasks
from tests.fixtures.journey import ME, OTHER, claim, do, row, send_new


def insert(sql: psycopg.Connection, size: int, count: int = 1) -> None:
    sql.execute(
        "insert into horsies.tasks (task_name, args) select 'echo', json_build_object('value', repeat('x', %s)) "
        "from generate_series(1, %s)",
        [size, count],
    )


def load(broker: PostgresBroker, claims: list[Claim], worker: str = ME) -> dict[str, Payload]:
    (found,) = do(broker, load_payloads(worker, claims))
    return payloads_from_rows(found)


@pytest.mark.promise("D6")
@pytest.mark.parametrize("limit", [1, 2, 100, 1_000, 100_000])
def test_a_claim_returns_a_bounded_number_of_bytes(limit: int) -> None:
    inline_bytes = claim_tasks(ClaimRequest(ME, TaskStatus.RUNNING, limit, 1_000), []).params["inline_bytes"]
    assert isinstance(inline_bytes, int)
    assert INLINE_BYTES_MIN <= inline_bytes <= INLINE_BYTES_MAX
    assert inline_bytes * limit <= max(MAX_CLAIM_BYTES, INLINE_BYTES_MIN * limit)


def test_a_claim_returns_small_arguments_and_no_large_ones(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    """Their size as text counts, not the compressed size."""
    insert(sql, 1_000)
    insert(sql, INLINE_BYTES_MAX)
    found = claim(broker)
    assert sorted(held.args is None for held in found) == [False, True]
    (large,) = [held for held in found if held.is_unread]
    payload = load(broker, [large])[large.id]
    assert payload.args is not None
    assert len(payload.args) == payload.bytes == INLINE_BYTES_MAX + 14
    assert not payload.is_too_large


def test_one_read_returns_as_many_payloads_as_fit_its_limit(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    size = MAX_LOAD_BYTES * 2 // 5
    insert(sql, size, count=5)
    left = claim(broker)
    read: list[int] = []
    while left:
        found = load(broker, left)
        assert len(found) == len(left)
        read.append(sum(payload.args is not None for payload in found.values()))
        left = [held for held in left if found[held.id].args is None]
    assert read == [2, 2, 1]


def test_a_payload_above_the_limit_of_a_read_is_read_alone(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    insert(sql, MAX_LOAD_BYTES + 1, count=2)
    found = load(broker, claim(broker))
    assert sorted(payload.args is None for payload in found.values()) == [False, True]


def test_a_payload_above_the_size_limit_does_not_block_others(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    insert(sql, MOST_BYTES)
    insert(sql, INLINE_BYTES_MAX)
    found = load(broker, claim(broker))
    assert sorted((payload.is_too_large, payload.args is None) for payload in found.values()) == [
        (False, False),
        (True, True),
    ]


def test_only_the_holder_of_the_claim_reads_its_payload(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    insert(sql, INLINE_BYTES_MAX)
    (held,) = claim(broker)
    assert load(broker, [held], worker=OTHER) == {}
    assert load(broker, [held._replace(claim_no=held.claim_no + 1)]) == {}


def test_a_task_keeps_its_count_of_child_deaths(broker: PostgresBroker) -> None:
    send_new(broker)
    (held,) = claim(broker)
    do(broker, release_tasks(ME, [held], {held.id: 2}))
    (again,) = claim(broker)
    assert again.child_deaths == 2
    do(broker, release_tasks(ME, [again]))
    assert claim(broker)[0].child_deaths == 2, "a release for another reason does not lower the count"


# -- a row that cannot be claimed


def test_a_trial_claim_changes_nothing_and_the_list_is_in_claim_order(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    send_new(broker, 3)
    wanted = ClaimRequest(ME, TaskStatus.RUNNING, 2, 1_000)
    (found,) = do(broker, list_claimable_tasks(wanted, lanes_from_start(["default"])))
    assert len(found) == 2
    before = sql.execute("select * from horsies.tasks order by id").fetchall()
    do(broker, *try_claim(ME, found[0][0]))
    assert sql.execute("select * from horsies.tasks order by id").fetchall() == before
    excluding = replace(wanted, excluded=[found[0][0]])
    (rest,) = do(broker, list_claimable_tasks(excluding, lanes_from_start(["default"])))
    assert found[0] not in rest
    assert len(rest) == 2


def test_only_a_pending_task_is_ended_as_unclaimable(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    send_new(broker, 2)
    (held,) = claim(broker, 1)
    (waiting,) = row(sql, "select id::text from horsies.tasks where status = 'PENDING'")
    error = TaskError(error_code="WORKER_SERIALIZATION_ERROR", message="no")
    assert do(broker, fail_unclaimable_task(held.id, error)) == [[]]
    assert do(broker, fail_unclaimable_task(str(waiting), error)) == [[(waiting,)]]
    assert row(sql, "select id::text, status, error_code from horsies.finished") == (
        waiting,
        "FAILED",
        "WORKER_SERIALIZATION_ERROR",
    )


@pytest.mark.promise("D6")
def test_a_row_with_takes_inputs_but_without_a_node_is_read_without_inputs(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    sql.execute("insert into horsies.tasks (task_name, takes_inputs) values ('echo', true)")
    (held,) = claim(broker)
    assert held.is_unread
    payload = load(broker, [held])[held.id]
    assert (payload.bytes, payload.args, payload.inputs) == (2, "{}", None)
