"""An app with a task for every kind of behaviour that tests need. Its database is $HORSIES_DATABASE_URL."""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

from horsies import Horsies, TaskError, TaskResult

POLL_S = 0.005

app = Horsies()


@app.task("add")
def add(left: int, right: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=left + right)


@app.task("echo")
def echo(value: Any) -> TaskResult[Any, TaskError]:
    return TaskResult(ok=value)


@app.task("echo_async")
async def echo_async(value: Any) -> TaskResult[Any, TaskError]:
    return TaskResult(ok=value)


@app.task("nap")
async def nap(seconds: float) -> TaskResult[float, TaskError]:
    await asyncio.sleep(seconds)
    return TaskResult(ok=seconds)


@app.task("raise_error")
def raise_error(message: str) -> TaskResult[None, TaskError]:
    raise RuntimeError(message)


@app.task("decline")
def decline(code: str) -> TaskResult[None, TaskError]:
    """Return a domain error; it is not raised."""
    return TaskResult(err=TaskError(error_code=code, message="declined", data={"by": "bank"}))


@app.task("whoami")
def whoami() -> TaskResult[int, TaskError]:
    return TaskResult(ok=os.getpid())


@app.task("kill_self")
def kill_self() -> TaskResult[None, TaskError]:
    os.kill(os.getpid(), signal.SIGKILL)
    return TaskResult(ok=None)


@app.task("exit_now")
def exit_now(code: int) -> TaskResult[None, TaskError]:
    os._exit(code)


@app.task("write_line")
def write_line(path: str, line: str) -> TaskResult[None, TaskError]:
    """Append a line with one write, so that lines of several processes do not mix."""
    _append(path, line)
    return TaskResult(ok=None)


@app.task("gate")
def gate(begun: str, until: str) -> TaskResult[int, TaskError]:
    """Write the process id to the file `begun`, then wait until the file `until` exists."""
    _append(begun, str(os.getpid()))
    while not Path(until).exists():
        time.sleep(POLL_S)
    return TaskResult(ok=os.getpid())


@app.task("gate_async")
async def gate_async(begun: str, until: str) -> TaskResult[int, TaskError]:
    _append(begun, str(os.getpid()))
    while not Path(until).exists():  # noqa: ASYNC110, ASYNC240 - another process makes the file
        await asyncio.sleep(POLL_S)
    return TaskResult(ok=os.getpid())


@app.task("send_add")
def send_add(left: int, right: int) -> TaskResult[str, TaskError]:
    """Send another task from inside a task."""
    return TaskResult(ok=add.send(left, right).task_id)


@app.task("wrong_type")
def wrong_type() -> TaskResult[int, TaskError]:
    wrong: Any = "not a number"
    return TaskResult(ok=wrong)


@app.task("not_a_result")
def not_a_result() -> TaskResult[int, TaskError]:
    wrong: Any = 7
    return wrong


def _append(path: str, line: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(fd, f"{line}\n".encode())
    finally:
        os.close(fd)
