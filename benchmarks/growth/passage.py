"""One run: workers are started beside what waits for them, and when enough is durably done, the rate is taken by the database."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from benchmarks.drain import count_results
from benchmarks.place import Place
from benchmarks.worker import Worker

TIMEOUT_S = 300
LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Passage:
    """`block_rates`: the rate of each block of tasks, in the order in which they ended."""

    rate: float
    block_rates: list[float]
    problems: list[str]


@dataclass(slots=True)
class Tally:
    """How many have begun, by the files that the tasks write: a question to the database would be in the way of the workers."""

    workers: Sequence[Worker]
    begun: int = 0
    _read: Counter[Path] = field(default_factory=Counter[Path])

    def look(self) -> int:
        for path in (path for worker in self.workers for path in worker.folder.iterdir()):
            with path.open("rb") as file:
                file.seek(self._read[path])
                new = file.read()
            self._read[path] += len(new)
            self.begun += new.count(b"\n")
        return self.begun


def watch(place: Place, workers: Sequence[Worker], count: int, *, block: int | None = None) -> Passage:
    """Wait until this number of tasks is done; more may be waiting. The time is measured from the first start."""
    _wait(place, workers, count)
    ended = _ended(place, count)
    (first,) = place.admin.execute(
        "select extract(epoch from min(started_at))::float8 from horsies.finished where claimed_by is not null"
    ).fetchone() or (0.0,)
    edges = [first, *ended[(block or count) - 1 :: block or count]]
    rates = [(block or count) / (after - before) for before, after in pairwise(edges)]
    return Passage(count / (ended[-1] - first), rates if block else [], list(_problems(place, workers)))


def _wait(place: Place, workers: Sequence[Worker], count: int) -> None:
    tally, deadline = Tally(workers), time.monotonic() + TIMEOUT_S
    while tally.look() < count or len(_ended(place, count)) < count:
        for worker in workers:
            worker.insist()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{tally.begun} of {count} tasks had begun after {TIMEOUT_S} s")
        time.sleep(LOOK_S)


def _ended(place: Place, count: int) -> list[float]:
    """When the first ones ended. What was in place before has no owner."""
    rows = place.admin.execute(
        "select extract(epoch from finished_at)::float8 from horsies.finished "
        "where claimed_by is not null order by finished_at limit %s",
        [count],
    )
    return [moment for (moment,) in rows]


def _problems(place: Place, workers: Sequence[Worker]) -> Iterator[str]:
    """Nothing began twice, and what ended has its own number as its result."""
    times = Counter(number for worker in workers for number, _ in worker.starts())
    if more := sum(1 for seen in times.values() if seen > 1):
        yield f"{more} tasks began more than once"
    rows, numbers, wrong = count_results(place)
    if rows != numbers:
        yield f"{rows} rows with {numbers} numbers are finished"
    if wrong:
        yield f"{wrong} rows are not COMPLETED with their own number"
