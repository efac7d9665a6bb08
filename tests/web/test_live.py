"""Attacks on live updates: strangers, sessions that have ended, viewers that do not read, too many streams, and outages."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from starlette.requests import Request

from horsies import AppConfig, Horsies, TaskError, TaskResult
from horsies.model.errors import BrokerError
from horsies.web import Role, User, dashboard, live
from horsies.web import security as web_security
from horsies.web.actions import Job
from horsies.web.dashboard import Dashboard
from horsies.web.live import Topic, to_event
from horsies.web.security import Credential, hash_password
from tests.fixtures.eventually import wait_until_blocked
from tests.fixtures.everything import HOSTILE
from tests.fixtures.proxies import Proxy
from tests.fixtures.web import fetch, free_port
from tests.maintenance.test_minutes import current, end_task
from tests.web.conftest import Visitor, serving

PASSWORD = "correct horse"
PATIENCE_S = 40.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks at each event, heartbeats at once, and hashes of the lowest cost."""
    monkeypatch.setattr(web_security, "SCRYPT", (10, 1, 1))
    monkeypatch.setattr(live, "CHECK_S", 0.0)
    monkeypatch.setattr(live, "HEARTBEAT_S", 0.05)


class Stream:
    """An open stream of events."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._bytes = response.aiter_bytes()
        self.text = ""

    async def until(self, text: str) -> None:
        """Read until this was sent."""
        async with asyncio.timeout(PATIENCE_S):
            while text not in self.text:
                self.text += (await anext(self._bytes)).decode()

    async def to_the_end(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            async for more in self._bytes:
                self.text += more.decode()


@asynccontextmanager
async def watching(client: httpx.AsyncClient, path: str = "/live/overview", **options: Any) -> AsyncGenerator[Stream]:
    async with client.stream("GET", path, **options) as response:
        stream = Stream(response)
        if response.status_code == 200:
            await stream.until("retry:")
        yield stream


async def eventually_async(predicate: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not predicate():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.01)


def with_login(app: Horsies) -> Dashboard:
    return dashboard(app, credentials=[Credential(User("alice", Role.OPERATOR), hash_password(PASSWORD))])


class Doorkeeper:
    """An `authorize` that can change its mind."""

    def __init__(self) -> None:
        self.answer: Any = User("alice")

    async def __call__(self, request: Request) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return User(request.headers.get("x-user", "alice")) if self.answer else None


# -- who may watch


@pytest.mark.parametrize("how", ["logout", "login again", "idle", "too old"])
async def test_a_stream_ends_with_its_session(app: Horsies, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    made = with_login(app)
    async with serving(made) as address, httpx.AsyncClient(base_url=address, timeout=30) as client:
        visitor = Visitor(client)
        await visitor.log_in("alice", PASSWORD)
        token = await visitor.token("/nothing")
        monkeypatch.setattr(live, "CHECK_S", 3_600.0 if "log" in how else 0.0)  # a logout ends it at once
        async with watching(client) as stream:
            if how == "logout":
                await visitor.post("/logout", token=token)
            elif how == "login again":
                await visitor.log_in("alice", PASSWORD)
            else:
                monkeypatch.setattr(web_security, "IDLE_S" if how == "idle" else "LIFETIME_S", -1.0)
            await stream.to_the_end()
        await eventually_async(lambda: (made.live.stream_count, made.live.poller_count) == (0, 0))


@pytest.mark.parametrize("answer", [None, RuntimeError("the session store is gone")])
async def test_a_stream_ends_when_authorize_refuses_or_fails(app: Horsies, answer: Any) -> None:
    doorkeeper = Doorkeeper()
    made = dashboard(app, authorize=doorkeeper)
    async with (
        serving(made) as address,
        httpx.AsyncClient(base_url=address, timeout=30) as client,
        watching(client) as stream,
    ):
        await stream.until(": still here")
        doorkeeper.answer = answer
        await stream.to_the_end()


async def test_an_open_page_does_not_keep_a_session_alive(app: Horsies, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    user = web_security.Sessions.user

    def watched(self: Any, cookie: str, *, is_use: bool) -> User | None:
        seen.append(is_use)
        return user(self, cookie, is_use=is_use)

    async with serving(with_login(app)) as address, httpx.AsyncClient(base_url=address, timeout=30) as client:
        await Visitor(client).log_in("alice", PASSWORD)
        monkeypatch.setattr(web_security.Sessions, "user", watched)
        async with watching(client) as stream:
            await stream.until(": still here")
    assert set(seen) == {False}


# -- limits


@pytest.mark.parametrize("limit", ["MAX_STREAMS_OF_SESSION", "MAX_STREAMS_OF_USER", "MAX_STREAMS"])
async def test_streams_are_limited_also_for_those_who_invent_cookies(
    app: Horsies, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(live, limit, 3)
    made = dashboard(app, authorize=Doorkeeper())

    def headers(number: int) -> dict[str, str]:
        cookie = "A" * 43 if limit == "MAX_STREAMS_OF_SESSION" else f"{number:043}"
        return {
            "Cookie": f"horsies_session_{port}={cookie}",
            "X-User": f"user {number}" if limit == "MAX_STREAMS" else "alice",
        }

    async with (
        serving(made) as address,
        httpx.AsyncClient(base_url=address, timeout=30) as client,
        AsyncExitStack() as stack,
    ):
        port = client.base_url.port
        streams = [await stack.enter_async_context(watching(client, headers=headers(number))) for number in range(5)]
        assert [stream.response.status_code for stream in streams] == [200, 200, 200, 503, 503]
        assert streams[-1].response.headers["retry-after"]
        assert made.live.stream_count == 3
        await streams[0].response.aclose()
        await eventually_async(lambda: made.live.stream_count == 2)
        again = await stack.enter_async_context(watching(client, headers=headers(5)))
        assert again.response.status_code == 200
    assert made.live.stream_count == 0


async def test_many_topics_leave_connections_for_pages(app: Horsies, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each set of parameters is a topic of its own, so a viewer can have as many as streams."""
    reading, most = 0, 0

    async def read(_ops: Any, _params: Any) -> Any:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        await asyncio.sleep(0.05)
        reading -= 1
        return {"job": Job("1", "", "", "", "")}

    module = import_module("horsies.web.dashboard")
    monkeypatch.setattr(module, "TOPICS", [Topic("slow", read, {"state": "live/job.html"}, interval_s=0)])
    async with (
        serving(dashboard(app)) as address,
        httpx.AsyncClient(base_url=address, timeout=30) as client,
        AsyncExitStack() as stack,
    ):
        streams = [
            await stack.enter_async_context(
                watching(
                    client,
                    f"/live/slow?id={number}",
                    headers={"Cookie": f"horsies_session_{client.base_url.port}={number:043}"},
                )
            )
            for number in range(15)
        ]
        for stream in streams:
            await stream.until("event: state")
    assert 1 < most <= live.MAX_READS < module.POOL_SIZE


async def test_a_viewer_that_does_not_read_is_dropped(app: Horsies, monkeypatch: pytest.MonkeyPatch) -> None:
    number = 0

    async def read(_ops: Any, _params: Any) -> Any:
        nonlocal number
        number += 1
        return {"job": Job("1", "", "", "", "", state="failed", problem=f"{number} " + "x" * 1_000_000)}

    module = import_module("horsies.web.dashboard")
    monkeypatch.setattr(module, "TOPICS", [Topic("flood", read, {"state": "live/job.html"}, interval_s=0.01)])
    monkeypatch.setattr(live, "WRITE_TIMEOUT_S", 0.5)
    made = dashboard(app)
    async with (
        serving(made) as address,
        httpx.AsyncClient(base_url=address, timeout=30) as client,
        watching(client, "/live/flood") as reader,
    ):
        deaf = socket.create_connection(("127.0.0.1", client.base_url.port or 0))
        try:
            deaf.sendall(b"GET /live/flood HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await eventually_async(lambda: made.live.stream_count == 2)

            async def read_on() -> None:
                while made.live.stream_count > 1:
                    reader.text = ""
                    await reader.until("event: state")

            await asyncio.wait_for(read_on(), PATIENCE_S)
            assert made.live.stream_count == 1, "the one that reads stays"
        finally:
            deaf.close()


# -- what is read


async def test_nobody_sees_what_is_older_than_the_page_or_an_action(
    app: Horsies, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = 0

    async def read(_ops: Any, _params: Any) -> Any:
        nonlocal number
        number += 1
        return {"job": Job("1", "", "", "", "", state="failed", problem=f"read {number}.")}

    parts = [Topic("part", read, {"part": "live/job.html"}, interval_s=3_600)]
    module = import_module("horsies.web.dashboard")
    topic = Topic("rare", read, {"state": "live/job.html"}, interval_s=3_600, others=parts)
    monkeypatch.setattr(module, "TOPICS", [topic])
    monkeypatch.setattr(live, "INTERVAL_S", 0.0)
    monkeypatch.setattr(live, "MAX_REST_S", 3_600.0)
    made = dashboard(app)
    async with (
        serving(made) as address,
        httpx.AsyncClient(base_url=address, timeout=30) as client,
        watching(client, "/live/rare") as first,
    ):
        await first.until("read 2.")
        async with watching(client, "/live/rare") as second:
            await second.until("read 4.")
            assert "read 1." not in second.text
            assert "read 2." not in second.text
            visitor = Visitor(client)
            await visitor.post("/actions/pause-queue", token=await visitor.token("/nothing"), name="mail")
            await second.until("read 6.")
        await first.until("read 6.")


async def test_topics_share_what_they_have_read(app: Horsies, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MIN_SHARED_S", 3_600.0)
    monkeypatch.setattr(live, "MAX_SHARED_S", 3_600.0)
    shared = live.SharedReads()
    both, fresh = shared.of(app.ops, is_fresh=False), shared.of(app.ops, is_fresh=True)
    app.ops.pause_queue("mail")
    assert [queue.name for queue in await both.list_queues_async()] == ["mail"]
    app.ops.pause_queue("audio")
    assert len(await both.list_queues_async()) == 1
    assert len(await fresh.list_queues_async()) == 2
    assert len(await both.list_queues_async()) == 2
    assert await both.list_audit_async(limit=1) != await both.list_audit_async(limit=2)


async def test_what_was_being_read_when_something_changed_is_not_shared(app: Horsies, database: str) -> None:
    shared = live.SharedReads()
    ops = shared.of(app.ops, is_fresh=False)
    with psycopg.connect(database) as sql, psycopg.connect(database, autocommit=True) as watch:
        sql.execute("lock table horsies.finished in access exclusive mode")
        reading = asyncio.create_task(ops.queue_totals_async())
        await asyncio.to_thread(wait_until_blocked, watch)
        shared.forget()
        end_task(sql, now := current(sql), queue="mail")
        sql.commit()
        await reading
        end_task(sql, now, queue="audio")
        sql.commit()
    assert [each.name for each in await ops.queue_totals_async()] == ["audio", "mail"]


async def test_a_read_that_fails_is_not_shared(app: Horsies, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MIN_SHARED_S", 3_600.0)
    monkeypatch.setattr(live, "MAX_SHARED_S", 3_600.0)
    ops = live.SharedReads().of(app.ops, is_fresh=False)
    with psycopg.connect(database, autocommit=True) as sql:
        sql.execute("alter table horsies.queue_minutes rename to away")
        for _ in range(2):
            with pytest.raises(BrokerError):
                await ops.queue_totals_async()
        sql.execute("alter table horsies.away rename to queue_minutes")
    assert await ops.queue_totals_async() == []


async def test_loaded_pages_share_findings_until_a_user_acts(app: Horsies, monkeypatch: pytest.MonkeyPatch) -> None:
    """`app.ops` changes things as another process does."""
    monkeypatch.setattr(live, "MIN_SHARED_S", 3_600.0)
    monkeypatch.setattr(live, "MAX_SHARED_S", 3_600.0)
    finding, badge = "has been paused since", "badge-paused"

    @app.task("work")
    def work() -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    await work.send_async()
    made = dashboard(app, authorize=lambda request: User(request.headers["x-user"], Role.OPERATOR))
    async with (
        serving(made) as address,
        httpx.AsyncClient(base_url=address, headers={"X-User": "alice"}) as one,
        httpx.AsyncClient(base_url=address, headers={"X-User": "bob"}) as other,
    ):
        alice, bob = Visitor(one), Visitor(other)
        assert finding not in (await alice.get("/")).text
        app.ops.pause_queue("default")
        page = (await bob.get("/")).text
        assert (finding in page, badge in page) == (False, True), "only the findings are those of a moment ago"
        assert finding in (await bob.get("/doctor")).text, "the doctor looks"
        token = await alice.token("/queues/default")
        await alice.post("/actions/resume-queue", token=token, name="audio")
        assert finding in (await bob.get("/")).text, "any action ends it"
        await alice.post("/actions/resume-queue", token=token, name="default", back="/")
        assert finding not in (await bob.get("/")).text
        app.ops.pause_queue("default")
        assert finding in (await alice.get("/")).text, "the page that says what the action did reads everything"
        assert finding in (await bob.get("/")).text


# -- what is sent


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_no_text_breaks_out_of_its_event(text: str) -> None:
    event = to_event("state", text + "\n\nevent: gone\ndata: x\n\n")
    lines = event.decode().split("\n")
    assert lines[0] == "event: state"
    assert lines[-2:] == ["", ""]
    assert all(line.startswith("data: ") for line in lines[1:-2])
    assert b"\r" not in event


@pytest.mark.parametrize(
    "query",
    ["", "id=", "id=x", "id=" + "9" * 5_000, "id=a&id=b", "x=1", "id=%27", "minutes=-1", "after=x", "id=%F0%9F%92%A9"],
)
async def test_hostile_parameters_end_in_an_event_and_not_in_an_error(
    app: Horsies, caplog: pytest.LogCaptureFixture, query: str
) -> None:
    made = dashboard(app)
    async with serving(made) as address, httpx.AsyncClient(base_url=address, timeout=30) as client:
        for topic in made.live.topics:
            async with watching(client, f"/live/{topic}?{query}") as stream:
                await stream.until("event: ")
        assert (await client.get("/live/nothing")).status_code == 404
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


async def test_an_outage_is_sent_without_secrets_and_its_end_too(app: Horsies, proxy: Proxy) -> None:
    through = Horsies(AppConfig.for_database_url(proxy.url))
    async with (
        serving(dashboard(through)) as address,
        httpx.AsyncClient(base_url=address, timeout=30) as client,
        watching(client) as stream,
    ):
        await stream.until("event: ")
        proxy.cut()
        await stream.until("event: outage\ndata: ")
        proxy.heal()
        stream.text = ""
        await stream.until("event: outage\ndata: \n")
        assert "postgresql://" not in stream.text
    await through.broker.close_async()


# -- shutdown


MOUNTED = """
import contextlib
from fastapi import FastAPI
from horsies import AppConfig, Horsies, TaskError, TaskResult
from horsies.web import User, dashboard

shop = Horsies(AppConfig.for_database_url({url!r}))
app = FastAPI()
app.mount("/horsies", dashboard(shop, authorize=lambda request: User("alice")))
"""


@pytest.mark.parametrize("kind", ["horsies web", "mounted"])
async def test_a_server_with_open_streams_stops_within_seconds(database: str, tmp_path: Path, kind: str) -> None:
    port = free_port()
    (tmp_path / "shop_with_dashboard.py").write_text(MOUNTED.format(url=database))
    command = (
        ["-m", "horsies.cli.main", "web", "--database-url", database]
        if kind == "horsies web"
        else ["-m", "uvicorn", "shop_with_dashboard:app"]
    )
    prefix = "" if kind == "horsies web" else "/horsies"
    process = subprocess.Popen(  # noqa: ASYNC220 - it takes a moment
        [sys.executable, *command, "--port", str(port)], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": str(Path.cwd())}
    )  # fmt: skip
    try:
        async with (
            httpx.AsyncClient(base_url=f"http://localhost:{port}", timeout=30) as client,
            AsyncExitStack() as stack,
        ):
            await eventually_async(lambda: process.poll() is not None or fetch(port, "/").status)
            streams = [await stack.enter_async_context(watching(client, f"{prefix}/live/overview")) for _ in range(5)]
            process.send_signal(signal.SIGTERM)
            for stream in streams:
                await stream.to_the_end()
            out, _ = await asyncio.to_thread(process.communicate, timeout=15)
        assert process.returncode in ({0} if kind == "horsies web" else {0, -signal.SIGTERM}), out.decode()
        assert "Traceback" not in out.decode()
    finally:
        process.kill()
        process.wait()
