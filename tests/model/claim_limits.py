"""How many tasks one claim may take: the arithmetic of the claim statement, as a pure oracle for tests.

How many tasks wait is not known before the claim, so these are limits: a queue gives at most its own, and what it leaves
is available to the queues after it in the same pass.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimOracle:
    """The capacity of a worker at the beginning of a pass. 0 for a `max_…` of the command line sets no limit."""

    slots: int
    running: int
    claimed: int
    prefetch_buffer: int = 0
    max_claim_per_worker: int = 0
    max_claim_batch: int = 0
    cluster_wide_cap: int | None = None
    in_flight_everywhere: int = 0

    def pass_limit(self) -> int:
        """How many tasks the whole pass may claim."""
        limits = [self.slots + self.prefetch_buffer - self.running - self.claimed]
        if self.cluster_wide_cap is not None:
            limits.append(self.cluster_wide_cap - self.in_flight_everywhere)
        if self.max_claim_per_worker:
            limits.append(self.max_claim_per_worker - self._held())
        return max(0, min(limits))

    def queue_limit(self, queue: "QueueLimits", left: int) -> int:
        """How many tasks may be claimed from one queue if the queues before it left this much of the pass."""
        limits = [left]
        if queue.max_concurrency is not None:
            limits.append(queue.max_concurrency - queue.in_flight)
        if self.max_claim_batch:
            limits.append(self.max_claim_batch)
        return max(0, min(limits))

    def claims(self, queues: Iterable["QueueLimits"], waiting: Mapping[str, int]) -> dict[str, int]:
        """How many tasks a pass claims from each queue, in the order given, if these numbers are waiting."""
        left = self.pass_limit()
        taken: dict[str, int] = {}
        for queue in queues:
            taken[queue.name] = min(waiting.get(queue.name, 0), self.queue_limit(queue, left))
            left -= taken[queue.name]
        return taken

    def _held(self) -> int:
        # With a buffer the limit is for prefetched tasks, so running tasks do not count.
        return self.claimed if self.prefetch_buffer else self.claimed + self.running


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """One queue in a pass. `in_flight` counts RUNNING and CLAIMED, or only RUNNING if there is a buffer."""

    name: str
    max_concurrency: int | None = None
    in_flight: int = 0
