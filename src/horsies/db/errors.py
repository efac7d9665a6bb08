"""Classification of database errors: what they mean for a caller, in one place."""

import re
from enum import Enum, auto
from typing import TypeAlias

import psycopg
from psycopg import errors
from psycopg_pool import PoolTimeout

from horsies.model.database_url import mask_passwords
from horsies.model.errors import BrokerError, NotPermittedError, SchemaError

# For folders that must not import psycopg.
DriverError: TypeAlias = psycopg.Error
LockTimeout: TypeAlias = errors.LockNotAvailable
DeniedError: TypeAlias = errors.InsufficientPrivilege


class ErrorKind(Enum):
    CONTENTION = auto()
    """The same operation, run again at once, will very likely succeed."""

    CONNECTION_LOST = auto()
    """The server cannot be reached or does not accept statements now. What was under way may have been committed, or not."""

    INVALID_DATA = auto()
    """The values can never be stored."""

    UNEXPECTED = auto()
    """Retrying alone does not help: a missing table or privilege, a full disk, a bug."""


_CONTENTION = (errors.SerializationFailure, errors.DeadlockDetected, errors.LockNotAvailable)
_CONNECTION_LOST = (
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.CannotConnectNow,
    errors.TooManyConnections,
    errors.IdleInTransactionSessionTimeout,
    errors.IdleSessionTimeout,
    errors.ReadOnlySqlTransaction,  # from a standby: a failover is still in progress
    PoolTimeout,
    psycopg.InterfaceError,  # the connection object was already closed
)

# Classes of SQLSTATE for which no row is the cause: missing statements and objects, privileges, resources, locks, the system. A
# cancelled statement (57014) is not among them: one row may have taken too long.
_SERVER_CLASSES = frozenset({"0A", "25", "26", "3F", "42", "53", "55", "58", "F0"})

# A refused connection has no SQLSTATE, so it is recognized by its message. In a language other than English it counts as lost and is
# retried.
_REFUSED_CONNECTION = re.compile(
    r"password authentication failed|no password supplied|no pg_hba\.conf entry"
    r'|(database|role) ".*" does not exist|permission denied for database'
    r"|no such (database|user)|bouncer config error|unsupported startup parameter"  # PgBouncer
)


def classify(error: BaseException) -> ErrorKind:
    if isinstance(error, _CONTENTION):
        return ErrorKind.CONTENTION
    if isinstance(error, _CONNECTION_LOST):
        return ErrorKind.CONNECTION_LOST
    if isinstance(error, psycopg.DataError | errors.ProgramLimitExceeded):  # of the wrong type, or too large
        return ErrorKind.INVALID_DATA
    # A broken connection has no SQLSTATE, or one of class 08.
    if isinstance(error, psycopg.OperationalError) and (error.sqlstate is None or error.sqlstate.startswith("08")):
        return ErrorKind.UNEXPECTED if _REFUSED_CONNECTION.search(str(error)) else ErrorKind.CONNECTION_LOST
    return ErrorKind.UNEXPECTED


def is_timeout(error: BaseException | None) -> bool:
    """Whether a statement took too long, or a lock."""
    return isinstance(error, errors.QueryCanceled | LockTimeout)


def is_about_values(error: BaseException) -> bool:
    """Whether the server will never store these values: they have the wrong type, are too large, or violate a constraint."""
    return isinstance(error, psycopg.DataError | psycopg.IntegrityError | errors.ProgramLimitExceeded)


def is_about_server(error: BaseException) -> bool:
    """Whether the server refuses every statement of this kind now: a full disk, a missing table, a revoked privilege."""
    sqlstate = error.sqlstate if isinstance(error, psycopg.Error) else None
    return (sqlstate or "")[:2] in _SERVER_CLASSES


def is_about_row(error: psycopg.Error) -> bool:
    """Whether one row may be the cause, so that the others can be processed without it."""
    return classify(error) not in (ErrorKind.CONTENTION, ErrorKind.CONNECTION_LOST) and not is_about_server(error)


def short_text(error: psycopg.Error) -> str:
    """Return the message in one line, without the details, which may contain values of rows."""
    return mask_passwords(error.diag.message_primary or str(error).strip().partition("\n")[0]) or type(error).__name__


def broker_error(error: psycopg.Error, server: str = "PostgreSQL") -> BrokerError:
    """Convert to the error for users: without passwords, and with whether a retry may help."""
    if isinstance(error, errors.UndefinedTable | errors.InvalidSchemaName):
        return SchemaError(
            f"the tables of horsies are not in this database ({error.diag.message_primary}); "
            "run `horsies migrate`, or start a worker once, with a user who may create them"
        )
    if isinstance(error, DeniedError):
        return NotPermittedError(f"{server}: {short_text(error)}; the database role of this process was not granted it")
    text = mask_passwords(str(error).strip()) or type(error).__name__
    return BrokerError(
        f"{server}: {text}", retryable=classify(error) in (ErrorKind.CONTENTION, ErrorKind.CONNECTION_LOST)
    )
