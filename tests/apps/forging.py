"""The tasks of `paces`, and tasks that misuse their own process: they write to its socket, fork it, or freeze it."""

import asyncio
import ctypes
import multiprocessing
import os
import signal
import socket
import struct
import sys
from pathlib import Path

from horsies import Horsies, TaskError, TaskResult
from tests.apps import paces

app = Horsies()

for task in paces.app.tasks.values():
    app.task(task.name)(task.function)


def worker_socket() -> int | None:
    """Return the descriptor of the socket to the worker: the one that another process has created."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - numbers
        try:
            found = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        with found:
            if found.family is socket.AF_UNIX and found.type is socket.SOCK_STREAM:
                (maker, _user, _group) = struct.unpack(
                    "3i", found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                )
                if maker != os.getpid():
                    return int(name)
    return None


# -- the socket


@app.task("forge")
def forge(frames: str, until: str) -> TaskResult[str, TaskError]:
    """Write these bytes to the worker, then wait for a file."""
    fd = worker_socket()
    assert fd is not None
    os.write(fd, bytes.fromhex(frames))
    return paces.gate(until)


@app.task("sabotage")
def sabotage(how: str) -> TaskResult[str, TaskError]:
    fd = worker_socket()
    assert fd is not None
    match how:
        case "set non-blocking":
            os.set_blocking(fd, False)
        case "shut down":
            with socket.socket(fileno=os.dup(fd)) as found:
                found.shutdown(socket.SHUT_RDWR)
        case "shut down reading":
            with socket.socket(fileno=os.dup(fd)) as found:
                found.shutdown(socket.SHUT_RD)
        case "shut down writing":
            with socket.socket(fileno=os.dup(fd)) as found:
                found.shutdown(socket.SHUT_WR)
        case "close":
            os.close(fd)
        case "put a file in its place":
            os.dup2(os.open(os.devnull, os.O_RDWR), fd)
        case _:
            reading, _writing = os.pipe()
            os.dup2(reading, fd)
    return TaskResult(ok="done")


# -- copies


def _leave_copy(how: str, fd: int | None) -> TaskResult[int, TaskError]:
    match how:
        case "raise":
            raise RuntimeError("in the copy")
        case "exit":
            sys.exit(3)
        case "look for the socket":
            assert fd is not None
            sys.exit(4 if Path(f"/proc/self/fd/{fd}").exists() else 0)
        case _:
            return TaskResult(ok=0)


def _end_of(pid: int) -> int:
    _pid, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


@app.task("fork_a_copy")
def fork_a_copy(how: str) -> TaskResult[int, TaskError]:
    """Fork. Both processes continue; the original returns how the copy ended."""
    fd = worker_socket()
    if pid := os.fork():
        return TaskResult(ok=_end_of(pid))
    return _leave_copy(how, fd)


@app.task("fork_a_copy_async")
async def fork_a_copy_async(how: str) -> TaskResult[int, TaskError]:
    fd = worker_socket()
    if pid := os.fork():
        return TaskResult(ok=_end_of(pid))
    if how == "await":
        await asyncio.sleep(0)
    return _leave_copy(how, fd)


@app.task("use_a_pool")
def use_a_pool() -> TaskResult[list[int], TaskError]:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return TaskResult(ok=pool.map(abs, [-1, 2, -3]))


@app.task("end_a_process")
def end_a_process() -> TaskResult[int | None, TaskError]:
    process = multiprocessing.get_context("fork").Process(target=signal.pause)
    process.start()
    process.terminate()
    process.join()
    return TaskResult(ok=process.exitcode)


@app.task("note_async")
async def note_async(path: str, until: str) -> TaskResult[None, TaskError]:
    """Log every pass through the loop, with the process id."""
    while True:
        with Path(path).open("a") as file:  # noqa: ASYNC230 - tiny
            file.write(f"{os.getpid()}\n")
        if Path(until).exists():  # noqa: ASYNC240 - tiny
            return TaskResult(ok=None)
        await asyncio.sleep(0)


# -- freezing


@app.task("sleep_in_c")
def sleep_in_c(seconds: int, *, holding: bool) -> TaskResult[None, TaskError]:
    """Make a long call into C, with or without releasing the GIL."""
    library = ctypes.PyDLL(None) if holding else ctypes.CDLL(None)
    library.sleep(seconds)
    return TaskResult(ok=None)


@app.task("work_in_c")
def work_in_c() -> TaskResult[int, TaskError]:
    """Run C code for hours that never lets another thread run."""
    return TaskResult(ok=sum(range(10**12)))
