"""Where the server of a test run lives."""

import os
import secrets
import shutil
from pathlib import Path

PREFIX = "horsies-test-"
# In memory a database is cloned about ten times as fast as on a disk. Neither is the test runner's own temporary folder: as root the
# server's user must be able to enter it, and socket paths must be short.
IN_MEMORY, ON_DISK = Path("/dev/shm"), Path("/tmp")  # noqa: S108 - the folder's name is not to be guessed
ENOUGH_BYTES = 1 << 30


def new_folder() -> Path:
    """Nobody has this name. The folder is made when it is needed."""
    return _place() / f"{PREFIX}{secrets.token_hex(5)}"


def folders() -> list[Path]:
    """Those of all runs there are, and of those that were killed."""
    return [*IN_MEMORY.glob(f"{PREFIX}*"), *ON_DISK.glob(f"{PREFIX}*")]


def _place() -> Path:
    usable = IN_MEMORY.is_dir() and os.access(IN_MEMORY, os.W_OK | os.X_OK)
    return IN_MEMORY if usable and shutil.disk_usage(IN_MEMORY).free >= ENOUGH_BYTES else ON_DISK
