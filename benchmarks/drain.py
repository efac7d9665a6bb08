"""Drain: a backlog is there first, then a worker is started. Boot does not count: the clock runs from the first start."""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.place import Place
from benchmarks.tasks import Prefetch
from benchmarks.worker import APP, Worker, running_worker

TIMEOUT_S = 300
LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class Drained:
    started_per_s: float
    done_per_s: float
    """By the database: from the first `started_at` to the last `finished_at`."""
    problems: list[str]


def drain(place: Place, prefetch: Prefetch, count: int, *options: str, app: str = APP) -> Drained:
    place.clear("horsies")
    place.fill("horsies", count)
    with running_worker(place, prefetch, *options, app=app) as worker:
        wait_until_empty(place, worker)
        starts = worker.starts()
    done_s = seconds(place)
    problems = [f"drain with prefetch_buffer={prefetch}: {problem}" for problem in _problems(place, starts, count)]
    return Drained((count - 1) / (starts[-1][1] - starts[0][1]), count / done_s, problems)


def wait_until_empty(place: Place, *workers: Worker) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while place.admin.execute("select from horsies.tasks limit 1").rowcount:
        for worker in workers:
            worker.insist()
        if time.monotonic() > deadline:
            raise TimeoutError(f"the backlog was not done within {TIMEOUT_S} s")
        time.sleep(LOOK_S)


def seconds(place: Place) -> float:
    """From the first start to the last end, by the database."""
    row = place.admin.execute(
        "select extract(epoch from max(finished_at) - min(started_at))::float from horsies.finished"
    ).fetchone()
    return row[0] if row else 0.0


def _problems(place: Place, starts: list[tuple[int, float]], count: int) -> Iterator[str]:
    """Every number began once, and its row ended once, COMPLETED, with that number as its result."""
    times = Counter(number for number, _ in starts)
    if set(times) != set(range(count)):
        yield f"{count - len(times)} of {count} tasks never began"
    if more := sum(1 for seen in times.values() if seen > 1):
        yield f"{more} tasks began more than once"
    rows, numbers, wrong = count_results(place)
    if (rows, numbers) != (count, count):
        yield f"{rows} rows with {numbers} numbers are finished, not {count}"
    if wrong:
        yield f"{wrong} rows are not COMPLETED with their own number"


def count_results(place: Place) -> tuple[int, int, int]:
    """What workers have finished: the rows, the numbers in them, and the rows that do not have their own number as result."""
    return place.admin.execute("""
        select
            count(*),
            count(distinct args ->> 'n'),
            count(*) filter (where status <> 'COMPLETED' or (result #>> '{}') is distinct from args ->> 'n')
        from horsies.finished
        where claimed_by is not null
    """).fetchone() or (0, 0, 0)
