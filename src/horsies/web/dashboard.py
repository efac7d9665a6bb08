"""`dashboard`: routes, and what happens around every request."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from horsies.app import Horsies
from horsies.web.actions import ACTIONS, Action, Form, FormError
from horsies.web.live import LiveUpdates
from horsies.web.pages import FILTERS, PAGES, TOPICS
from horsies.web.security import Role, User
from horsies.web.view import Flash, Page, Payloads, Renderer, View


def dashboard(app: Horsies, *, payloads: Payloads = "show") -> ASGIApp:
    """Make the dashboard of an app."""
    return _Dashboard(app, payloads).application


class _Dashboard:
    def __init__(self, app: Horsies, payloads: Payloads) -> None:
        self._app = app
        self._renderer = Renderer(app.name, payloads, FILTERS)
        self._live = LiveUpdates(app.ops.acting_as("dashboard"), self._renderer, TOPICS)
        self._flashes: dict[str, Flash] = {}
        self.application = Starlette(
            routes=[
                *(Route(page.path, self._page(page), methods=["GET"]) for page in PAGES),
                *(Route(f"/actions/{action.name}", self._action(action), methods=["POST"]) for action in ACTIONS),
                Route("/live/{topic}", self._stream, methods=["GET"]),
                Route("/static/{version}/{path:path}", self._static, methods=["GET"]),
            ],
            lifespan=self._lifespan,
        )

    @asynccontextmanager
    async def _lifespan(self, _application: Starlette) -> AsyncGenerator[None]:
        yield
        await self._app.broker.close_async()

    def _view(self, request: Request, flash: Flash | None = None) -> View:
        user = User("local", Role.OPERATOR)
        return View(request, self._app.ops.acting_as(user.name), user, "token", self._renderer, flash)

    def _page(self, page: Page):
        async def show(request: Request) -> Response:
            return await page.show(self._view(request, self._flashes.pop("local", None)))

        return show

    def _action(self, action: Action):
        async def act(request: Request) -> Response:
            form = Form(parse_qs((await request.body()).decode()))
            view = self._view(request)
            try:
                self._flashes["local"] = await action.act(view, form)
            except FormError as error:
                self._flashes["local"] = Flash("error", str(error))
            return RedirectResponse(view.url(form.optional("back") or "/"), 303)

        return act

    async def _stream(self, request: Request) -> Response:
        topic = self._live.topics.get(request.path_params["topic"])
        if topic is None:
            return PlainTextResponse("not found", 404)
        prefix = request.scope.get("root_path", "").rstrip("/")
        events = self._live.stream(topic, prefix, dict(request.query_params))
        return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    async def _static(self, request: Request) -> Response:
        file = self._renderer.static_files.get(request.path_params["path"])
        if file is None:
            return PlainTextResponse("not found", 404)
        return Response(
            file.content,
            headers={"Content-Type": file.media_type, "Cache-Control": "public, max-age=31536000, immutable"},
        )
