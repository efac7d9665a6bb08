"""Attacks on the dashboard that need no password: strangers, other sites, forged headers, hostile paths and requests."""

import asyncio
import re
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount

from horsies import Horsies
from horsies.model.errors import BrokerError
from horsies.web import Role, User, dashboard
from horsies.web.dashboard import HEADERS, MAX_FORM
from horsies.web.security import ProxyHeader
from horsies.web.view import Page, Renderer, View
from tests.web.conftest import Visitor, send_raw, serving

FOREIGN = {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"}


def operator(_request: Request) -> User:
    return User("alice", Role.OPERATOR)


async def request_raw(visitor: Visitor, head: str, body: bytes = b"", *, host: str = "localhost") -> tuple[int, str]:
    """Send a request as it is written here, and return the status and all of the answer."""
    lines = [head, f"Host: {host}"] if host else [head]
    answer = await send_raw(
        str(visitor.client.base_url).rstrip("/"),
        "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1") + body,
    )
    return int(answer.split(b" ", 2)[1]) if answer else 0, answer.decode("latin-1")


# -- without a login


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "evil.example:80", "0.0.0.0:1", "10.0.0.1", "127.1", "[::]", "",
     "localhost@evil.example", "[::1].evil.example", "localhost:x", "localhost:1:2", "localhost/..", "l\u043ecalhost"],
)  # fmt: skip
async def test_without_authentication_another_host_name_is_refused(visit: Any, host: str) -> None:
    """DNS rebinding: a page of evil.example, whose name has this machine's address for a moment, reads the dashboard as its own site."""
    visitor = await visit()
    status, _ = await request_raw(visitor, "GET / HTTP/1.1", host=host.encode().decode("latin-1"))
    assert status in {400, 403}


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8321", "127.0.0.1", "127.8.9.1:1", "[::1]:8321", "shop.localhost", "localhost."]
)
async def test_without_authentication_the_names_of_this_machine_are_served(visit: Any, host: str) -> None:
    status, _ = await request_raw(await visit(), "GET / HTTP/1.1", host=host)
    assert status == 200


async def test_two_host_headers_are_refused(visit: Any) -> None:
    status, _ = await request_raw(await visit(), "GET / HTTP/1.1\r\nHost: localhost", host="localhost")
    assert status in {400, 403}


@pytest.mark.parametrize(
    "header",
    ["X-Forwarded-For: 127.0.0.1", "x-forwarded-host: localhost", "FORWARDED: for=127.0.0.1", "X-Real-IP: 127.0.0.1", "Via: 1.1 proxy",
     "X-Forwarded-Proto: https", "X-Original-Host: public.example", "CF-Connecting-IP: 127.0.0.1", "True-Client-IP: 127.0.0.1",
     "X-Client-IP: 127.0.0.1", "Origin: https://public.example"],
)  # fmt: skip
async def test_without_authentication_a_request_through_a_proxy_is_refused(visit: Any, header: str) -> None:
    status, _ = await request_raw(await visit(), f"GET / HTTP/1.1\r\n{header}")
    assert status == 403


async def test_a_proxy_that_names_itself_as_the_host_is_refused_by_its_old_protocol(visit: Any) -> None:
    """As nginx does with nothing but `proxy_pass http://127.0.0.1:8321`."""
    status, answer = await request_raw(await visit(), "GET / HTTP/1.0", host="127.0.0.1:8321")
    assert status == 403
    assert "no authentication" in answer


async def test_mounted_without_authentication_other_machines_are_refused(app: Horsies) -> None:
    transport = httpx.ASGITransport(dashboard(app), client=("203.0.113.7", 4711))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for path in ("/", "/login", "/live/overview", "/static/1/app.css", "/actions/pause-queue"):
            for method in ("GET", "POST", "HEAD"):
                assert (await client.request(method, path)).status_code == 403, path


async def test_only_allowed_hosts_are_answered(visit: Any) -> None:
    visitor = await visit(authorize=operator, allowed_hosts=["ops.example"])
    for host, expected in {"ops.example": 200, "OPS.example:8321": 200, "evil.example": 403, "": 400}.items():
        status, _ = await request_raw(visitor, "GET / HTTP/1.1", host=host)
        assert status == expected, host


# -- other sites


@pytest.mark.parametrize(
    "headers",
    [
        FOREIGN,
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "https://127.0.0.1"},
        {"Origin": "http://["},
        {"Origin": "http://127.0.0.1:99999999"},
        {"Origin": "ftp://127.0.0.1"},
        {"Origin": ""},
    ],
)
async def test_a_form_of_another_site_changes_nothing_even_with_a_valid_token(
    app: Horsies, visit: Any, headers: dict[str, str]
) -> None:
    visitor = await visit(authorize=operator)
    token = await visitor.token()
    answer = await visitor.client.post("/actions/pause-queue", data={"csrf": token, "name": "mail"}, headers=headers)
    assert answer.status_code == 403
    assert app.ops.list_audit() == []
    assert (await visitor.post("/actions/pause-queue", token=token, name="mail")).status_code == 303, (
        "the token was valid"
    )


@pytest.mark.parametrize(
    ("destination", "mode", "expected"),
    [("document", "navigate", 200), ("iframe", "navigate", 403), ("image", "no-cors", 403), ("empty", "cors", 403), ("script", "no-cors", 403)],
)  # fmt: skip
async def test_other_sites_can_link_to_pages_but_not_load_them(
    visit: Any, destination: str, mode: str, expected: int
) -> None:
    """Otherwise they could make a browser read expensive pages, or use up its streams."""
    visitor = await visit()
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": destination}
    assert (await visitor.get("/", headers=headers)).status_code == expected


# -- tokens of forms


async def test_a_form_needs_the_token_of_the_same_browser_and_user(app: Horsies, visit: Any) -> None:
    def named(request: Request) -> User:
        return User(request.headers.get("x-test-user", "alice"), Role.OPERATOR)

    visitor = await visit(authorize=named)
    token = await visitor.token()
    cookie = dict(visitor.client.cookies)
    other = Visitor(httpx.AsyncClient(base_url=visitor.client.base_url))
    async with other.client:
        others_token = await other.token()
        for wrong in (
            "",
            "x",
            "é",
            token[:-1],
            token + "A",
            token.upper(),
            others_token,
            "\ud800".encode(errors="replace").decode(),
        ):
            assert (await visitor.post("/actions/pause-queue", token=wrong, name="mail")).status_code == 403, wrong
        assert (await other.post("/actions/pause-queue", token=token, name="mail")).status_code == 403, (
            "of another browser"
        )
        other.client.cookies.clear()
        assert (await other.post("/actions/pause-queue", token=token, name="mail")).status_code == 403, (
            "without a cookie"
        )
        other.client.cookies.update(cookie)
        other.headers = {"X-Test-User": "mallory"}
        assert (await other.post("/actions/pause-queue", token=token, name="mail")).status_code == 403, (
            "of another user"
        )
        assert app.ops.list_audit() == []
        other.headers = {}
        assert (await other.post("/actions/pause-queue", token=token, name="mail")).status_code == 303


async def test_a_token_in_a_header_is_checked_too(app: Horsies, visit: Any) -> None:
    visitor = await visit()
    token = await visitor.token()
    for given, expected in ((token, 303), ("wrong", 403), ("é".encode(), 403)):
        answer = await visitor.client.post("/actions/pause-queue", data={"name": "a"}, headers={"X-CSRF-Token": given})
        assert answer.status_code == expected
    assert len(app.ops.list_audit()) == 1


async def test_a_forged_message_is_not_shown(visit: Any) -> None:
    visitor = await visit()
    await visitor.post("/actions/resume-queue", name="mail")
    (name,) = [name for name in visitor.client.cookies if "flash" in name]
    signed = visitor.client.cookies[name]
    for forged in (
        "x",
        ".",
        "é",
        "c3VjY2VzcyBoYWNrZWQ.x",
        f"c3VjY2VzcyBoYWNrZWQ.{signed.partition('.')[2]}",
        "%",
        "A" * 3_000,
    ):
        page = await visitor.get("/", headers={"Cookie": f"{name}={forged}".encode()})
        assert page.status_code == 200
        assert "hacked" not in page.text


# -- paths


PATHS = [
    "../pyproject.toml", "..%2f..%2fsecurity.py", "%2e%2e/%2e%2e/security.py", "..%252f..%252fsecurity.py", "....//security.py", "..\\..\\security.py",
    "..%5c..%5csecurity.py", "/etc/passwd", "%2fetc%2fpasswd", "//etc/passwd", "file:///etc/passwd", "C:%5cboot.ini", "app.css/../../view.py", ".",
    "..", "", "../templates/base.html", "%c0%ae%c0%ae/security.py", "..;/security.py", "README%20", "README/", "readme",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
async def test_static_files_do_not_lead_out_of_their_folder(visit: Any, path: str) -> None:
    visitor = await visit()
    for version in ("0", "..", "%2e%2e", "..%2f..", "x"):
        status, answer = await request_raw(visitor, f"GET /static/{version}/{path} HTTP/1.1")
        assert status == 404, answer


@pytest.mark.parametrize(
    "target",
    ["/static/0/app.css%00.png", "/%00", "/queues/%2500", "/?x=%00", "/\xff", "/?x=\xff", "/?x=%ff", "/%ff%fe", "*", "http://evil.example/", "//evil.example/", "/..",
     "/" + "a" * 9_000, "/?" + "a" * 9_000, "/?" + "&".join(f"f{n}=1" for n in range(1_000)), "/tasks/%F0%9F%92%A9", "/live/%00", "/live/x?id=%ED%A0%80"],
)  # fmt: skip
async def test_hostile_urls_are_answered_without_an_error_of_ours(visit: Any, target: str) -> None:
    visitor = await visit()
    for method in ("GET", "HEAD", "POST"):
        status, answer = await request_raw(visitor, f"{method} {target} HTTP/1.1")
        assert status < 500, answer
        assert "Traceback" not in answer
    assert (await visitor.get("/")).status_code == 200, "the server goes on"


# -- methods


@pytest.mark.parametrize(
    "method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "get", "X" * 100]
)
async def test_other_methods_are_refused(app: Horsies, visit: Any, method: str) -> None:
    visitor = await visit()
    for path in ("/", "/login", "/actions/pause-queue", "/live/overview", "/static/0/README"):
        status, answer = await request_raw(visitor, f"{method} {path} HTTP/1.1")
        assert 400 <= status < 500, answer
        assert "Access-Control" not in answer
    assert app.ops.list_audit() == []


async def test_websockets_are_refused(app: Horsies) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    headers = [(b"host", b"localhost"), (b"origin", b"https://evil.example")]
    scope: Any = {"type": "websocket", "path": "/live/overview", "headers": headers, "client": ("127.0.0.1", 1)}
    await dashboard(app)(scope, receive, send)
    assert [message["type"] for message in sent] == ["websocket.close"]


async def test_a_head_request_opens_no_stream(app: Horsies) -> None:
    made = dashboard(app)
    async with serving(made) as address, httpx.AsyncClient(base_url=address) as client:
        answer = await client.head("/live/overview")
        assert answer.status_code == 200
        assert (made.live.stream_count, made.live.poller_count) == (0, 0)


# -- bodies


FORM = "Content-Type: application/x-www-form-urlencoded"


async def test_headers_have_a_limit_even_if_the_server_lets_them_through(visit: Any) -> None:
    visitor = await visit()
    for header in ("X: " + "a" * 40_000, "\r\n".join(f"X{number}: {'a' * 100}" for number in range(400))):
        status, _ = await request_raw(visitor, f"GET / HTTP/1.1\r\n{header}")
        assert status == 431


async def test_a_form_of_100_mb_is_refused_before_it_is_read(visit: Any) -> None:
    visitor = await visit()
    status, answer = await request_raw(
        visitor, f"POST /actions/pause-queue HTTP/1.1\r\n{FORM}\r\nContent-Length: 104857600"
    )
    assert status == 413, "nothing of it was sent, and nothing was waited for"
    assert "connection: close" in answer.lower()


async def test_a_chunked_form_is_read_up_to_the_limit(visit: Any) -> None:
    visitor = await visit()
    chunk = b"10000\r\n" + b"a" * 0x10000 + b"\r\n"
    body = chunk * (MAX_FORM // 0x10000 + 1)  # without an end
    status, _ = await request_raw(visitor, f"POST /login HTTP/1.1\r\n{FORM}\r\nTransfer-Encoding: chunked", body)
    assert status == 413


@pytest.mark.parametrize(
    "headers",
    [
        f"{FORM}\r\nContent-Length: -1",
        f"{FORM}\r\nContent-Length: 10\r\nContent-Length: 20",
        f"{FORM}\r\nContent-Length: 3\r\nTransfer-Encoding: chunked",
        f"{FORM}\r\nTransfer-Encoding: gzip, chunked",
        f"{FORM}\r\nTransfer-Encoding : chunked",
        f"{FORM}\r\nContent-Length: 99999999999999999999999",
        f"{FORM}\r\nContent-Length: 1_0",
    ],
)
async def test_an_ambiguous_length_is_refused(app: Horsies, visit: Any, headers: str) -> None:
    visitor = await visit()
    smuggled = b"0\r\n\r\nPOST /actions/pause-queue HTTP/1.1\r\nHost: localhost\r\n\r\n"
    status, answer = await request_raw(visitor, f"POST /login HTTP/1.1\r\n{headers}", smuggled)
    assert 400 <= status < 500, answer
    assert answer.count("HTTP/1.1 ") == 1, "what follows is not taken for another request"
    assert app.ops.list_audit() == []


async def test_a_form_that_arrives_slowly_is_given_up(visit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("horsies.web.dashboard"), "FORM_TIMEOUT_S", 0.2)
    visitor = await visit()
    status, answer = await request_raw(visitor, f"POST /login HTTP/1.1\r\n{FORM}\r\nContent-Length: 1000", b"name=")
    assert status == 408
    assert "connection: close" in answer.lower()


async def test_a_small_form_that_is_refused_gets_its_answer_and_not_a_reset(
    visit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients send the head of a request first, and lose the answer if the connection is closed before they have sent the rest."""
    monkeypatch.setattr(import_module("horsies.web.dashboard"), "REFUSED_FORM_TIMEOUT_S", 20.0)
    visitor = await visit()
    reader, writer = await asyncio.open_connection("127.0.0.1", visitor.client.base_url.port)
    for head, status in (
        ("POST /login", b"415"),
        ("POST /nothing", b"405"),
        ("POST /login", b"415"),
    ):
        writer.write(
            f"{head} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 6\r\n\r\n".encode()
        )
        await writer.drain()
        writer.write(b"name=x")
        async with asyncio.timeout(10):
            answer = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", answer)
            assert length
            await reader.readexactly(int(length[1]))
        assert answer.split(b" ", 2)[1] == status
        assert b"connection: close" not in answer.lower(), "the next request uses it, too"
    writer.close()


async def test_a_small_form_that_is_refused_and_does_not_arrive_is_given_up(
    visit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("horsies.web.dashboard"), "REFUSED_FORM_TIMEOUT_S", 0.1)
    visitor = await visit()
    status, answer = await request_raw(
        visitor, "POST /login HTTP/1.1\r\nContent-Type: text/plain\r\nContent-Length: 6", b"na"
    )
    assert status == 415
    assert "connection: close" in answer.lower()


async def test_a_body_that_is_not_read_closes_the_connection(visit: Any) -> None:
    """Otherwise the server would read it to the end, whatever its size."""
    visitor = await visit()
    for head in ("GET /", "POST /nothing", "POST /login", "GET /static/0/x"):
        answer = await send_raw(
            str(visitor.client.base_url).rstrip("/"),
            f"{head} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 104857600\r\nContent-Type: text/plain\r\n\r\n".encode(),
        )
        assert b"connection: close" in answer.lower(), head


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("text/plain", b"csrf=x"),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="csrf"\r\n\r\nx\r\n--x--\r\n',
        ),
        ("application/json", b"[" * 100_000 + b"]" * 100_000),
        ("", b"csrf=x"),
        ("application/x-www-form-urlencoded", b"a=1&" * 3_000),
        ("application/x-www-form-urlencoded", b"name=\xff\xfe"),
        ("application/x-www-form-urlencoded", b"name=%ff%fe"),
        ("application/x-www-form-urlencoded", b"name=%ED%A0%80"),
        ("application/x-www-form-urlencoded", b"name=a%00b"),
        ("application/x-www-form-urlencoded", b"a%00b=1"),
        ("application/x-www-form-urlencoded; charset=utf-16", "name=x".encode("utf-16")),
    ],
)
async def test_other_bodies_are_refused(visit: Any, content_type: str, body: bytes) -> None:
    visitor = await visit()
    token = await visitor.token()
    headers = {"Content-Type": content_type, "X-CSRF-Token": token}
    answer = await visitor.client.post("/actions/pause-queue", content=body, headers=headers)
    assert answer.status_code in {400, 413, 415}


# -- redirects


TARGETS = [
    "https://evil.example", "//evil.example", "///evil.example", "/\\evil.example", "\\\\evil.example", "/\t/evil.example", "/\n/evil.example",
    "javascript:alert(1)", "data:text/html,x", "/%0d%0aSet-Cookie:x=1", "/\r\nSet-Cookie: x=1", " //evil.example", "/../evil", "/x/../../evil", "/%2e%2e/evil",
    "/.%2E", "/..?x", "/..#x", "/.//evil.example", "http:evil.example", "@evil.example", "evil.example", "/é", "/" + "a" * 5_000, "/\0", "?", "#",
]  # fmt: skip


@pytest.mark.parametrize("prefix", ["", "/horsies"])
@pytest.mark.parametrize("target", TARGETS)
async def test_no_redirect_leads_elsewhere(visit: Any, target: str, prefix: str) -> None:
    request = Request({"type": "http", "path": "/", "root_path": prefix, "headers": [], "query_string": b""})
    ops: Any = None
    link = View(request, ops, User("x"), "", Renderer("x")).local_url(target)
    allowed = f"{prefix}{target}" if target == "/%0d%0aSet-Cookie:x=1" else f"{prefix}/"
    assert link == allowed, "an encoded line break stays encoded"


async def test_a_page_of_ours_is_returned_to_whatever_its_name(app: Horsies, visit: Any) -> None:
    visitor = await visit()
    path = "/queues/%C3%A9%20%3Fx%23%25?a=%20b&c=d"
    answer = await visitor.post("/actions/pause-queue", name="mail", back=path)
    assert answer.headers["location"] == path
    page = await visitor.get(path)
    assert f'name="back" value="{path.replace("&", "&amp;")}"' in page.text


# -- an application's own authentication


def raises(_request: Request) -> User:
    raise RuntimeError("postgresql://shop:secret@db.internal/shop")


def refuses_by_exception(_request: Request) -> User:
    raise HTTPException(401, "who are you?", {"WWW-Authenticate": "Basic"})


def has_no_database(_request: Request) -> User:
    raise BrokerError("connection to db.internal failed", retryable=True)


def tells_a_name(_request: Request) -> Any:
    return "alice"


def says_yes(_request: Request) -> Any:
    return True


def invents_a_role(_request: Request) -> Any:
    return User("alice", "admin")  # pyright: ignore[reportArgumentType] - on purpose


def has_a_name_with_lines(_request: Request) -> Any:
    return User("alice\r\nSet-Cookie: x=1")


def is_nobody(_request: Request) -> None:
    return None


def sends_to_login(_request: Request) -> Response:
    return RedirectResponse("/my-login", 303)


async def hangs(_request: Request) -> User:
    await asyncio.sleep(3_600)
    raise AssertionError


def hangs_in_a_thread(_request: Request) -> User:
    threading.Event().wait(2)
    return User("alice", Role.OPERATOR)


async def cancels(_request: Request) -> User:
    raise asyncio.CancelledError


PATHS_OF_ALL_KINDS = ("/", "/nothing", "/live/overview", "/jobs/x")


@pytest.mark.parametrize(
    ("authorize", "status"),
    [(raises, 500), (refuses_by_exception, 401), (has_no_database, 500), (tells_a_name, 500), (says_yes, 500), (invents_a_role, 500),
     (has_a_name_with_lines, 500), (is_nobody, 403), (sends_to_login, 303), (hangs, 500), (hangs_in_a_thread, 500)],
)  # fmt: skip
async def test_an_authorize_that_fails_lets_no_request_in(
    app: Horsies, visit: Any, monkeypatch: pytest.MonkeyPatch, authorize: Any, status: int
) -> None:
    monkeypatch.setattr(import_module("horsies.web.dashboard"), "AUTHORIZE_TIMEOUT_S", 0.2)
    visitor = await visit(authorize=authorize)
    answers = [await visitor.get(path) for path in PATHS_OF_ALL_KINDS]
    answers.append(await visitor.post("/actions/pause-queue", token="x", name="mail"))
    for answer in answers:
        assert answer.status_code == status
        assert not any(word in answer.text for word in ("secret", "internal", "Traceback", "RuntimeError", "Queues"))
        assert "set-cookie" not in answer.headers
    assert app.ops.list_audit() == []


async def test_an_authorize_may_be_any_callable(visit: Any) -> None:
    class Callable:
        async def __call__(self, request: Request) -> User:
            return User(request.headers["x-user"])

    visitor = await visit(authorize=Callable())
    assert (await visitor.get("/", headers={"X-User": "alice"})).status_code == 200
    assert (await visitor.get("/")).status_code == 500


async def test_without_a_login_there_is_nothing_to_log_out_of(visit: Any) -> None:
    visitor = await visit(authorize=operator)
    assert (await visitor.post("/logout")).status_code == 404
    assert (await visitor.post("/login", name="a", password="b")).status_code == 404
    assert (await visitor.get("/login")).status_code == 303


# -- proxies


PROXY = "10.0.0.5"


@asynccontextmanager
async def proxied(app: Horsies, peer: str, **options: Any) -> AsyncGenerator[httpx.AsyncClient]:
    """A client whose requests come from this address."""
    made = dashboard(app, **options)
    transport = httpx.ASGITransport(made, client=(peer, 1234))
    async with httpx.AsyncClient(transport=transport, base_url="http://ops.example") as client:
        yield client
    await made.close()


@pytest.mark.parametrize(
    ("peer", "headers", "expected"),
    [
        (PROXY, [("X-Forwarded-User", "alice")], 200),
        (PROXY, [("x-forwarded-USER", "alice")], 200),
        ("::ffff:10.0.0.5", [("X-Forwarded-User", "alice")], 200),
        (PROXY, [], 403),
        (PROXY, [("X-Forwarded-User", "")], 403),
        (PROXY, [("X-Forwarded-User", "alice"), ("X-Forwarded-User", "mallory")], 403),
        (PROXY, [("X_Forwarded_User", "alice")], 403),
        (PROXY, [("X-Forwarded-User ", "alice")], 403),
        (PROXY, [("X-Forwarded-User", "a" * 201)], 403),
        (PROXY, [("X-Forwarded-User", "\x1b[31m")], 403),
        ("203.0.113.7", [("X-Forwarded-User", "alice")], 403),
        ("203.0.113.7", [("X-Forwarded-User", "alice"), ("X-Forwarded-For", PROXY)], 403),
        ("203.0.113.7", [("X-Forwarded-User", "alice"), ("Forwarded", f"for={PROXY}")], 403),
        ("", [("X-Forwarded-User", "alice")], 403),
    ],
)
async def test_only_the_proxy_says_who_the_user_is(
    app: Horsies, peer: str, headers: list[tuple[str, str]], expected: int
) -> None:
    header = ProxyHeader("X-Forwarded-User", [PROXY], operators=["alice"])
    async with proxied(app, peer, authorize=header, proxies=[PROXY]) as client:
        assert (await client.get("/jobs/none", headers=headers)).status_code == (404 if expected == 200 else expected)


async def test_names_from_a_proxy_are_utf_8(app: Horsies) -> None:
    header = ProxyHeader("X-Forwarded-User", [PROXY], operators=["Jürgen"])
    async with proxied(app, PROXY, authorize=header, secret="s" * 32) as client:
        headers = [(b"X-Forwarded-User", "Jürgen".encode())]
        page = await client.get("/nothing", headers=headers)
        token = re.findall(r'name="csrf" value="([^"]+)"', page.text)[0]
        form = {"csrf": token, "name": "mail"}
        assert (await client.post("/actions/pause-queue", data=form, headers=headers)).status_code == 303
        assert [entry.actor for entry in app.ops.list_audit()] == ["Jürgen"]


@pytest.mark.parametrize(
    ("peer", "forwarded", "expected"),
    [
        (PROXY, ["203.0.113.7"], "203.0.113.7"),
        (PROXY, ["1.1.1.1, 203.0.113.7"], "203.0.113.7"),
        (PROXY, ["1.1.1.1", "203.0.113.7"], "203.0.113.7"),  # as HAProxy adds it
        (PROXY, ["1.1.1.1, 203.0.113.7, 10.0.0.9"], "203.0.113.7"),
        (PROXY, ["10.0.0.9, 10.0.0.8"], PROXY),
        (PROXY, ["unknown"], PROXY),
        (PROXY, ["203.0.113.7:1234"], PROXY),
        (PROXY, [""], PROXY),
        (PROXY, ["1.1.1.1,"], PROXY),
        (PROXY, [], PROXY),
        ("203.0.113.7", ["1.1.1.1"], "203.0.113.7"),
        ("203.0.113.7", ["10.0.0.9"], "203.0.113.7"),
    ],
)
async def test_the_address_of_a_client_cannot_be_forged(
    app: Horsies, peer: str, forwarded: list[str], expected: str
) -> None:
    seen: list[str] = []

    def note(request: Request) -> User:
        assert request.client
        seen.append(request.client.host)
        return User("alice")

    async with proxied(app, peer, authorize=note, proxies=["10.0.0.0/8"]) as client:
        await client.get("/nothing", headers=[("X-Forwarded-For", value) for value in forwarded])
    assert seen == [expected]


async def test_cookies_are_for_https_only_if_the_proxy_says_so(app: Horsies) -> None:
    for peer, prefix, expected in ((PROXY, "", "__Host-"), (PROXY, "/ops", "__Secure-"), ("203.0.113.7", "", "")):
        made = dashboard(app, authorize=operator, proxies=[PROXY])
        application = Starlette(routes=[Mount(prefix, app=made)]) if prefix else made
        transport = httpx.ASGITransport(application, client=(peer, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://ops.example") as client:
            answer = await client.get(f"{prefix}/nothing", headers={"X-Forwarded-Proto": "https"})
        name, _, attributes = answer.headers["set-cookie"].partition("=")
        assert name == f"{expected}horsies_session"
        assert ("secure" in attributes.lower()) is bool(expected)
        assert f"Path={prefix or '/'};" in attributes
        assert "HttpOnly" in attributes
        assert "SameSite=lax" in attributes


# -- mounted


@pytest.mark.parametrize("prefix", ["/horsies", "/a/b.c/d", "/~ops"])
async def test_under_a_prefix_all_links_stay_in_it(app: Horsies, prefix: str) -> None:
    made = dashboard(app, authorize=operator)
    application = Starlette(routes=[Mount(prefix, app=made)])
    async with serving(application) as address, httpx.AsyncClient(base_url=address) as client:
        visitor = Visitor(client, prefix)
        page = await visitor.get("/")
        assert page.status_code == 200
        links = re.findall(r'(?:href|src|action|formaction)="([^"]*)"', page.text)
        assert links
        assert all(link.startswith((f"{prefix}/", "#")) for link in links), links
        answer = await visitor.post("/actions/pause-queue", name="mail", back="/../evil")
        assert answer.headers["location"] == f"{prefix}/"
        assert f"Path={prefix};" in answer.headers["set-cookie"]
    await made.close()


@pytest.mark.parametrize(
    ("root_path", "mount", "path"),
    [
        ("", "/horsies", "/horsies/queues"),
        ("/shop", "/horsies", "/shop/horsies/queues"),  # a server that was given the prefix
        ("/shop", "/horsies", "/horsies/queues"),  # FastAPI(root_path="/shop") behind a proxy that removes the prefix
        ("/shop/eu", "/a/b", "/a/b/queues"),
        ("/a", "/a/b", "/a/a/b/queues"),
        ("/horsies/eu", "/horsies", "/horsies/queues"),
        ("/shop", "", "/queues"),
    ],
)
async def test_links_have_the_prefix_that_a_proxy_has_removed(
    app: Horsies, root_path: str, mount: str, path: str
) -> None:
    made = dashboard(app, authorize=operator)
    transport = httpx.ASGITransport(Starlette(routes=[Mount(mount, app=made)]) if mount else made, root_path=root_path)
    prefix = root_path + mount
    async with httpx.AsyncClient(transport=transport, base_url="http://shop.example") as client:
        page = await client.get(path)
        assert (page.status_code, "<h1>Queues</h1>" in page.text) == (200, True)
        links = re.findall(r'(?:href|src|action|formaction|data-stream)="([^"]*)"', page.text)
        assert f"{prefix}/live/queues" in links
        assert all(link.startswith((f"{prefix}/", "#")) for link in links), links
        assert 'name="back" value="/queues"' in page.text
        form = {"name": "mail", "csrf": re.findall(r'name="csrf" value="([^"]+)"', page.text)[0], "back": "/queues"}
        client.cookies.set(*page.headers["set-cookie"].partition(";")[0].split("=", 1))
        done = await client.post(path.replace("/queues", "/actions/pause-queue"), data=form)
        assert (done.status_code, done.headers["location"]) == (303, f"{prefix}/queues")
    await made.close()


@pytest.mark.parametrize("prefix", ["/ops", "/a/b"])
async def test_a_proxy_may_remove_the_prefix_or_pass_it_on(app: Horsies, prefix: str) -> None:
    """uvicorn adds its `root_path` to each path. A prefix that came twice would be a page that does not exist, and a login that leads to itself."""
    async with (
        serving(dashboard(app, authorize=operator), root_path=prefix) as address,
        httpx.AsyncClient(base_url=address) as client,
    ):
        for path, title in (("/queues", "Queues"), (f"{prefix}/queues", "Queues"), ("/", "Overview"), (f"{prefix}/", "Overview"), (prefix, "Overview")):  # fmt: skip
            page = await client.get(path)
            assert (page.status_code, f"<h1>{title}</h1>" in page.text) == (200, True), path
            assert f'href="{prefix}/queues"' in page.text
        assert (await client.get("/nothing")).status_code == 404


async def test_a_prefix_that_is_called_like_a_page_is_removed(app: Horsies) -> None:
    async with (
        serving(dashboard(app, authorize=operator), root_path="/tasks") as address,
        httpx.AsyncClient(base_url=address) as client,
    ):
        for path, title in (("/", "Overview"), ("/tasks", "Tasks"), ("/queues", "Queues")):
            assert f"<h1>{title}</h1>" in (await client.get(path)).text


async def test_a_prefix_is_not_taken_from_a_header(visit: Any) -> None:
    visitor = await visit(authorize=operator)
    forged = (
        "X-Forwarded-Prefix",
        "X-Script-Name",
        "X-Forwarded-Path",
        "X-Original-URL",
        "X-Rewrite-URL",
        "X-HTTP-Method-Override",
    )
    page = await visitor.get("/nothing", headers=dict.fromkeys(forged, "//evil.example"))
    assert page.status_code == 404
    assert "evil.example" not in page.text


# -- what all answers have


async def test_all_answers_have_the_headers_that_browsers_need(visit: Any) -> None:
    visitor, closed = await visit(authorize=operator), await visit(authorize=is_nobody)
    token = await visitor.token()
    name = next(name for name in Renderer("x").static_files if name.endswith(".css"))
    version = Renderer("x").static_version
    answers = [
        await visitor.get("/"),
        await visitor.get("/nothing"),
        await visitor.get("/static/0/nothing"),
        await visitor.get(f"/static/{version}/{name}"),
        await visitor.get(f"/static/0/{name}"),
        await visitor.get("/%00"),
        await visitor.client.head("/live/overview"),
        await visitor.client.put("/"),
        await visitor.post("/actions/pause-queue", token=token, name="a"),
        await visitor.post("/actions/pause-queue", token="x", name="a"),
        await visitor.client.post("/actions/pause-queue", content=b"a" * (MAX_FORM + 1), headers={"Content-Type": "application/x-www-form-urlencoded"}),
        await closed.get("/"),
    ]  # fmt: skip
    assert {answer.status_code for answer in answers} >= {200, 303, 400, 403, 404, 405, 413}
    for answer in answers:
        headers = answer.headers
        assert {each: headers.get(each) for each in HEADERS} == dict(HEADERS), answer.url
        is_versioned = version in str(answer.url)
        expected = "immutable" if is_versioned else "no-cache" if answer.url.path.endswith(".css") else "no-store"
        assert expected in headers["cache-control"], answer.url
        assert "server" not in headers or headers["server"] == "uvicorn"
    policy = HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


async def test_a_static_file_that_has_changed_is_not_cached(visit: Any) -> None:
    visitor = await visit()
    name, file = next((name, file) for name, file in Renderer("x").static_files.items() if file.compressed)
    plain = await visitor.get(f"/static/0/{name}", headers={"Accept-Encoding": "identity"})
    packed = await visitor.get(f"/static/0/{name}", headers={"Accept-Encoding": "gzip"})
    assert plain.content == packed.content == file.content
    assert plain.headers["vary"] == packed.headers["vary"] == "Accept-Encoding"
    assert plain.headers["cache-control"] == "no-cache"


async def test_an_error_page_shows_neither_a_traceback_nor_a_password(
    visit: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_view: View) -> Response:
        raise RuntimeError("postgresql://shop:secret@db/shop")

    module = import_module("horsies.web.dashboard")
    monkeypatch.setattr(module, "PAGES", [*module.PAGES, Page("/fails", fail)])
    page = await (await visit(authorize=operator)).get("/fails")
    assert page.status_code == 500
    assert not any(word in page.text for word in ("secret", "Traceback", "RuntimeError", ".py"))
    number = re.findall(r"number ([0-9a-f]{8})", page.text)[0]
    assert any(number in record.getMessage() for record in caplog.records)
