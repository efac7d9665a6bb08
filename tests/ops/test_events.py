"""What has happened lately: tasks and workflows that ended, workers, and actions; listed by `app.ops` and `horsies events`, and followed."""

import json
import re
import signal
from collections.abc import Generator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from horsies.ops import events
from horsies.testing import Sandbox, drain, open_sandbox
from tests.apps import failing
from tests.cli.conftest import run
from tests.fixtures.everything import Everything, add_failure
from tests.fixtures.proxies import Proxy
from tests.fixtures.workers import Program
from tests.ops.test_statistics import plan

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture
def sandbox(database: str) -> Generator[Sandbox]:
    with open_sandbox(failing.app, database) as opened:
        yield opened


@pytest.mark.usefixtures("sandbox")
def test_what_ended_and_what_was_done_is_listed_in_order_without_what_is_sensitive(database: str) -> None:
    ops = failing.app.ops.acting_as("alice")
    done, secret = failing.charge.send(1), failing.charge_secretly.send("4711")
    drain(limit=2)
    ops.pause_queue("mail")
    found = ops.list_events(since=LONG_AGO)
    assert [(each.kind, each.id, each.name, each.outcome, each.error_code, each.message) for each in found[:2]] == [
        ("task", done.task_id, "charge", "COMPLETED", None, None),
        ("task", secret.task_id, "charge_secretly", "FAILED", "DECLINED", None),
    ]
    assert (found[2].kind, found[2].name, found[2].message) == ("action", "mail", "pause queue by alice")
    assert all(each.took_s is not None and each.took_s >= 0 and each.queue == "default" for each in found[:2])
    for words in ([], ["--json"], ["--failed"], ["--task=charge_secretly"]):
        assert "4711" not in run("events", *words, database_url=database).out


def test_filters_select_and_the_newest_stay(everything: Everything) -> None:
    listed = run("events", "--since=2020-01-01", "--limit=2000", "--json", database_url=everything.database_url)
    found = listed.json["events"]
    assert [each["at"] for each in found] == sorted(each["at"] for each in found)
    assert {each["kind"] for each in found} == {"task", "workflow", "worker", "action"}
    assert {each["outcome"] for each in found if each["kind"] == "worker"} == {"STARTED", "DIED"}
    failed = run(
        "events", "--since=2020-01-01", "--failed", "--limit=2000", "--json", database_url=everything.database_url
    )
    assert {each["outcome"] for each in failed.json["events"]} == {"FAILED", "DIED"}
    payments = run("events", "--since=2020-01-01", "--queue=payments", "--json", database_url=everything.database_url)
    assert {each["queue"] for each in payments.json["events"]} == {"payments"}
    few = run("events", "--since=2020-01-01", "--limit=3", "--json", database_url=everything.database_url)
    assert few.json["events"] == found[-3:]


@pytest.mark.parametrize(("failures", "index"), [(False, "timezone_idx"), (True, "timezone_id_idx")])
def test_ended_tasks_are_read_by_an_index_from_the_newest_on(
    *, failures: bool, index: str, sql: psycopg.Connection
) -> None:
    sql.execute("set enable_seqscan = off; set enable_bitmapscan = off; set enable_sort = off")  # the table is empty
    since = datetime.now(UTC) - timedelta(minutes=10)
    text = plan(sql, events.query(since, limit=10, failures=failures, task_name=None, queue_name=None, sensitive=[]))
    assert "Seq Scan on finished" not in text
    assert re.search(rf"Index Scan Backward using finished_\w*{index}", text), text


def test_following_shows_what_happens_once_and_through_an_outage(proxy: Proxy, sql: psycopg.Connection) -> None:
    def fail(name: str) -> str:
        return add_failure(sql, datetime.now(UTC), name, "payments", {}, "BANK_DOWN", "the bank does not answer")

    before = fail("before")
    following = Program("events", "--follow", "--json", env={"HORSIES_DATABASE_URL": proxy.url})
    try:
        following.wait_for_log(before, 30)
        during = fail("during")
        following.wait_for_log(during, 30)
        proxy.cut()
        following.wait_for_log("no answer from the database, trying again", 30)
        missed = fail("missed")
        proxy.heal()
        following.wait_for_log(missed, 60)
        last = fail("last")
        following.wait_for_log(last, 30)
        following.signal(signal.SIGINT)
        assert following.wait() == 0
    finally:
        following.close()
    shown = [json.loads(line) for line in following.logs if line.startswith("{")]
    assert [each["id"] for each in shown] == [before, during, missed, last]
    assert shown[0]["message"] == "the bank does not answer"
