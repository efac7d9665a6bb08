"""Tasks for the tests of children and pools. The environment sets what its hooks do."""

import asyncio
import atexit
import contextvars
import gc
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from horsies import Horsies, TaskError, TaskResult
from horsies.model.retry_policy import RetryPolicy
from horsies.tasks.current_task import current_task

POLL_S = 0.005

app = Horsies()
started: dict[str, Any] = {}
hoard: list[bytes] = []
at_import = [random.random()]  # noqa: S311 - to be compared

match os.environ.get("PACES_IMPORT"):
    case "hang":
        time.sleep(600)
    case "slow":
        time.sleep(0.5)
    case _:
        pass
if ballast := os.environ.get("PACES_BALLAST_MB"):
    hoard.append(os.urandom(1 << 20) * int(ballast))
if garbage := os.environ.get("PACES_GARBAGE_MB"):
    cycle: list[Any] = [os.urandom(1 << 20) * int(garbage)]
    cycle.append(cycle)
    gc.collect()  # it survives, and is old: from now on only a full collection looks at it
    del cycle


@app.on_child_start
def warm_up() -> None:
    match os.environ.get("PACES_HOOK"):
        case "fail":
            raise RuntimeError("no model here")
        case "hang":
            time.sleep(600)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "file":
            if Path(os.environ["PACES_FILE"]).exists():
                raise RuntimeError("the file is there")
        case _:
            pass
    started["pid"] = os.getpid()


@app.on_child_start
async def open_pool() -> None:
    started["loop"] = id(asyncio.get_running_loop())


@app.on_child_stop
async def close_pool() -> None:
    started["closed on the same loop"] = id(asyncio.get_running_loop()) == started["loop"]


@app.on_child_stop
def fail_to_stop() -> None:
    if os.environ.get("PACES_STOP_FILE"):
        raise RuntimeError("stop hooks may fail")


@app.on_child_stop
def say_goodbye() -> None:
    if path := os.environ.get("PACES_STOP_FILE"):
        with Path(path).open("a") as file:
            file.write(f"{os.getpid()}\n")


@app.task("whoami")
def whoami() -> TaskResult[int, TaskError]:
    return TaskResult(ok=os.getpid())


@app.task("hooks")
async def hooks() -> TaskResult[list[bool], TaskError]:
    here = id(asyncio.get_running_loop())
    return TaskResult(ok=[started["pid"] == os.getpid(), started["loop"] == here])


@app.task("about_process")
def about_process() -> TaskResult[dict[str, Any], TaskError]:
    fds = [_target(fd) for fd in os.listdir("/proc/self/fd")]  # noqa: PTH208 - numbers
    return TaskResult(
        ok={
            "pid": os.getpid(),
            "parent": os.getppid(),
            "title": Path("/proc/self/comm").read_text().strip(),
            "group": os.getpgrp(),
            "sockets": sum(target.startswith("socket:") for target in fds),
            "pidfds": sum("pidfd" in target for target in fds),
            "at_import": at_import[0],
            "random": random.random(),  # noqa: S311 - to be compared
        }
    )


def _target(fd: str) -> str:
    try:
        return str(Path(f"/proc/self/fd/{fd}").readlink())
    except OSError:
        return ""


@app.task("gate")
def gate(until: str) -> TaskResult[str, TaskError]:
    while not Path(until).exists():
        time.sleep(POLL_S)
    return TaskResult(ok="through")


@app.task("gate_async")
async def gate_async(until: str) -> TaskResult[str, TaskError]:
    while not Path(until).exists():  # noqa: ASYNC110, ASYNC240 - another process makes the file
        await asyncio.sleep(POLL_S)
    return TaskResult(ok="through")


_released = asyncio.Event()


@app.task("wait_for_release")
async def wait_for_release() -> TaskResult[None, TaskError]:
    await _released.wait()
    return TaskResult(ok=None)


@app.task("release")
async def release() -> TaskResult[None, TaskError]:
    """End all tasks of this child that wait for it."""
    _released.set()
    return TaskResult(ok=None)


@app.task("block_loop_then_wait")
async def block_loop_then_wait(until: str, then_until: str) -> TaskResult[None, TaskError]:
    """Block the event loop until the first file exists, then wait for the second as a coroutine should."""
    while not Path(until).exists():  # noqa: ASYNC240 - another process makes the file
        time.sleep(POLL_S)  # noqa: ASYNC251 - as asked
    while not Path(then_until).exists():  # noqa: ASYNC110, ASYNC240 - the same
        await asyncio.sleep(POLL_S)
    return TaskResult(ok=None)


@app.task("nap")
async def nap(seconds: float) -> TaskResult[None, TaskError]:
    await asyncio.sleep(seconds)
    return TaskResult(ok=None)


@app.task("sleep")
def sleep(seconds: float) -> TaskResult[None, TaskError]:
    time.sleep(seconds)
    return TaskResult(ok=None)


@app.task("dwell")
def dwell() -> TaskResult[None, TaskError]:
    _say_inside()
    time.sleep(600)
    return TaskResult(ok=None)


@app.task("dwell_async")
async def dwell_async() -> TaskResult[None, TaskError]:
    _say_inside()
    await asyncio.sleep(600)
    return TaskResult(ok=None)


class _Slow:
    """Is asked to stop while it is printed."""

    def __str__(self) -> str:
        _say_inside()
        while not current_task().cancelled:
            time.sleep(POLL_S)
        for _ in range(10):  # signals interrupt each of them
            time.sleep(0.02)
        return "slow"


@app.task("log_slowly", keep_logs=True)
def log_slowly() -> TaskResult[None, TaskError]:
    logging.getLogger("shop").warning("%s", _Slow())
    for _ in range(60_000):  # on a thread, a blocking call is not interrupted
        time.sleep(0.01)
    return TaskResult(ok=None)


def _say_inside() -> None:
    """Report that the task's own code runs: a soft stop from now on interrupts that code."""
    current_task().progress(None, "inside")


@app.task("run_program")
def run_program() -> TaskResult[None, TaskError]:
    _say_inside()
    subprocess.run([sys.executable, "-c", "import time; time.sleep(600)"], check=True)
    return TaskResult(ok=None)


@app.task("clean_up")
def clean_up(path: str) -> TaskResult[None, TaskError]:
    try:
        _say_inside()
        time.sleep(600)
    except Exception as error:
        Path(path).write_text(f"{type(error).__name__} {current_task().cancelled}")
        raise
    return TaskResult(ok=None)


@app.task("clean_up_async")
async def clean_up_async(path: str) -> TaskResult[None, TaskError]:
    try:
        _say_inside()
        await asyncio.sleep(600)
    except asyncio.CancelledError as error:
        Path(path).write_text(f"{type(error).__name__} {current_task().cancelled}")  # noqa: ASYNC240 - tiny
        raise
    return TaskResult(ok=None)


@app.task("fail_at_clean_up")
def fail_at_clean_up() -> TaskResult[None, TaskError]:
    try:
        _say_inside()
        time.sleep(600)
    finally:
        raise RuntimeError("the broom broke")


@app.task("shrug")
def shrug() -> TaskResult[str, TaskError]:
    """Swallow the soft stop and return a result."""
    try:
        _say_inside()
        time.sleep(600)
    except Exception:  # noqa: BLE001 - whatever it is
        return TaskResult(ok="shrugged")
    return TaskResult(ok="slept")


@app.task("shrug_and_wait")
def shrug_and_wait(until: str) -> TaskResult[str, TaskError]:
    try:
        _say_inside()
        time.sleep(600)
    except Exception:  # noqa: BLE001 - whatever it is
        current_task().progress(None, "shrugged")
    return gate(until)


@app.task("shrug_async")
async def shrug_async() -> TaskResult[str, TaskError]:
    try:
        _say_inside()
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        return TaskResult(ok="shrugged")
    return TaskResult(ok="slept")


@app.task("spin")
def spin() -> TaskResult[None, TaskError]:
    """Loop in Python: only an asynchronous exception ends it."""
    _say_inside()
    while True:
        pass


@app.task("quick")
def quick() -> TaskResult[int, TaskError]:
    return TaskResult(ok=1)


@app.task("quick_raise")
def quick_raise() -> TaskResult[int, TaskError]:
    raise KeyError("quick")


@app.task("quick_report")
def quick_report() -> TaskResult[int, TaskError]:
    for number in range(10):
        current_task().progress(number / 10)
    return TaskResult(ok=1)


@app.task("run_loop")
def run_loop() -> TaskResult[str, TaskError]:
    """Run an event loop: sync tasks may have their own, on any thread."""
    asyncio.run(asyncio.sleep(0))
    return TaskResult(ok=threading.current_thread().name)


@app.task("raise_for_retry", retry_policy=RetryPolicy.fixed([1], auto_retry_for=[ConnectionError, "TASK_TIMEOUT"]))
def raise_for_retry(kind: str) -> TaskResult[None, TaskError]:
    raise {"refused": ConnectionRefusedError, "value": ValueError}[kind](kind)


@app.task("retry_timeouts", retry_policy=RetryPolicy.fixed([1], auto_retry_for=[TimeoutError]))
def retry_timeouts() -> TaskResult[None, TaskError]:
    _say_inside()
    time.sleep(600)
    return TaskResult(ok=None)


@app.task("ask_for_later")
def ask_for_later() -> TaskResult[None, TaskError]:
    return TaskResult(err=TaskError(error_code="BUSY", retry_after_seconds=1.5))


@app.task("leave_a_thread")
def leave_a_thread() -> TaskResult[None, TaskError]:
    threading.Thread(target=time.sleep, args=[600], name="straggler").start()
    return TaskResult(ok=None)


left_open: list[Any] = []


@app.task("leave_a_file")
def leave_a_file(path: str) -> TaskResult[None, TaskError]:
    left_open.append(Path(path).open("w"))  # noqa: SIM115 - as asked
    left_open[-1].write("written")
    return TaskResult(ok=None)


@app.task("register_exit_handler")
def register_exit_handler(path: str) -> TaskResult[None, TaskError]:
    atexit.register(Path(path).write_text, "ran")
    return TaskResult(ok=None)


@app.task("exit_now")
def exit_now() -> TaskResult[None, TaskError]:
    os._exit(3)


@app.task("die")
def die() -> TaskResult[None, TaskError]:
    os.kill(os.getpid(), signal.SIGKILL)
    return TaskResult(ok=None)


@app.task("grow")
def grow(mb: int) -> TaskResult[int, TaskError]:
    hoard.append(os.urandom(1 << 20) * mb)
    return TaskResult(ok=os.getpid())


@app.task("myself")
def myself() -> TaskResult[list[Any], TaskError]:
    return TaskResult(ok=_about_me())


@app.task("myself_async")
async def myself_async() -> TaskResult[list[Any], TaskError]:
    reports = await asyncio.gather(asyncio.create_task(_about_me_async()), asyncio.to_thread(_about_me))
    return TaskResult(ok=list(reports))


@app.task("myself_thread")
def myself_thread() -> TaskResult[list[Any], TaskError]:
    seen: list[Any] = []
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=[lambda: seen.extend(_about_me())])
    thread.start()
    thread.join()
    return TaskResult(ok=seen)


async def _about_me_async() -> list[Any]:
    await asyncio.sleep(0)
    return _about_me()


def _about_me() -> list[Any]:
    me = current_task()
    left = me.seconds_left
    zone = me.deadline.tzinfo if me.deadline else None
    return [me.task_id, me.task_name, me.queue_name, me.attempt, left and round(left), str(zone), me.cancelled]


@app.task("report")
def report(count: int) -> TaskResult[None, TaskError]:
    for number in range(count + 1):
        current_task().progress(number / count, f"step {number}")
    return TaskResult(ok=None)


@app.task("report_and_wait")
def report_and_wait(until: str) -> TaskResult[None, TaskError]:
    current_task().progress(0.1)
    current_task().progress(0.2, "and now it takes long")
    return gate(until)  # pyright: ignore[reportReturnType] - its value does not matter


@app.task("report_nonsense")
def report_nonsense(fraction: Any, message: Any) -> TaskResult[str, TaskError]:
    try:
        current_task().progress(fraction, message)
    except (TypeError, ValueError) as error:
        return TaskResult(ok=str(error))
    return TaskResult(ok="taken")


@app.task("leave_a_mark")
def leave_a_mark(value: int) -> TaskResult[int, TaskError]:
    """Set a context variable. Returns its value before, which no earlier task may have set."""
    before = mark.get()
    mark.set(value)
    return TaskResult(ok=before)


mark: contextvars.ContextVar[int] = contextvars.ContextVar("mark", default=0)
