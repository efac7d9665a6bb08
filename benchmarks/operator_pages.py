"""Pages of the dashboard, and one that only does `select 1`, served by a real uvicorn in a thread of its own."""

import threading
import time
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from http.client import HTTPConnection
from urllib.parse import quote

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from horsies import AppConfig, Horsies
from horsies.db.statement import Statement, rows
from horsies.model.config import PostgresConfig
from horsies.ops.api import Ops
from horsies.ops.statistics import ErrorGroup
from horsies.web import dashboard

PREFIX = "/horsies"


class Pages:
    """A browser without scripts, with one connection."""

    def __init__(self, port: int) -> None:
        self._connection = HTTPConnection("127.0.0.1", port)

    def close(self) -> None:
        self._connection.close()

    def get(self, path: str) -> None:
        self._connection.request("GET", path)
        response = self._connection.getresponse()
        text = response.read()
        if response.status != 200:
            raise RuntimeError(f"{path}: {response.status}: {text[:500]!r}")

    def select_one(self) -> None:
        self.get("/select-one")


@contextmanager
def serve_pages(url: str, select_one: Statement) -> Generator[Pages]:
    """Serve the dashboard of a database."""
    app = Horsies(AppConfig(broker=PostgresConfig(database_url=url, pool_max_size=1)))

    async def show_one(_request: Request) -> PlainTextResponse:
        return PlainTextResponse(str(await app.broker.run_async(partial(rows, select_one()))))

    routes = [
        Route("/select-one", show_one),
        Mount(PREFIX, dashboard(app)),
    ]
    server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), port=0, log_config=None))
    thread = threading.Thread(target=server.run, name="pages")
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        with closing(Pages(port)) as pages:
            yield pages
    finally:
        server.should_exit = True
        thread.join()


def page_paths(ops: Ops, group: ErrorGroup, workflow: str) -> Mapping[str, str]:
    """The pages to open, with what is on them."""
    (failed,) = ops.list_tasks(group.to_filter(), limit=1).tasks
    worker = ops.list_workers()[3].id
    paths = {
        "overview": "/",
        "tasks": "/tasks",
        "failed tasks": "/tasks?statuses=FAILED",
        "tasks of a queue": "/tasks?queue_name=queue_3",
        "tasks by message": "/tasks?message=needle",
        "a task": f"/tasks/{failed.id}",
        "errors": "/errors",
        "workflows": "/workflows",
        "workflow of 2 000 nodes": f"/workflows/{workflow}",
        "schedules": "/schedules",
        "a schedule": "/schedules/schedule_7",
        "queues": "/queues",
        "a queue": "/queues/queue_3",
        "workers": "/workers",
        "a worker": f"/workers/{worker}",
        "doctor": "/doctor",
        "audit": "/audit",
    }
    return {f"page: {name}": PREFIX + quote(path, safe="/?=&") for name, path in paths.items()}
