"""Create temporary databases: on a server that was given, or on an embedded PostgreSQL of the test run.

All processes of a run share a folder, whose name the first of them (the controller under xdist) chooses. The first process
that needs a database creates the folder, starts the server in it, and migrates a template database, which is then cloned.
At the end of the run the first process stops the server and removes the folder.

Every process that uses a folder holds a shared lock in it. If a run was killed, a later one finds that its lock is free, and
removes its folder and databases.
"""

import contextlib
import hashlib
import os
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from horsies.db.broker import PostgresBroker
from horsies.db.dedicated import DatabaseAdmin, with_database
from horsies.embedded.locks import lock_exclusive, lock_shared, try_lock_exclusive
from horsies.embedded.server import EmbeddedServer
from horsies.model.config import PostgresConfig

MIN_LEFTOVER_AGE_S = 60.0  # a younger run may have created its folder and not locked it yet

SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "max_connections": "300",
    "max_wal_size": "256MB",
}

PREFIX = "horsies-test-"
# A database is cloned about ten times as fast in memory as on a disk. The test runner's own temporary folder does not do: as
# root, the server's user must be able to enter it, and socket paths must be short.
IN_MEMORY, ON_DISK = Path("/dev/shm"), Path("/tmp")  # noqa: S108 - the folder's name cannot be guessed
MIN_FREE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Database:
    """One temporary database."""

    name: str
    url: str


class DatabaseServer:
    """Creates databases for one process of a test run. As long as a database exists, a file in the folder has its name."""

    def __init__(self, folder: Path, given_url: str | None) -> None:
        self._folder = folder
        self._names = folder / "databases"
        self._given_url = given_url
        self._server = EmbeddedServer(folder / "s", settings=SETTINGS)
        if not folder.exists():
            folder.mkdir(exist_ok=True)
            folder.chmod(0o711)  # the server may run as another user, who must be able to pass through
        self._run_lock = lock_shared(folder / "run.lock")
        self._names.mkdir(exist_ok=True)
        if given_url is None:
            with lock_exclusive(folder / "start.lock"):
                self._server.join()
        self._admin = DatabaseAdmin(PostgresConfig(database_url=given_url or self._server.url()))

    def create(self, schema: str) -> Database:
        """Create a database with the tables of horsies in this schema."""
        return self._create(secrets.token_hex(5), template=self._template(schema))

    def drop(self, name: str) -> None:
        self._admin.drop(name)
        (self._names / name).unlink(missing_ok=True)

    def close(self) -> None:
        self._admin.close()
        self._run_lock.close()

    def _template(self, schema: str) -> str:
        """Return the name of a migrated database. The first process that needs it creates it."""
        suffix = f"template_{hashlib.sha256(schema.encode()).hexdigest()[:8]}"
        is_ready = self._folder / suffix
        with lock_exclusive(self._folder / "template.lock"):
            if not is_ready.exists():
                self._remove_killed_runs()
                template = self._create(suffix)
                PostgresBroker(PostgresConfig(database_url=template.url, schema=schema)).migrate()
                is_ready.touch()
        return self._name(suffix)

    def _create(self, suffix: str, *, template: str | None = None) -> Database:
        name = self._name(suffix)
        (self._names / name).touch()  # before the database exists: a killed run must leave none without its name
        self._admin.create(name, template=template)
        url = self._server.url(name) if self._given_url is None else with_database(self._given_url, name)
        return Database(name, url)

    def _name(self, suffix: str) -> str:
        return f"{self._folder.name}-{suffix}".replace("-", "_")

    def _remove_killed_runs(self) -> None:
        for folder in (*IN_MEMORY.glob(f"{PREFIX}*"), *ON_DISK.glob(f"{PREFIX}*")):
            with contextlib.suppress(FileNotFoundError):  # another run removes it at the same time
                info = folder.stat()
                if info.st_uid == os.geteuid() and time.time() - info.st_mtime >= MIN_LEFTOVER_AGE_S:
                    lock = try_lock_exclusive(folder / "run.lock")
                    if lock is not None:  # no process of that run is alive
                        with lock:
                            _remove(folder, self._admin)


def new_folder() -> Path:
    """Return an unused path. The folder is created by the first process that needs a database."""
    is_usable = IN_MEMORY.is_dir() and os.access(IN_MEMORY, os.W_OK | os.X_OK)
    parent = IN_MEMORY if is_usable and shutil.disk_usage(IN_MEMORY).free >= MIN_FREE_BYTES else ON_DISK
    return parent / f"{PREFIX}{secrets.token_hex(5)}"


def remove_run(folder: Path, given_url: str | None) -> None:
    """Remove everything that belongs to a run that has ended."""
    admin = DatabaseAdmin(PostgresConfig(database_url=given_url)) if given_url else None
    try:
        _remove(folder, admin)
    finally:
        if admin:
            admin.close()


def _remove(folder: Path, admin: DatabaseAdmin | None) -> None:
    """Stop the embedded server, or drop the databases on a server that was given."""
    EmbeddedServer(folder / "s").stop("immediate")
    if admin:
        for file in (folder / "databases").glob("*"):
            admin.drop(file.name)
    shutil.rmtree(folder, ignore_errors=True)
