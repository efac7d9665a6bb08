"""`make walk`: print what one task, one workflow and one schedule tick pass through, in every process.

A real worker runs on the embedded PostgreSQL, with one child. Producer, parent and child record which functions of `src/horsies` they enter
(`tools/walk_trace.py`). This is what counts:

- Start-up does not count. Each operation runs a few times before the trace is switched on, so that modules are imported, connections open
  and statements prepared.
- The window opens just before the operation (for a schedule: just before its slot). It closes when the operation is done and no process has
  entered a new function for a moment, because the worker still has work to do after the producer has its result.
- An operation is traced several times. Only functions that were entered in every window count. This excludes timers, such as
  heartbeats, that fire while the window happens to be open. The timers of recovery are slowed down as well, and the pauses between windows
  are irregular, so that no timer can be in step with them.
- The order is that of the first window. A generator or coroutine that is resumed counts as entered. Comprehensions belong to the function
  around them. A function that two processes enter counts once in the totals.
"""

import argparse
import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from horsies import HorsiesError, TaskError, TaskResult
from tools.walk_app import add, app, workflow
from tools.walk_page import Step, Walk, as_text, insert, render
from tools.walk_trace import CHILD, FOLDER_VARIABLE, PARENT, PARENT_VARIABLE, PRODUCER, install, prepare_folder

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "architecture.md"

RUNS: Final = 8
MAX_RUNS: Final = 80  # the number of a window is one byte, and there are three operations
WARM_UPS: Final = 3
QUIET_S: Final = 0.15  # a window closes when it has had no new function for this long
WINDOW_S: Final = 5.0  # or after this long at the latest
TIMEOUT_MS: Final = 20_000
EARLY_S: Final = 0.02  # how long before a slot its window opens


@dataclass(frozen=True, slots=True)
class Operation:
    """What is traced, and the options that its worker needs."""

    name: str
    title: str
    prepare: Callable[[], None]
    run: Callable[[Path], TaskResult[int, TaskError] | None]
    worker_options: tuple[str, ...] = ()


class WalkError(Exception):
    """The walk could not be traced, and why."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    chosen = [operation for operation in OPERATIONS if operation.name in (options.operation or _NAMES)]
    if options.write and len(chosen) < len(OPERATIONS):
        _parser().error("--write needs all operations; leave out --operation")
    if not 1 <= options.runs <= MAX_RUNS:
        _parser().error(f"--runs takes 1 to {MAX_RUNS}")
    signal.signal(
        signal.SIGTERM, lambda _signal, _frame: sys.exit(128 + signal.SIGTERM)
    )  # stop the worker and the server
    try:
        walks = trace(chosen, options.runs)
    except (HorsiesError, WalkError) as error:
        print(f"walk: {error}", file=sys.stderr)
        return 1
    if options.write:
        PAGE.write_text(insert(PAGE.read_text(), render(walks)))
    print(_as_json(walks) if options.json else "\n\n".join(f"{walk.heading}\n{as_text(walk)}" for walk in walks))
    if not options.json:
        print("\n" + "\n".join(walk.heading for walk in walks))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "make walk ARGS='...'", description="Print the files and functions that a task passes through."
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--write", action="store_true", help=f"write the walks into {PAGE.relative_to(ROOT)}")
    parser.add_argument("--operation", action="append", choices=_NAMES, help="trace only this one; may be repeated")
    parser.add_argument(
        "--runs", type=int, default=RUNS, help="how often each operation is traced (default: %(default)s)"
    )
    return parser


def _as_json(walks: Sequence[Walk]) -> str:
    return json.dumps(
        {
            walk.name: {
                "title": walk.title,
                "functions": len(walk.functions),
                "files": len(walk.files),
                "steps": [asdict(step) for step in walk.steps],
            }
            for walk in walks
        },
        indent=1,
    )


# -- tracing


def trace(operations: Sequence[Operation], runs: int) -> list[Walk]:
    """Trace each operation in a worker of its own, on one server."""
    folder = _temporary_folder()
    os.environ["HORSIES_EMBEDDED_DIR"] = str(folder / "server")
    for variable in ("HORSIES_DATABASE_URL", "DATABASE_URL", "HORSIES_APP", "HORSIES_FAULTS"):
        os.environ.pop(variable, None)  # the walk takes place on a server of its own
    prepare_folder(folder)
    install(folder, PRODUCER)
    try:
        app.broker.ensure_schema_initialized()
        return [
            _trace_operation(operation, folder, first=1 + index * runs, runs=runs)
            for index, operation in enumerate(operations)
        ]
    finally:
        sys.setprofile(None)
        app.close()


def _trace_operation(operation: Operation, folder: Path, *, first: int, runs: int) -> Walk:
    windows = range(first, first + runs)
    with _worker(folder, operation.worker_options):
        for _ in range(WARM_UPS):
            operation.prepare()
            _check(operation.run(folder))
        for window in windows:
            time.sleep(QUIET_S + window * 0.618 % 1)  # multiples of the golden section spread evenly
            operation.prepare()
            with _window(folder, window):
                result = operation.run(folder)
            _check(result)
    return Walk(operation.name, operation.title, _steps_in_all(folder, windows))


def _temporary_folder() -> Path:
    """Make a folder directly in /tmp: as root the server runs as another user, who must be able to enter it.

    The server stops when this process exits, and the folder is deleted after that: exit handlers run in reverse order.
    """
    folder = Path(tempfile.mkdtemp(prefix="horsies-walk-", dir="/tmp"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o711)
    return folder


@contextmanager
def _worker(folder: Path, options: Sequence[str]) -> Generator[None]:
    command = [str(Path(sys.executable).with_name("horsies")), "worker", "tools.walk_app:app", "--processes", "1"]
    inherited = {name: value for name, value in os.environ.items() if name != PARENT_VARIABLE}
    process = subprocess.Popen(
        [*command, "--loglevel", "ERROR", *options],
        cwd=ROOT,
        env={**inherited, "PYTHONPATH": str(ROOT), FOLDER_VARIABLE: str(folder)},
        stdin=subprocess.DEVNULL,
    )
    try:
        yield
        process.send_signal(signal.SIGTERM)
        if code := process.wait(TIMEOUT_MS / 1000):
            raise WalkError(f"the worker exited with code {code}; its log is above")
    finally:
        process.kill()
        process.wait()


@contextmanager
def _window(folder: Path, number: int) -> Generator[None]:
    """Switch the trace on in all processes; at the end wait until they are quiet, and switch it off."""
    window, trace = folder / "window", folder / "trace"
    with window.open("r+b", buffering=0) as switch:
        switch.write(bytes([number]))
        yield
        until = time.monotonic() + WINDOW_S
        size = -1
        while size != (size := trace.stat().st_size) and time.monotonic() < until:
            time.sleep(QUIET_S)
        switch.seek(0)
        switch.write(b"\0")


def _steps_in_all(folder: Path, windows: range) -> tuple[Step, ...]:
    entries: dict[int, dict[Step, int]] = {window: {} for window in windows}
    for line in (folder / "trace").read_text().splitlines():
        window, process, at_ns, file, function = json.loads(line)
        if window in entries:
            entries[window].setdefault(Step(process, file, function), at_ns)
    first, *others = entries.values()
    common = [step for step in first if all(step in other for other in others)]
    return tuple(sorted(common, key=lambda step: (_PROCESSES.index(step.process), first[step])))


# -- operations


def _run_task(_folder: Path) -> TaskResult[int, TaskError]:
    return add.send(1, 2).get(TIMEOUT_MS)


def _run_workflow(_folder: Path) -> TaskResult[int, TaskError]:
    return workflow.start().get(TIMEOUT_MS)


def _wait_for_slot() -> None:
    """Wait until a slot of the schedule, which is due at every full second, is about to come."""
    time.sleep(1 - (time.time() + EARLY_S) % 1)


def _run_slot(folder: Path) -> None:
    """Wait for the task that the scheduler enqueues."""
    done = folder / "scheduled"
    size = done.stat().st_size if done.exists() else 0
    until = time.monotonic() + TIMEOUT_MS / 1000
    while not done.exists() or done.stat().st_size == size:
        if time.monotonic() > until:
            raise WalkError(f"no task was run by the schedule within {TIMEOUT_MS / 1000:g} s")
        time.sleep(0.01)


def _check(result: TaskResult[int, TaskError] | None) -> None:
    if result is not None and result.is_err():
        raise WalkError(f"the operation failed with {result.err_value}")


def _no_preparation() -> None:
    pass


_PROCESSES: Final = (PRODUCER, PARENT, CHILD)
OPERATIONS: Final = (
    Operation("task", "`add.send(1, 2).get()`", _no_preparation, _run_task),
    Operation("workflow", "A workflow of two nodes", _no_preparation, _run_workflow),
    Operation("schedule", "A schedule tick", _wait_for_slot, _run_slot, ("--scheduler",)),
)
_NAMES: Final = [operation.name for operation in OPERATIONS]

if __name__ == "__main__":
    sys.exit(main())
