"""What the harness may ask of a system: one line with a command goes in, one line of JSON comes out.

Only the standard library is used here, because each system has an environment of its own. Every method is a coroutine,
since an asyncio system needs its loop running between two calls. A blocking system declares this, and gets no loop:
its coroutines never wait for one.
"""

import asyncio
import json
import os
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

POLL_S = 0.002

Numbers = dict[str, Any]


class Adapter(ABC):
    """One system with one choice of settings."""

    blocks = True
    keeps_results = True
    two_slots = True
    """Whether two tasks run at once with these settings; only then is the time for sleeping tasks comparable."""
    has_workflows = False
    has_asyncio = False
    """Whether its tasks may be coroutines: then `bulk` knows the kind `async`."""
    only_asyncio = False
    """Whether the plain tasks are coroutines already."""
    portion = 2_000
    """How many tasks `bulk` is given at once; few where each of them takes long, because the time is looked at in between."""

    async def open(self) -> None:  # noqa: B027 - not every system needs it
        """Make what a producer needs: a connection, a schema."""

    async def close(self) -> None:  # noqa: B027 - the same
        """The opposite."""

    @abstractmethod
    def workers(self) -> list[list[str]]:
        """The commands of the worker processes, two slots in all by default."""

    def async_workers(self) -> list[list[str]]:
        """The same for tasks of the kind `async`, where those are in an app of their own."""
        return self.workers()

    @abstractmethod
    async def bulk(self, kind: str, numbers: range) -> None:
        """Enqueue tasks of a kind (`plain`, `sleep`, `async`) in the fastest way the system has."""

    @abstractmethod
    async def send(self, number: int) -> Any:
        """Enqueue one plain task, durably if the system can, and return what `wait` takes."""

    @abstractmethod
    async def wait(self, sent: Any) -> None:
        """Until the result is here, or where no result is kept until the task is marked as done."""

    @abstractmethod
    async def done(self) -> int:
        """How many tasks have ended, by what the system has stored."""

    async def start_fan(self, width: int) -> Any:
        """Start a workflow of this number of parallel nodes and a join; return what `wait` takes."""
        raise NotImplementedError

    async def start_chain(self, steps: int) -> Any:
        """Start a workflow of this number of nodes, each of which takes the value of the last; return what `wait` takes."""
        raise NotImplementedError


def serve(adapter: Adapter) -> None:
    """Answer commands until standard input ends. Answers go to a copy of standard output, which libraries may print on."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    if adapter.blocks:
        _run_without_loop(_serve(adapter, answers))
    else:
        asyncio.run(_serve(adapter, answers))


def _run_without_loop(coroutine: Coroutine[None, None, None]) -> None:
    with suppress(StopIteration):
        while True:
            coroutine.send(None)


async def _next_line(adapter: Adapter) -> str:
    if adapter.blocks:
        return sys.stdin.readline()
    return await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


async def _serve(adapter: Adapter, answers: Any) -> None:
    while line := await _next_line(adapter):
        command, *arguments = line.split()
        try:
            answer = await _COMMANDS[command](adapter, *arguments)
        except Exception as error:  # noqa: BLE001 - whatever the system raises is the answer
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
    await adapter.close()


async def _open(adapter: Adapter) -> Numbers:
    await adapter.open()
    return {
        "workers": adapter.workers(),
        "async_workers": adapter.async_workers(),
        "keeps_results": adapter.keeps_results,
        "two_slots": adapter.two_slots,
        "has_workflows": adapter.has_workflows,
        "has_asyncio": adapter.has_asyncio,
        "only_asyncio": adapter.only_asyncio,
        "python": sys.version.split()[0],
    }


async def _bulk(adapter: Adapter, kind: str, first: str, count: str, limit_s: str) -> Numbers:
    """Send in portions, so that a slow system can stop when the time is up. Return how many were sent."""
    began = time.monotonic()
    numbers = range(int(first), int(first) + int(count))
    sent = 0
    while sent < len(numbers) and time.monotonic() < began + float(limit_s):
        portion = numbers[sent : sent + adapter.portion]
        await adapter.bulk(kind, portion)
        sent += len(portion)
    return {"sent": sent, "seconds": time.monotonic() - began}


async def _send(adapter: Adapter, count: str, limit_s: str) -> Numbers:
    began = time.monotonic()
    sent = 0
    while sent < int(count) and time.monotonic() < began + float(limit_s):
        await adapter.send(sent)
        sent += 1
    return {"sent": sent, "seconds": time.monotonic() - began}


async def _latency(adapter: Adapter, count: str, limit_s: str) -> Numbers:
    """A slow system stops when the time is up. The moments are on the clock that tasks note their start with; the numbers go down from -1, and are like no others."""
    sends: list[float] = []
    taken: list[float] = []
    until = time.monotonic() + float(limit_s)
    for number in range(int(count)):
        began = time.monotonic()
        if began > until:
            break
        await adapter.wait(await adapter.send(-1 - number))
        taken.append(time.monotonic() - began)
        sends.append(began)
    return {"sends": sends, "seconds": taken}


async def _pipeline(adapter: Adapter, seconds: str) -> Numbers:
    """One producer sends one by one for a while; the worker runs."""
    began = time.monotonic()
    sent = 0
    while time.monotonic() < began + float(seconds):
        await adapter.send(sent)
        sent += 1
        if not sent % 50:
            await asyncio.sleep(0)
    return {"began": began, "seconds": time.monotonic() - began, "sent": sent}


async def _fan(adapter: Adapter, runs: str, width: str) -> Numbers:
    began = time.monotonic()
    for started in [await adapter.start_fan(int(width)) for _ in range(int(runs))]:
        await adapter.wait(started)
    return {"seconds": time.monotonic() - began}


async def _chain(adapter: Adapter, runs: str, steps: str, limit_s: str) -> Numbers:
    taken: list[float] = []
    until = time.monotonic() + float(limit_s)
    while len(taken) < int(runs) and (began := time.monotonic()) < until:
        await adapter.wait(await adapter.start_chain(int(steps)))
        taken.append(time.monotonic() - began)
    return {"seconds": taken}


async def _done(adapter: Adapter) -> Numbers:
    """At the moment of asking: what is counted is what there was then, and counting is not the system's own time."""
    at = time.monotonic()
    return {"done": await adapter.done(), "at": at}


_COMMANDS: dict[str, Any] = {
    "open": _open,
    "bulk": _bulk,
    "send": _send,
    "latency": _latency,
    "pipeline": _pipeline,
    "fan": _fan,
    "chain": _chain,
    "done": _done,
}
