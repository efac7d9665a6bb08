"""docs/fastapi.md, from the first step to the last: the file is saved, the commands run, and print what the page says."""

import json
import re
import signal
import sys
from contextlib import closing
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from horsies import AppConfig, Horsies, PostgresConfig
from horsies.contrib.asgi import lifespan
from horsies.testing import drain_async, open_sandbox
from horsies.web import dashboard
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import row
from tests.fixtures.web import fetch, free_port
from tests.fixtures.workers import READY, Program
from tests.test_tutorial import BLOCK, Reader, folder

__all__ = ["folder"]

PAGE = Path(__file__).parents[1] / "docs" / "fastapi.md"
STEPS_MAX = 8
UNKNOWN = "01932f0e-0000-7000-8000-000000000000"


@pytest.mark.timeout(180)
def test_the_page(folder: Path) -> None:
    page = PAGE.read_text()
    blocks = list(BLOCK.finditer(page))
    commands = [
        line
        for each in blocks
        if each["kind"] == "console"
        for line in re.findall(r"^\$ (.+)$", each["text"], re.MULTILINE)
    ]
    assert [command.split()[0] for command in commands] == ["pip", "horsies", "uvicorn", "curl", "curl"]
    assert len(commands) + 1 <= STEPS_MAX
    reader = Reader(folder)
    source, _ = [each for each in blocks if each["kind"] == "python"]
    reader.save(source["title"], source["text"])
    port = free_port()
    with closing(Program(*commands[1].split()[1:], "--no-web", env=reader.env, cwd=reader.shop)) as dev:
        dev.wait_for_log(READY, 60)
        uvicorn = Path(sys.executable).parent / "uvicorn"
        served = Program(*commands[2].split()[1:], f"--port={port}", env=reader.env, cwd=reader.shop, script=uvicorn)
        try:
            eventually(lambda: fetch(port, "/docs").status == 200, 30, seen=lambda: served.logs)
            _order_and_follow(f"http://127.0.0.1:{port}")
            served.signal(signal.SIGTERM)
            served.process.wait(30)
        finally:
            served.close()


def _order_and_follow(address: str) -> None:
    with httpx.Client(base_url=address, timeout=30) as client:
        task_id = client.post("/reports?year=2026").json()["id"]
        assert client.get(f"/reports/{task_id}?wait_ms=20000").json() == {"rows": 52}
        assert client.get(f"/reports/{UNKNOWN}").status_code == 404
        refused = client.post("/reports?year=1999").json()["id"]
        assert "NO_DATA" in client.get(f"/reports/{refused}?wait_ms=20000").text
        events = client.get(f"/reports/{client.post('/reports?year=2026').json()['id']}/events").text
        assert events.endswith("event: done\ndata: 1\n\n")
        fractions = [
            json.loads(line.removeprefix("data: ")) for line in events.splitlines() if line.startswith("data: ")
        ]
        assert fractions == sorted(fractions)
        assert "EventSource" in client.get(f"/reports/{task_id}/page").text
        assert client.get("/horsies/").status_code == 200


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_the_rows_of_a_request_and_its_tasks_are_committed_together(
    driver: str, database: str, sql: psycopg.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source,) = [each for each in BLOCK.finditer(PAGE.read_text()) if each["title"] == "orders.py"]
    (tmp_path / "orders.py").write_text(source["text"])
    monkeypatch.setenv("DATABASE_URL", database.replace("postgresql://", f"postgresql+{driver}://", 1))
    spec = spec_from_file_location("orders", tmp_path / "orders.py")
    assert spec
    assert spec.loader
    orders: Any = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "orders", orders)
    spec.loader.exec_module(orders)
    try:
        async with orders.engine.begin() as connection:
            await connection.run_sync(orders.Base.metadata.create_all)
        transport = httpx.ASGITransport(orders.api)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            task_id = (await client.post("/orders?item=saddle")).json()["id"]
            assert (await client.post("/orders?item=sleigh")).status_code == 409
        assert sql.execute("select item from orders").fetchall() == [("saddle",)]
        assert sql.execute("select id::text from horsies.tasks").fetchall() == [(task_id,)]
        with open_sandbox(orders.app, database):
            assert len(await drain_async()) == 1
            assert (await orders.app.handle(task_id, orders.confirm).get_async(0)).unwrap() == "a saddle"
    finally:
        await orders.app.close_async()
        await orders.engine.dispose()


async def test_the_lifespan_closes_the_connections_of_the_app_and_of_its_dashboard(
    database: str, sql: psycopg.Connection
) -> None:
    app = Horsies(AppConfig(broker=PostgresConfig(database_url=database)))
    jobs = dashboard(app)
    api = Starlette(routes=[Mount("/horsies", jobs)], lifespan=lifespan(app, jobs))
    others = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    async with api.router.lifespan_context(api):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://localhost") as client:
            assert (await client.get("/horsies/")).status_code == 200
        assert await app.handle(UNKNOWN).status_async() is None
        assert row(sql, others)[0] >= 2, "the dashboard has a pool of its own"
    eventually(lambda: row(sql, others) == (0,), 10)
