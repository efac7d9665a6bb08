"""`python -m benchmarks.growth`: the rate with a million rows in the way, beside the same run on an empty database.

Prints a table, writes results/growth.json and growth.png. Exit code 1 when a bar is missed or a result was wrong.
"""

import argparse
import sys
from dataclasses import replace

from benchmarks.bars import Bar, judge
from benchmarks.growth.cases import CASES
from benchmarks.growth.entries import FULL, QUICK, Entry, Sizes
from benchmarks.growth.ground import open_ground
from benchmarks.growth.report import JSON, draw, print_report, write_report
from benchmarks.place import SHOWN
from benchmarks.terminal import INTERRUPTED, end_like_ctrl_c, show_progress


def main() -> int:
    end_like_ctrl_c()
    options = _options()
    try:
        return _run(options.only, _sizes(options), are_judged=not options.quick)
    except KeyboardInterrupt:
        show_progress("interrupted; the workers and the server are stopped")
        return INTERRUPTED


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes and one round: only shows that all of it works"
    )
    parser.add_argument("--only", type=_cases, default=list(CASES), metavar="A,B", help=", ".join(CASES))
    parser.add_argument("--rounds", type=int, help="how many rounds the medians are of (default: 3, quick: 1)")
    parser.add_argument("--rows", type=int, help="how many rows are in the way (default: 1000000, quick: 20000)")
    options = parser.parse_args()
    for name in ("rounds", "rows"):
        if (value := getattr(options, name)) is not None and value < 1:
            parser.error(f"--{name} must be 1 or more")
    return options


def _cases(text: str) -> list[str]:
    chosen = text.split(",")
    if unknown := [name for name in chosen if name not in CASES]:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; choose from {', '.join(CASES)}")
    return chosen


def _sizes(options: argparse.Namespace) -> Sizes:
    sizes = QUICK if options.quick else FULL
    return replace(sizes, rounds=options.rounds or sizes.rounds, rows=options.rows or sizes.rows)


def _run(chosen: list[str], sizes: Sizes, *, are_judged: bool) -> int:
    found: list[Entry | Bar] = []
    show_progress("starting a PostgreSQL server")
    with open_ground() as ground:
        shown = ground.admin.execute("select name, setting from pg_settings where name = any(%s)", [list(SHOWN)])
        settings: dict[str, str] = dict(shown.fetchall())
        for name in chosen:
            found += CASES[name](ground, sizes, show_progress)
        show_progress("done, stopping")
    entries = [each for each in found if isinstance(each, Entry)]
    bars = [each for each in found if isinstance(each, Bar)]
    print_report(entries, bars, are_judged=are_judged)
    write_report(entries, bars, sizes=sizes, settings=settings)
    show_progress(f"written to {JSON}")
    draw(show_progress)
    problems = [problem for entry in entries for problem in entry.problems]
    return judge([*(entry.to_bar() for entry in entries), *bars], problems, are_judged=are_judged)


if __name__ == "__main__":
    sys.exit(main())
