"""The reference system, by its asyncio API, which is the faster one. `best` forks its children (no recycling) and prefetches."""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportArgumentType=false
# In its environment `horsies` is another package than ours.

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.peers.adapters.body import SLEEP_S, database_url, note_start, settings
from benchmarks.peers.adapters.protocol import Adapter, serve
from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskNode, TaskResult

BEST = settings() == "best"
TIMEOUT_MS = 120_000
AT_ONCE = 5
"""As many as its pool of connections keeps: those beyond are opened and closed for each send."""

app = Horsies(
    AppConfig(
        broker=PostgresConfig(database_url=database_url().replace("postgresql://", "postgresql+psycopg://")),
        **({"prefetch_buffer": 32, "claim_lease_ms": 60_000} if BEST else {}),
    )
)


@app.task("plain")
def plain(*, n: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=note_start(n))


@app.task("sleep")
def sleep(*, n: int) -> TaskResult[int, TaskError]:
    note_start(n)
    time.sleep(SLEEP_S)
    return TaskResult(ok=n)


@app.task("step")
def step(*, before: TaskResult[int, TaskError]) -> TaskResult[int, TaskError]:
    return TaskResult(ok=note_start(before.unwrap()))


app.discover_tasks([__spec__.name if __spec__ else __name__])


class Reference(Adapter):
    blocks = False
    has_workflows = True
    portion = 200

    async def open(self) -> None:
        await app.list_worker_states_async()  # makes the tables, as the first call does
        self.admin = psycopg.connect(database_url(), autocommit=True)

    def workers(self) -> list[list[str]]:
        command = [str(Path(sys.executable).with_name("horsies")), "worker", "benchmarks.peers.adapters.reference:app"]
        command += ["--processes", "2"]
        return [[*command, "--max-tasks-per-child", "0"] if BEST else command]

    async def bulk(self, kind: str, numbers: range) -> None:
        task = {"plain": plain, "sleep": sleep}[kind]
        for first in range(0, len(numbers), AT_ONCE):
            await asyncio.gather(*(task.send_async(n=number) for number in numbers[first : first + AT_ONCE]))

    async def send(self, number: int) -> Any:
        return (await plain.send_async(n=number)).ok_value

    async def wait(self, sent: Any) -> None:
        (await sent.get_async(TIMEOUT_MS)).unwrap()

    async def done(self) -> int:
        row: Any = self.admin.execute("select count(*) from horsies_task_history where status = 'COMPLETED'").fetchone()
        return row[0]

    async def start_fan(self, width: int) -> Any:
        parts = [TaskNode(fn=plain, kwargs={"n": number}) for number in range(width)]
        join = TaskNode(fn=plain, kwargs={"n": width}, waits_for=parts)
        fan = app.workflow("fan", [*parts, join], output=join, definition_key="bench.fan.v1")
        return (await fan.start_async()).ok_value

    async def start_chain(self, steps: int) -> Any:
        nodes: list[Any] = [TaskNode(fn=plain, kwargs={"n": 0})]
        for _ in range(steps - 1):
            nodes.append(TaskNode(fn=step, waits_for=[nodes[-1]], args_from={"before": nodes[-1]}))
        chain = app.workflow("chain", nodes, output=nodes[-1], definition_key="bench.chain.v1")
        return (await chain.start_async()).ok_value


if __name__ == "__main__":
    serve(Reference())
