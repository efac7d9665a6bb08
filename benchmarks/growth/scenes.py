"""What is in place before a run."""

from collections.abc import Generator
from contextlib import contextmanager

import psycopg

from benchmarks.place import Place
from benchmarks.retention import fill_day
from horsies.db.statement import load

SQL = {name: statement.for_schema("horsies") for name, statement in load(__file__).items()}
DAYS = 7
"""As long as they are kept by default: today and the six days before."""


def fill_finished(place: Place, count: int) -> None:
    for days_ago in range(DAYS):
        fill_day(place, days_ago, count // DAYS)


def fill_backlog(place: Place, count: int, queues: int = 0) -> None:
    place.admin.execute(SQL["fill_backlog"], {"count": count, "queues": queues})


def fill_delayed(place: Place, count: int) -> None:
    place.admin.execute(SQL["fill_delayed"], {"count": count})


def fill_unknown(place: Place, count: int, *, set_aside: bool) -> None:
    place.admin.execute(SQL["fill_unknown"], {"count": count, "set_aside": set_aside})


@contextmanager
def held_snapshot(place: Place) -> Generator[None]:
    """Hold a foreign transaction open: rows that existed at its start cannot be vacuumed until it ends."""
    with psycopg.connect(place.url, autocommit=True) as other:
        other.execute("begin isolation level repeatable read")
        other.execute("select from pg_class limit 1")  # only now it has its snapshot
        yield
