"""`dashboard`: its routes, and what happens around every request.

All routes are made in `Dashboard._routes`, and each but the static files, the login and its form goes through `_guard`, which finds out who the user is. Every POST
goes through `_with_form` before that: only there are forms read, and their size, origin and token checked.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import re
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Final, TypeAlias, cast
from urllib.parse import parse_qs

from anyio import to_thread
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from horsies.app import Horsies
from horsies.db.broker import PostgresBroker
from horsies.model.errors import BrokerError, HorsiesError, NodeNotFoundError, NotPermittedError
from horsies.ops.api import Ops
from horsies.web.actions import ACTIONS, Action, Form, FormError, Jobs
from horsies.web.live import LiveUpdates, TooManyStreamsError
from horsies.web.pages import FILTERS, PAGES, TOPICS
from horsies.web.security import (
    PEER,
    Authorize,
    Credential,
    Credentials,
    LoginLimits,
    Network,
    Role,
    Sessions,
    Signer,
    User,
    client_address,
    host_of,
    is_embedded_elsewhere,
    is_from_this_site,
    is_in,
    is_local,
    new_cookie,
    parse_networks,
    valid_cookie,
)
from horsies.web.task_pages import ACTIONS as TASK_ACTIONS
from horsies.web.view import Flash, Page, Payloads, Renderer, View

AUTHORIZE_TIMEOUT_S: Final = 15.0
PAGE_TIMEOUT_S: Final = 15.0  # for what a page reads; the statement that runs then is cancelled
ACTION_TIMEOUT_S: Final = 60.0
STATEMENT_TIMEOUT_MS: Final = 60_000  # if this process cannot cancel them any more
CONNECT_TIMEOUT_S: Final = 5
POOL_SIZE: Final = 8
MAX_FORM: Final = 256 * 1024  # bytes
MAX_FIELDS: Final = 2_000
FORM_TIMEOUT_S: Final = 10.0  # to receive a form
REFUSED_FORM_TIMEOUT_S: Final = 1.0  # the same for one that was refused before it was read
MAX_URL: Final = 8 * 1024  # bytes of the path and the query
MAX_HEADERS: Final = 32 * 1024  # bytes; a server may let through more if they arrive at once
MAX_FLASH: Final = 2_000  # bytes: browsers keep cookies of up to 4096, and this one is longer by half
TRACE_URL: Final = re.compile(r"https?://[^\s{}]+\{trace_id\}[^\s{}]*")
HASHING: Final = 2  # passwords at a time: each takes memory and a CPU

CSP: Final = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
HEADERS: Final = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",  # for browsers that do not know frame-ancestors
    "Referrer-Policy": "same-origin",  # with no-referrer, browsers would not name the origin of forms either
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
NOT_CONFIGURED: Final = (
    "This dashboard has no authentication, so it answers only requests from its own machine, for localhost. Mounted in another application: "
    "dashboard(app, authorize=...). On its own: horsies web --password-file FILE, or --trust-header with --trusted-proxy."
)

log = logging.getLogger("horsies.web")

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
Handler: TypeAlias = Callable[[View], Awaitable[Response]]


def dashboard(
    app: Horsies,
    *,
    authorize: Authorize | None = None,
    credentials: Sequence[Credential] = (),
    payloads: Payloads = "show",
    proxies: Iterable[str] = (),
    allowed_hosts: Iterable[str] = (),
    secret: str | None = None,
    trace_url: str | None = None,
) -> Dashboard:
    """Make the dashboard of an app: an ASGI application, to mount under any prefix or to serve alone.

    `authorize` gets each request (Starlette's `Request`) and returns a `User`, None to refuse it, or a response, such as a redirect to your login. It may be
    async; if not, it runs in a thread. Or users log in with `credentials` (`read_credentials`). Without either, requests are answered
    only if they come from this machine.

    `payloads` shows, masks or hides arguments, results and data of errors. `proxies` are addresses whose X-Forwarded-For and X-Forwarded-Proto are believed.
    `allowed_hosts`: the names that the Host header may have, if given. `secret` signs the tokens of forms; give it, or set $HORSIES_WEB_SECRET, if
    several processes serve one dashboard. `trace_url` is where traces are shown, such as `https://jaeger.example/trace/{trace_id}`.
    """
    if authorize is not None and credentials:
        raise ValueError("give authorize or credentials: one of them decides who may use the dashboard")
    if payloads not in {"show", "mask", "hide"}:
        raise ValueError(f"payloads is 'show', 'mask' or 'hide', not {payloads!r}")
    if trace_url is not None and not TRACE_URL.fullmatch(trace_url):
        raise ValueError(
            f"trace_url is an address with {{trace_id}}, such as https://jaeger.example/trace/{{trace_id}}, not {trace_url!r}"
        )
    secret = secret or os.environ.get("HORSIES_WEB_SECRET")
    if secret and len(secret) < 32:  # noqa: PLR2004 - what secrets.token_hex(16) has
        raise ValueError("secret is too short to be one; take secrets.token_hex(32)")
    return Dashboard(
        app,
        Renderer(app.name, payloads, FILTERS, trace_url),
        authorize=authorize,
        credentials=Credentials(credentials) if credentials else None,
        proxies=parse_networks(proxies),
        allowed_hosts=frozenset(host.lower() for host in allowed_hosts),
        signer=Signer(secret.encode() if secret else None),
    )


class Dashboard:
    """The ASGI application."""

    def __init__(
        self,
        app: Horsies,
        renderer: Renderer,
        *,
        authorize: Authorize | None,
        credentials: Credentials | None,
        proxies: Sequence[Network],
        allowed_hosts: frozenset[str],
        signer: Signer,
    ) -> None:
        self._app = app
        self._renderer = renderer
        self._authorize = authorize
        self._credentials = credentials
        self._proxies = proxies
        self._allowed_hosts = allowed_hosts
        self._signer = signer
        self._sessions = Sessions()
        self._limits = LoginLimits()
        self._hashing = asyncio.Semaphore(HASHING)
        self._broker: PostgresBroker | None = None
        self._jobs = Jobs(lambda: self.live.refresh())  # noqa: PLW0108 - it has the topic of jobs, so it is made after them
        self.live = LiveUpdates(self._read_ops, renderer, [*TOPICS, self._jobs.topic])
        self.routes = self._routes()
        self._router = Starlette(routes=self.routes, lifespan=self._lifespan)

    def _routes(self) -> list[Route]:
        """Return all routes. The last one answers what no other does, so that only users can find out which pages exist."""
        return [
            Route("/static/{version}/{path:path}", self._static, methods=["GET"]),
            Route("/login", self._show_login, methods=["GET"]),
            Route("/login", self._with_form(self._log_in), methods=["POST"]),
            Route("/logout", self._with_form(self._log_out), methods=["POST"]),
            *(
                Route(f"/actions/{action.name}", self._action(action), methods=["POST"])
                for action in (*ACTIONS, *TASK_ACTIONS, *self._jobs.actions)
            ),
            Route("/live/{topic}", self._guard(self._stream, is_use=False), methods=["GET"]),
            Route("/jobs", self._guard(self._jobs.show_all), methods=["GET"]),
            Route("/jobs/{job_id}", self._guard(self._jobs.show), methods=["GET"]),
            *(Route(page.path, self._page(page), methods=["GET"]) for page in PAGES),
            Route("/{path:path}", self._guard(_not_found), methods=["GET"]),
        ]

    # -- around every request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._router(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        scope = self._prepare_scope(scope)
        request = Request(scope)
        has_unread_body = _has_body(request) and scope.get("http_version", "1.1").startswith("1")
        is_small_form = request.method == "POST" and 0 < _declared_size(request) <= MAX_FORM

        async def receive_body() -> Message:
            nonlocal has_unread_body
            message = await receive()
            has_unread_body = has_unread_body and message.get("more_body", False)
            return message

        async def receive_rest() -> None:
            """Read what a client still sends: otherwise it would get a reset connection instead of the answer."""
            with suppress(TimeoutError):
                async with asyncio.timeout(REFUSED_FORM_TIMEOUT_S):
                    while has_unread_body and is_small_form:
                        await receive_body()

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                await receive_rest()
                _set_headers(message, closes=has_unread_body)  # what is not read is in the way of another request
            await send(message)

        answer = self._router if (refusal := self._refusal(request)) is None else refusal
        await answer(scope, receive_body, send_with_headers)

    def _prepare_scope(self, scope: Scope) -> Scope:
        """Return the scope of a request with what a trusted proxy says of it, and a path that begins with a slash below the prefix."""
        scope = dict(scope)
        scope["path"] = self._full_path(scope["path"], scope.get("root_path", "").rstrip("/"))
        peer = scope["client"][0] if scope.get("client") else None
        if is_in(peer, self._proxies):
            headers = Headers(scope=scope)
            # Some proxies append to the header, others add one more, after those that the client has sent.
            address = client_address(",".join(headers.getlist("x-forwarded-for")), self._proxies)
            scope[PEER] = peer
            scope["client"] = (address, 0) if address else scope["client"]
            if headers.get("x-forwarded-proto") in {"http", "https"}:
                scope["scheme"] = headers["x-forwarded-proto"]
        return scope

    def _full_path(self, path: str, prefix: str) -> str:
        """Return the path with the whole prefix, once: `FastAPI(root_path=...)` is not in the path, and uvicorn adds its own to all paths."""
        parts = prefix.split("/")
        if (
            prefix
            and f"{path}/".startswith(f"{prefix}{prefix}/")
            and all(parts[1:2] != each.path.split("/")[1:2] for each in self.routes)
        ):
            path = path.removeprefix(prefix)
        elif not f"{path}/".startswith(f"{prefix}/"):
            mounts = ("/" + "/".join(parts[first:]) for first in range(2, len(parts)))
            mount = next((mount for mount in mounts if f"{path}/".startswith(f"{mount}/")), "")
            path = prefix.removesuffix(mount) + path if mount else path
        return f"{path}/" if path == prefix else path

    def _refusal(self, request: Request) -> Response | None:
        """Return the answer to a request of which nothing else is looked at."""
        path, query, host = request.scope["path"], request.scope.get("query_string", b""), host_of(request)
        headers_size = sum(len(name) + len(value) for name, value in request.scope["headers"])
        for status, size, limit in ((414, len(path) + len(query), MAX_URL), (431, headers_size, MAX_HEADERS)):
            if size > limit:
                return PlainTextResponse("The URL or the headers are too long.", status)
        # PostgreSQL stores no such text. Names are quoted twice in paths.
        if "\0" in path or "%00" in path or b"%00" in query or not query.isascii():
            return PlainTextResponse("The URL has characters that no URL of ours has.", 400)
        if self._allowed_hosts and (host is None or host[0] not in self._allowed_hosts):
            return PlainTextResponse("This name is not one of the allowed hosts of the dashboard.", 403)
        if self._authorize is None and self._credentials is None and not is_local(request):
            return PlainTextResponse(NOT_CONFIGURED, 403)
        if is_embedded_elsewhere(request):
            return PlainTextResponse("Pages of other sites cannot load the dashboard as a part of themselves.", 403)
        return None

    @asynccontextmanager
    async def _lifespan(self, _application: Starlette) -> AsyncGenerator[None]:
        yield
        await self.close()

    async def close(self) -> None:
        """End streams and jobs, and close the connections."""
        await self.live.close()
        await self._jobs.close()
        if self._broker is not None:
            await self._broker.close_async()

    # -- who

    async def _user(self, request: Request, *, is_use: bool = True) -> User | Response | None:
        if self._authorize is not None:
            try:
                async with asyncio.timeout(AUTHORIZE_TIMEOUT_S):
                    found = await self._call_authorize(self._authorize, request)
            except HTTPException:  # an answer of a kind
                raise
            except Exception as error:
                raise AuthorizeError(repr(error)) from error
            if not isinstance(cast("object", found), User | Response | None):
                raise AuthorizeError(f"it returned {type(found).__name__} instead of a User, a Response or None")
            return found
        if self._credentials is None:
            return User("local", Role.OPERATOR)
        if (token := self._bearer(request)) is not None:
            return self._credentials.user_of_token(token)
        cookie = self._cookie(request)
        return self._sessions.user(cookie, is_use=is_use) if cookie else None

    async def _call_authorize(self, authorize: Authorize, request: Request) -> User | Response | None:
        if inspect.iscoroutinefunction(authorize) or inspect.iscoroutinefunction(type(authorize).__call__):
            found = authorize(request)
            return await found if inspect.isawaitable(found) else found
        # One that hangs keeps its thread, but not the request.
        found = await to_thread.run_sync(authorize, request, abandon_on_cancel=True)
        return await found if inspect.isawaitable(found) else found

    def _bearer(self, request: Request) -> str | None:
        """Return the token of a request by a script. No other site can make a browser send one, so it needs no token of a form.

        Only with credentials, because then it alone says who the user is.
        """
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        return token.strip() if self._credentials is not None and kind.lower() == "bearer" else None

    def _refuse(self, request: Request) -> Response:
        """Answer a request without a user."""
        if self._credentials is None:
            return PlainTextResponse("You are not allowed to use this dashboard.", 403)
        if not self._credentials.have_passwords or self._bearer(request) is not None:
            return PlainTextResponse("A valid token is required.", 401, {"WWW-Authenticate": "Bearer"})
        view = self._view(request, None)
        login = view.url("/login", next=view.path if request.method == "GET" else "/")
        if "text/event-stream" in request.headers.get("accept", ""):
            return PlainTextResponse("Log in first.", 401)
        return RedirectResponse(login, 303)

    def _cookie_name(self, request: Request, kind: str = "session") -> str:
        """Name a cookie. Cookies know no ports, so the name has it: dashboards on several ports of a machine do not replace each other's.

        With https, browsers refuse cookies of these names from pages that were sent without encryption, and `__Host-` also from subdomains.
        """
        host, prefix = host_of(request), ""
        if request.scope["scheme"] == "https":
            prefix = "__Secure-" if request.scope.get("root_path") else "__Host-"
        return f"{prefix}horsies_{kind}" + (f"_{host[1]}" if host and host[1] else "")

    def _cookie(self, request: Request) -> str | None:
        return valid_cookie(request.cookies.get(self._cookie_name(request)))

    def _set_cookie(self, request: Request, response: Response, value: str, kind: str = "session") -> None:
        path = request.scope.get("root_path", "").rstrip("/") or "/"
        response.set_cookie(
            self._cookie_name(request, kind),
            value,
            max_age=None if value else 0,
            path=path,
            secure=request.scope["scheme"] == "https",
            httponly=True,
            samesite="lax",  # a link in a chat opens the dashboard; forms have their own checks
        )

    # -- what handlers get

    def _view(self, request: Request, user: User | None) -> View:
        """Make the view of a request. A browser without a cookie gets one, which its tokens belong to."""
        cookie = self._cookie(request) or request.scope.setdefault("horsies.new_cookie", new_cookie())
        shown = user or User("anonymous")
        signed = request.cookies.get(self._cookie_name(request, "flash"))
        return View(
            request,
            self._read_ops().acting_as(shown.name),
            shown,
            self._signer.csrf_token(cookie, user.name if user else ""),
            self._renderer,
            Flash.from_text(self._signer.unsign(cookie, signed) if signed else None),
            can_log_out=user is not None and self._credentials is not None and self._bearer(request) is None,
        )

    def _read_ops(self) -> Ops:
        """Return the operations, on connections of the dashboard: its slow statements take none from the application that it is mounted in."""
        config = self._app.broker.config
        if self._broker is None or self._broker.config.database_url != config.database_url:
            own = replace(
                config,
                pool_min_size=0,
                pool_max_size=POOL_SIZE,
                connect_timeout_s=min(config.connect_timeout_s, CONNECT_TIMEOUT_S),
            )
            self._broker = PostgresBroker(own, purpose="dashboard", statement_timeout_ms=STATEMENT_TIMEOUT_MS)
        return Ops(self._app, "dashboard", broker=self._broker)

    def _guard(self, handle: Handler, *, is_use: bool = True, timeout_s: float = PAGE_TIMEOUT_S) -> Endpoint:
        """Call a handler for users only, and answer with a page whatever goes wrong in it."""

        async def answer(request: Request) -> Response:
            user = None
            try:
                found = await self._user(request, is_use=is_use)
                if isinstance(found, Response):
                    return found
                if (user := found) is None:
                    return self._refuse(request)
                async with asyncio.timeout(timeout_s):
                    view = self._view(request, user)
                    response = await handle(view)
            except Exception as error:  # noqa: BLE001 - a page that fails is shown as one, and never as a traceback
                status, message = _explain(error)
                response = self._error_page(request, status, message, user)
                response.headers.update(getattr(error, "headers", None) or {})
            return self._finish(request, response)

        return answer

    def _finish(self, request: Request, response: Response) -> Response:
        """Set the cookie of a new browser, and remove a message that was shown."""
        if "text/html" in response.headers.get("content-type", ""):
            if cookie := request.scope.get("horsies.new_cookie"):
                self._set_cookie(request, response, cookie)
            if self._cookie_name(request, "flash") in request.cookies:
                self._set_cookie(request, response, "", "flash")
        return response

    def _error_page(self, request: Request, status: int, message: str, user: User | None = None) -> Response:
        if user is None:  # without a login, no reason is shown
            is_ours = status < 500  # noqa: PLR2004 - not a failure of the server
            return PlainTextResponse(message if is_ours else "The dashboard failed. Its log has the reason.", status)
        if self._bearer(request) is not None:
            return JSONResponse({"kind": "error", "text": message}, status)
        try:
            return self._view(request, user).render("error.html", status=status, message=message, code=status)
        except Exception:
            log.exception("web: the page of an error failed")
            return PlainTextResponse(message, status)

    # -- pages

    def _page(self, page: Page) -> Endpoint:
        async def show(view: View) -> Response:
            shared = self.live.shared.of(view.ops, is_fresh=view.flash is not None, only_rare=True)
            return await page.show(replace(view, ops=shared))

        return self._guard(show if page.shares_reads else page.show)

    async def _stream(self, view: View) -> Response:
        topic = self.live.topics.get(view.path_params["topic"])
        if topic is None:
            raise HTTPException(404)
        request = view.request

        async def is_allowed() -> bool:
            return isinstance(await self._user(request, is_use=False), User)

        try:
            return self.live.open(topic, view.prefix, dict(view.query), self._owner(request, view.user), is_allowed)
        except TooManyStreamsError as error:
            return PlainTextResponse(str(error), 503, {"Retry-After": "10"})

    def _owner(self, request: Request, user: User) -> tuple[str, str]:
        """Return whose stream it is: the user, and the session."""
        return user.name, self._cookie(request) or _address(request)

    async def _static(self, request: Request) -> Response:
        file = self._renderer.static_files.get(request.path_params["path"])
        if file is None:
            return PlainTextResponse("There is no such file.", 404)
        is_current = request.path_params["version"] == self._renderer.static_version
        headers = {
            "Content-Type": file.media_type,
            "Cache-Control": "public, max-age=31536000, immutable" if is_current else "no-cache",
            "Vary": "Accept-Encoding",
        }
        if file.compressed is not None and "gzip" in request.headers.get("accept-encoding", ""):
            return Response(file.compressed, headers={**headers, "Content-Encoding": "gzip"})
        return Response(file.content, headers=headers)

    # -- forms

    def _with_form(self, handle: Callable[[Request, Form], Awaitable[Response]]) -> Endpoint:
        """Read a form that a page of ours sent. Nothing of it was read if its size or its origin is wrong."""

        async def answer(request: Request) -> Response:
            if self._bearer(request) is None and not is_from_this_site(request):
                log.warning("web: form of another site refused, from %s", _address(request))
                return PlainTextResponse("This form was sent by another site.", 403)
            form = await _read_form(request)
            return form if isinstance(form, Response) else await handle(request, form)

        return answer

    def _has_token(self, request: Request, form: Form, user: User | None) -> bool:
        given = request.headers.get("x-csrf-token") or form.optional("csrf") or ""
        cookie = self._cookie(request)
        return cookie is not None and self._signer.is_csrf_token(given, cookie, user.name if user else "")

    def _action(self, action: Action) -> Endpoint:
        async def act(request: Request, form: Form) -> Response:
            async def checked(view: View) -> Response:
                if self._bearer(request) is None and not self._has_token(request, form, view.user):
                    log.warning(
                        "web: %s refused, no valid token, by %s (%s)", action.name, view.user.name, _address(request)
                    )
                    message = "This form has expired, or it is not from a page of this dashboard. Go back, reload the page, and try again."
                    return self._error_page(request, 403, message, view.user)
                if not view.is_operator:
                    log.warning(
                        "web: %s refused, read-only, by %s (%s)", action.name, view.user.name, _address(request)
                    )
                    return self._error_page(
                        request, 403, "Your role is read-only, so you cannot change anything.", view.user
                    )
                try:
                    return await self._act(action, view, form)
                finally:
                    self.live.refresh()

            return await self._guard(checked, timeout_s=ACTION_TIMEOUT_S)(request)

        return self._with_form(act)

    async def _act(self, action: Action, view: View, form: Form) -> Response:
        try:
            flash = await action.act(view, form)
        except FormError as error:
            flash = Flash("error", str(error))
        except BrokerError as error:
            if error.retryable:
                raise
            flash = Flash("error", str(error))  # such as what the database role may not do
        except (HorsiesError, ValueError) as error:  # an id that is none, or what the operation refuses
            flash = Flash("error", str(error))
        if isinstance(flash, Response):
            log.info("web: %s by %s (%s)", action.name, view.user.name, _address(view.request))
            return flash
        # The text may have names with line breaks.
        log.info("web: %s by %s (%s): %r", action.name, view.user.name, _address(view.request), flash.text[:200])
        if self._bearer(view.request) is not None:
            to = {"to": view.url(flash.to)} if flash.to else {}
            return JSONResponse({"kind": flash.kind, "text": flash.text, **to}, 400 if flash.kind == "error" else 200)
        response = RedirectResponse(view.local_url(flash.to or form.optional("back")), 303)
        cookie = self._cookie(view.request)
        if cookie is not None:
            text = flash.to_text().encode(errors="replace")[:MAX_FLASH].decode(errors="ignore")
            self._set_cookie(view.request, response, self._signer.sign(cookie, text), "flash")
        return response

    # -- login

    async def _show_login(self, request: Request) -> Response:
        if self._credentials is None or not self._credentials.have_passwords:
            return RedirectResponse(self._view(request, None).url("/"), 303)
        return self._login_page(request, self._view(request, None).query.get("next"))

    def _login_page(self, request: Request, to: str | None, problem: str = "", status: int = 200) -> Response:
        view = self._view(request, None)
        return self._finish(request, view.render("login.html", status=status, next=to or "/", problem=problem))

    async def _log_in(self, request: Request, form: Form) -> Response:
        if self._credentials is None or not self._credentials.have_passwords:
            return PlainTextResponse("This dashboard has no passwords.", 404)
        name, password, to = form.optional("name") or "", form.optional("password") or "", form.optional("next")
        if not self._has_token(request, form, None):
            return self._login_page(request, to, "The page was too old. Try again.", 403)
        address = _address(request)
        if (wait_s := self._limits.take(address)) > 0:
            log.warning("web: login refused, too many attempts, the last one from %s", address)
            page = self._login_page(request, to, f"Too many attempts. Try again in {wait_s:.0f} s.", 429)
            page.headers["Retry-After"] = f"{wait_s + 1:.0f}"
            return page
        async with self._hashing:
            user = await asyncio.to_thread(self._credentials.user_of_password, name, password)
        if user is None:
            log.warning("web: login failed from %s", address)
            return self._login_page(request, to, "The name or the password is wrong.", 403)
        self._limits.give_back(address)
        self._end_session(self._cookie(request))
        log.info("web: %s logged in from %s", user.name, address)
        response = RedirectResponse(self._view(request, user).local_url(to), 303)
        self._set_cookie(request, response, self._sessions.start(user))
        return response

    def _end_session(self, cookie: str | None) -> None:
        if cookie is not None:
            self._sessions.end(cookie)
            self.live.end_streams_of(cookie)

    async def _log_out(self, request: Request, form: Form) -> Response:
        if self._credentials is None:
            return PlainTextResponse("This dashboard has no passwords.", 404)
        user, cookie = await self._user(request), self._cookie(request)
        if isinstance(user, User) and not self._has_token(request, form, user):
            return self._error_page(request, 403, "This form has expired. Reload the page, and try again.", user)
        self._end_session(cookie)
        response = RedirectResponse(self._view(request, None).url("/login"), 303)
        self._set_cookie(request, response, "")
        return response


def _set_headers(message: Message, *, closes: bool) -> None:
    headers = MutableHeaders(scope=message)
    headers.update(HEADERS)
    headers.setdefault("Cache-Control", "no-store")
    if closes:
        headers["Connection"] = "close"


async def _not_found(_view: View) -> Response:
    raise HTTPException(404)


def _has_body(request: Request) -> bool:
    return request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers


class AuthorizeError(Exception):
    """The application's `authorize` has failed."""


class _TooLargeError(Exception):
    """A form has too many bytes."""


async def _read_form(request: Request) -> Form | Response:
    """Return the form, or the answer to one that cannot be read."""
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        return PlainTextResponse("Forms are application/x-www-form-urlencoded.", 415)
    try:
        async with asyncio.timeout(FORM_TIMEOUT_S):
            body = await _read_body(request)
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict")
        if any("\0" in text for name, values in fields.items() for text in (name, *values)):
            return PlainTextResponse("The form has characters that no text of ours has.", 400)
        return Form(fields)
    except _TooLargeError:
        return PlainTextResponse(f"Forms have at most {MAX_FORM} bytes.", 413)
    except TimeoutError:
        return PlainTextResponse("The form did not arrive in time.", 408)
    except (ClientDisconnect, ValueError):
        return PlainTextResponse("The form cannot be read.", 400)


def _declared_size(request: Request) -> int:
    length = request.headers.get("content-length", "")
    return int(length[:19]) if length.isdecimal() else 0


async def _read_body(request: Request) -> bytes:
    """Read the body while it is small enough."""
    if _declared_size(request) > MAX_FORM:
        raise _TooLargeError
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_FORM:
            raise _TooLargeError
        parts.append(part)
    return b"".join(parts)


def _address(request: Request) -> str:
    return request.client.host if request.client else "an unknown address"


def _explain(error: Exception) -> tuple[int, str]:
    """Return the status and the message for what a page raised."""
    match error:
        case HTTPException():
            return error.status_code, "There is no such page." if error.status_code == 404 else error.detail  # noqa: PLR2004
        case NodeNotFoundError():
            return 404, str(error)
        case TimeoutError():
            return 504, "The database did not answer in time. Choose a shorter time or more conditions, or try again."
        case BrokerError():
            log.warning("web: %s", error)
            is_denied = isinstance(error, NotPermittedError)
            return (403, str(error)) if is_denied else (503, f"The database cannot be read at the moment: {error}")
        case FormError():
            return 400, str(error)
        case _:
            number = secrets.token_hex(4)
            log.error("web: error %s", number, exc_info=error)
            return 500, f"This page failed. The log of the dashboard has the reason, with the number {number}."
