"""Ours, as a producer. What its workers load is in `horsies_app` and `horsies_async_app`."""

import sys
from typing import Any

import psycopg

from benchmarks.peers.adapters.body import database_url
from benchmarks.peers.adapters.horsies_app import BEST, app, plain, sleep
from benchmarks.peers.adapters.horsies_async_app import app as async_app
from benchmarks.peers.adapters.horsies_async_app import coroutine
from benchmarks.peers.adapters.protocol import Adapter, serve
from horsies import TaskHandle, WorkflowHandle, from_node

TIMEOUT_MS = 120_000


class Ours(Adapter):
    has_workflows = True
    has_asyncio = True

    async def open(self) -> None:
        app.broker.migrate()
        self.admin = psycopg.connect(database_url(), autocommit=True)

    async def close(self) -> None:
        self.admin.close()
        app.close()
        async_app.close()

    def workers(self) -> list[list[str]]:
        return [_worker("benchmarks.peers.adapters.horsies_app:app")]

    def async_workers(self) -> list[list[str]]:
        return [_worker("benchmarks.peers.adapters.horsies_async_app:app")]

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


def _worker(app: str) -> list[str]:
    command = [sys.executable, "-m", "horsies.cli.main", "worker", app, "--processes", "2"]
    return [*command, "--max-tasks-per-child", "0"] if BEST else command


if __name__ == "__main__":
    serve(Ours())
