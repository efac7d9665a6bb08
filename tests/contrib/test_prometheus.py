"""What producers count, what every process can ask, and what the pages, the board and the alerts say of it."""

import json
import re
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import psycopg
import pytest
from prometheus_client import CollectorRegistry

from horsies import PostgresConfig, events
from horsies.contrib import prometheus
from horsies.db.broker import PostgresBroker
from horsies.events import ScheduleSlotDecided, TasksClaimed
from horsies.tasks import queues
from tests.fixtures.eventually import eventually

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `(?P<name>horsies_\w+)` \| (?P<kind>\w+) \|(?P<labels>[^|]*)\| [^|]+ \|$", re.MULTILINE)


@pytest.fixture
def registry() -> Generator[CollectorRegistry]:
    before = list(events.subscribers)
    yield CollectorRegistry()
    events.subscribers[:] = before


def test_a_producer_counts_its_sends_and_tells_how_its_queues_are(
    basic: Any, registry: CollectorRegistry, sql: psycopg.Connection
) -> None:
    prometheus.instrument(basic.app, registry=registry)
    prometheus.instrument(basic.app, registry=registry)
    basic.add.send_many([basic.add.call(1, n) for n in range(3)])
    basic.add.schedule(600, 1, 2)
    sql.execute("update horsies.tasks set enqueued_at = now() - interval '1 minute' where ready")
    basic.app.pause_queue("default")
    queue = {"queue": "default"}
    assert registry.get_sample_value("horsies_tasks_sent_total", {"task": "add", **queue}) == 4
    assert registry.get_sample_value("horsies_send_duration_seconds_count", queue) == 2
    assert registry.get_sample_value("horsies_queue_waiting", queue) == 3
    assert registry.get_sample_value("horsies_queue_paused", queue) == 1
    assert registry.get_sample_value("horsies_queue_in_flight", queue) == 0
    oldest = registry.get_sample_value("horsies_queue_oldest_seconds", queue)
    assert oldest is not None
    assert 60 <= oldest < 120
    assert registry.get_sample_value("horsies_worker_slots") is None


def test_the_oldest_is_found_in_any_priority_and_the_count_has_an_end(
    basic: Any, sql: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "MAX_COUNTED", 5)
    sql.execute(
        "insert into horsies.tasks (task_name, priority, enqueued_at) "
        "select 'add', n, now() - n * interval '1 hour' from generate_series(1, 9) as n"
    )
    (depth,) = basic.app.broker.run(lambda: queues.get_queue_depths(["default"]))
    assert depth.waiting == 5
    assert 9 * 3600 <= depth.oldest_s < 9 * 3600 + 60


def test_an_empty_queue_beside_a_long_one_is_not_looked_for_in_all_of_it(sql: psycopg.Connection) -> None:
    sql.execute("insert into horsies.tasks (task_name, queue_name) select 'add', 'long' from generate_series(1, 5000)")
    sql.execute("analyze horsies.tasks")
    query = queues.SQL["get_queue_depths"](queues=["long", "empty"], counted=100, priorities=100)
    plan = sql.execute(b"explain " + query.statement.for_schema("horsies"), query.params).fetchall()
    assert not [line for (line,) in plan if "Seq Scan on tasks" in line]


def test_names_that_no_app_knows_share_one_label(basic: Any, registry: CollectorRegistry) -> None:
    prometheus.instrument(basic.app, registry=registry)
    for name in ("made up", "also made up"):
        events.emit(TasksClaimed(name, "default", 1))
    labels = {"task": "(other)", "queue": "default"}
    assert registry.get_sample_value("horsies_tasks_claimed_total", labels) == 2


def test_connections_in_use_and_callers_that_wait_for_one_are_reported(
    basic: Any, registry: CollectorRegistry, database: str
) -> None:
    prometheus.instrument(basic.app, registry=registry)
    broker = PostgresBroker(PostgresConfig(database_url=database, pool_min_size=1, pool_max_size=1))
    with broker, basic.app.using(broker), ThreadPoolExecutor(1) as threads:
        assert registry.get_sample_value("horsies_pool_connections") == 1
        assert registry.get_sample_value("horsies_pool_connections_free") == 1
        with broker.pools.blocking_pool().connection():
            assert registry.get_sample_value("horsies_pool_connections_free") == 0
            sending = threads.submit(basic.add.send, 1, 2)
            eventually(lambda: registry.get_sample_value("horsies_pool_callers_waiting"), what="it waits")
        assert sending.result()


def test_slots_of_schedules_are_counted_by_what_became_of_them(basic: Any, registry: CollectorRegistry) -> None:
    prometheus.instrument(basic.app, registry=registry)
    for outcome in ("ENQUEUED", "MISSED", "ENQUEUED"):
        events.emit(ScheduleSlotDecided("report", outcome))
    assert registry.get_sample_value("horsies_schedule_slots_total", {"outcome": "ENQUEUED"}) == 2


# -- pages, board, alerts


def exported() -> dict[str, tuple[str, set[str]]]:
    """Every metric with its kind, and with the names of its series."""
    registry = CollectorRegistry()
    prometheus.EventCounters(registry)
    found: dict[str, tuple[str, set[str]]] = {}
    for family in [*registry.collect(), *prometheus.StateCollector().describe()]:
        match family.type:
            case "counter":
                found[f"{family.name}_total"] = family.type, {f"{family.name}_total"}
            case "histogram":
                found[family.name] = family.type, {f"{family.name}_{end}" for end in ("bucket", "sum", "count")}
            case _:
                found[family.name] = family.type, {family.name}
    return found


def test_the_page_lists_every_metric_and_no_other() -> None:
    listed = {row["name"]: row["kind"] for row in ROW.finditer((ROOT / "docs" / "monitoring.md").read_text())}
    assert listed == {name: kind for name, (kind, _) in exported().items()}


def test_the_page_lists_every_event_with_its_fields() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    listed = re.findall(r"^\| `([A-Z]\w+)` \| [^|`]+ \|([^|]*)\|$", page, re.MULTILINE)
    made = {kind.__name__: ", ".join(each.name for each in fields(kind)) for kind in get_args(events.Event)}
    assert {name: words.strip() for name, words in listed} == made


@pytest.mark.parametrize("path", ["deploy/grafana/horsies.json", "deploy/prometheus/horsies-alerts.yml"])
def test_the_board_and_the_alerts_ask_for_nothing_that_is_not_exported(path: str) -> None:
    series = set[str]().union(*(names for _, names in exported().values()))
    asked = set(re.findall(r"\bhorsies_\w+", (ROOT / path).read_text()))
    assert asked
    assert asked - series == set()


def test_the_board_can_be_imported() -> None:
    board = json.loads((ROOT / "deploy" / "grafana" / "horsies.json").read_text())
    assert board["id"] is None
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert all(target["expr"] for panel in panels for target in panel["targets"])
