"""The daily partitions of finished tasks, prepared ahead of time."""

import logging

from psycopg import errors

from horsies.db.load import load
from horsies.db.op import Op, Statement, ask, rows, script

DAYS_AHEAD = 14
PREPARE_BELOW = 7  # with a week in hand there is no hurry, and no lock is asked for

SQL = load(__file__)
log = logging.getLogger("horsies.db")


def prepare_days(schema: str) -> Op[None]:
    """Make partitions for the days ahead. Never urgent: what has no day goes to the default partition."""
    missing = yield from rows(SQL["get_missing_days"](ahead=DAYS_AHEAD, schema=schema))
    if len(missing) <= DAYS_AHEAD - PREPARE_BELOW:
        return
    yield from ask(SQL["begin_briefly"](), SQL["wait_little"]())
    try:
        for suffix, first, after in missing:
            yield from script(
                Statement(
                    "create_day",
                    f"create table if not exists {{schema}}.finished_{suffix} partition of {{schema}}.finished "
                    f"for values from ('{first} 00:00+00') to ('{after} 00:00+00')",
                )
            )
        yield from rows(SQL["commit_days"]())
    except (
        errors.LockNotAvailable,
        errors.InsufficientPrivilege,
        errors.CheckViolation,
        errors.DuplicateTable,
    ) as error:
        yield from rows(SQL["roll_back_days"]())
        log.info("the days ahead could not be prepared now: %s", error.diag.message_primary)
