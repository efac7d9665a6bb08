"""Databases as a whole: made, dropped, and named in a URL. For tests; an application lives in one that is there."""

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from horsies.db.link import Link
from horsies.db.op import Op, Statement, script
from horsies.db.trouble import broker_error
from horsies.model.config import PostgresConfig
from horsies.model.database_url import conninfo


class Admin:
    """One connection, opened at the first need, of a user who may create databases. Names are not escaped: they are ours."""

    def __init__(self, config: PostgresConfig) -> None:
        self._link = Link(config, "databases")

    def create(self, name: str, *, template: str | None = None) -> None:
        copied = f' template "{template}"' if template else ""
        self._run(script(Statement("create_database", f'create database "{name}"{copied}')))

    def drop(self, name: str) -> None:
        """Also when somebody is still connected to it."""
        self._run(script(Statement("drop_database", f'drop database if exists "{name}" with (force)')))

    def close(self) -> None:
        self._link.close()

    def _run(self, op: Op[None]) -> None:
        try:
            self._link.run(op)
        except psycopg.Error as error:
            raise broker_error(error) from error


def with_database(url: str, name: str) -> str:
    """The same server and user, another database; as key=value pairs."""
    given = {key: str(value) for key, value in conninfo_to_dict(conninfo(url)).items() if value is not None}
    return make_conninfo("", **given | {"dbname": name})
