"""Define the tasks of the demo: one for each kind of outcome."""

import asyncio
import os
import signal
import time
from dataclasses import dataclass

from horsies import Horsies, TaskError, TaskResult

app = Horsies()  # without configuration: the embedded PostgreSQL of this project


@dataclass(frozen=True)
class Thumbnail:
    image_id: int
    width: int


@app.task("resize")
def resize(image_id: int, *, width: int = 800) -> TaskResult[Thumbnail, TaskError]:
    """Succeed."""
    time.sleep(0.01)
    return TaskResult(ok=Thumbnail(image_id, width))


@app.task("charge")
def charge(cents: int) -> TaskResult[str, TaskError]:
    """Return a domain error as a value."""
    return TaskResult(
        err=TaskError(error_code="CARD_DECLINED", message=f"the bank declined {cents / 100:.2f}", data={"cents": cents})
    )


@app.task("divide")
def divide(a: int, b: int) -> TaskResult[float, TaskError]:
    """Raise an exception if `b` is zero."""
    return TaskResult(ok=a / b)


@app.task("fetch")
async def fetch(page: str) -> TaskResult[str, TaskError]:
    """Run on the event loop of the child."""
    await asyncio.sleep(0.05)
    return TaskResult(ok=f"<h1>{page}</h1>")


@app.task("crash")
def crash() -> TaskResult[None, TaskError]:
    """Kill the child process, as the kernel does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)
    return TaskResult(ok=None)
