"""What a process is doing, as `ps` and `top` show it (Linux only, and 15 bytes at most)."""

import ctypes
import sys
from collections.abc import Callable

_PR_SET_NAME = 15
_MAX_BYTES = 15


def _shown(text: str) -> bytes:
    cut = f"horsies: {text}".encode(errors="replace")[:_MAX_BYTES]
    return cut.decode(errors="ignore").encode()  # no half characters


def _titler() -> Callable[[str], None]:
    if sys.platform != "linux":
        return lambda _text: None
    prctl = ctypes.PyDLL(None).prctl  # keeps the GIL: quicker than giving it away and waiting for it again

    def set_title(text: str) -> None:
        prctl(_PR_SET_NAME, ctypes.c_char_p(_shown(text)), 0, 0, 0)

    return set_title


set_title = _titler()
"""To be called on the main thread: a title belongs to a thread, and the main thread's is the process's."""
