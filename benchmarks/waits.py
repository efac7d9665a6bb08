"""How long tasks waited: computed from the records of the tasks and from the rows of the database, both by the same clock."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stay:
    """One task with its times."""

    seconds: float
    """How long it is to take."""
    child: str
    sent: float
    claimed: float
    """The time of the last claim: a released task was claimed before."""
    began: float
    ended: float

    @property
    def wait_s(self) -> float:
        return self.began - self.sent


Span = tuple[float, float]


def behind_s(stay: Stay, slow: Iterable[Stay]) -> float:
    """Return how long it was in its child behind a slow task. `slow` has the slow tasks of that child."""
    return _longest((stay.claimed, stay.began), ((other.began, other.ended) for other in slow))


def avoidable_wait_s(stay: Stay, free: Iterable[Span]) -> float:
    """Return the longest time that it waited while the same child was idle. This includes released tasks: where they were before
    their last claim is not recorded.
    """
    return _longest((stay.sent, stay.began), free)


def _longest(span: Span, others: Iterable[Span]) -> float:
    """Return the longest overlap with one of the others."""
    return max([0.0, *(min(span[1], end) - max(span[0], start) for start, end in others)])


def by_child(stays: Iterable[Stay], count: int) -> dict[str, list[Stay]]:
    """Group by child, in the order of time, with an entry for every child, also for those without tasks."""
    found: defaultdict[str, list[Stay]] = defaultdict(list)
    for stay in sorted(stays, key=lambda stay: stay.began):
        found[stay.child].append(stay)
    return dict(found) | {f"idle {number}": [] for number in range(len(found), count)}


def free_spans(children: Mapping[str, Sequence[Stay]], first: float, last: float, at_least_s: float) -> list[Span]:
    """Return when a child was idle for at least this time."""
    spans: list[Span] = []
    for stays in children.values():
        ends = [first, *(stay.ended for stay in stays)]
        begins = [*(stay.began for stay in stays), last]
        spans += [span for span in zip(ends, begins, strict=True) if span[1] - span[0] >= at_least_s]
    return spans
