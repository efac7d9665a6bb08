"""The one task of the benchmarks: it notes that it has begun, and returns its argument."""

import os
import time
from functools import cache
from typing import TYPE_CHECKING, Literal

from horsies import AppConfig, Horsies, PostgresConfig, Task, TaskError, TaskResult

if TYPE_CHECKING:
    from pathlib import Path

DATABASE_URL = "BENCH_DATABASE_URL"
PREFETCH = "BENCH_PREFETCH"
STARTS_FOLDER = "BENCH_STARTS"
Prefetch = Literal[0, "auto"]


def make_app(database_url: str, prefetch: Prefetch) -> tuple[Horsies, Task[[int], int]]:
    app = Horsies(AppConfig(broker=PostgresConfig(database_url=database_url), prefetch_buffer=prefetch))

    @app.task("note_start")
    def note_start(n: int) -> TaskResult[int, TaskError]:
        os.write(_starts_file(), f"{n} {time.monotonic()}\n".encode())
        return TaskResult(ok=n)

    @app.task("count_to")
    def count_to(n: int) -> TaskResult[list[int], TaskError]:
        return TaskResult(ok=list(range(n)))

    @app.task("stay")
    def stay(n: int, seconds: float) -> TaskResult[int, TaskError]:
        """Notes when it began and ended, by the clock that the database goes by."""
        began = time.time()
        if seconds:
            time.sleep(seconds)
        os.write(_starts_file(), f"{n} {began} {time.time()}\n".encode())
        return TaskResult(ok=n)

    return app, note_start


@cache
def _starts_file() -> int:
    """One file per process, written without a buffer: a start that happened is seen whatever comes after."""
    path = os.path.join(os.environ[STARTS_FOLDER], str(os.getpid()))  # noqa: PTH118 - children need not load pathlib
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def read_starts(folder: "Path") -> list[tuple[int, float]]:
    """(number, moment on the monotonic clock) of every start, in order of time."""
    lines = [line.split() for path in folder.iterdir() for line in path.read_text(encoding="ascii").splitlines()]
    return sorted(((int(number), float(moment)) for number, moment in lines), key=lambda start: start[1])
