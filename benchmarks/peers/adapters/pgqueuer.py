"""pgqueuer: tasks are coroutines in the worker's own loop, and it keeps no results. `best` is two processes and large batches."""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportArgumentType=false
# The package is in an environment of its own.

import asyncio
import signal
import sys
from datetime import timedelta
from typing import Any

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.core.completion import CompletionWatcher
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from benchmarks.peers.adapters.body import SLEEP_S, database_url, note_start, settings
from benchmarks.peers.adapters.protocol import Adapter, serve

BEST = settings() == "best"
BATCH = 500


async def work() -> None:
    pgq = PgQueuer(AsyncpgDriver(await asyncpg.connect(database_url())))

    @pgq.entrypoint("plain")
    async def plain(job: Job) -> None:
        note_start(int(job.payload or b""))

    @pgq.entrypoint("sleep", concurrency_limit=2)
    async def sleep(job: Job) -> None:
        note_start(int(job.payload or b""))
        await asyncio.sleep(SLEEP_S)

    @pgq.entrypoint("async")
    async def coroutine(job: Job) -> None:
        await asyncio.sleep(0)
        note_start(int(job.payload or b""))

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, pgq.shutdown.set)
    await pgq.run(**({"batch_size": BATCH} if BEST else {}))


class Pgqueuer(Adapter):
    blocks = False
    keeps_results = False
    two_slots = not BEST
    has_asyncio = True
    only_asyncio = True

    async def open(self) -> None:
        self.connection = await asyncpg.connect(database_url())
        self.driver = AsyncpgDriver(self.connection)
        self.queries = Queries(self.driver)
        await self.queries.install()
        self.watched = AsyncpgDriver(await asyncpg.connect(database_url()))
        debounce = {"debounce": timedelta(milliseconds=1)} if BEST else {}
        self.watcher = CompletionWatcher(self.watched, queries=Queries(self.watched), **debounce)
        await self.watcher.__aenter__()

    async def close(self) -> None:
        await self.watcher.__aexit__(None, None, None)

    def workers(self) -> list[list[str]]:
        command = [sys.executable, "-m", "benchmarks.peers.adapters.pgqueuer", "worker"]
        return [command] * 2 if BEST else [command]

    async def bulk(self, kind: str, numbers: range) -> None:
        payloads: list[Any] = [str(number).encode() for number in numbers]
        await self.queries.enqueue([kind] * len(payloads), payloads, [0] * len(payloads))

    async def send(self, number: int) -> Any:
        (job_id,) = await self.queries.enqueue("plain", str(number).encode())
        return job_id

    async def wait(self, sent: Any) -> None:
        await self.watcher.wait_for(sent)

    async def done(self) -> int:
        return await self.connection.fetchval("select count(*) from pgqueuer_log where status = 'successful'")


if __name__ == "__main__":
    if sys.argv[1:] == ["worker"]:
        asyncio.run(work())
    else:
        serve(Pgqueuer())
