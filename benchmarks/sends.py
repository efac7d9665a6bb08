"""The producer's side: sends one by one, in bulk, and the wait for one result at a time."""

import time
import tracemalloc
from collections.abc import Callable
from functools import partial

from benchmarks.measures import Measure, percentile
from benchmarks.place import Place
from benchmarks.raw.inserts import one_inserted
from benchmarks.tasks import make_app
from benchmarks.worker import running_worker

WARM_UP = 20
BATCH = 20
TIMEOUT_MS = 30_000


def send_one_by_one(place: Place, count: int) -> dict[Measure, float]:
    """Alternate with the bare insert, so that other load on the machine affects both."""
    place.clear("horsies")
    app, note_start = make_app(place.url, 0)
    for number in range(WARM_UP):
        note_start.send(number)
    ours: list[float] = []
    raw: list[float] = []
    with one_inserted(place) as insert_one:
        for first in range(0, count, BATCH):
            ours += _timed(note_start.send, range(first, first + BATCH))
            raw += _timed(insert_one, range(first, first + BATCH))
    app.close()
    return {
        Measure.SEND: len(ours) / sum(ours),
        Measure.SEND_P50: percentile(ours, 50) * 1000,
        Measure.RAW_INSERT_NOTIFY: len(raw) / sum(raw),
    }


def _timed(act: Callable[[int], object], numbers: range) -> list[float]:
    seconds: list[float] = []
    for number in numbers:
        began = time.perf_counter()
        act(number)
        seconds.append(time.perf_counter() - began)
    return seconds


def send_in_bulk(place: Place, count: int) -> dict[Measure, float]:
    place.clear("horsies")
    app, note_start = make_app(place.url, 0)
    note_start.send(0)
    began = time.perf_counter()
    calls = [note_start.call(number) for number in range(count)]
    called = time.perf_counter()
    note_start.send_many(calls)
    ended = time.perf_counter()
    beyond = _memory_beyond_result(partial(note_start.send_many, calls))
    app.close()
    return {
        Measure.BULK: count / (ended - called),
        Measure.BULK_WITH_CALLS: count / (ended - began),
        Measure.BULK_MEMORY: beyond / count,
    }


def _memory_beyond_result(act: Callable[[], object]) -> int:
    """Bytes at the peak above what is there at the end. Slows everything down, so nothing is timed then."""
    tracemalloc.start()
    try:
        result = act()
        held, peak = tracemalloc.get_traced_memory()
        del result
    finally:
        tracemalloc.stop()
    return peak - held


def wait_one_by_one(place: Place, count: int) -> tuple[dict[Measure, float], list[str]]:
    """An idle worker; each task is sent when the result of the last one is here."""
    place.clear("horsies")
    app, note_start = make_app(place.url, 0)
    sent: list[float] = []
    waited: list[float] = []
    wrong = 0
    with running_worker(place, 0) as worker:
        for number in range(-WARM_UP, count):
            sent.append(time.monotonic())
            result = note_start.send(number).get(TIMEOUT_MS)
            waited.append(time.monotonic() - sent[-1])
            wrong += result.ok_value != number if result.is_ok() else 1
        starts = dict(worker.starts())
    app.close()
    to_start = [starts[number] - sent[number + WARM_UP] for number in range(count)]
    values = {
        Measure.LATENCY_P50: percentile(waited[WARM_UP:], 50) * 1000,
        Measure.LATENCY_P95: percentile(waited[WARM_UP:], 95) * 1000,
        Measure.LATENCY_P99: percentile(waited[WARM_UP:], 99) * 1000,
        Measure.START_P50: percentile(to_start, 50) * 1000,
    }
    return values, [f"latency: {wrong} of {count} results are wrong"] if wrong else []
