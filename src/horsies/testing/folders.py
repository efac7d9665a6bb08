"""Folders for the server of a test run. The plug-in loads this in every pytest run, so it imports nothing of horsies."""

import os
import secrets
import shutil
from pathlib import Path

PREFIX = "horsies-test-"
# A database is cloned about ten times as fast in memory as on a disk. The test runner's own temporary folder does not do: as
# root, the server's user must be able to enter it, and socket paths must be short.
IN_MEMORY, ON_DISK = Path("/dev/shm"), Path("/tmp")  # noqa: S108 - the folder's name cannot be guessed
MIN_FREE_BYTES = 1 << 30


def new_folder() -> Path:
    """Return an unused path. The folder is created by the first process that needs a database."""
    is_usable = IN_MEMORY.is_dir() and os.access(IN_MEMORY, os.W_OK | os.X_OK)
    parent = IN_MEMORY if is_usable and shutil.disk_usage(IN_MEMORY).free >= MIN_FREE_BYTES else ON_DISK
    return parent / f"{PREFIX}{secrets.token_hex(5)}"


def existing_folders() -> list[Path]:
    """Return the folders of all test runs, those that were killed included."""
    return [*IN_MEMORY.glob(f"{PREFIX}*"), *ON_DISK.glob(f"{PREFIX}*")]
