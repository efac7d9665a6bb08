"""The same for coroutines, in an app of their own: one without any does not load asyncio into its children."""

import asyncio

from benchmarks.peers.adapters.body import note_start
from benchmarks.peers.adapters.horsies_app import CONFIG
from horsies import Horsies, TaskError, TaskResult

app = Horsies(CONFIG)


@app.task("async")
async def coroutine(n: int) -> TaskResult[int, TaskError]:
    await asyncio.sleep(0)
    return TaskResult(ok=note_start(n))
