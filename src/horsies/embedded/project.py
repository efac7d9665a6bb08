"""The PostgreSQL of a project in development: all processes of a project share one server and one database.

The data are in the user's data folder, keyed by the root of the project, so a producer and a worker that are started
anywhere inside the project find each other. `HORSIES_EMBEDDED_DIR` names another folder. The first process that needs
the server starts it, the last one to exit stops it, and no process knows the others:

- **Joining**: under an exclusive `start.lock`, take a shared `users.lock`, then make sure that the server runs. Two
  processes that start at the same time do this one after the other, and the second finds a running server.
- **Leaving**, at exit: release the shared lock, then try to lock `users.lock` exclusively. The process that succeeds
  was the last one. It stops the server while it holds the lock, so a process that joins waits until the server is down
  and starts it again. Of two processes that leave at the same time, both try after their release: exactly one succeeds.
- **Killed users** lose their lock to the kernel. If the last user is killed, the server keeps running and the next user
  joins it. If the starter is killed, its initdb or pg_ctl holds the server's own lock until it ends (`server.py`).
- **A killed server** is started by the next call, with the same address: its users reconnect.
- **Forked children** are users, too. Their copy of the shared lock is one lock with that of the parent, so the server
  runs until both have exited. Neither can release it for the other, because shared locks are only ever closed. A child
  that ends by `os._exit` leaves without stopping anything. Programs started by exec inherit nothing.
"""

import atexit
import hashlib
import logging
import os
import re
import sys
import threading
from pathlib import Path

from horsies.embedded import EmbeddedPostgresError, explain_os_errors
from horsies.embedded.binaries import SYSTEM_FOLDER, choose_os_account, make_folder
from horsies.embedded.locks import FileLock, lock_exclusive, lock_shared, try_lock_exclusive
from horsies.embedded.server import EmbeddedServer

# The durability settings stay on, as is PostgreSQL's default: development should not depend on a shortcut.
_SETTINGS = {"shared_buffers": "128MB", "max_connections": "200"}
_ROOT_FILES = ("pyproject.toml", "setup.py", "setup.cfg", ".git")

_log = logging.getLogger("horsies")


def embedded_database_url() -> str:
    """Start or join the project's server, use it until this process exits, and return its URL."""
    if sys.platform not in ("linux", "darwin"):
        raise EmbeddedPostgresError(
            f"embedded PostgreSQL: it runs on Linux and macOS, not on {sys.platform}: "
            "set HORSIES_DATABASE_URL to a PostgreSQL of your own"
        )
    return _servers.use(embedded_folder())


def embedded_folder() -> Path:
    """Return the folder in which the server of the current project keeps its data."""
    if override := os.environ.get("HORSIES_EMBEDDED_DIR"):
        return Path(override).expanduser().resolve()
    try:
        here = Path.cwd().resolve()
    except FileNotFoundError as error:
        raise EmbeddedPostgresError(
            "embedded PostgreSQL: the current folder was deleted: change to another, or set HORSIES_EMBEDDED_DIR"
        ) from error
    folders = (here, *here.parents)
    root = next((folder for folder in folders if any((folder / name).exists() for name in _ROOT_FILES)), here)
    digest = hashlib.sha256(os.fsencode(root)).hexdigest()[:12]
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", root.name)[:24].strip("-") or "project"
    return _data_home() / f"{name}-{digest}"


def _data_home() -> Path:
    if os.geteuid() == 0:  # the server runs as another user then, who cannot enter root's home
        return SYSTEM_FOLDER
    chosen = os.environ.get("XDG_DATA_HOME", "")
    if sys.platform != "darwin" and Path(chosen).is_absolute():
        return Path(chosen) / "horsies"
    try:
        home = Path.home()
    except RuntimeError as error:
        raise EmbeddedPostgresError(
            "embedded PostgreSQL: this user has no home folder: set HORSIES_EMBEDDED_DIR"
        ) from error
    return home / ("Library/Application Support" if sys.platform == "darwin" else ".local/share") / "horsies"


class _SharedServers:
    """The servers that this process uses. A forked child starts with those of its parent."""

    def __init__(self) -> None:
        self._by_folder: dict[Path, tuple[EmbeddedServer, FileLock]] = {}
        self._lock = threading.Lock()
        self._has_warned = False

    def use(self, folder: Path) -> str:
        """Use the server in this folder until this process exits, and return its URL."""
        with self._lock:
            server, users_lock = self._by_folder.get(folder, (EmbeddedServer(folder, settings=_SETTINGS), None))
            if users_lock is None or not users_lock.is_held:
                self._by_folder[folder] = (server, _join(server))
                if not self._has_warned:
                    self._has_warned = True
                    _log.warning(
                        "Using the embedded PostgreSQL, which is for development only; its data are in %s", folder
                    )
            elif not server.is_running:
                with explain_os_errors(folder), lock_exclusive(folder / "start.lock"):
                    server.join()
            return server.url()

    def leave_all(self) -> None:
        for server, users_lock in self._by_folder.values():
            try:
                users_lock.close()
                if server.folder.exists() and (lock := try_lock_exclusive(server.folder / "users.lock")) is not None:
                    with lock:
                        server.stop()
            except (EmbeddedPostgresError, OSError) as error:  # for example a deleted folder; the process still exits
                _log.warning("The embedded PostgreSQL in %s could not be stopped: %s", server.folder, error)
        self._by_folder.clear()

    def renew_lock(self) -> None:
        self._lock = threading.Lock()  # another thread of the parent may hold the old one, and is not in the child


def _join(server: EmbeddedServer) -> FileLock:
    folder = server.folder
    with explain_os_errors(folder):
        make_folder(folder, choose_os_account(folder / "data"))
        with lock_exclusive(folder / "start.lock"):
            users_lock = lock_shared(folder / "users.lock")
            try:
                server.join()
            except BaseException:
                users_lock.close()
                raise
    return users_lock


_servers = _SharedServers()
atexit.register(_servers.leave_all)
os.register_at_fork(after_in_child=_servers.renew_lock)
