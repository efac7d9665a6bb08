"""Times outside of Python's range are read as the earliest or the latest one, so that one hand-written row does not hide others."""

from functools import partial

import psycopg
import pytest

from horsies.db.broker import PostgresBroker
from horsies.db.pooler import EARLIEST, LATEST
from horsies.db.statement import Statement, rows
from horsies.tasks.inspect import TaskFilter, get_info, list_tasks
from tests.fixtures.journey import column
from tests.maintenance.aged_rows import ago, finish

READ = Statement("read_moment", "select %(moment)s::timestamptz")
MOMENTS = {
    "infinity": LATEST,
    "-infinity": EARLIEST,
    "0044-03-15 BC": EARLIEST,
    "10000-01-01": LATEST,
    "294276-12-31 23:59:59+00": LATEST,
    "4714-11-24 00:00:00+00 BC": EARLIEST,
}


@pytest.mark.promise("D6")
@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
def test_a_time_outside_of_pythons_range_is_read_as_the_earliest_or_the_latest(
    broker: PostgresBroker, sql: psycopg.Connection, zone: str
) -> None:
    sql.execute(f"alter database {sql.info.dbname} set timezone = '{zone}'".encode())
    for text, expected in MOMENTS.items():
        assert broker.run(partial(rows, READ(moment=text))) == [(expected,)]
    for text in ("2024-02-29 12:30:00.5+00", "9999-12-31 00:00+00", "0001-01-02 00:00+00"):
        ((moment,),) = broker.run(partial(rows, READ(moment=text)))
        assert column(sql, "select %s = %s::timestamptz", moment, text) == [True]


@pytest.mark.promise("D6")
async def test_an_event_loop_reads_the_same(async_broker: PostgresBroker) -> None:
    assert await async_broker.run_async(partial(rows, READ(moment="infinity"))) == [(LATEST,)]


@pytest.mark.promise("D6")
def test_tasks_with_such_times_and_unknown_attempts_can_be_listed_and_shown(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    ids = finish(sql, ago(0), 3)
    sql.execute(
        "update horsies.finished set sent_at = '-infinity', good_until = 'infinity', started_at = '20000-01-01', error = '1', "
        "failed_attempts = array['1', '{\"attempt\": 1}', null]::json[]"
    )
    assert len(broker.run(partial(list_tasks, TaskFilter(), limit=10)).tasks) == len(ids)
    info = broker.run(partial(get_info, ids[0]))
    assert info is not None
    assert (info.sent_at, info.good_until, info.started_at) == (EARLIEST, LATEST, LATEST)
    assert len(info.failed_attempts) == 3
    assert info.error is not None
