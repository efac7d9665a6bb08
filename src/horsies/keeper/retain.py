"""Retention: what is over is forgotten after its time. Everything here is safe when two do it at once, and when one dies in the middle.

Finished tasks go by the day, see `db/days.py`; where that is not possible (what the default partition caught, days that our user may not drop) they are
deleted. All else is deleted in batches, each a short transaction that skips what others hold locked.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TypeAlias

from horsies.db import days
from horsies.db.days import Change
from horsies.db.load import load
from horsies.db.op import Op, Query, Row, ask, one, rows
from horsies.model.retention import RetentionConfig

BATCH = 1_000  # rows
TREES, NODES = 100, 5_000  # in one transaction; a larger tree goes alone

SQL = load(__file__)


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What one duty did. `postponed`: somebody was in the way, and it should be tried again soon."""

    count: int
    postponed: bool = False


Duty: TypeAlias = Callable[[], Op[Forgotten]]


def duties(schema: str, retention: RetentionConfig) -> dict[str, Duty]:
    """What is to be done from time to time, each independent of the others, by what it is about."""
    found: dict[str, Duty] = {"days ahead": partial(keep_days_ahead, schema, retention.finished)}
    if retention.finished is not None:
        found["finished tasks"] = partial(forget_finished, schema, retention.finished)
    if retention.workflows is not None:
        found["workflows"] = partial(forget_workflows, retention.workflows)
    if retention.worker_states is not None:
        found["worker states"] = partial(forget_states, retention.worker_states)
    if retention.schedule_runs is not None:
        found["schedule runs"] = partial(forget_schedule_runs, retention.schedule_runs)
    return found


def retain(schema: str, retention: RetentionConfig) -> Op[dict[str, Forgotten]]:
    """All of it, once, and the keys."""
    done: dict[str, Forgotten] = {}
    for about, duty in (duties(schema, retention) | {"keys": forget_keys}).items():
        done[about] = yield from duty()
    return done


def keep_days_ahead(schema: str, keep: timedelta | None) -> Op[Forgotten]:
    """Counts nothing: what is made is not forgotten."""
    rights = yield from days.get_rights(schema)
    changes = (yield from days.prepare_days(schema, keep)) if rights.suffice else []
    return Forgotten(0, postponed=Change.POSTPONED in changes)


def forget_finished(schema: str, keep: timedelta) -> Op[Forgotten]:
    """Counts days where they can be dropped, else tasks."""
    rights = yield from days.get_rights(schema)
    changes: list[Change] = []
    for day, is_ours in (yield from days.get_old_days(schema, keep)):
        if rights.suffice and is_ours:
            yield from _note_endings(f"{day.first} 00:00+00", f"{day.after} 00:00+00")
            changes.append((yield from days.drop_day(schema, day)))
    if Change.POSTPONED in changes:
        return Forgotten(changes.count(Change.DONE), postponed=True)  # its rows are not worth being deleted one by one
    (cutoff,) = (yield from one(SQL["get_cutoff"](keep_s=keep.total_seconds()))) or (None,)
    yield from _note_endings("-infinity", cutoff)
    deleted = yield from _in_batches(SQL["forget_finished"](before=cutoff, limit=BATCH))
    return Forgotten(changes.count(Change.DONE) + deleted)


def _note_endings(since: object, before: object) -> Op[int]:
    return (yield from _in_batches(SQL["note_endings"](since=since, before=before, limit=BATCH)))


def forget_workflows(keep: timedelta) -> Op[Forgotten]:
    """Trees whose run at the top ended so long ago. Whole ones: a part of a tree tells nobody anything."""
    keep_s, count = keep.total_seconds(), 0
    while found := (yield from rows(SQL["get_old_trees"](keep_s=keep_s, limit=TREES))):
        gone = 0
        for roots in _by_size(found):
            gone += yield from _forget_trees(roots, keep_s)
        count += gone
        if gone < len(found):
            return Forgotten(count, postponed=True)  # somebody holds one of them; it would be found again and again
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


def _forget_trees(roots: list[str], keep_s: float) -> Op[int]:
    _, locked = yield from ask(SQL["begin_forgetting"](), SQL["lock_old_trees"](roots=roots, keep_s=keep_s))
    ours = [root for (root,) in locked]
    yield from ask(SQL["forget_nodes"](roots=ours), SQL["forget_runs"](roots=ours), SQL["commit_forgetting"]())
    return len(ours)


def forget_states(keep: timedelta) -> Op[Forgotten]:
    return Forgotten((yield from _in_batches(SQL["forget_states"](keep_s=keep.total_seconds(), limit=BATCH))))


def forget_schedule_runs(keep: timedelta) -> Op[Forgotten]:
    return Forgotten((yield from _in_batches(SQL["forget_schedule_runs"](keep_s=keep.total_seconds(), limit=BATCH))))


def forget_keys() -> Op[Forgotten]:
    """Those that nobody can find held any more. A key is never missed: whoever sends under it next makes it anew."""
    after: tuple[str, str] = "", ""
    count, looked_at = 0, BATCH
    while looked_at == BATCH:
        row = yield from one(SQL["forget_keys"](after_name=after[0], after_key=after[1], limit=BATCH))
        *position, looked_at, gone = row or ("", "", 0, 0)
        after = position[0], position[1]
        count += gone
    return Forgotten(count)


def _in_batches(query: Query) -> Op[int]:
    """Until there is less than a batch of it; how many rows in all."""
    count = 0
    while True:
        found = yield from rows(query)
        count += len(found)
        if len(found) < BATCH:
            return count
