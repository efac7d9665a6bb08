"""A send notifies workers after its commit, with a statement that cannot undo it."""

import asyncio
import logging
from functools import partial

import psycopg
import pytest

from horsies.db.broker import PostgresBroker
from horsies.db.statement import Statement, rows
from horsies.model.config import PostgresConfig
from horsies.tasks.enqueue import enqueue
from tests.fixtures.eventually import eventually, wait_until_blocked
from tests.fixtures.faults import Plant
from tests.fixtures.journey import column, new_task
from tests.fixtures.proxies import Proxy
from tests.fixtures.shops import Shop
from tests.tasks.test_enqueue import listen_to_new, read_notifications

PAYLOAD_FUNCTION = "horsies.wakeup_payload(ready boolean, priority integer, enqueued_at timestamptz, queue_name text)"


def break_notifications(sql: psycopg.Connection, *, times: int = 1_000_000) -> None:
    """Make the first `times` notifications fail."""
    sql.execute("create sequence horsies.notifications_sent")
    sql.execute(
        f"create or replace function {PAYLOAD_FUNCTION} returns text language plpgsql as $$ begin "
        f"if nextval('horsies.notifications_sent') <= {times} then raise 'notification is broken'; end if; return 'notified'; end $$".encode()
    )


@pytest.mark.promise("A3")
def test_a_send_is_kept_when_its_notification_fails(
    shop: Shop, sql: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    break_notifications(sql)
    with caplog.at_level(logging.WARNING):
        sent = [shop.pack.send(1), *shop.pack.send_many([shop.pack.call(2), shop.pack.call(3)])]
    assert column(sql, "select id::text from horsies.tasks order by id") == [handle.task_id for handle in sent]
    assert [record.message for record in caplog.records if "notification is broken" in record.message]


async def test_an_async_send_is_kept_when_its_notification_fails(shop: Shop, sql: psycopg.Connection) -> None:
    break_notifications(sql)
    sent = [
        await shop.pack.send_async(1),
        await shop.pack.send_async(2),
    ]  # the connection is still usable after the first
    assert column(sql, "select id::text from horsies.tasks order by id") == [handle.task_id for handle in sent]
    await shop.app.close_async()


def test_an_async_send_does_not_wait_for_its_commit_before_it_notifies(
    shop: Shop, sql: psycopg.Connection, proxy: Proxy, database: str
) -> None:
    """Both are sent in one round trip: a producer that dies during it has notified workers of what it committed."""
    shop.app.use_database(proxy.url)
    listen_to_new(sql)

    async def send() -> None:
        await shop.pack.send_async(1)
        assert len(read_notifications(sql)) == 1
        with psycopg.connect(database) as blocker:
            blocker.execute("lock table horsies.tasks in share mode")
            sending = asyncio.create_task(shop.pack.send_async(2))
            await asyncio.to_thread(wait_until_blocked, sql, blocker)
            proxy.freeze()  # no answer arrives from now on
        await asyncio.to_thread(eventually, lambda: read_notifications(sql), what="workers are notified")
        proxy.thaw()
        await sending
        await shop.app.close_async()

    asyncio.run(send())


def test_every_way_to_send_notifies_once(shop: Shop, sql: psycopg.Connection) -> None:
    async def send_async() -> None:
        await shop.pack.send_async(1)
        await shop.pack.send_many_async([shop.pack.call(1), shop.pack.call(2)])
        await shop.app.close_async()

    listen_to_new(sql)
    shop.pack.send(1)
    shop.pack.send_many([shop.pack.call(1), shop.pack.call(2)])
    shop.pack.with_options(key="one").send(1)
    asyncio.run(send_async())
    assert len(read_notifications(sql)) == 5


def test_a_send_that_was_cut_off_before_its_notification_notifies_when_repeated(
    shop: Shop, sql: psycopg.Connection, faults: Plant
) -> None:
    listen_to_new(sql)
    break_notifications(sql, times=1)
    faults("enqueue_tasks", "after", "drop")
    shop.pack.send(1)
    assert read_notifications(sql) == ["notified"]
    assert column(sql, "select count(*) from horsies.tasks") == [1]


@pytest.mark.promise("A7")
def test_a_row_inserted_with_sql_in_the_session_of_a_send_wakes_workers_too(
    database: str, sql: psycopg.Connection
) -> None:
    with PostgresBroker(PostgresConfig(database_url=database, pool_max_size=1)) as broker:
        broker.run(partial(enqueue, [new_task()]))
        listen_to_new(sql)
        by_hand = Statement("by_hand", "insert into {schema}.tasks (task_name, queue_name) values ('x', 'by hand')")
        broker.run(lambda: rows(by_hand()))
        (payload,) = read_notifications(sql)
    assert payload.endswith(" by hand")


def test_a_task_that_is_claimed_already_is_not_announced(shop: Shop, sql: psycopg.Connection) -> None:
    sql.execute(
        "create function horsies.take() returns trigger language plpgsql as $$ begin "
        "new.status := 'CLAIMED'; new.claimed_by := gen_random_uuid(); return new; end $$"
    )
    sql.execute("create trigger take before insert on horsies.tasks for each row execute function horsies.take()")
    listen_to_new(sql)
    shop.pack.send(1)
    assert read_notifications(sql) == []
