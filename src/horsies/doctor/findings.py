"""Findings: what the doctor can find, how severe it is, and how to fix it.

`docs/doctor.md` says what each one means, and has the same texts; a test compares them.
"""

import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, IntEnum, StrEnum, unique
from functools import partial
from typing import Any

from horsies.model.config import CustomQueueConfig, RecoveryConfig
from horsies.model.text import printable
from horsies.registry import Registry

MIB = 1 << 20
MAX_NAMED = 3  # in the text of a finding


class Severity(IntEnum):
    """Ordered: a higher value is worse."""

    OK = 0
    INFO = 1
    WARNING = 2
    ERROR = 3

    @property
    def word(self) -> str:
        return self.name.lower()


class TargetKind(StrEnum):
    """What a finding is about."""

    TASK = "task"
    TASK_NAME = "task_name"
    QUEUE = "queue"
    WORKER = "worker"
    WORKFLOW = "workflow"
    SCHEDULE = "schedule"

    @property
    def key(self) -> str:
        """Where the id or name is in a finding's `data`."""
        return f"{self}_id" if self in {TargetKind.TASK, TargetKind.WORKER, TargetKind.WORKFLOW} else self.value


@dataclass(frozen=True, slots=True)
class Target:
    """The object that a finding is about, for links: an id, or a name where there is no id."""

    kind: TargetKind
    id: str


@dataclass(frozen=True, slots=True, eq=False)
class FindingText:
    """What is the same for all findings of a code. Two codes may have the same text, and are not equal.

    `{queue}` and the like in the template stand for values in a finding's `data`: quoted for a shell, or with `:sql` for SQL.
    """

    severity: Severity
    template: str
    target: TargetKind | None = None

    @property
    def fix(self) -> str:
        """The fix of no finding in particular: names and ids are words in capitals."""
        return self.fix_for({})

    def fix_for(self, data: Mapping[str, Any]) -> str:
        return _PLACEHOLDER.sub(partial(_fill, data), self.template)


_PLACEHOLDER = re.compile(r"(=?)\{(\w+)(:sql)?\}")


def _fill(data: Mapping[str, Any], found: re.Match[str]) -> str:
    equals, name, is_sql = found.groups()
    if data.get(name) is None:
        return f"{equals}{name.upper()}"
    value = ",".join(data[name]) if isinstance(data[name], list) else str(data[name])
    if is_sql:
        return "'" + value.replace("'", "''") + "'"
    quoted = shlex.quote(value) if value.isprintable() else _quote_bytes(value)
    # Otherwise it would be taken for an option.
    return equals + ("-- " if value.startswith("-") and not equals else "") + quoted


def _quote_bytes(text: str) -> str:
    """Quote text with control characters, as bash and zsh read it: in a terminal they could change what is seen."""
    plain = (
        f"\\{character}"
        if character in "'\\"
        else character
        if character.isprintable()
        else "".join(f"\\x{byte:02x}" for byte in character.encode(errors="surrogatepass"))
        for character in text
    )
    return f"$'{''.join(plain)}'"


_info = partial(FindingText, Severity.INFO)
_warning = partial(FindingText, Severity.WARNING)
_error = partial(FindingText, Severity.ERROR)


@unique
class FindingCode(Enum):
    """All findings. The names are stable, so that programs can rely on them."""

    # -- the checks themselves
    DATABASE_UNREACHABLE = _error(
        "Read the error of the server or the network; then check the address, the user, the password and the firewall."
    )
    CHECK_TIMED_OUT = _warning(
        "Run it again with a longer `--timeout`; if it still times out, look for a session that holds a lock (`pg_locks`)."
    )
    CHECK_NOT_PERMITTED = _warning(
        "Grant SELECT on all tables of the schema to this user, and the role `pg_monitor` for what belongs to the server."
    )
    CHECK_FAILED = _warning("Read the error; if the database is healthy, report it as a bug of horsies.")
    # -- the server
    POSTGRES_TOO_OLD = _error("Upgrade the server; horsies is tested with PostgreSQL 14 and newer.")
    SERVER_READ_ONLY = _error("Set `database_url` to the primary, or reset `default_transaction_read_only`.")
    FSYNC_OFF = _warning("Set `fsync = on` and `full_page_writes = on`, unless all data may be lost.")
    SYNCHRONOUS_COMMIT_OFF = _warning("Set `synchronous_commit = on` for this database and role.")
    CONNECTIONS_SHORT = _warning("Close idle connections, lower `pool_max_size`, use a pooler, or raise the limit.")
    ENCODING_UNSUITABLE = _error(
        "Create a database with `create database NAME encoding 'UTF8' template template0`, and let poolers pass `client_encoding` on."
    )
    OPEN_TO_PUBLIC = _warning(
        "Run `revoke create on schema … from public`; PostgreSQL 15 and later do that for new databases."
    )
    # -- the schema
    SCHEMA_MISSING = _error("Run `horsies migrate`.")
    SCHEMA_OLDER = _error("Run `horsies migrate`.")  # noqa: PIE796 - another finding with the same fix
    SCHEMA_NEWER = _error("Upgrade the horsies package of this process.")
    SCHEMA_AHEAD = _info("Upgrade the horsies package of this process when convenient.")
    PRIVILEGES_MISSING = _error(
        "As the owner: grant USAGE on the schema, SELECT, INSERT, UPDATE, DELETE on all its tables and EXECUTE on its functions to this user."
    )
    ROLE_READ_ONLY = _info(
        "Nothing, if this user only observes. Producers and workers need INSERT, UPDATE and DELETE, too."
    )
    PARTITION_PRIVILEGE_MISSING = _warning(
        "Run `horsies migrate` as the owner of the tables at least once a week, or make this user a member of the owning role."
    )
    SCHEMA_OPEN = _warning(
        "Run `revoke create on schema … from …`; a role that creates partitions must be a member of the owning role anyway."
    )
    SEARCH_PATH_UNPINNED = _error(
        "Run `horsies migrate`; then `alter function … set search_path = pg_catalog, pg_temp` for functions of your own, "
        "and create objects that use another schema again, as in `schema.sql` of the package."
    )
    NOTIFY_TRIGGER_OFF = _error(
        "Run `alter table … enable trigger tasks_notify_new`; if it was dropped, create it again as in `schema.sql` of the package."
    )
    PARTITIONS_MISSING = _warning(
        "Run `horsies migrate` as a user who may create tables, and keep a worker of such a user running."
    )
    DEFAULT_PARTITION_USED = _warning(
        "Run `horsies migrate` as the owner of the tables, and find out why the partition was missing."
    )
    # -- notifications
    LISTEN_POOLED = _warning("Set `PostgresConfig(listen_url=…)` to the database's own address, without the pooler.")
    LISTEN_NOT_RECEIVED = _error(
        "Check that `listen_url` leads directly to PostgreSQL, and that the server is not overloaded."
    )
    LISTEN_OTHER_DATABASE = _error("Set `listen_url` to a direct connection to the database of `database_url`.")
    LISTEN_UNREACHABLE = _error("Correct the address, or remove `listen_url` until the firewall allows it.")
    POOLER_FOUND = _info("Nothing needs to be done.")
    NOTIFY_QUEUE_FILLING = _warning(
        "End that session with `select pg_terminate_backend({pid})`, and do not LISTEN inside a long transaction."
    )
    # -- clocks
    CLOCK_SKEW = _warning(
        "Run an NTP client on both. Only the database's clock decides what is due, but logs and ids use this machine's."
    )
    PRODUCER_CLOCK_SKEW = _warning("Run an NTP client on the machines that send.")
    HEARTBEAT_AHEAD = _warning(
        "Run an NTP client on every database server. Delayed tasks and leases are only late by the difference."
    )
    # -- vacuum
    LONG_TRANSACTION = _warning(
        "End it with `select pg_terminate_backend({pid})`, and set `idle_in_transaction_session_timeout` for its role."
    )
    PREPARED_TRANSACTION = _warning(
        "Run `rollback prepared {gid:sql}` or `commit prepared {gid:sql}`, and find its transaction manager."
    )
    REPLICATION_SLOT_BEHIND = _warning(
        "Bring its replica back, or drop it with `select pg_drop_replication_slot({slot:sql})`."
    )
    SESSIONS_HIDDEN = _info("Grant the role `pg_monitor` to this user, or run the doctor as another user.")
    AUTOVACUUM_OFF = _error("Set `autovacuum = on`, and run `alter table … reset (autovacuum_enabled)`.")
    DEAD_ROWS = _warning(
        "End what keeps them (long transactions, slots), then `vacuum` the table; if vacuum cannot keep up, give it more workers."
    )
    TABLE_BLOATED = _warning("At a quiet time, run `vacuum full` on it, which locks it, or pg_repack, which does not.")
    # -- tasks
    TASKS_ORPHANED = _error(
        "Start a worker: as the maintenance leader it ends, retries or releases them within seconds. If one runs, look for `maintenance: could not` in its log.",
        TargetKind.TASK,
    )
    LEASES_EXPIRED = _error(
        "Start a worker; if one runs, look for `maintenance: could not` in the log of the maintenance leader.",
        TargetKind.TASK,
    )
    TASKS_OVERTIME = _error(
        "Check whether their worker hangs, and restart it: the maintenance leader rescues its tasks.", TargetKind.TASK
    )
    PROMOTION_LATE = _error(
        "Start any worker; if one runs, look for `maintenance: could not` in the log of the maintenance leader.",
        TargetKind.TASK,
    )
    EXPIRY_LATE = _error(  # noqa: PIE796 - the same
        "Start a worker; if one runs, look for `maintenance: could not` in the log of the maintenance leader.",
        TargetKind.TASK,
    )
    CANCEL_IGNORED = _error(
        "Check whether their worker hangs, and restart it; if it is gone, start another one.", TargetKind.TASK
    )
    WAITING_LONG = _warning(
        "Add workers or processes with `horsies worker {app} --queues={queue}`. If its cap is the cause, raise `max_concurrency`; if one task takes most of "
        "the time, give that task a queue and workers of its own; if slots are free, read the logs of its workers.",
        TargetKind.QUEUE,
    )
    LAGGING = _warning(  # noqa: PIE796 - the same
        "Add workers or processes with `horsies worker {app} --queues={queue}`. If its cap is the cause, raise `max_concurrency`; if one task takes most of "
        "the time, give that task a queue and workers of its own; if slots are free, read the logs of its workers.",
        TargetKind.QUEUE,
    )
    QUEUE_BLOCKED = _warning(
        "Cancel the task that blocks it with `horsies tasks cancel {task_id}`, or all of them that run with `horsies tasks cancel --task={task_name} --status=running`; "
        "then give it a `timeout_ms`, or add workers or processes.",
        TargetKind.TASK,
    )
    TASK_RUNS_LONG = _warning(
        "Give the task a `timeout_ms`. If it hangs, cancel it with `horsies tasks cancel {task_id}`; `py-spy dump` shows where it is.",
        TargetKind.TASK,
    )
    CHILDREN_CRASHING = _warning(
        "Look for the reason in the logs of the workers (out of memory, a crash in native code). Until it is fixed, end those that wait with `horsies tasks cancel --task={task_name}`.",
        TargetKind.TASK,
    )
    QUEUE_UNSERVED = _error(
        "Start a worker that serves it with `horsies worker {app} --queues={queue}`, or correct the name in the producer.",
        TargetKind.QUEUE,
    )
    QUEUE_PAUSED = _warning(
        "Resume it with `horsies queues resume {queue}` when the reason for the pause is gone.", TargetKind.QUEUE
    )
    TASKS_UNKNOWN = _info(
        "Deploy the release that has them, name their module in `app.discover_tasks([...])`, or give the task that replaced them `aliases=[...]`; or cancel them with `horsies tasks cancel --task={task_name}`.",
        TargetKind.TASK_NAME,
    )
    TASKS_CHANGED = _info(
        "Deploy the workers of that release, or give new parameters a default and keep old ones; or cancel them with `horsies tasks cancel --task={task_name}`.",
        TargetKind.TASK_NAME,
    )
    SCHEDULES_UNSERVED = _error(
        "Start `horsies scheduler {app}` or a worker with `--scheduler`; if one runs, read its log.",
        TargetKind.SCHEDULE,
    )
    SCHEDULE_FAILING = _warning(
        "Read the errors of its runs with `horsies schedules show {schedule}` and correct the task, or pause it with `horsies schedules pause {schedule}`.",
        TargetKind.SCHEDULE,
    )
    SCHEDULES_WITHOUT_APP = _warning(
        "Start the scheduler of the app that declares it; if there is none, run `horsies schedules pause {schedule}`.",
        TargetKind.SCHEDULE,
    )
    SCHEDULE_CLASH = _error(
        "Rename the schedule in one of the apps, or remove the one that was created at run time. If both are the same app, set the same "
        "`AppConfig(name=…)` for both.",
        TargetKind.SCHEDULE,
    )
    CAP_EXCEEDED = _error("Deploy the same configuration to all workers.", TargetKind.QUEUE)
    # -- workers
    NO_WORKERS = _info("Start one with `horsies worker {app}`.")
    DEAD_WORKERS = _warning(
        "Find out why they ended: the log of their machine (out of memory, a restart), or `docker inspect` and `kubectl describe`. `horsies tasks list --worker={worker_id}` shows what became of their tasks.",
        TargetKind.WORKER,
    )
    STALE_WORKERS = _error(
        "Check whether they run and reach the database. Start a worker: as the maintenance leader it removes those that do not.",
        TargetKind.WORKER,
    )
    LEADER_MISSING = _error("Look for `maintenance: could not` in the workers' logs, and restart one of them.")
    WORKER_VERSIONS_DIFFER = _warning("Finish the deployment; restart the workers of the older version.")
    RECYCLING_DOMINATES = _warning(
        "Run the worker with `--start-method fork`, or a larger `--max-tasks-per-child` or `--max-memory-per-child-mb`; or import less.",
        TargetKind.WORKER,
    )
    QUEUE_WITHOUT_WORKER = _warning(
        "Start a worker that serves it with `horsies worker {app} --queues={queues}`, or remove it from the app.",
        TargetKind.QUEUE,
    )
    QUEUE_UNKNOWN = _warning(
        "Deploy the same app to all workers, or give the other one a schema of its own.", TargetKind.QUEUE
    )
    TASK_NAME_CLASH = _warning(
        "Rename the task in one of the apps, or give each app queues, or a `schema`, of its own.", TargetKind.TASK_NAME
    )
    APPS_MIXED = _warning("Give each app queues, or a `schema`, of its own.", TargetKind.QUEUE)
    # -- workflows
    WORKFLOW_PAUSED_BY_ERROR = _warning(
        "Correct the cause; then `horsies workflows retry {workflow_id}` runs the failed node again, and `horsies workflows resume {workflow_id}` goes on without it.",
        TargetKind.WORKFLOW,
    )
    WORKFLOW_PAUSED = _info(
        "Continue it with `horsies workflows resume {workflow_id}` when the reason for the pause is gone.",
        TargetKind.WORKFLOW,
    )
    WORKFLOWS_STUCK = _error(
        "Start a worker: as the maintenance leader it continues them. If one runs, report it with the output of `horsies workflows show {workflow_id}`.",
        TargetKind.WORKFLOW,
    )

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Finding:
    """`seen` describes what was found, with numbers, for people; `data` has the numbers for programs."""

    code: FindingCode
    seen: str
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])
    at_least: Severity = Severity.OK
    """Makes this finding more severe than others of its code."""

    def __post_init__(self) -> None:
        """Escape control characters of names and messages: in a terminal they could change what is seen."""
        object.__setattr__(self, "seen", printable(self.seen))

    @property
    def severity(self) -> Severity:
        return max(self.code.value.severity, self.at_least)

    @property
    def fix(self) -> str:
        """What to do, with the names and ids of this finding. They are quoted for a shell."""
        return self.code.value.fix_for(self.data)

    @property
    def target(self) -> Target | None:
        """What it is about: the first or the worst, if there are several."""
        kind = self.code.value.target
        return Target(kind, str(self.data[kind.key])) if kind and self.data.get(kind.key) is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckContext:
    """What is checked, and the thresholds from which something is a finding.

    `app`, `locator` and `queues` describe the app, and are None if no app is given. `schedules` are the names that the app declares. Times come from
    the database; `clock` is this machine's.
    """

    schema: str
    app: str | None = None
    locator: str | None = None
    schedules: Sequence[str] = ()
    recovery: RecoveryConfig = field(default_factory=RecoveryConfig)
    queues: Sequence[CustomQueueConfig] | None = None
    check_timeout_s: float = 5.0
    quick_timeout_s: float = 1.0
    pooler_checks: int = 10
    max_wait_s: float = 600.0
    max_lag_s: float = 60.0
    max_run_s: float = 600.0
    blocked_after_s: float = 5.0
    overdue_after_s: float = 5.0
    blocking_after_s: float = 30.0
    max_since_crash_s: float = 3600.0
    max_unknown_s: float = 60.0
    max_deploy_s: float = 600.0
    max_transaction_s: float = 600.0
    stuck_after_s: float = 60.0
    max_skew_s: float = 2.0
    max_producer_skew_s: float = 60.0
    max_dead_rows: int = 50_000
    min_bloat_bytes: int = 256 * MIB
    max_slot_lag_bytes: int = 1024 * MIB
    max_slot_age: int = 1_000_000
    min_partitions_ahead: int = 3
    recheck_after_s: float = 2.0
    oldest_postgres: int = 14
    clock: Callable[[], float] = time.time

    @property
    def stale_after_s(self) -> float:
        """By then the maintenance leader should have removed a worker without heartbeats long ago."""
        return 2 * self.recovery.dead_after_ms / 1000 + 10


def context_for(app: Registry, *, knows_app: bool) -> CheckContext:
    """Describe an app on its database. Without `knows_app`, only the database and its settings are known."""
    return CheckContext(
        schema=app.broker.config.schema,
        recovery=app.config.recovery,
        queues=app.config.queues if knows_app else None,
        app=app.name if knows_app else None,
        locator=app.locator if knows_app else None,
        schedules=[each.name for each in app.config.schedule.schedules] if knows_app and app.config.schedule else [],
    )


def app_data(context: CheckContext) -> dict[str, Any]:
    """Return the app, for commands that start something."""
    return {} if context.locator is None else {"app": context.locator}


def format_clock(moment: datetime) -> str:
    """Format a time in the zone of the database session, like all times of findings."""
    return f"{moment:%Y-%m-%d %H:%M:%S%z}"


def enumerate_names(names: Sequence[str], separator: str = ", ") -> str:
    more = [*names[:MAX_NAMED], "…"] if len(names) > MAX_NAMED else names
    return separator.join(more)
