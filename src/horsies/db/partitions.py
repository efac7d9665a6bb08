"""The daily partitions of finished tasks: prepared ahead of time, filled from the default partition, dropped when they are old.

**No long locks.** Every session that finishes a task, or waits for one, locks `finished` for a moment. A change of its partitions needs
locks that exclude these, and while its request waits, all others wait behind it. So each change is one short transaction, sent in one
piece (an unresponsive client holds nothing). It waits 50 ms for a lock and moves rows for as long, and is postponed if that was not
enough. While a `pg_dump` is open, which locks all of it, nothing is changed.

**Creating a partition.** A partition for a future day is created beside the others and attached, which locks only the default partition.
If the default partition holds rows of that day, or may get some now, this is not enough: a reader that has just looked up the
partitions would miss rows that move, and a session that finishes a task would miss the new partition. Then the whole table is locked,
and the rows move in the same transaction. If the default partition holds more rows of a day than can be moved in a moment, they stay
there and are deleted when they are old.

**Dropping a partition.** TRUNCATE locks only the partition and frees its space. Then the empty partition is dropped, for which the
whole table is locked. After a crash in between, the next run drops the empty partition.
"""

import logging
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto

from psycopg import errors

from horsies.db.statement import Op, Query, Statement, execute, load, one, rows

DAYS_AHEAD = 14
PREPARE_BELOW = 7  # with a week ahead there is no hurry, and no lock is requested
MOVE_AT_MOST = 5_000  # rows
CONSTANT_WORK, PER_ROW_WORK = "1s", "50ms"  # statement timeouts; the first one is for an overloaded machine

SQL = load(__file__)
log = logging.getLogger("horsies.db")

_BUSY = (
    errors.LockNotAvailable,
    errors.QueryCanceled,
    errors.DeadlockDetected,
    errors.CheckViolation,  # the default partition has got a row of that day in the meantime
)
_DONE_BY_ANOTHER = (errors.DuplicateTable, errors.UndefinedTable, errors.UniqueViolation)


class PartitionChange(Enum):
    """What happened to one partition."""

    DONE = auto()
    POSTPONED = auto()
    """Another session holds a lock; the next run tries again."""
    REFUSED = auto()
    """Our user lacks the privilege."""


@dataclass(frozen=True, slots=True)
class PartitionPrivileges:
    user: str
    owner: str
    are_sufficient: bool


@dataclass(frozen=True, slots=True)
class Partition:
    """The partition of one day: its table, its date, and the next date."""

    table: str
    first: str
    after: str

    def query(self, name: str) -> Query:
        """Neither the name of a table nor bounds can be parameters. They are made of dates, by us."""
        text = SQL[name].text.replace("{partition}", self.table)
        return Statement(name, text.replace("{first}", self.first).replace("{after}", self.after))()


def get_privileges(schema: str) -> Op[PartitionPrivileges]:
    """Return whether this user may create and drop partitions."""
    row = yield from one(SQL["get_privileges"](schema=schema))
    return PartitionPrivileges(*row) if row else PartitionPrivileges("", "", are_sufficient=False)


def prepare_partitions(schema: str, keep: timedelta | None = None) -> Op[list[PartitionChange]]:
    """Create partitions for the days ahead, and for rows of the default partition that are to be kept.

    Never urgent: rows without a partition go to the default partition.
    """
    keep_s = None if keep is None else keep.total_seconds()
    missing = yield from rows(SQL["get_missing_partitions"](ahead=DAYS_AHEAD, schema=schema, keep_s=keep_s))
    is_due = len(missing) > DAYS_AHEAD - PREPARE_BELOW
    changes: list[PartitionChange] = []
    for table, first, after, row_count, moves in missing:
        if row_count > MOVE_AT_MOST:
            log.info("finished_default: %d tasks of %s stay there, too many to be moved", row_count, first)
        elif row_count or is_due:
            partition = Partition(table, first, after)
            moving = SQL["lock_finished"](), SQL["lock_default_partition"](), partition.query("move_rows")
            queries = (
                SQL["lock_partition_changes"](schema=schema),
                partition.query("create_partition"),
                SQL["set_short_timeouts"](statement_timeout=PER_ROW_WORK if row_count else CONSTANT_WORK),
                *(moving if moves else ()),
                partition.query("attach_partition"),
            )
            changes.append((yield from _with_short_locks("create", partition, *queries)))
            if changes[-1] is not PartitionChange.DONE:
                break  # what blocks this one blocks the next
    return changes


def get_old_partitions(schema: str, keep: timedelta) -> Op[list[tuple[Partition, bool]]]:
    """Return the partitions whose day ended longer ago than this, oldest first, each with whether we may drop it."""
    found = yield from rows(SQL["get_old_partitions"](schema=schema, keep_s=keep.total_seconds()))
    return [(Partition(*columns), is_ours) for *columns, is_ours in found]


def drop_partition(schema: str, partition: Partition) -> Op[PartitionChange]:
    """Drop a partition with its rows."""
    truncated = yield from _with_short_locks("truncate", partition, partition.query("truncate_partition"))
    if truncated is not PartitionChange.DONE:
        return truncated
    queries = (
        SQL["lock_partition_changes"](schema=schema),
        SQL["lock_finished"](),
        SQL["lock_default_partition"](),
        partition.query("lock_partition"),
        partition.query("drop_partition"),
    )
    return (yield from _with_short_locks("drop", partition, *queries))


def _with_short_locks(verb: str, partition: Partition, *queries: Query) -> Op[PartitionChange]:
    limits = SQL["set_short_timeouts"](statement_timeout=CONSTANT_WORK)
    try:
        yield from execute(SQL["begin_partition_change"](), limits, *queries, SQL["commit_partition_change"]())
    except (*_BUSY, *_DONE_BY_ANOTHER, errors.InsufficientPrivilege) as error:
        yield from rows(SQL["roll_back_partition_change"]())
        if isinstance(error, _DONE_BY_ANOTHER):
            return PartitionChange.DONE
        log.info("could not %s partition %s now: %s", verb, partition.table, error.diag.message_primary)
        return PartitionChange.POSTPONED if isinstance(error, _BUSY) else PartitionChange.REFUSED
    return PartitionChange.DONE
