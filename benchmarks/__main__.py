"""`python -m benchmarks`: measure, print a table, write results/latest.json. Exit code 1 when a bar is missed or a result was wrong."""

import argparse
import sys
from dataclasses import replace

from benchmarks.bars import bars, judge
from benchmarks.cost import cost_of_group, cost_of_one, cost_of_two_nodes
from benchmarks.measures import Numbers
from benchmarks.place import open_place
from benchmarks.report import LATEST, print_report, write_report
from benchmarks.rounds import run_round
from benchmarks.sizes import FULL, QUICK, Sizes
from benchmarks.terminal import INTERRUPTED, end_like_ctrl_c, show_progress


def main() -> int:
    end_like_ctrl_c()
    try:
        return _run(_sizes())
    except KeyboardInterrupt:
        show_progress("interrupted; the worker and the server are stopped")
        return INTERRUPTED


def _sizes() -> Sizes:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller sizes and one round: under a minute")
    parser.add_argument("--rounds", type=int, help="how many rounds the medians are of (default: 3, quick: 1)")
    options = parser.parse_args()
    sizes = QUICK if options.quick else FULL
    if options.rounds is None:
        return sizes
    if options.rounds < 1:
        parser.error("--rounds must be 1 or more")
    return replace(sizes, rounds=options.rounds)


def _run(sizes: Sizes) -> int:
    numbers = Numbers()
    problems: list[str] = []
    show_progress("starting a PostgreSQL server")
    with open_place() as place:
        settings = place.settings()
        for number in range(1, sizes.rounds + 1):
            problems += run_round(
                place, sizes, numbers, lambda what, n=number: show_progress(f"round {n}/{sizes.rounds}: {what}")
            )
        show_progress("counting round trips and commits")
        one = cost_of_one(place, sizes.costs)
        group = cost_of_group(place)
        two_nodes = cost_of_two_nodes(place, sizes.costs)
        show_progress("done, stopping")
    judged = list(bars(numbers, one, two_nodes))
    print_report(numbers, one, group, judged)
    write_report(numbers, one, group, judged, problems, sizes=sizes, settings=settings)
    show_progress(f"written to {LATEST}")
    return judge(judged, problems, are_judged=sizes.bulk == FULL.bulk)


if __name__ == "__main__":
    sys.exit(main())
