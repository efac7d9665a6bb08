"""The tasks of `basic`, and tasks that misbehave. Its database is $HORSIES_DATABASE_URL."""

import asyncio
import ctypes
import hashlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

from horsies import AppConfig, Horsies, RecoveryConfig, TaskError, TaskResult
from tests.apps import basic

# Tasks that it cannot run fail soon: no other release will run them.
app = Horsies(
    AppConfig(recovery=RecoveryConfig(maintenance_ms=100, unknown_task_patience_ms=0, changed_task_patience_ms=0))
)

for task in basic.app.tasks.values():
    app.task(task.name)(task.function)


class UnprintableError(Exception):
    """An exception whose `__str__` fails too."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


# -- exceptions


@app.task("exit_politely")
def exit_politely() -> TaskResult[None, TaskError]:
    sys.exit("I am leaving")


@app.task("exit_politely_async")
async def exit_politely_async() -> TaskResult[None, TaskError]:
    sys.exit("I am leaving")


@app.task("interrupt")
def interrupt() -> TaskResult[None, TaskError]:
    raise KeyboardInterrupt


@app.task("interrupt_async")
async def interrupt_async() -> TaskResult[None, TaskError]:
    raise KeyboardInterrupt


@app.task("cancel_itself")
async def cancel_itself() -> TaskResult[None, TaskError]:
    raise asyncio.CancelledError


@app.task("raise_deeply")
def raise_deeply() -> TaskResult[None, TaskError]:
    _deep()


def _deep() -> NoReturn:
    raise ZeroDivisionError("deep inside")


@app.task("raise_async")
async def raise_async() -> TaskResult[None, TaskError]:
    raise LookupError("from a coroutine")


@app.task("raise_unprintable")
def raise_unprintable() -> TaskResult[None, TaskError]:
    raise UnprintableError


@app.task("raise_odd_text")
def raise_odd_text() -> TaskResult[None, TaskError]:
    raise RuntimeError("nul \x00 and half a pair \ud800")


@app.task("recurse")
def recurse() -> TaskResult[None, TaskError]:
    return recurse()


# -- results


@app.task("return_odd_text")
def return_odd_text() -> TaskResult[str, TaskError]:
    return TaskResult(ok="nul \x00 here")


@app.task("return_half_a_pair")
def return_half_a_pair() -> TaskResult[str, TaskError]:
    return TaskResult(ok="half \ud800")


@app.task("return_odd_error")
def return_odd_error() -> TaskResult[None, TaskError]:
    data = {"nul": "\x00", "half": "\ud800", "object": object, "bytes": b"\xff"}
    return TaskResult(err=TaskError(error_code="ODD", message="nul \x00 half \ud800", data=data))


@app.task("return_unencodable")
def return_unencodable() -> TaskResult[Any, TaskError]:
    return TaskResult(ok={"an": object()})


@app.task("return_nothing")
def return_nothing() -> TaskResult[None, TaskError]:
    nothing: Any = None
    return nothing


@app.task("return_bare_async")
async def return_bare_async() -> TaskResult[int, TaskError]:
    wrong: Any = 7
    return wrong


@app.task("measure")
def measure(text: str) -> TaskResult[int, TaskError]:
    return TaskResult(ok=len(text))


@app.task("repeat")
def repeat(text: str, times: int) -> TaskResult[str, TaskError]:
    return TaskResult(ok=text * times)


# -- event loops


@app.task("run_own_loop")
def run_own_loop() -> TaskResult[str, TaskError]:
    async def work() -> str:
        await asyncio.sleep(0)
        return "from a loop of its own"

    return TaskResult(ok=asyncio.run(work()))


@app.task("loop_identity")
async def loop_identity() -> TaskResult[int, TaskError]:
    return TaskResult(ok=id(asyncio.get_running_loop()))


# -- the process


@app.task("say")
def say(words: str) -> TaskResult[None, TaskError]:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()
    os.write(1, f"{words} again\n".encode())
    return TaskResult(ok=None)


@app.task("read_input")
def read_input() -> TaskResult[str, TaskError]:
    return TaskResult(ok=sys.stdin.read())


@app.task("segfault")
def segfault() -> TaskResult[None, TaskError]:
    ctypes.string_at(0)
    return TaskResult(ok=None)


@app.task("close_descriptors")
def close_descriptors() -> TaskResult[None, TaskError]:
    os.closerange(3, 1024)
    return TaskResult(ok=None)


@app.task("scribble")
def scribble() -> TaskResult[None, TaskError]:
    """Write invalid data to the protocol's socket."""
    os.write(int(sys.argv[2]), b"nonsense, a lot of it")
    return TaskResult(ok=None)


@app.task("start_program")
def start_program() -> TaskResult[int, TaskError]:
    """Start a program that outlives this process and keeps every descriptor it can inherit."""
    program = subprocess.Popen(["/bin/sleep", "600"], close_fds=False, start_new_session=True)
    return TaskResult(ok=program.pid)


@app.task("fork_and_die")
def fork_and_die(note: str) -> TaskResult[None, TaskError]:
    """Die, and leave a forked copy that keeps the socket to the worker open."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pause()
    Path(note).write_text(str(pid))
    os.kill(os.getpid(), signal.SIGKILL)
    return TaskResult(ok=None)


@app.task("leave_a_thread")
def leave_a_thread() -> TaskResult[None, TaskError]:
    """Leave a thread behind for which Python waits before it exits."""
    threading.Thread(target=threading.Event().wait, name="stays").start()
    return TaskResult(ok=None)


@app.task("hold_the_gil")
def hold_the_gil(begun: str) -> TaskResult[int, TaskError]:
    """Run C code for hours that never lets another thread run."""
    Path(begun).touch()
    return TaskResult(ok=sum(range(10**12)))


@app.task("hash_for_hours")
def hash_for_hours(begun: str) -> TaskResult[str, TaskError]:
    """Run C code for hours that lets other threads run."""
    Path(begun).touch()
    return TaskResult(ok=hashlib.pbkdf2_hmac("sha256", b"word", b"salt", 2**31 - 1).hex())
