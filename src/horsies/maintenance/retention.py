"""The retainer: while its worker is the keeper, it sees to the days and to what is old, on a connection of its own.

Its work may take a while, and the keeper's own, watching over the living, must not wait for it.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Self, TypeAlias

from horsies.db import partitions
from horsies.db.dedicated import ThreadedConnection
from horsies.db.errors import DriverError, ErrorKind, broker_error, classify, is_about_row, short_text
from horsies.db.partitions import Partition, PartitionChange
from horsies.db.statement import Op, Query, Row, execute, load, one, rows
from horsies.maintenance.isolate import SkippedRow, run_isolated
from horsies.model.config import PostgresConfig, RetentionConfig

# --------
# Retention: what is over is forgotten after its time. Everything here is safe when two do it at once, and when one dies in the middle.
#
# Finished tasks go by the day, see `db/partitions.py`; where that is not possible (what the default partition caught, days that our user may not drop) they are
# deleted. All else is deleted in batches, each a short transaction that skips what others hold locked.

BATCH = 1_000  # rows
TREES, NODES = 100, 5_000  # in one transaction; a larger tree goes alone

SQL = load(__file__)
log = logging.getLogger("horsies.maintenance")


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What one duty did. `postponed`: somebody was in the way, and it should be tried again soon."""

    count: int
    postponed: bool = False


RetentionDuty: TypeAlias = Callable[[], Op[Trimmed]]


def duties(schema: str, retention: RetentionConfig, aside: SkippedRow) -> dict[str, RetentionDuty]:
    """What is to be done from time to time, each independent of the others, by what it is about. `aside` are rows found bad before."""
    found: dict[str, RetentionDuty] = {"days ahead": partial(prepare_next_partitions, schema, retention.finished)}
    if retention.finished is not None:
        found["finished tasks"] = partial(drop_old_partitions, schema, retention.finished, aside)
    if retention.workflows is not None:
        found["workflows"] = partial(trim_workflows, retention.workflows, aside)
    if retention.worker_states is not None:
        found["worker states"] = partial(trim_worker_states, retention.worker_states, aside)
    if retention.schedule_runs is not None:
        found["schedule runs"] = partial(trim_schedule_runs, retention.schedule_runs, aside)
    return found


def retain(schema: str, retention: RetentionConfig) -> Op[dict[str, Trimmed]]:
    """All of it, once, and the keys."""
    done: dict[str, Trimmed] = {}
    for about, duty in (duties(schema, retention, SkippedRow()) | {"keys": trim_keys}).items():
        done[about] = yield from duty()
    return done


def prepare_next_partitions(schema: str, keep: timedelta | None) -> Op[Trimmed]:
    """Counts nothing: what is made is not forgotten."""
    rights = yield from partitions.get_privileges(schema)
    changes = (yield from partitions.prepare_partitions(schema, keep)) if rights.are_sufficient else []
    return Trimmed(0, postponed=PartitionChange.POSTPONED in changes)


def drop_old_partitions(schema: str, keep: timedelta, aside: SkippedRow) -> Op[Trimmed]:
    """Counts days where they can be dropped, else tasks."""
    rights = yield from partitions.get_privileges(schema)
    changes: list[PartitionChange] = []

    def drop(some: Sequence[Partition]) -> Op[PartitionChange]:
        yield from _note_endings(f"{some[0].first} 00:00+00", f"{some[0].after} 00:00+00")
        return (yield from partitions.drop_partition(schema, some[0]))

    for day, is_ours in (yield from partitions.get_old_partitions(schema, keep)):
        if rights.are_sufficient and is_ours:
            # A day that cannot be dropped (something of the user's depends on it) keeps no other; its rows are deleted below.
            changes += yield from run_isolated("drop the day", [day], drop, id_of=lambda day: day.first, aside=aside)
    if PartitionChange.POSTPONED in changes:
        return Trimmed(
            changes.count(PartitionChange.DONE), postponed=True
        )  # its rows are not worth being deleted one by one
    (cutoff,) = (yield from one(SQL["get_cutoff"](keep_s=keep.total_seconds()))) or (None,)
    yield from _note_endings("-infinity", cutoff)
    deleted = yield from _forget("finished", aside, before=cutoff)
    return Trimmed(changes.count(PartitionChange.DONE) + deleted)


def _note_endings(since: object, before: object) -> Op[int]:
    return (yield from _in_batches(SQL["record_key_endings"](since=since, before=before, limit=BATCH)))


def trim_workflows(keep: timedelta, aside: SkippedRow) -> Op[Trimmed]:
    """Trees whose run at the top ended so long ago. Whole ones: a part of a tree tells nobody anything."""
    keep_s, count, duty = keep.total_seconds(), 0, "forget workflow"

    def work(roots: Sequence[str]) -> Op[int]:
        return (yield from _forget_trees(roots, keep_s))

    while found := (yield from rows(SQL["get_old_trees"](keep_s=keep_s, limit=TREES, excluded=aside.excluded(duty)))):
        gone = 0
        for roots in _by_size(found):
            gone += sum((yield from run_isolated(duty, roots, work, id_of=str, aside=aside)))
        count += gone
        if not gone:
            return Trimmed(count, postponed=True)  # somebody holds them; they would be found again and again
    return Trimmed(count)


def _by_size(found: list[Row]) -> list[list[str]]:
    groups: list[list[str]] = [[]]
    nodes = 0
    for root, size in found:
        nodes += size
        if groups[-1] and nodes > NODES:
            groups.append([])
            nodes = size
        groups[-1].append(root)
    return groups


def _forget_trees(roots: Sequence[str], keep_s: float) -> Op[int]:
    _, locked = yield from execute(SQL["begin_deletion"](), SQL["lock_old_trees"](roots=list(roots), keep_s=keep_s))
    ours = [root for (root,) in locked]
    yield from execute(SQL["delete_nodes"](roots=ours), SQL["delete_runs"](roots=ours), SQL["commit_deletion"]())
    return len(ours)


def trim_worker_states(keep: timedelta, aside: SkippedRow) -> Op[Trimmed]:
    return Trimmed((yield from _forget("worker_states", aside, keep_s=keep.total_seconds())))


def trim_schedule_runs(keep: timedelta, aside: SkippedRow) -> Op[Trimmed]:
    return Trimmed((yield from _forget("schedule_runs", aside, keep_s=keep.total_seconds())))


def trim_keys() -> Op[Trimmed]:
    """Those that nobody can find held any more. A key is never missed: whoever sends under it next makes it anew.

    The walk goes on past a key that cannot be deleted: the stretches get shorter until it is alone, and longer again behind it.
    """
    name, key = "", ""
    count, limit, looked_at = 0, BATCH, BATCH
    while looked_at == limit:
        try:
            row = yield from one(SQL["delete_unused_keys"](after_name=name, after_key=key, limit=limit))
        except DriverError as error:
            if not is_about_row(error):
                raise
            if limit > 1:
                looked_at = limit = limit // 2
                continue
            name, key = (yield from one(SQL["get_next_key"](after_name=name, after_key=key))) or (name, key)
            log.warning("retention: key %r of task %r cannot be deleted: %s", key, name, short_text(error))
            continue
        name, key, looked_at, gone = row or ("", "", 0, 0)
        count += gone
        if looked_at == limit < BATCH:
            looked_at = limit = min(limit * 2, BATCH)
    return Trimmed(count)


def _forget(what: str, aside: SkippedRow, **params: object) -> Op[int]:
    """In batches, until there is less than one; how many rows in all. What somebody holds locked stays until the next time."""
    duty, count = f"delete {what}", 0
    # Some statements need their condition also when they delete: the rows may have changed since they were found.
    again = {name: value for name, value in params.items() if name == "before"}

    def work(ids: Sequence[str]) -> Op[int]:
        return len((yield from rows(SQL[f"delete_{what}"](ids=list(ids), **again))))

    while True:
        found = yield from rows(SQL[f"get_old_{what}"](limit=BATCH, excluded=aside.excluded(duty), **params))
        gone = sum((yield from run_isolated(duty, [row_id for (row_id,) in found], work, id_of=str, aside=aside)))
        count += gone
        if len(found) < BATCH or not gone:
            return count


def _in_batches(query: Query) -> Op[int]:
    """Until there is less than a batch of it; how many rows in all."""
    count = 0
    while True:
        found = yield from rows(query)
        count += len(found)
        if len(found) < BATCH:
            return count


FIRST_S = 10.0
AGAIN_S = 60.0
"""When somebody was in the way."""
KEYS_EVERY_S = 3600.0
"""A walk over all keys costs as much as there are."""


class RetentionRunner:
    """A service of the keeper. Does nothing until it is told that it is on duty."""

    def __init__(self, group: asyncio.TaskGroup, *, database: PostgresConfig, retention: RetentionConfig) -> None:
        self._group = group
        self._database = database
        self._schema = database.schema
        self._retention = retention
        self._every_s = retention.every.total_seconds()
        self._on_duty = asyncio.Event()
        self._link: ThreadedConnection | None = None
        self._keys_at = 0.0
        self._is_refused = False
        self._aside = SkippedRow()

    async def __aenter__(self) -> Self:
        self._retaining = self._group.create_task(self._retain())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._retaining.cancel()
        await self._close()

    def be_on_duty(self, *, whether: bool) -> None:
        """Whether its worker is the keeper now."""
        if whether:
            self._on_duty.set()
        else:
            self._on_duty.clear()

    async def _retain(self) -> None:
        next_s = FIRST_S
        while True:
            # Spread out: keepers come and go, and a whole cluster may have been started at one moment.
            await asyncio.sleep(min(next_s, self._every_s) * random.uniform(0.8, 1.2))  # noqa: S311 - jitter, no secret
            await self._on_duty.wait()
            try:
                next_s = AGAIN_S if await self._look() else self._every_s
            except DriverError as error:
                level = logging.DEBUG if classify(error) is ErrorKind.CONNECTION_LOST else logging.WARNING
                log.log(level, "the keeper could not look after what is old: %s", broker_error(error))
            finally:
                await self._close()

    async def _look(self) -> bool:
        """Whether anything was postponed."""
        link = self._link = ThreadedConnection(self._database, "retention")
        await self._check_rights(link)
        done = [
            await self._do(link, about, duty)
            for about, duty in duties(self._schema, self._retention, self._aside).items()
        ]
        if time.monotonic() >= self._keys_at and await self._do(link, "keys", trim_keys):
            self._keys_at = time.monotonic() + KEYS_EVERY_S
        return any(forgotten is None or forgotten.postponed for forgotten in done)

    async def _do(self, link: ThreadedConnection, about: str, duty: RetentionDuty) -> Trimmed | None:
        """What fails must not keep the others from being done."""
        try:
            done = await link.run(duty())
        except DriverError as error:
            if classify(error) is ErrorKind.CONNECTION_LOST:
                raise
            log.warning("the keeper could not see to %s: %s", about, broker_error(error))
            return None
        except Exception:
            log.exception("the keeper could not see to %s", about)
            return None
        if done.count:
            log.info("retention: %d %s", done.count, about)
        return done

    async def _check_rights(self, link: ThreadedConnection) -> None:
        rights = await link.run(partitions.get_privileges(self._schema))
        if not rights.are_sufficient and not self._is_refused:
            log.warning(
                "database user %s may not make and drop the days of finished tasks, because the tables are %s's: what finishes goes to "
                "finished_default and is deleted row by row when it is old. Let workers connect as %s, or grant that role to %s "
                "together with CREATE on schema %s; or run `horsies migrate` as %s at least once a week.",
                rights.user, rights.owner, rights.owner, rights.user, self._schema, rights.owner,
            )  # fmt: skip
        self._is_refused = not rights.are_sufficient

    async def _close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close(None)
