"""What becomes of a schedule that is due: which slots run, which do not, and when it is due next. Pure."""

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from math import ceil
from typing import Final, NamedTuple

from horsies.model.schedule import Overlap, Pattern, from_stored, newest_slots, next_slot, zone_named

ON_TIME: Final = timedelta(seconds=60)
"""A slot that is dealt with within this time was not missed, whatever kept the scheduler."""

_MILLISECOND: Final = timedelta(milliseconds=1)


class SlotOutcome(StrEnum):
    """What became of a slot."""

    ENQUEUED = "ENQUEUED"
    SKIPPED = "SKIPPED"
    """The last run was still going."""
    MISSED = "MISSED"
    """Nobody was there, and the catch-up rule leaves it out."""
    BY_HAND = "BY_HAND"
    """No slot: somebody asked for a run."""


class Due(NamedTuple):
    """A schedule whose next slot has come; as its row is read."""

    name: str
    pattern: str
    timezone: str
    next_slot_at: datetime
    catch_up_missed: bool
    max_catch_up_runs: int
    jitter_ms: int
    overlap: str
    last_task_id: str | None


class SlotDecision(NamedTuple):
    """On one slot, or on a range of them that were missed."""

    name: str
    outcome: SlotOutcome
    slot_at: datetime
    last_slot_at: datetime | None = None
    delay_ms: int | None = None


@dataclass(frozen=True, slots=True)
class DueDecision:
    """On one schedule: what becomes of its slots, oldest first, and where it stands then."""

    due: Due
    verdicts: list[SlotDecision]
    next_slot_at: datetime | None
    last_slot_at: datetime


def decide(due: Due, moment: datetime, *, is_going: bool) -> DueDecision:
    """Raises ValueError for a pattern or a zone that is not known here."""
    slots, following = _slots(due, moment)
    wanted = _wanted(due)
    taken = slots[-wanted:]
    if not due.max_catch_up_runs and moment - slots[-1] > ON_TIME:
        taken = []
    missed = slots[: len(slots) - len(taken)]
    verdicts = [SlotDecision(due.name, SlotOutcome.MISSED, due.next_slot_at, missed[-1])] if missed else []
    if is_going and due.overlap == Overlap.SKIP:
        verdicts += [SlotDecision(due.name, SlotOutcome.SKIPPED, slot) for slot in taken]
    else:
        verdicts += [
            SlotDecision(due.name, SlotOutcome.ENQUEUED, slot, delay_ms=_delay_ms(due, slot, moment)) for slot in taken
        ]
    return DueDecision(due, verdicts, following, slots[-1])


def _slots(due: Due, moment: datetime) -> tuple[list[datetime], datetime | None]:
    """The newest slots that have come, one more than are wanted, and the first that has not. The stored one counts, even if the
    zone's rules have been changed since it was computed.
    """
    pattern, zone = _pattern(due.pattern), zone_named(due.timezone)
    following = next_slot(pattern, zone, due.next_slot_at)
    if following is None or following > moment:
        return [due.next_slot_at], following
    most = _wanted(due) + 1
    slots = newest_slots(pattern, zone, due.next_slot_at, moment, most)
    return ([due.next_slot_at, *slots] if len(slots) < most else slots), next_slot(pattern, zone, moment)


@lru_cache(maxsize=20_000)
def _pattern(stored: str) -> Pattern:
    """Checking a pattern takes longer than finding its next slot."""
    return from_stored(json.loads(stored))


def _wanted(due: Due) -> int:
    """At most so many run. Where runs must not overlap it is one: the others would find it going."""
    if due.catch_up_missed and due.overlap != Overlap.SKIP:
        return max(1, due.max_catch_up_runs)
    return 1


def _delay_ms(due: Due, slot: datetime, moment: datetime) -> int | None:
    """From this moment; the slot's own delay is the same whoever computes it. None: now."""
    delay = _share(due.name, slot) * due.jitter_ms * _MILLISECOND
    left = slot + delay - moment
    return ceil(left / _MILLISECOND) if left > timedelta(0) else None


def _share(name: str, slot: datetime) -> float:
    digest = sha256(f"{slot.timestamp():.0f} {name}".encode()).digest()
    return int.from_bytes(digest[:6]) / 2**48
