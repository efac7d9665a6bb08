"""Run `make demo`: start a worker with two processes, send tasks of every kind and show their results."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import track
from rich.table import Table

from examples.demo_tasks import app, charge, crash, divide, fetch, resize
from horsies import HorsiesError, TaskHandle

MANY = 300
PATIENCE_MS = 30_000

console = Console()
for variable in ("HORSIES_DATABASE_URL", "DATABASE_URL"):
    os.environ.pop(variable, None)  # the demo must not use your database


def main() -> int:
    started = time.perf_counter()
    app.broker.ensure_schema_initialized()
    console.print(f"PostgreSQL is up ({time.perf_counter() - started:.1f} s).")
    try:
        with worker():
            run_many()
            show_kinds()
    finally:
        app.close()
    console.print("The worker has stopped; nothing is left running.")
    return 0


@contextmanager
def worker() -> Generator[None]:
    """Run a worker, as `horsies worker examples.demo_tasks:app --processes 2` does."""
    command = [sys.executable, "-m", "horsies.cli.main", "worker", "examples.demo_tasks:app", "--processes", "2"]
    process = subprocess.Popen([*command, "--loglevel", "ERROR"])
    try:
        yield
        process.send_signal(signal.SIGTERM)
        if (code := process.wait(timeout=PATIENCE_MS / 1000)) != 0:
            raise RuntimeError(f"the worker exited with code {code}")
    finally:
        process.kill()
        process.wait()


def run_many() -> None:
    started = time.perf_counter()
    handles = [resize.send(number, width=100) for number in range(MANY)]
    sent = time.perf_counter()
    for number, handle in enumerate(track(handles, f"{MANY} x resize", console=console)):
        if handle.get(PATIENCE_MS).unwrap().image_id != number:
            raise RuntimeError(f"task {handle.task_id} returned the result of another task")
    done = time.perf_counter()
    console.print(f"sent {MANY / (sent - started):.0f}/s one by one; all results after {done - started:.2f} s\n")


def show_kinds() -> None:
    sent: dict[str, TaskHandle[object]] = {
        "ok": resize.send(7),
        "domain error": charge.send(1999),
        "exception": divide.send(1, 0),
        "async": fetch.send("home"),
        "child is killed": crash.send(),
        "after the kill": resize.send(8, width=64),
    }
    table = Table("kind", "status", "result", title="Results by kind")
    for kind, handle in sent.items():
        result = handle.get(PATIENCE_MS)
        if result.is_ok():
            table.add_row(kind, "[green]ok", repr(result.ok_value))
        else:
            table.add_row(kind, f"[red]{result.err_value.error_code}", result.err_value.message)
    console.print(table)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HorsiesError as error:
        console.print(f"[red]{error}")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
