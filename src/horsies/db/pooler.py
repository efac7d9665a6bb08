"""Sessions: is it ours alone, or does a pooler lend it to us for one transaction at a time?

State in a session (a LISTEN, a prepared statement) is useful only if the session is ours. At connect, the server reports its process id.
A pooler reports one of its own, so if `pg_backend_pid()` differs from it, the session is not ours, or at least not for certain.

**Plans.** A prepared statement keeps its plan, and the table of waiting tasks is empty now and has a million rows tomorrow. A sequential
scan of an empty table costs nothing, so the server would choose it and keep it until the table is analyzed. So in sessions that are
ours a table is only read by an index (`INDEX_SCANS`). Where nothing is prepared, each statement is planned for the table as it is.

Planning most of our statements takes longer than running them, and the server repeats it for each set of parameters while that looks
cheaper. So workers and producers have them planned once (`GENERIC_PLANS`). Statements whose plan depends on their parameters ask
for a custom plan (`statement.plan_for_values`).

**Settings.** A role, a database or a URL may set anything for its sessions. Our statements depend on some settings (`PINNED`), so we
set them: once per session if the session is ours, otherwise at the start of every transaction, for that transaction only. The most
important is `search_path`: an operator or a function in a schema of the path whose argument types match better is preferred to
PostgreSQL's own, so a user who may create objects in `public` could run code with the privileges of producers and workers. Statements
that run before the settings apply, or on a caller's connection, qualify every operator, function and type with its schema.

One round trip sets everything and finds out whether the session is ours: `set_config` is local to the transaction, which ends with
the statement, unless the process id is the one reported at connect.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final, TypeAlias
from weakref import WeakSet

import psycopg
from psycopg import errors
from psycopg.abc import Buffer
from psycopg.adapt import Loader

AnyConnection: TypeAlias = psycopg.Connection | psycopg.AsyncConnection
Settings: TypeAlias = Mapping[str, str]

PREPARE_THRESHOLD = 2
POOLER_CHECKS = 10  # comparisons of process ids before a session counts as not shared
UNDO_ATTEMPTS = 100

PINNED: Final[Settings] = MappingProxyType(
    {
        # No schema in which others can create objects. pg_temp is named to be last: unnamed it would come first, for tables and types.
        "search_path": "pg_catalog, pg_temp",
        # The formats that the driver reads.
        "DateStyle": "ISO, MDY",
        "IntervalStyle": "postgres",
        "TimeZone": "UTC",
        "extra_float_digits": "1",
        "bytea_output": "hex",
        # How our literals and arrays are read: with array_nulls off, NULL in an array is a text of four letters.
        "standard_conforming_strings": "on",
        "array_nulls": "on",
    }
)
INDEX_SCANS: Final[Settings] = MappingProxyType({"enable_seqscan": "off", "jit": "off"})
GENERIC_PLANS: Final[Settings] = MappingProxyType({**INDEX_SCANS, "plan_cache_mode": "force_generic_plan"})
UNLIMITED: Final[Settings] = MappingProxyType(
    {
        # The limits of a role are meant for its queries. A worker's own connections idle by design, and set limits where they need them.
        "idle_session_timeout": "0",
        "transaction_timeout": "0",
        "statement_timeout": "0",
        "lock_timeout": "0",
    }
)
ENDS_WITH_CLIENT: Final[Settings] = MappingProxyType(
    {
        # When the client's machine vanishes, or its network, the server ends the session after a minute, and not after hours: a listener holds slots
        # that others wait for. The client's settings of these names do not affect the server. Not for the heartbeat, whose session holds the lock of
        # its worker: how long a worker may be silent is configured.
        "tcp_keepalives_idle": "30",
        "tcp_keepalives_interval": "10",
        "tcp_keepalives_count": "3",
        "tcp_user_timeout": "60000",
    }
)
EARLIEST: Final = datetime(1, 1, 2, tzinfo=UTC)
LATEST: Final = datetime(9999, 12, 30, tzinfo=UTC)
"""A day from the limits of Python, so that they can be converted to any time zone."""

log = logging.getLogger("horsies.db")


class UnsuitableEncoding(psycopg.NotSupportedError):
    """The database, or the session, cannot represent every text."""


def require_utf8(connection: AnyConnection) -> None:
    """Refuse a database, or a session, with another encoding. Needs no round trip: the server reports both at connect."""
    info = connection.info
    server, client = info.parameter_status("server_encoding"), info.parameter_status("client_encoding")
    if server not in {"UTF8", None}:
        raise UnsuitableEncoding(
            f"database {info.dbname!r} has the encoding {server}, which cannot hold every text; horsies needs a database with "
            "the encoding UTF8: make one with `create database NAME encoding 'UTF8' template template0`"
        )
    if client not in {"UTF8", None}:
        raise UnsuitableEncoding(
            f"client_encoding is {client} although UTF8 was requested; if there is a pooler in between, let it pass client_encoding on"
        )


def set_locally(settings: Settings) -> str:
    """Return a statement that sets these for the rest of the transaction."""
    return f"select {', '.join(_set_config(name, value, 'true') for name, value in settings.items())}"


def apply_session_settings(settings: Settings, backend_pid: str) -> str:
    """Return a statement that selects the server's process id and, if it is this one, sets the pinned settings and these.

    `backend_pid` is the id reported at connect, or a parameter for it.
    """
    current = "pg_catalog.pg_backend_pid()"
    is_local = f"{current} operator(pg_catalog.<>) {backend_pid}"
    # The isolation level has no effect inside a transaction, so it is not among the pinned settings.
    all_settings = {**PINNED, "default_transaction_isolation": "read committed", **settings}
    return f"select {current}, {', '.join(_set_config(name, value, is_local) for name, value in all_settings.items())}"


def _set_config(name: str, value: str, is_local: str) -> str:
    text = value if value.startswith("%(") else f"'{value}'"
    call = f"pg_catalog.set_config('{name}', {text}, {is_local})"
    if name == "transaction_timeout":  # since PostgreSQL 17
        return f"case when pg_catalog.current_setting('{name}', true) is not null then {call} end"
    return call


def get_backend_pid(connection: psycopg.Connection) -> int:
    """Return the id of the server process that executes our statements at this moment."""
    row = connection.execute("select pg_catalog.pg_backend_pid()").fetchone()
    return row[0] if row else 0


def is_direct(connection: psycopg.Connection) -> bool:
    """Whether the session is ours; if so, the pinned settings apply afterwards, and no limits."""
    expected = connection.info.backend_pid
    settings = {**INDEX_SCANS, **UNLIMITED, **ENDS_WITH_CLIENT}
    row = connection.execute(apply_session_settings(settings, str(expected)).encode()).fetchone()
    return row is not None and row[0] == expected


def is_shared(connection: psycopg.Connection, get_other_pid: Callable[[], int], checks: int = POOLER_CHECKS) -> bool:
    """Whether it can be proved: our process changes, or also serves another connection of ours."""
    pid = get_backend_pid(connection)
    return any(get_other_pid() == pid or get_backend_pid(connection) != pid for _ in range(checks))


def undo_in_session(connection: psycopg.Connection, commands: Sequence[bytes], pid: int) -> None:
    """Undo what was left in the session of this process, which others may use now: repeat until we get it again."""
    for _ in range(UNDO_ATTEMPTS):
        with connection.transaction():
            if get_backend_pid(connection) == pid:
                for command in commands:
                    connection.execute(command)
                return


class PreparedStatements:
    """Decides whether connections use prepared statements, which save a third of a batch: until a session turns out to be shared."""

    def __init__(self, settings: Settings = INDEX_SCANS) -> None:
        self._settings = settings
        self._are_safe = True
        self._lock = threading.Lock()  # pools connect in threads of their own
        self._connections: WeakSet[AnyConnection] = WeakSet()  # that prepare statements

    def configure(self, connection: psycopg.Connection) -> None:
        """Set up a new connection."""
        row = connection.execute(self._settings_for(connection)).fetchone() if self._are_safe else None
        self.enable_if_ours(connection, row[0] if row else 0)

    async def configure_async(self, connection: psycopg.AsyncConnection) -> None:
        row = await (await connection.execute(self._settings_for(connection))).fetchone() if self._are_safe else None
        self.enable_if_ours(connection, row[0] if row else 0)

    def _settings_for(self, connection: AnyConnection) -> bytes:
        return apply_session_settings(self._settings, str(connection.info.backend_pid)).encode()

    def enable_if_ours(self, connection: AnyConnection, pid: int) -> bool:
        """Compare the process id that `apply_session_settings` returned; return whether the session is ours.

        Only then are statements prepared, and no transaction sets the pinned settings again (`pipeline.py`).
        """
        with self._lock:
            if self._are_safe and pid == connection.info.backend_pid:
                self._connections.add(connection)
                connection.prepare_threshold = PREPARE_THRESHOLD
                return True
        _disable(connection)
        return False

    def has_failed(self, error: psycopg.Error) -> bool:
        """Whether this error shows that another client uses our session. From then on nothing is prepared, on any connection."""
        if not isinstance(error, errors.InvalidSqlStatementName | errors.DuplicatePreparedStatement):
            return False
        if self._are_safe:
            log.info(
                "prepared statement disappeared (transaction pooler or DISCARD ALL?); disabling prepared statements"
            )
        with self._lock:
            self._are_safe = False
            for connection in self._connections:
                _disable(connection)
            self._connections.clear()
        return True


def _disable(connection: AnyConnection) -> None:
    connection.prepare_threshold = None
    connection.adapters.register_loader("timestamptz", IsoTimestamptzLoader)


class IsoTimestamptzLoader(Loader):
    """Reads ISO regardless of the reported DateStyle: where it is set per transaction, it is another one afterwards."""

    def load(self, data: Buffer) -> datetime:
        text = bytes(data)
        try:
            return datetime.fromisoformat(text.decode()).astimezone(UTC)
        except (ValueError, OverflowError):
            return clamp_timestamp(text)


def clamp_timestamp(text: bytes) -> datetime:
    """Return the nearest time to one that Python cannot represent."""
    return EARLIEST if text.startswith((b"-", b"0001")) or text.endswith(b"BC") else LATEST
