"""Keys are deleted when no send could find them held, and not a moment sooner."""

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial

import psycopg
import pytest

from horsies import KeyConflictError
from horsies.maintenance import retention
from horsies.maintenance.retention import DEFAULT_LIMITS, delete_unused_keys
from horsies.tasks.finish import finish_tasks
from tests.fixtures.eventually import wait_until_blocked
from tests.fixtures.journey import ME, claim, column, completed, do, row
from tests.fixtures.shops import Shop
from tests.maintenance.aged_rows import age, ago, days_of, make_day, retained, table_of

KEYS = "select key from horsies.keys order by key"


@pytest.fixture
def thread() -> Generator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


def run_all(shop: Shop) -> None:
    for held in claim(shop.app.broker, queues=["parcels", "letters"]):
        do(shop.app.broker, finish_tasks(ME, [completed(held)]))


def delete_keys(shop: Shop) -> int:
    return shop.app.broker.run(delete_unused_keys).count


def test_a_key_goes_an_hour_after_it_became_free(shop: Shop, sql: psycopg.Connection) -> None:
    for key, window in (("short", 0), ("long", 86_400)):
        shop.pack.with_options(key=key, key_window=window).send(1)
    run_all(shop)
    shop.pack.with_options(key="live").send(1)
    assert delete_keys(shop) == 0
    sql.execute("update horsies.finished set finished_at = now() - interval '61 minutes'")
    assert delete_keys(shop) == 1
    assert column(sql, KEYS) == ["live", "long"]
    sql.execute("update horsies.finished set finished_at = now() - interval '25 hours 1 minute'")
    assert delete_keys(shop) == 1
    assert column(sql, KEYS) == ["live"]


def test_all_keys_are_looked_at_however_many_there_are(shop: Shop, sql: psycopg.Connection) -> None:
    """Keys of tasks that do not exist are deleted at once."""
    sql.execute(
        "insert into horsies.keys (task_name, key, task_id, send_id, args_hash, key_window) select 'pack', 'spent ' || number, "
        "gen_random_uuid(), gen_random_uuid(), '', '0' from generate_series(1, %s) as number",
        [2 * DEFAULT_LIMITS.rows + 1],
    )
    shop.pack.with_options(key="the last one").send(1)
    assert delete_keys(shop) == 2 * DEFAULT_LIMITS.rows + 1
    assert column(sql, KEYS) == ["the last one"]


def test_a_key_holds_for_its_window_also_when_the_day_of_its_task_is_gone(shop: Shop, sql: psycopg.Connection) -> None:
    keyed = shop.pack.with_options(key="k", key_window=timedelta(days=30))
    first = keyed.send(1)
    run_all(shop)
    make_day(sql, 9)
    age(sql, first.task_id, 9)
    retained(shop.app.broker)
    assert table_of(ago(9)) not in days_of(sql)
    assert keyed.send(1).task_id == first.task_id
    with pytest.raises(KeyConflictError):
        keyed.send(2)
    sql.execute("update horsies.keys set ended_at = ended_at - interval '22 days'")
    second = keyed.send(2)
    assert second.task_id != first.task_id
    assert row(sql, "select task_id::text, ended_at from horsies.keys") == (second.task_id, None)


def test_a_key_holds_for_its_window_also_when_its_task_was_deleted_from_the_default(
    shop: Shop, sql: psycopg.Connection
) -> None:
    keyed = shop.pack.with_options(key="k", key_window=timedelta(days=30))
    first = keyed.send(1)
    run_all(shop)
    age(sql, first.task_id, 9)
    retained(shop.app.broker)
    assert column(sql, "select id from horsies.finished") == []
    assert keyed.send(1).task_id == first.task_id
    assert delete_keys(shop) == 0
    sql.execute("update horsies.keys set ended_at = ended_at - interval '22 days'")
    assert delete_keys(shop) == 1


def test_a_key_that_is_being_taken_over_stays(shop: Shop, database: str, sql: psycopg.Connection) -> None:
    keyed = shop.pack.with_options(key="k")
    keyed.send(1)
    run_all(shop)
    sql.execute("update horsies.finished set finished_at = now() - interval '1 day'")
    with psycopg.connect(database) as own:
        second = shop.pack.with_options(key="k", connection=own).send(1)
        assert delete_keys(shop) == 0
    assert delete_keys(shop) == 0
    assert keyed.send(1).task_id == second.task_id


def test_a_send_under_a_key_that_is_just_being_deleted_gets_it(
    shop: Shop, database: str, sql: psycopg.Connection, thread: ThreadPoolExecutor
) -> None:
    keyed = shop.pack.with_options(key="k")
    first = keyed.send(1)
    run_all(shop)
    sql.execute("update horsies.finished set finished_at = now() - interval '1 day'")
    deletion = retention.SQL["delete_unused_keys"](after_name="", after_key="", limit=10)
    with psycopg.connect(database) as leader:
        leader.execute(deletion.statement.for_schema("horsies"), deletion.params)
        sending = thread.submit(partial(keyed.send, 1))
        wait_until_blocked(sql, leader)
    second = sending.result()
    assert second.task_id != first.task_id
    assert row(sql, "select task_id::text from horsies.keys") == (second.task_id,)
