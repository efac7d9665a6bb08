"""The progress output of a benchmark, and its interruption."""

import signal
import sys
import time
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130


def show_progress(what: str) -> None:
    """A line with the time, beside the table: on the error output."""
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def end_like_ctrl_c() -> None:
    """SIGTERM, too, leaves nothing behind."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
