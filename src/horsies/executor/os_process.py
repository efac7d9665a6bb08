"""A child dies with its parent, and only by its parent's word. A copy of it that a task has forked is not a child."""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_ASKING = (signal.SIGINT, signal.SIGTERM)
"""What asks a process to end."""


def die_with(parent: int) -> None:
    """Be killed when that process ends, busy in C code or not (Linux). Elsewhere the end of the socket tells."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # it died in between


def ignore_signals() -> None:
    """Ctrl-C and service managers signal the whole group; only the parent decides."""
    # Handlers, not SIG_IGN, which programs started by a task would inherit.
    for number in _ASKING:
        signal.signal(number, _ignore)


def _ignore(_signal: int, _frame: FrameType | None) -> None:
    pass


class _Copies:
    """Whether this process is a copy of a child, forked by user code."""

    is_copy = False


def disown_forked_copies(*in_copy: Callable[[], None]) -> None:
    """Call these in every process that user code forks from this one, on whatever thread, without starting a program in it."""

    held = threading.local()

    def before_fork() -> None:
        # A signal that comes before the copy has its own handlers would be ignored, and whoever sent it would wait for ever.
        held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ASKING)

    def after_fork() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, held.mask)

    def after_fork_in_copy() -> None:
        _Copies.is_copy = True
        for call in in_copy:
            call()
        with suppress(ValueError):  # only the main thread may, and in the copy this is it
            _mind_signals()
        after_fork()

    os.register_at_fork(before=before_fork, after_in_parent=after_fork, after_in_child=after_fork_in_copy)


def exit_if_copy(raised: BaseException | None) -> None:
    """To be called when user code is left. In a copy nothing that follows is to happen: it would report, and run tasks, a second time."""
    if _Copies.is_copy:
        exit_copy(raised)


def exit_copy(raised: BaseException | None) -> NoReturn:
    """As a process ends whose main function has returned or raised, but nothing else of ours or of the user's is run."""
    code: object = None if raised is None else 1
    try:
        if isinstance(raised, SystemExit):
            code = raised.code
            if code is not None and not isinstance(code, int):
                sys.stderr.write(f"{code}\n")
        elif raised is not None:
            import traceback  # noqa: PLC0415 - hardly ever

            traceback.print_exception(raised)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(0 if code is None else code & 0xFF if isinstance(code, int) else 1)


def _mind_signals() -> None:
    """Of a copy everybody may ask that it ends, above all `multiprocessing`, whose pools wait for it."""
    if signal.getsignal(signal.SIGTERM) is _ignore:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is _ignore:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# --------
# What a process is doing, as `ps` and `top` show it (Linux only, and 15 bytes at most).

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


# --------
# How much memory this process has resident.

MB = 1 << 20


def rss_meter() -> Callable[[], float]:
    """A function that tells the resident memory of this process in MB, cheap enough to ask after every task."""
    if sys.platform == "linux":
        return _statm_meter()
    import psutil  # noqa: PLC0415 - slow to import, and Linux has no need of it

    process = psutil.Process()
    return lambda: process.memory_info().rss / MB


def _statm_meter() -> Callable[[], float]:
    fd = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)  # of whoever opens it: to be made after a fork
    page_mb = os.sysconf("SC_PAGE_SIZE") / MB
    return lambda: int(os.pread(fd, 128, 0).split()[1]) * page_mb
