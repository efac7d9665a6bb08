"""Several producers, each a process of its own, committing single sends at once: ours beside the bare statement.

NOTIFY takes a lock of the whole cluster at COMMIT, so commits that notify go one after the other. What it costs is the difference between the two
bare rates. The three ways alternate, a few sends each, so that other load on the machine affects all of them.
"""

import multiprocessing
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from multiprocessing.synchronize import Barrier
from typing import Final

import psycopg

from benchmarks.measures import Measure
from benchmarks.place import Place, new_tasks
from benchmarks.raw.inserts import SQL, row_of, silence
from benchmarks.tasks import make_app

PRODUCERS: Final = 8
BATCH: Final = 20
PATIENCE_S: Final = 120

Act = Callable[[], object]


def send_at_once(place: Place, count: int) -> dict[Measure, float]:
    """Return the rates of this number of sends by each producer, in each way."""
    place.clear("horsies")
    place.clear("raw")
    batches = max(1, count // BATCH)
    with silence(place):
        seconds = _seconds(place.url, batches)
    return {measure: PRODUCERS * BATCH * batches / seconds[measure] for measure in WAYS}


def _seconds(url: str, batches: int) -> dict[Measure, float]:
    """For each way, from the moment all are ready to the moment the last one is done, over all batches."""
    context = multiprocessing.get_context("spawn")  # connections and pools do not survive a fork
    together = context.Barrier(PRODUCERS + 1)
    producers = [context.Process(target=_produce, args=(url, batches, together), daemon=True) for _ in range(PRODUCERS)]
    for producer in producers:
        producer.start()
    seconds = dict.fromkeys(WAYS, 0.0)
    for batch in range(batches + 1):
        for measure in WAYS:
            together.wait(PATIENCE_S)
            began = time.perf_counter()
            together.wait(PATIENCE_S)
            if batch:  # the first one warms up
                seconds[measure] += time.perf_counter() - began
    for producer in producers:
        producer.join()
    return seconds


def _produce(url: str, batches: int, together: Barrier) -> None:
    with ExitStack() as stack:
        acts = [stack.enter_context(way(url)) for way in WAYS.values()]
        for _ in range(batches + 1):
            for act in acts:
                together.wait(PATIENCE_S)
                for _ in range(BATCH):
                    act()
                together.wait(PATIENCE_S)


@contextmanager
def _ours(url: str) -> Generator[Act]:
    app, note_start = make_app(url, 0)
    yield lambda: note_start.send(1)
    app.close()


@contextmanager
def _notifying(url: str) -> Generator[Act]:
    with _bare(url, SQL["insert_and_notify"]) as act:
        yield act


@contextmanager
def _silent(url: str) -> Generator[Act]:
    with _bare(url, SQL["insert_one"]) as act:
        yield act


@contextmanager
def _bare(url: str, text: bytes) -> Generator[Act]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.prepare_threshold = 2
        yield lambda: connection.execute(text, row_of(new_tasks(range(1))[0]))


WAYS: Final = {
    Measure.PRODUCERS: _ours,
    Measure.RAW_PRODUCERS_NOTIFY: _notifying,
    Measure.RAW_PRODUCERS: _silent,
}
