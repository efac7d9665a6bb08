"""Two embedded PostgreSQL servers: a primary, and a synchronous standby."""

import shutil
import socket
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from benchmarks.chaos.scratch import scratch_folder
from horsies.embedded.binaries import binaries_for, choose_os_account, make_folder, set_owner
from horsies.embedded.server import EmbeddedServer

PATIENCE_S = 60.0


class Pair:
    """`url` names both servers. A client connects to the one that accepts writes."""

    def __init__(self, folder: Path, settings: dict[str, str]) -> None:
        self._settings = settings
        self.primary, self.standby = (self._server(folder / name) for name in ("a", "b"))
        self._both = self.primary, self.standby

    @property
    def url(self) -> str:
        parts = urlsplit(self.primary.url())
        hosts = ",".join(f"127.0.0.1:{server.tcp_port}" for server in self._both)
        return f"postgresql://{parts.username}:{parts.password}@{hosts}/postgres?target_session_attrs=read-write"

    def admin_url(self) -> str:
        return self.primary.socket_url()

    def start(self) -> None:
        self.primary.start()
        self.rejoin()

    def fail_over(self) -> None:
        """Fail over as a cluster manager does: the old primary is stopped before the new one accepts writes."""
        self.primary.stop("immediate")
        self.primary, self.standby = self.standby, self.primary
        with psycopg.connect(self.admin_url(), autocommit=True) as sql:
            sql.execute("select pg_promote(true, 60)")
        self._wait_for_standby("")

    def rejoin(self) -> None:
        """Recreate the standby as a copy of the primary, and make commits wait for it from then on."""
        self._copy()
        self.standby.start()
        self._wait_for_standby("*")

    def stop(self) -> None:
        for server in self._both:
            server.stop("immediate")

    def _server(self, folder: Path) -> EmbeddedServer:
        return EmbeddedServer(folder, settings=self._settings | {"wal_level": "replica"}, tcp_port=_free_port())

    def _copy(self) -> None:
        folder = self.standby.folder
        shutil.rmtree(folder, ignore_errors=True)
        account = choose_os_account(self.primary.folder / "data")
        make_folder(folder, account)
        data = folder / "data"
        data.mkdir(mode=0o700)
        set_owner(data, account)
        shutil.copy(self.primary.folder / "password", folder / "password")
        command = [binaries_for(account, folder).program("pg_basebackup"), f"--pgdata={data}", "--write-recovery-conf"]
        command += ["--checkpoint=fast", "--no-sync", f"--dbname={self.admin_url()}"]
        done = account.run(command, cwd=folder, output=subprocess.PIPE)
        if done.returncode != 0:
            raise RuntimeError(f"pg_basebackup failed:\n{done.stdout}")

    def _wait_for_standby(self, names: str) -> None:
        """Set which standby commits wait for. If there is one, wait until it streams."""
        deadline = time.monotonic() + PATIENCE_S
        with psycopg.connect(self.admin_url(), autocommit=True) as sql:
            sql.execute(f"alter system set synchronous_standby_names = '{names}'".encode())
            sql.execute("select pg_reload_conf()")
            while names and not sql.execute("select 1 from pg_stat_replication where sync_state = 'sync'").fetchone():
                if time.monotonic() > deadline:
                    raise RuntimeError("the standby does not replicate")
                time.sleep(0.05)


@contextmanager
def scratch_pair(settings: dict[str, str]) -> Generator[Pair]:
    with scratch_folder() as folder:
        pair = Pair(folder, settings)
        try:
            pair.start()
            yield pair
        finally:
            pair.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
