"""The numbers of all rounds, their medians, the table with ratios to ours, and the JSON that the plots are made from."""

import json
import os
import platform
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from benchmarks.bars import Bar
from benchmarks.peers.sizes import Sizes
from benchmarks.peers.systems import OURS, Entry, version_of
from benchmarks.peers.units import LOWER_IS_BETTER, TABLES, UNITS
from benchmarks.peers.workloads import Numbers
from benchmarks.report import bars_table

FOLDER = Path(__file__).parent.parent / "results"
LATEST = FOLDER / "peers.json"
WIDTH = 120  # when it is not a terminal that reads


@dataclass(slots=True)
class Results:
    rounds: dict[str, dict[str, list[float]]] = field(default_factory=dict[str, dict[str, list[float]]])
    problems: list[str] = field(default_factory=list[str])

    def add(self, entry: Entry, numbers: Numbers) -> None:
        of_entry = self.rounds.setdefault(entry.key, {})
        for measure, value in numbers.items():
            of_entry.setdefault(measure, []).append(value)
            if measure.endswith(": twice") and value:
                self.problems.append(
                    f"{entry.label}: {value:.0f} tasks of the {measure.partition(':')[0]} began more than once"
                )

    def median(self, key: str, measure: str) -> float | None:
        values = self.rounds.get(key, {}).get(measure)
        return median(values) if values else None

    def ratio(self, key: str, measure: str) -> float | None:
        """How many times better ours is with the same choice of settings: above 1 we are ahead."""
        ours = self.median(f"{OURS}-{key.rpartition('-')[2]}", measure)
        theirs = self.median(key, measure)
        if not ours or not theirs:
            return None
        return theirs / ours if UNITS[measure] in LOWER_IS_BETTER else ours / theirs


def print_results(results: Results, entries: list[Entry], bars: list[Bar]) -> None:
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    for units in TABLES:
        if any(results.median(entry.key, name) is not None for entry in entries for name in units):
            console.print(_table(results, entries, units))
    if bars:
        console.print(bars_table(bars))
    for problem in results.problems:
        console.print(f"[red]PROBLEM[/red]: {escape(problem)}", highlight=False)


def _table(results: Results, entries: list[Entry], units: dict[str, str]) -> Table:
    table = Table(
        Column("system, settings", no_wrap=True),
        title="medians; in brackets: how many times better ours is with like settings",
        title_justify="left",
    )
    measures = [name for name in units if any(results.median(entry.key, name) is not None for entry in entries)]
    for measure in measures:
        table.add_column(f"{measure}\n{units[measure]}", justify="right")
    for entry in entries:
        cells = (_cell(entry, results.median(entry.key, name), results.ratio(entry.key, name)) for name in measures)
        table.add_row(entry.label, *cells, style="bold" if entry.system.name == OURS else None)
    return table


def _cell(entry: Entry, value: float | None, ratio: float | None) -> str:
    if value is None:
        return "-"
    return _number(value) if ratio is None or entry.system.name == OURS else f"{_number(value)} ({_number(ratio)})"


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def write_json(
    results: Results,
    entries: list[Entry],
    bars: list[Bar],
    *,
    sizes: Sizes,
    about: dict[str, object],
) -> None:
    report = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "system": platform.platform(),
            "processor": _processor(),
            "cpus": os.cpu_count(),
            "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
            "load_average": os.getloadavg(),
        },
        **about,
        "sizes": asdict(sizes),
        "units": UNITS,
        "entries": [
            {
                "key": entry.key,
                "label": entry.label,
                "system": entry.system.name,
                "settings": entry.settings,
                "version": version_of(entry.system),
                "rounds": results.rounds.get(entry.key, {}),
                "medians": {name: results.median(entry.key, name) for name in results.rounds.get(entry.key, {})},
                "ours_is_better_by": {name: results.ratio(entry.key, name) for name in UNITS},
            }
            for entry in entries
        ],
        "bars": [asdict(bar) | {"verdict": bar.verdict} for bar in bars],
        "problems": results.problems,
    }
    FOLDER.mkdir(exist_ok=True)
    half_written = LATEST.with_suffix(".json.new")
    half_written.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    half_written.replace(LATEST)


def _processor() -> str:
    """As Linux calls it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
