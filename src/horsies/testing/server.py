"""Where throw-away databases are made: on a server that was given, or on an embedded PostgreSQL of the test run.

All processes of a run share a folder, whose name the first of them (the controller under xdist) makes up. Whoever first needs a
database makes the folder, starts the server in it, and migrates a template that databases are cloned from. When the run is over the
first process stops the server and removes the folder. What a killed run left behind is swept away by a later one: every process that
uses a folder holds a share of its lock.
"""

import hashlib
import os
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from horsies.db.broker import PostgresBroker
from horsies.db.dedicated import DatabaseAdmin, with_database
from horsies.embedded import locks
from horsies.embedded.server import EmbeddedServer
from horsies.model.config import PostgresConfig
from horsies.testing.folders import existing_folders

SWEPT_AFTER_S = 60.0

SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "max_connections": "300",
    "max_wal_size": "256MB",
}


@dataclass(frozen=True, slots=True)
class Database:
    """One throw-away database."""

    name: str
    url: str


class DatabaseServer:
    """Makes databases for one process of a test run. Each leaves a note of its name in the folder for as long as it is there."""

    def __init__(self, folder: Path, given_url: str | None) -> None:
        self._folder = folder
        self._given_url = given_url
        self._server = EmbeddedServer(folder / "s", settings=SETTINGS)
        self._share = self._join()
        self._admin = DatabaseAdmin(PostgresConfig(database_url=given_url or self._server.url()))

    def create(self, schema: str) -> Database:
        """A fresh one with the tables of horsies in this schema."""
        return self._create(secrets.token_hex(5), template=self._template(schema))

    def drop(self, name: str) -> None:
        self._admin.drop(name)
        (self._notes / name).unlink(missing_ok=True)

    def leave(self) -> None:
        self._admin.close()
        self._share.close()

    # -- starting

    def _join(self) -> locks.FileLock:
        if not self._folder.exists():
            self._folder.mkdir(exist_ok=True)
            self._folder.chmod(0o711)  # the server may run as another user, and must get through
        share = locks.share(self._folder / "run.lock")
        self._notes.mkdir(exist_ok=True)
        if self._given_url is None:
            with locks.own(self._folder / "start.lock"):
                self._server.join()
        return share

    def _template(self, schema: str) -> str:
        """A migrated database, made by whichever process comes first."""
        ending = f"template_{hashlib.sha256(schema.encode()).hexdigest()[:8]}"
        done = self._folder / ending
        with locks.own(self._folder / "template.lock"):
            if not done.exists():
                self._sweep()
                made = self._create(ending)
                PostgresBroker(PostgresConfig(database_url=made.url, schema=schema)).migrate()
                done.touch()
        return self._name(ending)

    def _create(self, ending: str, *, template: str | None = None) -> Database:
        name = self._name(ending)
        (self._notes / name).touch()
        self._admin.create(name, template=template)
        url = self._server.url(name) if self._given_url is None else with_database(self._given_url, name)
        return Database(name, url)

    def _name(self, ending: str) -> str:
        return f"{self._folder.name}-{ending}".replace("-", "_")

    @property
    def _notes(self) -> Path:
        return self._folder / "databases"

    def _sweep(self) -> None:
        """Remove what killed runs have left: nobody has a share of their lock any more."""
        for folder in existing_folders():
            made = folder.stat()
            if made.st_uid != os.geteuid() or time.time() - made.st_mtime < SWEPT_AFTER_S:
                continue
            lock = locks.try_own(folder / "run.lock")
            if lock is not None:
                with lock:
                    _remove(folder, self._admin)


def end_run(folder: Path, given_url: str | None) -> None:
    """The run is over: nothing of it stays."""
    admin = DatabaseAdmin(PostgresConfig(database_url=given_url)) if given_url else None
    try:
        _remove(folder, admin)
    finally:
        if admin:
            admin.close()


def _remove(folder: Path, admin: DatabaseAdmin | None) -> None:
    """The server, or the databases on one that was given."""
    EmbeddedServer(folder / "s").stop("immediate")
    if admin:
        for note in (folder / "databases").glob("*"):
            admin.drop(note.name)
    shutil.rmtree(folder, ignore_errors=True)
