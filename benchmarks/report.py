"""The table on the terminal and the same as JSON."""

import json
import os
import platform
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import psycopg
from rich.console import Console
from rich.table import Table

from benchmarks.bars import Bar
from benchmarks.cost import GROUP, Cost
from benchmarks.measures import Numbers
from benchmarks.sizes import Sizes

LATEST = Path(__file__).parent / "results" / "latest.json"
WIDTH = 130  # when it is not a terminal that reads


def print_report(numbers: Numbers, one: Cost, group: Cost, bars: list[Bar]) -> None:
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    console.print(_measures(numbers), _costs(one, group), bars_table(bars))


def _measures(numbers: Numbers) -> Table:
    table = Table("measure", title="medians", title_justify="left")
    for head in ("median", "lowest", "highest"):
        table.add_column(head, justify="right")
    table.add_column("unit")
    for measure, values in numbers.rounds.items():
        shown = (_number(value) for value in (numbers.median(measure), min(values), max(values)))
        table.add_row(measure.label, *shown, measure.unit)
    return table


def _costs(one: Cost, group: Cost) -> Table:
    title = f"cost: one task send to get, and {GROUP} tasks with prefetch_buffer=auto"
    table = Table("what", "one", str(GROUP), title=title, title_justify="left")
    for label, of_one, of_group in (
        ("client round trips", one.round_trips, group.round_trips),
        ("statements", one.statements, group.statements),
        ("durable commits", one.durable_commits, group.durable_commits),
        ("notifications", one.notifications, group.notifications),
        ("finish statements", one.times("finish_tasks"), group.times("finish_tasks")),
    ):
        table.add_row(label, str(of_one), str(of_group))
    table.add_section()
    for number, trip in enumerate(one.trips, 1):
        table.add_row(f"{number}. {trip}")
    return table


def bars_table(bars: list[Bar]) -> Table:
    table = Table("bar", title="bars; in brackets: for comparison only", title_justify="left")
    for head in ("is", "wanted", "verdict"):
        table.add_column(head, justify="right")
    for bar in bars:
        wanted = f"{bar.sense} {_number(bar.limit)} {bar.unit}"
        colour = ("green" if bar.passed else "red") if bar.judged else "dim"
        table.add_row(bar.label, f"{_number(bar.value)} {bar.unit}", wanted, f"[{colour}]{bar.verdict}[/{colour}]")
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2f}"


def write_report(
    numbers: Numbers,
    one: Cost,
    group: Cost,
    bars: list[Bar],
    problems: list[str],
    *,
    sizes: Sizes,
    settings: dict[str, str],
) -> None:
    report = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": about_machine(),
        "postgres": settings,
        "sizes": asdict(sizes),
        "measures": {
            measure.name.lower(): {
                "label": measure.label,
                "unit": measure.unit,
                "median": numbers.median(measure),
                "rounds": values,
            }
            for measure, values in numbers.rounds.items()
        },
        "cost_of_one": asdict(one),
        "cost_of_group": asdict(group),
        "bars": [asdict(bar) | {"verdict": bar.verdict} for bar in bars],
        "problems": problems,
    }
    LATEST.parent.mkdir(exist_ok=True)
    LATEST.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def about_machine() -> dict[str, object]:
    return {
        "system": platform.platform(),
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg(),
        "python": platform.python_version(),
        "psycopg": psycopg.__version__,
    }
