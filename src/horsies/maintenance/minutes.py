"""Statistics by minute: count the tasks that ended in each minute, and group their errors, when the minute is over.

So charts of the last day do not read `finished`. An ending may be committed a little after its time, so each minute is computed twice: when it is over, and
again with the next one. A minute is replaced as a whole, in one transaction that holds the row of `minutes_until`. So two processes never compute at the same
time, and one that dies leaves a complete minute. `ops/statistics.py` reads these rows, and what has ended since then from `finished`.

`MinuteRunner` does this while its worker is the maintenance leader, on a connection of its own: a minute may have hundreds of thousands of tasks, and the
leader's observation of the workers must not wait for them.
"""

import asyncio
import logging
import random
from datetime import timedelta
from typing import Final, Self

from horsies.db.dedicated import ThreadedConnection
from horsies.db.errors import DriverError, ErrorKind, broker_error, classify, is_about_row, short_text
from horsies.db.statement import Op, Statement, execute, load, rows
from horsies.model.config import PostgresConfig

MINUTES_PER_PASS: Final = 60
FIRST_S, PAUSE_S = 5.0, 10.0
"""Until the first pass, and between two passes at least."""
SETTLE_S: Final = 2.0
"""After the end of a minute, because endings may be committed a little later."""
TASK_GROUPS, ERROR_GROUPS = 200, 100
"""In one minute. The rest is counted without names."""
MAX_MESSAGES: Final = 20_000
"""Failures in one minute whose messages are read."""
OLD_ROWS: Final = 1_000
TABLES: Final = ("task_minutes", "queue_minutes", "error_minutes")

MINUTE = timedelta(minutes=1)
_ROLLBACK = Statement("rollback_minute", "rollback")
SQL = load(__file__)
log = logging.getLogger("horsies.maintenance")


class MinuteRunner:
    """A service of the maintenance leader. It does nothing until its worker is the leader."""

    def __init__(self, group: asyncio.TaskGroup, *, database: PostgresConfig) -> None:
        self._group = group
        self._database = database
        self.is_leader = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._running = self._group.create_task(self._run())
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self._running.cancel()

    async def _run(self) -> None:
        next_s = FIRST_S
        while True:
            await asyncio.sleep(next_s * random.uniform(1, 1.2))  # noqa: S311 - jitter, no secret
            await self.is_leader.wait()
            next_s = PAUSE_S
            connection = ThreadedConnection(self._database, "statistics")
            try:
                next_s = max(PAUSE_S, await connection.run(roll_up_minutes()))
            except DriverError as error:
                level = logging.DEBUG if classify(error) is ErrorKind.CONNECTION_LOST else logging.WARNING
                log.log(level, "maintenance: could not compute the statistics of a minute: %s", broker_error(error))
            except Exception:
                log.exception("maintenance: could not compute the statistics of a minute")
            finally:
                await connection.close(None)


def roll_up_minutes(max_minutes: int = MINUTES_PER_PASS) -> Op[float]:
    """Compute the minutes that are over, oldest first. Return in how many seconds there is more to do."""
    yield from rows(SQL["create_minutes_until"]())
    for number in range(max_minutes):
        # With the first one, compute the one before it again.
        if not (yield from _roll_up_next_minute(again=number == 0)):
            ((seconds_left,),) = yield from rows(SQL["get_seconds_left"]())
            return seconds_left + SETTLE_S
    return 0.0


def _roll_up_next_minute(*, again: bool) -> Op[bool]:
    """Compute one minute. Return whether there was one, and no other process is computing."""
    _, locked, found = yield from execute(
        SQL["begin_minute"](), SQL["lock_minutes_until"](), SQL["get_next_minute"](again=int(again))
    )
    if not locked or not found:
        yield from rows(SQL["commit_minute"]())
        return False
    start, busy, current = found[0]
    # Minutes without an ending are passed over together.
    until = current if busy is None else busy + MINUTE
    replaced = [SQL[f"delete_{table}"](since=start, until=until) for table in TABLES]
    computed = [] if busy is None else [
        SQL["insert_task_minutes"](minute=busy, groups=TASK_GROUPS),
        SQL["insert_error_minutes"](minute=busy, groups=ERROR_GROUPS, messages=MAX_MESSAGES),
    ]  # fmt: skip
    old = [SQL[f"delete_old_{table}"](limit=OLD_ROWS) for table in TABLES]
    end = [SQL["store_minutes_until"](until=until), SQL["commit_minute"]()]
    try:
        yield from execute(*replaced, *computed, *old, *end)
    except DriverError as error:
        if not is_about_row(error):
            raise
        # A value that cannot be counted must not keep the later minutes from being computed.
        log.warning("maintenance: the statistics of %s are not computed: %s", busy, short_text(error))
        yield from rows(_ROLLBACK())
        # If another process computes now, this waits for it; at worst, some minutes are computed again.
        yield from rows(SQL["store_minutes_until"](until=until))
    return True
