"""DBOS: every task is a workflow of its own on a queue, polled. `default` polls every second and takes all there is, `best` polls every 10 ms."""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportArgumentType=false
# The package is in an environment of its own.

import signal
import sys
import time
from threading import Event
from typing import Any

import psycopg
import sqlalchemy
from dbos import DBOS, DBOSClient

from benchmarks.peers.adapters.body import SLEEP_S, database_url, note_start, settings
from benchmarks.peers.adapters.protocol import Adapter, serve

BEST = settings() == "best"
VERSION = "bench"
URL = database_url().replace("postgresql://", "postgresql+psycopg://")

POLLING: Any = {"polling_interval_sec": 0.01} if BEST else {}


@DBOS.workflow(name="plain")
def plain(n: int) -> int:
    return note_start(n)


@DBOS.workflow(name="sleep")
def sleep(n: int) -> int:
    note_start(n)
    time.sleep(SLEEP_S)
    return n


@DBOS.workflow(name="async")
async def coroutine(n: int) -> int:
    return note_start(n)


@DBOS.step(name="step")
def step(n: int) -> int:
    return note_start(n)


@DBOS.workflow(name="fan")
def fan(width: int) -> int:
    handles = [DBOS.enqueue_workflow("tasks", plain, number) for number in range(width)]
    return step(sum(1 for handle in handles if handle.get_result(**POLLING) is not None))


@DBOS.workflow(name="chain")
def chain(steps: int) -> int:
    n = 0
    for _ in range(steps):
        n = step(n)
    return n


class Dbos(Adapter):
    has_workflows = True
    has_asyncio = True
    portion = 200

    async def open(self) -> None:
        launch()  # makes the tables
        DBOS.destroy()
        self.client = DBOSClient(system_database_url=URL)
        self.engine = sqlalchemy.create_engine(URL)
        self.admin = psycopg.connect(database_url(), autocommit=True)

    async def close(self) -> None:
        self.client.destroy()

    def workers(self) -> list[list[str]]:
        return [[sys.executable, "-m", "benchmarks.peers.adapters.dbos", "worker"]]

    def enqueue(self, name: str, number: int, queue_name: str = "tasks") -> Any:
        return self.client.enqueue(options(name, queue_name), number)

    async def bulk(self, kind: str, numbers: range) -> None:
        with self.engine.begin() as transaction:
            for number in numbers:
                queue_name = "sleepers" if kind == "sleep" else "tasks"
                self.client.enqueue_in_transaction(transaction, options(kind, queue_name), number)

    async def send(self, number: int) -> Any:
        return self.enqueue("plain", number)

    async def wait(self, sent: Any) -> None:
        sent.get_result(**POLLING)

    async def done(self) -> int:
        row: Any = self.admin.execute("select count(*) from dbos.workflow_status where status = 'SUCCESS'").fetchone()
        return row[0]

    async def start_fan(self, width: int) -> Any:
        return self.enqueue("fan", width, "workflows")

    async def start_chain(self, steps: int) -> Any:
        return self.enqueue("chain", steps, "workflows")


def options(name: str, queue_name: str) -> Any:
    return {"workflow_name": name, "queue_name": queue_name, "app_version": VERSION}


def launch() -> None:
    DBOS(config={"name": "bench", "system_database_url": URL, "application_version": VERSION, "log_level": "WARNING"})
    DBOS.launch()
    DBOS.register_queue("tasks", **({"worker_concurrency": 50} if BEST else {}), **POLLING)
    DBOS.register_queue("sleepers", worker_concurrency=2, **POLLING)
    DBOS.register_queue("workflows", **POLLING)


def work() -> None:
    stopped = Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    launch()
    while not stopped.wait(0.5):
        pass
    DBOS.destroy()


if __name__ == "__main__":
    if sys.argv[1:] == ["worker"]:
        work()
    else:
        serve(Dbos())
