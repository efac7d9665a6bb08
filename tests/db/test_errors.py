import psycopg
import pytest
from psycopg import errors
from psycopg_pool import PoolTimeout

from horsies.db.broker import PostgresBroker
from horsies.db.errors import ErrorKind, broker_error, classify
from horsies.db.statement import Statement, rows
from horsies.model.config import PostgresConfig
from horsies.model.errors import BrokerError, SchemaError
from tests.fixtures.journey import send_new

TABLE = [
    (errors.SerializationFailure, ErrorKind.CONTENTION),
    (errors.DeadlockDetected, ErrorKind.CONTENTION),
    (errors.LockNotAvailable, ErrorKind.CONTENTION),
    (errors.AdminShutdown, ErrorKind.CONNECTION_LOST),
    (errors.CrashShutdown, ErrorKind.CONNECTION_LOST),
    (errors.CannotConnectNow, ErrorKind.CONNECTION_LOST),
    (errors.TooManyConnections, ErrorKind.CONNECTION_LOST),
    (errors.ConnectionFailure, ErrorKind.CONNECTION_LOST),
    (errors.IdleInTransactionSessionTimeout, ErrorKind.CONNECTION_LOST),
    (errors.IdleSessionTimeout, ErrorKind.CONNECTION_LOST),
    (errors.ReadOnlySqlTransaction, ErrorKind.CONNECTION_LOST),
    (psycopg.OperationalError, ErrorKind.CONNECTION_LOST),  # no SQLSTATE: the connection broke
    (psycopg.InterfaceError, ErrorKind.CONNECTION_LOST),
    (PoolTimeout, ErrorKind.CONNECTION_LOST),
    (errors.InvalidTextRepresentation, ErrorKind.INVALID_DATA),
    (errors.UntranslatableCharacter, ErrorKind.INVALID_DATA),
    (errors.NumericValueOutOfRange, ErrorKind.INVALID_DATA),
    (errors.UndefinedTable, ErrorKind.UNEXPECTED),
    (errors.InsufficientPrivilege, ErrorKind.UNEXPECTED),
    (errors.UniqueViolation, ErrorKind.UNEXPECTED),
    (errors.DiskFull, ErrorKind.UNEXPECTED),
    (errors.QueryCanceled, ErrorKind.UNEXPECTED),
    (RuntimeError, ErrorKind.UNEXPECTED),
]


@pytest.mark.parametrize(("kind", "expected"), TABLE, ids=[kind.__name__ for kind, _ in TABLE])
def test_database_errors_are_classified(kind: type[Exception], expected: ErrorKind) -> None:
    assert classify(kind("it failed")) is expected


@pytest.mark.parametrize(
    ("kind", "retryable"),
    [(errors.DeadlockDetected, True), (psycopg.OperationalError, True), (errors.InsufficientPrivilege, False)],
)
def test_errors_for_users_state_whether_a_retry_may_help(kind: type[psycopg.Error], retryable: bool) -> None:  # noqa: FBT001 - a row of a table
    assert broker_error(kind("it failed")).retryable is retryable


def test_an_error_never_shows_a_password() -> None:
    text = str(broker_error(psycopg.OperationalError("cannot reach postgresql://me:hidden@host/db")))
    assert "hidden" not in text
    assert "host" in text


def test_an_error_about_missing_tables_explains_how_to_create_them(empty_database: str) -> None:
    with (
        PostgresBroker(PostgresConfig(database_url=empty_database)) as broker,
        pytest.raises(SchemaError, match="run `horsies migrate`"),
    ):
        send_new(broker)


def test_invalid_values_are_refused_and_not_retried(broker: PostgresBroker) -> None:
    with pytest.raises(BrokerError, match="invalid input syntax for type json") as caught:
        broker.run(lambda: rows(Statement("s", "select %(text)s::json")(text="{")))
    assert not caught.value.retryable
