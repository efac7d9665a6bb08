"""The one place that decides what a database error means."""

import re
from enum import Enum, auto
from typing import TypeAlias

import psycopg
from psycopg import errors
from psycopg_pool import PoolTimeout

from horsies.model.database_url import mask_passwords
from horsies.model.errors import BrokerError, SchemaError

DriverError: TypeAlias = psycopg.Error
"""For rooms that must not know psycopg."""

StatementTimeout: TypeAlias = errors.QueryCanceled
"""A statement ran into its time limit."""


LockTimeout: TypeAlias = errors.LockNotAvailable
"""A statement has waited for a lock until its time limit."""


class ErrorKind(Enum):
    CONTENTION = auto()
    """Ordinary contention: the same verb, run again at once, will very likely succeed."""

    CONNECTION_LOST = auto()
    """The server cannot be reached or cannot serve now. What was under way may or may not have been committed."""

    INVALID_DATA = auto()
    """The values themselves cannot be stored; they never will be."""

    UNEXPECTED = auto()
    """Something that trying again does not mend by itself: a missing table, a privilege, a full disk, a bug."""


_CONTENTION = (
    errors.SerializationFailure,
    errors.DeadlockDetected,
    errors.LockNotAvailable,
)
_CONNECTION_LOST = (
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.CannotConnectNow,
    errors.TooManyConnections,
    errors.IdleInTransactionSessionTimeout,
    errors.IdleSessionTimeout,
    errors.ReadOnlySqlTransaction,  # a standby answered: the fail-over is not over yet
    PoolTimeout,
    psycopg.InterfaceError,  # the connection object was already closed
)

# Classes of SQLSTATE that blame no row: statements and objects that are not there, missing rights, resources, locks, the system. A
# statement that was cancelled (57014) is not among them: one row may have taken too long.
_SERVER_CLASSES = frozenset({"0A", "25", "26", "3F", "42", "53", "55", "58", "F0"})

# A connection that is turned away reports no SQLSTATE either, so its words must do. In another language than English it
# counts as lost, and is tried again.
_REFUSED_CONNECTION = re.compile(
    r"password authentication failed|no password supplied|no pg_hba\.conf entry"
    r'|(database|role) ".*" does not exist|permission denied for database'
    r"|no such (database|user)|bouncer config error|unsupported startup parameter"  # PgBouncer's
)


def classify(error: BaseException) -> ErrorKind:
    if isinstance(error, _CONTENTION):
        return ErrorKind.CONTENTION
    if isinstance(error, _CONNECTION_LOST):
        return ErrorKind.CONNECTION_LOST
    if isinstance(error, psycopg.DataError | errors.ProgramLimitExceeded):  # of the wrong kind, or too large
        return ErrorKind.INVALID_DATA
    # A connection that breaks reports no SQLSTATE, or one of class 08.
    if isinstance(error, psycopg.OperationalError) and (error.sqlstate is None or error.sqlstate.startswith("08")):
        return ErrorKind.UNEXPECTED if _REFUSED_CONNECTION.search(str(error)) else ErrorKind.CONNECTION_LOST
    return ErrorKind.UNEXPECTED


def is_about_values(error: BaseException) -> bool:
    """The server will never store these values: of the wrong kind, too large, or against a constraint."""
    return isinstance(error, psycopg.DataError | psycopg.IntegrityError | errors.ProgramLimitExceeded)


def is_about_server(error: BaseException) -> bool:
    """The server would refuse anything of this kind now: a full disk, a missing table, a privilege that was taken away."""
    sqlstate = error.sqlstate if isinstance(error, psycopg.Error) else None
    return (sqlstate or "")[:2] in _SERVER_CLASSES


def is_of_a_row(error: psycopg.Error) -> bool:
    """Whether one of the rows may be to blame, so that the others can be served without it."""
    return classify(error) not in (ErrorKind.CONTENTION, ErrorKind.CONNECTION_LOST) and not is_about_server(error)


def short_text(error: psycopg.Error) -> str:
    """What went wrong in one line, without the values of rows that the server tells in its details."""
    return mask_passwords(error.diag.message_primary or str(error).strip().partition("\n")[0]) or type(error).__name__


def broker_error(error: psycopg.Error, server: str = "PostgreSQL") -> BrokerError:
    """The same error for users: one paragraph, no password, and whether trying again may help."""
    if isinstance(error, errors.UndefinedTable | errors.InvalidSchemaName):
        return SchemaError(
            f"the tables of horsies are not in this database ({error.diag.message_primary}); "
            "run `horsies migrate`, or start a worker once, with a user who may create them"
        )
    text = mask_passwords(str(error).strip()) or type(error).__name__
    return BrokerError(
        f"{server}: {text}", retryable=classify(error) in (ErrorKind.CONTENTION, ErrorKind.CONNECTION_LOST)
    )
