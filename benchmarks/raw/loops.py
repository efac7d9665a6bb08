"""Claim and finish in a loop on one blocking connection: the most that one conversation with the server can carry.

psycopg's own settings, so unlike horsies (which must work behind a pooler) these loops have their statements prepared.
"""

import time
from collections.abc import Callable
from uuid import uuid4

import psycopg

from benchmarks.place import Place
from horsies.db.statement import load

SQL = load(__file__)
WORKER = str(uuid4())


def fused(place: Place, batch: int, count: int) -> float:
    """Finish the last batch and claim the next one in one pipelined transaction: one round trip, one commit."""

    def run(connection: psycopg.Connection) -> None:
        ids = _claim(connection, batch)
        while ids:
            with connection.pipeline():
                connection.execute(b"begin")
                _finish(connection, ids)
                claimed = _ask(connection, batch)
                connection.execute(b"commit")
            ids = _ids(claimed)

    return _rate(place, count, run)


def apart(place: Place, batch: int, count: int) -> float:
    """Claim, commit, finish, commit."""

    def run(connection: psycopg.Connection) -> None:
        while ids := _claim(connection, batch):
            _finish(connection, ids)

    return _rate(place, count, run)


def _rate(place: Place, count: int, run: Callable[[psycopg.Connection], None]) -> float:
    place.clear("raw")
    place.fill("raw", count)
    with psycopg.connect(place.url, autocommit=True) as connection:
        began = time.perf_counter()
        run(connection)
        seconds = time.perf_counter() - began
    finished = place.admin.execute("select from raw.finished").rowcount
    if finished != count:
        raise AssertionError(f"a raw loop finished {finished} of {count} rows")
    return count / seconds


def _ask(connection: psycopg.Connection, batch: int) -> psycopg.Cursor:
    return connection.execute(SQL["claim"].for_schema("raw"), {"limit": batch, "worker": WORKER})


def _ids(cursor: psycopg.Cursor) -> list[str]:
    return [row[0] for row in cursor.fetchall()]


def _claim(connection: psycopg.Connection, batch: int) -> list[str]:
    return _ids(_ask(connection, batch))


def _finish(connection: psycopg.Connection, ids: list[str]) -> None:
    params = {"ids": sorted(ids), "results": ["1"] * len(ids), "worker": WORKER}
    connection.execute(SQL["finish"].for_schema("raw"), params)
