"""Retention: delete what has ended after its time. Every duty is safe if two processes do it at once, and if one dies in the middle.

Finished tasks are dropped by the day, see `db/partitions.py`. Where that is not possible (rows in the default partition, partitions that our user may not
drop) they are deleted. Everything else is deleted in batches, each a short transaction that skips rows locked by others.

`RetentionRunner` does this while its worker is the maintenance leader, on a connection of its own: it may take a while, and the leader's observation of the
workers must not wait for it.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final, Self, TypeAlias

from horsies.db import partitions
from horsies.db.dedicated import ThreadedConnection
from horsies.db.errors import DriverError, ErrorKind, broker_error, classify, is_about_row, short_text
from horsies.db.partitions import Partition, PartitionChange
from horsies.db.statement import Op, Row, execute, load, one, rows
from horsies.maintenance.isolate import FailedRows, run_isolated
from horsies.model.config import PostgresConfig, RetentionConfig

FIRST_S: Final = 10.0
POSTPONED_S: Final = 60.0
KEYS_EVERY_S: Final = 3600.0
"""A pass over the keys reads all of them."""

DEAD_WORKERS, AUDIT = timedelta(days=1), timedelta(days=90)
"""How long they are kept."""

SQL = load(__file__)
log = logging.getLogger("horsies.maintenance")


class RetentionRunner:
    """A service of the maintenance leader. It does nothing until its worker is the leader."""

    def __init__(self, group: asyncio.TaskGroup, *, database: PostgresConfig, retention: RetentionConfig) -> None:
        self._group = group
        self._database = database
        self._retention = retention
        self._interval_s = retention.every.total_seconds()
        self.is_leader = asyncio.Event()
        self._connection: ThreadedConnection | None = None
        self._keys_at = 0.0
        self._has_warned = False
        self._failed_rows = FailedRows()

    async def __aenter__(self) -> Self:
        self._running = self._group.create_task(self._run())
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self._running.cancel()
        await self._close()

    async def _run(self) -> None:
        next_s = FIRST_S
        while True:
            # With jitter: a whole cluster may have been started at one moment.
            await asyncio.sleep(min(next_s, self._interval_s) * random.uniform(0.8, 1.2))  # noqa: S311 - jitter, no secret
            await self.is_leader.wait()
            try:
                next_s = POSTPONED_S if await self._run_pass() else self._interval_s
            except DriverError as error:
                level = logging.DEBUG if classify(error) is ErrorKind.CONNECTION_LOST else logging.WARNING
                log.log(level, "maintenance: could not apply retention: %s", broker_error(error))
            finally:
                await self._close()

    async def _run_pass(self) -> bool:
        """Do all duties. Return whether anything was postponed."""
        connection = self._connection = ThreadedConnection(self._database, "retention")
        await self._warn_of_missing_privileges(connection)
        results = [
            await self._do(connection, name, duty)
            for name, duty in retention_duties(self._database.schema, self._retention, self._failed_rows).items()
        ]
        if time.monotonic() >= self._keys_at and await self._do(connection, "keys", delete_unused_keys):
            self._keys_at = time.monotonic() + KEYS_EVERY_S
        return any(result is None or result.postponed for result in results)

    async def _do(self, connection: ThreadedConnection, name: str, duty: "RetentionDuty") -> "RetentionResult | None":
        """Do one duty. Log a failure, so that the other duties are done."""
        try:
            result = await connection.run(duty())
        except DriverError as error:
            if classify(error) is ErrorKind.CONNECTION_LOST:
                raise
            log.warning("maintenance: could not apply retention to %s: %s", name, broker_error(error))
            return None
        except Exception:
            log.exception("maintenance: could not apply retention to %s", name)
            return None
        if result.count:
            log.info("retention: %d %s", result.count, name)
        return result

    async def _warn_of_missing_privileges(self, connection: ThreadedConnection) -> None:
        privileges = await connection.run(partitions.get_privileges(self._database.schema))
        if not privileges.are_sufficient and not self._has_warned:
            log.warning(
                "database user %s may not create and drop the partitions of finished tasks, because the tables belong to %s: rows "
                "go to finished_default and are deleted one by one when they are old. Let workers connect as %s, or grant that role to %s "
                "together with CREATE on schema %s; or run `horsies migrate` as %s at least once a week.",
                privileges.user, privileges.owner, privileges.owner, privileges.user, self._database.schema, privileges.owner,
            )  # fmt: skip
        self._has_warned = not privileges.are_sufficient

    async def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close(None)


# -- the duties


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """How many rows one batch deletes; and of workflows, how many trees and nodes one transaction. A larger tree gets one of its own."""

    rows: int = 1_000
    trees: int = 100
    nodes: int = 5_000


DEFAULT_LIMITS: Final = RetentionLimits()


@dataclass(frozen=True, slots=True)
class RetentionResult:
    """What one duty did. `postponed`: rows or tables were locked, try again soon."""

    count: int
    postponed: bool = False


RetentionDuty: TypeAlias = Callable[[], Op[RetentionResult]]


def retention_duties(
    schema: str, retention: RetentionConfig, failed: FailedRows, limits: RetentionLimits = DEFAULT_LIMITS
) -> dict[str, RetentionDuty]:
    """Return the regular duties by name. Each is independent of the others."""
    duties: dict[str, RetentionDuty] = {"days ahead": partial(prepare_next_partitions, schema, retention.finished)}
    if retention.finished is not None:
        duties["finished tasks"] = partial(drop_old_partitions, schema, retention.finished, failed, limits)
        duties["logs of attempts"] = partial(delete_old_logs, retention.finished, failed, limits)
    if retention.workflows is not None:
        duties["workflows"] = partial(delete_old_workflows, retention.workflows, failed, limits)
    for name, table, keep in (
        ("worker states", "worker_states", retention.worker_states),
        ("schedule runs", "schedule_runs", retention.schedule_runs),
        ("dead workers", "dead_workers", DEAD_WORKERS),
        ("entries of the audit", "audit", AUDIT),
    ):
        if keep is not None:
            duties[name] = partial(_delete_old, table, failed, limits, keep_s=keep.total_seconds())
    return duties


def prepare_next_partitions(schema: str, keep: timedelta | None) -> Op[RetentionResult]:
    """Create the partitions of the next days. Counts nothing, because nothing is deleted."""
    privileges = yield from partitions.get_privileges(schema)
    changes = (yield from partitions.prepare_partitions(schema, keep)) if privileges.are_sufficient else []
    return RetentionResult(0, postponed=PartitionChange.POSTPONED in changes)


def drop_old_partitions(
    schema: str, keep: timedelta, failed: FailedRows, limits: RetentionLimits = DEFAULT_LIMITS
) -> Op[RetentionResult]:
    """Drop the partitions of old days, and delete old tasks that are elsewhere. Counts days and tasks together."""
    privileges = yield from partitions.get_privileges(schema)
    changes: list[PartitionChange] = []

    def drop(days: Sequence[Partition]) -> Op[PartitionChange]:
        yield from _record_key_endings(f"{days[0].first} 00:00+00", f"{days[0].after} 00:00+00", limits.rows)
        return (yield from partitions.drop_partition(schema, days[0]))

    for day, is_ours in (yield from partitions.get_old_partitions(schema, keep)):
        if privileges.are_sufficient and is_ours:
            # A partition that cannot be dropped (an object of the user depends on it) does not block the others. Its rows are deleted below.
            changes += yield from run_isolated("drop the day", [day], drop, id_of=lambda day: day.first, failed=failed)
    dropped = changes.count(PartitionChange.DONE)
    if PartitionChange.POSTPONED in changes:
        return RetentionResult(dropped, postponed=True)  # do not delete row by row what can be dropped soon
    (cutoff,) = (yield from one(SQL["get_cutoff"](keep_s=keep.total_seconds()))) or (None,)
    yield from _record_key_endings("-infinity", cutoff, limits.rows)
    deleted = yield from _delete_old("finished", failed, limits, before=cutoff)
    return RetentionResult(dropped + deleted.count)


def delete_old_logs(
    keep: timedelta, failed: FailedRows, limits: RetentionLimits = DEFAULT_LIMITS
) -> Op[RetentionResult]:
    """Delete the log lines of attempts with the finished tasks of their day."""
    (cutoff,) = (yield from one(SQL["get_cutoff"](keep_s=keep.total_seconds()))) or (None,)
    return (yield from _delete_old("attempt_logs", failed, limits, before=cutoff))


def _record_key_endings(since: object, before: object, batch: int) -> Op[None]:
    """Store in the keys when their tasks ended: their windows may be longer than the retention of the tasks."""
    query = SQL["record_key_endings"](since=since, before=before, limit=batch)
    while len((yield from rows(query))) == batch:
        pass


def delete_old_workflows(
    keep: timedelta, failed: FailedRows, limits: RetentionLimits = DEFAULT_LIMITS
) -> Op[RetentionResult]:
    """Delete whole trees whose root run ended long ago. Part of a tree is of no use."""
    keep_s, count, duty = keep.total_seconds(), 0, "delete workflow"

    def work(roots: Sequence[str]) -> Op[int]:
        lock = SQL["lock_old_trees"](roots=list(roots), keep_s=keep_s)
        _, locked = yield from execute(SQL["begin_deletion"](), lock)
        ids = [root for (root,) in locked]
        yield from execute(SQL["delete_nodes"](roots=ids), SQL["delete_runs"](roots=ids), SQL["commit_deletion"]())
        return len(ids)

    while trees := (
        yield from rows(SQL["get_old_trees"](keep_s=keep_s, limit=limits.trees, excluded=failed.excluded(duty)))
    ):
        deleted = 0
        for roots in _group_by_nodes(trees, limits.nodes):
            deleted += sum((yield from run_isolated(duty, roots, work, id_of=str, failed=failed)))
        count += deleted
        if not deleted:
            return RetentionResult(count, postponed=True)  # they are locked, and would be found again and again
    return RetentionResult(count)


def _group_by_nodes(trees: list[Row], limit: int) -> list[list[str]]:
    groups: list[list[str]] = [[]]
    nodes = 0
    for root, size in trees:
        nodes += size
        if groups[-1] and nodes > limit:
            groups.append([])
            nodes = size
        groups[-1].append(root)
    return groups


def delete_unused_keys(batch: int = DEFAULT_LIMITS.rows) -> Op[RetentionResult]:
    """Delete keys that no send can find held. None of them is missed: the next send creates it again.

    The pass continues after a key that cannot be deleted: the batches get smaller until it is alone, and larger again behind it.
    """
    name, key = "", ""
    count, limit, seen = 0, batch, batch
    while seen == limit:
        try:
            row = yield from one(SQL["delete_unused_keys"](after_name=name, after_key=key, limit=limit))
        except DriverError as error:
            if not is_about_row(error):
                raise
            if limit > 1:
                seen = limit = limit // 2
                continue
            name, key = (yield from one(SQL["get_next_key"](after_name=name, after_key=key))) or (name, key)
            log.warning("retention: key %r of task %r cannot be deleted: %s", key, name, short_text(error))
            continue
        name, key, seen, deleted = row or ("", "", 0, 0)
        count += deleted
        if seen == limit < batch:
            seen = limit = min(limit * 2, batch)
    return RetentionResult(count)


def _delete_old(table: str, failed: FailedRows, limits: RetentionLimits, **params: object) -> Op[RetentionResult]:
    """Delete old rows in batches, until there is less than one. Locked rows stay until the next pass."""
    duty, count = f"delete {table}", 0
    # Some statements need the condition for the deletion too: the rows may have changed since they were read.
    condition = {name: value for name, value in params.items() if name == "before"}

    def work(ids: Sequence[str]) -> Op[int]:
        return len((yield from rows(SQL[f"delete_{table}"](ids=list(ids), **condition))))

    while True:
        old = yield from rows(SQL[f"get_old_{table}"](limit=limits.rows, excluded=failed.excluded(duty), **params))
        deleted = sum((yield from run_isolated(duty, [row_id for (row_id,) in old], work, id_of=str, failed=failed)))
        count += deleted
        if len(old) < limits.rows or not deleted:
            return RetentionResult(count)
