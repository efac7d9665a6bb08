"""The server's log file: kept small at each start, quoted when a start fails."""

import os
from io import BufferedWriter
from pathlib import Path

_KEPT_BYTES = 4 * 1024 * 1024
_QUOTED_LINES = 15


def open_log(path: Path) -> BufferedWriter:
    """Open the log for appending; a long one is put aside first."""
    if path.exists() and path.stat().st_size > _KEPT_BYTES:
        path.replace(path.with_suffix(".log.old"))
    path.touch(mode=0o600)  # failed statements are quoted in it
    log = path.open("ab")
    log.seek(0, os.SEEK_END)
    return log


def last_lines(path: Path, start: int) -> str:
    """The end of what was written after `start`, ready to be put behind a message."""
    try:
        with path.open("rb") as log:
            log.seek(start)
            lines = log.read().decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return ""
    if not lines:
        return ""
    quoted = "".join(f"\n  {line}" for line in lines[-_QUOTED_LINES:])
    return f"\nlast lines of {path}:{quoted}"
