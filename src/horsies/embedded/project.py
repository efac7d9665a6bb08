"""The PostgreSQL of a project in development: one call, and every process of the project meets in one database.

The data are in the user's data folder, keyed by the project's root, so that a producer and a worker started anywhere
inside the project find each other. `HORSIES_EMBEDDED_DIR` names another folder. The server runs while somebody uses it.
"""

import atexit
import hashlib
import logging
import os
import re
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from horsies.embedded import locks
from horsies.embedded.binaries import choose_os_account, make_folder
from horsies.embedded.errors import EmbeddedPostgresError, explained
from horsies.embedded.server import EmbeddedServer

# --------
# A server with many users: the first starts it, the last to leave stops it, and none needs to know the others.
#
# - **Joining**: alone in `start.lock`, take a share of `users.lock`, then see that the server runs. Two processes that
#   start at once are one after the other here, and the second finds a running server.
# - **Leaving**, at exit: give up the share, then try to own `users.lock`. Whoever gets it was the last and stops the
#   server while owning it, so a joiner waits for its share until the server is down, and then starts it anew. Two
#   that leave at once both try after giving up, so exactly one gets it, or the other one was a user still.
# - **Killed users** lose their share to the kernel. When the last one is killed, the server runs on with nobody, and the
#   next user joins it. A killed starter's initdb and pg_ctl hold the server's own lock until they end (`server.py`).
# - **A killed server** is started again by the next call, with the same address: users reconnect.
# - **Forked children** are users, too: they keep a copy of the share, which is one lock with the parent's, so the server
#   lives until both are gone. Neither can take it from the other, because shares are only ever closed. A child that
#   ends by `os._exit` leaves without stopping anything. Programs started by exec inherit nothing.

_log = logging.getLogger("horsies")

# Durability stays as PostgreSQL has it, on: what works in development should not depend on a shortcut.
_SETTINGS = {"shared_buffers": "128MB", "max_connections": "200"}


@dataclass(frozen=True, slots=True)
class _Use:
    """This process's share of one server."""

    server: EmbeddedServer
    share: locks.FileLock


class _Uses:
    """What this process uses; a forked child starts with its parent's."""

    def __init__(self) -> None:
        self.by_folder: dict[Path, _Use] = {}
        self.guard = threading.Lock()
        self.is_announced = False

    def renew_guard(self) -> None:
        self.guard = threading.Lock()  # another thread of the parent may have held the old one for ever


_uses = _Uses()


def hold(folder: Path) -> str:
    """Use the server in this folder until this process exits; its URL."""
    with _uses.guard:
        use = _uses.by_folder.get(folder)
        if use is None or not use.share.is_held:
            use = _join(folder)
            _uses.by_folder[folder] = use
            _announce(folder)
        elif not use.server.is_running:
            with explained(folder), locks.own(folder / "start.lock"):
                use.server.join()
        return use.server.url()


def _join(folder: Path) -> _Use:
    server = EmbeddedServer(folder, settings=_SETTINGS)
    with explained(folder):
        make_folder(folder, choose_os_account(folder / "data"))
        with locks.own(folder / "start.lock"):
            share = locks.share(folder / "users.lock")
            try:
                server.join()
            except BaseException:
                share.close()
                raise
    return _Use(server, share)


def _announce(folder: Path) -> None:
    if not _uses.is_announced:
        _uses.is_announced = True
        _log.warning("Using the embedded PostgreSQL, which is for development only; its data are in %s", folder)


def _leave_all() -> None:
    for folder, use in _uses.by_folder.items():
        try:
            _leave(folder, use)
        except (EmbeddedPostgresError, OSError) as error:  # somebody deleted the folder; exiting goes on
            _log.warning("The embedded PostgreSQL in %s could not be stopped: %s", folder, error)
    _uses.by_folder.clear()


def _leave(folder: Path, use: _Use) -> None:
    use.share.close()
    if not folder.exists():
        return
    alone = locks.try_own(folder / "users.lock")
    if alone is not None:
        with alone:
            use.server.stop()


atexit.register(_leave_all)
os.register_at_fork(after_in_child=_uses.renew_guard)


_ROOT_MARKS = ("pyproject.toml", "setup.py", "setup.cfg", ".git")
_PLATFORMS = ("linux", "darwin")
_SYSTEM_FOLDER = Path("/var/lib/horsies")


def embedded_database_url() -> str:
    """Start or join the project's server, use it until this process exits, and return its URL."""
    if sys.platform not in _PLATFORMS:
        raise EmbeddedPostgresError(
            f"embedded PostgreSQL: it runs on Linux and macOS, not on {sys.platform}: "
            "set HORSIES_DATABASE_URL to a PostgreSQL of your own"
        )

    return hold(embedded_folder())


def embedded_folder() -> Path:
    """Where the server of the current project keeps its data."""
    if override := os.environ.get("HORSIES_EMBEDDED_DIR"):
        return Path(override).expanduser().resolve()
    root = _project_root()
    digest = hashlib.sha256(os.fsencode(root)).hexdigest()[:12]
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", root.name)[:24].strip("-") or "project"
    return _data_home() / f"{name}-{digest}"


def _project_root() -> Path:
    """The nearest folder that looks like a project's root, else the current one."""
    try:
        here = Path.cwd().resolve()
    except FileNotFoundError as error:
        raise EmbeddedPostgresError(
            "embedded PostgreSQL: the current folder was deleted: change to another, or set HORSIES_EMBEDDED_DIR"
        ) from error
    for folder in (here, *here.parents):
        if any((folder / mark).exists() for mark in _ROOT_MARKS):
            return folder
    return here


def _data_home() -> Path:
    if os.geteuid() == 0:  # the server runs as another user then, who cannot enter root's home
        return _SYSTEM_FOLDER
    chosen = os.environ.get("XDG_DATA_HOME", "")
    if sys.platform == "darwin":
        return _home() / "Library" / "Application Support" / "horsies"
    if Path(chosen).is_absolute():
        return Path(chosen) / "horsies"
    return _home() / ".local" / "share" / "horsies"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:
        raise EmbeddedPostgresError(
            "embedded PostgreSQL: this user has no home folder: set HORSIES_EMBEDDED_DIR"
        ) from error
