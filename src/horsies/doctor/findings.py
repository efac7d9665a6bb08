"""What is always true of a code: how bad it is, what it means, and what to do about it. `docs/doctor.md` has the same words."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, Final

from horsies.app import Horsies
from horsies.db.statement import Row
from horsies.model.config import CustomQueueConfig, RecoveryConfig

# --------
# What can be found, and how bad it may be.


class Severity(IntEnum):
    """The worse, the higher."""

    OK = 0
    INFO = 1
    WARNING = 2
    ERROR = 3

    @property
    def word(self) -> str:
        return self.name.lower()


class FindingCode(StrEnum):
    """What can be found. Names are stable: programs decide by them."""

    # -- the examination itself
    DATABASE_UNREACHABLE = "DATABASE_UNREACHABLE"
    CHECK_TIMED_OUT = "CHECK_TIMED_OUT"
    CHECK_NOT_PERMITTED = "CHECK_NOT_PERMITTED"
    CHECK_FAILED = "CHECK_FAILED"
    # -- the server
    POSTGRES_TOO_OLD = "POSTGRES_TOO_OLD"
    SERVER_READ_ONLY = "SERVER_READ_ONLY"
    FSYNC_OFF = "FSYNC_OFF"
    SYNCHRONOUS_COMMIT_OFF = "SYNCHRONOUS_COMMIT_OFF"
    CONNECTIONS_SHORT = "CONNECTIONS_SHORT"
    ENCODING_UNSUITABLE = "ENCODING_UNSUITABLE"
    OPEN_TO_PUBLIC = "OPEN_TO_PUBLIC"
    # -- the schema
    SCHEMA_MISSING = "SCHEMA_MISSING"
    SCHEMA_OLDER = "SCHEMA_OLDER"
    SCHEMA_NEWER = "SCHEMA_NEWER"
    SCHEMA_AHEAD = "SCHEMA_AHEAD"
    PRIVILEGES_MISSING = "PRIVILEGES_MISSING"
    DAYS_PRIVILEGE_MISSING = "DAYS_PRIVILEGE_MISSING"
    SCHEMA_OPEN = "SCHEMA_OPEN"
    SEARCH_PATH_UNPINNED = "SEARCH_PATH_UNPINNED"
    NOTIFY_TRIGGER_OFF = "NOTIFY_TRIGGER_OFF"
    DAYS_MISSING = "DAYS_MISSING"
    DEFAULT_DAY_USED = "DEFAULT_DAY_USED"
    # -- notifications
    LISTEN_POOLED = "LISTEN_POOLED"
    LISTEN_SILENT = "LISTEN_SILENT"
    LISTEN_ELSEWHERE = "LISTEN_ELSEWHERE"
    LISTEN_UNREACHABLE = "LISTEN_UNREACHABLE"
    POOLER_FOUND = "POOLER_FOUND"
    NOTIFY_QUEUE_FILLING = "NOTIFY_QUEUE_FILLING"
    # -- clocks
    CLOCK_SKEW = "CLOCK_SKEW"
    PRODUCER_CLOCK_SKEW = "PRODUCER_CLOCK_SKEW"
    HEARTBEAT_AHEAD = "HEARTBEAT_AHEAD"
    # -- vacuum
    LONG_TRANSACTION = "LONG_TRANSACTION"
    PREPARED_TRANSACTION = "PREPARED_TRANSACTION"
    REPLICATION_SLOT_BEHIND = "REPLICATION_SLOT_BEHIND"
    SESSIONS_HIDDEN = "SESSIONS_HIDDEN"
    AUTOVACUUM_OFF = "AUTOVACUUM_OFF"
    DEAD_ROWS = "DEAD_ROWS"
    TABLE_BLOATED = "TABLE_BLOATED"
    # -- tasks
    TASKS_ORPHANED = "TASKS_ORPHANED"
    LEASES_PAST = "LEASES_PAST"
    TASKS_OVERTIME = "TASKS_OVERTIME"
    PROMOTION_LATE = "PROMOTION_LATE"
    EXPIRY_LATE = "EXPIRY_LATE"
    CANCEL_UNHEARD = "CANCEL_UNHEARD"
    WAITING_LONG = "WAITING_LONG"
    QUEUE_UNSERVED = "QUEUE_UNSERVED"
    QUEUE_PAUSED = "QUEUE_PAUSED"
    TASKS_UNKNOWN = "TASKS_UNKNOWN"
    TASKS_CHANGED = "TASKS_CHANGED"
    SCHEDULES_UNSERVED = "SCHEDULES_UNSERVED"
    SCHEDULES_WITHOUT_APP = "SCHEDULES_WITHOUT_APP"
    SCHEDULE_CLASH = "SCHEDULE_CLASH"
    CAP_EXCEEDED = "CAP_EXCEEDED"
    # -- workers
    NO_WORKERS = "NO_WORKERS"
    STALE_WORKERS = "STALE_WORKERS"
    LEADER_MISSING = "KEEPER_MISSING"
    WORKER_VERSIONS_DIFFER = "WORKER_VERSIONS_DIFFER"
    QUEUE_WITHOUT_WORKER = "QUEUE_WITHOUT_WORKER"
    QUEUE_UNKNOWN = "QUEUE_UNKNOWN"
    TASK_NAME_CLASH = "TASK_NAME_CLASH"
    # -- workflows
    WORKFLOWS_STUCK = "WORKFLOWS_STUCK"


@dataclass(frozen=True, slots=True)
class FindingText:
    """What is always true of a code."""

    severity: Severity
    meaning: str
    cure: str


_INFO, _WARNING, _ERROR = Severity.INFO, Severity.WARNING, Severity.ERROR

CATALOGUE: Final[Mapping[FindingCode, FindingText]] = {
    FindingCode.DATABASE_UNREACHABLE: FindingText(
        _ERROR,
        "No connection can be made, or it broke during the examination.",
        "Read what the server, or the network, said; then check the address, the user, the password and the firewall.",
    ),
    FindingCode.CHECK_TIMED_OUT: FindingText(
        _WARNING,
        "A check did not end in its time: the table is very large, or somebody holds it locked.",
        "Run it again with a longer `--timeout`; if it still ends so, look for a session that holds a lock (`pg_locks`).",
    ),
    FindingCode.CHECK_NOT_PERMITTED: FindingText(
        _WARNING,
        "The database user may not see what a check looks at.",
        "Grant the role `pg_monitor` to this user, or run the doctor as another one.",
    ),
    FindingCode.CHECK_FAILED: FindingText(
        _WARNING,
        "A check could not be run, for a reason that it does not know.",
        "Read the words of the error; if the database is well, report it as a fault of horsies.",
    ),
    FindingCode.POSTGRES_TOO_OLD: FindingText(
        _ERROR, "PostgreSQL is older than 14.", "Upgrade the server; horsies is tested with PostgreSQL 14 and newer."
    ),
    FindingCode.SERVER_READ_ONLY: FindingText(
        _ERROR,
        "The server is a standby, or its transactions are read-only: nothing can be sent.",
        "Point `database_url` at the primary, or take `default_transaction_read_only` back.",
    ),
    FindingCode.FSYNC_OFF: FindingText(
        _WARNING,
        "`fsync` or `full_page_writes` is off: a crash of the machine can lose or corrupt the database.",
        "Set `fsync = on` and `full_page_writes = on`, unless all data may be lost.",
    ),
    FindingCode.SYNCHRONOUS_COMMIT_OFF: FindingText(
        _WARNING,
        "`synchronous_commit` is off: a crash of the server loses the sends and results of the last moments.",
        "Set `synchronous_commit = on` for this database and role.",
    ),
    FindingCode.CONNECTIONS_SHORT: FindingText(
        _WARNING,
        "Few connections are left, of the server, the database or the user.",
        "Close what idles, lower `pool_max_size`, put a pooler before the database, or raise the limit.",
    ),
    FindingCode.ENCODING_UNSUITABLE: FindingText(
        _ERROR,
        "The database cannot hold every text, or a pooler does not let texts pass as UTF-8: horsies refuses to work with it.",
        "Make a database with `create database NAME encoding 'UTF8' template template0`, and let poolers pass `client_encoding` on.",
    ),
    FindingCode.OPEN_TO_PUBLIC: FindingText(
        _WARNING,
        "Everybody may create objects in a schema of this database, and so plant operators and functions that queries of others find there. "
        "Statements of horsies do not look there; those of your application may.",
        "Run `revoke create on schema … from public`; PostgreSQL 15 and later do that for new databases.",
    ),
    FindingCode.SCHEMA_MISSING: FindingText(_ERROR, "The tables of horsies are not in this database.", "Run `horsies migrate`."),
    FindingCode.SCHEMA_OLDER: FindingText(
        _ERROR, "The schema is older than this library, which cannot run on it.", "Run `horsies migrate`."
    ),
    FindingCode.SCHEMA_NEWER: FindingText(
        _ERROR,
        "The schema is newer than this library, which cannot run on it any more.",
        "Upgrade the horsies package of this process.",
    ),
    FindingCode.SCHEMA_AHEAD: FindingText(
        _INFO,
        "The schema is newer than this library, which still runs on it.",
        "Upgrade the horsies package of this process when convenient.",
    ),
    FindingCode.PRIVILEGES_MISSING: FindingText(
        _ERROR,
        "The database user lacks rights that horsies needs.",
        "As the owner: grant USAGE on the schema, SELECT, INSERT, UPDATE, DELETE on all its tables and EXECUTE on its functions to this user.",
    ),
    FindingCode.DAYS_PRIVILEGE_MISSING: FindingText(
        _WARNING,
        "The database user may not make the daily partitions of finished tasks, nor drop them.",
        "Run `horsies migrate` as the owner of the tables at least once a week, or make this user a member of the owning role.",
    ),
    FindingCode.SCHEMA_OPEN: FindingText(
        _WARNING,
        "Roles that do not own the schema of horsies may create objects in it, and so stand in the way of its tables.",
        "Run `revoke create on schema … from …`; whoever prepares partitions has to be a member of the owning role anyway.",
    ),
    FindingCode.SEARCH_PATH_UNPINNED: FindingText(
        _ERROR,
        "Functions of the schema depend on the search_path of whoever calls them, or objects of it use operators and functions of another "
        "schema: whoever may create those runs code with the rights of others.",
        "Run `horsies migrate`; then `alter function … set search_path = pg_catalog, pg_temp` for functions of your own, "
        "and create again, as `schema.sql` of the package has it, what uses objects of another schema.",
    ),
    FindingCode.NOTIFY_TRIGGER_OFF: FindingText(
        _ERROR,
        "The trigger that wakes workers is gone or disabled: tasks that are sent in a caller's own transaction, or by SQL, are found only by polling.",
        "Run `alter table … enable trigger tasks_notify_new`; if it was dropped, create it again as `schema.sql` of the package has it.",
    ),
    FindingCode.DAYS_MISSING: FindingText(
        _WARNING,
        "Too few daily partitions are prepared: finished tasks will go to the default partition.",
        "Run `horsies migrate` as a user who may create tables, and keep a worker of such a user running.",
    ),
    FindingCode.DEFAULT_DAY_USED: FindingText(
        _WARNING,
        "Finished tasks lie in the default partition, where retention is slower: their day was not prepared in time.",
        "Run `horsies migrate` as the owner of the tables, and find out why no day had been prepared.",
    ),
    FindingCode.LISTEN_POOLED: FindingText(
        _WARNING,
        "LISTEN goes through a transaction pooler, where it cannot work: everybody polls.",
        "Set `PostgresConfig(listen_url=…)` to the database's own address, past the pooler.",
    ),
    FindingCode.LISTEN_SILENT: FindingText(
        _ERROR,
        "A notification was sent and not heard.",
        "Check that nothing but PostgreSQL stands behind `listen_url`, and that the server is not overloaded.",
    ),
    FindingCode.LISTEN_ELSEWHERE: FindingText(
        _ERROR,
        "`listen_url` and `database_url` lead to different databases.",
        "Set `listen_url` to a direct connection to the very database that `database_url` leads to.",
    ),
    FindingCode.LISTEN_UNREACHABLE: FindingText(
        _ERROR,
        "`listen_url` cannot be reached.",
        "Correct the address, or leave `listen_url` out until a firewall lets it through.",
    ),
    FindingCode.POOLER_FOUND: FindingText(
        _INFO,
        "`database_url` leads through a pooler, and notifications go past it, or work through it.",
        "Nothing needs to be done.",
    ),
    FindingCode.NOTIFY_QUEUE_FILLING: FindingText(
        _WARNING,
        "PostgreSQL's queue of notifications is filling up: a session that listens stays in a transaction. When it is full, sends fail.",
        "End that session with `select pg_terminate_backend(pid)`, and let nothing listen inside a transaction.",
    ),
    FindingCode.CLOCK_SKEW: FindingText(
        _WARNING,
        "The clocks of this machine and of the database differ.",
        "Run an NTP client on both; only the database's clock decides what is due, but logs and ids carry this machine's.",
    ),
    FindingCode.PRODUCER_CLOCK_SKEW: FindingText(
        _WARNING,
        "Ids of recent tasks were made by a clock that differs from the database's.",
        "Run an NTP client on the machines that send.",
    ),
    FindingCode.HEARTBEAT_AHEAD: FindingText(
        _WARNING,
        "Heartbeats lie in the future: the database's clock was set back, or another server took over.",
        "Run an NTP client on every database server; what waits for a moment that comes later than it should is only late.",
    ),
    FindingCode.LONG_TRANSACTION: FindingText(
        _WARNING,
        "A transaction has been open for long: dead rows cannot be removed as long as it is, and claims get slower.",
        "End it with `select pg_terminate_backend(pid)`, and set `idle_in_transaction_session_timeout` for its role.",
    ),
    FindingCode.PREPARED_TRANSACTION: FindingText(
        _WARNING,
        "A prepared transaction was left behind: dead rows cannot be removed as long as it is there.",
        "Run `commit prepared` or `rollback prepared` with its name, and find its transaction manager.",
    ),
    FindingCode.REPLICATION_SLOT_BEHIND: FindingText(
        _WARNING,
        "A replication slot is far behind: it keeps dead rows, or WAL that fills the disk.",
        "Bring its replica back, or drop it with `select pg_drop_replication_slot(name)`.",
    ),
    FindingCode.SESSIONS_HIDDEN: FindingText(
        _INFO,
        "This database user sees no details of other users' sessions, so their long transactions are not seen.",
        "Grant the role `pg_monitor` to this user, or run the doctor as another one.",
    ),
    FindingCode.AUTOVACUUM_OFF: FindingText(
        _ERROR,
        "Autovacuum is off for the server or for a table of horsies: dead rows are never removed.",
        "Set `autovacuum = on`, and `alter table … reset (autovacuum_enabled)`.",
    ),
    FindingCode.DEAD_ROWS: FindingText(
        _WARNING,
        "A table has many dead rows that vacuum has not removed: claims get slower.",
        "End what pins them (long transactions, slots), then `vacuum` the table; if vacuum cannot keep up, give it more workers.",
    ),
    FindingCode.TABLE_BLOATED: FindingText(
        _WARNING,
        "A table takes far more room than its rows need.",
        "When there is little to do, run `vacuum full` on it, which locks it, or pg_repack, which does not.",
    ),
    FindingCode.TASKS_ORPHANED: FindingText(
        _ERROR,
        "Tasks belong to workers that are gone, and no keeper has given them back.",
        "Start a worker: its keeper ends, retries or releases them within seconds. If one runs, read the log of the keeper for `the keeper could not`.",
    ),
    FindingCode.LEASES_PAST: FindingText(
        _ERROR,
        "Tasks are CLAIMED and their lease ran out long ago, but no keeper has released them.",
        "Start a worker, or read the log of the one that is the keeper for `the keeper could not`.",
    ),
    FindingCode.TASKS_OVERTIME: FindingText(
        _ERROR,
        "Tasks are RUNNING for longer than their `timeout_ms` and the grace allow.",
        "Look whether their worker hangs, and restart it: the keeper takes its tasks over.",
    ),
    FindingCode.PROMOTION_LATE: FindingText(
        _ERROR,
        "Tasks that are due are not offered to workers: nobody promotes them.",
        "Start a worker, any will do; if one runs, read the log of the keeper for `the keeper could not`.",
    ),
    FindingCode.EXPIRY_LATE: FindingText(
        _ERROR,
        "Tasks have not begun by their `good_until` and were not ended.",
        "Start a worker; if one runs, read the log of the keeper for `the keeper could not`.",
    ),
    FindingCode.CANCEL_UNHEARD: FindingText(
        _ERROR,
        "Tasks were asked to stop long ago and are still there.",
        "Look whether their worker hangs, and restart it; if it is gone, start another.",
    ),
    FindingCode.WAITING_LONG: FindingText(
        _WARNING,
        "The oldest task of a queue waits for longer than `--max-wait`.",
        "Add workers or processes for this queue, raise its `max_concurrency`, or find the task that keeps them busy.",
    ),
    FindingCode.QUEUE_UNSERVED: FindingText(
        _ERROR,
        "Tasks wait in a queue that no living worker serves.",
        "Start a worker that serves it (`--queues`), or correct the name in the producer.",
    ),
    FindingCode.QUEUE_PAUSED: FindingText(
        _WARNING,
        "Tasks wait in a queue that is paused.",
        "Resume it with `horsies queues resume NAME` when the reason for the pause is gone.",
    ),
    FindingCode.TASKS_UNKNOWN: FindingText(
        _ERROR,
        "Tasks wait for a worker that knows them, and no living worker does.",
        "Deploy the release that has them, name their module in `app.discover_tasks([...])`, or give the task that took their place `aliases=[...]`; or cancel them.",
    ),
    FindingCode.TASKS_CHANGED: FindingText(
        _ERROR,
        "Tasks wait because no living worker can read their arguments: they were sent by a release with other parameters.",
        "Deploy the workers of that release, or give new parameters a default and keep old ones; or cancel them.",
    ),
    FindingCode.SCHEDULES_UNSERVED: FindingText(
        _ERROR,
        "Slots of schedules are long overdue: no scheduler runs, or none that can read them.",
        "Start `horsies scheduler APP` or a worker with `--scheduler`; if one runs, read its log.",
    ),
    FindingCode.SCHEDULES_WITHOUT_APP: FindingText(
        _WARNING,
        "Schedules that an older release of horsies stored go on, though no app has declared them since.",
        "Start the scheduler of the app that declares them; if there is none, run `horsies schedules pause NAME`.",
    ),
    FindingCode.SCHEDULE_CLASH: FindingText(
        _ERROR,
        "The app declares a schedule whose name belongs to another app in the same schema: what the other app declares is in force.",
        "Rename the schedule in one of the apps. If both are the same app, set the same `AppConfig(name=…)` for both.",
    ),
    FindingCode.CAP_EXCEEDED: FindingText(
        _ERROR,
        "More tasks of a queue are in flight than the app's `max_concurrency` allows: workers run with another configuration.",
        "Deploy the same configuration to all workers.",
    ),
    FindingCode.NO_WORKERS: FindingText(_INFO, "No worker is alive.", "Start one with `horsies worker APP`."),
    FindingCode.STALE_WORKERS: FindingText(
        _ERROR,
        "Workers have not given a sign of life for long, and no keeper has struck them off.",
        "Look whether they run and reach the database; start a worker, and its keeper cleans up after those that do not.",
    ),
    FindingCode.LEADER_MISSING: FindingText(
        _ERROR,
        "Workers are alive, but none of them is the keeper: crashed tasks are not recovered, nothing expires.",
        "Read the workers' logs for `the keeper could not`, and restart one of them.",
    ),
    FindingCode.WORKER_VERSIONS_DIFFER: FindingText(
        _WARNING,
        "Living workers run different versions of horsies.",
        "Finish the deployment; restart the workers of the older version.",
    ),
    FindingCode.QUEUE_WITHOUT_WORKER: FindingText(
        _WARNING,
        "The app has a queue that no living worker serves.",
        "Start a worker that serves it, or remove it from the app.",
    ),
    FindingCode.QUEUE_UNKNOWN: FindingText(
        _WARNING,
        "Workers serve a queue that the app does not have: they run another version of it, or another app.",
        "Deploy the same app to all workers, or give the other one a schema of its own.",
    ),
    FindingCode.TASK_NAME_CLASH: FindingText(
        _WARNING,
        "Workers of different apps serve the same queue and have a task of the same name: either may run it for the other.",
        "Rename the task in one of the apps, or give each app queues, or a `schema`, of its own.",
    ),
    FindingCode.WORKFLOWS_STUCK: FindingText(
        _ERROR,
        "Workflows stand still although nothing holds them.",
        "Start a worker, whose keeper takes their next step; if one runs, report it with the output of `horsies workflows show ID`.",
    ),
}  # fmt: skip


# --------
# Findings: a code, and what was seen, with its numbers.


@dataclass(frozen=True, slots=True)
class Finding:
    """`seen` says it with numbers, for people; `data` has them, for programs."""

    code: FindingCode
    seen: str
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def severity(self) -> Severity:
        return CATALOGUE[self.code].severity

    @property
    def cure(self) -> str:
        return CATALOGUE[self.code].cure


def worst(findings: "list[Finding]") -> Severity:
    return max((finding.severity for finding in findings), default=Severity.OK)


# --------
# Numbers in the words of findings, and how many are named.

NAMED = 3  # to people
LISTED = 10  # to programs


def tasks(rows: Sequence[Row], limit: int) -> str:
    """`2 tasks: 0192… (resize), …` of rows that begin with an id and a name."""
    count = f"{limit} or more" if len(rows) == limit else f"{len(rows)}"
    named = ", ".join(f"{row[0]} ({row[1]})" for row in rows[:NAMED])
    return f"{count} task{'' if len(rows) == 1 else 's'}: {named}{', …' if len(rows) > NAMED else ''}"


# --------
# What is examined, and from when on something counts as wrong.

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckContext:
    """`queues` are those of the app; None where no app is known, and so are its name `app` and its `locator`. `schedules` are the names that it declares.
    Moments are the database's; `clock` is this machine's.
    """

    schema: str
    app: str | None = None
    locator: str | None = None
    schedules: Sequence[str] = ()
    recovery: RecoveryConfig = field(default_factory=RecoveryConfig)
    queues: Sequence[CustomQueueConfig] | None = None
    check_timeout_s: float = 5.0
    pooler_checks: int = 10
    max_wait_s: float = 600.0
    max_transaction_s: float = 600.0
    stuck_after_s: float = 60.0
    max_skew_s: float = 2.0
    max_producer_skew_s: float = 60.0
    max_dead_rows: int = 50_000
    min_bloat_bytes: int = 256 * MIB
    max_slot_lag_bytes: int = 1024 * MIB
    max_slot_age: int = 1_000_000
    min_days_ahead: int = 3
    look_again_s: float = 2.0
    oldest_postgres: int = 14
    clock: Callable[[], float] = time.time

    @property
    def stale_after_s(self) -> float:
        """A keeper strikes a silent worker off long before."""
        return 2 * self.recovery.dead_after_ms / 1000 + 10


def context_for(app: Horsies, *, knows_app: bool) -> CheckContext:
    """The case of an app on its database. Without `knows_app` only the database and its settings are known, and nothing is compared with the app."""
    return CheckContext(
        schema=app.broker.config.schema,
        recovery=app.config.recovery,
        queues=app.config.queues if knows_app else None,
        app=app.name if knows_app else None,
        locator=app.locator if knows_app else None,
        schedules=[each.name for each in app.config.schedule.schedules] if knows_app and app.config.schedule else [],
    )
