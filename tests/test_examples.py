"""The examples, run as a reader would run them: with a real worker beside them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from httpx import ASGITransport, AsyncClient
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import URL

from tests.fixtures.apps import load_fresh
from tests.fixtures.journey import column, row
from tests.fixtures.workers import StartWorker

ROOT = Path(__file__).parents[1]


def sqlalchemy_url(database: str) -> str:
    parts = {name: str(value) for name, value in conninfo_to_dict(database).items() if value is not None}
    where = {name: parts[name] for name in ("host", "port") if name in parts}
    made = URL.create(
        "postgresql+psycopg", parts.get("user"), parts.get("password"), database=parts["dbname"], query=where
    )
    return made.render_as_string(hide_password=False)


def run(*words: str, database_url: str) -> str:
    """What a Python process prints; it must end well."""
    env = {**os.environ, "HORSIES_DATABASE_URL": database_url, "DATABASE_URL": database_url}
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=env, capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr, done.stderr
    return done.stdout


def test_the_script(worker: StartWorker, database: str) -> None:
    worker("examples.script:app")
    assert run("-m", "examples.script", database_url=database).splitlines() == [
        "'a horse, a horse' has 4 words",
        "'my kingdom for a horse' has 5 words",
        "'': NO_TEXT, there is nothing to count",
    ]


def test_the_workflow(worker: StartWorker, database: str) -> None:
    worker("examples.workflow:app")
    assert run("-m", "examples.workflow", database_url=database).splitlines() == [
        "18 letters; NO_DICTIONARY",
        "[2, 7, 3, 1, 5]",
        "letters",
        "├─ words  COMPLETED",
        "│  └─ lengths (for each item)  COMPLETED",
        "│     └─ letters  COMPLETED",
        "├─ translation  FAILED",
        "└─ report ← after letters, translation  COMPLETED",
    ]


async def test_the_fastapi_endpoint(worker: StartWorker, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORSIES_DATABASE_URL", database)
    example = load_fresh("fastapi_endpoint", ROOT / "examples")
    transport = ASGITransport(example.api)
    async with example.lifespan(example.api), AsyncClient(transport=transport, base_url="http://localhost") as client:
        ordered = [await client.post("/reports", params={"year": year}) for year in (2026, 1066)]
        assert [answer.status_code for answer in ordered] == [202, 202]
        report, none = (f"/reports/{answer.json()['task_id']}" for answer in ordered)
        early = await client.get(report)
        assert (early.status_code, early.json()) == (202, {"status": "not yet"})
        worker("examples.fastapi_endpoint:app")
        done = await client.get(report, params={"wait_ms": 20_000})
        assert (done.status_code, done.json()) == (200, {"status": "done", "rows": 52})
        failed = await client.get(none, params={"wait_ms": 20_000})
        assert (failed.status_code, failed.json()) == (422, {"detail": "NO_DATA: nothing is known of 1066"})
        unknown = await client.get("/reports/00000000-0000-7000-8000-000000000000")
        assert unknown.status_code == 404


def test_the_sqlalchemy_outbox(worker: StartWorker, database: str, sql: psycopg.Connection) -> None:
    url = sqlalchemy_url(database)
    worker("examples.sqlalchemy_outbox:app", env={"DATABASE_URL": url})
    printed = run("-m", "examples.sqlalchemy_outbox", database_url=url)
    assert printed.splitlines() == ["order 1 of a saddle is confirmed", "TASK_NOT_FOUND"]
    assert sql.execute("select item, confirmed from orders").fetchall() == [("saddle", True)]
    assert column(sql, "select args::text from horsies.all_tasks") == ['{"order_id":1}']


VISIT = """
import json
from django.test import Client
from examples.django_view import app, confirm_order, create_table

create_table()
client = Client(SERVER_NAME="localhost")
placed = client.post("/orders", {"item": "saddle"})
done = app.handle(placed.json()["task"], confirm_order).get(timeout_ms=20_000)
refused = client.post("/orders", {"item": "sleigh"})
print(json.dumps([placed.status_code, done.unwrap(), refused.status_code]))
"""


def test_the_django_view(worker: StartWorker, database: str, sql: psycopg.Connection) -> None:
    worker("examples.django_view:app", env={"DATABASE_URL": database})
    printed = run("-c", VISIT, database_url=database)
    assert json.loads(printed) == [201, "order 1 of a saddle is confirmed", 409]
    assert sql.execute("select item, confirmed from shop_order").fetchall() == [("saddle", True)]
    assert row(sql, "select count(*) from horsies.all_tasks") == (1,)
