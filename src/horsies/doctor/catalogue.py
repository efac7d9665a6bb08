"""What is always true of a code: how bad it is, what it means, and what to do about it. `docs/doctor.md` has the same words."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from horsies.doctor.codes import Code, Severity


@dataclass(frozen=True, slots=True)
class Entry:
    """What is always true of a code."""

    severity: Severity
    meaning: str
    cure: str


_INFO, _WARNING, _ERROR = Severity.INFO, Severity.WARNING, Severity.ERROR

CATALOGUE: Final[Mapping[Code, Entry]] = {
    Code.DATABASE_UNREACHABLE: Entry(
        _ERROR,
        "No connection can be made, or it broke during the examination.",
        "Read what the server, or the network, said; then check the address, the user, the password and the firewall.",
    ),
    Code.CHECK_TIMED_OUT: Entry(
        _WARNING,
        "A check did not end in its time: the table is very large, or somebody holds it locked.",
        "Run it again with a longer `--timeout`; if it still ends so, look for a session that holds a lock (`pg_locks`).",
    ),
    Code.CHECK_NOT_PERMITTED: Entry(
        _WARNING,
        "The database user may not see what a check looks at.",
        "Grant the role `pg_monitor` to this user, or run the doctor as another one.",
    ),
    Code.CHECK_FAILED: Entry(
        _WARNING,
        "A check could not be run, for a reason that it does not know.",
        "Read the words of the error; if the database is well, report it as a fault of horsies.",
    ),
    Code.POSTGRES_TOO_OLD: Entry(
        _ERROR, "PostgreSQL is older than 14.", "Upgrade the server; horsies is tested with PostgreSQL 14 and newer."
    ),
    Code.SERVER_READ_ONLY: Entry(
        _ERROR,
        "The server is a standby, or its transactions are read-only: nothing can be sent.",
        "Point `database_url` at the primary, or take `default_transaction_read_only` back.",
    ),
    Code.FSYNC_OFF: Entry(
        _WARNING,
        "`fsync` or `full_page_writes` is off: a crash of the machine can lose or corrupt the database.",
        "Set `fsync = on` and `full_page_writes = on`, unless all data may be lost.",
    ),
    Code.SYNCHRONOUS_COMMIT_OFF: Entry(
        _WARNING,
        "`synchronous_commit` is off: a crash of the server loses the sends and results of the last moments.",
        "Set `synchronous_commit = on` for this database and role.",
    ),
    Code.CONNECTIONS_SHORT: Entry(
        _WARNING,
        "Few connections are left, of the server, the database or the user.",
        "Close what idles, lower `pool_max_size`, put a pooler before the database, or raise the limit.",
    ),
    Code.ENCODING_UNSUITABLE: Entry(
        _ERROR,
        "The database cannot hold every text, or a pooler does not let texts pass as UTF-8: horsies refuses to work with it.",
        "Make a database with `create database NAME encoding 'UTF8' template template0`, and let poolers pass `client_encoding` on.",
    ),
    Code.OPEN_TO_PUBLIC: Entry(
        _WARNING,
        "Everybody may create objects in a schema of this database, and so plant operators and functions that queries of others find there. "
        "Statements of horsies do not look there; those of your application may.",
        "Run `revoke create on schema … from public`; PostgreSQL 15 and later do that for new databases.",
    ),
    Code.SCHEMA_MISSING: Entry(_ERROR, "The tables of horsies are not in this database.", "Run `horsies migrate`."),
    Code.SCHEMA_OLDER: Entry(
        _ERROR, "The schema is older than this library, which cannot run on it.", "Run `horsies migrate`."
    ),
    Code.SCHEMA_NEWER: Entry(
        _ERROR,
        "The schema is newer than this library, which cannot run on it any more.",
        "Upgrade the horsies package of this process.",
    ),
    Code.SCHEMA_AHEAD: Entry(
        _INFO,
        "The schema is newer than this library, which still runs on it.",
        "Upgrade the horsies package of this process when convenient.",
    ),
    Code.PRIVILEGES_MISSING: Entry(
        _ERROR,
        "The database user lacks rights that horsies needs.",
        "As the owner: grant USAGE on the schema, SELECT, INSERT, UPDATE, DELETE on all its tables and EXECUTE on its functions to this user.",
    ),
    Code.DAYS_PRIVILEGE_MISSING: Entry(
        _WARNING,
        "The database user may not make the daily partitions of finished tasks, nor drop them.",
        "Run `horsies migrate` as the owner of the tables at least once a week, or make this user a member of the owning role.",
    ),
    Code.SCHEMA_OPEN: Entry(
        _WARNING,
        "Roles that do not own the schema of horsies may create objects in it, and so stand in the way of its tables.",
        "Run `revoke create on schema … from …`; whoever prepares partitions has to be a member of the owning role anyway.",
    ),
    Code.SEARCH_PATH_UNPINNED: Entry(
        _ERROR,
        "Functions of the schema depend on the search_path of whoever calls them, or objects of it use operators and functions of another "
        "schema: whoever may create those runs code with the rights of others.",
        "Run `horsies migrate`; then `alter function … set search_path = pg_catalog, pg_temp` for functions of your own, "
        "and create again, as `schema.sql` of the package has it, what uses objects of another schema.",
    ),
    Code.NOTIFY_TRIGGER_OFF: Entry(
        _ERROR,
        "The trigger that wakes workers is gone or disabled: tasks that are sent in a caller's own transaction, or by SQL, are found only by polling.",
        "Run `alter table … enable trigger tasks_notify_new`; if it was dropped, create it again as `schema.sql` of the package has it.",
    ),
    Code.DAYS_MISSING: Entry(
        _WARNING,
        "Too few daily partitions are prepared: finished tasks will go to the default partition.",
        "Run `horsies migrate` as a user who may create tables, and keep a worker of such a user running.",
    ),
    Code.DEFAULT_DAY_USED: Entry(
        _WARNING,
        "Finished tasks lie in the default partition, where retention is slower: their day was not prepared in time.",
        "Run `horsies migrate` as the owner of the tables, and find out why no day had been prepared.",
    ),
    Code.LISTEN_POOLED: Entry(
        _WARNING,
        "LISTEN goes through a transaction pooler, where it cannot work: everybody polls.",
        "Set `PostgresConfig(listen_url=…)` to the database's own address, past the pooler.",
    ),
    Code.LISTEN_SILENT: Entry(
        _ERROR,
        "A notification was sent and not heard.",
        "Check that nothing but PostgreSQL stands behind `listen_url`, and that the server is not overloaded.",
    ),
    Code.LISTEN_ELSEWHERE: Entry(
        _ERROR,
        "`listen_url` and `database_url` lead to different databases.",
        "Set `listen_url` to a direct connection to the very database that `database_url` leads to.",
    ),
    Code.LISTEN_UNREACHABLE: Entry(
        _ERROR,
        "`listen_url` cannot be reached.",
        "Correct the address, or leave `listen_url` out until a firewall lets it through.",
    ),
    Code.POOLER_FOUND: Entry(
        _INFO,
        "`database_url` leads through a pooler, and notifications go past it, or work through it.",
        "Nothing needs to be done.",
    ),
    Code.NOTIFY_QUEUE_FILLING: Entry(
        _WARNING,
        "PostgreSQL's queue of notifications is filling up: a session that listens stays in a transaction. When it is full, sends fail.",
        "End that session with `select pg_terminate_backend(pid)`, and let nothing listen inside a transaction.",
    ),
    Code.CLOCK_SKEW: Entry(
        _WARNING,
        "The clocks of this machine and of the database differ.",
        "Run an NTP client on both; only the database's clock decides what is due, but logs and ids carry this machine's.",
    ),
    Code.PRODUCER_CLOCK_SKEW: Entry(
        _WARNING,
        "Ids of recent tasks were made by a clock that differs from the database's.",
        "Run an NTP client on the machines that send.",
    ),
    Code.HEARTBEAT_AHEAD: Entry(
        _WARNING,
        "Heartbeats lie in the future: the database's clock was set back, or another server took over.",
        "Run an NTP client on every database server; what waits for a moment that comes later than it should is only late.",
    ),
    Code.LONG_TRANSACTION: Entry(
        _WARNING,
        "A transaction has been open for long: dead rows cannot be removed as long as it is, and claims get slower.",
        "End it with `select pg_terminate_backend(pid)`, and set `idle_in_transaction_session_timeout` for its role.",
    ),
    Code.PREPARED_TRANSACTION: Entry(
        _WARNING,
        "A prepared transaction was left behind: dead rows cannot be removed as long as it is there.",
        "Run `commit prepared` or `rollback prepared` with its name, and find its transaction manager.",
    ),
    Code.REPLICATION_SLOT_BEHIND: Entry(
        _WARNING,
        "A replication slot is far behind: it keeps dead rows, or WAL that fills the disk.",
        "Bring its replica back, or drop it with `select pg_drop_replication_slot(name)`.",
    ),
    Code.SESSIONS_HIDDEN: Entry(
        _INFO,
        "This database user sees no details of other users' sessions, so their long transactions are not seen.",
        "Grant the role `pg_monitor` to this user, or run the doctor as another one.",
    ),
    Code.AUTOVACUUM_OFF: Entry(
        _ERROR,
        "Autovacuum is off for the server or for a table of horsies: dead rows are never removed.",
        "Set `autovacuum = on`, and `alter table … reset (autovacuum_enabled)`.",
    ),
    Code.DEAD_ROWS: Entry(
        _WARNING,
        "A table has many dead rows that vacuum has not removed: claims get slower.",
        "End what pins them (long transactions, slots), then `vacuum` the table; if vacuum cannot keep up, give it more workers.",
    ),
    Code.TABLE_BLOATED: Entry(
        _WARNING,
        "A table takes far more room than its rows need.",
        "When there is little to do, run `vacuum full` on it, which locks it, or pg_repack, which does not.",
    ),
    Code.TASKS_ORPHANED: Entry(
        _ERROR,
        "Tasks belong to workers that are gone, and no keeper has given them back.",
        "Start a worker: its keeper ends, retries or releases them within seconds. If one runs, read the log of the keeper for `the keeper could not`.",
    ),
    Code.LEASES_PAST: Entry(
        _ERROR,
        "Tasks are CLAIMED and their lease ran out long ago, but no keeper has released them.",
        "Start a worker, or read the log of the one that is the keeper for `the keeper could not`.",
    ),
    Code.TASKS_OVERTIME: Entry(
        _ERROR,
        "Tasks are RUNNING for longer than their `timeout_ms` and the grace allow.",
        "Look whether their worker hangs, and restart it: the keeper takes its tasks over.",
    ),
    Code.PROMOTION_LATE: Entry(
        _ERROR,
        "Tasks that are due are not offered to workers: nobody promotes them.",
        "Start a worker, any will do; if one runs, read the log of the keeper for `the keeper could not`.",
    ),
    Code.EXPIRY_LATE: Entry(
        _ERROR,
        "Tasks have not begun by their `good_until` and were not ended.",
        "Start a worker; if one runs, read the log of the keeper for `the keeper could not`.",
    ),
    Code.CANCEL_UNHEARD: Entry(
        _ERROR,
        "Tasks were asked to stop long ago and are still there.",
        "Look whether their worker hangs, and restart it; if it is gone, start another.",
    ),
    Code.WAITING_LONG: Entry(
        _WARNING,
        "The oldest task of a queue waits for longer than `--max-wait`.",
        "Add workers or processes for this queue, raise its `max_concurrency`, or find the task that keeps them busy.",
    ),
    Code.QUEUE_UNSERVED: Entry(
        _ERROR,
        "Tasks wait in a queue that no living worker serves.",
        "Start a worker that serves it (`--queues`), or correct the name in the producer.",
    ),
    Code.QUEUE_PAUSED: Entry(
        _WARNING,
        "Tasks wait in a queue that is paused.",
        "Resume it with `horsies queues resume NAME` when the reason for the pause is gone.",
    ),
    Code.TASKS_UNKNOWN: Entry(
        _ERROR,
        "Tasks wait for a worker that knows them, and no living worker does.",
        "Deploy the release that has them, name their module in `app.discover_tasks([...])`, or give the task that took their place `aliases=[...]`; or cancel them.",
    ),
    Code.TASKS_CHANGED: Entry(
        _ERROR,
        "Tasks wait because no living worker can read their arguments: they were sent by a release with other parameters.",
        "Deploy the workers of that release, or give new parameters a default and keep old ones; or cancel them.",
    ),
    Code.SCHEDULES_UNSERVED: Entry(
        _ERROR,
        "Slots of schedules are long overdue: no scheduler runs, or none that can read them.",
        "Start `horsies scheduler APP` or a worker with `--scheduler`; if one runs, read its log.",
    ),
    Code.SCHEDULES_WITHOUT_APP: Entry(
        _WARNING,
        "Schedules that an older release of horsies stored go on, though no app has declared them since.",
        "Start the scheduler of the app that declares them; if there is none, run `horsies schedules pause NAME`.",
    ),
    Code.SCHEDULE_CLASH: Entry(
        _ERROR,
        "The app declares a schedule whose name belongs to another app in the same schema: what the other app declares is in force.",
        "Rename the schedule in one of the apps. If both are the same app, set the same `AppConfig(name=…)` for both.",
    ),
    Code.CAP_EXCEEDED: Entry(
        _ERROR,
        "More tasks of a queue are in flight than the app's `max_concurrency` allows: workers run with another configuration.",
        "Deploy the same configuration to all workers.",
    ),
    Code.NO_WORKERS: Entry(_INFO, "No worker is alive.", "Start one with `horsies worker APP`."),
    Code.STALE_WORKERS: Entry(
        _ERROR,
        "Workers have not given a sign of life for long, and no keeper has struck them off.",
        "Look whether they run and reach the database; start a worker, and its keeper cleans up after those that do not.",
    ),
    Code.KEEPER_MISSING: Entry(
        _ERROR,
        "Workers are alive, but none of them is the keeper: crashed tasks are not recovered, nothing expires.",
        "Read the workers' logs for `the keeper could not`, and restart one of them.",
    ),
    Code.WORKER_VERSIONS_DIFFER: Entry(
        _WARNING,
        "Living workers run different versions of horsies.",
        "Finish the deployment; restart the workers of the older version.",
    ),
    Code.QUEUE_WITHOUT_WORKER: Entry(
        _WARNING,
        "The app has a queue that no living worker serves.",
        "Start a worker that serves it, or remove it from the app.",
    ),
    Code.QUEUE_UNKNOWN: Entry(
        _WARNING,
        "Workers serve a queue that the app does not have: they run another version of it, or another app.",
        "Deploy the same app to all workers, or give the other one a schema of its own.",
    ),
    Code.TASK_NAME_CLASH: Entry(
        _WARNING,
        "Workers of different apps serve the same queue and have a task of the same name: either may run it for the other.",
        "Rename the task in one of the apps, or give each app queues, or a `schema`, of its own.",
    ),
    Code.WORKFLOWS_STUCK: Entry(
        _ERROR,
        "Workflows stand still although nothing holds them.",
        "Start a worker, whose keeper takes their next step; if one runs, report it with the output of `horsies workflows show ID`.",
    ),
}  # fmt: skip
