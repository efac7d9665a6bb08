"""The table on the terminal, the same as JSON, and the picture that is made of it."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.bars import Bar
from benchmarks.growth.entries import Entry, Sizes, block_rates
from benchmarks.peers.environments import NotInstalled, find_python, install_plots
from benchmarks.peers.processes import environment
from benchmarks.report import about_machine, bars_table
from benchmarks.worker import ROOT

FOLDER = ROOT / "benchmarks" / "results"
JSON, PLOT = FOLDER / "growth.json", FOLDER / "growth.png"
WIDTH = 130  # when it is not a terminal that reads


def print_report(entries: list[Entry], bars: list[Bar], *, are_judged: bool) -> None:
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    console.print(_table(entries, are_judged=are_judged), bars_table(bars))
    for entry in entries:
        if any(passage.block_rates for passage in entry.grown):
            console.print(_blocks(entry))


def _table(entries: list[Entry], *, are_judged: bool) -> Table:
    table = Table(
        "case", "prefetch_buffer", title="medians, beside the same on an empty database", title_justify="left"
    )
    for head in ("empty /s", "grown /s", "ratio", "wanted", "verdict"):
        table.add_column(head, justify="right")
    for entry in entries:
        verdict = "[green]PASS[/green]" if entry.to_bar().passed else "[red]FAIL[/red]"
        numbers = f"{entry.empty_rate:,.0f}", f"{entry.grown_rate:,.0f}", f"{entry.ratio:.2f}", f">= {entry.bar:g}"
        table.add_row(entry.label, _prefetch(entry), *numbers, verdict if are_judged else "too small")
    return table


def _blocks(entry: Entry) -> Table:
    table = Table("block", title=f"{entry.label}: tasks/s per block, medians", title_justify="left")
    for head in ("empty", "grown"):
        table.add_column(head, justify="right")
    both = zip(block_rates(entry.empty), block_rates(entry.grown), strict=True)
    for number, (empty, grown) in enumerate(both, 1):
        table.add_row(str(number), f"{empty:,.0f}", f"{grown:,.0f}")
    return table


def _prefetch(entry: Entry) -> str:
    return '"auto"' if entry.settings == "auto" else "0, the default"


def write_report(
    entries: list[Entry], bars: list[Bar], *, sizes: Sizes, settings: dict[str, str], path: Path = JSON
) -> None:
    report = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": about_machine(),
        "postgres": settings,
        "sizes": asdict(sizes),
        "entries": [
            {
                "case": entry.case,
                "label": entry.label,
                "settings": entry.settings,
                "empty": [passage.rate for passage in entry.empty],
                "grown": [passage.rate for passage in entry.grown],
                "ratio": entry.ratio,
                "bar": entry.bar,
                "passed": entry.to_bar().passed,
                "empty_blocks": block_rates(entry.empty),
                "grown_blocks": block_rates(entry.grown),
            }
            for entry in entries
        ],
        "bars": [asdict(bar) | {"passed": bar.passed} for bar in bars],
        "problems": [problem for entry in entries for problem in entry.problems],
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def draw(show_progress: Callable[[str], None]) -> None:
    """The table and the JSON are there already: a picture that cannot be made is no reason to fail."""
    try:
        python = install_plots(find_python(), show_progress)
    except NotInstalled as failure:
        show_progress(f"no plot: {failure}")
        return
    command = [str(python), "-m", "benchmarks.growth.plots", str(JSON), str(PLOT)]
    done = subprocess.run(command, cwd=ROOT, env=environment({}), capture_output=True, text=True, check=False)
    show_progress(f"no plot: {done.stderr[-500:]}" if done.returncode else f"written to {PLOT.relative_to(ROOT)}")
