"""What becomes of a schedule that is due: which slots run, which do not, and when it is due next. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final, NamedTuple

from horsies.model.calendar import newest_slots, next_slot, zone_named
from horsies.model.patterns import from_stored
from horsies.model.schedule import Overlap

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
    pattern: Mapping[str, Any]
    timezone: str
    next_slot_at: datetime
    catch_up_missed: bool
    max_catch_up_runs: int
    jitter_ms: int
    overlap: str
    last_task_id: str | None


class Verdict(NamedTuple):
    """On one slot, or on a range of them that were missed."""

    name: str
    outcome: SlotOutcome
    slot_at: datetime
    last_slot_at: datetime | None = None
    delay_s: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """On one schedule: what becomes of its slots, oldest first, and where it stands then."""

    due: Due
    verdicts: list[Verdict]
    next_slot_at: datetime | None
    last_slot_at: datetime


def decide(due: Due, moment: datetime, *, is_going: bool) -> Decision:
    """Raises ValueError for a pattern or a zone that is not known here."""
    slots, following = _slots(due, moment)
    wanted = _wanted(due)
    taken = slots[-wanted:]
    if not due.max_catch_up_runs and moment - slots[-1] > ON_TIME:
        taken = []
    missed = slots[: len(slots) - len(taken)]
    verdicts = [Verdict(due.name, SlotOutcome.MISSED, due.next_slot_at, missed[-1])] if missed else []
    if is_going and due.overlap == Overlap.SKIP:
        verdicts += [Verdict(due.name, SlotOutcome.SKIPPED, slot) for slot in taken]
    else:
        verdicts += [
            Verdict(due.name, SlotOutcome.ENQUEUED, slot, delay_s=_delay_s(due, slot, moment)) for slot in taken
        ]
    return Decision(due, verdicts, following, slots[-1])


def _slots(due: Due, moment: datetime) -> tuple[list[datetime], datetime | None]:
    """The newest slots that have come, one more than are wanted, and the first that has not. The stored one counts, even if the
    zone's rules have been changed since it was computed.
    """
    pattern, zone = from_stored(due.pattern), zone_named(due.timezone)
    following = next_slot(pattern, zone, due.next_slot_at)
    if following is None or following > moment:
        return [due.next_slot_at], following
    most = _wanted(due) + 1
    slots = newest_slots(pattern, zone, due.next_slot_at, moment, most)
    return ([due.next_slot_at, *slots] if len(slots) < most else slots), next_slot(pattern, zone, moment)


def _wanted(due: Due) -> int:
    """At most so many run. Where runs must not overlap it is one: the others would find it going."""
    if due.catch_up_missed and due.overlap != Overlap.SKIP:
        return max(1, due.max_catch_up_runs)
    return 1


def _delay_s(due: Due, slot: datetime, moment: datetime) -> float | None:
    """From this moment; the same whoever computes it. None: now."""
    delay = int(_share(due.name, slot) * due.jitter_ms) * _MILLISECOND
    left_s = (slot + delay - moment).total_seconds()
    return left_s if left_s > 0 else None


def _share(name: str, slot: datetime) -> float:
    digest = sha256(f"{slot.timestamp():.0f} {name}".encode()).digest()
    return int.from_bytes(digest[:6]) / 2**48
