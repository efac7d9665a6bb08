"""Configuration: frozen values that check themselves, and report all of their problems at once."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from string import ascii_letters, digits
from typing import TYPE_CHECKING, Any, Final, Literal, Self, cast

from horsies.model.database_url import conninfo, masked, url_problem
from horsies.model.error_codes import ExceptionMap, OperationalErrorCode, code_problems, mapper_problems
from horsies.model.errors import QueueError
from horsies.model.payload_errors import DEFAULT_MAX_BYTES, DEFAULT_WARNING_BYTES, MOST_BYTES, PayloadLimits
from horsies.model.record import Record
from horsies.model.validation import instance_problems, number_problems, raise_problems

if TYPE_CHECKING:
    from horsies.model.schedule import ScheduleConfig

# --------
# Settings for when something is away, or dies: how long it is waited for, and who notices.


class WorkerResilienceConfig(Record):
    """How a worker rides out a database that is away. `db_retry_max_attempts` 0 means for ever."""

    db_retry_initial_ms: int = 500
    db_retry_max_ms: int = 5_000
    db_retry_max_attempts: int = 0
    notify_poll_interval_ms: int = 5_000

    def __post_init__(self) -> None:
        raise_problems(self, self._problems())

    def delay_ms(self, attempt: int, jitter: float) -> int:
        """How long to wait after this many failures in a row, counted from 0.

        `jitter` is the caller's random number from -1 to 1 and moves the delay by up to a quarter. It moves the longest
        delay too, downwards only, or workers that lost the database together would all return at the same moment.
        """
        if attempt < 0 or not -1 <= jitter <= 1:
            raise ValueError(f"attempt {attempt} must be 0 or more, and jitter {jitter} from -1 to 1")
        doublings = min(attempt, 16)  # beyond any allowed ratio of the two limits, and safe from huge numbers
        delay_ms = min(self.db_retry_initial_ms * 2**doublings, self.db_retry_max_ms)
        return min(round(delay_ms * (1 + jitter / 4)), self.db_retry_max_ms)

    def _problems(self) -> Iterator[str]:
        delays = [
            *number_problems("db_retry_initial_ms", self.db_retry_initial_ms, 100, 60_000),
            *number_problems("db_retry_max_ms", self.db_retry_max_ms, 500, 300_000),
        ]
        yield from delays
        if not delays and self.db_retry_max_ms < self.db_retry_initial_ms:
            yield (
                f"db_retry_max_ms {self.db_retry_max_ms} is below db_retry_initial_ms {self.db_retry_initial_ms}; "
                "raise the first or lower the second"
            )
        yield from number_problems("db_retry_max_attempts", self.db_retry_max_attempts, 0, 10_000)
        yield from number_problems("notify_poll_interval_ms", self.notify_poll_interval_ms, 1_000, 300_000)


class RecoveryConfig(Record):
    """How the dead are noticed, and how long the living are given.

    A worker beats every `heartbeat_ms`; it is dead when the keeper has watched its heartbeat stand still for `dead_after_ms`.
    A task that is over its time, or cancelled, gets `grace_ms` from the soft stop to the kill. `frozen_after_ms` is when a child
    that gives no sign of life is killed. "auto": when its process has been stopped for `dead_after_ms`, or has neither used the CPU nor waited
    for a disk for a minute (Linux; elsewhere it is only reported). A number: after so long a silence, whatever it does meanwhile; a long
    call into C that holds the GIL is silent and healthy. None: never.

    A task that no living worker knows waits for `unknown_task_patience_ms`, one whose parameters are another release's for
    `changed_task_patience_ms`. Then it fails.
    """

    heartbeat_ms: int = 3_000
    dead_after_ms: int = 10_000
    maintenance_ms: int = 1_000
    grace_ms: int = 5_000
    snapshot_ms: int = 15_000
    frozen_after_ms: int | Literal["auto"] | None = "auto"
    unknown_task_patience_ms: int = 86_400_000
    changed_task_patience_ms: int = 300_000

    def __post_init__(self) -> None:
        raise_problems(self, self._problems())

    def _problems(self) -> Iterator[str]:
        beats = [
            *number_problems("heartbeat_ms", self.heartbeat_ms, 100, 300_000),
            *number_problems("dead_after_ms", self.dead_after_ms, 500, 3_600_000),
        ]
        yield from beats
        if not beats and self.dead_after_ms < 2 * self.heartbeat_ms:
            yield (
                f"dead_after_ms {self.dead_after_ms} is below two heartbeats of {self.heartbeat_ms}; one late beat would "
                "kill a healthy worker: raise the first or lower the second"
            )
        yield from number_problems("maintenance_ms", self.maintenance_ms, 100, 60_000)
        yield from number_problems("grace_ms", self.grace_ms, 0, 3_600_000)
        yield from number_problems("snapshot_ms", self.snapshot_ms, 1_000, 3_600_000)
        yield from number_problems("unknown_task_patience_ms", self.unknown_task_patience_ms, 0, 31_536_000_000)
        yield from number_problems("changed_task_patience_ms", self.changed_task_patience_ms, 0, 31_536_000_000)
        if self.frozen_after_ms is not None and self.frozen_after_ms != "auto":
            frozen = list(number_problems("frozen_after_ms", self.frozen_after_ms, 1_000, 86_400_000))
            yield from (f'{problem}; or "auto", or None' for problem in frozen)
            if not frozen and not beats and self.frozen_after_ms < 3 * self.heartbeat_ms:
                yield (
                    f"frozen_after_ms {self.frozen_after_ms} is below three heartbeats of {self.heartbeat_ms}, at which children "
                    "are asked; a child that is slow to answer once would be killed: raise it"
                )


# --------
# Settings for how long what is over is kept.

SHORTEST: Final = timedelta(hours=1)
LONGEST: Final = timedelta(days=36_500)
MOST_OFTEN: Final = timedelta(seconds=1)
SELDOM: Final = timedelta(days=1)


class RetentionConfig(Record):
    """How long what is over is kept; None keeps it for ever. The keeper sees to it `every` few minutes.

    Finished tasks go by whole days (UTC): at least as old as this, and at most a day older. A workflow goes with all runs below it, and their
    nodes' results with them.
    """

    finished: timedelta | None = timedelta(days=7)
    workflows: timedelta | None = timedelta(days=30)
    worker_states: timedelta | None = timedelta(days=1)
    schedule_runs: timedelta | None = timedelta(days=30)
    every: timedelta = timedelta(minutes=5)

    def __post_init__(self) -> None:
        raise_problems(self, self._problems())

    def _problems(self) -> Iterator[str]:
        for name, value in self._fields():
            if name == "every":
                yield from _span_problems("every", value, MOST_OFTEN, SELDOM, "timedelta(minutes=5)")
            elif value is not None:
                yield from _span_problems(name, value, SHORTEST, LONGEST, "timedelta(days=7), or None for ever")


def _span_problems(name: str, value: object, low: timedelta, high: timedelta, example: str) -> Iterator[str]:
    if not isinstance(value, timedelta):
        yield f"{name} must be a timedelta, not {value!r} ({type(value).__name__}); write {name}={example}"
    elif not low <= value <= high:
        yield f"{name} is {value}; choose from {low} to {high}, such as {name}={example}"


DEFAULT_QUEUE: Final = "default"
DEFAULT_PRIORITY: Final = 100
DEFAULT_SCHEMA: Final = "horsies"
DEFAULT_LEASE_MS: Final = 60_000
AUTO_PREFETCH_LEASE_MS: Final = 5_000
MAX_SCHEMA_LENGTH: Final = 40
MAX_NAME_BYTES: Final = 63  # PostgreSQL cuts longer names off, silently

_URLS: Final = ("database_url", "listen_url")
MAX_QUEUE_NAME: Final = 80
MAX_APP_NAME: Final = 200
DEFAULT_APP_NAME: Final = "app"
_QUEUE_NAME_CHARACTERS: Final = f"{ascii_letters}{digits}_-.:"


class QueueMode(StrEnum):
    """One queue for everything, or queues of the app's own."""

    DEFAULT = "DEFAULT"
    CUSTOM = "CUSTOM"


class PostgresConfig(Record):
    """Where the database is and how to hold connections to it; its passwords never show.

    `listen_url` is a direct connection for LISTEN and migrations when `database_url` leads to a transaction pooler.
    """

    database_url: str
    listen_url: str | None = None
    schema: str = DEFAULT_SCHEMA
    pool_min_size: int = 0
    pool_max_size: int = 10
    connect_timeout_s: int = 10
    statement_timeout_ms: int = 30_000
    keepalives_idle_s: int = 30
    keepalives_interval_s: int = 10
    keepalives_count: int = 3

    def __post_init__(self) -> None:
        raise_problems(self, self._problems())

    @property
    def conninfo(self) -> str:
        """The database for libpq; contains the password."""
        return conninfo(self.database_url)

    @property
    def listen_conninfo(self) -> str:
        """The database for LISTEN and migrations, for libpq; contains the password."""
        return conninfo(self.listen_url or self.database_url)

    def __repr__(self) -> str:
        shown = (f"{name}={masked(v) if name in _URLS and v else v!r}" for name, v in self._fields())
        return f"PostgresConfig({', '.join(shown)})"

    def _problems(self) -> Iterator[str]:
        if problem := url_problem(self.database_url):
            yield f"database_url {problem}"
        if self.listen_url is not None and (problem := url_problem(self.listen_url)):
            yield f"listen_url {problem}"
        yield from _schema_problems(self.schema)
        sizes = [
            *number_problems("pool_min_size", self.pool_min_size, 0, 1_000),
            *number_problems("pool_max_size", self.pool_max_size, 1, 1_000),
        ]
        yield from sizes
        if not sizes and self.pool_min_size > self.pool_max_size:
            yield (
                f"pool_min_size {self.pool_min_size} is above pool_max_size {self.pool_max_size}; "
                "lower the first or raise the second"
            )
        yield from number_problems("connect_timeout_s", self.connect_timeout_s, 1, 300)
        yield from number_problems("statement_timeout_ms", self.statement_timeout_ms, 100, 3_600_000)
        yield from number_problems("keepalives_idle_s", self.keepalives_idle_s, 1, 7_200)
        yield from number_problems("keepalives_interval_s", self.keepalives_interval_s, 1, 7_200)
        yield from number_problems("keepalives_count", self.keepalives_count, 1, 100)


class CustomQueueConfig(Record):
    """One queue of CUSTOM mode; a lower `priority` is served sooner.

    `max_concurrency` limits how many of its tasks are in flight in the whole cluster: None does not, 0 pauses it.
    """

    name: str
    priority: int = DEFAULT_PRIORITY
    max_concurrency: int | None = None

    def __post_init__(self) -> None:
        raise_problems(self, self._problems())

    def _problems(self) -> Iterator[str]:
        yield from _queue_name_problems(self.name)
        yield from number_problems("priority", self.priority, 0, 32_767)
        if self.max_concurrency is not None:
            yield from number_problems("max_concurrency", self.max_concurrency, 0, 1_000_000)


class AppConfig(Record):
    """Everything an app is told. Without a `broker` it looks for a database in its environment.

    `name` tells apps apart that share a schema: schedules and workers belong to the app of this name. Without one, the locator
    that the worker or scheduler was started with is the name.
    `payload_warning_bytes` (None: never) and `max_payload_bytes` are for the JSON of the arguments of one task, and of its result.
    `exception_mapper` gives exceptions that tasks raise an error code; those that it does not know get `default_unhandled_error_code`.
    """

    broker: PostgresConfig | None = None
    queue_mode: QueueMode = QueueMode.DEFAULT
    custom_queues: Sequence[CustomQueueConfig] = ()
    prefetch_buffer: int | Literal["auto"] = 0
    claim_lease_ms: int | None = None
    cluster_wide_cap: int | None = None
    resilience: WorkerResilienceConfig = WorkerResilienceConfig()
    recovery: RecoveryConfig = RecoveryConfig()
    retention: RetentionConfig = RetentionConfig()
    schedule: "ScheduleConfig | None" = None
    payload_warning_bytes: int | None = DEFAULT_WARNING_BYTES
    max_payload_bytes: int = DEFAULT_MAX_BYTES
    exception_mapper: Mapping[type[BaseException], str] = ExceptionMap()
    default_unhandled_error_code: str = OperationalErrorCode.UNHANDLED_ERROR
    name: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "custom_queues", _as_tuple(self.custom_queues))  # frozen means frozen
        raise_problems(self, self._problems())
        object.__setattr__(self, "exception_mapper", ExceptionMap(self.exception_mapper))
        object.__setattr__(self, "default_unhandled_error_code", str(self.default_unhandled_error_code))

    @classmethod
    def for_database_url(cls, url: str, **fields: Any) -> Self:
        """Configure an app on this database. `fields` are further fields of `AppConfig`; the others have their defaults."""
        if "broker" in fields:
            raise TypeError(
                "for_database_url() makes the broker itself; for other settings of it write AppConfig(broker=PostgresConfig(...))"
            )
        return cls(broker=PostgresConfig(database_url=url), **fields)

    @property
    def queues(self) -> tuple[CustomQueueConfig, ...]:
        """The queues in the order of service: by priority, and as written where that is equal."""
        if self.queue_mode is QueueMode.DEFAULT:
            return (CustomQueueConfig(name=DEFAULT_QUEUE),)
        return tuple(sorted(self.custom_queues, key=lambda queue: queue.priority))

    @property
    def lease_ms(self) -> int:
        """How long a claim holds without a sign of life from its worker."""
        if self.claim_lease_ms is not None:
            return self.claim_lease_ms
        return AUTO_PREFETCH_LEASE_MS if self.prefetch_buffer == "auto" else DEFAULT_LEASE_MS

    @property
    def payload_limits(self) -> PayloadLimits:
        """Both sizes as one."""
        return PayloadLimits(warning_bytes=self.payload_warning_bytes, max_bytes=self.max_payload_bytes)

    def queue_named(self, name: str) -> CustomQueueConfig:
        """The queue of this name; QueueError, with those there are, if there is none."""
        for queue in self.queues:
            if queue.name == name:
                return queue
        known = ", ".join(repr(queue.name) for queue in self.queues)
        raise QueueError(f"there is no queue {name!r}; this app has {known}")

    def _problems(self) -> Iterator[str]:
        if self.name is not None:
            yield from _app_name_problems(self.name)
        if self.broker is not None:
            yield from instance_problems("broker", self.broker, PostgresConfig, "PostgresConfig(database_url=...)")
        yield from instance_problems("resilience", self.resilience, WorkerResilienceConfig, "WorkerResilienceConfig()")
        yield from instance_problems("queue_mode", self.queue_mode, QueueMode, "QueueMode.DEFAULT or QueueMode.CUSTOM")
        yield from _queue_problems(self.queue_mode, self.custom_queues)
        yield from instance_problems("recovery", self.recovery, RecoveryConfig, "RecoveryConfig()")
        yield from instance_problems("retention", self.retention, RetentionConfig, "RetentionConfig()")
        yield from _schedule_problems(self.schedule)
        yield from _prefetch_problems(self.prefetch_buffer, self.claim_lease_ms)
        if self.cluster_wide_cap is not None:
            yield from number_problems("cluster_wide_cap", self.cluster_wide_cap, 1, 1_000_000)
            if _has_buffer(self.prefetch_buffer):
                yield (
                    f"cluster_wide_cap cannot be kept while prefetch_buffer is {self.prefetch_buffer!r}, because buffered claims "
                    "are in flight too; set prefetch_buffer=0, or remove the cap"
                )
        if self.payload_warning_bytes is not None:
            yield from number_problems("payload_warning_bytes", self.payload_warning_bytes, 1, MOST_BYTES)
        yield from number_problems("max_payload_bytes", self.max_payload_bytes, 1_000, MOST_BYTES)
        yield from mapper_problems("exception_mapper", self.exception_mapper)
        yield from code_problems("default_unhandled_error_code", self.default_unhandled_error_code)


def _app_name_problems(name: object) -> Iterator[str]:
    if (
        not isinstance(name, str)
        or not 1 <= len(name) <= MAX_APP_NAME
        or not name.isprintable()
        or name != name.strip()
    ):
        yield f"name is {name!r}; choose 1 to {MAX_APP_NAME} printable characters without spaces at the ends, such as name='shop'"


def _schema_problems(schema: object) -> Iterator[str]:
    if not isinstance(schema, str):
        yield f"schema must be a string, not {type(schema).__name__}"
    elif not 1 <= len(schema) <= MAX_SCHEMA_LENGTH or len(schema.encode(errors="replace")) > MAX_NAME_BYTES:
        yield f"schema has {len(schema)} characters; choose a name of 1 to 40 that takes at most 63 bytes"
    elif '"' in schema or not schema.isprintable():
        yield f"schema {schema!r} has a double quote or an unprintable character; remove it"
    elif schema.startswith("pg_"):
        yield f"schema {schema!r} starts with pg_, which PostgreSQL keeps for itself; choose another name"


def _queue_name_problems(name: object) -> Iterator[str]:
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_QUEUE_NAME or name.strip(_QUEUE_NAME_CHARACTERS):
        yield f"name {name!r} is no queue name; use 1 to 80 letters (a-z, A-Z), digits and the characters _ - . :"


def _as_tuple(queues: object) -> object:
    if isinstance(queues, Sequence) and not isinstance(queues, str):
        return tuple(cast("Sequence[object]", queues))
    return queues  # which is then refused


def _queue_problems(mode: QueueMode, queues: object) -> Iterator[str]:
    if not isinstance(queues, tuple):
        yield f"custom_queues must be a list of CustomQueueConfig, not {type(queues).__name__}"
        return
    names: list[str] = []
    for position, queue in enumerate(cast("tuple[object, ...]", queues)):
        yield from instance_problems(f"custom_queues[{position}]", queue, CustomQueueConfig, "CustomQueueConfig(...)")
        if isinstance(queue, CustomQueueConfig):
            names.append(queue.name)
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"custom_queues has {names.count(name)} queues named {name!r}; give each its own name"
    if mode is QueueMode.CUSTOM and not queues:
        yield "queue_mode CUSTOM needs at least one queue; add custom_queues=[CustomQueueConfig(name=...)]"
    if mode is QueueMode.DEFAULT and queues:
        yield "custom_queues is set but queue_mode is DEFAULT; add queue_mode=QueueMode.CUSTOM, or remove the queues"


def _schedule_problems(schedule: object) -> Iterator[str]:
    if schedule is not None:
        from horsies.model.schedule import ScheduleConfig  # noqa: PLC0415 - an app without schedules needs no calendar

        yield from instance_problems("schedule", schedule, ScheduleConfig, "ScheduleConfig(schedules=[...])")


def _has_buffer(prefetch_buffer: object) -> bool:
    return prefetch_buffer == "auto" or (isinstance(prefetch_buffer, int) and prefetch_buffer > 0)


def _prefetch_problems(prefetch_buffer: object, claim_lease_ms: object) -> Iterator[str]:
    if claim_lease_ms is not None:
        yield from number_problems("claim_lease_ms", claim_lease_ms, 1_000, 3_600_000)
    if prefetch_buffer == "auto":
        return
    if not isinstance(prefetch_buffer, int) or isinstance(prefetch_buffer, bool) or prefetch_buffer < 0:
        yield f'prefetch_buffer must be 0, a positive whole number or "auto", not {prefetch_buffer!r}'
    elif prefetch_buffer and claim_lease_ms is None:
        yield (
            f"prefetch_buffer is {prefetch_buffer}, and claims that wait in a buffer need a lease; "
            "add claim_lease_ms=5_000 or so"
        )
