"""Attacks on the login: guessed, stolen, fixed and expired sessions, tokens of scripts, and what is stored of all of them."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from horsies import Horsies
from horsies.model.errors import ConfigError
from horsies.web import Role, User, dashboard
from horsies.web import security as web_security
from horsies.web.dashboard import Dashboard
from horsies.web.security import (
    IDLE_S,
    LIFETIME_S,
    MAX_ADDRESSES,
    MAX_SESSIONS,
    Credential,
    LoginLimits,
    Sessions,
    Signer,
    hash_password,
    hash_token,
    is_password,
    read_credentials,
)
from tests.web.conftest import Visitor

PASSWORD = "correct horse"
TOKEN = "horsies_" + "t" * 43
HASHED_TOKEN = hash_token(TOKEN)


@pytest.fixture(autouse=True)
def cheap_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes of the lowest cost: a thousand logins take a second."""
    monkeypatch.setattr(web_security, "SCRYPT", (10, 1, 1))


def credentials() -> list[Credential]:
    return [
        Credential(User("alice", Role.OPERATOR), hash_password(PASSWORD)),
        Credential(User("bob", Role.READ_ONLY), hash_password("battery staple")),
        Credential(User("script", Role.OPERATOR), HASHED_TOKEN),
    ]


@asynccontextmanager
async def from_address(made: Dashboard, address: str = "203.0.113.7", **options: Any) -> AsyncGenerator[Visitor]:
    """A visitor from an address, without the server in between."""
    transport = httpx.ASGITransport(made, client=(address, 4711))
    async with httpx.AsyncClient(transport=transport, base_url="http://ops.example", **options) as client:
        yield Visitor(client)


Make = Callable[..., Dashboard]


@pytest.fixture
async def make(app: Horsies) -> AsyncGenerator[Make]:
    made: list[Dashboard] = []

    def build(**options: Any) -> Dashboard:
        made.append(dashboard(app, credentials=credentials(), **options))
        return made[-1]

    yield build
    for each in made:
        await each.close()


async def user_of(visitor: Visitor) -> str | None:
    """Whose page it is; None for the login."""
    page = await visitor.get("/nothing")
    return None if page.status_code == 303 else "read-only" if 'name="back"' not in page.text else "operator"


# -- no login


async def test_without_a_login_nothing_is_shown_or_done(app: Horsies, make: Make) -> None:
    made = make()
    async with from_address(made) as visitor:
        for path in ("/", "/tasks", "/nothing", "/jobs/x", "/actions/pause-queue", "/docs", "/openapi.json"):
            page = await visitor.get(path)
            assert (page.status_code, page.headers["location"]) == (303, f"/login?next={path.replace('/', '%2F')}")
        stream = await visitor.get("/live/overview", headers={"Accept": "text/event-stream"})
        assert stream.status_code == 401
        answer = await visitor.post("/actions/pause-queue", page="/login", name="mail")
        assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=%2F")
        assert app.ops.list_audit() == []
        assert made.live.stream_count == 0


async def test_a_wrong_password_or_name_says_the_same(make: Make) -> None:
    async with from_address(make()) as visitor:
        pages: list[str] = []
        for name, password in (
            ("alice", "wrong"), ("nobody", PASSWORD), ("alice", ""), ("", ""), ("ALICE", PASSWORD), ("alice", PASSWORD + "\n"), ("alice ", PASSWORD),
            ("alice", "x" * 100_000), ("script", TOKEN), ("' or 1=1 --", "' or 1=1 --"),
        ):  # fmt: skip
            answer = await visitor.log_in(name, password)
            assert answer.status_code == 403
            pages.append(re.sub(r'name="csrf" value="[^"]*"', "", answer.text))
        assert set(pages) == {pages[0]}
        assert "The name or the password is wrong." in pages[0]
        assert await user_of(visitor) is None


# -- 10 000 tries


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.timeout(180)  # it is the number that makes it slow
async def test_of_10_000_tries_few_are_looked_at_and_others_still_get_in(make: Make) -> None:
    made = make()
    async with from_address(made) as attacker, from_address(made, "198.51.100.1") as alice:
        token = await attacker.token("/login")
        tries = asyncio.Semaphore(50)

        async def guess(number: int) -> int:
            async with tries:
                forged = {
                    "X-Forwarded-For": f"10.1.{number // 250}.{number % 250}",
                    "X-Real-IP": "1.1.1.1",
                    "Forwarded": "for=1.1.1.1",
                }
                form = {"csrf": token, "name": "alice", "password": f"guess {number}"}
                return (await attacker.client.post("/login", data=form, headers=forged)).status_code

        statuses = await asyncio.gather(*map(guess, range(10_000)))
        assert set(statuses) == {403, 429}
        assert statuses.count(403) <= web_security.TRIES + 5, "a new one comes every 30 seconds"
        right = await attacker.post("/login", token=token, name="alice", password=PASSWORD)
        assert right.status_code == 429, "the right password is not looked at either"
        assert 1 <= int(right.headers["retry-after"]) <= 31
        assert (await alice.log_in("alice", PASSWORD)).status_code == 303


def test_tries_from_many_addresses_are_limited_together() -> None:
    clock = Clock()
    limits = LoginLimits(clock)
    allowed = sum(limits.take(f"198.51.{number // 250}.{number % 250}") == 0 for number in range(10_000))
    assert allowed == web_security.ALL_TRIES
    clock.now = 3_600
    allowed = sum(limits.take(f"198.51.{number // 250}.{number % 250}") == 0 for number in range(10_000))
    assert allowed == web_security.ALL_TRIES, "however long it has been"


def test_those_who_have_logged_in_before_are_not_locked_out_by_others() -> None:
    limits = LoginLimits(Clock())
    assert limits.take("192.0.2.1") == 0
    limits.give_back("192.0.2.1")
    for number in range(1_000):
        limits.take(f"198.51.100.{number}")
    assert limits.take("192.0.2.1") == 0
    assert limits.take("192.0.2.2") > 0


def test_a_success_does_not_pay_for_failures() -> None:
    """Otherwise a user could guess the password of another one, between logins of their own."""
    limits = LoginLimits(Clock())
    failures = 0
    for _ in range(1_000):
        if limits.take("192.0.2.1") == 0:
            limits.give_back("192.0.2.1")
        failures += limits.take("192.0.2.1") == 0
    assert failures == web_security.TRIES


@pytest.mark.parametrize(
    "addresses",
    [
        ["2001:db8:1:2::1", "2001:db8:1:2:ffff::2", "2001:db8:1:2::1%eth0"],
        ["192.0.2.1", "::ffff:192.0.2.1"],
        ["an unknown address"] * 2,
    ],
)
def test_other_forms_of_an_address_are_the_same_one(addresses: list[str]) -> None:
    limits = LoginLimits(Clock())
    allowed = sum(limits.take(addresses[number % len(addresses)]) == 0 for number in range(100))
    assert allowed == web_security.TRIES


def test_counted_addresses_and_sessions_take_little_memory() -> None:
    limits, sessions = LoginLimits(Clock()), Sessions(Clock())
    for number in range(MAX_ADDRESSES + 5_000):
        limits.take(f"10.{number // 65_536}.{number // 256 % 256}.{number % 256}")
    assert len(limits) == MAX_ADDRESSES
    first = sessions.start(User("alice"))
    for _ in range(MAX_SESSIONS):
        sessions.start(User("bob"))
    assert sessions.user(first, is_use=False) is None


# -- sessions


async def test_a_login_gives_a_new_session_so_that_none_can_be_fixed(make: Make) -> None:
    made = make()
    async with from_address(made) as victim, from_address(made) as attacker:
        for each in (victim, attacker):
            each.client.cookies.set("horsies_session", "A" * 43, "ops.example", "/")
        await victim.log_in("alice", PASSWORD)
        assert await user_of(victim) == "operator"
        assert await user_of(attacker) is None
        assert victim.client.cookies["horsies_session"] != "A" * 43


async def test_a_session_is_of_no_use_after_the_logout(app: Horsies, make: Make) -> None:
    made = make()
    async with from_address(made) as alice:
        await alice.log_in("alice", PASSWORD)
        token, stolen = await alice.token("/nothing"), dict(alice.client.cookies)
        assert (await alice.post("/logout", token="wrong")).status_code == 403
        assert await user_of(alice) == "operator", "another page cannot log out by guessing"
        answer = await alice.post("/logout", token=token)
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")
        assert "Max-Age=0" in answer.headers["set-cookie"]
        assert await user_of(alice) is None
        async with from_address(made, cookies=stolen) as thief:
            assert await user_of(thief) is None
            assert (await thief.post("/actions/pause-queue", token=token, name="mail")).status_code == 303
        assert app.ops.list_audit() == []


async def test_a_token_of_a_form_ends_with_its_session(app: Horsies, make: Make) -> None:
    made = make()
    async with from_address(made) as alice, from_address(made) as bob:
        before = await alice.token("/login")
        await alice.log_in("alice", PASSWORD)
        own = await alice.token("/nothing")
        await alice.log_in("alice", PASSWORD)
        again = await alice.token("/nothing")
        assert len({before, own, again}) == 3
        await bob.log_in("alice", PASSWORD)
        others = await bob.token("/nothing")
        for token in (before, own, others):
            assert (await alice.post("/actions/pause-queue", token=token, name="mail")).status_code == 403
        assert app.ops.list_audit() == []
        assert (await alice.post("/actions/pause-queue", token=again, name="mail")).status_code == 303


async def test_a_login_form_needs_a_token_too(make: Make) -> None:
    """Otherwise another site could log a browser in as the attacker, and see what is searched for."""
    made = make()
    async with from_address(made) as victim, from_address(made) as attacker:
        theirs = await attacker.token("/login")
        await victim.token("/login")
        for token in (theirs, "", "x"):
            answer = await victim.post("/login", token=token, name="alice", password=PASSWORD)
            assert answer.status_code == 403
        assert await user_of(victim) is None


def test_sessions_end_when_they_are_not_used_and_in_any_case_after_a_week() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    idle, busy = sessions.start(User("alice")), sessions.start(User("bob"))
    while clock.now <= LIFETIME_S:
        assert sessions.user(busy, is_use=True) == User("bob")
        expected = User("alice") if clock.now <= IDLE_S else None
        assert sessions.user(idle, is_use=False) == expected, "an open page is not use"
        clock.now += 3_600
    assert sessions.user(busy, is_use=True) is None


async def test_cookies_are_kept_from_scripts_and_other_sites(make: Make) -> None:
    async with from_address(make()) as visitor:
        cookie = (await visitor.log_in("alice", PASSWORD)).headers["set-cookie"]
        assert re.fullmatch(r"horsies_session=[\w-]{43}; HttpOnly; Path=/; SameSite=lax", cookie), cookie


@pytest.mark.parametrize(
    "value", ["", "A" * 42, "A" * 44, "../../x", "A" * 42 + "=", "é", '"', "A" * 5_000, "null", "0"]
)
async def test_an_odd_cookie_is_no_session(make: Make, value: str) -> None:
    async with from_address(make()) as visitor:
        page = await visitor.get("/nothing", headers=[(b"cookie", b"horsies_session=" + value.encode())])
        assert page.status_code == 303


def test_neither_passwords_nor_tokens_nor_cookies_are_stored() -> None:
    sessions = Sessions()
    cookie = sessions.start(User("alice"))
    assert cookie not in repr(vars(sessions))
    found = repr(credentials())
    assert PASSWORD not in found
    assert TOKEN not in found
    assert hash_password(PASSWORD) != hash_password(PASSWORD), "salted"


def test_hashes_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[object] = []
    compare = web_security.hmac.compare_digest

    def watched(left: Any, right: Any) -> bool:
        compared.append(left)
        return compare(left, right)

    monkeypatch.setattr(web_security.hmac, "compare_digest", watched)
    is_password("x", hash_password("y"))
    signer = Signer()
    signer.is_csrf_token("x", "cookie", "alice")
    signer.unsign("cookie", signer.sign("cookie", "text"))
    assert len(compared) == 3


def test_what_is_signed_cannot_be_moved_between_parts() -> None:
    signer = Signer(b"s" * 32)
    assert signer.csrf_token("ab", "c") != signer.csrf_token("a", "bc")
    assert signer.unsign("b", signer.sign("a", "text")) is None
    assert signer.csrf_token("a", "b") != Signer(b"t" * 32).csrf_token("a", "b")


# -- tokens of scripts


async def test_a_script_sends_its_token_and_no_cookie(app: Horsies, make: Make) -> None:
    async with from_address(make()) as script:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        answer = await script.client.post("/actions/pause-queue", data={"name": "mail"}, headers=headers)
        assert (answer.status_code, answer.json()["kind"]) == (200, "success")
        assert [(entry.actor, entry.target) for entry in app.ops.list_audit()] == [("script", "mail")]
        answer = await script.client.post("/actions/pause-queue", data={"name": ""}, headers=headers)
        assert (answer.status_code, answer.json()["kind"]) == (400, "error")


@pytest.mark.parametrize(
    "header",
    ["Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN.upper()}", f"Basic {TOKEN}", f"Bearer {HASHED_TOKEN}", "Bearer null",
     f"Bearer {HASHED_TOKEN.removeprefix('token.')}", "Bearer " + "x" * 20_000, "Bearer é"],
)  # fmt: skip
async def test_another_token_is_refused_even_with_a_session(app: Horsies, make: Make, header: str) -> None:
    async with from_address(make()) as visitor:
        await visitor.log_in("alice", PASSWORD)
        headers = [(b"authorization", header.encode())]
        answer = await visitor.client.post("/actions/pause-queue", data={"name": "mail"}, headers=headers)
        assert answer.status_code in {401, 403}
        assert app.ops.list_audit() == []


async def test_with_tokens_only_there_is_no_login(app: Horsies) -> None:
    made = dashboard(app, credentials=[Credential(User("script"), HASHED_TOKEN)])
    async with from_address(made) as visitor:
        assert (await visitor.get("/")).status_code == 401
        assert (await visitor.get("/login")).status_code == 303
        assert (await visitor.client.post("/login", data={"name": "script", "password": TOKEN})).status_code == 404
    await made.close()


# -- files


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("hunter2", "expected NAME ROLE HASH"),
        ("alice operator hunter2", "expected NAME ROLE HASH"),
        ("alice admin hunter2", "the role is read-only or operator"),
        ("alice hunter2 operator", "the role is"),
        ("hunter2 hunter2", "the role is"),
        ("hunter2\x07 operator " + HASHED_TOKEN, "the name has"),
        ("hunter2" * 100 + " operator " + HASHED_TOKEN, "the name has"),
        ("\ufeffhunter2 operator " + HASHED_TOKEN, "the name has"),
        ("alice operator " + HASHED_TOKEN + " hunter2", "expected NAME ROLE HASH"),
        ("alice operator scrypt.18.8.1." + "A" * 22 + "." + "A" * 43, "expected NAME ROLE HASH"),
        ("alice operator scrypt.15.16.1." + "A" * 22 + "." + "A" * 43, "expected NAME ROLE HASH"),
        ("alice operator scrypt.15.8.1." + "ä" * 22 + "." + "A" * 43, "expected NAME ROLE HASH"),
    ],
)
def test_a_bad_line_is_named_and_not_shown(line: str, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_credentials(f"# users\n\n{line}\n", "the file")
    assert f"line 3: {problem}" in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_good_lines_are_read() -> None:
    found = read_credentials(f"# users\r\n  alice   operator {HASHED_TOKEN}\r\n\n{hash_password(PASSWORD)}", "the file")
    assert [each.user for each in found] == [User("alice", Role.OPERATOR), User("admin", Role.OPERATOR)]


@pytest.mark.parametrize("text", ["", "\n\n", "# alice operator x"])
def test_a_file_without_users_is_refused_instead_of_letting_all_in(text: str) -> None:
    with pytest.raises(ConfigError, match="no credential"):
        read_credentials(text, "the file")
