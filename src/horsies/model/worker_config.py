"""`WorkerConfig`: how one worker runs. The options of `horsies worker` fill in the same fields."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, cast, get_args

from horsies.model.database_url import url_problem
from horsies.model.validation import freeze_list, instance_problems, number_problems, raise_problems, range_problems

StartMethod: TypeAlias = Literal["spawn", "forkserver", "fork"]

START_METHODS: tuple[str, ...] = get_args(StartMethod)
LOGLEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
LOG_FORMATS = ("text", "json")
DEFAULT_TASKS_PER_CHILD = 100
RECYCLING_DOMINATES = 0.5
"""Starting children takes too much if it is this share of their time."""
DEFAULT_METRICS_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """The settings of one worker. 0 for a `max_claim_…` sets no limit.

    `queues` serves only these; `queue_priorities` and `queue_max_concurrency` override the app's settings for this worker.
    `coalesce_notifies` is how many notifications are received before the database is queried once. `scheduler` runs the app's schedules as
    well. `start_method` is how children are started; by default `forkserver` if they are recycled and `fork` if not, on Linux, and `spawn` elsewhere.
    `migrate=False` refuses a database whose schema is not current, instead of migrating it.
    With `metrics_port` the worker serves `/metrics`, `/healthz` and `/readyz` on that port.
    """

    dsn: str | None = field(default=None, repr=False)
    app_locator: str | None = None
    imports: Sequence[str] = ()
    queues: Sequence[str] | None = None
    processes: int | None = None
    concurrency: int = 1
    max_tasks_per_child: int = DEFAULT_TASKS_PER_CHILD
    max_memory_per_child_mb: float | None = None
    start_method: StartMethod | None = None
    max_claim_batch: int = 0
    max_claim_per_worker: int = 0
    queue_priorities: Mapping[str, int] = field(default_factory=dict[str, int])
    queue_max_concurrency: Mapping[str, int | None] = field(default_factory=dict[str, int | None])
    coalesce_notifies: int = 100
    shutdown_timeout_ms: int | None = None
    scheduler: bool = False
    migrate: bool = True
    loglevel: str = "INFO"
    log_format: str = "text"
    metrics_port: int | None = None
    metrics_host: str = DEFAULT_METRICS_HOST

    def __post_init__(self) -> None:
        if self.processes is None:
            object.__setattr__(self, "processes", os.cpu_count() or 1)
        raise_problems(self, self._problems())
        freeze_list(self, "imports")
        freeze_list(self, "queues")
        object.__setattr__(self, "queue_priorities", dict(self.queue_priorities))
        object.__setattr__(self, "queue_max_concurrency", dict(self.queue_max_concurrency))

    @property
    def process_count(self) -> int:
        """The number of processes, as an int."""
        return self.processes or 1

    def _problems(self) -> Iterator[str]:
        if self.dsn is not None and (problem := url_problem(self.dsn)):
            yield f"dsn {problem}"
        locator = "" if self.app_locator is None else self.app_locator
        yield from instance_problems("app_locator", locator, str, "'package.module:attribute'")
        yield from _names_problems("imports", self.imports)
        yield from self._queue_problems()
        yield from range_problems(
            self, processes=(1, 1_000), concurrency=(1, 100_000), max_tasks_per_child=(0, 1_000_000_000)
        )
        if self.max_tasks_per_child == 1 and type(self.max_tasks_per_child) is int:
            yield "max_tasks_per_child is 1, and starting a process for each task costs more than most tasks; choose 2 or more, or 0"
        limit = self.max_memory_per_child_mb
        is_number = isinstance(limit, int | float) and not isinstance(limit, bool)
        if limit is not None and not (is_number and 0 < limit < math.inf):
            yield f"max_memory_per_child_mb is {limit!r}; give a positive number of megabytes, or leave it out"
        yield from range_problems(
            self, max_claim_batch=(0, 1_000_000), max_claim_per_worker=(0, 1_000_000), coalesce_notifies=(1, 1_000_000)
        )
        yield from range_problems(self, shutdown_timeout_ms=(0, 86_400_000, None), metrics_port=(1, 65_535, None))
        if not isinstance(self.metrics_host, str) or not self.metrics_host:  # pyright: ignore[reportUnnecessaryIsInstance]
            yield f"metrics_host is {self.metrics_host!r}; give an address of this machine, such as '127.0.0.1', or leave it out"
        choices = (
            ("loglevel", self.loglevel, LOGLEVELS),
            ("log_format", self.log_format, LOG_FORMATS),
            ("start_method", self.start_method or START_METHODS[0], START_METHODS),
        )
        yield from (
            f"{name} is {value!r}; choose one of {', '.join(known)}"
            for name, value, known in choices
            if value not in known
        )

    def _queue_problems(self) -> Iterator[str]:
        if self.queues is not None:
            yield from _names_problems("queues", self.queues)
            if not self.queues:
                yield "queues is empty, so the worker would have nothing to do; name at least one, or leave it out for all"
        yield from _override_problems("queue_priorities", self.queue_priorities, 32_767)
        yield from _override_problems("queue_max_concurrency", self.queue_max_concurrency, 1_000_000, None)


def _names_problems(name: str, value: object) -> Iterator[str]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        yield f"{name} must be a list of names, not {value!r}; write {name}=[{value!r}]"
        return
    for position, item in enumerate(cast("Sequence[object]", value)):
        if not isinstance(item, str):
            yield f"{name}[{position}] must be a name, not {item!r}; put it into quotes"


def _override_problems(name: str, value: object, high: int, *others: None) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield f"{name} must be a dict from queue to number, not {value!r}; write {name}={{'default': 1}}"
        return
    for queue, number in cast("Mapping[object, object]", value).items():
        if number is not None or not others:
            yield from number_problems(f"{name}[{queue!r}]", number, 0, high)
