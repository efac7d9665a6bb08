"""What a child is like as a process: to be compared between start methods."""

import sys

LOADED_BEFORE = frozenset(sys.modules)  # the first line of the app: what its child had loaded without it

import ctypes  # noqa: E402 - see above
import gc  # noqa: E402
import logging  # noqa: E402
import os  # noqa: E402
import random  # noqa: E402
import signal  # noqa: E402
import threading  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from pydantic import BaseModel  # noqa: E402

from horsies import AppConfig, Horsies, RetryPolicy, TaskError, TaskResult  # noqa: E402

app = Horsies(AppConfig.for_database_url("postgresql://nobody@localhost:1/nowhere"))
imported_by = os.getpid()
runs = 0


class Item(BaseModel):
    name: str
    price: float


@app.task("about_interpreter")
def about_interpreter() -> TaskResult[dict[str, Any], TaskError]:
    main = sys.modules["__main__"]
    return TaskResult(
        ok={
            "cwd": str(Path.cwd()),
            "environment": dict(os.environ),
            "path": sys.path,
            "argv": sys.argv[:-1],  # the last one is the number of a descriptor
            "main": [main.__file__, main.__name__, main.__package__],
            "flags": list(map(int, sys.flags)),
            "descriptors": sorted(_kind(fd) for fd in os.listdir("/proc/self/fd")),  # noqa: PTH208 - numbers
            "is group leader": os.getpgrp() == os.getpid(),
            "session": os.getsid(0),
            "signals": {number.name: repr(signal.getsignal(number)).partition(" at ")[0] for number in signal.Signals},
            "threads": sorted(thread.name for thread in threading.enumerate()),
            "collector": [gc.isenabled(), *gc.get_threshold()],
            "logging": [
                logging.getLogger().level,
                [type(handler).__name__ for handler in logging.getLogger().handlers],
            ],
        }
    )


def _kind(fd: str) -> str:
    try:
        return str(Path(f"/proc/self/fd/{fd}").readlink()).partition(":")[0].replace(f"/{os.getpid()}/", "/self/")
    except OSError:
        return "the listing itself"


@app.task("about_import")
def about_import() -> TaskResult[dict[str, Any], TaskError]:
    """Change what a module and the process keep, and return what was there before."""
    global runs  # noqa: PLW0603 - the state that a test looks for
    runs += 1
    before = {
        "pid": os.getpid(),
        "imported by": imported_by,
        "runs": runs,
        "variable": os.environ.get("LEFT_BEHIND"),
        "path": "/left/behind" in sys.path,
        "random": random.random(),  # noqa: S311 - to be compared
    }
    os.environ["LEFT_BEHIND"] = "yes"
    sys.path.append("/left/behind")
    return TaskResult(ok=before)


@app.task("about_imports")
def about_imports() -> TaskResult[list[str], TaskError]:
    """Return what this child has loaded besides the app."""
    return TaskResult(ok=sorted(name for name in set(sys.modules) - LOADED_BEFORE if not name.startswith("tests")))


@app.task("about_codecs")
def about_codecs() -> TaskResult[list[str], TaskError]:
    """Return the tasks for which this process has built a codec."""
    return TaskResult(ok=sorted(name for name, task in app.tasks.items() if "adapter" in vars(task.arguments)))


@app.task("price", retry_policy=RetryPolicy.fixed([1], auto_retry_for=["BUSY"]))
def price(item: Item) -> TaskResult[Item, TaskError]:
    return TaskResult(ok=item)


@app.task("price_async")
async def price_async(item: Item) -> TaskResult[Item, TaskError]:
    return TaskResult(ok=item)


@app.task("fail")
def fail() -> TaskResult[None, TaskError]:
    raise ValueError("as asked")


@app.task("hold_gil")
def hold_gil(seconds: int) -> TaskResult[None, TaskError]:
    """Wait in C, with the lock of the interpreter: no thread of this process can notice anything."""
    ctypes.PyDLL(None).sleep(seconds)
    return TaskResult(ok=None)
