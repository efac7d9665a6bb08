"""Inject faults while tasks run, then check from what was recorded that nothing went wrong.

Runs load (blocking and asyncio sends, retries, caps, keys, workflows, delays, expiry, cancellation) on its own PostgreSQL servers while workers,
children, servers and networks fail. At the end a checker compares what tasks and producers have recorded with the database.

  python -m benchmarks.chaos                          ten minutes, all faults
  python -m benchmarks.chaos --minutes 2 --only kill-worker,restart --seed 7

Exit code: 0 no violation, 1 a violation, 2 wrong usage. Ctrl-C stops the faults and checks what has happened; a second one stops immediately.
"""

import argparse
import logging
import random
import signal
import sys
from types import FrameType
from typing import NoReturn

from benchmarks.chaos.faults import KINDS
from benchmarks.chaos.plan import Account, Plan
from benchmarks.chaos.report import Progress, print_json, print_tables
from benchmarks.chaos.sections import run_sections

INTERRUPTED = 130


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, _interrupt)
    for name in ("horsies", "psycopg"):  # producers log every outage
        logging.getLogger(name).setLevel(logging.CRITICAL)
    plan = Plan(seconds=options.minutes * 60, seed=options.seed, kinds=frozenset(options.only))
    progress, accounts = Progress(), list[Account]()
    try:
        accounts.extend(run_sections(plan, progress.show))
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted; the workers and the servers are stopped\n")
        return INTERRUPTED
    finally:
        progress.end()
    (print_json if options.json else print_tables)(accounts, options.seed)
    return 0 if all(account.is_good for account in accounts) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=_minutes, default=10.0, help="of load and faults (default: 10)")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000), help="repeats a choice of faults")  # noqa: S311 - no secret
    parser.add_argument(
        "--only", type=_kinds, default=list(KINDS), metavar="A,B", help=f"only these faults: {', '.join(KINDS)}"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser.parse_args()


def _minutes(text: str) -> float:
    minutes = float(text)
    if not 0 < minutes <= 24 * 60:
        raise argparse.ArgumentTypeError("must be above 0 and at most 1440 (a day)")
    return minutes


def _kinds(text: str) -> list[str]:
    kinds = [kind.strip() for kind in text.split(",")]
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise argparse.ArgumentTypeError(f"unknown fault {unknown[0]!r}; choose from {', '.join(KINDS)}")
    return kinds


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
