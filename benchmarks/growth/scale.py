"""What is measured without a drain: the leader's look at workflows, large workflows, bulk sends, and idle workers of the same queue. Each yields bars."""

import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from statistics import median
from typing import Final

from benchmarks import workflow_scale
from benchmarks.bars import Bar
from benchmarks.growth.entries import Sizes
from benchmarks.growth.ground import Ground
from benchmarks.names import name_of
from benchmarks.place import Place
from benchmarks.tasks import make_app
from benchmarks.wire import Kind, tapped
from benchmarks.worker import NO_RECYCLING, ROOT, Worker, running_worker
from horsies.db.broker import PostgresBroker
from horsies.model.config import PostgresConfig
from horsies.workflows.advance import RunSweep, get_unfinished_trees

Say = Callable[[str], None]

BAR: Final = 0.9
LOOKS: Final = 100
MANY_MB: Final = 100
LATENCY_TIMES, CLAIMS, BUSY_S, STARTED_S = 1.5, 2.0, 1.5, 1.0
LATENCIES, BURST, STAY_S, SLOTS = 200, 2_000, 0.05, 2
SENDS_WITH_KILLS, WORKERS_LEFT = 1_000, 4
READY_S, TIMEOUT_MS = 300, 60_000


def running_workflows(ground: Ground, sizes: Sizes, show_progress: Say) -> Iterator[Bar]:
    """How long the maintenance leader takes each second to look for work left in them."""
    with ground.fresh() as place, PostgresBroker(PostgresConfig(database_url=place.url)) as broker:
        few, many = (_look_s(place, broker, count) for count in (sizes.workflows // 50, sizes.workflows))
    show_progress(f"workflows: a look takes {few * 1000:.2f} ms, with {sizes.workflows:,} running {many * 1000:.2f} ms")
    yield Bar(f"{sizes.workflows:,} running workflows: rate of the leader's look", few / many, BAR, ">=", "")


def _look_s(place: Place, broker: PostgresBroker, running: int) -> float:
    place.clear("horsies")
    place.admin.execute(
        "insert into horsies.workflows (id, root_id, name, status, unresolved, in_flight) select id, id, 'w', 'RUNNING', 2, 1 "
        "from (select gen_random_uuid() as id from generate_series(1, %s)) as new",
        [running],
    )
    sweep, times = RunSweep(), list[float]()
    for _ in range(LOOKS):
        began = time.perf_counter()
        broker.run(partial(get_unfinished_trees, (), sweep))
        times.append(time.perf_counter() - began)
    return median(times)


def large_workflow(ground: Ground, sizes: Sizes, show_progress: Say) -> Iterator[Bar]:
    """Starting and running a fan: the rate per node beside that of a thousand nodes, run before and after."""
    with ground.fresh() as place:
        small, large = workflow_scale.SMALL, sizes.nodes
        runs = [workflow_scale.measure(place, "fan", nodes) for nodes in (small, large, small)]
    before, many, after = (run.ms_per_node for run in runs)
    show_progress(f"workflow of {large:,} nodes: {many:.2f} ms per node, {before:.2f} and {after:.2f} with {small:,}")
    yield Bar(f"a workflow of {large:,} nodes: rate per node", median([before, after]) / many, BAR, ">=", "")


def bulk_send(ground: Ground, sizes: Sizes, show_progress: Say) -> Iterator[Bar]:
    """`send_many` of a generator, in a process of its own, by its peak of memory."""
    with ground.fresh() as place:
        few, many = (_bulk(place, count) for count in (sizes.bulk // 10, sizes.bulk))
    for count, (rate, grown) in ((sizes.bulk // 10, few), (sizes.bulk, many)):
        show_progress(f"send_many of {count:,}: {rate:,.0f}/s, memory grew by {grown:.0f} MB")
    yield Bar(f"send_many of {sizes.bulk:,}: rate", many[0] / few[0], BAR, ">=", "")
    yield Bar(f"send_many of {sizes.bulk:,}: memory", many[1], MANY_MB, "<=", "MB")


_BULK = """
import resource, sys, time
from benchmarks.tasks import make_app
app, task = make_app(sys.argv[1], 0)
task.send_many([task.call(0)] * 2_000)
before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
handles = task.send_many(map(task.call, range(int(sys.argv[2]))))
print(len(handles) / (time.perf_counter() - began), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3)
"""


def _bulk(place: Place, count: int) -> tuple[float, float]:
    """The rate, and by how many MB the process grew."""
    place.clear("horsies")
    command = [sys.executable, "-c", _BULK, place.url, str(count)]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    rate, grown = map(float, output.split())
    return rate, grown


def idle_of_same_queue(ground: Ground, sizes: Sizes, show_progress: Say) -> Iterator[Bar]:
    """One task at a time with one worker and with many; how often they claim; how soon a burst occupies all of them; and how late a task starts
    while idle workers are killed.
    """
    with ground.fresh() as place:
        count = sizes.same_queue
        with _workers(place, 1):
            one_ms = _latency_ms(place)
        with _workers(place, count):
            many_ms = _latency_ms(place)
            busy_s = _busy_after_s(place, count * SLOTS)
        with _workers(place, max(count, WORKERS_LEFT + 1)) as workers:
            late_s = _latest_start_s(place, workers)
        with tapped(place.url) as tap, _workers(place, count, url=tap.url):
            since = len(tap.events)
            _latency_ms(place)
            statements = [event.text for event in tap.events[since:] if event.kind is Kind.STATEMENT]
    claims = sum(name_of(text).startswith("claim") for text in statements) / LATENCIES
    show_progress(
        f"{count} idle: p50 {many_ms:.1f} ms, one {one_ms:.1f} ms; {claims:.1f} claims; busy in {busy_s:.1f} s; "
        f"latest start {late_s:.2f} s"
    )
    label = f"{count} idle workers of the same queue"
    yield Bar(f"{label}: latency p50, {LATENCY_TIMES:g} x with one", many_ms, LATENCY_TIMES * one_ms, "<=", "ms")
    yield Bar(f"{label}: claims for each task", claims, CLAIMS, "<=", "")
    yield Bar(f"{label}: a burst occupies all {count * SLOTS} slots", busy_s, BUSY_S, "<=", "s")
    yield Bar(
        f"{label}: latest start of {SENDS_WITH_KILLS:,} tasks while they are killed", late_s, STARTED_S, "<=", "s"
    )


@contextmanager
def _workers(place: Place, count: int, url: str | None = None) -> Generator[list[Worker]]:
    place.clear("horsies")
    with ExitStack() as stack:
        workers = [
            stack.enter_context(running_worker(place, 0, *NO_RECYCLING, url=url, processes=SLOTS)) for _ in range(count)
        ]
        deadline = time.monotonic() + READY_S
        while place.admin.execute("select from horsies.workers").rowcount < count and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(3)  # what starts is not idle
        yield workers


def _latency_ms(place: Place) -> float:
    app, task = make_app(place.url, 0)
    waited: list[float] = []
    for number in range(LATENCIES):
        began = time.perf_counter()
        task.send(number).get(TIMEOUT_MS).unwrap()
        waited.append(time.perf_counter() - began)
    app.close()
    return median(waited) * 1000


def _latest_start_s(place: Place, workers: list[Worker]) -> float:
    """Send one at a time, and kill an idle worker right before some of the sends, until a few are left. Return the longest time from send to start."""
    app, task = make_app(place.url, 0)
    victims = iter(workers[:-WORKERS_LEFT])
    every = SENDS_WITH_KILLS // (len(workers) - WORKERS_LEFT)
    for number in range(SENDS_WITH_KILLS):
        if number % every == 0 and (victim := next(victims, None)) is not None:
            victim.process.kill()
        task.send(number).get(TIMEOUT_MS).unwrap()
    app.close()
    row = place.admin.execute(
        "select extract(epoch from max(started_at - enqueued_at))::float8, count(*) from horsies.finished"
    ).fetchone()
    return row[0] if row and row[1] == SENDS_WITH_KILLS else float("inf")


def _busy_after_s(place: Place, slots: int) -> float:
    """From the commit of a burst until as many tasks run at once as there are slots; infinite if they never do."""
    app, _ = make_app(place.url, 0)
    task = app.tasks["stay"]
    task.send_many([task.call(number, STAY_S) for number in range(BURST)])
    while place.admin.execute("select from horsies.tasks limit 1").rowcount:
        time.sleep(0.1)
    app.close()
    row = place.admin.execute(
        "select extract(epoch from min(change.at) - (select min(enqueued_at) from horsies.finished where task_name = 'stay'))::float8 "
        "from (select at, sum(step) over (order by at, step) as running from horsies.finished, "
        "lateral (values (started_at, 1), (finished_at, -1)) as moment (at, step) where task_name = 'stay') as change "
        "where running >= %s",
        [slots],
    ).fetchone()
    return row[0] if row and row[0] is not None else float("inf")
