"""How a connection to PostgreSQL is made: the same careful settings for every purpose."""

from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from horsies.db.session import Preparing, require_utf8
from horsies.model.config import PostgresConfig


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
    """The same without blocking; whoever is cancelled meanwhile leaves nothing behind."""
    connection = await psycopg.AsyncConnection.connect(config.conninfo, **_settings(config, purpose))
    try:
        require_utf8(connection)
    except psycopg.Error:
        await connection.close()
        raise
    return connection


def make_pool(config: PostgresConfig, preparing: Preparing) -> ConnectionPool:
    return ConnectionPool(
        config.conninfo,
        kwargs=_settings(config, "producer"),
        configure=preparing.begin,
        check=preparing.go_on,
        open=True,
        **_sizes(config),
    )


def make_async_pool(
    config: PostgresConfig, preparing: Preparing, kind: type[AsyncConnectionPool]
) -> AsyncConnectionPool:
    return kind(
        config.conninfo,
        kwargs=_settings(config, "producer"),
        configure=preparing.begin_async,
        check=preparing.go_on_async,
        open=False,
        **_sizes(config),
    )


def _sizes(config: PostgresConfig) -> dict[str, Any]:
    return {
        "min_size": config.pool_min_size,
        "max_size": config.pool_max_size,
        "timeout": config.connect_timeout_s,
        "name": "horsies",
    }


def _settings(config: PostgresConfig, purpose: str) -> dict[str, Any]:
    return {
        "autocommit": True,
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
