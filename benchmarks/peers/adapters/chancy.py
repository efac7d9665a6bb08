"""chancy, which keeps no results. `default` runs tasks in two processes, `best` as 500 coroutines in each of two workers, and stores endings every 10 ms."""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportArgumentType=false
# The package is in an environment of its own.

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import psycopg
from chancy import Chancy, Queue, Worker, job

from benchmarks.peers.adapters.body import SLEEP_S, database_url, note_start, settings
from benchmarks.peers.adapters.protocol import POLL_S, Adapter, serve

BEST = settings() == "best"
ASYNC = "chancy.executors.asyncex.AsyncExecutor"

app = Chancy(database_url())


@job(queue="processes")
def plain(*, n: int) -> None:
    note_start(n)


@job(queue="processes")
def sleep(*, n: int) -> None:
    note_start(n)
    time.sleep(SLEEP_S)


@job(queue="async")
async def coroutine(*, n: int) -> None:
    note_start(n)


async def work() -> None:
    """As its command does, but endings are not held back for a second."""
    worker = Worker(app)
    worker.send_outgoing_interval = 0.01
    async with app, worker:
        await worker.wait_for_shutdown()


class ChancyAdapter(Adapter):
    blocks = False
    keeps_results = False
    two_slots = not BEST
    has_asyncio = True
    only_asyncio = BEST

    async def open(self) -> None:
        self.admin = psycopg.connect(database_url(), autocommit=True)
        await app.__aenter__()
        await app.migrate()
        # Without eager polling a backlog is looked at every five seconds only.
        if BEST:
            await app.declare(Queue("async", concurrency=500, executor=ASYNC, eager_polling=True))
        else:
            await app.declare(Queue("processes", concurrency=2, eager_polling=True))
            await app.declare(Queue("async", concurrency=2, executor=ASYNC, eager_polling=True))

    async def close(self) -> None:
        await app.__aexit__(None, None, None)

    def workers(self) -> list[list[str]]:
        chancy = str(Path(sys.executable).with_name("chancy"))
        command = [chancy, "--app", "benchmarks.peers.adapters.chancy.app", "worker", "start"]
        return [[sys.executable, "-m", "benchmarks.peers.adapters.chancy", "worker"]] * 2 if BEST else [command]

    async def bulk(self, kind: str, numbers: range) -> None:
        task = {"plain": coroutine if BEST else plain, "sleep": sleep, "async": coroutine}[kind]
        async for _ in app.push_many([task.job.with_kwargs(n=number) for number in numbers]):
            pass

    async def send(self, number: int) -> Any:
        return await app.push((coroutine if BEST else plain).job.with_kwargs(n=number))

    async def wait(self, sent: Any) -> None:
        await app.wait_for_job(sent, interval=POLL_S)

    async def done(self) -> int:
        row: Any = self.admin.execute("select count(*) from chancy_jobs where state = 'succeeded'").fetchone()
        return row[0]


if __name__ == "__main__":
    # Chancy names a task by its module, which must be the one that the worker imports.
    from benchmarks.peers.adapters import chancy as importable  # noqa: PLW0406 - this one is `__main__`

    if sys.argv[1:] == ["worker"]:
        asyncio.run(importable.work())
    else:
        serve(importable.ChancyAdapter())
