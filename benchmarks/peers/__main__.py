"""`python -m benchmarks.peers`: other task queues and ours, the same workloads, alternating. Prints a table, writes JSON and plots."""

import argparse
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

from benchmarks.bars import Bar, judge
from benchmarks.peers.bars import bars
from benchmarks.peers.environments import NotInstalled, base_version, find_python, install, install_plots
from benchmarks.peers.processes import environment
from benchmarks.peers.results import FOLDER, LATEST, Results, print_results, write_json
from benchmarks.peers.servers import Servers, find_redis, open_servers
from benchmarks.peers.session import Sessions
from benchmarks.peers.sizes import FULL, QUICK, Sizes
from benchmarks.peers.systems import ROOT, SYSTEMS, Entry, System
from benchmarks.peers.workloads import WORKLOADS, measure

INTERRUPTED = 130
STOPS = (signal.SIGINT, signal.SIGTERM)


def main() -> int:
    for asked_to_stop in STOPS:
        signal.signal(asked_to_stop, _interrupt)
    options = _options()
    sizes = QUICK if options.quick else FULL
    if options.rounds:
        sizes = replace(sizes, rounds=options.rounds)
    try:
        return _run(options.only, options.settings, options.workloads, sizes)
    except KeyboardInterrupt:
        _say("interrupted; all workers and servers are gone")
        return INTERRUPTED


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-peers", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes and one round: only shows that all of it works"
    )
    parser.add_argument(
        "--only", type=_names(system.name for system in SYSTEMS), metavar="A,B", help="only these systems"
    )
    parser.add_argument(
        "--settings", type=_names(("default", "best")), metavar="A,B", help="only default or only best settings"
    )
    parser.add_argument(
        "--workloads", type=_names(WORKLOADS), default=list(WORKLOADS), metavar="A,B", help=", ".join(WORKLOADS)
    )
    parser.add_argument("--rounds", type=int, help="how many rounds the medians are of (default: 3, quick: 1)")
    options = parser.parse_args()
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds must be 1 or more")
    return options


def _names(known: Iterable[str]) -> Callable[[str], list[str]]:
    allowed = list(known)

    def names(text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := [name for name in chosen if name not in allowed]:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; choose from {', '.join(allowed)}")
        return chosen

    return names


def _run(only: list[str] | None, settings: list[str] | None, workloads: list[str], sizes: Sizes) -> int:
    results = Results()
    base = find_python()
    systems = [system for system in SYSTEMS if only is None or system.name in only]
    redis = find_redis(_say) if any(system.needs_redis for system in systems) else None
    if redis is None:
        systems = list(_without_redis(systems, results))
    pythons = _install(systems, base, results)
    entries = [
        Entry(system, name)
        for system in systems
        if system.name in pythons
        for name in system.settings
        if settings is None or name in settings
    ]
    _say("starting the servers")
    about: dict[str, object] = {"python": base_version(base), "rounds_done": 0}
    try:
        with open_servers(redis) as servers:
            about["postgres"] = servers.settings()
            for number in _rounds(servers, entries, pythons, sizes, set(workloads), results):
                about["rounds_done"] = number
                write_json(results, entries, _judged(results, sizes), sizes=sizes, about=about)
            _say("done, stopping")
    finally:  # also of what was interrupted, what there is
        judged = _judged(results, sizes)
        print_results(results, entries, judged)
        write_json(results, entries, judged, sizes=sizes, about=about)
    _plot(base)
    return judge(judged, results.problems)


def _rounds(
    servers: Servers,
    entries: list[Entry],
    pythons: dict[str, Path],
    sizes: Sizes,
    chosen: set[str],
    results: Results,
) -> Iterator[int]:
    """The number of each round that is over."""
    began = time.monotonic()
    measured = 0
    for number in range(1, sizes.rounds + 1):
        # Shuffled, and in each run alike, so that no system always follows the same one.
        for place, entry in enumerate(random.Random(number).sample(entries, len(entries)), 1):  # noqa: S311 - no secret
            minutes = (time.monotonic() - began) / 60
            left = minutes / measured * (len(entries) * sizes.rounds - measured) if measured else None
            _say(f"round {number}/{sizes.rounds}, {place} of {len(entries)}: {entry.label} ({_so_far(minutes, left)})")
            _measure(Sessions(servers, entry, pythons[entry.system.name]), sizes, chosen, results)
            measured += 1
        yield number


def _so_far(minutes: float, left: float | None) -> str:
    return f"{minutes:.1f} min so far" + ("" if left is None else f", about {left:.0f} to go")


def _judged(results: Results, sizes: Sizes) -> list[Bar]:
    """With tiny sizes speed is not measured: the bars are only shown."""
    return [bar if sizes.long_drain == FULL.long_drain else replace(bar, judged=False) for bar in bars(results)]


def _without_redis(systems: list[System], results: Results) -> Iterator[System]:
    for system in systems:
        if system.needs_redis:
            results.problems.append(
                f"{system.label} is left out: there is no redis-server on the PATH and it could not be installed"
            )
        else:
            yield system


def _install(systems: list[System], base: str, results: Results) -> dict[str, Path]:
    pythons: dict[str, Path] = {}
    for system in systems:
        try:
            pythons[system.name] = install(system, base, _say)
        except NotInstalled as failure:
            _say(str(failure))
            results.problems.append(f"{system.label} is left out: {failure}")
    return pythons


def _measure(sessions: Sessions, sizes: Sizes, chosen: set[str], results: Results) -> None:
    for numbers in measure(sessions, sizes, chosen):
        if isinstance(numbers, str):
            _say(numbers)
            results.problems.append(numbers)
        else:
            results.add(sessions.entry, numbers)


def _plot(base: str) -> None:
    """The table and the JSON are there already: plots that cannot be made are no reason to fail."""
    try:
        python = install_plots(base, _say)
    except NotInstalled as failure:
        return _say(f"no plots: {failure}")
    command = [str(python), "-m", "benchmarks.peers.plots", str(LATEST), str(FOLDER)]
    done = subprocess.run(command, cwd=ROOT, env=environment({}), capture_output=True, text=True, check=False)
    return _say(
        f"no plots: {done.stderr[-500:]}" if done.returncode else f"written to {FOLDER.relative_to(ROOT)}/peers*"
    )


def _say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    """Once: who is impatient must not cut short the stopping of workers and servers."""
    for asked_to_stop in STOPS:
        signal.signal(asked_to_stop, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
