"""Workers are told of a send when it is committed, by a statement that cannot undo it."""

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
from tests.tasks.test_enqueue import heard, listen_to_new

NEWS_OF = "horsies.wakeup_payload(ready boolean, priority integer, enqueued_at timestamptz, queue_name text)"


def break_the_news(sql: psycopg.Connection, *, times: int = 1_000_000) -> None:
    """So many notifications fail."""
    sql.execute("create sequence horsies.broken_news")
    sql.execute(
        f"create or replace function {NEWS_OF} returns text language plpgsql as $$ begin "
        f"if nextval('horsies.broken_news') <= {times} then raise 'no news today'; end if; return 'good news'; end $$".encode()
    )


@pytest.mark.promise("A3")
def test_a_send_whose_notification_fails_is_still_sent(
    shop: Shop, sql: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    break_the_news(sql)
    with caplog.at_level(logging.WARNING):
        sent = [shop.pack.send(1), *shop.pack.send_many([shop.pack.call(2), shop.pack.call(3)])]
    assert column(sql, "select id::text from horsies.tasks order by id") == [handle.task_id for handle in sent]
    assert [record.message for record in caplog.records if "no news today" in record.message]


async def test_an_async_send_whose_notification_fails_is_still_sent(shop: Shop, sql: psycopg.Connection) -> None:
    break_the_news(sql)
    sent = [await shop.pack.send_async(1), await shop.pack.send_async(2)]  # the connection is in order after the first
    assert column(sql, "select id::text from horsies.tasks order by id") == [handle.task_id for handle in sent]
    await shop.app.close_async()


def test_an_async_send_does_not_wait_for_its_commit_to_tell(
    shop: Shop, sql: psycopg.Connection, proxy: Proxy, database: str
) -> None:
    """Both travel together: one round trip, and a producer that dies in it leaves nothing untold."""
    shop.app.use_database(proxy.url)
    listen_to_new(sql)

    async def send() -> None:
        await shop.pack.send_async(1)
        assert len(heard(sql)) == 1
        with psycopg.connect(database) as blocker:
            blocker.execute("lock table horsies.tasks in share mode")
            sending = asyncio.create_task(shop.pack.send_async(2))
            await asyncio.to_thread(wait_until_blocked, sql, blocker)
            proxy.freeze()  # no answer comes back from now on
        await asyncio.to_thread(eventually, lambda: heard(sql), what="workers are told")
        proxy.thaw()
        await sending
        await shop.app.close_async()

    asyncio.run(send())


def test_every_way_to_send_tells_once(shop: Shop, sql: psycopg.Connection) -> None:
    async def send_async() -> None:
        await shop.pack.send_async(1)
        await shop.pack.send_many_async([shop.pack.call(1), shop.pack.call(2)])
        await shop.app.close_async()

    listen_to_new(sql)
    shop.pack.send(1)
    shop.pack.send_many([shop.pack.call(1), shop.pack.call(2)])
    shop.pack.with_options(key="one").send(1)
    asyncio.run(send_async())
    assert len(heard(sql)) == 5


def test_a_send_that_was_cut_off_before_it_told_anybody_tells_when_it_is_repeated(
    shop: Shop, sql: psycopg.Connection, faults: Plant
) -> None:
    listen_to_new(sql)
    break_the_news(sql, times=1)
    faults("enqueue_tasks", "after", "drop")
    shop.pack.send(1)
    assert heard(sql) == ["good news"]
    assert column(sql, "select count(*) from horsies.tasks") == [1]


@pytest.mark.promise("A7")
def test_a_row_inserted_by_hand_in_the_session_of_a_send_wakes_workers_too(
    database: str, sql: psycopg.Connection
) -> None:
    with PostgresBroker(PostgresConfig(database_url=database, pool_max_size=1)) as broker:
        broker.run(partial(enqueue, [new_task()]))
        listen_to_new(sql)
        by_hand = Statement("by_hand", "insert into {schema}.tasks (task_name, queue_name) values ('x', 'by hand')")
        broker.run(lambda: rows(by_hand()))
        (payload,) = heard(sql)
    assert payload.endswith(" by hand")


def test_what_has_been_taken_already_is_not_told_of(shop: Shop, sql: psycopg.Connection) -> None:
    sql.execute(
        "create function horsies.take() returns trigger language plpgsql as $$ begin "
        "new.status := 'CLAIMED'; new.claimed_by := gen_random_uuid(); return new; end $$"
    )
    sql.execute("create trigger take before insert on horsies.tasks for each row execute function horsies.take()")
    listen_to_new(sql)
    shop.pack.send(1)
    assert heard(sql) == []
