"""Retention: what is over is forgotten after its time. Everything here is safe when two do it at once, and when one dies in the middle.

Finished tasks go by the day, see `db/days.py`; where that is not possible (what the default partition caught, days that our user may not drop) they are
deleted. All else is deleted in batches, each a short transaction that skips what others hold locked.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TypeAlias

from horsies.db import days
from horsies.db.days import Change, Day
from horsies.db.load import load
from horsies.db.op import Op, Query, Row, ask, one, rows
from horsies.db.trouble import DatabaseError, in_short, is_of_a_row
from horsies.keeper.isolate import SetAside, serve
from horsies.model.retention import RetentionConfig

BATCH = 1_000  # rows
TREES, NODES = 100, 5_000  # in one transaction; a larger tree goes alone

SQL = load(__file__)
log = logging.getLogger("horsies.keeper")


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What one duty did. `postponed`: somebody was in the way, and it should be tried again soon."""

    count: int
    postponed: bool = False


Duty: TypeAlias = Callable[[], Op[Forgotten]]


def duties(schema: str, retention: RetentionConfig, aside: SetAside) -> dict[str, Duty]:
    """What is to be done from time to time, each independent of the others, by what it is about. `aside` are rows found bad before."""
    found: dict[str, Duty] = {"days ahead": partial(keep_days_ahead, schema, retention.finished)}
    if retention.finished is not None:
        found["finished tasks"] = partial(forget_finished, schema, retention.finished, aside)
    if retention.workflows is not None:
        found["workflows"] = partial(forget_workflows, retention.workflows, aside)
    if retention.worker_states is not None:
        found["worker states"] = partial(forget_states, retention.worker_states, aside)
    if retention.schedule_runs is not None:
        found["schedule runs"] = partial(forget_schedule_runs, retention.schedule_runs, aside)
    return found


def retain(schema: str, retention: RetentionConfig) -> Op[dict[str, Forgotten]]:
    """All of it, once, and the keys."""
    done: dict[str, Forgotten] = {}
    for about, duty in (duties(schema, retention, SetAside()) | {"keys": forget_keys}).items():
        done[about] = yield from duty()
    return done


def keep_days_ahead(schema: str, keep: timedelta | None) -> Op[Forgotten]:
    """Counts nothing: what is made is not forgotten."""
    rights = yield from days.get_rights(schema)
    changes = (yield from days.prepare_days(schema, keep)) if rights.suffice else []
    return Forgotten(0, postponed=Change.POSTPONED in changes)


def forget_finished(schema: str, keep: timedelta, aside: SetAside) -> Op[Forgotten]:
    """Counts days where they can be dropped, else tasks."""
    rights = yield from days.get_rights(schema)
    changes: list[Change] = []

    def drop(some: Sequence[Day]) -> Op[Change]:
        yield from _note_endings(f"{some[0].first} 00:00+00", f"{some[0].after} 00:00+00")
        return (yield from days.drop_day(schema, some[0]))

    for day, is_ours in (yield from days.get_old_days(schema, keep)):
        if rights.suffice and is_ours:
            # A day that cannot be dropped (something of the user's depends on it) keeps no other; its rows are deleted below.
            changes += yield from serve("drop the day", [day], drop, id_of=lambda day: day.first, aside=aside)
    if Change.POSTPONED in changes:
        return Forgotten(changes.count(Change.DONE), postponed=True)  # its rows are not worth being deleted one by one
    (cutoff,) = (yield from one(SQL["get_cutoff"](keep_s=keep.total_seconds()))) or (None,)
    yield from _note_endings("-infinity", cutoff)
    deleted = yield from _forget("finished", aside, before=cutoff)
    return Forgotten(changes.count(Change.DONE) + deleted)


def _note_endings(since: object, before: object) -> Op[int]:
    return (yield from _in_batches(SQL["record_key_endings"](since=since, before=before, limit=BATCH)))


def forget_workflows(keep: timedelta, aside: SetAside) -> Op[Forgotten]:
    """Trees whose run at the top ended so long ago. Whole ones: a part of a tree tells nobody anything."""
    keep_s, count, duty = keep.total_seconds(), 0, "forget workflow"

    def work(roots: Sequence[str]) -> Op[int]:
        return (yield from _forget_trees(roots, keep_s))

    while found := (yield from rows(SQL["get_old_trees"](keep_s=keep_s, limit=TREES, excluded=aside.excluded(duty)))):
        gone = 0
        for roots in _by_size(found):
            gone += sum((yield from serve(duty, roots, work, id_of=str, aside=aside)))
        count += gone
        if not gone:
            return Forgotten(count, postponed=True)  # somebody holds them; they would be found again and again
    return Forgotten(count)


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
    _, locked = yield from ask(SQL["begin_deletion"](), SQL["lock_old_trees"](roots=list(roots), keep_s=keep_s))
    ours = [root for (root,) in locked]
    yield from ask(SQL["delete_nodes"](roots=ours), SQL["delete_runs"](roots=ours), SQL["commit_deletion"]())
    return len(ours)


def forget_states(keep: timedelta, aside: SetAside) -> Op[Forgotten]:
    return Forgotten((yield from _forget("worker_states", aside, keep_s=keep.total_seconds())))


def forget_schedule_runs(keep: timedelta, aside: SetAside) -> Op[Forgotten]:
    return Forgotten((yield from _forget("schedule_runs", aside, keep_s=keep.total_seconds())))


def forget_keys() -> Op[Forgotten]:
    """Those that nobody can find held any more. A key is never missed: whoever sends under it next makes it anew.

    The walk goes on past a key that cannot be deleted: the stretches get shorter until it is alone, and longer again behind it.
    """
    name, key = "", ""
    count, limit, looked_at = 0, BATCH, BATCH
    while looked_at == limit:
        try:
            row = yield from one(SQL["delete_unused_keys"](after_name=name, after_key=key, limit=limit))
        except DatabaseError as error:
            if not is_of_a_row(error):
                raise
            if limit > 1:
                looked_at = limit = limit // 2
                continue
            name, key = (yield from one(SQL["get_next_key"](after_name=name, after_key=key))) or (name, key)
            log.warning("retention: key %r of task %r cannot be deleted: %s", key, name, in_short(error))
            continue
        name, key, looked_at, gone = row or ("", "", 0, 0)
        count += gone
        if looked_at == limit < BATCH:
            looked_at = limit = min(limit * 2, BATCH)
    return Forgotten(count)


def _forget(what: str, aside: SetAside, **params: object) -> Op[int]:
    """In batches, until there is less than one; how many rows in all. What somebody holds locked stays until the next time."""
    duty, count = f"delete {what}", 0
    # Some statements need their condition also when they delete: the rows may have changed since they were found.
    again = {name: value for name, value in params.items() if name == "before"}

    def work(ids: Sequence[str]) -> Op[int]:
        return len((yield from rows(SQL[f"delete_{what}"](ids=list(ids), **again))))

    while True:
        found = yield from rows(SQL[f"get_old_{what}"](limit=BATCH, excluded=aside.excluded(duty), **params))
        gone = sum((yield from serve(duty, [row_id for (row_id,) in found], work, id_of=str, aside=aside)))
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
