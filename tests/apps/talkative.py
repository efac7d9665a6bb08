"""Tasks that log, in every way that code inside a task can. Its database is $HORSIES_DATABASE_URL."""

import asyncio
import logging
import os
import signal
import time

from horsies import Horsies, RetryPolicy, TaskError, TaskResult, from_node

app = Horsies()
log = logging.getLogger("shop")


@app.task("talk")
def talk(words: str) -> TaskResult[None, TaskError]:
    log.info("talk: %s", words, extra={"basket": {"pears": 3}, "who": object()})
    return TaskResult(ok=None)


@app.task("chat")
async def chat(words: str) -> TaskResult[None, TaskError]:
    """Log from the event loop, from tasks on it and from a thread, concurrently with other runs of this task."""

    async def say(number: int) -> None:
        await asyncio.sleep(0.01)
        log.info("chat: %s %d", words, number)

    await asyncio.gather(say(1), say(2), asyncio.to_thread(log.info, "chat: %s 3", words))
    return TaskResult(ok=None)


@app.task("fail", retry_policy=RetryPolicy.fixed([0.01], auto_retry_for=["FAULTY"]))
def fail(secret: str, way: str) -> TaskResult[None, TaskError]:
    if way == "raise":
        raise RuntimeError("nothing about it")
    if way == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    return TaskResult(err=TaskError(error_code="FAULTY", message=f"{secret} was refused"))


@app.task("oversleep", timeout_ms=50)
def oversleep(secret: str) -> TaskResult[None, TaskError]:
    while secret:
        time.sleep(0.01)
    return TaskResult(ok=None)


@app.task("picky")
def picky(number: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=number)


first = talk.node(node_id="first")("in a workflow")
second = picky.node(node_id="second", waits_for=[first])(7)
flow = app.workflow("flow", [first, second, picky.node(node_id="third")(from_node(second))], output=second)
