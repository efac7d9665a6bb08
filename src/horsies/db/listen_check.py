"""A check of LISTEN/NOTIFY for the doctor: send a notification, wait for it, and find out what prevents it.

Like the listener it leaves nothing behind in a session of a pooler.
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
from horsies.db.pooler import POOLER_CHECKS, get_backend_pid, is_direct, is_shared, undo_in_session
from horsies.model.config import PostgresConfig


class ListenStatus(Enum):
    RECEIVED = auto()
    SHARED_SESSION = auto()
    """A pooler lends sessions for one transaction at a time: LISTEN cannot work."""
    NOT_RECEIVED = auto()
    """No notification arrived in time."""
    OTHER_DATABASE = auto()
    """`listen_url` leads to another database."""
    UNREACHABLE = auto()
    """`listen_url` cannot be reached."""


@dataclass(frozen=True, slots=True)
class ListenReport:
    """The status, whether each URL leads to the server without a pooler, and the error if `listen_url` is unreachable."""

    status: ListenStatus
    is_direct: bool = True
    listens_directly: bool = True
    error: str = ""


def check_listen(config: PostgresConfig, timeout_s: float, pooler_checks: int = POOLER_CHECKS) -> ListenReport:
    """Notify through `database_url` and listen on `listen_url`. Raise if the first cannot be reached."""
    with connect(config, "doctor") as sender:
        try:
            receiver = connect(config, "doctor", url=config.listen_conninfo)
        except psycopg.Error as error:
            return ListenReport(ListenStatus.UNREACHABLE, error=str(broker_error(error, "PostgreSQL at listen_url")))
        with receiver:
            here, there = is_direct(sender), is_direct(receiver)
            if _identify_database(sender) != _identify_database(receiver):
                status = ListenStatus.OTHER_DATABASE
            elif not there and is_shared(receiver, lambda: get_backend_pid(sender), pooler_checks):
                status = ListenStatus.SHARED_SESSION
            else:
                status = _notify_and_wait(sender, receiver, Channel.TEST.name_in(config.schema), timeout_s)
            return ListenReport(status, is_direct=here, listens_directly=there)


def _identify_database(connection: psycopg.Connection) -> tuple[object, ...] | None:
    return connection.execute(migrate.SQL["identify_database"].for_schema("")).fetchone()


def _notify_and_wait(
    sender: psycopg.Connection, receiver: psycopg.Connection, channel: str, timeout_s: float
) -> ListenStatus:
    token = secrets.token_hex(8)  # other listeners use this channel for their own self-tests
    with receiver.transaction():
        receiver.execute(f'listen "{channel}"'.encode())
        pid = get_backend_pid(receiver)
    try:
        sender.execute(broker.SQL["notify"].for_schema(""), {"channel": channel, "payload": token})
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            if any(received.payload == token for received in receiver.notifies(timeout=left, stop_after=1)):
                return ListenStatus.RECEIVED
        return ListenStatus.NOT_RECEIVED
    finally:
        undo_in_session(receiver, [f'unlisten "{channel}"'.encode()], pid)
