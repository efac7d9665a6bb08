"""File locks that say who uses, starts or is a server; the kernel drops them when their holder dies.

`flock` belongs to the open file description, not to the process: copies of a descriptor made by fork share one lock,
and it is gone when the last copy is closed. Three things follow.

- Closing a copy never takes the lock from the others; unlocking or converting through one copy does. So a held lock is
  only ever closed here, and whoever wants to know if others remain asks through a descriptor opened anew.
- A lock handed to PostgreSQL lives exactly as long as any PostgreSQL process: a proof of life without process ids.
- A fork in another thread would copy a start-up lock by accident and keep it for the child's whole life. Such
  locks are `momentary`: a forked child closes its copies at once.
"""

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

_momentary: set[int] = set()


class FileLock:
    """One held lock; closing it gives it up, unless a copy of the descriptor lives elsewhere."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        opened = os.fstat(fd)
        self._identity = (opened.st_dev, opened.st_ino)

    @property
    def is_held(self) -> bool:
        """Whether the descriptor is still ours: daemons close every descriptor, and numbers are used again."""
        try:
            now = os.fstat(self.fd)
        except OSError:
            return False
        return (now.st_dev, now.st_ino) == self._identity

    def close(self) -> None:
        _momentary.discard(self.fd)
        if self.is_held:
            os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def share(path: Path) -> FileLock:
    """Hold `path` together with others, waiting for one who holds it alone; forked children hold it too."""
    return _locked(_open(path), fcntl.LOCK_SH)


def own(path: Path) -> FileLock:
    """Hold `path` alone for a moment, waiting for others; forked children do not hold it."""
    fd = _open(path)
    _momentary.add(fd)
    return _locked(fd, fcntl.LOCK_EX)


def try_own(path: Path) -> FileLock | None:
    """Like `own`, but None when somebody else holds it."""
    fd = _open(path)
    _momentary.add(fd)
    try:
        return _locked(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _locked(fd: int, operation: int) -> FileLock:
    lock = FileLock(fd)
    try:
        fcntl.flock(fd, operation)
    except BaseException:
        lock.close()
        raise
    return lock


def _close_momentary_in_child() -> None:
    for fd in _momentary:
        os.close(fd)
    _momentary.clear()


os.register_at_fork(after_in_child=_close_momentary_in_child)
