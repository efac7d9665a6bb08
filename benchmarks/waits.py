"""Who waited for what: computed from what tasks have noted and from the rows of the database, both by the same clock."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stay:
    """One task as it happened."""

    seconds: float
    """How long it was told to take."""
    child: str
    sent: float
    claimed: float
    """For the last time: what was given back has been claimed before."""
    began: float
    ended: float

    @property
    def wait_s(self) -> float:
        return self.began - self.sent


Span = tuple[float, float]


def behind_s(stay: Stay, slow: Iterable[Stay]) -> float:
    """How long it lay in its child behind a slow task, the slow ones of that child being given."""
    return _longest((stay.claimed, stay.began), ((other.began, other.ended) for other in slow))


def in_vain_s(stay: Stay, free: Iterable[Span]) -> float:
    """The longest time that it waited while one and the same child had nothing to do. This sees also what was given back: where it was
    before its last claim is written nowhere.
    """
    return _longest((stay.sent, stay.began), free)


def _longest(span: Span, others: Iterable[Span]) -> float:
    """That they have in common."""
    return max([0.0, *(min(span[1], end) - max(span[0], start) for start, end in others)])


def by_child(stays: Iterable[Stay], count: int) -> dict[str, list[Stay]]:
    """In the order of time. There are so many children, also if some had nothing to do."""
    found: defaultdict[str, list[Stay]] = defaultdict(list)
    for stay in sorted(stays, key=lambda stay: stay.began):
        found[stay.child].append(stay)
    return dict(found) | {f"idle {number}": [] for number in range(len(found), count)}


def free_spans(children: Mapping[str, Sequence[Stay]], first: float, last: float, at_least_s: float) -> list[Span]:
    """When a child had nothing to do for so long."""
    spans: list[Span] = []
    for stays in children.values():
        ends = [first, *(stay.ended for stay in stays)]
        begins = [*(stay.began for stay in stays), last]
        spans += [span for span in zip(ends, begins, strict=True) if span[1] - span[0] >= at_least_s]
    return spans
