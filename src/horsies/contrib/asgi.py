"""Starlette, FastAPI, Litestar and other ASGI frameworks: close what an app has opened when the application ends."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from horsies.app import Horsies

if TYPE_CHECKING:
    from horsies.web.dashboard import Dashboard


def lifespan(app: Horsies, *dashboards: "Dashboard") -> Callable[[object], AbstractAsyncContextManager[None]]:
    """Return the lifespan of an application that sends: `FastAPI(lifespan=lifespan(app))`. Dashboards that are mounted in it are closed, too."""

    @asynccontextmanager
    async def run(_application: object) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            for close in (app.close_async, *(each.close for each in dashboards)):
                stack.push_async_callback(close)
            yield

    return run
