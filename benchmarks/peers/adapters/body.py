"""What the tasks of every system share, apart from the protocol: processes that only run tasks need not load that."""

import os
import time
from functools import cache

DATABASE_URL = "PEERS_DATABASE_URL"
REDIS_URL = "PEERS_REDIS_URL"
SETTINGS = "PEERS_SETTINGS"
STARTS_FOLDER = "PEERS_STARTS"

SLEEP_S = 0.1


def database_url() -> str:
    return os.environ[DATABASE_URL]


def redis_url() -> str:
    return os.environ[REDIS_URL]


def settings() -> str:
    """`default` or `best`."""
    return os.environ[SETTINGS]


def note_start(number: int) -> int:
    """How every task of every system begins: a start that happened is seen whatever comes after."""
    os.write(_starts_file(), f"{number} {time.monotonic()}\n".encode())
    return number


@cache
def _starts_file() -> int:
    path = f"{os.environ[STARTS_FOLDER]}/{os.getpid()}"
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
