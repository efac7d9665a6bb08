"""Whose session is it? Ours alone, or a pooler's that is lent to us for one transaction at a time.

What is kept in a session (a LISTEN, a prepared statement) is worth having only in one that is ours. The server names the process that
greets a client. A pooler greets in its own name, so a session whose process is another than that is not ours, or at least not for certain.

A prepared statement keeps its plan, and the table of what waits is empty now and holds a million rows tomorrow. To read an empty table from end to
end costs nothing, so that is how the server would do it, and go on doing it until somebody analyses the table. Hence in sessions that are
ours only an index is a way in (`STEADY`). Where nothing is prepared, every statement is planned for the table as it is.

Planning most of our statements takes longer than running them, and the server does it again for the parameters of each, as long as that looks
cheaper. So workers and producers have them planned once (`PLANNED_ONCE`). What depends on its parameters asks for another plan each time
(`values.py`).

**Settings.** A role, a database or a URL may set anything for its sessions. Our statements depend on some settings (`PINNED`), so they are set by
us: once per session where the session is ours, otherwise at the start of every transaction, for that transaction only. First among
them is `search_path`: an operator or a function in a schema of the path whose argument types match better than PostgreSQL's own is preferred
to it, so whoever may create objects in `public` could run code with the rights of whoever sends or works. What runs before the settings are in
force, and what runs on a caller's own connection, names every operator, function and type with its schema.

One round trip sets everything and finds out whose session it is: `set_config` is told to be local to the transaction, which ends with
the statement, unless the process is the one that greeted us.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final, TypeAlias

import psycopg
from psycopg import errors
from psycopg.abc import Buffer
from psycopg.adapt import Loader

Settings: TypeAlias = Mapping[str, str]

BACKEND_PID = "select pg_catalog.pg_backend_pid()"
PREPARE_AFTER = 2
POOLER_CHECKS = 10  # for a proof that a session is shared
UNDO_STATEMENTS = 100

PINNED: Final[Settings] = MappingProxyType(
    {
        # No schema that anybody can create objects in. pg_temp is named to be last: unnamed it would come first, for tables and types.
        "search_path": "pg_catalog, pg_temp",
        # What the driver reads, and what it takes text for.
        "DateStyle": "ISO, MDY",
        "IntervalStyle": "postgres",
        "TimeZone": "UTC",
        "extra_float_digits": "1",
        "bytea_output": "hex",
        # How our literals and arrays are read: off, "NULL" in an array is a text of four letters.
        "standard_conforming_strings": "on",
        "array_nulls": "on",
    }
)
GENERIC_PLANS: Final[Settings] = MappingProxyType({"enable_seqscan": "off", "jit": "off"})
CUSTOM_PLANS: Final[Settings] = MappingProxyType({**GENERIC_PLANS, "plan_cache_mode": "force_generic_plan"})
UNLIMITED: Final[Settings] = MappingProxyType(
    {
        # A role's limits are meant for its queries. A worker's own connections idle by design, and set limits of their own where they need them.
        "idle_session_timeout": "0",
        "transaction_timeout": "0",
        "statement_timeout": "0",
        "lock_timeout": "0",
    }
)

_SESSION_ONLY: Final[Settings] = MappingProxyType(
    {"default_transaction_isolation": "read committed"}  # of no use inside a transaction
)
_NOT_EVERYWHERE: Final = frozenset({"transaction_timeout"})  # since PostgreSQL 17

log = logging.getLogger("horsies.db")


class UnsuitableEncoding(psycopg.NotSupportedError):
    """Texts cannot be stored, or not be carried, as they are."""


def require_utf8(connection: "psycopg.Connection | psycopg.AsyncConnection") -> None:
    """Refuse a database that cannot hold every text, and a session in which texts are converted. No round trip: the server has told us."""
    info = connection.info
    server, client = info.parameter_status("server_encoding"), info.parameter_status("client_encoding")
    if server not in {"UTF8", None}:
        raise UnsuitableEncoding(
            f"database {info.dbname!r} has the encoding {server}, which cannot hold every text; horsies needs a database with "
            "the encoding UTF8: make one with `create database NAME encoding 'UTF8' template template0`"
        )
    if client not in {"UTF8", None}:
        raise UnsuitableEncoding(
            f"client_encoding is {client} although UTF8 was asked for; if there is a pooler in between, let it pass client_encoding on"
        )


def set_locally(settings: Settings) -> str:
    """A statement that sets these for the rest of the transaction."""
    return f"select {', '.join(_set(name, value, 'true') for name, value in settings.items())}"


def apply_session_settings(settings: Settings, greeted: str) -> str:
    """A statement that returns the server's process, and sets the pinned settings and these if it is the one that greeted us.

    `greeted` is the number of that process, or a parameter for it.
    """
    process = "pg_catalog.pg_backend_pid()"
    is_local = f"{process} operator(pg_catalog.<>) {greeted}"
    every = {**PINNED, **_SESSION_ONLY, **settings}
    return f"select {process}, {', '.join(_set(name, value, is_local) for name, value in every.items())}"


def _set(name: str, value: str, is_local: str) -> str:
    text = value if value.startswith("%(") else f"'{value}'"
    set_it = f"pg_catalog.set_config('{name}', {text}, {is_local})"
    if name in _NOT_EVERYWHERE:
        return f"case when pg_catalog.current_setting('{name}', true) is not null then {set_it} end"
    return set_it


def backend_pid(connection: psycopg.Connection) -> int:
    """The server's process that works for us at this moment."""
    row = connection.execute(BACKEND_PID).fetchone()
    return row[0] if row else 0


def is_direct(connection: psycopg.Connection, settings: Settings = UNLIMITED) -> bool:
    """Whether the session is ours; if so, the pinned settings and these are in force afterwards."""
    greeted = connection.info.backend_pid
    row = connection.execute(apply_session_settings(settings, str(greeted)).encode()).fetchone()
    return row is not None and row[0] == greeted


EARLIEST: Final = datetime(1, 1, 2, tzinfo=UTC)
LATEST: Final = datetime(9999, 12, 30, tzinfo=UTC)
"""A day from the limits of Python, so that they can be shown in any time zone."""


def nearest_moment(text: bytes) -> datetime:
    """Of a moment that Python cannot represent: the one that comes closest."""
    return EARLIEST if text.startswith((b"-", b"0001")) or text.endswith(b"BC") else LATEST


class IsoTimestamptzLoader(Loader):
    """Reads ISO whatever the session's DateStyle is said to be: where it is set per transaction, it is another one again afterwards."""

    def load(self, data: Buffer) -> datetime:
        text = bytes(data)
        try:
            return datetime.fromisoformat(text.decode()).astimezone(UTC)
        except (ValueError, OverflowError):
            return nearest_moment(text)


def expect_iso(connection: "psycopg.Connection | psycopg.AsyncConnection") -> None:
    """For a session in which settings hold for a transaction only."""
    connection.adapters.register_loader("timestamptz", IsoTimestamptzLoader)


def is_shared(connection: psycopg.Connection, process_of_other: Callable[[], int]) -> bool:
    """Whether it can be proved: our process changes, or works for another connection of ours as well."""
    process = backend_pid(connection)
    return any(process_of_other() == process or backend_pid(connection) != process for _ in range(POOLER_CHECKS))


def undo_in_session(connection: psycopg.Connection, commands: Sequence[bytes], process: int) -> None:
    """Undo what was left in the session of this process, whoever else has been in it meanwhile."""
    for _ in range(UNDO_STATEMENTS):
        with connection.transaction():
            if backend_pid(connection) == process:
                for command in commands:
                    connection.execute(command)
                return


class PreparedStatements:
    """Prepared statements save a third of a turn, so they are used where sessions are ours, until one turns out not to be."""

    def __init__(self, settings: Settings = GENERIC_PLANS) -> None:
        self._settings = settings
        self._is_safe = True

    def begin(self, connection: psycopg.Connection) -> None:
        """For a connection just made."""
        row = connection.execute(self._settle_in(connection)).fetchone() if self._is_safe else None
        self.found(connection, row[0] if row else 0)

    async def begin_async(self, connection: psycopg.AsyncConnection) -> None:
        row = await (await connection.execute(self._settle_in(connection))).fetchone() if self._is_safe else None
        self.found(connection, row[0] if row else 0)

    def _settle_in(self, connection: psycopg.Connection | psycopg.AsyncConnection) -> bytes:
        return apply_session_settings(self._settings, str(connection.info.backend_pid)).encode()

    def found(self, connection: psycopg.Connection | psycopg.AsyncConnection, process: int) -> bool:
        """This process has answered `settle_in`: whether the session is ours. Only there statements are prepared, and no transaction
        sets the pinned settings again (`dialogue.py`).
        """
        if self._is_safe and process == connection.info.backend_pid:
            connection.prepare_threshold = PREPARE_AFTER
            return True
        self._share(connection)
        return False

    def go_on(self, connection: psycopg.Connection) -> None:
        """For a connection that has served before."""
        if not self._is_safe:
            self._share(connection)

    async def go_on_async(self, connection: psycopg.AsyncConnection) -> None:
        if not self._is_safe:
            self._share(connection)

    def _share(self, connection: psycopg.Connection | psycopg.AsyncConnection) -> None:
        connection.prepare_threshold = None
        expect_iso(connection)

    def has_failed(self, error: psycopg.Error) -> bool:
        """Whether this error says that somebody else has been in our session. From then on nothing is prepared."""
        if not isinstance(error, errors.InvalidSqlStatementName | errors.DuplicatePreparedStatement):
            return False
        if self._is_safe:
            log.info("our sessions are not ours alone (a pooler, or DISCARD ALL?): statements are no longer prepared")
        self._is_safe = False
        return True
