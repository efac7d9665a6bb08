"""One PostgreSQL with default durability and, for the peers that want one, a Redis; both are gone at the end."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from benchmarks.peers.processes import stop
from benchmarks.place import SETTINGS, SHOWN
from horsies.embedded.server import EmbeddedServer
from tests.fixtures.scratch_server import scratch_server

START_S = 20


@dataclass(frozen=True, slots=True)
class Servers:
    postgres: EmbeddedServer
    admin: psycopg.Connection
    redis_port: int | None
    folder: Path

    @property
    def redis_url(self) -> str:
        return f"redis://127.0.0.1:{self.redis_port}/0" if self.redis_port else ""

    def clean_state(self, name: str) -> str:
        """Prepare an empty database and an empty Redis, with no writes of earlier runs pending. Return the database's URL."""
        database = f"peer_{name}"
        self.admin.execute(f"drop database if exists {database} with (force)".encode())
        self.admin.execute(f"create database {database}".encode())
        self.admin.execute("checkpoint")
        if self.redis_port:
            _ask_redis(self.redis_port, "FLUSHALL")
        return self.postgres.url(database)

    def settings(self) -> dict[str, str]:
        rows = self.admin.execute("select name, setting from pg_settings where name = any(%s)", [list(SHOWN)])
        return dict(rows.fetchall())

    def new_folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.folder))


@contextmanager
def open_servers(redis: str | None) -> Generator[Servers]:
    """`redis` is the program, if there is one and someone needs it."""
    # Many peers hold many connections, and the systems alternate: the limit must not be what is measured.
    settings = SETTINGS | {"max_connections": "300"}
    with (
        tempfile.TemporaryDirectory(prefix="horsies-peers-") as folder,
        scratch_server(settings=settings, tcp_port=_free_port()) as server,
        psycopg.connect(server.url(), autocommit=True) as admin,
        _open_redis(redis, Path(folder)) as redis_port,
    ):
        yield Servers(server, admin, redis_port, Path(folder))


@contextmanager
def _open_redis(program: str | None, folder: Path) -> Generator[int | None]:
    """As it comes, in a folder of its own."""
    if program is None:
        yield None
        return
    port = _free_port()
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    with (folder / "redis.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait_for_redis(port)
        yield port
    finally:
        stop(process)


def _wait_for_redis(port: int) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            return _ask_redis(port, "PING")
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _ask_redis(port: int, command: str) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(f"{command}\r\n".encode())
        if not connection.recv(100).startswith(b"+"):
            raise OSError(f"Redis did not accept {command}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def find_redis(show_progress: Callable[[str], None]) -> str | None:
    """On the PATH; on Debian as root it is installed."""
    if program := shutil.which("redis-server"):
        return program
    if os.geteuid() or not shutil.which("apt-get"):
        return None
    show_progress("installing redis-server")
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}  # no service is wanted, only the program
    for arguments in (["update"], ["--no-install-recommends", "install", "redis-server"]):
        subprocess.run(["apt-get", "-q", "-y", *arguments], capture_output=True, check=False, env=env, timeout=300)  # noqa: S607 - found on the PATH
    return shutil.which("redis-server")
