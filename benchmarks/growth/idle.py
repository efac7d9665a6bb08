"""Two busy workers, with and without many idle ones beside them.

The idle ones serve another queue of the same app: they receive every notification, send heartbeats and are candidates for leader, and never have a task. They are started
once, a few at a time, and the runs without them are made before and after, so that a machine that gets slower or faster affects both.
"""

import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Final

from benchmarks.growth.entries import Entry, Sizes
from benchmarks.growth.ground import Ground
from benchmarks.growth.passage import Passage, watch
from benchmarks.growth.scenes import fill_backlog
from benchmarks.place import Place
from benchmarks.tasks import make_app, queue_names
from benchmarks.worker import NO_RECYCLING, Worker, running_worker

BUSY: Final = 2
DRAIN_BAR, SENDS_BAR = 0.9, 0.6
QUEUES: Final = queue_names(2)
AT_ONCE: Final = 4
READY_S, SETTLE_S, LOOK_S = 120, 3.0, 0.1
Run = Callable[[Place, Sizes], Passage]


def measure(ground: Ground, sizes: Sizes, show_progress: Callable[[str], None]) -> Generator[Entry]:
    label = f"{sizes.idle} idle workers beside {BUSY}"
    runs: dict[Run, Entry] = {
        _drain: Entry("workers", f"{label}, drain", "auto", DRAIN_BAR),
        _send: Entry("workers", f"{label}, sends one by one", "auto", SENDS_BAR),
    }
    with ground.fresh() as place:
        for number in range(1, sizes.rounds + 1):
            _take(place, sizes, runs, "empty", show_progress, f"alone, round {number}/{sizes.rounds}")
        show_progress(f"starting {sizes.idle} idle workers")
        with _idle_workers(place, sizes.idle):
            for number in range(1, sizes.rounds + 1):
                _take(
                    place, sizes, runs, "grown", show_progress, f"with {sizes.idle} idle, round {number}/{sizes.rounds}"
                )
        for number in range(1, sizes.rounds + 1):
            _take(place, sizes, runs, "empty", show_progress, f"alone again, round {number}/{sizes.rounds}")
    yield from runs.values()


def _take(
    place: Place, sizes: Sizes, runs: dict[Run, Entry], side: str, show_progress: Callable[[str], None], what: str
) -> None:
    rates: list[str] = []
    for run, entry in runs.items():
        place.clear("horsies")
        place.admin.execute("checkpoint")
        passage = run(place, sizes)
        (entry.empty if side == "empty" else entry.grown).append(passage)
        rates.append(f"{passage.rate:,.0f}/s")
    show_progress(f"workers {what}: drain {rates[0]}, sends {rates[1]}")


def _drain(place: Place, sizes: Sizes) -> Passage:
    fill_backlog(place, sizes.auto, queues=1)
    with _busy_workers(place) as workers:
        return watch(place, workers, sizes.auto)


def _send(place: Place, sizes: Sizes) -> Passage:
    """Every send wakes all listeners."""
    app, note_start = make_app(place.url, "auto", QUEUES)
    with _busy_workers(place) as workers:
        _wait_for(place, BUSY, QUEUES[0])
        for number in range(sizes.sends):
            note_start.send(number)
        passage = watch(place, workers, sizes.sends)
    app.close()
    return passage


@contextmanager
def _busy_workers(place: Place) -> Generator[list[Worker]]:
    with _workers(place, BUSY, QUEUES[0]) as workers:
        yield workers


@contextmanager
def _idle_workers(place: Place, count: int) -> Generator[None]:
    """Until all are registered, and a moment longer: what starts is not idle."""
    with ExitStack() as stack:
        for first in range(0, count, AT_ONCE):
            more = min(AT_ONCE, count - first)
            stack.enter_context(_workers(place, more, QUEUES[1]))
            _wait_for(place, first + more, QUEUES[1])
        time.sleep(SETTLE_S)
        yield


@contextmanager
def _workers(place: Place, count: int, queue: str) -> Generator[list[Worker]]:
    options = (*NO_RECYCLING, "--queues", queue)
    with ExitStack() as stack:
        yield [
            stack.enter_context(running_worker(place, "auto", *options, processes=1, queues=len(QUEUES)))
            for _ in range(count)
        ]


def _wait_for(place: Place, count: int, queue: str) -> None:
    deadline = time.monotonic() + READY_S
    registered = "select from horsies.workers where queues = array[%s]"
    while place.admin.execute(registered, [queue]).rowcount < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{count} workers were not ready within {READY_S} s")
        time.sleep(LOOK_S)
