"""A notification sent and heard: does LISTEN work from here, and what stands in its way?

Like the listener (`listen.py`) it leaves nothing behind in a session that is a pooler's.
"""

import secrets
import time
from dataclasses import dataclass
from enum import Enum, auto

import psycopg

from horsies.db import broker, migrate
from horsies.db.channels import Channel
from horsies.db.errors import broker_error
from horsies.db.pool import connect
from horsies.db.pooler import backend_pid, is_direct, is_shared, undo_in_session
from horsies.model.config import PostgresConfig


class ListenStatus(Enum):
    HEARD = auto()
    SHARED = auto()
    """A pooler lends sessions for a transaction at a time: LISTEN cannot work."""
    SILENT = auto()
    """Nothing arrived in time."""
    ELSEWHERE = auto()
    """`listen_url` leads to another database."""
    UNREACHABLE = auto()
    """`listen_url` leads nowhere."""


@dataclass(frozen=True, slots=True)
class ListenReport:
    """How it went, how long it took, whether each way leads to the server without a pooler, and what was said if it led nowhere."""

    hearing: ListenStatus
    took_s: float = 0.0
    is_direct: bool = True
    listens_directly: bool = True
    words: str = ""


def check_listen(config: PostgresConfig, timeout_s: float) -> ListenReport:
    """From `database_url` to `listen_url`. Raises when the first cannot be reached."""
    with connect(config, "doctor") as sending:
        try:
            listening = connect(config, "doctor", url=config.listen_conninfo)
        except psycopg.Error as error:
            return ListenReport(ListenStatus.UNREACHABLE, words=str(broker_error(error, "PostgreSQL at listen_url")))
        with listening:
            return _tried(config, sending, listening, timeout_s)


def _tried(
    config: PostgresConfig, sending: psycopg.Connection, listening: psycopg.Connection, timeout_s: float
) -> ListenReport:
    here, there = is_direct(sending), is_direct(listening)
    if _database(sending) != _database(listening):
        return ListenReport(ListenStatus.ELSEWHERE, is_direct=here, listens_directly=there)
    if not there and is_shared(listening, lambda: backend_pid(sending)):
        return ListenReport(ListenStatus.SHARED, is_direct=here, listens_directly=there)
    began = time.monotonic()
    heard = _is_heard(sending, listening, Channel.TEST.name_in(config.schema), timeout_s)
    hearing = ListenStatus.HEARD if heard else ListenStatus.SILENT
    return ListenReport(hearing, time.monotonic() - began, is_direct=here, listens_directly=there)


def _database(connection: psycopg.Connection) -> tuple[object, ...] | None:
    return connection.execute(migrate.SQL["identify_database"].for_schema("")).fetchone()


def _is_heard(sending: psycopg.Connection, listening: psycopg.Connection, channel: str, timeout_s: float) -> bool:
    token = secrets.token_hex(8)  # other listeners test themselves on this channel too, and know their own
    with listening.transaction():
        listening.execute(f'listen "{channel}"'.encode())
        process = backend_pid(listening)
    try:
        sending.execute(broker.SQL["notify"].for_schema(""), {"channel": channel, "payload": token})
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            if any(heard.payload == token for heard in listening.notifies(timeout=left, stop_after=1)):
                return True
        return False
    finally:
        undo_in_session(listening, [f'unlisten "{channel}"'.encode()], process)
