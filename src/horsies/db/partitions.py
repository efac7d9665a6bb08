"""The daily partitions of finished tasks: prepared ahead of time, filled from the default partition, dropped when they are old.

**Never a long lock.** Everybody who finishes a task, or waits for one, holds a lock on `finished` for a moment. What changes its partitions asks for locks
that exclude them, and while such a request waits, all others wait behind it. So each change is one short transaction that is sent in one piece (a
client that falls silent holds nothing), gives a lock 50 ms and the moving of rows as much, and is postponed if that was not enough. Behind an
open `pg_dump`, which holds all of it, nothing is changed until it is closed.

**Making a day.** A day to come is made beside the others and attached, which only the default partition notices. If the default holds rows of it, or
may get some now, that is not enough: a reader that has just looked up which partitions there are would miss rows that move, and a finisher
would miss the new day. Then the whole table is locked, and the rows move in the same transaction. A day of which the default holds more
than can be moved in a moment is left there; its rows are deleted when they are old.

**Dropping a day.** TRUNCATE locks the day alone, and frees its space. The empty day is then dropped, for which the whole table is locked. Whoever dies
in between leaves an old and empty day to the next one.
"""

import logging
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto

from psycopg import errors

from horsies.db.statement import Op, Query, Statement, execute, load, one, rows

DAYS_AHEAD = 14
PREPARE_BELOW = 7  # with a week in hand there is no hurry, and no lock is asked for
MOVE_AT_MOST = 5_000  # rows
CONSTANT_WORK, PER_ROW_WORK = "1s", "50ms"  # what a statement may take: the first is for a machine out of breath

SQL = load(__file__)
log = logging.getLogger("horsies.db")

_BUSY = (
    errors.LockNotAvailable,
    errors.QueryCanceled,
    errors.DeadlockDetected,
    errors.CheckViolation,  # the default partition has got a row of that day meanwhile
)
_DONE_BY_ANOTHER = (errors.DuplicateTable, errors.UndefinedTable, errors.UniqueViolation)


class PartitionChange(Enum):
    """What became of one day."""

    DONE = auto()
    POSTPONED = auto()
    """Somebody is in the way; the next look tries again."""
    REFUSED = auto()
    """Our user may not."""


@dataclass(frozen=True, slots=True)
class Rights:
    user: str
    owner: str
    suffice: bool


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition, from the first date to the one after it."""

    table: str
    first: str
    after: str


def get_rights(schema: str) -> Op[Rights]:
    """May this user make and drop days?"""
    row = yield from one(SQL["get_privileges"](schema=schema))
    return Rights(*row) if row else Rights("", "", suffice=False)


def prepare_partitions(schema: str, keep: timedelta | None = None) -> Op[list[PartitionChange]]:
    """Make partitions for the days ahead, and for what the default partition caught and is to be kept.

    Never urgent: what has no day goes to the default partition.
    """
    missing = yield from rows(SQL["get_missing_partitions"](ahead=DAYS_AHEAD, schema=schema, keep_s=_seconds(keep)))
    is_urgent = len(missing) > DAYS_AHEAD - PREPARE_BELOW
    changes: list[PartitionChange] = []
    for table, first, after, held, moves in missing:
        if held > MOVE_AT_MOST:
            log.info("finished_default holds %d tasks of %s, too many to be moved: they stay there", held, first)
        elif held or is_urgent:
            at_most = PER_ROW_WORK if held else CONSTANT_WORK
            changes.append((yield from _make_day(schema, Partition(table, first, after), moves=moves, at_most=at_most)))
            if changes[-1] is not PartitionChange.DONE:
                break  # what is in the way of this one is in the way of the next
    return changes


def get_old_partitions(schema: str, keep: timedelta) -> Op[list[tuple[Partition, bool]]]:
    """The days that are over for longer than this, oldest first, each with whether we may drop it."""
    found = yield from rows(SQL["get_old_partitions"](schema=schema, keep_s=_seconds(keep)))
    return [(Partition(*day), is_ours) for *day, is_ours in found]


def drop_partition(schema: str, day: Partition) -> Op[PartitionChange]:
    """The day with all that is in it."""
    emptied = yield from _with_short_locks("empty", day, _of(day, "truncate_partition"))
    if emptied is not PartitionChange.DONE:
        return emptied
    locks = (
        SQL["lock_partition_changes"](schema=schema),
        SQL["lock_finished"](),
        SQL["lock_default_partition"](),
        _of(day, "lock_partition"),
    )
    return (yield from _with_short_locks("drop", day, *locks, _of(day, "drop_partition")))


def _make_day(schema: str, day: Partition, *, moves: bool, at_most: str) -> Op[PartitionChange]:
    moving = (SQL["lock_finished"](), SQL["lock_default_partition"](), _of(day, "move_rows")) if moves else ()
    made = (
        SQL["lock_partition_changes"](schema=schema),
        _of(day, "create_partition"),
        SQL["set_short_timeouts"](statement_timeout=at_most),
    )
    return (yield from _with_short_locks("prepare", day, *made, *moving, _of(day, "attach_partition")))


def _with_short_locks(what: str, day: Partition, *queries: Query) -> Op[PartitionChange]:
    limits = SQL["set_short_timeouts"](statement_timeout=CONSTANT_WORK)
    try:
        yield from execute(SQL["begin_partition_change"](), limits, *queries, SQL["commit_partition_change"]())
    except (*_BUSY, *_DONE_BY_ANOTHER, errors.InsufficientPrivilege) as error:
        yield from rows(SQL["roll_back_partition_change"]())
        if isinstance(error, _DONE_BY_ANOTHER):
            return PartitionChange.DONE
        log.info("could not %s the day %s of finished tasks now: %s", what, day.first, error.diag.message_primary)
        return PartitionChange.POSTPONED if isinstance(error, _BUSY) else PartitionChange.REFUSED
    return PartitionChange.DONE


def _of(day: Partition, name: str) -> Query:
    """Neither a table's name nor its bounds can be parameters. They are made of dates, by us."""
    text = SQL[name].text.replace("{partition}", day.table).replace("{first}", day.first).replace("{after}", day.after)
    return Statement(name, text)()


def _seconds(span: timedelta | None) -> float | None:
    return None if span is None else span.total_seconds()
