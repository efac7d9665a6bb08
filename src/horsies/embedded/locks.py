"""File locks that show which processes use, start or are a server. The kernel releases them when their holder dies.

`flock` belongs to the open file description, not to the process: copies of a descriptor made by fork share one lock,
which is released when the last copy is closed. It follows:

- Closing a copy does not release the lock of the others, but unlocking or converting it does. So a held lock is only
  ever closed here, and other holders are detected through a descriptor that was opened separately.
- A lock that PostgreSQL inherits is held exactly as long as any PostgreSQL process runs. It proves that the server is
  alive without process ids.
- A fork in another thread copies a start-up lock by accident, and the child would keep it as long as it runs. A forked
  child therefore closes its copies of exclusive locks immediately.
"""

import fcntl
import os
from pathlib import Path
from typing import Self

_exclusive_fds: set[int] = set()


class FileLock:
    """One held lock. Closing it releases the lock, unless another process has a copy of the descriptor."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        opened = os.fstat(fd)
        self._identity = (opened.st_dev, opened.st_ino)

    @property
    def is_held(self) -> bool:
        """Whether the descriptor is still ours: daemons close all descriptors, and their numbers are reused."""
        try:
            now = os.fstat(self.fd)
        except OSError:
            return False
        return (now.st_dev, now.st_ino) == self._identity

    def close(self) -> None:
        _exclusive_fds.discard(self.fd)
        if self.is_held:
            os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def lock_shared(path: Path) -> FileLock:
    """Lock `path` together with others, after waiting for an exclusive lock to end. Forked children hold it, too."""
    return _lock(path, fcntl.LOCK_SH)


def lock_exclusive(path: Path) -> FileLock:
    """Lock `path` alone for a short time, after waiting for all others. Forked children do not hold it."""
    return _lock(path, fcntl.LOCK_EX)


def try_lock_exclusive(path: Path) -> FileLock | None:
    """Like `lock_exclusive`, but return None if another process holds a lock."""
    try:
        return _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None


def _lock(path: Path, operation: int) -> FileLock:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    if operation & fcntl.LOCK_EX:
        _exclusive_fds.add(fd)  # before the lock is taken: a fork may come at any time
    lock = FileLock(fd)
    try:
        fcntl.flock(fd, operation)
    except BaseException:
        lock.close()
        raise
    return lock


def _close_exclusive_in_child() -> None:
    for fd in _exclusive_fds:
        os.close(fd)
    _exclusive_fds.clear()


os.register_at_fork(after_in_child=_close_exclusive_in_child)
