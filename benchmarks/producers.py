"""Several producers, each a process of its own, committing single sends at once: ours beside the bare statement.

NOTIFY takes a lock of the whole cluster at COMMIT, so commits that notify go one after the other. What it costs is the difference between the two
bare rates.
"""

import multiprocessing
import time
from collections.abc import Callable
from enum import Enum
from multiprocessing.synchronize import Barrier
from typing import Final

import psycopg

from benchmarks.measures import Measure
from benchmarks.place import Place, new_tasks
from benchmarks.raw.inserts import SQL, row_of, silence
from benchmarks.tasks import make_app

PRODUCERS: Final = 8
WARM_UP: Final = 20


class Way(Enum):
    """How a producer sends."""

    SEND = "task.send"
    NOTIFYING = "insert and pg_notify in one statement"
    SILENT = "insert alone"


def send_at_once(place: Place, count: int) -> dict[Measure, float]:
    """So many by each producer."""
    place.clear("horsies")
    place.clear("raw")
    ours = _rate(place.url, count, Way.SEND)
    with silence(place):
        notifying, silent = _rate(place.url, count, Way.NOTIFYING), _rate(place.url, count, Way.SILENT)
    return {Measure.PRODUCERS: ours, Measure.RAW_PRODUCERS_NOTIFY: notifying, Measure.RAW_PRODUCERS: silent}


def _rate(url: str, count: int, way: Way) -> float:
    """From the moment all are ready to the moment the last one is done."""
    context = multiprocessing.get_context("spawn")  # connections and pools do not survive a fork
    ready = context.Barrier(PRODUCERS + 1)
    producers = [context.Process(target=_produce, args=(url, count, way, ready)) for _ in range(PRODUCERS)]
    for producer in producers:
        producer.start()
    ready.wait()
    began = time.perf_counter()
    for producer in producers:
        producer.join()
    seconds = time.perf_counter() - began
    if any(producer.exitcode for producer in producers):
        raise RuntimeError(f"a producer failed ({way.value})")
    return PRODUCERS * count / seconds


def _produce(url: str, count: int, way: Way, ready: Barrier) -> None:
    if way is Way.SEND:
        app, note_start = make_app(url, 0)
        _repeat(note_start.send, count, ready)
        app.close()
    else:
        text = SQL["insert_and_notify" if way is Way.NOTIFYING else "insert_one"]
        with psycopg.connect(url, autocommit=True) as connection:
            connection.prepare_threshold = 2
            tasks = new_tasks(range(WARM_UP + count))
            _repeat(lambda number: connection.execute(text, row_of(tasks[number])), count, ready)


def _repeat(act: Callable[[int], object], count: int, ready: Barrier) -> None:
    for number in range(WARM_UP):
        act(number)
    ready.wait()
    for number in range(WARM_UP, WARM_UP + count):
        act(number)
