"""The one task of the benchmarks: it notes that it has begun, and returns its argument."""

import os
import time
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Literal

from horsies import AppConfig, CustomQueueConfig, Horsies, PostgresConfig, QueueMode, Task, TaskError, TaskResult

if TYPE_CHECKING:
    from pathlib import Path

DATABASE_URL = "BENCH_DATABASE_URL"
PREFETCH = "BENCH_PREFETCH"
STARTS_FOLDER = "BENCH_STARTS"
QUEUES = "BENCH_QUEUES"
Prefetch = Literal[0, "auto"]


def queue_names(count: int) -> list[str]:
    return [f"queue_{number}" for number in range(count)]


def make_app(database_url: str, prefetch: Prefetch, queues: Sequence[str] = ()) -> tuple[Horsies, Task[[int], int]]:
    """With queues of its own, the tasks are sent to the first one."""
    config = AppConfig(
        broker=PostgresConfig(database_url=database_url),
        prefetch_buffer=prefetch,
        queue_mode=QueueMode.CUSTOM if queues else QueueMode.DEFAULT,
        custom_queues=[CustomQueueConfig(name=queue) for queue in queues],
    )
    app = Horsies(config)
    queue_name = queues[0] if queues else None

    @app.task("note_start", queue_name=queue_name)
    def note_start(n: int) -> TaskResult[int, TaskError]:
        os.write(_starts_file(), f"{n} {time.monotonic()}\n".encode())
        return TaskResult(ok=n)

    @app.task("count_to", queue_name=queue_name)
    def count_to(n: int) -> TaskResult[list[int], TaskError]:
        return TaskResult(ok=list(range(n)))

    @app.task("count_good", queue_name=queue_name)
    def count_good(results: list[TaskResult[int, TaskError]]) -> TaskResult[int, TaskError]:
        return TaskResult(ok=sum(1 for result in results if result.is_ok()))

    @app.task("stay", queue_name=queue_name)
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
