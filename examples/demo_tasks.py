"""The tasks of the demo: one of each kind of ending."""

import asyncio
import os
import signal
import time
from dataclasses import dataclass

from horsies import Horsies, TaskError, TaskResult

app = Horsies()  # nothing configured: the embedded PostgreSQL of this project


@dataclass(frozen=True)
class Thumbnail:
    image_id: int
    width: int


@app.task("resize")
def resize(image_id: int, *, width: int = 800) -> TaskResult[Thumbnail, TaskError]:
    """Ends well."""
    time.sleep(0.01)
    return TaskResult(ok=Thumbnail(image_id, width))


@app.task("charge")
def charge(cents: int) -> TaskResult[str, TaskError]:
    """Ends with an error of the domain: a value like any other."""
    return TaskResult(
        err=TaskError(error_code="CARD_DECLINED", message=f"the bank declined {cents / 100:.2f}", data={"cents": cents})
    )


@app.task("divide")
def divide(a: int, b: int) -> TaskResult[float, TaskError]:
    """Raises, if it is told to divide by zero."""
    return TaskResult(ok=a / b)


@app.task("fetch")
async def fetch(page: str) -> TaskResult[str, TaskError]:
    """Runs on an event loop."""
    await asyncio.sleep(0.05)
    return TaskResult(ok=f"<h1>{page}</h1>")


@app.task("crash")
def crash() -> TaskResult[None, TaskError]:
    """Takes its whole process down, as the kernel does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)
    return TaskResult(ok=None)
