"""awa-pg: a core in Rust that calls coroutines, and keeps no results. `default` has two slots, `best` 200 in each of two processes."""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportArgumentType=false
# The package is in an environment of its own.

import asyncio
import signal
import sys
from dataclasses import dataclass
from typing import Any

import awa

from benchmarks.peers.adapters.body import SLEEP_S, database_url, note_start, settings
from benchmarks.peers.adapters.protocol import POLL_S, Adapter, serve

BEST = settings() == "best"
SLOTS = 200 if BEST else 2
DONE = """
    select (
        (select coalesce(sum(completed_count), 0) from awa.receipt_completion_batches)
        + (select count(*) from awa.done_entries)
        + (select coalesce(sum(pruned_completed_count), 0) from awa.queue_terminal_rollups)
    )::bigint as done
"""


@dataclass
class Plain:
    n: int


@dataclass
class Sleep:
    n: int


async def work() -> None:
    client = awa.AsyncClient(database_url())

    @client.task(Plain, queue="plain")
    async def plain(job: Any) -> None:
        note_start(job.args.n)

    @client.task(Sleep, queue="sleep")
    async def sleep(job: Any) -> None:
        note_start(job.args.n)
        await asyncio.sleep(SLEEP_S)

    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await client.start([("plain", SLOTS), ("sleep", 2)])
    await stopped.wait()
    await client.shutdown()


class Awa(Adapter):
    blocks = False
    keeps_results = False
    two_slots = not BEST
    has_asyncio = True
    only_asyncio = True

    async def open(self) -> None:
        self.client = awa.AsyncClient(database_url())
        await self.client.migrate()
        await self.client.install_queue_storage()  # the engine of 0.6

    async def close(self) -> None:
        await self.client.close()

    def workers(self) -> list[list[str]]:
        command = [sys.executable, "-m", "benchmarks.peers.adapters.awa", "worker"]
        return [command] * 2 if BEST else [command]

    async def bulk(self, kind: str, numbers: range) -> None:
        make, queue = (Sleep, "sleep") if kind == "sleep" else (Plain, "plain")
        await self.client.enqueue_many_copy([make(number) for number in numbers], queue=queue)

    async def send(self, number: int) -> Any:
        return (await self.client.insert(Plain(number), queue="plain")).id

    async def wait(self, sent: Any) -> None:
        while str((await self.client.get_job(sent)).state).rpartition(".")[2].lower() != "completed":  # noqa: ASYNC110 - it does not notify when a task has ended
            await asyncio.sleep(POLL_S)

    async def done(self) -> int:
        """From its tables: its own statistics take half a minute over a backlog of thousands."""
        async with await self.client.transaction() as transaction:
            return (await transaction.fetch_one(DONE))["done"]


if __name__ == "__main__":
    if sys.argv[1:] == ["worker"]:
        asyncio.run(work())
    else:
        serve(Awa())
