"""`WorkerConfig`: how one worker runs, for code. The command line fills in the same."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from horsies.model.problems import number_problems, refuse

LOGLEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
DEFAULT_TASKS_PER_CHILD = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Everything defaults to what the app says. 0 for a `max_claim_…` sets no limit of its own.

    `queues` serves only these; `queue_priorities` and `queue_max_concurrency` override the app's for this worker.
    `coalesce_notifies` is how many notifications are taken in before one look at the database.
    """

    dsn: str | None = field(default=None, repr=False)
    app_locator: str | None = None
    imports: Sequence[str] = ()
    queues: Sequence[str] | None = None
    processes: int | None = None
    concurrency: int = 1
    max_tasks_per_child: int = DEFAULT_TASKS_PER_CHILD
    max_memory_per_child_mb: float | None = None
    max_claim_batch: int = 0
    max_claim_per_worker: int = 0
    queue_priorities: Mapping[str, int] = field(default_factory=dict[str, int])
    queue_max_concurrency: Mapping[str, int | None] = field(default_factory=dict[str, int | None])
    coalesce_notifies: int = 100
    shutdown_timeout_ms: int | None = None
    loglevel: str = "INFO"

    def __post_init__(self) -> None:
        if self.processes is None:
            object.__setattr__(self, "processes", os.cpu_count() or 1)
        refuse(self, self._problems())
        object.__setattr__(self, "imports", tuple(self.imports))
        if self.queues is not None:
            object.__setattr__(self, "queues", tuple(self.queues))

    @property
    def process_count(self) -> int:
        return self.processes or 1

    def _problems(self) -> Iterator[str]:
        yield from _names_problems("imports", self.imports)
        yield from self._queue_problems()
        yield from number_problems("processes", self.processes, 1, 1_000)
        yield from number_problems("concurrency", self.concurrency, 1, 100_000)
        yield from number_problems("max_tasks_per_child", self.max_tasks_per_child, 0, 1_000_000_000)
        if self.max_tasks_per_child == 1 and type(self.max_tasks_per_child) is int:
            yield "max_tasks_per_child is 1, and starting a process for each task costs more than most tasks; choose 2 or more, or 0"
        yield from _memory_problems(self.max_memory_per_child_mb)
        yield from number_problems("max_claim_batch", self.max_claim_batch, 0, 1_000_000)
        yield from number_problems("max_claim_per_worker", self.max_claim_per_worker, 0, 1_000_000)
        yield from number_problems("coalesce_notifies", self.coalesce_notifies, 1, 1_000_000)
        if self.shutdown_timeout_ms is not None:
            yield from number_problems("shutdown_timeout_ms", self.shutdown_timeout_ms, 0, 86_400_000)
        if self.loglevel not in LOGLEVELS:
            yield f"loglevel is {self.loglevel!r}; choose one of {', '.join(LOGLEVELS)}"

    def _queue_problems(self) -> Iterator[str]:
        if self.queues is not None:
            yield from _names_problems("queues", self.queues)
            if not self.queues:
                yield "queues is empty, so there would be nothing to do; name at least one, or leave it out for all"
        for name, priority in self.queue_priorities.items():
            yield from number_problems(f"queue_priorities[{name!r}]", priority, 0, 32_767)
        for name, cap in self.queue_max_concurrency.items():
            if cap is not None:
                yield from number_problems(f"queue_max_concurrency[{name!r}]", cap, 0, 1_000_000)


def _names_problems(name: str, value: object) -> Iterator[str]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        yield f"{name} must be a list of names, not {value!r}; write {name}=[{value!r}]"


def _memory_problems(limit: object) -> Iterator[str]:
    if limit is not None and (not isinstance(limit, int | float) or isinstance(limit, bool) or not limit > 0):
        yield f"max_memory_per_child_mb is {limit!r}; give a positive number of megabytes, or leave it out"
