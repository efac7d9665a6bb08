"""Workflows: a chain step by step, many that fan out and join, a large start, and a long map."""

import time
from statistics import median

import psutil

from benchmarks.measures import Measure
from benchmarks.place import Place
from benchmarks.tasks import Prefetch, make_app
from benchmarks.worker import NO_RECYCLING, running_worker
from horsies import Horsies, Task, WorkflowSpec, each, from_node

STEPS = 10
WIDTH, RUNS = 20, 50
LARGE = 1_000
WARM_UP = 5
TIMEOUT_MS = 120_000


def chain(app: Horsies, note_start: Task[[int], int], steps: int) -> WorkflowSpec[int]:
    nodes = [note_start.node()(0)]
    for _ in range(steps - 1):
        nodes.append(note_start.node()(from_node(nodes[-1])))
    return app.workflow("chain", nodes, output=nodes[-1])


def fan(app: Horsies, note_start: Task[[int], int], width: int) -> WorkflowSpec[int]:
    parts = [note_start.node()(number) for number in range(width)]
    join = note_start.node(waits_for=parts)(width)
    return app.workflow("fan", [*parts, join], output=join)


def run_chains(place: Place, count: int) -> dict[Measure, float]:
    """Measure an idle worker: each chain is started after the result of the last one, alternating with single tasks."""
    place.clear("horsies")
    app, note_start = make_app(place.url, 0)
    spec = chain(app, note_start, STEPS)
    single: list[float] = []
    whole: list[float] = []
    with running_worker(place, 0, *NO_RECYCLING):
        for _ in range(WARM_UP + count):
            began = time.perf_counter()
            note_start.send(0).get(TIMEOUT_MS).unwrap()
            sent = time.perf_counter()
            spec.start().get(TIMEOUT_MS).unwrap()
            single.append(sent - began)
            whole.append(time.perf_counter() - sent)
    app.close()
    return {
        Measure.CHAIN: median(whole[WARM_UP:]) * 1000,
        Measure.CHAIN_SINGLE: median(single[WARM_UP:]) * 1000,
    }


def run_fans(place: Place, prefetch: Prefetch) -> float:
    """Nodes a second, durably done, as for the drain of plain tasks: the backlog is there first."""
    place.clear("horsies")
    app, note_start = make_app(place.url, prefetch)
    spec = fan(app, note_start, WIDTH)
    handles = [spec.start() for _ in range(RUNS)]
    with running_worker(place, prefetch, *NO_RECYCLING):
        for handle in handles:
            handle.get(TIMEOUT_MS).unwrap()
    app.close()
    row = place.admin.execute(
        "select count(*) / extract(epoch from max(finished_at) - min(started_at))::float from horsies.finished"
    ).fetchone()
    return row[0] if row else 0.0


def start_large(place: Place, count: int) -> dict[Measure, float]:
    place.clear("horsies")
    app, note_start = make_app(place.url, 0)
    spec = fan(app, note_start, LARGE - 1)
    taken: list[float] = []
    for _ in range(count + 1):
        began = time.perf_counter()
        spec.start()
        taken.append(time.perf_counter() - began)
    app.close()
    return {Measure.START_LARGE: median(taken[1:]) * 1000}


def run_map(place: Place, items: int) -> dict[Measure, float]:
    """The parent's memory before the first item, and at its highest while they run."""
    place.clear("horsies")
    app, note_start = make_app(place.url, "auto")
    numbers = app.tasks["count_to"].node()(items)
    spec = app.workflow("map", [numbers, over := note_start.map_node()(each(numbers))], output=over)
    small = app.tasks["count_to"].node()(100)
    warm = app.workflow("warm", [small, over := note_start.map_node()(each(small))], output=over)
    with running_worker(place, "auto", *NO_RECYCLING) as worker:
        warm.start().get(TIMEOUT_MS).unwrap()
        parent = psutil.Process(worker.process.pid)
        before = highest = parent.memory_info().rss
        began = time.perf_counter()
        handle = spec.start()
        while handle.get(50).is_err():
            worker.insist()
            highest = max(highest, parent.memory_info().rss)
        taken = time.perf_counter() - began
        wrong = handle.get(TIMEOUT_MS).unwrap() != list(range(items))
    app.close()
    if wrong:
        raise AssertionError("the map has lost or mixed up items")
    return {Measure.MAP: items / taken, Measure.MAP_MEMORY: (highest - before) / (1 << 20)}
