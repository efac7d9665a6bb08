"""What a running PostgreSQL says about itself in `postmaster.pid`, and whether it still listens."""

import os
import signal
import socket
from dataclasses import dataclass
from pathlib import Path


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
