"""The HTTP endpoints of a worker."""

import socket
import sys
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from horsies.cli.main import main
from horsies.worker.health import HealthCheck, endpoints
from tests.fixtures.apps import load_fresh
from tests.fixtures.eventually import eventually
from tests.fixtures.proxies import Proxy
from tests.fixtures.web import Response, fetch, free_port
from tests.fixtures.workers import StartWorker
from tests.worker.steps import PATIENCE_MS, begun


@pytest.fixture
def watched(database: str, monkeypatch: pytest.MonkeyPatch) -> Generator[Any]:
    monkeypatch.setenv("HORSIES_DATABASE_URL", database)
    module = load_fresh("watched")
    yield module
    module.app.close()


def test_a_scrape_counts_exactly_how_the_tasks_ended(watched: Any, worker: StartWorker, tmp_path: Path) -> None:
    port = free_port()
    worker("tests.apps.watched:app", options=(f"--metrics-port={port}",))
    handles = [watched.add.send(1, n) for n in range(3)]
    handles += [watched.fail.send(), watched.crash.send(), watched.crash_once.send(str(tmp_path / "mark"))]
    for handle in handles:
        handle.get(PATIENCE_MS)
    # A waiter may read an ending before the worker has received the result of its batch, and counts it.
    eventually(lambda: ended(fetch(port, "/metrics").samples()) == len(handles), what="all endings are counted")
    seen = fetch(port, "/metrics").samples()

    def of(name: str, task: str, **labels: str) -> float | None:
        written = ",".join(
            f'{key}="{value}"' for key, value in sorted({"task": task, "queue": "default", **labels}.items())
        )
        return seen.get(f"horsies_{name}{{{written}}}")

    assert of("tasks_ended_total", "add", status="COMPLETED") == 3
    assert of("tasks_ended_total", "fail", status="FAILED") == 1
    assert of("tasks_ended_total", "crash", status="FAILED") == 1
    assert of("tasks_ended_total", "crash_once", status="COMPLETED") == 1
    assert [of("tasks_started_total", task) for task in ("add", "fail", "crash", "crash_once")] == [3, 1, 1, 2]
    assert [of("tasks_claimed_total", task) for task in ("add", "fail", "crash", "crash_once")] == [3, 1, 1, 2]
    assert [of("tasks_crashed_total", task) for task in ("add", "crash", "crash_once")] == [None, 1, 1]
    assert [of("tasks_retried_total", task) for task in ("crash", "crash_once")] == [None, 1]
    assert [of("task_duration_seconds_count", task) for task in ("add", "crash_once")] == [3, 2]
    assert seen["horsies_children_died_total"] == 2
    assert seen['horsies_task_wait_seconds_count{queue="default"}'] == 7
    assert seen['horsies_queue_waiting{queue="default"}'] == 0
    assert seen["horsies_worker_slots"] == 1
    assert seen["horsies_worker_children_memory_bytes"] > 1e6
    assert seen["horsies_database_up"] == 1


def ended(seen: Mapping[str, float]) -> float:
    return sum(count for name, count in seen.items() if name.startswith("horsies_tasks_ended_total"))


def test_a_worker_is_ready_unless_its_database_is_unavailable_or_it_is_stopping(
    basic: Any, worker: StartWorker, proxy: Proxy, tmp_path: Path
) -> None:
    port = free_port()
    running = worker("tests.apps.watched:app", options=(f"--metrics-port={port}",), database_url=proxy.url)
    assert fetch(port, "/readyz") == Response(200, '{"status": "ready", "reasons": []}\n')
    proxy.cut()
    eventually(lambda: fetch(port, "/readyz").status == 503)
    (reason,) = fetch(port, "/readyz").json["reasons"]
    assert "the database has not answered" in reason
    assert fetch(port, "/healthz").status == 200
    eventually(lambda: fetch(port, "/metrics").samples()["horsies_database_up"] == 0)
    proxy.heal()
    eventually(lambda: fetch(port, "/readyz").status == 200)
    running.terminate()
    assert fetch(port, "/healthz").status == 0


def test_a_worker_that_waits_for_its_last_task_is_alive_but_not_ready(
    basic: Any, worker: StartWorker, tmp_path: Path
) -> None:
    port = free_port()
    running = worker(options=(f"--metrics-port={port}", "--metrics-host=127.0.0.1"))
    basic.gate.send(str(tmp_path / "begun"), str(tmp_path / "open"))
    begun(tmp_path / "begun")
    running.process.terminate()
    running.wait_for_log("shutdown: claiming no more")
    assert fetch(port, "/readyz").json["reasons"] == ["the worker is stopping"]
    assert fetch(port, "/healthz").json == {"status": "alive"}
    assert fetch(port, "/metrics").samples()["horsies_worker_running"] == 1
    (tmp_path / "open").touch()
    assert running.wait() == 0


def test_a_worker_that_waits_for_its_database_is_alive_but_not_ready(worker: StartWorker) -> None:
    port = free_port()
    worker(options=(f"--metrics-port={port}",), database_url="postgresql://127.0.0.1:1/nothing", until_ready=False)
    eventually(lambda: fetch(port, "/healthz").status == 200)
    assert fetch(port, "/readyz").json["reasons"] == ["the database has not been reached yet"]


@pytest.mark.parametrize("command", ["worker", "scheduler"])
def test_a_port_that_is_taken_is_reported_in_one_line(command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        invoked = CliRunner().invoke(
            main, [command, "tests.apps.basic:app", f"--metrics-port={port}", "--metrics-host=127.0.0.1"]
        )
    assert invoked.exit_code == 1
    assert invoked.output == (
        f"Error: cannot listen on 127.0.0.1 port {port}: Address already in use; "
        "choose another --metrics-port or --metrics-host\n"
    )


def test_without_the_extra_metrics_say_what_to_install(monkeypatch: pytest.MonkeyPatch, basic: Any) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "horsies.contrib.prometheus", raising=False)
    port = free_port()
    with endpoints(basic.app, HealthCheck(), host="127.0.0.1", port=port):
        answer = fetch(port, "/metrics")
        assert fetch(port, "/healthz").status == 200
    assert answer.status == 501
    assert "horsies[prometheus]" in answer.text
