"""A server on which every run gets its own database, copied from a template: the empty one, or a scene that was filled once.

A copy is made file by file, with a checkpoint before and after, so no run pays for the filling. It has no counters: autovacuum comes for what a run does, and
not for the filling, so tables that were just filled stay without statistics. That is the hard case for every plan, and the same for each round.
"""

import tempfile
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import psycopg

from benchmarks.place import SETTINGS, Place
from horsies.db.broker import PostgresBroker
from horsies.embedded.server import EmbeddedServer
from horsies.model.config import PostgresConfig
from tests.fixtures.scratch_server import scratch_server

EMPTY = "empty"
CONNECTIONS = {"max_connections": "600"}  # an idle worker, too, holds a few


@dataclass(frozen=True, slots=True)
class Ground:
    server: EmbeddedServer
    admin: psycopg.Connection
    folder: Path
    _numbers: "count[int]" = field(default_factory=count)

    def make(self, name: str, fill: Callable[[Place], None]) -> None:
        """Create and fill a template."""
        self._copy(EMPTY, name)
        with self._at(name) as place:
            fill(place)

    def forget(self, name: str) -> None:
        self.admin.execute(f"drop database {name} with (force)".encode())

    @contextmanager
    def fresh(self, template: str = EMPTY) -> Generator[Place]:
        name = f"run_{next(self._numbers)}"
        self._copy(template, name)
        try:
            with self._at(name) as place:
                yield place
        finally:
            self.forget(name)

    def _copy(self, template: str, name: str) -> None:
        self.admin.execute(f"create database {name} template {template} strategy file_copy".encode())

    @contextmanager
    def _at(self, name: str) -> Generator[Place]:
        with closing(psycopg.connect(self.server.url(name), autocommit=True)) as admin:
            yield Place(self.server.url(name), admin, self.folder)


@contextmanager
def open_ground() -> Generator[Ground]:
    """Start everything; at the end, also by Ctrl-C, nothing of it is left."""
    with (
        scratch_server(settings=SETTINGS | CONNECTIONS) as server,
        tempfile.TemporaryDirectory(prefix="horsies-bench-") as folder,
        closing(psycopg.connect(server.url(), autocommit=True)) as admin,
    ):
        admin.execute(f"create database {EMPTY}".encode())
        with PostgresBroker(PostgresConfig(database_url=server.url(EMPTY))) as broker:
            broker.migrate()
        yield Ground(server, admin, Path(folder))
