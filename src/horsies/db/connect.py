"""How a connection to PostgreSQL is made: the same careful settings for every purpose."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import psycopg
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import AdaptersMap, Loader
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from horsies.db.session import Preparing, nearest_moment, require_utf8
from horsies.model.config import PostgresConfig

RECONNECT_S = 1.0

_exact = psycopg.adapters.get_loader(psycopg.adapters.types["timestamptz"].oid, psycopg.pq.Format.TEXT)


class MomentLoader(Loader):
    """Reads moments that Python cannot represent (infinite, before the year 1, after 9999) as the earliest or the latest one.

    The driver raises an error for them. It comes when the statement has been committed: of a batch of claims, none would ever be run, because of
    one row that somebody wrote by hand.
    """

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        assert _exact is not None  # noqa: S101 - every release of the driver has one
        self._load = _exact(oid, context).load

    def load(self, data: Buffer) -> datetime:
        try:
            return self._load(data)
        except psycopg.DataError:
            return nearest_moment(bytes(data))


_adapters = AdaptersMap(psycopg.adapters)
_adapters.register_loader("timestamptz", MomentLoader)


def connect(config: PostgresConfig, purpose: str, *, url: str | None = None) -> psycopg.Connection:
    """A blocking connection; `purpose` is what `pg_stat_activity` shows."""
    connection = psycopg.connect(url or config.conninfo, **_settings(config, purpose))
    try:
        require_utf8(connection)
    except psycopg.Error:
        connection.close()
        raise
    return connection


async def connect_async(config: PostgresConfig, purpose: str) -> psycopg.AsyncConnection:
    """The same without blocking; whoever is cancelled meanwhile leaves nothing behind.

    For statements that read no moment but those that a constraint bounds: a loader in Python would cost every claim some microseconds.
    """
    settings: dict[str, Any] = {**_settings(config, purpose), "context": None}
    connection = await psycopg.AsyncConnection.connect(config.conninfo, **settings)
    try:
        require_utf8(connection)
    except psycopg.Error:
        await connection.close()
        raise
    return connection


def make_pool(
    config: PostgresConfig, preparing: Preparing, *, gave_up: Callable[[ConnectionPool], None]
) -> ConnectionPool:
    """`gave_up` is called when it has failed to connect for `RECONNECT_S`; it tries again when it is checked, or asked for a connection."""
    return ConnectionPool(
        config.conninfo,
        kwargs=_settings(config, "producer"),
        configure=preparing.begin,
        check=preparing.go_on,
        reconnect_failed=gave_up,
        open=True,
        **_sizes(config),
    )


def make_async_pool(
    config: PostgresConfig,
    preparing: Preparing,
    kind: type[AsyncConnectionPool],
    *,
    gave_up: Callable[[AsyncConnectionPool], Awaitable[None]],
) -> AsyncConnectionPool:
    return kind(
        config.conninfo,
        kwargs=_settings(config, "producer"),
        configure=preparing.begin_async,
        check=preparing.go_on_async,
        reconnect_failed=gave_up,
        open=False,
        **_sizes(config),
    )


def _sizes(config: PostgresConfig) -> dict[str, Any]:
    return {
        "min_size": config.pool_min_size,
        "max_size": config.pool_max_size,
        "timeout": config.connect_timeout_s,
        # The pool doubles its pause after each failed attempt, up to this span, and then gives up. By default that is five minutes.
        "reconnect_timeout": RECONNECT_S,
        "name": "horsies",
    }


def _settings(config: PostgresConfig, purpose: str) -> dict[str, Any]:
    return {
        "autocommit": True,
        "context": _adapters,
        "prepare_threshold": None,  # unless it is known that the session is ours
        "application_name": f"horsies {purpose}",
        "client_encoding": "UTF8",  # whatever the environment, the URL, the role or the database say: we write and read UTF-8
        "connect_timeout": config.connect_timeout_s,
        # A peer that vanished without a word is noticed in about half a minute, not in two hours.
        "keepalives": 1,
        "keepalives_idle": config.keepalives_idle_s,
        "keepalives_interval": config.keepalives_interval_s,
        "keepalives_count": config.keepalives_count,
        # Keepalives are silent while something waits to be acknowledged; without this a vanished peer is then noticed after 15 minutes.
        "tcp_user_timeout": 1000 * (config.keepalives_idle_s + config.keepalives_interval_s * config.keepalives_count),
    }
