"""The dashboard in a Django project, for those who are logged in to Django.

    # mysite/asgi.py
    from horsies.contrib.django.dashboard import mount

    application = mount(get_asgi_application(), "/horsies")

Staff with the permission to view tasks may read, and those with `horsies.operate` may act. Superusers have both.
"""

# pyright: basic
# (Django comes without types)

from contextlib import suppress
from importlib import import_module
from typing import Any
from urllib.parse import quote

from django.conf import global_settings, settings
from django.contrib.auth import get_user
from django.db import close_old_connections
from django.http import HttpRequest
from django.shortcuts import resolve_url
from django.urls import NoReverseMatch, reverse
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from horsies.contrib.django.application import the_app
from horsies.web import Role, User, dashboard
from horsies.web.dashboard import Dashboard

VIEW, OPERATE = "horsies.view_taskrecord", "horsies.operate"


def authorize(request: Request) -> User | Response | None:
    """Return the user of a request by its session of Django, or a redirect to the login. For `dashboard(app, authorize=authorize)`."""
    close_old_connections()
    try:
        engine = import_module(settings.SESSION_ENGINE)
        request_of_django = HttpRequest()
        request_of_django.session = engine.SessionStore(request.cookies.get(settings.SESSION_COOKIE_NAME))
        user: Any = get_user(request_of_django)
        if user.is_active and user.is_staff and user.has_perm(OPERATE):
            return User(user.get_username(), Role.OPERATOR)
        if user.is_active and user.is_staff and user.has_perm(VIEW):
            return User(user.get_username(), Role.READ_ONLY)
        if user.is_authenticated or request.method != "GET":
            return None
        return RedirectResponse(f"{_login_url()}?next={quote(request.url.path)}", 303)
    finally:
        close_old_connections()


def _login_url() -> str:
    """Return the login of the project; that of the admin if the project has not set one."""
    if settings.LOGIN_URL == global_settings.LOGIN_URL:
        with suppress(NoReverseMatch):
            return reverse("admin:login")
    return resolve_url(settings.LOGIN_URL)


def mount(application: Any, prefix: str = "/horsies", **options: Any) -> "MountedDashboard":
    """Return an ASGI application that serves the dashboard under this prefix, and everything else by Django.

    `options` are those of `horsies.web.dashboard`; users log in to Django unless they have another `authorize`.
    """
    if not prefix.startswith("/") or prefix.endswith("/"):
        raise ValueError(f"prefix is {prefix!r}; write it with a slash in front and none behind, as in '/horsies'")
    return MountedDashboard(dashboard(the_app(), **{"authorize": authorize, **options}), application, prefix)


class MountedDashboard:
    """An ASGI application: the dashboard under a prefix, and another application."""

    def __init__(self, shown: Dashboard, application: Any, prefix: str) -> None:
        self.dashboard = shown
        self._application = application
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.dashboard(scope, receive, send)  # Django has none
            return
        root = scope.get("root_path", "")
        path = scope.get("path", "").removeprefix(root)
        if path == self._prefix or path.startswith(f"{self._prefix}/"):
            await self.dashboard({**scope, "root_path": root + self._prefix}, receive, send)
        else:
            await self._application(scope, receive, send)
