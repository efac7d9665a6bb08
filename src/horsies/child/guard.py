"""A child dies with its parent, and only by its parent's word."""

import ctypes
import os
import signal
import sys
from types import FrameType

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Be killed when that process ends, busy in C code or not (Linux). Elsewhere the end of the socket tells."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # it died in between


def ignore_signals() -> None:
    """Ctrl-C and service managers signal the whole group; only the parent decides."""
    # Handlers, not SIG_IGN, which programs started by a task would inherit.
    signal.signal(signal.SIGINT, _ignore)
    signal.signal(signal.SIGTERM, _ignore)


def _ignore(_signal: int, _frame: FrameType | None) -> None:
    pass
