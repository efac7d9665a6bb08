"""The configuration of an app: frozen values that check themselves and report all problems at once."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from string import ascii_letters, digits
from typing import TYPE_CHECKING, Any, Final, Literal, Self, cast

from horsies.model.database_url import conninfo, masked, url_problem
from horsies.model.error_codes import ExceptionMap, OperationalErrorCode, code_problems, mapper_problems
from horsies.model.errors import QueueError
from horsies.model.other_queues import CONFIG_OPTIONS, explain_options
from horsies.model.payload_errors import DEFAULT_MAX_BYTES, DEFAULT_WARNING_BYTES, MOST_BYTES, PayloadLimits
from horsies.model.schedule import ScheduleConfig
from horsies.model.validation import Checked, freeze_list, instance_problems, list_problems, range_problems

DEFAULT_PRIORITY: Final = 100
DEFAULT_SCHEMA: Final = "horsies"
DEFAULT_APP_NAME: Final = "app"
MAX_APP_NAME: Final = 200
MAX_QUEUE_NAME: Final = 80
MAX_SCHEMA_LENGTH: Final = 40
MAX_NAME_BYTES: Final = 63  # PostgreSQL cuts longer names off without an error
_QUEUE_NAME_CHARACTERS: Final = f"{ascii_letters}{digits}_-.:"


@dataclass(frozen=True, kw_only=True)
class WorkerResilienceConfig(Checked):
    """How a worker handles a database that is unavailable. `db_retry_max_attempts` 0 means no limit."""

    db_retry_initial_ms: int = 500
    db_retry_max_ms: int = 5_000
    db_retry_max_attempts: int = 0
    notify_poll_interval_ms: int = 5_000

    def delay_ms(self, attempt: int, jitter: float) -> int:
        """Return how long to wait after this number of failures in a row, counted from 0.

        `jitter` is a random number from -1 to 1 and moves the delay by up to a quarter. It moves the longest delay too, but only
        downwards. Otherwise workers that lost the database together would all return at the same time.
        """
        if attempt < 0 or not -1 <= jitter <= 1:
            raise ValueError(f"attempt {attempt} must be 0 or more, and jitter {jitter} from -1 to 1")
        doublings = min(attempt, 16)  # more than any allowed ratio of the two limits, and safe from huge numbers
        delay_ms = min(self.db_retry_initial_ms * 2**doublings, self.db_retry_max_ms)
        return min(round(delay_ms * (1 + jitter / 4)), self.db_retry_max_ms)

    def _problems(self) -> Iterator[str]:
        delays = list(range_problems(self, db_retry_initial_ms=(100, 60_000), db_retry_max_ms=(500, 300_000)))
        yield from delays
        if not delays and self.db_retry_max_ms < self.db_retry_initial_ms:
            yield (
                f"db_retry_max_ms {self.db_retry_max_ms} is below db_retry_initial_ms {self.db_retry_initial_ms}; "
                "raise the first or lower the second"
            )
        yield from range_problems(self, db_retry_max_attempts=(0, 10_000), notify_poll_interval_ms=(1_000, 300_000))


@dataclass(frozen=True, kw_only=True)
class RecoveryConfig(Checked):
    """When workers and children are considered dead, and how long tasks get to stop.

    A worker sends a heartbeat every `heartbeat_ms`; the maintenance leader declares it dead after `dead_after_ms` without one.
    A task that exceeds its time limit, or is cancelled, gets `grace_ms` between the soft stop and the kill.

    `frozen_after_ms` is when a child that does not respond is killed. "auto": when its process has been stopped for `dead_after_ms`, or has
    neither used the CPU nor waited for a disk for a minute (Linux; elsewhere it is only reported). A number: after that time without a
    response, whatever it does; note that a long call into C code that holds the GIL does not respond and is healthy. None: never.

    A task that no live worker knows waits for `unknown_task_patience_ms`, and one whose parameters do not fit the workers' release for
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

    def _problems(self) -> Iterator[str]:
        heartbeats = list(range_problems(self, heartbeat_ms=(100, 300_000), dead_after_ms=(500, 3_600_000)))
        yield from heartbeats
        if not heartbeats and self.dead_after_ms < 2 * self.heartbeat_ms:
            yield (
                f"dead_after_ms {self.dead_after_ms} is below two heartbeats of {self.heartbeat_ms}; one late heartbeat would "
                "kill a healthy worker: raise the first or lower the second"
            )
        yield from range_problems(
            self,
            maintenance_ms=(100, 60_000),
            grace_ms=(0, 3_600_000),
            snapshot_ms=(1_000, 3_600_000),
            unknown_task_patience_ms=(0, 31_536_000_000),
            changed_task_patience_ms=(0, 31_536_000_000),
        )
        if self.frozen_after_ms is not None and self.frozen_after_ms != "auto":
            frozen = list(range_problems(self, frozen_after_ms=(1_000, 86_400_000)))
            yield from (f'{problem}; or "auto", or None' for problem in frozen)
            if not frozen and not heartbeats and self.frozen_after_ms < 3 * self.heartbeat_ms:
                yield (
                    f"frozen_after_ms {self.frozen_after_ms} is below three heartbeats of {self.heartbeat_ms}, at which children "
                    "are checked; a child that responds late once would be killed: raise it"
                )


@dataclass(frozen=True, kw_only=True)
class RetentionConfig(Checked):
    """How long finished data is kept; None keeps it without a limit. The maintenance leader applies this at the interval `every`.

    Finished tasks are removed by whole days (UTC): they are at least as old as this, and at most a day older. A workflow is removed with
    all runs below it and the results of their nodes.
    """

    finished: timedelta | None = timedelta(days=7)
    workflows: timedelta | None = timedelta(days=30)
    worker_states: timedelta | None = timedelta(days=1)
    schedule_runs: timedelta | None = timedelta(days=30)
    every: timedelta = timedelta(minutes=5)

    def _problems(self) -> Iterator[str]:
        for name, value in vars(self).items():
            low, high, example = timedelta(hours=1), timedelta(days=36_500), "timedelta(days=7), or None for no limit"
            if name == "every":
                low, high, example = timedelta(seconds=1), timedelta(days=1), "timedelta(minutes=5)"
            elif value is None:
                continue
            if not isinstance(value, timedelta):
                yield f"{name} must be a timedelta, not {value!r} ({type(value).__name__}); write {name}={example}"
            elif not low <= value <= high:
                yield f"{name} is {value}; choose from {low} to {high}, such as {name}={example}"


class QueueMode(StrEnum):
    """Whether an app has one queue for all tasks, or queues of its own."""

    DEFAULT = "DEFAULT"
    CUSTOM = "CUSTOM"


@dataclass(frozen=True, kw_only=True)
class PostgresConfig(Checked):
    """The database and how to connect to it. Passwords are never shown.

    Set `listen_url` to a direct connection for LISTEN and migrations if `database_url` is that of a transaction pooler.
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

    @property
    def conninfo(self) -> str:
        """The connection string for libpq. It contains the password."""
        return conninfo(self.database_url)

    @property
    def listen_conninfo(self) -> str:
        """The connection string for LISTEN and migrations, for libpq. It contains the password."""
        return conninfo(self.listen_url or self.database_url)

    def __repr__(self) -> str:
        shown = (f"{name}={masked(v) if name.endswith('_url') and v else v!r}" for name, v in vars(self).items())
        return f"PostgresConfig({', '.join(shown)})"

    def _problems(self) -> Iterator[str]:
        if problem := url_problem(self.database_url):
            yield f"database_url {problem}"
        if self.listen_url is not None and (problem := url_problem(self.listen_url)):
            yield f"listen_url {problem}"
        schema = cast("object", self.schema)
        if not isinstance(schema, str):
            yield f"schema must be a string, not {type(schema).__name__}"
        elif not 1 <= len(schema) <= MAX_SCHEMA_LENGTH or len(schema.encode(errors="replace")) > MAX_NAME_BYTES:
            yield f"schema has {len(schema)} characters; choose a name of 1 to 40 that takes at most 63 bytes"
        elif '"' in schema or not schema.isprintable():
            yield f"schema {schema!r} has a double quote or an unprintable character; remove it"
        elif schema.startswith("pg_"):
            yield f"schema {schema!r} starts with pg_, which PostgreSQL reserves; choose another name"
        sizes = list(range_problems(self, pool_min_size=(0, 1_000), pool_max_size=(1, 1_000)))
        yield from sizes
        if not sizes and self.pool_min_size > self.pool_max_size:
            yield (
                f"pool_min_size {self.pool_min_size} is above pool_max_size {self.pool_max_size}; "
                "lower the first or raise the second"
            )
        yield from range_problems(
            self,
            connect_timeout_s=(1, 300),
            statement_timeout_ms=(100, 3_600_000),
            keepalives_idle_s=(1, 7_200),
            keepalives_interval_s=(1, 7_200),
            keepalives_count=(1, 100),
        )


@dataclass(frozen=True, kw_only=True)
class CustomQueueConfig(Checked):
    """One queue of CUSTOM mode. Queues with a lower `priority` are served first.

    `max_concurrency` limits how many of its tasks are in flight across all workers. None: no limit; 0 pauses the queue.
    """

    name: str
    priority: int = DEFAULT_PRIORITY
    max_concurrency: int | None = None

    def _problems(self) -> Iterator[str]:
        name = cast("object", self.name)
        if not isinstance(name, str) or not 1 <= len(name) <= MAX_QUEUE_NAME or name.strip(_QUEUE_NAME_CHARACTERS):
            yield f"name {name!r} is not a queue name; use 1 to 80 letters (a-z, A-Z), digits and the characters _ - . :"
        yield from range_problems(self, priority=(0, 32_767), max_concurrency=(0, 1_000_000, None))


@dataclass(frozen=True, kw_only=True)
class AppConfig(Checked):
    """All settings of an app. Without a `broker`, the app reads the database URL from its environment.

    `name` distinguishes apps that share a schema: schedules and workers belong to the app of this name. The default is the locator
    with which the worker or scheduler was started.
    `payload_warning_bytes` (None: never) and `max_payload_bytes` apply to the JSON of the arguments of one task, and to that of its result.
    `exception_mapper` maps exceptions that tasks raise to error codes; those that it does not contain get `default_unhandled_error_code`.
    `keep_logs` is the default of the option `keep_logs` of tasks.
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
    keep_logs: bool = False

    def __post_init__(self) -> None:
        freeze_list(self, "custom_queues")
        super().__post_init__()
        object.__setattr__(self, "exception_mapper", ExceptionMap(self.exception_mapper))
        object.__setattr__(self, "default_unhandled_error_code", str(self.default_unhandled_error_code))

    @classmethod
    def for_database_url(cls, url: str, **fields: Any) -> Self:
        """Configure an app for this database. `fields` are further fields of `AppConfig`."""
        if "broker" in fields:
            raise TypeError(
                "for_database_url() creates the broker settings; to set others write AppConfig(broker=PostgresConfig(...))"
            )
        return cls(broker=PostgresConfig(database_url=url), **fields)

    @property
    def queues(self) -> tuple[CustomQueueConfig, ...]:
        """The queues in the order in which they are served: by priority, then as listed."""
        if self.queue_mode is QueueMode.DEFAULT:
            return (CustomQueueConfig(name="default"),)
        return tuple(sorted(self.custom_queues, key=lambda queue: queue.priority))

    @property
    def lease_ms(self) -> int:
        """How long a claim is valid if its worker does not renew it."""
        if self.claim_lease_ms is not None:
            return self.claim_lease_ms
        return 5_000 if self.prefetch_buffer == "auto" else 60_000

    @property
    def payload_limits(self) -> PayloadLimits:
        """Both payload sizes as one value."""
        return PayloadLimits(warning_bytes=self.payload_warning_bytes, max_bytes=self.max_payload_bytes)

    def queue_named(self, name: str) -> CustomQueueConfig:
        """Return the queue of this name. Raises QueueError, with the names that exist, if there is none."""
        for queue in self.queues:
            if queue.name == name:
                return queue
        known = ", ".join(repr(queue.name) for queue in self.queues)
        raise QueueError(f"there is no queue {name!r}; this app has {known}")

    def _problems(self) -> Iterator[str]:
        name: object = self.name
        is_text = isinstance(name, str) and 1 <= len(name) <= MAX_APP_NAME and name.isprintable()
        if name is not None and not (is_text and name == str(name).strip()):
            yield f"name is {name!r}; choose 1 to {MAX_APP_NAME} printable characters without spaces at the ends, such as name='shop'"
        if self.broker is not None:
            yield from instance_problems("broker", self.broker, PostgresConfig, "PostgresConfig(database_url=...)")
        yield from instance_problems("resilience", self.resilience, WorkerResilienceConfig, "WorkerResilienceConfig()")
        yield from instance_problems("queue_mode", self.queue_mode, QueueMode, "QueueMode.DEFAULT or QueueMode.CUSTOM")
        queues: object = self.custom_queues
        yield from list_problems("custom_queues", queues, CustomQueueConfig, "custom_queues has {} queues")
        if self.queue_mode is QueueMode.CUSTOM and queues == ():
            yield "queue_mode CUSTOM needs at least one queue; add custom_queues=[CustomQueueConfig(name=...)]"
        if self.queue_mode is QueueMode.DEFAULT and queues and isinstance(queues, tuple):
            yield "custom_queues is set but queue_mode is DEFAULT; add queue_mode=QueueMode.CUSTOM, or remove the queues"
        yield from instance_problems("recovery", self.recovery, RecoveryConfig, "RecoveryConfig()")
        yield from instance_problems("retention", self.retention, RetentionConfig, "RetentionConfig()")
        if self.schedule is not None:
            yield from instance_problems("schedule", self.schedule, ScheduleConfig, "ScheduleConfig(schedules=[...])")
        yield from self._prefetch_problems()
        yield from range_problems(
            self, payload_warning_bytes=(1, MOST_BYTES, None), max_payload_bytes=(1_000, MOST_BYTES)
        )
        yield from mapper_problems("exception_mapper", self.exception_mapper)
        yield from code_problems("default_unhandled_error_code", self.default_unhandled_error_code)
        yield from instance_problems("keep_logs", self.keep_logs, bool, "True")

    def _prefetch_problems(self) -> Iterator[str]:
        buffer = cast("object", self.prefetch_buffer)
        yield from range_problems(self, claim_lease_ms=(1_000, 3_600_000, None))
        if buffer != "auto" and (not isinstance(buffer, int) or isinstance(buffer, bool) or buffer < 0):
            yield f'prefetch_buffer must be 0, a positive whole number or "auto", not {buffer!r}'
        elif buffer and buffer != "auto" and self.claim_lease_ms is None:
            yield f"prefetch_buffer is {buffer}, and prefetched claims need a lease; add claim_lease_ms=5_000 or so"
        yield from range_problems(self, cluster_wide_cap=(1, 1_000_000, None))
        if self.cluster_wide_cap is not None and (buffer == "auto" or (isinstance(buffer, int) and buffer > 0)):
            yield (
                f"cluster_wide_cap cannot be kept while prefetch_buffer is {buffer!r}, because prefetched claims "
                "are in flight too; set prefetch_buffer=0, or remove the cap"
            )


if not TYPE_CHECKING:  # type checkers know the fields by the class only
    AppConfig.__init__ = explain_options("AppConfig()", CONFIG_OPTIONS, TypeError)(AppConfig.__init__)
