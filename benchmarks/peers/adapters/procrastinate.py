"""procrastinate. `default` is one worker with two jobs at once, `best` two processes with more of them. It keeps no results."""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportArgumentType=false
# The package is in an environment of its own.

import asyncio
import sys
import time
from typing import Any

import procrastinate
import psycopg

from benchmarks.peers.adapters.body import SLEEP_S, database_url, note_start, settings
from benchmarks.peers.adapters.protocol import POLL_S, Adapter, serve

BEST = settings() == "best"

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=database_url()))


@app.task(name="plain")
def plain(n: int) -> int:
    return note_start(n)


@app.task(name="sleep")
def sleep(n: int) -> None:
    note_start(n)
    time.sleep(SLEEP_S)


@app.task(name="async")
async def coroutine(n: int) -> int:
    await asyncio.sleep(0)
    return note_start(n)


class Procrastinate(Adapter):
    blocks = False
    keeps_results = False
    two_slots = not BEST
    has_asyncio = True

    async def open(self) -> None:
        self.admin = psycopg.connect(database_url(), autocommit=True)
        await app.open_async()
        await app.schema_manager.apply_schema_async()

    async def close(self) -> None:
        await app.close_async()

    def workers(self) -> list[list[str]]:
        command = [
            sys.executable,
            "-m",
            "procrastinate",
            "--app",
            "benchmarks.peers.adapters.procrastinate.app",
            "worker",
        ]
        return [[*command, "--concurrency", "10"]] * 2 if BEST else [[*command, "--concurrency", "2"]]

    async def bulk(self, kind: str, numbers: range) -> None:
        task = {"plain": plain, "sleep": sleep, "async": coroutine}[kind]
        await task.batch_defer_async(*({"n": number} for number in numbers))

    async def send(self, number: int) -> int:
        return await plain.defer_async(n=number)

    async def wait(self, sent: int) -> None:
        while await app.job_manager.get_job_status_async(sent) is not procrastinate.jobs.Status.SUCCEEDED:  # noqa: ASYNC110 - it does not notify when a task has ended
            await asyncio.sleep(POLL_S)

    async def done(self) -> int:
        row: Any = self.admin.execute("select count(*) from procrastinate_jobs where status = 'succeeded'").fetchone()
        return row[0]


if __name__ == "__main__":
    serve(Procrastinate())
