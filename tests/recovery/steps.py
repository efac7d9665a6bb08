"""Steps shared by the tests of caps and recovery: settings for `tests/apps`, inserted rows, intervals."""

import json
from collections.abc import Iterable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from tests.apps.settings import VARIABLE
from tests.fixtures.journey import column, row

CLUSTER = "tests.apps.cluster:app"
FORKED = ("--max-tasks-per-child=0",)  # starts faster; for tests that do not need recycling

Interval = tuple[float, float]


def settings(**given: object) -> dict[str, str]:
    return {VARIABLE: json.dumps(given)}


def insert_rows(
    sql: psycopg.Connection,
    name: str,
    args: Iterable[Mapping[str, object]],
    *,
    queue_name: str = "default",
    **columns: Any,
) -> list[str]:
    """Insert rows in one statement. Further columns are SQL expressions. Returns the ids."""
    names = "".join(f", {column}" for column in columns)
    values = "".join(f", {value}" for value in columns.values())
    return [
        str(task_id)
        for (task_id,) in sql.execute(
            f"insert into horsies.tasks (task_name, queue_name, args{names}) "
            f"select %s, %s, args{values} from unnest(%s::json[]) as args returning id::text".encode(),
            [name, queue_name, [json.dumps(arguments) for arguments in args]],
        ).fetchall()
    ]


def insert_spans(
    sql: psycopg.Connection, log: Path, count: int, seconds: float, *, name: str = "span", queue_name: str = "default"
) -> list[str]:
    """Insert tasks that log when they run, and run again after a crash."""
    return insert_rows(
        sql,
        name,
        ({"log": str(log), "number": number, "seconds": seconds} for number in range(count)),
        queue_name=queue_name,
        retry_delays_ms="array[50, 50, 50]",
        retry_for="array['WORKER_CRASHED']",
    )


class Note(NamedTuple):
    number: int
    what: str
    at: float
    pid: int


def notes(log: Path) -> list[Note]:
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return [Note(int(number), what, int(at) / 1e9, int(pid)) for number, what, at, pid in lines]


def noted_intervals(log: Path, died: dict[int, float]) -> list[Interval]:
    """Return when tasks ran, by their own log. A task without an end ran in a process that died at the time in `died`."""
    begun: dict[tuple[int, int], float] = {}
    found: list[Interval] = []
    for note in notes(log):
        key = note.number, note.pid
        if note.what == "begins":
            assert key not in begun
            begun[key] = note.at
        else:
            found.append((begun.pop(key), note.at))
    return found + [(at, died[pid]) for (_, pid), at in begun.items()]


def held_intervals(sql: psycopg.Connection, queue_name: str | None = None) -> list[Interval]:
    """Return when each attempt held its slot, from claim to ending, by the database's clock."""
    where = "where queue_name = %(queue)s or %(queue)s::text is null"
    query = f"""
        select extract(epoch from claimed_at)::float8, extract(epoch from finished_at)::float8
        from horsies.finished {where}
        union all
        select
            extract(epoch from (attempt->>'started_at')::timestamptz)::float8,
            extract(epoch from (attempt->>'ended_at')::timestamptz)::float8
        from horsies.finished cross join unnest(failed_attempts) as attempt {where}
    """
    return [(begin, end) for begin, end in sql.execute(query.encode(), {"queue": queue_name}).fetchall()]


def most_at_once(intervals: Iterable[Interval]) -> int:
    """Return the highest number of overlapping intervals. One that ends when another begins does not overlap it."""
    moments = [(moment, change) for begin, end in intervals for moment, change in ((begin, 1), (end, -1))]
    return max(accumulate(change for _, change in sorted(moments)))


def each_ended_once(sql: psycopg.Connection, count: int) -> None:
    """Check that no task is live or lost, and none has two endings."""
    assert row(sql, "select count(*) from horsies.tasks") == (0,)
    assert row(sql, "select count(*), count(distinct id) from horsies.finished") == (count, count)


def workers(sql: psycopg.Connection) -> list[str]:
    """Return the registered incarnations, oldest first."""
    return [str(worker) for worker in column(sql, "select id::text from horsies.workers order by started_at")]
