"""A server with many users: the first starts it, the last to leave stops it, and none needs to know the others.

- **Joining**: alone in `start.lock`, take a share of `users.lock`, then see that the server runs. Two processes that
  start at once are one after the other here, and the second finds a running server.
- **Leaving**, at exit: give up the share, then try to own `users.lock`. Whoever gets it was the last and stops the
  server while owning it, so a joiner waits for its share until the server is down, and then starts it anew. Two
  that leave at once both try after giving up, so exactly one gets it, or the other one was a user still.
- **Killed users** lose their share to the kernel. When the last one is killed, the server runs on with nobody, and the
  next user joins it. A killed starter's initdb and pg_ctl hold the server's own lock until they end (`server.py`).
- **A killed server** is started again by the next call, with the same address: users reconnect.
- **Forked children** are users, too: they keep a copy of the share, which is one lock with the parent's, so the server
  lives until both are gone. Neither can take it from the other, because shares are only ever closed. A child that
  ends by `os._exit` leaves without stopping anything. Programs started by exec inherit nothing.
"""

import atexit
import logging
import os
import threading
from dataclasses import dataclass
from pathlib import Path

from horsies.dev import locks
from horsies.dev.account import choose_account, make_folder
from horsies.dev.errors import EmbeddedPostgresError, explained
from horsies.dev.server import Server

_log = logging.getLogger("horsies")

# Durability stays as PostgreSQL has it, on: what works in development should not depend on a shortcut.
_SETTINGS = {"shared_buffers": "128MB", "max_connections": "200"}


@dataclass(frozen=True, slots=True)
class _Use:
    """This process's share of one server."""

    server: Server
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
    server = Server(folder, settings=_SETTINGS)
    with explained(folder):
        make_folder(folder, choose_account(folder / "data"))
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
