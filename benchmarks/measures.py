"""What is measured, under which name; the numbers of all rounds, and their medians."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from statistics import median, quantiles


class Measure(Enum):
    """Each has a label and a unit, in the order of the table."""

    DRAIN_DEFAULT = "drain, default settings: durably done", "tasks/s"
    DRAIN_DEFAULT_STARTS = "drain, default settings: first to last start", "tasks/s"
    DRAIN_STEADY = "drain, default but --max-tasks-per-child 0: durably done", "tasks/s"
    RAW_2_FUSED = "raw: finish 2 + claim 2, one commit", "rows/s"
    RAW_2_APART = "raw: claim 2, finish 2, two commits", "rows/s"
    DRAIN_AUTO = "drain, prefetch_buffer=auto: durably done", "tasks/s"
    DRAIN_AUTO_STARTS = "drain, prefetch_buffer=auto: first to last start", "tasks/s"
    RAW_100_FUSED = "raw: finish 100 + claim 100, one commit", "rows/s"
    RAW_100_APART = "raw: claim 100, finish 100, two commits", "rows/s"
    SEND = "send, one by one", "tasks/s"
    SEND_P50 = "send: p50", "ms"
    RAW_INSERT_NOTIFY = "raw: insert 1 and commit, with the notify trigger", "rows/s"
    RAW_INSERT = "raw: insert 1 and commit, without it", "rows/s"
    RAW_INSERT_P50 = "raw: insert 1 and commit, without it: p50", "ms"
    PRODUCERS = "8 producers at once, send one by one", "tasks/s"
    RAW_PRODUCERS_NOTIFY = "raw: 8 at once, insert 1 and pg_notify in one commit", "rows/s"
    RAW_PRODUCERS = "raw: 8 at once, insert 1 without any NOTIFY", "rows/s"
    BULK = "send_many, all at once", "tasks/s"
    BULK_WITH_CALLS = "send_many, all at once, and the calls made first", "tasks/s"
    BULK_MEMORY = "send_many: memory at its peak beyond calls and handles, per task", "bytes"
    RAW_UNNEST = "raw: insert the same by unnest, one transaction", "rows/s"
    RAW_COPY = "raw: insert the same by COPY, one transaction", "rows/s"
    LATENCY_P50 = "send to result, one at a time: p50", "ms"
    LATENCY_P95 = "send to result, one at a time: p95", "ms"
    LATENCY_P99 = "send to result, one at a time: p99", "ms"
    START_P50 = "send to start, one at a time: p50", "ms"
    CHAIN = "workflow of 10 steps, start to result, one at a time: p50", "ms"
    CHAIN_SINGLE = "a single task between them, send to result: p50", "ms"
    FAN = "50 workflows of 20 nodes and a join, default but no recycling", "nodes/s"
    FAN_AUTO = "50 workflows of 20 nodes and a join, prefetch_buffer=auto", "nodes/s"
    FAN_PLAIN = "as many plain tasks, default but no recycling", "tasks/s"
    FAN_PLAIN_AUTO = "as many plain tasks, prefetch_buffer=auto", "tasks/s"
    START_LARGE = "start of a workflow of 1 000 nodes: p50", "ms"
    MAP = "map over a long list, prefetch_buffer=auto", "items/s"
    MAP_MEMORY = "map over a long list: growth of the worker's parent", "MB"
    SLOW_STEADY = "600 tasks of an app with an import of 2 s, no recycling", "s"
    SLOW_FORK = "the same, replaced after 100 tasks, --start-method fork", "s"
    SLOW_DEFAULT = "the same, replaced after 100 tasks, default start method", "s"
    SHORT = "tasks of 1 ms, 2 children of 32 slots, default settings", "tasks/s"
    SOCKET_1 = "raw: socketpair there and back, 1 message a frame", "messages/s"
    SOCKET_100 = "raw: socketpair there and back, 100 messages a frame", "messages/s"

    @property
    def label(self) -> str:
        return self.value[0]

    @property
    def unit(self) -> str:
        return self.value[1]


@dataclass(slots=True)
class Numbers:
    """All rounds of all measures."""

    rounds: dict[Measure, list[float]] = field(default_factory=dict[Measure, list[float]])

    def add(self, values: dict[Measure, float]) -> None:
        for measure, value in values.items():
            self.rounds.setdefault(measure, []).append(value)

    def median(self, measure: Measure) -> float:
        return median(self.rounds[measure])


def percentile(values: Sequence[float], percent: int) -> float:
    return quantiles(values, n=100, method="inclusive")[percent - 1]
