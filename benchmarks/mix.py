"""`python -m benchmarks.mix`: tasks of 0 ms, 10 ms and 5 s in random order on two workers of two processes each.

With `prefetch_buffer="auto"` a child prefetches many tasks. This must have no disadvantage: no fast task may be behind a slow one, or wait while a child
is idle, for longer than it takes to notice that a task is slow and to release the tasks behind it. Once all at once, and once as a stream. It alternates
with `prefetch_buffer=0`, which assigns single tasks, for comparison. Exit code 1 if a bar is missed or a result was wrong.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.bars import Bar, judge
from benchmarks.drain import wait_until_empty
from benchmarks.measures import percentile
from benchmarks.place import Place, open_place
from benchmarks.report import LATEST, WIDTH, about_machine, bars_table
from benchmarks.tasks import Prefetch, make_app
from benchmarks.terminal import INTERRUPTED, end_like_ctrl_c, show_progress
from benchmarks.waits import Stay, avoidable_wait_s, behind_s, by_child, free_spans
from benchmarks.worker import NO_RECYCLING, PROCESSES, Worker, running_worker
from horsies.worker.child import SLOW_AFTER_S

RESULT = LATEST.parent / "mix.json"
WORKERS = 2
COUNTS = {0.0: 3_000, 0.01: 300, 5.0: 6}
SLOW_S = max(COUNTS)
BURSTS = {"all at once": 1, "stream": 80}
BURST_EVERY_S = 0.25
WARM_UP, WARM_UPS = 400, 25
SEED = 7
BATCHES_S = 0.02
LIMIT_S = SLOW_AFTER_S + SLOW_AFTER_S / 2 + BATCHES_S
"""The time until a task counts as slow, until this is checked (at least twice in that time), and for the batches that release and claim the tasks behind it."""


@dataclass(frozen=True, slots=True)
class Passage:
    """One run. Waits are from send to start, in milliseconds."""

    load: str
    prefetch: Prefetch
    seconds: float
    waits: dict[str, dict[str, float]]
    behind: int
    behind_max: float
    avoidable_wait_max: float
    released: int
    """Claims beyond the one that each task needs."""
    problems: list[str] = field(default_factory=list[str])


def main() -> int:
    end_like_ctrl_c()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mix", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often each of the four runs is made (default: 3)")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be 1 or more")
    try:
        return _run(options.rounds)
    except KeyboardInterrupt:
        show_progress("interrupted; the workers and the server are stopped")
        return INTERRUPTED


def _run(rounds: int) -> int:
    passages: list[Passage] = []
    with open_place() as place:
        for number in range(1, rounds + 1):
            for load in BURSTS:
                for prefetch in ("auto", 0):
                    show_progress(f"round {number}/{rounds}: {load}, prefetch_buffer={prefetch}")
                    passages.append(_pass(place, load, prefetch))
        settings = place.settings()
    judged = list(_bars(passages))
    Console(width=None if sys.stdout.isatty() else WIDTH).print(_table(passages), bars_table(judged))
    problems = [problem for passage in passages for problem in passage.problems]
    _write(passages, judged, settings)
    return judge(judged, problems)


def _pass(place: Place, load: str, prefetch: Prefetch) -> Passage:
    with ExitStack() as stack:
        workers = [stack.enter_context(running_worker(place, prefetch, *NO_RECYCLING)) for _ in range(WORKERS)]
        app, _ = make_app(place.url, prefetch)
        stack.callback(app.close)
        task = app.tasks["stay"]
        for _ in range(WARM_UPS):
            place.clear("horsies")
            task.send_many([task.call(-1, 0.0) for _ in range(WARM_UP)])
            wait_until_empty(place, *workers)
            if _are_warm(workers):
                break
        place.clear("horsies")
        _clear_notes(workers)
        kinds = _shuffled()
        calls = [task.call(number, seconds) for number, seconds in enumerate(kinds)]
        began = time.monotonic()
        for burst in range(BURSTS[load]):
            time.sleep(max(0.0, began + burst * BURST_EVERY_S - time.monotonic()))
            task.send_many(calls[burst :: BURSTS[load]])
        wait_until_empty(place, *workers)
    return _account(load, prefetch, _stays(place, workers, kinds), _problems(place, len(kinds)))


def _shuffled() -> list[float]:
    kinds = [seconds for seconds, count in COUNTS.items() for _ in range(count)]
    random.Random(SEED).shuffle(kinds)  # noqa: S311 - the same each time
    return kinds


def _notes(workers: Sequence[Worker]) -> Iterator[Path]:
    """Return the file of each child."""
    for worker in workers:
        yield from worker.folder.iterdir()


def _are_warm(workers: Sequence[Worker]) -> bool:
    """Whether all children have run enough tasks to prefetch as many as possible."""
    sizes = [len(path.read_text(encoding="ascii").splitlines()) for path in _notes(workers)]
    return len(sizes) == WORKERS * PROCESSES and min(sizes) >= WARM_UP // 4


def _clear_notes(workers: Sequence[Worker]) -> None:
    for path in _notes(workers):
        path.write_bytes(b"")  # written by appending: what follows starts at the front


def _stays(place: Place, workers: Sequence[Worker], kinds: Sequence[float]) -> list[Stay]:
    rows = place.admin.execute("""
        select (args ->> 'n')::integer, extract(epoch from sent_at)::float, extract(epoch from claimed_at)::float
        from horsies.finished
    """)
    moments = {number: (sent, claimed) for number, sent, claimed in rows.fetchall()}
    stays: list[Stay] = []
    for path in _notes(workers):
        for number, began, ended in (line.split() for line in path.read_text(encoding="ascii").splitlines()):
            seconds = kinds[int(number)]
            stays.append(Stay(seconds, path.name, *moments[int(number)], float(began), float(ended)))
    return stays


def _problems(place: Place, count: int) -> tuple[int, list[str]]:
    """Return the number of claims beyond one for each task, and what was wrong."""
    ended, claims = place.admin.execute(
        "select count(distinct args ->> 'n') filter (where status = 'COMPLETED'), sum(claim_no)::integer from horsies.finished"
    ).fetchone() or (0, 0)
    return claims - count, [f"{ended} of {count} tasks were completed"] if ended != count else []


def _account(load: str, prefetch: Prefetch, stays: list[Stay], checked: tuple[int, list[str]]) -> Passage:
    released, problems = checked
    children = by_child(stays, WORKERS * PROCESSES)
    first, last = min(stay.sent for stay in stays), max(stay.ended for stay in stays)
    slow = {child: [stay for stay in those if stay.seconds == SLOW_S] for child, those in children.items()}
    free = free_spans(children, first, last, LIMIT_S)
    fast = [stay for stay in stays if stay.seconds < SLOW_S]
    behind = [behind_s(stay, slow[stay.child]) for stay in fast]
    return Passage(
        load=load,
        prefetch=prefetch,
        seconds=last - first,
        waits={_name(seconds): _waits(stays, seconds) for seconds in COUNTS},
        behind=sum(seconds > LIMIT_S for seconds in behind),
        behind_max=max(behind) * 1000,
        avoidable_wait_max=max(avoidable_wait_s(stay, free) for stay in fast) * 1000,
        released=released,
        problems=problems,
    )


def _name(seconds: float) -> str:
    return f"{seconds * 1000:g} ms"


def _waits(stays: Sequence[Stay], seconds: float) -> dict[str, float]:
    waits = [stay.wait_s * 1000 for stay in stays if stay.seconds == seconds]
    return {"p50": percentile(waits, 50), "p99": percentile(waits, 99), "max": max(waits)}


def _bars(passages: Sequence[Passage]) -> Iterator[Bar]:
    """The avoidable wait includes the delays of the machine: with single tasks it consists of nothing else."""
    limit_ms = LIMIT_S * 1000
    for load in BURSTS:
        auto, single = (_of(passages, load, prefetch) for prefetch in ("auto", 0))
        behind = sum(passage.behind for passage in auto)
        yield Bar(f"{load}: fast tasks behind a slow one for more than {limit_ms:g} ms", behind, 0, "<=", "")
        yield Bar(
            f"{load}: avoidable wait of a fast task; limit: {limit_ms:g} ms, or that of prefetch_buffer=0",
            max(passage.avoidable_wait_max for passage in auto),
            max(limit_ms, *(passage.avoidable_wait_max for passage in single)),
            "<=",
            "ms",
        )


def _of(passages: Sequence[Passage], load: str, prefetch: Prefetch) -> list[Passage]:
    return [passage for passage in passages if (passage.load, passage.prefetch) == (load, prefetch)]


def _table(passages: Sequence[Passage]) -> Table:
    table = Table("load", "prefetch", title="each run; waits from send to start, in ms", title_justify="left")
    for seconds in COUNTS:
        table.add_column(f"{_name(seconds)} p50 / p99 / max", justify="right")
    for head in ("total s", "behind max", "avoidable wait", "released"):
        table.add_column(head, justify="right")
    for passage in passages:
        waits = [" / ".join(f"{value:,.0f}" for value in found.values()) for found in passage.waits.values()]
        numbers = (
            f"{passage.seconds:.1f}",
            f"{passage.behind_max:.0f}",
            f"{passage.avoidable_wait_max:.0f}",
            str(passage.released),
        )
        table.add_row(passage.load, str(passage.prefetch), *waits, *numbers)
    return table


def _write(passages: Sequence[Passage], bars: Sequence[Bar], settings: dict[str, str]) -> None:
    report: dict[str, Any] = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": about_machine(),
        "postgres": settings,
        "counts": {_name(seconds): count for seconds, count in COUNTS.items()},
        "limit_ms": LIMIT_S * 1000,
        "runs": [asdict(passage) for passage in passages],
        "bars": [asdict(bar) | {"verdict": bar.verdict} for bar in bars],
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
