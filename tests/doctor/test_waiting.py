"""Why the tasks of a queue wait: when it may be called blocked, and what makes it late. And what is no fault."""

import json
from typing import Any

import psycopg
import pytest

from horsies.doctor.findings import CheckContext, Finding, FindingCode, Severity
from horsies.model.config import CustomQueueConfig
from tests.doctor.conftest import Doctor, add_worker
from tests.fixtures.journey import ME, OTHER, row

ADD_RUNNING = """
    insert into horsies.tasks (task_name, queue_name, timeout_ms, status, claimed_by, claimed_at, started_at)
    select %(name)s, %(queue)s, %(timeout_ms)s, 'RUNNING', %(worker)s, now(), now() - %(seconds)s * interval '1 second'
    from generate_series(1, %(count)s)
    returning id::text
"""
ADD_WAITING = """
    insert into horsies.tasks (task_name, queue_name, enqueued_at)
    select 'add', %(queue)s, now() - %(seconds)s * interval '1 second' from generate_series(1, %(count)s)
"""
ADD_MINUTE = """
    insert into horsies.task_minutes (minute, queue_name, task_name, completed, failed, cancelled, expired, retried, waited, ran)
    values (
        date_trunc('minute', now()) - %(ago)s * interval '1 minute', %(queue)s, %(name)s, %(count)s, 0, 0, 0, 0,
        array_fill(0, array[27]), array_fill(0, array[%(bucket)s - 1]) || %(count)s::integer || array_fill(0, array[27 - %(bucket)s])
    )
"""
ADD_ENDED = """
    insert into horsies.finished (id, task_name, queue_name, priority, status, args, sent_at, enqueued_at, attempts, claim_no, started_at, finished_at)
    select gen_random_uuid(), %(name)s, 'default', 100, 'COMPLETED', '{}', now(), now(), 1, 1, now() - %(seconds)s * interval '1 second', now()
    from generate_series(1, %(count)s)
"""


def run_for(
    sql: psycopg.Connection,
    seconds: float,
    *,
    name: str = "hang",
    queue: str = "default",
    worker: str = ME,
    timeout_ms: int | None = None,
    count: int = 1,
) -> str:
    values = {"name": name, "queue": queue, "worker": worker, "seconds": seconds, "timeout_ms": timeout_ms}
    return str(sql.execute(ADD_RUNNING, {**values, "count": count}).fetchall()[0][0])


def wait_for(sql: psycopg.Connection, seconds: float, *, queue: str = "default", count: int = 1) -> None:
    sql.execute(ADD_WAITING, {"queue": queue, "seconds": seconds, "count": count})


def usually(sql: psycopg.Connection, seconds: float, *, name: str = "hang", count: int = 1) -> None:
    sql.execute(ADD_ENDED, {"name": name, "seconds": seconds, "count": count})


def minute(sql: psycopg.Connection, ago: int, bucket: int, *, name: str = "hang", count: int = 1) -> None:
    """Tasks that ran for less than 2 ** (bucket - 1) ms."""
    sql.execute(ADD_MINUTE, {"ago": ago, "queue": "default", "name": name, "count": count, "bucket": bucket})


def only(doctor: Doctor, **thresholds: Any) -> Finding:
    found = doctor(**thresholds)
    assert len(found.codes) == 1, found.codes
    (finding,) = [each for each in found.report.findings if each.code in found.codes]
    return finding


# -- blocked


def test_a_queue_is_blocked_seconds_after_a_task_exceeds_what_is_usual(
    healthy: psycopg.Connection, doctor: Doctor
) -> None:
    usually(healthy, 0.1)
    hung = run_for(healthy, 6)
    wait_for(healthy, 6)
    found = only(doctor)
    assert (found.code, found.severity) == (FindingCode.QUEUE_BLOCKED, Severity.ERROR)
    assert found.data["task_id"] == hung
    assert found.data["usual_s"] == pytest.approx(0.128)
    assert f"queue 'default' is blocked by hang ({hung}), which runs for 6" in found.seen
    assert "it usually takes less than 128 ms" in found.seen
    assert f"`horsies tasks cancel {hung}`" in found.fix


@pytest.mark.parametrize(("ran_s", "codes"), [(1_000, set[FindingCode]()), (2_000, {FindingCode.QUEUE_BLOCKED})])
def test_the_statistics_of_the_day_say_what_is_usual(
    healthy: psycopg.Connection, doctor: Doctor, ran_s: float, codes: set[FindingCode]
) -> None:
    minute(healthy, 1_400, 20, count=95)  # 524 s
    minute(healthy, 10, 25, count=5)  # hours: one in 20 does not count
    minute(healthy, 5, 24, name="other", count=100)
    run_for(healthy, ran_s)
    wait_for(healthy, 10)
    assert doctor(max_run_s=1e9).codes == codes


def test_a_task_of_which_no_run_is_known_is_given_half_a_minute(healthy: psycopg.Connection, doctor: Doctor) -> None:
    assert CheckContext(schema="").blocking_after_s == 30
    run_for(healthy, 400)
    wait_for(healthy, 20)
    assert doctor(blocking_after_s=500).codes == set()
    found = only(doctor)
    assert (found.code, found.severity) == (FindingCode.QUEUE_BLOCKED, Severity.WARNING)
    assert "how long it usually takes is not known" in found.seen


def test_a_queue_is_not_blocked_while_a_slot_is_free_or_changes_hands(
    healthy: psycopg.Connection, doctor: Doctor
) -> None:
    usually(healthy, 0.1)
    healthy.execute("update horsies.workers set processes = 2, concurrency = 2")
    run_for(healthy, 60, count=3)
    wait_for(healthy, 20)
    assert doctor().codes == set()
    run_for(healthy, 1)
    assert doctor(overdue_after_s=30).codes == set()
    run_for(healthy, 60)
    assert only(doctor).data["count"] == 4


def test_tasks_of_another_queue_may_hold_the_slots(healthy: psycopg.Connection, doctor: Doctor) -> None:
    usually(healthy, 0.1)
    add_worker(healthy, "default", "others", worker=OTHER)
    run_for(healthy, 60, worker=ME)
    run_for(healthy, 60, worker=OTHER, queue="others")
    wait_for(healthy, 20)
    assert doctor().codes == {FindingCode.QUEUE_BLOCKED}
    add_worker(healthy)  # with a free slot
    assert doctor().codes == set()


def test_queues_of_the_same_workers_are_one_finding(healthy: psycopg.Connection, doctor: Doctor) -> None:
    healthy.execute("update horsies.workers set queues = array['default', 'mail']")
    usually(healthy, 0.1)
    run_for(healthy, 60)
    wait_for(healthy, 20)
    wait_for(healthy, 30, queue="mail")
    found = only(doctor)
    assert found.data["queues"] == ["default", "mail"]
    assert "queues 'default', 'mail' are blocked by hang" in found.seen


def test_a_cap_may_be_held_too(healthy: psycopg.Connection, doctor: Doctor) -> None:
    usually(healthy, 0.1)
    healthy.execute("update horsies.workers set processes = 8")
    run_for(healthy, 60, count=2)
    wait_for(healthy, 20)
    assert doctor().codes == set()
    assert "its cap of 2 is taken" in only(doctor, queues=[CustomQueueConfig(name="default", max_concurrency=2)]).seen
    healthy.execute("insert into horsies.queues (name, max_concurrency) values ('default', 1)")
    assert "its cap of 1 is taken" in only(doctor).seen


def test_what_is_claimed_in_advance_waits_too(healthy: psycopg.Connection, doctor: Doctor) -> None:
    usually(healthy, 0.1)
    run_for(healthy, 60)
    wait_for(healthy, 20)
    healthy.execute(
        "update horsies.tasks set status = 'CLAIMED', claimed_by = %s, claimed_at = now(), lease_until = now() + interval '1 minute' "
        "where status = 'PENDING'",
        [ME],
    )
    assert doctor().codes == {FindingCode.QUEUE_BLOCKED}


def test_hand_written_times_do_not_break_the_check(healthy: psycopg.Connection, doctor: Doctor) -> None:
    run_for(healthy, 60)
    healthy.execute("update horsies.tasks set started_at = '-infinity'")
    wait_for(healthy, 20)
    assert FindingCode.CHECK_FAILED not in doctor().codes


# -- late


def flow(sql: psycopg.Connection, name: str, bucket: int, count: int) -> None:
    """So many tasks have ended in each of the last five minutes that are in the statistics."""
    sql.execute(
        "insert into horsies.minutes_until (minute) values (date_trunc('minute', now())) on conflict do nothing"
    )
    for ago in range(1, 6):
        minute(sql, ago, bucket, name=name, count=count)


def test_a_queue_is_late_because_there_are_too_few_slots(healthy: psycopg.Connection, doctor: Doctor) -> None:
    flow(healthy, "add", 10, 50)
    run_for(healthy, 1, name="add")
    wait_for(healthy, 90, count=30)
    wait_for(healthy, 20, count=70)
    found = only(doctor)
    assert found.code is FindingCode.LAGGING
    assert {**found.data, "oldest_s": 0} == {
        "queue": "default", "oldest_s": 0, "waiting": 100, "cause": "too_few_slots", "slots": 1, "busy": 1,
        "arrived_per_minute": 70, "ended_per_minute": 50,
    }  # fmt: skip
    assert "the only slot of its worker is taken; in a minute 70 become due and 50 end" in found.seen


def test_a_queue_is_late_but_catching_up(healthy: psycopg.Connection, doctor: Doctor) -> None:
    flow(healthy, "add", 10, 50)
    run_for(healthy, 1, name="add")
    wait_for(healthy, 90, count=30)
    found = only(doctor)
    assert (found.code, found.data["cause"]) == (FindingCode.LAGGING, "catching_up")


def test_a_queue_is_late_because_of_its_cap(healthy: psycopg.Connection, doctor: Doctor) -> None:
    healthy.execute("update horsies.workers set processes = 8")
    healthy.execute("insert into horsies.queues (name, max_concurrency) values ('default', 2)")
    run_for(healthy, 1, name="add", count=2)
    wait_for(healthy, 90)
    found = only(doctor)
    assert (found.data["cause"], found.data["cap"]) == ("cap", 2)
    assert "its cap of 2 is reached" in found.seen


def test_a_queue_is_late_because_of_one_slow_task(healthy: psycopg.Connection, doctor: Doctor) -> None:
    flow(healthy, "add", 7, 50)  # 50 ms
    flow(healthy, "render", 16, 2)  # 25 s
    run_for(healthy, 20, name="render")
    wait_for(healthy, 90, count=1_200)
    found = only(doctor)
    assert (found.data["cause"], found.data["task_name"]) == ("slow_task", "render")
    assert "task 'render' takes 9" in found.seen


def test_a_queue_is_late_although_slots_are_free(healthy: psycopg.Connection, doctor: Doctor) -> None:
    wait_for(healthy, 90)
    found = only(doctor)
    assert (found.code, found.data["cause"]) == (FindingCode.LAGGING, "free_slots")
    assert "only 0 of the 1 slots of its workers are taken" in found.seen


def test_a_queue_that_was_late_for_long_has_one_finding(healthy: psycopg.Connection, doctor: Doctor) -> None:
    wait_for(healthy, 3_600)
    assert only(doctor).code is FindingCode.WAITING_LONG
    usually(healthy, 0.1)
    run_for(healthy, 60)
    assert doctor().codes == {FindingCode.QUEUE_BLOCKED}


# -- no fault


def test_a_busy_system_has_no_findings(healthy: psycopg.Connection, doctor: Doctor) -> None:
    """Short backlogs, tasks that run for an hour with a time limit, delayed and retried tasks, a single failure."""
    healthy.execute("update horsies.workers set processes = 4")
    usually(healthy, 0.1, name="add", count=100)
    run_for(healthy, 3_000, name="import_feed", timeout_ms=2 * 3_600_000, count=2)
    run_for(healthy, 0.1, name="add", count=2)
    wait_for(healthy, 4, count=500)
    healthy.execute(
        "insert into horsies.tasks (task_name, ready, enqueued_at) values ('add', false, now() + interval '1 day')"
    )
    healthy.execute(
        "insert into horsies.tasks (task_name, ready, enqueued_at, attempts, failed_attempts) values ('add', false, now() + interval '1 minute', 1, "
        """array['{"attempt" : 1, "error_code" : "BROKEN", "error" : {"message": "no paper"}}']::json[])"""
    )
    healthy.execute("insert into horsies.queues (name, paused_at) values ('empty', now() - interval '1 day')")
    assert doctor().codes == set()


def test_long_tasks_that_are_usual_block_nothing(healthy: psycopg.Connection, doctor: Doctor) -> None:
    """All slots are taken for an hour, and tasks wait for half a minute: that is how such a queue works."""
    minute(healthy, 300, 23)  # 70 minutes
    run_for(healthy, 3_000, timeout_ms=2 * 3_600_000)
    wait_for(healthy, 30, count=3)
    assert doctor().codes == set()


def test_a_deployment_is_no_finding(healthy: psycopg.Connection, doctor: Doctor) -> None:
    """New workers with another version and other queues beside old ones, a producer that is ahead, and a leader that has just left."""
    add_worker(healthy, "default", "new", worker=OTHER, version="0.2.0")
    healthy.execute("update horsies.workers set started_at = now() - interval '1 minute' where id = %s", [OTHER])
    healthy.execute("update horsies.workers set queues = array['default', 'old'] where id = %s", [ME])
    healthy.execute("delete from horsies.maintenance_lease")
    healthy.execute("insert into horsies.minutes_until (minute) values (now() - interval '1 minute')")
    healthy.execute(
        "insert into horsies.tasks (task_name, ready, unknown_since) values ('gift', false, now() - interval '20 seconds')"
    )
    queues = [CustomQueueConfig(name="default"), CustomQueueConfig(name="new")]
    found = doctor(queues=queues)
    assert found.codes == {FindingCode.TASKS_UNKNOWN}
    (unknown,) = [each for each in found.report.findings if each.code is FindingCode.TASKS_UNKNOWN]
    assert unknown.severity is Severity.INFO
    healthy.execute("update horsies.workers set started_at = now() - interval '1 hour'")
    healthy.execute("update horsies.tasks set unknown_since = now() - interval '2 minutes'")
    healthy.execute("update horsies.minutes_until set minute = now() - interval '5 minutes'")
    found = doctor(queues=queues)
    assert found.codes == {
        FindingCode.TASKS_UNKNOWN,
        FindingCode.WORKER_VERSIONS_DIFFER,
        FindingCode.QUEUE_UNKNOWN,
        FindingCode.LEADER_MISSING,
    }
    assert found.report.severity is Severity.ERROR


# -- tasks whose processes die


CRASH = (
    """{"attempt" : 1, "error_code" : "WORKER_CRASHED", "error" : {"error_code":"WORKER_CRASHED","message":"%s","data":null}, """
    """"worker" : "%s", "started_at" : "2030-01-01T00:00:00+00:00", "ended_at" : "2030-01-01T00:00:01+00:00"}"""
)
CHILD_DIED = "the child process (pid 7) was killed by SIGSEGV while it ran this task"
WORKER_DIED = f"worker {OTHER} died while it ran this task"


def add_crashes(sql: psycopg.Connection, *messages: str) -> None:
    attempts = [CRASH % (message, ME) for message in messages]
    sql.execute(
        "insert into horsies.tasks (task_name, ready, enqueued_at, attempts, failed_attempts) "
        "values ('parse', false, now() + interval '1 hour', %s, %s::json[])",
        [len(attempts), attempts],
    )


def test_a_task_that_kills_children_is_named_with_the_signal_and_the_worker(
    healthy: psycopg.Connection, doctor: Doctor
) -> None:
    add_crashes(healthy, CHILD_DIED)
    found = only(doctor)
    assert (found.code, found.severity) == (FindingCode.CHILDREN_CRASHING, Severity.WARNING)
    add_crashes(healthy, CHILD_DIED, CHILD_DIED)
    found = only(doctor)
    assert found.severity is Severity.ERROR
    assert (found.data["task_name"], found.data["deaths"], found.data["worker_id"]) == ("parse", 3, ME)
    (task,) = row(healthy, "select id::text from horsies.tasks where attempts = 2")
    assert found.data["task_id"] == task
    assert (
        "the last on here pid 1 at 2030-01-01 00:00:01+0000: WORKER_CRASHED: the child process (pid 7) was killed by SIGSEGV"
        in found.seen
    )


def test_a_task_is_not_blamed_for_the_death_of_its_worker_unless_it_happens_again(
    healthy: psycopg.Connection, doctor: Doctor
) -> None:
    add_crashes(healthy, WORKER_DIED)
    healthy.execute("insert into horsies.tasks (task_name, child_deaths) values ('waited', 1)")
    healthy.execute(
        "insert into horsies.finished (id, task_name, queue_name, priority, status, args, error_code, error, sent_at, enqueued_at, attempts, claim_no, "
        "finished_at) values (gen_random_uuid(), 'add', 'default', 100, 'FAILED', '{}', 'WORKER_CRASHED', %s::json, now(), now(), 1, 1, now())",
        [json.dumps({"error_code": "WORKER_CRASHED", "message": WORKER_DIED})],
    )
    assert doctor().codes == set()
    add_crashes(healthy, WORKER_DIED, WORKER_DIED)
    assert only(doctor).data["deaths"] == 2
