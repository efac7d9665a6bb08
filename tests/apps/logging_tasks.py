"""Tasks that log, for the lines that are stored with their attempts. Its database is $HORSIES_DATABASE_URL."""

import asyncio
import contextvars
import logging
import os
import signal
import threading
import time
from pathlib import Path

from horsies import Horsies, RetryPolicy, TaskError, TaskResult
from horsies.tasks.current_task import current_task

app = Horsies()
log = logging.getLogger("shop")
again = RetryPolicy.fixed([0.01] * 5, auto_retry_for=["WORKER_CRASHED", "UNHANDLED_ERROR"])


class Hostile:
    """Cannot be printed."""

    def __str__(self) -> str:
        raise RuntimeError("not for you")

    __repr__ = __str__


class Text(str):
    """A string whose methods must not be called."""

    __slots__ = ()

    def encode(self, *_options: object) -> bytes:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise RuntimeError("not for you")


@app.task("say", keep_logs=True)
def say(words: list[str]) -> TaskResult[int, TaskError]:
    for word in words:
        log.info("%s", word)
    return TaskResult(ok=len(words))


@app.task("say_async", keep_logs=True)
async def say_async(words: list[str], beside: str) -> TaskResult[int, TaskError]:
    """Log, from several places, while others do the same."""
    for word in words:
        log.info("%s", word)
        await asyncio.sleep(0)
    await asyncio.gather(asyncio.to_thread(log.info, "%s in a thread", beside), _log_later(beside))
    return TaskResult(ok=len(words))


async def _log_later(text: str) -> None:
    await asyncio.sleep(0.01)
    log.info("%s in an asyncio task", text)


@app.task("say_beside", keep_logs=True)
def say_beside(word: str) -> TaskResult[int, TaskError]:
    """Log from threads: one with a copy of the context, one without."""
    inside = contextvars.copy_context()
    threads = [
        threading.Thread(target=inside.run, args=(log.info, "%s with a context", word)),
        threading.Thread(target=log.info, args=("%s without a context", word)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.info("%s", word)
    return TaskResult(ok=1)


@app.task("leave_thread", keep_logs=True)
def leave_thread(gate: str) -> TaskResult[int, TaskError]:
    """Leave a thread behind that logs later."""

    def run() -> None:
        while not Path(gate, "open").exists():
            time.sleep(0.01)
        log.info("too late")
        Path(gate, "logged").touch()

    threading.Thread(target=contextvars.copy_context().run, args=[run]).start()
    log.info("in time")
    return TaskResult(ok=1)


@app.task("quiet")
def quiet(word: str) -> TaskResult[int, TaskError]:
    log.info("%s", word)
    return TaskResult(ok=1)


@app.task("secret", keep_logs=True, sensitive=True)
def secret(card: str) -> TaskResult[int, TaskError]:
    log.info("the card is %s", card)
    return TaskResult(ok=1)


@app.task("fail_twice", keep_logs=True, retry_policy=again)
def fail_twice() -> TaskResult[int, TaskError]:
    attempt = current_task().attempt
    log.info("attempt %d", attempt)
    if attempt <= 2:
        raise ValueError(f"no {attempt}")
    return TaskResult(ok=attempt)


@app.task("die", keep_logs=True, retry_policy=again)
def die(gate: str) -> TaskResult[int, TaskError]:
    """Kill its process at the first attempt, when the gate opens."""
    if current_task().attempt == 1:
        log.warning("about to die")
        current_task().progress(0.5)
        while not Path(gate, "open").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    log.info("alive")
    return TaskResult(ok=1)


@app.task("wait", keep_logs=True, timeout_ms=300)
def wait() -> TaskResult[int, TaskError]:
    """Is stopped by its timeout, or by a shutdown, while it logs."""
    while True:
        log.info("still here")
        time.sleep(0.001)


@app.task("wait_for_gate", keep_logs=True, retry_policy=again)
def wait_for_gate(gate: str) -> TaskResult[int, TaskError]:
    log.info("waiting")
    Path(gate, "begun").touch()
    while not Path(gate, "open").exists():
        time.sleep(0.01)
    return TaskResult(ok=1)


@app.task("flood", keep_logs=True)
def flood(lines: int, size: int) -> TaskResult[int, TaskError]:
    for number in range(1, lines + 1):
        log.info("%d %s", number, "é" * size)
    return TaskResult(ok=lines)


@app.task("hostile", keep_logs=True)
def hostile() -> TaskResult[int, TaskError]:
    """Log what cannot be formatted, stored or printed."""
    quiet_errors = logging.raiseExceptions
    logging.raiseExceptions = False  # the other handler would print each of them
    try:
        log.info("%d", "not a number")
        log.info(Hostile())
        log.info("%s", Hostile())
        log.info("zero \0 and half of a pair \ud800 and a word \U0001f40e")
        log.info(Text("a text of a subclass"))
        odd = {"msg": "odd", "name": None, "levelname": 7, "levelno": logging.INFO, "args": ()}
        log.handle(logging.makeLogRecord({**odd, "created": float("nan")}))
        log.handle(logging.makeLogRecord({**odd, "created": "yesterday", "exc_info": "odd"}))
        try:
            int("\0\ud800")
        except ValueError:
            log.exception("failed")
        log.error("without an exception", exc_info=True)  # noqa: LOG014 - as a mistake of the user
        log.info("last")
    finally:
        logging.raiseExceptions = quiet_errors
    return TaskResult(ok=1)


@app.task("reconfigure", keep_logs=True)
def reconfigure(word: str) -> TaskResult[int, TaskError]:
    """Configure logging while it runs."""
    log.info("%s before", word)
    logging.basicConfig(force=True, level="DEBUG")
    log.debug("%s after", word)
    return TaskResult(ok=1)


@app.task("levels", keep_logs=True)
def levels() -> TaskResult[int, TaskError]:
    log.debug("debug")
    log.info("info")
    log.warning("warning", stack_info=True)
    return TaskResult(ok=1)
