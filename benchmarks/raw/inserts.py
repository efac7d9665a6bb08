"""Rows into the live table: one a commit, and in bulk."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import psycopg

from benchmarks.measures import Measure, percentile
from benchmarks.place import TERMS, Place, new_tasks
from benchmarks.sizes import BULK_CHUNK
from horsies.db.load import load
from horsies.model.task import NewTask

SQL = {name: statement.for_schema("raw") for name, statement in load(__file__).items()}
WARM_UP = 20
TERMS_ROW = {"task_name": TERMS.task_name, "queue_name": TERMS.queue_name, "priority": TERMS.priority}


def insert_one_by_one(place: Place, count: int) -> dict[Measure, float]:
    notifying = _time_each(place, count)
    with _silence(place):
        silent = _time_each(place, count)
    return {
        Measure.RAW_INSERT_NOTIFY: count / sum(notifying),
        Measure.RAW_INSERT: count / sum(silent),
        Measure.RAW_INSERT_P50: percentile(silent, 50) * 1000,
    }


def insert_in_bulk(place: Place, count: int) -> dict[Measure, float]:
    with _silence(place):
        return {Measure.RAW_UNNEST: _rate(place, count, _unnest), Measure.RAW_COPY: _rate(place, count, _copy)}


@contextmanager
def _silence(place: Place) -> Generator[None]:
    """Without the trigger, which notifies."""
    place.admin.execute(SQL["silence"])
    try:
        yield
    finally:
        place.admin.execute(SQL["unsilence"])


def _time_each(place: Place, count: int) -> list[float]:
    place.clear("raw")
    seconds: list[float] = []
    with psycopg.connect(place.url, autocommit=True) as connection:
        for task in new_tasks(range(WARM_UP + count)):
            began = time.perf_counter()
            connection.execute(SQL["insert_one"], {"id": task.id, "args": task.args} | TERMS_ROW)
            seconds.append(time.perf_counter() - began)
    return seconds[WARM_UP:]


def _rate(place: Place, count: int, insert: Callable[[psycopg.Connection, list[NewTask]], None]) -> float:
    place.clear("raw")
    chunks = [new_tasks(range(first, first + BULK_CHUNK)) for first in range(0, count, BULK_CHUNK)]
    with psycopg.connect(place.url, autocommit=True) as connection:
        began = time.perf_counter()
        for chunk in chunks:
            insert(connection, chunk)
        return count / (time.perf_counter() - began)


def _unnest(connection: psycopg.Connection, tasks: list[NewTask]) -> None:
    params = {
        "ids": [task.id for task in tasks],
        "task_names": [TERMS.task_name for _ in tasks],
        "queue_names": [TERMS.queue_name for _ in tasks],
        "priorities": [TERMS.priority for _ in tasks],
        "args": [task.args for task in tasks],
    }
    connection.execute(SQL["insert_many"], params)


def _copy(connection: psycopg.Connection, tasks: list[NewTask]) -> None:
    with connection.cursor().copy(SQL["copy_many"]) as copy:
        for task in tasks:
            copy.write_row((task.id, TERMS.task_name, TERMS.queue_name, TERMS.priority, task.args))
