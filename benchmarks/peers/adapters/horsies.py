"""Ours. `default` is the worker as it comes, `best` has the throughput settings."""

import asyncio
import sys
import time
from typing import Any

import psycopg

from benchmarks.peers.adapters.protocol import SLEEP_S, Adapter, database_url, note_start, serve, settings
from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskHandle, TaskResult, WorkflowHandle, from_node

BEST = settings() == "best"
TIMEOUT_MS = 120_000

app = Horsies(
    AppConfig(broker=PostgresConfig(database_url=database_url()), prefetch_buffer="auto" if BEST else 0),
)


@app.task("plain")
def plain(n: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=note_start(n))


@app.task("sleep")
def sleep(n: int) -> TaskResult[int, TaskError]:
    note_start(n)
    time.sleep(SLEEP_S)
    return TaskResult(ok=n)


@app.task("async")
async def coroutine(n: int) -> TaskResult[int, TaskError]:
    await asyncio.sleep(0)
    return TaskResult(ok=note_start(n))


class Ours(Adapter):
    has_workflows = True
    has_asyncio = True

    async def open(self) -> None:
        app.broker.migrate()
        self.admin = psycopg.connect(database_url(), autocommit=True)

    async def close(self) -> None:
        self.admin.close()
        app.close()

    def workers(self) -> list[list[str]]:
        command = [sys.executable, "-m", "horsies.cli.main", "worker", "benchmarks.peers.adapters.horsies:app"]
        command += ["--processes", "2"]
        return [[*command, "--max-tasks-per-child", "0"] if BEST else command]

    async def bulk(self, kind: str, numbers: range) -> None:
        task = {"plain": plain, "sleep": sleep, "async": coroutine}[kind]
        task.send_many([task.call(number) for number in numbers])

    async def send(self, number: int) -> TaskHandle[int]:
        return plain.send(number)

    async def wait(self, sent: TaskHandle[int] | WorkflowHandle[int]) -> None:
        sent.get(TIMEOUT_MS).unwrap()

    async def done(self) -> int:
        row: Any = self.admin.execute("select count(*) from horsies.finished").fetchone()
        return row[0]

    async def start_fan(self, width: int) -> WorkflowHandle[int]:
        parts = [plain.node()(number) for number in range(width)]
        join = plain.node(waits_for=parts)(width)
        return app.workflow("fan", [*parts, join], output=join).start()

    async def start_chain(self, steps: int) -> WorkflowHandle[int]:
        nodes = [plain.node()(0)]
        for _ in range(steps - 1):
            nodes.append(plain.node()(from_node(nodes[-1])))
        return app.workflow("chain", nodes, output=nodes[-1]).start()


if __name__ == "__main__":
    serve(Ours())
