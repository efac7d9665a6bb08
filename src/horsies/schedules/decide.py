"""Decide what happens to a due schedule: which slots run, which do not, and when it is due next. No I/O."""

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from math import ceil
from typing import Final, NamedTuple

from horsies.model.schedule import Overlap, Pattern, newest_slots, next_slot, pattern_from_json, zone_named

ON_TIME: Final = timedelta(seconds=60)
"""A slot that is handled within this time was not missed, whatever delayed the scheduler."""

_MILLISECOND: Final = timedelta(milliseconds=1)


class SlotOutcome(StrEnum):
    """What happened to a slot."""

    ENQUEUED = "ENQUEUED"
    SKIPPED = "SKIPPED"
    """The previous run had not ended."""
    MISSED = "MISSED"
    """No scheduler was running, and the catch-up rule leaves the slot out."""
    BY_HAND = "BY_HAND"
    """Not a slot: a run on request (`horsies schedules run`)."""


class DueSchedule(NamedTuple):
    """A schedule whose next slot has come. The fields are the columns of `lock_due_schedules`."""

    name: str
    pattern: str
    timezone: str
    next_slot_at: datetime
    catch_up_missed: bool
    max_catch_up_runs: int
    jitter_ms: int
    overlap: str
    last_task_id: str | None

    @property
    def max_runs(self) -> int:
        """How many of the due slots run. It is one if runs must not overlap: the others would find it running."""
        if self.catch_up_missed and self.overlap != Overlap.SKIP:
            return max(1, self.max_catch_up_runs)
        return 1


class SlotDecision(NamedTuple):
    """The decision about one slot, or about a range of missed slots."""

    name: str
    outcome: SlotOutcome
    slot_at: datetime
    last_slot_at: datetime | None = None
    delay_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ScheduleDecision:
    """The decisions about the slots of one schedule, oldest first, and the slots to store in its row."""

    due: DueSchedule
    slots: list[SlotDecision]
    next_slot_at: datetime | None
    last_slot_at: datetime


def decide(due: DueSchedule, now: datetime, *, is_running: bool) -> ScheduleDecision:
    """Decide about the due slots of a schedule; `is_running` says whether its previous run has not ended.

    Raises ValueError for a pattern or a time zone that this process does not know.
    """
    slots, following = _due_slots(due, now)
    taken = slots[-due.max_runs :]
    if not due.max_catch_up_runs and now - slots[-1] > ON_TIME:
        taken = []
    missed = slots[: len(slots) - len(taken)]
    decisions = [SlotDecision(due.name, SlotOutcome.MISSED, due.next_slot_at, missed[-1])] if missed else []
    if is_running and due.overlap == Overlap.SKIP:
        decisions += [SlotDecision(due.name, SlotOutcome.SKIPPED, slot) for slot in taken]
    else:
        decisions += [
            SlotDecision(due.name, SlotOutcome.ENQUEUED, slot, delay_ms=_delay_ms(due, slot, now)) for slot in taken
        ]
    return ScheduleDecision(due, decisions, following, slots[-1])


def _due_slots(due: DueSchedule, now: datetime) -> tuple[list[datetime], datetime | None]:
    """Return the newest due slots, one more than may run, and the first slot that is not due.

    The stored slot always counts, even if the rules of the time zone have changed since it was computed.
    """
    pattern, zone = _parse_pattern(due.pattern), zone_named(due.timezone)
    following = next_slot(pattern, zone, due.next_slot_at)
    if following is None or following > now:
        return [due.next_slot_at], following
    limit = due.max_runs + 1
    slots = newest_slots(pattern, zone, due.next_slot_at, now, limit)
    return ([due.next_slot_at, *slots] if len(slots) < limit else slots), next_slot(pattern, zone, now)


@lru_cache(maxsize=20_000)  # validating a pattern takes longer than finding its next slot
def _parse_pattern(stored: str) -> Pattern:
    return pattern_from_json(json.loads(stored))


def _delay_ms(due: DueSchedule, slot: datetime, now: datetime) -> int | None:
    """Return the jitter of a slot that is left from now on; None if there is none.

    The jitter is a hash of the schedule and the slot, so that every scheduler computes the same one.
    """
    digest = sha256(f"{slot.timestamp():.0f} {due.name}".encode()).digest()
    share = int.from_bytes(digest[:6]) / 2**48
    left = slot + share * due.jitter_ms * _MILLISECOND - now
    return ceil(left / _MILLISECOND) if left > timedelta(0) else None
