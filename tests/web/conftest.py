"""Dashboards that a real uvicorn serves, and browsers without a browser."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import uvicorn

from horsies import AppConfig, Horsies
from horsies.web import dashboard
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
