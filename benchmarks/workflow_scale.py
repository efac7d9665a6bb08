"""`python -m benchmarks.workflow_scale`: the time per node of large workflows beside that of small ones of the same shape.

A worker with default settings (a fresh child process per 100 tasks) runs each shape with 1 000 nodes, then with many. Prints a table, writes
results/workflows.json. Exit code 1 when a workflow did not complete or its result was wrong, or when the nodes of a large
workflow ran at less than 0.9 of the rate of a small one.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.bars import Bar, judge
from benchmarks.place import Place, open_place
from benchmarks.report import LATEST, WIDTH, about_machine
from benchmarks.tasks import make_app
from benchmarks.terminal import INTERRUPTED, end_like_ctrl_c, show_progress
from benchmarks.worker import Worker, running_worker
from horsies import Horsies, WorkflowHandle, WorkflowSpec, each, from_node, results_from

RESULT = LATEST.parent / "workflows.json"
SMALL: Final = 1_000
LAYERS: Final = 50
DEPENDENCIES: Final = 4
SHARE: Final = 0.9
TIMEOUT_S: Final = 3_600
SAY_EVERY_S: Final = 10


def fan(app: Horsies, nodes: int) -> WorkflowSpec[Any]:
    """One node, all others but one after it, and one that joins them."""
    task = app.tasks["note_start"]
    first = task.node()(0)
    middle = [task.node(waits_for=[first])(number) for number in range(1, nodes - 1)]
    join = task.node(waits_for=middle)(nodes)
    return app.workflow("fan", [first, *middle, join], output=join)


def layers(app: Horsies, nodes: int) -> WorkflowSpec[Any]:
    """50 of them. Each node takes the result of one node of the layer before, and waits for three more."""
    task, width = app.tasks["note_start"], nodes // LAYERS
    found = [task.node()(number) for number in range(width)]
    for start in range(0, width * (LAYERS - 1), width):
        before = found[start : start + width]
        for place in range(width):
            source, *others = (before[(place + step) % width] for step in range(DEPENDENCIES))
            found.append(task.node(waits_for=others)(from_node(source)))
    return app.workflow("layers", found, output=found[-1])


def mapped(app: Horsies, items: int) -> WorkflowSpec[Any]:
    """A list, and a task for each item of it."""
    numbers = app.tasks["count_to"].node()(items)
    over = app.tasks["note_start"].map_node()(each(numbers))
    return app.workflow("map", [numbers, over], output=over)


def results(app: Horsies, items: int) -> WorkflowSpec[Any]:
    """A task for each item of a list that is given, some of which might fail, and one that takes the results of all."""
    over = app.tasks["note_start"].map_node(max_failures=items // 10)(each(range(items)))
    good = app.tasks["count_good"].node()(results_from(over))
    return app.workflow("results", [over, good], output=good)


@dataclass(frozen=True, slots=True)
class Shape:
    build: Callable[[Horsies, int], WorkflowSpec[Any]]
    large: int
    result: Callable[[int], Any]


SHAPES: Mapping[str, Shape] = {
    "fan": Shape(fan, 50_000, lambda nodes: nodes),
    "layers": Shape(layers, 50_000, lambda nodes: nodes // LAYERS - 1),
    "map": Shape(mapped, 100_000, lambda items: list(range(items))),
    "results": Shape(results, 100_000, lambda items: items),
}


@dataclass(frozen=True, slots=True)
class Run:
    """`build_s` is the check of the definition in the producer, `start_s` the call of start(), `run_s` the time from there to the result."""

    shape: str
    nodes: int
    build_s: float
    start_s: float
    run_s: float
    problem: str | None = None

    @property
    def seconds(self) -> float:
        return self.start_s + self.run_s

    @property
    def ms_per_node(self) -> float:
        return self.seconds * 1000 / self.nodes


def main() -> int:
    end_like_ctrl_c()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.workflow_scale", description=__doc__)
    parser.add_argument("--only", default=",".join(SHAPES), help="shapes, separated by commas (default: all)")
    parser.add_argument(
        "--nodes", type=int, help="nodes of the large workflows (default: 50 000, items of maps 100 000)"
    )
    parser.add_argument(
        "--small-runs", type=int, default=3, help="how often a small one is run before, and after (default: 3)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    shapes = options.only.split(",")
    if unknown := [shape for shape in shapes if shape not in SHAPES]:
        parser.error(f"unknown shapes: {', '.join(unknown)}; there are {', '.join(SHAPES)}")
    if options.small_runs < 1 or (options.nodes is not None and options.nodes < SMALL):
        parser.error(f"--small-runs must be 1 or more, --nodes {SMALL} or more")
    try:
        return _measure(shapes, options.nodes, options.small_runs, prints_json=options.json)
    except KeyboardInterrupt:
        show_progress("interrupted; the worker and the server are stopped")
        return INTERRUPTED


def _measure(shapes: Sequence[str], nodes: int | None, small_runs: int, *, prints_json: bool) -> int:
    runs: list[Run] = []
    with open_place() as place:
        for shape in shapes:
            large = nodes or SHAPES[shape].large
            sizes = [*[SMALL] * small_runs, large, *[SMALL] * small_runs]
            runs += [measure(place, shape, size) for size in sizes]
        settings = place.settings()
    report = _report(runs)
    RESULT.parent.mkdir(exist_ok=True)
    found = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": about_machine(),
        "postgres": settings,
        "workflows": report,
        "runs": [asdict(run) for run in runs],
    }
    RESULT.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if prints_json:
        print(json.dumps(found, indent=2))
    else:
        Console(width=None if sys.stdout.isatty() else WIDTH).print(_table(report))
    problems = [f"{run.shape} of {run.nodes}: {run.problem}" for run in runs if run.problem]
    bars = (
        Bar(f"{row['shape']} of {row['nodes']:,}: rate per node, to {SMALL:,}", 1 / row["ratio"], SHARE, ">=", "")
        for row in report
    )
    return judge(bars, problems)


def measure(place: Place, shape: str, nodes: int) -> Run:
    """In a database without other rows, by a worker that has just run a small workflow."""
    place.clear("horsies")
    app, _ = make_app(place.url, 0)
    try:
        with running_worker(place, 0) as worker:
            fan(app, 10).start().get(60_000).unwrap()
            began = time.perf_counter()
            spec = SHAPES[shape].build(app, nodes)
            built = time.perf_counter()
            handle = spec.start()
            started = time.perf_counter()
            problem = _finish(place, worker, handle, SHAPES[shape].result(nodes), f"{shape} of {nodes:,}")
            ended = time.perf_counter()
    finally:
        app.close()
    run = Run(shape, nodes, built - began, started - built, ended - started, problem)
    show_progress(f"{shape} of {nodes:,}: {run.seconds:.1f} s, {run.ms_per_node:.2f} ms per node")
    return run


def _finish(place: Place, worker: Worker, handle: WorkflowHandle[Any], wanted: object, what: str) -> str | None:
    """What was wrong with it, if anything."""
    deadline, next_word = time.monotonic() + TIMEOUT_S, time.monotonic() + SAY_EVERY_S
    while (result := handle.get(1_000)).is_err() and result.unwrap_err().error_code == "WAIT_TIMEOUT":
        worker.insist()
        if time.monotonic() > deadline:
            return f"it has not ended within {TIMEOUT_S} s"
        if time.monotonic() > next_word:
            next_word += SAY_EVERY_S
            row = place.admin.execute("select count(*) from horsies.finished").fetchone()
            show_progress(f"{what}: {row[0] if row else 0:,} nodes have ended")
    if result.is_err():
        return f"it ended with {result.unwrap_err()}"
    return None if result.unwrap() == wanted else "its result is wrong"


def _report(runs: Sequence[Run]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for shape in dict.fromkeys(run.shape for run in runs):
        small = median(run.ms_per_node for run in runs if run.shape == shape and run.nodes == SMALL)
        for nodes in dict.fromkeys(run.nodes for run in runs if run.shape == shape):
            those = [run for run in runs if run.shape == shape and run.nodes == nodes]
            row: dict[str, Any] = {"shape": shape, "nodes": nodes, "runs": len(those)}
            for name in ("build_s", "start_s", "seconds", "ms_per_node"):
                row[name] = round(median(getattr(run, name) for run in those), 3)
            rows.append(row | {"ratio": round(median(run.ms_per_node for run in those) / small, 2)})
    return rows


def _table(report: Sequence[Mapping[str, Any]]) -> Table:
    title = f"workflows with default settings; wanted: {SHARE:g} of the rate at {SMALL:,} nodes"
    table = Table("shape", title=title, title_justify="left")
    for head in ("nodes", "runs", "build s", "start s", "start to result s", "ms per node", f"ratio to {SMALL:,}"):
        table.add_column(head, justify="right")
    for row in report:
        numbers = (f"{row[name]:.2f}" for name in ("build_s", "start_s", "seconds", "ms_per_node", "ratio"))
        table.add_row(row["shape"], f"{row['nodes']:,}", str(row["runs"]), *numbers)
    return table


if __name__ == "__main__":
    sys.exit(main())
