"""Rows into the live table: one a commit, and all in one transaction."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import psycopg

from benchmarks.measures import Measure, percentile
from benchmarks.place import TERMS, Place, new_tasks
from benchmarks.sizes import BULK_CHUNK
from horsies.db.statement import load
from horsies.model.task import NewTask

SQL = {name: statement.for_schema("raw") for name, statement in load(__file__).items()}
WARM_UP = 20


def insert_one_by_one(place: Place, count: int) -> dict[Measure, float]:
    """Without the notify trigger; with it, see `send_one_by_one`."""
    with silence(place):
        silent = _time_each(place, count)
    return {
        Measure.RAW_INSERT: count / sum(silent),
        Measure.RAW_INSERT_P50: percentile(silent, 50) * 1000,
    }


def insert_in_bulk(place: Place, count: int) -> dict[Measure, float]:
    with silence(place):
        return {Measure.RAW_UNNEST: _rate(place, count, _unnest), Measure.RAW_COPY: _rate(place, count, _copy)}


def row_of(task: NewTask) -> dict[str, object]:
    return {
        "id": task.id,
        "task_name": TERMS.task_name,
        "queue_name": TERMS.queue_name,
        "priority": TERMS.priority,
        "args": task.args,
    }


@contextmanager
def silence(place: Place) -> Generator[None]:
    """Without the trigger, which notifies."""
    place.admin.execute(SQL["silence"])
    try:
        yield
    finally:
        place.admin.execute(SQL["unsilence"])


@contextmanager
def one_inserted(place: Place) -> Generator[Callable[[int], object]]:
    """An insert that can be done again and again, committed each time."""
    place.clear("raw")
    with psycopg.connect(place.url, autocommit=True) as connection:
        connection.prepare_threshold = 2

        def insert_one(number: int) -> None:
            (task,) = new_tasks(range(number, number + 1))
            connection.execute(SQL["insert_one"], row_of(task))

        for number in range(WARM_UP):
            insert_one(number)
        yield insert_one


def _time_each(place: Place, count: int) -> list[float]:
    seconds: list[float] = []
    with one_inserted(place) as insert_one:
        for number in range(count):
            began = time.perf_counter()
            insert_one(number)
            seconds.append(time.perf_counter() - began)
    return seconds


def _rate(place: Place, count: int, insert: Callable[[psycopg.Connection, list[NewTask]], None]) -> float:
    place.clear("raw")
    tasks = new_tasks(range(count))
    with psycopg.connect(place.url) as connection:
        began = time.perf_counter()
        insert(connection, tasks)
        connection.commit()
        return count / (time.perf_counter() - began)


def _unnest(connection: psycopg.Connection, tasks: list[NewTask]) -> None:
    for first in range(0, len(tasks), BULK_CHUNK):
        some = tasks[first : first + BULK_CHUNK]
        params = {
            "ids": [task.id for task in some],
            "task_names": [TERMS.task_name for _ in some],
            "queue_names": [TERMS.queue_name for _ in some],
            "priorities": [TERMS.priority for _ in some],
            "args": [task.args for task in some],
        }
        connection.execute(SQL["insert_many"], params)


def _copy(connection: psycopg.Connection, tasks: list[NewTask]) -> None:
    with connection.cursor().copy(SQL["copy_many"]) as copy:
        for task in tasks:
            copy.write_row((task.id, TERMS.task_name, TERMS.queue_name, TERMS.priority, task.args))
