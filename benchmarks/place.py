"""Where it happens: a PostgreSQL of our own with real durability, and two installations of the schema in it.

`horsies` is used by horsies, `raw` by the hand-written loops, so that both work on the same columns and indexes.
"""

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import psycopg

from benchmarks.sizes import BULK_CHUNK
from horsies.db.broker import PostgresBroker
from horsies.model.config import PostgresConfig
from horsies.model.task import NewTask, TaskOptions
from horsies.tasks.enqueue import enqueue
from horsies.tasks.ids import new_task_id
from tests.fixtures.scratch_server import scratch_server

SETTINGS = {"fsync": "on", "synchronous_commit": "on", "shared_buffers": "1GB"}
SHOWN = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "wal_sync_method", "shared_buffers")

TERMS = TaskOptions("note_start", "default")

Schema = Literal["horsies", "raw"]


@dataclass(frozen=True, slots=True)
class Place:
    url: str
    admin: psycopg.Connection
    """For looking on and tidying up; nothing is timed on it."""
    folder: Path

    def new_folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.folder))

    def clear(self, schema: Schema) -> None:
        self.admin.execute(f"truncate {schema}.tasks, {schema}.finished, {schema}.workflows, {schema}.nodes".encode())

    def fill(self, schema: Schema, count: int) -> None:
        """PENDING tasks with the numbers from 0 on."""
        with PostgresBroker(PostgresConfig(database_url=self.url, schema=schema)) as broker:
            for first in range(0, count, BULK_CHUNK):
                tasks = new_tasks(range(first, min(first + BULK_CHUNK, count)))
                broker.run(partial(enqueue, tasks))

    def settings(self) -> dict[str, str]:
        rows = self.admin.execute("select name, setting from pg_settings where name = any(%s)", [list(SHOWN)])
        return dict(rows.fetchall())


def new_tasks(numbers: range) -> list[NewTask]:
    return [NewTask(new_task_id(), f'{{"n": {number}}}', TERMS) for number in numbers]


@contextmanager
def open_place() -> Generator[Place]:
    """Start everything; at the end, also by Ctrl-C, nothing of it is left."""
    with scratch_server(settings=SETTINGS) as server, tempfile.TemporaryDirectory(prefix="horsies-bench-") as folder:
        url = server.url()
        for schema in ("horsies", "raw"):
            PostgresBroker(PostgresConfig(database_url=url, schema=schema)).migrate()
        with psycopg.connect(url, autocommit=True) as admin:
            yield Place(url, admin, Path(folder))
