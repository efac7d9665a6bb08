"""`python -m benchmarks.mix`: tasks of 0 ms, 10 ms and 5 s in random order on two workers of two processes each.

With `prefetch_buffer="auto"` a child is handed many tasks at a time. It must not show: no fast task may lie behind a slow one, nor wait at all while a
child is free, for longer than it takes to notice that a task is slow and to hand on what is behind it. Once all at once, and once as a stream;
`prefetch_buffer=0`, which hands out single tasks, takes turns with it for comparison. Exit code 1 when a result was wrong, never for being slow.
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

from benchmarks.bars import Bar
from benchmarks.drain import wait_until_empty
from benchmarks.measures import percentile
from benchmarks.place import Place, open_place
from benchmarks.report import LATEST, WIDTH, about_machine, bars_table
from benchmarks.tasks import Prefetch, make_app
from benchmarks.terminal import INTERRUPTED, end_like_ctrl_c, say
from benchmarks.waits import Stay, behind_s, by_child, free_spans, in_vain_s
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
TURN_S = 0.02
LIMIT_S = SLOW_AFTER_S + SLOW_AFTER_S / 2 + TURN_S
"""Until a task counts as slow, until that is looked for (at least twice in that time), and for the turns that give back and claim what is behind it."""


@dataclass(frozen=True, slots=True)
class Passage:
    """One run. Waits are from send to start, in milliseconds."""

    load: str
    prefetch: Prefetch
    seconds: float
    waits: dict[str, dict[str, float]]
    behind: int
    behind_max: float
    in_vain_max: float
    given_back: int
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
        say("interrupted; the workers and the server are gone")
        return INTERRUPTED


def _run(rounds: int) -> int:
    passages: list[Passage] = []
    with open_place() as place:
        for number in range(1, rounds + 1):
            for load in BURSTS:
                for prefetch in ("auto", 0):
                    say(f"round {number}/{rounds}: {load}, prefetch_buffer={prefetch}")
                    passages.append(_pass(place, load, prefetch))
        settings = place.settings()
    judged = list(_bars(passages))
    Console(width=None if sys.stdout.isatty() else WIDTH).print(_table(passages), bars_table(judged))
    problems = [problem for passage in passages for problem in passage.problems]
    for problem in problems:
        print(f"WRONG: {problem}")
    _write(passages, judged, settings)
    return 1 if problems else 0


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
        _forget(workers)
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
    """A file of each child."""
    for worker in workers:
        yield from worker.folder.iterdir()


def _are_warm(workers: Sequence[Worker]) -> bool:
    """All children have run so many that their frames are large."""
    sizes = [len(path.read_text(encoding="ascii").splitlines()) for path in _notes(workers)]
    return len(sizes) == WORKERS * PROCESSES and min(sizes) >= WARM_UP // 4


def _forget(workers: Sequence[Worker]) -> None:
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
    """How many claims there were beyond one for each, and what was wrong."""
    ended, claims = place.admin.execute(
        "select count(distinct args ->> 'n') filter (where status = 'COMPLETED'), sum(claim_no)::integer from horsies.finished"
    ).fetchone() or (0, 0)
    return claims - count, [f"{ended} of {count} tasks were completed"] if ended != count else []


def _account(load: str, prefetch: Prefetch, stays: list[Stay], checked: tuple[int, list[str]]) -> Passage:
    given_back, problems = checked
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
        in_vain_max=max(in_vain_s(stay, free) for stay in fast) * 1000,
        given_back=given_back,
        problems=problems,
    )


def _name(seconds: float) -> str:
    return f"{seconds * 1000:g} ms"


def _waits(stays: Sequence[Stay], seconds: float) -> dict[str, float]:
    waits = [stay.wait_s * 1000 for stay in stays if stay.seconds == seconds]
    return {"p50": percentile(waits, 50), "p99": percentile(waits, 99), "max": max(waits)}


def _bars(passages: Sequence[Passage]) -> Iterator[Bar]:
    """What waits although a child is free waits for the machine too; with single tasks it waits for nothing else."""
    limit_ms = LIMIT_S * 1000
    for load in BURSTS:
        auto, single = (_of(passages, load, prefetch) for prefetch in ("auto", 0))
        behind = sum(passage.behind for passage in auto)
        yield Bar(f"{load}: fast tasks that lay behind a slow one for more than {limit_ms:g} ms", behind, 0, "<=", "")
        yield Bar(
            f"{load}: a fast task's longest wait while a child was free; limit: {limit_ms:g} ms, or that of prefetch_buffer=0",
            max(passage.in_vain_max for passage in auto),
            max(limit_ms, *(passage.in_vain_max for passage in single)),
            "<=",
            "ms",
        )


def _of(passages: Sequence[Passage], load: str, prefetch: Prefetch) -> list[Passage]:
    return [passage for passage in passages if (passage.load, passage.prefetch) == (load, prefetch)]


def _table(passages: Sequence[Passage]) -> Table:
    table = Table("load", "prefetch", title="each run; waits from send to start, in ms", title_justify="left")
    for seconds in COUNTS:
        table.add_column(f"{_name(seconds)} p50 / p99 / max", justify="right")
    for head in ("total s", "behind max", "in vain max", "given back"):
        table.add_column(head, justify="right")
    for passage in passages:
        waits = [" / ".join(f"{value:,.0f}" for value in found.values()) for found in passage.waits.values()]
        numbers = (
            f"{passage.seconds:.1f}",
            f"{passage.behind_max:.0f}",
            f"{passage.in_vain_max:.0f}",
            str(passage.given_back),
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
