"""One round of everything that is timed: each of ours beside the limits that it is compared with."""

from collections.abc import Callable

from benchmarks.drain import drain
from benchmarks.graphs import RUNS, WIDTH, run_chains, run_fans, run_map, start_large
from benchmarks.measures import Measure, Numbers
from benchmarks.place import Place
from benchmarks.producers import send_at_once
from benchmarks.raw.inserts import insert_in_bulk, insert_one_by_one
from benchmarks.raw.loops import apart, fused
from benchmarks.raw.sockets import socketpair_round_trips
from benchmarks.recycling import run_recycling
from benchmarks.sends import send_in_bulk, send_one_by_one, wait_one_by_one
from benchmarks.sizes import Sizes
from benchmarks.worker import NO_RECYCLING


def run_round(place: Place, sizes: Sizes, numbers: Numbers, show_progress: Callable[[str], None]) -> list[str]:
    """Adds to the numbers; returns what was wrong."""
    show_progress("drain, default settings")
    default = drain(place, 0, sizes.default_drain)
    numbers.add({Measure.DRAIN_DEFAULT: default.done_per_s, Measure.DRAIN_DEFAULT_STARTS: default.started_per_s})
    show_progress("drain, default settings but no recycling")
    steady = drain(place, 0, sizes.default_drain, *NO_RECYCLING)
    numbers.add({Measure.DRAIN_STEADY: steady.done_per_s})
    numbers.add({Measure.RAW_2_FUSED: fused(place, 2, sizes.default_drain)})
    numbers.add({Measure.RAW_2_APART: apart(place, 2, sizes.default_drain)})
    show_progress("drain, throughput settings")
    auto = drain(place, "auto", sizes.auto_drain, *NO_RECYCLING)
    numbers.add({Measure.DRAIN_AUTO: auto.done_per_s, Measure.DRAIN_AUTO_STARTS: auto.started_per_s})
    numbers.add({Measure.RAW_100_FUSED: fused(place, 100, sizes.auto_drain)})
    numbers.add({Measure.RAW_100_APART: apart(place, 100, sizes.auto_drain)})
    show_progress("sends")
    numbers.add(send_one_by_one(place, sizes.sends))
    numbers.add(insert_one_by_one(place, sizes.sends))
    numbers.add(send_at_once(place, sizes.producer_sends))
    numbers.add(send_in_bulk(place, sizes.bulk))
    numbers.add(insert_in_bulk(place, sizes.bulk))
    show_progress("latency")
    latency, wrong = wait_one_by_one(place, sizes.latency)
    numbers.add(latency)
    numbers.add(socketpair_round_trips(sizes.prefetch))
    show_progress("recycling")
    recycling, recycling_problems = run_recycling(place)
    numbers.add(recycling)
    return [
        *recycling_problems,
        *default.problems,
        *steady.problems,
        *auto.problems,
        *wrong,
        *_run_workflows(place, sizes, numbers, show_progress),
    ]


def _run_workflows(place: Place, sizes: Sizes, numbers: Numbers, show_progress: Callable[[str], None]) -> list[str]:
    show_progress("workflows")
    count = RUNS * (WIDTH + 1)
    plain = drain(place, 0, count, *NO_RECYCLING)
    numbers.add({Measure.FAN: run_fans(place, 0), Measure.FAN_PLAIN: plain.done_per_s})
    auto = drain(place, "auto", count, *NO_RECYCLING)
    numbers.add({Measure.FAN_AUTO: run_fans(place, "auto"), Measure.FAN_PLAIN_AUTO: auto.done_per_s})
    numbers.add(run_chains(place, sizes.chains))
    numbers.add(start_large(place, sizes.large_starts))
    numbers.add(run_map(place, sizes.map_items))
    return [*plain.problems, *auto.problems]
