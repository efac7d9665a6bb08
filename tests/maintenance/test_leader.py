"""Dead workers are detected and tsuccessor tasks rescued; live workers, also those declared dead, are not harmed."""

import signal
import time
from pathlib import Path

import psutil
import psycopg
import pytest

from horsies.db.channels import worker_lock_scope
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import column, row
from tests.fixtures.proxies import Proxy
from tests.fixtures.workers import READY, StartWorker, Worker
from tests.recovery.steps import CLUSTER, FORKED, insert_rows, insert_spans, notes, settings, workers
from tests.worker.steps import begun, first_line, insert, insert_lines, numbers, statuses, wait_until_ended

AFTER_CRASHES = {"retry_delays_ms": "array[0]", "retry_for": "array['WORKER_CRASHED']"}


def gate(sql: psycopg.Connection, folder: Path, name: str = "begun", **columns: str) -> int:
    """Start a task that waits for a file, and return the process that runs it."""
    (_,) = insert_rows(sql, "gate", [{"begun": str(folder / name), "until": str(folder / "open")}], **columns)
    return begun(folder / name)


def incarnation(worker: Worker) -> str:
    return worker.wait_for_log(r"worker (\S+) is ready")[1]


@pytest.mark.promise("T2", "W8", "W9")
def test_what_a_dead_worker_ran_has_crashed_and_what_it_had_only_claimed_runs_elsewhere(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    env, log = settings(prefetch_buffer=4, claim_lease_ms=60_000), tmp_path / "log"
    first = worker(CLUSTER, env=env)
    gate(sql, tmp_path)
    insert_lines(sql, log, 3)
    eventually(lambda: statuses(sql) == {"RUNNING": 1, "CLAIMED": 3}, seen=lambda: statuses(sql))
    dead = incarnation(first)
    first.kill()
    second = worker(CLUSTER, env=env)
    assert wait_until_ended(sql, 4) == {"COMPLETED": 3, "FAILED": 1}
    second.wait_for_log(f"worker {dead} declared dead")
    assert workers(sql) == [incarnation(second)]
    assert sorted(numbers(log)) == [0, 1, 2]
    assert row(sql, "select distinct attempts, claim_no from horsies.finished where task_name = 'write_line'") == (1, 2)
    failed = "select error_code, attempts, error->>'message' from horsies.finished where task_name = 'gate'"
    code, attempts, message = row(sql, failed)
    assert (code, attempts) == ("WORKER_CRASHED", 1)
    assert dead in message


@pytest.mark.promise("T2", "W9", "T1")
def test_what_a_dead_worker_ran_is_retried_if_its_policy_says_so(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    first = worker(CLUSTER, env=settings())
    gate(sql, tmp_path, **AFTER_CRASHES)
    dead = incarnation(first)
    first.kill()
    (tmp_path / "open").touch()
    worker(CLUSTER, env=settings())
    assert wait_until_ended(sql, 1) == {"COMPLETED": 1}
    assert row(sql, "select attempts, failed_attempts[1]->>'worker' from horsies.finished") == (2, dead)
    assert row(sql, "select failed_attempts[1]->>'error_code' from horsies.finished") == ("WORKER_CRASHED",)


def declared_dead(worker: StartWorker, sql: psycopg.Connection, tmp_path: Path) -> tuple[Worker, int]:
    """A worker that was stopped while it ran a task, until another one has declared it dead; and its child."""
    resumed = worker(CLUSTER, env=settings())
    pid = gate(sql, tmp_path)
    worker(CLUSTER, env=settings())
    name = incarnation(resumed)
    resumed.signal(signal.SIGSTOP)
    eventually(lambda: name not in workers(sql), 30, what="it is declared dead")
    eventually(lambda: statuses(sql) == {"FAILED": 1}, 30)
    return resumed, pid


@pytest.mark.promise("T2", "W4")
def test_a_worker_declared_dead_that_is_not_kills_its_children_and_starts_again(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    resumed, pid = declared_dead(worker, sql, tmp_path)
    assert psutil.pid_exists(pid)
    before = len(resumed.logs)
    resumed.signal(signal.SIGCONT)
    resumed.wait_for_log("was declared dead.*starting again", after=before)
    resumed.wait_for_log(READY, after=before)
    eventually(lambda: not psutil.pid_exists(pid), what="its old child is killed")
    assert len(workers(sql)) == 2
    assert row(sql, "select status, error_code, attempts from horsies.finished") == ("FAILED", "WORKER_CRASHED", 1)
    # Under its new name it works as before.
    (tmp_path / "open").touch()
    for number in range(10):
        insert(sql, "gate", begun=str(tmp_path / f"again{number}"), until=str(tmp_path / "open"))
    assert wait_until_ended(sql, 11) == {"FAILED": 1, "COMPLETED": 10}
    assert resumed.terminate() == 0


@pytest.mark.promise("T2", "W4")
def test_the_late_ending_of_a_worker_declared_dead_changes_nothing(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    resumed, _ = declared_dead(worker, sql, tmp_path)
    before = row(sql, "select * from horsies.finished")
    (tmp_path / "open").touch()  # the child ends it now, and the ending waits in the socket
    resumed.signal(signal.SIGCONT)
    resumed.wait_for_log("starting again")
    assert row(sql, "select * from horsies.finished") == before
    assert statuses(sql) == {"FAILED": 1}


@pytest.mark.promise("T2", "W4")
def test_the_late_ending_of_a_worker_declared_dead_does_not_end_the_next_attempt(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    resumed = worker(CLUSTER, env=settings())
    first_pid = gate(sql, tmp_path, **AFTER_CRASHES)
    successor = worker(CLUSTER, env=settings())
    resumed.signal(signal.SIGSTOP)
    eventually(lambda: len(numbers(tmp_path / "begun")) == 2, 30, what="the successor runs it")
    second_pid = numbers(tmp_path / "begun")[1]
    psutil.Process(second_pid).suspend()
    (tmp_path / "open").touch()
    resumed.signal(signal.SIGCONT)  # with the result of its child in its socket
    resumed.wait_for_log("starting again")
    assert row(sql, "select status, claimed_by::text from horsies.tasks") == ("RUNNING", incarnation(successor))
    psutil.Process(second_pid).resume()
    assert wait_until_ended(sql, 1) == {"COMPLETED": 1}
    assert first_pid != second_pid
    assert row(sql, "select result::text, attempts from horsies.finished") == (str(second_pid), 2)


@pytest.mark.promise("T2")
def test_when_the_leader_dies_another_takes_over(worker: StartWorker, sql: psycopg.Connection, tmp_path: Path) -> None:
    holder = "select holder::text from horsies.maintenance_lease"
    leader = worker(CLUSTER, env=settings())
    eventually(lambda: column(sql, holder) == [incarnation(leader)])
    gate(sql, tmp_path)
    successor = worker(CLUSTER, env=settings())
    assert column(sql, holder) == [incarnation(leader)]
    leader.kill()
    eventually(lambda: column(sql, holder) == [incarnation(successor)])
    assert wait_until_ended(sql, 1) == {"FAILED": 1}
    assert workers(sql) == [incarnation(successor)]


@pytest.mark.promise("T2")
def test_a_leader_that_stops_releases_its_lease_at_once(worker: StartWorker, sql: psycopg.Connection) -> None:
    leader = worker(CLUSTER, env=settings())
    eventually(lambda: column(sql, "select holder from horsies.maintenance_lease"))
    assert leader.terminate() == 0
    assert column(sql, "select holder from horsies.maintenance_lease") == []


@pytest.mark.promise("T2")
def test_rows_of_a_worker_that_is_not_registered_are_orphans(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    """For example of a worker that claimed after it was declared dead."""
    sql.execute(
        "insert into horsies.tasks (task_name, args, status, claimed_by, claim_no, lease_until) "
        "select 'write_line', json_build_object('path', %s::text, 'line', '7'), status, gen_random_uuid(), 3, "
        "now() + interval '1 day' from unnest(array['CLAIMED', 'RUNNING']) as status",
        [str(tmp_path / "log")],
    )
    worker(CLUSTER, env=settings())
    assert wait_until_ended(sql, 2) == {"COMPLETED": 1, "FAILED": 1}
    assert numbers(tmp_path / "log") == [7]


# -- outages


@pytest.mark.timeout(120)
@pytest.mark.promise("T2", "W11")
@pytest.mark.parametrize("how", ["cut", "freeze"])
def test_an_outage_longer_than_dead_after_kills_no_task_of_a_healthy_worker(
    worker: StartWorker, sql: psycopg.Connection, proxy: Proxy, tmp_path: Path, how: str
) -> None:
    env = settings(recovery={"dead_after_ms": 2_000})
    started = [worker(CLUSTER, options=FORKED, env=env, database_url=proxy.url, until_ready=False) for _ in range(4)]
    names = sorted(incarnation(one) for one in started)
    for number in range(4):
        insert(sql, "gate", begun=str(tmp_path / str(number)), until=str(tmp_path / "open"))
    eventually(lambda: all(first_line(tmp_path / str(number)) for number in range(4)))
    if how == "cut":
        proxy.cut()
    else:
        proxy.freeze()
    time.sleep(8)  # the outage itself
    if how == "cut":
        proxy.heal()
    else:
        proxy.thaw()
    assert statuses(sql) == {"RUNNING": 4}
    # A beat from each of them after the outage, and four times as long as a leader takes to decide.
    since = row(sql, "select clock_timestamp()")[0]
    beaten = "select count(*) from horsies.workers where heartbeat_at > %s::timestamptz + interval '3 s'"
    eventually(lambda: row(sql, beaten, since) == (4,), 20, what="all beat again")
    assert sorted(workers(sql)) == names
    (tmp_path / "open").touch()
    assert wait_until_ended(sql, 4) == {"COMPLETED": 4}
    assert row(sql, "select distinct attempts, claim_no from horsies.finished") == (1, 1)
    assert not any("starting again" in line for one in started for line in one.logs)


@pytest.mark.promise("T2")
def test_a_worker_killed_during_an_outage_is_found_after_it(
    worker: StartWorker, sql: psycopg.Connection, proxy: Proxy, tmp_path: Path
) -> None:
    victim, successor = [worker(CLUSTER, env=settings(), database_url=proxy.url) for _ in range(2)]
    log = tmp_path / "log"
    insert_spans(sql, log, 2, 30.0)
    eventually(lambda: len(notes(log)) == 2)
    proxy.cut()
    victim.kill()
    proxy.heal()
    eventually(lambda: workers(sql) == [incarnation(successor)], 30)
    eventually(lambda: row(sql, "select sum(attempts) from horsies.tasks") == (1,))
    successor.kill()


# -- sessions that are gone

BY_SESSIONS = {"dead_after_ms": 3_600_000, "heartbeat_ms": 500}
"""No worker is dead by its heartbeat."""
SESSIONS = "select pid from pg_stat_activity where datname = current_database() and application_name = any(%s)"


def by_sessions(worker: StartWorker, **recovery: int) -> Worker:
    return worker(CLUSTER, options=FORKED, env=settings(recovery=BY_SESSIONS | recovery))


def have_announced(sql: psycopg.Connection, count: int) -> None:
    announced = "select count(*) from horsies.workers where holds_lock"
    eventually(lambda: row(sql, announced) == (count,), 20, what="tsuccessor locks are announced")


def wait_for_leader(sql: psycopg.Connection, seconds: float) -> None:
    """Wait until the leader has renewed its lease that much later than now."""
    until = row(sql, "select clock_timestamp() + %s * interval '1 s'", seconds)[0]
    looked = (
        "select coalesce(max(expires_at) > %s::timestamptz + interval '600 ms', false) from horsies.maintenance_lease"
    )
    eventually(lambda: row(sql, looked, until) == (True,), 30, what="the leader has checked")


@pytest.mark.promise("T2", "W9")
def test_a_killed_worker_is_dead_when_its_sessions_are_gone(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    successor, victim = by_sessions(worker), by_sessions(worker)
    for number in range(2):
        insert(sql, "gate", begun=str(tmp_path / str(number)), until=str(tmp_path / "open"))
    eventually(lambda: all(first_line(tmp_path / str(number)) for number in range(2)))
    have_announced(sql, 2)
    dead = incarnation(victim)
    victim.kill()
    successor.wait_for_log(f"worker {dead} declared dead: its connections are closed")
    eventually(lambda: statuses(sql) == {"RUNNING": 1, "FAILED": 1}, seen=lambda: statuses(sql))
    assert workers(sql) == [incarnation(successor)]


@pytest.mark.promise("T2", "W9")
def test_so_is_one_that_no_leader_has_observed_while_it_lived(worker: StartWorker, sql: psycopg.Connection) -> None:
    """It was the only one, and the leader itself."""
    first = by_sessions(worker)
    have_announced(sql, 1)
    first.kill()
    second = by_sessions(worker)
    second.wait_for_log(f"worker {incarnation(first)} declared dead: its connections are closed")


@pytest.mark.promise("T2", "W4")
def test_a_worker_that_is_stopped_is_not_dead_by_its_sessions(worker: StartWorker, sql: psycopg.Connection) -> None:
    stopped, _leader = by_sessions(worker), by_sessions(worker)
    have_announced(sql, 2)
    stopped.signal(signal.SIGSTOP)
    try:
        wait_for_leader(sql, 5.0)
        assert incarnation(stopped) in workers(sql)
    finally:
        stopped.signal(signal.SIGCONT)


@pytest.mark.promise("T2", "W11")
@pytest.mark.parametrize("names", [["horsies heartbeat"], ["horsies heartbeat", "horsies listener"]])
def test_a_worker_whose_sessions_are_terminated_takes_its_lock_again(
    worker: StartWorker, sql: psycopg.Connection, names: list[str]
) -> None:
    started = [by_sessions(worker, heartbeat_ms=3_000) for _ in range(2)]
    have_announced(sql, 2)
    for _ in range(4):
        row(sql, f"select count(pg_terminate_backend(pid)) from ({SESSIONS}) as sessions", names)
        wait_for_leader(sql, 1.5)
    wait_for_leader(sql, 3.0)
    assert sorted(workers(sql)) == sorted(incarnation(one) for one in started)
    have_announced(sql, 2)


@pytest.mark.promise("T2", "D6")
@pytest.mark.parametrize(
    ("holds_lock", "heartbeat_at", "is_dead"),
    [
        ("true", "clock_timestamp()", True),
        ("false", "clock_timestamp()", False),  # of a release that knows of no lock, or behind a pooler
        ("true", "pg_postmaster_start_time() - interval '1 s'", False),  # announced to an earlier run of the server
    ],
)
def test_only_a_lock_that_was_announced_to_this_run_of_the_server_can_be_missed(
    worker: StartWorker,
    sql: psycopg.Connection,
    holds_lock: str,
    heartbeat_at: str,
    is_dead: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    leader = by_sessions(worker)
    have_announced(sql, 1)
    sql.execute(
        "insert into horsies.workers (id, hostname, pid, processes, concurrency, queues, library_version, holds_lock, heartbeat_at) "
        f"values (gen_random_uuid(), 'elsewhere', 1, 1, 1, '{{default}}', '1', {holds_lock}, {heartbeat_at})".encode()
    )
    if is_dead:
        eventually(lambda: workers(sql) == [incarnation(leader)], 20)
    else:
        wait_for_leader(sql, 5.0)
        assert len(workers(sql)) == 2


@pytest.mark.promise("T2", "D6")
def test_a_lock_held_by_another_session_does_not_keep_a_worker_alive(
    worker: StartWorker, sql: psycopg.Connection, database: str
) -> None:
    leader, victim = (worker(CLUSTER, options=FORKED, env=settings()) for _ in range(2))
    have_announced(sql, 2)
    name = worker_lock_scope("horsies") + incarnation(victim)
    with psycopg.connect(database, autocommit=True) as other_session:
        assert row(other_session, "select pg_try_advisory_lock(hashtextextended(%s, 0))", name) == (False,)
        other_session.execute("select pg_advisory_lock_shared(hashtextextended(%s, 0))", [name])
        victim.kill()
        leader.wait_for_log(f"worker {incarnation(victim)} declared dead: no heartbeat for")
