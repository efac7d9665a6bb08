"""The ground that a broker stands on: the schema in its database, made and looked at on a connection of its own, before there are pools."""

from typing import TypeVar

import psycopg

from horsies.db import migrate
from horsies.db.link import Link
from horsies.db.load import load
from horsies.db.migrate import Standing
from horsies.db.op import Op, one
from horsies.db.trouble import broker_error
from horsies.model.config import PostgresConfig
from horsies.model.errors import SchemaError

SQL = load(__file__)
T = TypeVar("T")


def prepare(config: PostgresConfig) -> list[str]:
    """Bring the schema to this library's version. Returns the migrations applied, oldest first."""
    if config.listen_url:
        _refuse_other_database(config)
    return _run_apart(config, migrate.migrate(config.schema), config.listen_conninfo)


def require(config: PostgresConfig) -> None:
    """Refuse a database without our schema, or with an older one; at once when it cannot be reached."""
    _run_apart(config, migrate.require_schema(config.schema), config.conninfo)


def get_standing(config: PostgresConfig) -> Standing:
    """At which version the schema is, and what it lacks; nothing is changed. Says at once why the database cannot be reached."""
    return _run_apart(config, migrate.get_standing(config.schema), config.conninfo)


def _refuse_other_database(config: PostgresConfig) -> None:
    """Before tables are made where nobody looks for them. Seen twice: the server may have been restarted in between."""
    for _ in range(2):
        here = _run_apart(config, one(SQL["identify_database"]()), config.conninfo)
        there = _run_apart(config, one(SQL["identify_database"]()), config.listen_conninfo)
        if here == there:
            return
    raise SchemaError(
        "listen_url and database_url lead to different databases, or to different servers; "
        "set listen_url to a direct connection to the very database that database_url leads to through the pooler"
    )


def _run_apart(config: PostgresConfig, op: Op[T], conninfo: str) -> T:
    link = Link(config, "migrations", url=conninfo)
    try:
        return link.run(op)
    except psycopg.Error as error:
        server = "PostgreSQL" if conninfo == config.conninfo else "PostgreSQL at listen_url"
        raise broker_error(error, server) from error
    finally:
        link.close()
