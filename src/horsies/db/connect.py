"""How a connection to PostgreSQL is made: the same careful settings for every purpose."""

from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from horsies.model.config import PostgresConfig

BACKEND_PID = "select pg_backend_pid()"
PREPARE_AFTER = 2


def connect(config: PostgresConfig, purpose: str, *, url: str | None = None) -> psycopg.Connection:
    """A blocking connection; `purpose` is what `pg_stat_activity` shows."""
    connection = psycopg.connect(url or config.conninfo, **_settings(config, purpose))
    _prepare_if_direct(connection)
    return connection


def make_pool(config: PostgresConfig) -> ConnectionPool:
    return ConnectionPool(
        config.conninfo, kwargs=_settings(config, "producer"), configure=_prepare_if_direct, open=True, **_sizes(config)
    )


def make_async_pool(
    config: PostgresConfig, kind: type[AsyncConnectionPool] = AsyncConnectionPool
) -> AsyncConnectionPool:
    return kind(
        config.conninfo,
        kwargs=_settings(config, "producer"),
        configure=_prepare_if_direct_async,
        open=False,
        **_sizes(config),
    )


def _prepare_if_direct(connection: psycopg.Connection) -> None:
    """Prepared statements save a third of a turn, and belong to a session. Behind a pooler the session is not ours: its process is
    another than the one that greeted us.
    """
    row = connection.execute(BACKEND_PID).fetchone()
    if row == (connection.info.backend_pid,):
        connection.prepare_threshold = PREPARE_AFTER


async def _prepare_if_direct_async(connection: psycopg.AsyncConnection) -> None:
    row = await (await connection.execute(BACKEND_PID)).fetchone()
    if row == (connection.info.backend_pid,):
        connection.prepare_threshold = PREPARE_AFTER


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
        "prepare_threshold": None,  # until it is known whose session it is
        "application_name": f"horsies {purpose}",
        "connect_timeout": config.connect_timeout_s,
        # A peer that vanished without a word is noticed in about half a minute, not in two hours.
        "keepalives": 1,
        "keepalives_idle": config.keepalives_idle_s,
        "keepalives_interval": config.keepalives_interval_s,
        "keepalives_count": config.keepalives_count,
        # Keepalives are silent while something waits to be acknowledged; without this a vanished peer is then noticed after 15 minutes.
        "tcp_user_timeout": 1000 * (config.keepalives_idle_s + config.keepalives_interval_s * config.keepalives_count),
    }
