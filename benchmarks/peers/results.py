"""The numbers of all rounds, their medians, the table with ratios to ours, and the JSON that the plots are made from."""

import json
import os
import platform
import sys
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.peers.systems import OURS, Entry, version_of
from benchmarks.peers.workloads import Numbers, Sizes

FOLDER = Path(__file__).parent.parent / "results"
LATEST = FOLDER / "peers.json"
WIDTH = 200  # when it is not a terminal that reads

UNITS = {
    "drain": "tasks/s",
    "bulk": "tasks/s",
    "send": "tasks/s",
    "latency p50": "ms",
    "latency p95": "ms",
    "latency p99": "ms",
    "start p50": "ms",
    "pipeline": "tasks/s",
    "workflows": "/s",
    "chain p50": "ms",
    "async drain": "tasks/s",
    "memory": "MB",
    "sleep": "of ideal",
}
"""In the order of the table. What is in ms or MB is better when it is lower."""
LOWER_IS_BETTER = {"ms", "MB"}


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


def print_table(results: Results, entries: list[Entry]) -> None:
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    table = Table(
        "system, settings",
        title="medians; in brackets: how many times better ours is with like settings",
        title_justify="left",
    )
    measures = [name for name in UNITS if any(results.median(entry.key, name) is not None for entry in entries)]
    for measure in measures:
        table.add_column(f"{measure}\n{UNITS[measure]}", justify="right")
    for entry in entries:
        cells = (_cell(results.median(entry.key, name), results.ratio(entry.key, name)) for name in measures)
        table.add_row(entry.label, *cells, style="bold" if entry.system.name == OURS else None)
    console.print(table)
    for problem in results.problems:
        console.print(f"[red]PROBLEM[/red]: {problem}", highlight=False)


def _cell(value: float | None, ratio: float | None) -> str:
    if value is None:
        return "-"
    return _number(value) if ratio is None else f"{_number(value)}\n({_number(ratio)})"


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def write_json(
    results: Results,
    entries: list[Entry],
    *,
    sizes: Sizes,
    postgres: dict[str, str],
    about: dict[str, str],
    path: Path = LATEST,
) -> None:
    report = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "system": platform.platform(),
            "cpus": os.cpu_count(),
            "load_average": os.getloadavg(),
        },
        "about": about,
        "postgres": postgres,
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
        "problems": results.problems,
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
