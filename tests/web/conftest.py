"""Dashboards that a real uvicorn serves, and browsers without a browser."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import psycopg
import pytest
import pytest_asyncio
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from horsies import AppConfig, Horsies
from horsies.web import dashboard
from tests.fixtures.everything import Everything, fill, keep_alive
from tests.fixtures.server import DatabaseServer
from tests.fixtures.web import free_port


@asynccontextmanager
async def serving(application: Any, **options: Any) -> AsyncGenerator[str]:
    """Serve an application on a free port, and yield its address."""
    port = free_port()
    settings: dict[str, Any] = {"log_config": None, "timeout_graceful_shutdown": 2, "proxy_headers": False, **options}
    server = uvicorn.Server(uvicorn.Config(application, port=port, **settings))
    task = asyncio.create_task(server.serve())
    try:
        while not server.started:
            assert not task.done()
            await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task


@dataclass
class Visitor:
    """What a browser does, without its scripts: keeps cookies, names its origin, sends the forms of pages."""

    client: httpx.AsyncClient
    prefix: str = ""
    headers: dict[str, str] = field(default_factory=dict[str, str])

    async def get(self, path: str, **options: Any) -> httpx.Response:
        return await self.client.get(self.prefix + path, **options)

    async def token(self, path: str = "/") -> str:
        page = await self.get(path)
        found = re.search(r'name="csrf" value="([^"]+)"', page.text)
        assert found, page.text
        return found[1]

    async def post(self, path: str, *, token: str | None = None, page: str = "/", **data: Any) -> httpx.Response:
        """Send a form with the token of a page."""
        csrf = await self.token(page) if token is None else token
        headers = {"Origin": str(self.client.base_url).rstrip("/"), **self.headers}
        return await self.client.post(self.prefix + path, data={"csrf": csrf, **data}, headers=headers)

    async def log_in(self, name: str, password: str) -> httpx.Response:
        return await self.post("/login", page="/login", name=name, password=password)


Browse = Callable[..., AbstractAsyncContextManager[Visitor]]


@pytest.fixture
async def app(database: str) -> AsyncGenerator[Horsies]:
    found = Horsies(AppConfig.for_database_url(database))
    found.broker.ensure_schema_initialized()
    yield found
    await found.broker.close_async()


@pytest.fixture
async def visit(app: Horsies) -> AsyncGenerator[Callable[..., Any]]:
    """Serve a dashboard with these options, and return a visitor of it."""
    async with AsyncExitStack() as stack:

        async def start(**options: Any) -> Visitor:
            address = await stack.enter_async_context(serving(dashboard(app, **options)))
            return Visitor(await stack.enter_async_context(httpx.AsyncClient(base_url=address)))

        yield start


async def send_raw(address: str, request: bytes, *, timeout_s: float = 20.0) -> bytes:
    """Send bytes to a server, and return all that it answers until it closes the connection."""
    host, _, port = address.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        async with asyncio.timeout(timeout_s):
            return await reader.read()
    finally:
        writer.close()


# -- for browsers: their fixtures belong to the event loop of the session


@pytest.fixture(scope="module")
def _filled(server: DatabaseServer) -> Generator[Everything]:
    name = server.create_migrated()
    try:
        yield fill(server.url(name))
    finally:
        server.drop(name)


@pytest.fixture
def filled(_filled: Everything) -> Everything:
    """One of everything, in a database that the tests of a module share. Its workers count as living from now on."""
    with psycopg.connect(_filled.database_url, autocommit=True) as sql:
        keep_alive(sql)
    return _filled


Serve = Callable[..., AbstractAsyncContextManager[str]]


@pytest_asyncio.fixture(loop_scope="session")
async def serve() -> Serve:
    """`async with serve(database_url, prefix="/horsies", authorize=...) as address`: a dashboard, or one that is mounted under a prefix."""

    @asynccontextmanager
    async def start(database_url: str, *, prefix: str = "", **options: Any) -> AsyncGenerator[str]:
        app = Horsies(AppConfig.for_database_url(database_url))
        served: Any = dashboard(app, **options)
        try:
            async with serving(Starlette(routes=[Mount(prefix, served)]) if prefix else served) as address:
                yield address + prefix
        finally:
            await served.close()
            await app.broker.close_async()

    return start
