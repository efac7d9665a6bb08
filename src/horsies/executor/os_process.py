"""A child as a process of the operating system: its signals, forks, event loop, title and memory.

A child dies with its parent and stops only when its parent says so. A process that a task forks from it is a copy, not a child: it
must not use the socket to the worker, go on with the event loop, or run tasks.
"""

import asyncio
import ctypes
import gc
import io
import os
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from types import FrameType
from typing import Any, NamedTuple, NoReturn, Self, TypeVar

if sys.platform != "linux":
    import psutil

T = TypeVar("T")

MB = 1 << 20
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / MB
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_MAX_TITLE_BYTES = 15
_WRITERS = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
_open_files: list["weakref.ref[Any]"] = []
_TERMINATION_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def die_with_parent(parent_pid: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when the parent ends, even inside C code (Linux). Elsewhere the closed socket ends it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent_pid:
            os._exit(1)  # the parent died before prctl took effect


def ignore_signals() -> None:
    """Ignore SIGINT and SIGTERM: Ctrl-C and service managers signal the whole group, but only the parent stops a child."""
    # Handlers, not SIG_IGN, which programs started by a task would inherit.
    for number in _TERMINATION_SIGNALS:
        signal.signal(number, _ignore)


def _ignore(_signal: int, _frame: FrameType | None) -> None:
    pass


# -- files


def freeze_objects() -> None:
    """Exclude all objects from garbage collection: it would write to each of them, and so copy the memory that forked processes share.

    Files that are open now are remembered for `flush_files`, which cannot find them any more.
    """
    _open_files.extend(weakref.ref(each) for each in _unfrozen_files())
    gc.freeze()


def flush_files() -> None:
    """Write what is in the buffers of files, also of those that user code has left open: the end of an interpreter would do that."""
    files: list[Any] = [sys.stdout, sys.stderr, *[reference() for reference in _open_files], *_unfrozen_files()]
    for file in files:
        with suppress(Exception):  # it is gone or closed, or its reader is gone
            file.flush()


def _unfrozen_files() -> list[Any]:
    return [each for each in gc.get_objects() if issubclass(type(each), _WRITERS)]


# -- copies that user code forks


class _Fork:
    is_copy = False
    """True in a process that user code has forked from a child."""


def disown_forked_copies(*in_copy: Callable[[], None]) -> None:
    """Call these in every process that user code forks from this one without starting a program in it, on any thread."""
    local = threading.local()

    def before_fork() -> None:
        # The copy would ignore a signal that arrives before it has its own handlers, and its sender would wait without end.
        local.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _TERMINATION_SIGNALS)

    def after_fork() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, local.mask)

    def after_fork_in_copy() -> None:
        _Fork.is_copy = True
        for call in in_copy:
            call()
        # Let any process terminate the copy: the pools of `multiprocessing` do this and wait for it.
        with suppress(ValueError):  # only the main thread may set handlers; in a copy that is the thread that forked
            for number, default in ((signal.SIGTERM, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
                if signal.getsignal(number) is _ignore:
                    signal.signal(number, default)
        after_fork()

    os.register_at_fork(before=before_fork, after_in_parent=after_fork, after_in_child=after_fork_in_copy)


def exit_if_copy(raised: BaseException | None) -> None:
    """End a copy where user code ends. Otherwise it would report the task, and run others, a second time."""
    if _Fork.is_copy:
        exit_copy(raised)


def exit_copy(raised: BaseException | None) -> NoReturn:
    """Exit as a program does whose main function returned or raised, but run no further code, neither ours nor the user's."""
    code: object = None if raised is None else 1
    try:
        if isinstance(raised, SystemExit):
            code = raised.code
            if code is not None and not isinstance(code, int):
                sys.stderr.write(f"{code}\n")
        elif raised is not None:
            traceback.print_exception(raised)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(0 if code is None else code & 0xFF if isinstance(code, int) else 1)


class ChildEventLoop:
    """The event loop of a child, created at first use: it has descriptors of its own.

    It lasts as long as the child, so that tasks can use what a start hook opens on it.
    """

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self.is_created = False

    def get(self) -> asyncio.AbstractEventLoop:
        self.is_created = True
        return self._runner.get_loop()

    def run(self, coroutine: Coroutine[Any, Any, T], *, context: Context | None = None) -> T:
        self.is_created = True
        return self._runner.run(coroutine, context=context)

    def stop_in_copy(self) -> None:
        """Keep a copy that a coroutine has forked from going on with other coroutines once it awaits."""
        if not self.is_created:
            return
        loop = self._runner.get_loop()
        # There is no public way to clear the callbacks; a loop of another implementation may run one more step.
        ready: Any = getattr(loop, "_ready", None)
        if ready is not None:
            ready.clear()
        # In debug mode a loop checks the thread; then the fork did not happen on the loop, and the copy does not run it.
        with suppress(RuntimeError):
            loop.call_soon(exit_copy, RuntimeError("a process that a task has forked cannot go on with its event loop"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._runner.close()


# -- what `ps` and `top` show


def _title_setter() -> Callable[[str], None]:
    if sys.platform != "linux":
        return lambda _text: None
    prctl = ctypes.PyDLL(None).prctl  # keeps the GIL: faster than releasing it and waiting for it again
    last = ""

    def set_title(text: str) -> None:
        nonlocal last
        if text == last:
            return
        last = text
        title = f"horsies: {text}".encode(errors="replace")[:_MAX_TITLE_BYTES]
        whole_characters = title.decode(errors="ignore").encode()
        prctl(_PR_SET_NAME, ctypes.c_char_p(whole_characters), 0, 0, 0)

    return set_title


set_title = _title_setter()
"""Show what this process does (Linux, 15 bytes). Call it on the main thread: a title belongs to a thread, and that of the main thread is the
title of the process.
"""


def rss_meter() -> Callable[[], float]:
    """Return a function that measures the resident memory of this process in MB, cheap enough to call after every task."""
    if sys.platform != "linux":
        process = psutil.Process()
        return lambda: process.memory_info().rss / MB
    # /proc/self is resolved when it is opened: call this after a fork, not before.
    fd = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    return lambda: int(os.pread(fd, 128, 0).split()[1]) * _PAGE_MB


class Usage(NamedTuple):
    """What a process uses. `started` tells it from a later process with the same pid."""

    memory_mb: float
    cpu_s: float
    started: float


def measure_usage(pid: int) -> Usage | None:
    """Measure a process; None if it is gone.

    On Linux without psutil, which takes a megabyte of memory in every worker.
    """
    if sys.platform != "linux":
        try:
            process = psutil.Process(pid)
            used = process.cpu_times()
            return Usage(process.memory_info().rss / MB, used.user + used.system, process.create_time())
        except psutil.Error:
            return None
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - once per process and heartbeat
            # The name of the process comes before the last parenthesis, and may contain anything.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    user, system, started, pages = (int(fields[place]) for place in (11, 12, 19, 21))
    return Usage(pages * _PAGE_MB, (user + system) * _TICK_S, started * _TICK_S)
