"""How many connections each process holds, as docs/deployment.md says for sizing."""

import math
import re
import threading
from collections import Counter
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.fixtures.eventually import eventually
from tests.fixtures.web import fetch, free_port
from tests.fixtures.workers import Program, StartWorker
from tests.worker.steps import begun, insert, wait_until_ended

PAGE = Path(__file__).parents[2] / "docs" / "deployment.md"
IN_USE = "select application_name from pg_stat_activity where datname = current_database() and application_name like 'horsies %'"


def documented(process: str) -> dict[str, int]:
    """The most connections of each kind that the page allows a process."""
    found = re.findall(rf"^\| {process} \| (`.+)\|$", PAGE.read_text(), re.MULTILINE)
    assert found
    return {name: int(most) for name, most in re.findall(r"`horsies (\w+)` (\d+)", found[0])}


@pytest.mark.parametrize("process", ["worker", "scheduler", "dashboard"])
def test_the_sums_of_the_page_are_right(process: str) -> None:
    kinds = documented(process)
    (in_all,) = re.findall(rf"^\| {process} \| `.+\| (\d+) \|$", PAGE.read_text(), re.MULTILINE)
    assert sum(kinds.values()) - kinds["migrations"] == int(in_all)


def test_the_example_of_the_page_is_right() -> None:
    text = PAGE.read_text().replace("\N{MULTIPLICATION SIGN}", "*")
    (terms, result) = re.findall(r"web processes with `pool_max_size=4`: ([\d *+]+) = (\d+)\.", text)[0]
    assert sum(math.prod(map(int, term.split("*"))) for term in terms.split("+")) == int(result)


@contextmanager
def highest(database: str) -> Generator[Callable[[], Counter[str]]]:
    """Watch the server inside the block: the most connections of each kind that were open at one moment."""
    seen: Counter[str] = Counter()
    is_over = threading.Event()

    def watch() -> None:
        with psycopg.connect(database, autocommit=True) as sql:
            while not is_over.wait(0.01):
                names = [name.removeprefix("horsies ") for (name,) in sql.execute(IN_USE)]
                seen.update({name: max(0, count - seen[name]) for name, count in Counter(names).items()})

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield lambda: seen
    finally:
        is_over.set()
        watcher.join()


def check(seen: Counter[str], process: str, *, reached: set[str]) -> None:
    most = documented(process)
    assert {name: count for name, count in seen.items() if count > most.get(name, 0)} == {}
    assert {name: seen[name] for name in reached} == {name: most[name] for name in reached}


def test_a_worker_and_its_scheduler(
    worker: StartWorker, database: str, sql: psycopg.Connection, tmp_path: Path
) -> None:
    port = free_port()
    with highest(database) as seen:
        running = worker(processes=6, options=("--scheduler", f"--metrics-port={port}"))
        gates = [(tmp_path / f"begun {number}", tmp_path / f"until {number}") for number in range(6)]
        for at, until in gates:
            insert(sql, "gate", begun=str(at), until=str(until))
        for at, _ in gates:
            begun(at)
        # Batches that cannot go on: more tasks end, and each asks for a batch of its own.
        with sql.transaction():
            sql.execute("lock table horsies.tasks in access exclusive mode")
            for number, (_, until) in enumerate(gates):
                until.touch()
                wanted = min(number + 1, documented("worker")["worker"])
                eventually(lambda wanted=wanted: seen()["worker"] >= wanted, what=f"{wanted} batches are sent")
        wait_until_ended(sql, len(gates))
        assert fetch(port, "/metrics").status == 200
        found = seen()
    running.terminate()
    check(found, "worker", reached={"worker", "heartbeat", "maintenance", "listener", "scheduler"})


def test_a_scheduler(database: str) -> None:
    with highest(database) as seen:
        program = Program("scheduler", "tests.apps.scheduled:app", env={"HORSIES_DATABASE_URL": database})
        try:
            program.wait_for_log("scheduler is ready")
            eventually(lambda: {"scheduler", "listener"} <= seen().keys(), what="it is connected")
            found = seen()
        finally:
            program.close()
    check(found, "scheduler", reached={"scheduler", "listener"})


def test_a_dashboard(database: str, sql: psycopg.Connection) -> None:
    port, pages = free_port(), ["/", "/tasks", "/errors", "/queues", "/workers", "/workflows", "/schedules", "/doctor"]
    with highest(database) as seen, ThreadPoolExecutor(24) as visitors:
        program = Program("web", "tests.apps.basic:app", f"--port={port}", env={"HORSIES_DATABASE_URL": database})
        try:
            eventually(lambda: fetch(port, "/tasks").status == 200, 30.0, what="it serves")
            with sql.transaction():
                sql.execute("lock table horsies.tasks in access exclusive mode")
                asked = [visitors.submit(fetch, port, page) for page in pages * 3]
                wanted = documented("dashboard")["dashboard"] - 1  # one is for the test of notifications
                eventually(lambda: seen()["dashboard"] >= wanted, what="its pool is full", seen=seen)
            assert {each.result().status for each in asked} <= {200, 503}
            found = seen()
        finally:
            program.close()
    check(found, "dashboard", reached=set())
