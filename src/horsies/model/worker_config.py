"""`WorkerConfig`: how one worker runs, for code. The command line fills in the same."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from horsies.model.database_url import url_problem
from horsies.model.validation import number_problems, raise_problems

LOGLEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
LOG_FORMATS = ("text", "json")
DEFAULT_TASKS_PER_CHILD = 100
DEFAULT_METRICS_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Everything defaults to what the app says. 0 for a `max_claim_…` sets no limit of its own.

    `queues` serves only these; `queue_priorities` and `queue_max_concurrency` override the app's for this worker.
    `coalesce_notifies` is how many notifications are taken in before one look at the database. `scheduler` serves the app's schedules as well. With
    `metrics_port` the worker answers `/metrics`, `/healthz` and `/readyz` there.
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
    scheduler: bool = False
    loglevel: str = "INFO"
    log_format: str = "text"
    metrics_port: int | None = None
    metrics_host: str = DEFAULT_METRICS_HOST

    def __post_init__(self) -> None:
        if self.processes is None:
            object.__setattr__(self, "processes", os.cpu_count() or 1)
        raise_problems(self, self._problems())
        object.__setattr__(self, "imports", tuple(self.imports))
        object.__setattr__(self, "queue_priorities", dict(self.queue_priorities))
        object.__setattr__(self, "queue_max_concurrency", dict(self.queue_max_concurrency))
        if self.queues is not None:
            object.__setattr__(self, "queues", tuple(self.queues))

    @property
    def process_count(self) -> int:
        """`processes`, which are known once it is made."""
        return self.processes or 1

    def _problems(self) -> Iterator[str]:
        if self.dsn is not None and (problem := url_problem(self.dsn)):
            yield f"dsn {problem}"
        yield from _locator_problems(self.app_locator)
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
        if self.metrics_port is not None:
            yield from number_problems("metrics_port", self.metrics_port, 1, 65_535)
        if not isinstance(self.metrics_host, str) or not self.metrics_host:  # pyright: ignore[reportUnnecessaryIsInstance]
            yield f"metrics_host is {self.metrics_host!r}; give an address of this machine, such as '127.0.0.1', or leave it out"
        if self.loglevel not in LOGLEVELS:
            yield f"loglevel is {self.loglevel!r}; choose one of {', '.join(LOGLEVELS)}"
        if self.log_format not in LOG_FORMATS:
            yield f"log_format is {self.log_format!r}; choose one of {', '.join(LOG_FORMATS)}"

    def _queue_problems(self) -> Iterator[str]:
        if self.queues is not None:
            yield from _names_problems("queues", self.queues)
            if not self.queues:
                yield "queues is empty, so there would be nothing to do; name at least one, or leave it out for all"
        yield from _override_problems("queue_priorities", self.queue_priorities, 32_767)
        capped = self.queue_max_concurrency
        if isinstance(capped, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - anything may be given
            capped = {name: cap for name, cap in capped.items() if cap is not None}
        yield from _override_problems("queue_max_concurrency", capped, 1_000_000)


def _locator_problems(locator: object) -> Iterator[str]:
    if locator is not None and not isinstance(locator, str):
        yield f"app_locator must be text like 'package.module:attribute', not {type(locator).__name__}"


def _names_problems(name: str, value: object) -> Iterator[str]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        yield f"{name} must be a list of names, not {value!r}; write {name}=[{value!r}]"
        return
    for position, item in enumerate(cast("Sequence[object]", value)):
        if not isinstance(item, str):
            yield f"{name}[{position}] must be a name, not {item!r}; put it into quotes"


def _override_problems(name: str, value: object, high: int) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield f"{name} must be a dict from queue to number, not {value!r}; write {name}={{'default': 1}}"
        return
    for queue, number in cast("Mapping[object, object]", value).items():
        yield from number_problems(f"{name}[{queue!r}]", number, 0, high)


def _memory_problems(limit: object) -> Iterator[str]:
    is_number = isinstance(limit, int | float) and not isinstance(limit, bool)
    if limit is not None and not (is_number and 0 < cast("float", limit) < math.inf):
        yield f"max_memory_per_child_mb is {limit!r}; give a positive number of megabytes, or leave it out"
