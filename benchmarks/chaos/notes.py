"""What tasks record about themselves: a line at each start and each end, appended to one file by all processes of the host.

One `write` to a file opened with O_APPEND is complete, even if other processes write too, and it stays if the process is killed right
after it. The host itself does not fail, so nothing has to be synced to the disk.
"""

import json
import os
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from horsies import current_task

FILE = "CHAOS_NOTES"
WORKER = "CHAOS_WORKER"

What = Literal["start", "end", "dies"]


@dataclass(frozen=True, slots=True)
class Note:
    """`at` is the host's monotonic clock; `clock` is the time of day, which is also the database's, being on the same host."""

    what: What
    task_id: str
    attempt: int
    worker: str
    pid: int
    at: float
    clock: float
    outcome: str | None = None
    """At an end: what was returned, as `ok <JSON>` or `err <code>`."""


def write_note(what: What, outcome: str | None = None) -> None:
    """Append a note of the current task."""
    task = current_task()
    note = Note(
        what,
        task.task_id,
        task.attempt,
        os.environ[WORKER],
        os.getpid(),
        time.monotonic(),
        time.time(),
        outcome,
    )
    os.write(_file(), (json.dumps(asdict(note)) + "\n").encode())


def read_notes(path: Path) -> list[Note]:
    if not path.exists():
        return []
    return [Note(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


@cache
def _file() -> int:
    return os.open(os.environ[FILE], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
