"""Whose session is it? Ours alone, or a pooler's that is lent to us for one transaction at a time.

What is kept in a session (a LISTEN, a prepared statement) is worth having only in one that is ours. The server names the process that
greets a client. A pooler greets in its own name, so a session whose process is another than that is not ours, or at least not for certain.

A prepared statement keeps its plan, and the table of what waits is empty now and holds a million rows tomorrow. To read an empty table from end to
end costs nothing, so that is how the server would do it, and go on doing it until somebody analyses the table. Hence in sessions that are
ours only an index is a way in (`STEADY`). Where nothing is prepared, every statement is planned for the table as it is.

Planning most of our statements takes longer than running them, and the server does it again for the parameters of each, as long as that looks
cheaper. So workers and producers have them planned once (`PLANNED_ONCE`). What depends on its parameters asks for another plan each time
(`values.py`).
"""

import logging
from collections.abc import Callable, Sequence

import psycopg
from psycopg import errors

BACKEND_PID = "select pg_backend_pid()"
PREPARE_AFTER = 2
STEADY = "select set_config('enable_seqscan', 'off', false), set_config('jit', 'off', false)"
PLANNED_ONCE = STEADY + ", set_config('plan_cache_mode', 'force_generic_plan', false)"
LOOKS = 10  # for a proof that a session is shared
WITHDRAWALS = 100

log = logging.getLogger("horsies.db")


def backend_pid(connection: psycopg.Connection) -> int:
    """The server's process that works for us at this moment."""
    row = connection.execute(BACKEND_PID).fetchone()
    return row[0] if row else 0


def is_direct(connection: psycopg.Connection) -> bool:
    return backend_pid(connection) == connection.info.backend_pid


def is_shared(connection: psycopg.Connection, process_of_other: Callable[[], int]) -> bool:
    """Whether it can be proved: our process changes, or works for another connection of ours as well."""
    process = backend_pid(connection)
    return any(process_of_other() == process or backend_pid(connection) != process for _ in range(LOOKS))


def take_back(connection: psycopg.Connection, commands: Sequence[bytes], process: int) -> None:
    """Undo what was left in the session of this process, whoever else has been in it meanwhile."""
    for _ in range(WITHDRAWALS):
        with connection.transaction():
            if backend_pid(connection) == process:
                for command in commands:
                    connection.execute(command)
                return


class Preparing:
    """Prepared statements save a third of a turn, so they are used where sessions are ours, until one turns out not to be."""

    def __init__(self, settings: str = STEADY) -> None:
        self._settings = settings.encode()
        self._is_safe = True

    def begin(self, connection: psycopg.Connection) -> None:
        """For a connection just made."""
        if self.is_worthwhile(connection, backend_pid(connection)):
            connection.execute(self._settings)
            connection.prepare_threshold = PREPARE_AFTER

    async def begin_async(self, connection: psycopg.AsyncConnection) -> None:
        row = await (await connection.execute(BACKEND_PID)).fetchone()
        if row and self.is_worthwhile(connection, row[0]):
            await connection.execute(self._settings)
            connection.prepare_threshold = PREPARE_AFTER

    def is_worthwhile(self, connection: psycopg.Connection | psycopg.AsyncConnection, backend_pid: int) -> bool:
        """In a session that this process of the server works for."""
        return self._is_safe and backend_pid == connection.info.backend_pid

    def go_on(self, connection: psycopg.Connection) -> None:
        """For a connection that has served before."""
        if not self._is_safe:
            connection.prepare_threshold = None

    async def go_on_async(self, connection: psycopg.AsyncConnection) -> None:
        if not self._is_safe:
            connection.prepare_threshold = None

    def has_failed(self, error: psycopg.Error) -> bool:
        """Whether this error says that somebody else has been in our session. From then on nothing is prepared."""
        if not isinstance(error, errors.InvalidSqlStatementName | errors.DuplicatePreparedStatement):
            return False
        if self._is_safe:
            log.info("our sessions are not ours alone (a pooler, or DISCARD ALL?): statements are no longer prepared")
        self._is_safe = False
        return True
