"""The port of a small project from Celery: both versions do the same, and the page shows the difference between them."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from fastapi import FastAPI
from httpx import ASGITransport, AsyncBaseTransport, AsyncClient, AsyncHTTPTransport, Response

from horsies import Horsies
from tests.fixtures.eventually import eventually
from tests.fixtures.workers import StartWorker

ROOT = Path(__file__).parents[1]
PRICES = {"north": 1200, "south": 900, "west": 1500}


class Suppliers(ThreadingHTTPServer):
    """The suppliers of the shop. North fails the first time that it is asked for a product, and none has a unicorn."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.asked = Counter[str]()
        self.announced: list[Any] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answer(BaseHTTPRequestHandler):
    @property
    def suppliers(self) -> Suppliers:
        assert isinstance(self.server, Suppliers)
        return self.server

    def do_GET(self) -> None:
        supplier, product = self.path.strip("/").split("/")
        self.suppliers.asked[self.path] += 1
        fails = product == "unicorn" or (supplier == "north" and self.suppliers.asked[self.path] == 1)
        self._answer(503 if fails else 200, {"cents": PRICES[supplier]})

    def do_POST(self) -> None:
        self.suppliers.announced.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._answer(200, {})

    def _answer(self, status: int, body: object) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the parameter there
        """Print nothing."""


@pytest.fixture
def suppliers() -> Generator[Suppliers]:
    with Suppliers() as server:
        thread = threading.Thread(target=server.serve_forever, name="suppliers")
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class Shop:
    """One of the two versions, as its users see it."""

    def __init__(self, transport: AsyncBaseTransport, base_url: str, run_schedule: Callable[[], object]) -> None:
        self.transport = transport
        self.base_url = base_url
        self.run_schedule = run_schedule

    def request(self, method: str, path: str) -> Response:
        async def answer() -> Response:
            async with AsyncClient(transport=self.transport, base_url=self.base_url) as client:
                return await client.request(method, path)

        return asyncio.run(answer())

    def order(self, product: str) -> str:
        answer = self.request("POST", f"/comparisons?product={product}")
        assert answer.status_code == 202
        return f"/comparisons/{answer.json()['id']}"

    def wait_for(self, place: str) -> tuple[int, Any]:
        def ended() -> tuple[int, Any] | None:
            answer = self.request("GET", place)
            return None if answer.status_code == 202 else (answer.status_code, answer.json())

        found = eventually(ended, timeout_s=40, what="the comparison has ended")
        assert found is not None
        return found


@contextmanager
def celery_shop(suppliers: Suppliers) -> Generator[Shop]:
    """In a process of its own: a worker of Celery changes the logging of its process."""
    if find_spec("celery") is None:
        pytest.skip("celery is not installed; `make test` installs it")
    env = {**os.environ, "SUPPLIERS_URL": suppliers.url}
    command = [sys.executable, "-m", "tests.apps.celery_shop"]
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = f"http://127.0.0.1:{process.stdout.readline().strip()}"
            yield Shop(AsyncHTTPTransport(), url, lambda: httpx.post(f"{url}/schedule").raise_for_status())
        finally:
            process.kill()


@contextmanager
def horsies_shop(suppliers: Suppliers, worker: StartWorker, database: str) -> Generator[Shop]:
    """A worker with its scheduler, and the API in this process."""
    options = ("--scheduler", "--concurrency=4")
    worker("examples.celery_port.after.app:app", options=options, env={"SUPPLIERS_URL": suppliers.url})
    api: FastAPI = import_module("examples.celery_port.after.api").api
    app: Horsies = import_module("examples.celery_port.after.app").app
    app.use_database(database)
    eventually(app.ops.list_schedules, what="the schedule is stored")
    yield Shop(ASGITransport(api), "http://shop", partial(app.ops.run_schedule, "compare-all"))
    app.close()


@pytest.fixture(params=["before", "after"])
def shop(request: pytest.FixtureRequest, suppliers: Suppliers) -> Generator[Shop]:
    if request.param == "before":
        with celery_shop(suppliers) as made:
            yield made
    else:
        with horsies_shop(suppliers, *map(request.getfixturevalue, ("worker", "database"))) as made:
            yield made


def test_the_best_offer_is_chosen_although_a_supplier_fails_once(shop: Shop, suppliers: Suppliers) -> None:
    best = {"supplier": "south", "cents": 900}
    assert shop.wait_for(shop.order("saddle")) == (200, best)
    assert suppliers.asked == {"/north/saddle": 2, "/south/saddle": 1, "/west/saddle": 1}
    eventually(lambda: suppliers.announced, what="the offer is announced")
    assert suppliers.announced == [{"product": "saddle", **best}]


def test_a_comparison_fails_when_a_supplier_always_does(shop: Shop, suppliers: Suppliers) -> None:
    status, body = shop.wait_for(shop.order("unicorn"))
    assert status == 502
    assert "503" in body["detail"]
    assert suppliers.asked.total() == 3 * 3
    assert suppliers.announced == []


def test_the_schedule_compares_all_products(shop: Shop, suppliers: Suppliers) -> None:
    shop.run_schedule()
    eventually(lambda: len(suppliers.announced) == 2, timeout_s=30, what="both products are announced")
    assert {each["product"] for each in suppliers.announced} == {"saddle", "bridle"}


@pytest.mark.parametrize("shop", ["after"], indirect=True)
def test_only_the_new_version_knows_which_comparisons_exist(shop: Shop) -> None:
    assert shop.request("GET", f"/comparisons/{uuid4()}").status_code == 404
