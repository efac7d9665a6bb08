"""Who a request is from, and what it may do: users, passwords, tokens, sessions, proxies, and requests that other sites caused.

Credentials are lines of text, one for each: a name, a role, and the hash of a password (scrypt, because people choose passwords) or of a token
(SHA-256: it is random and long). Sessions of users that logged in with a password are kept in the memory of the server, by the hash of their
cookie, so that a logout ends them at once.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from horsies.model.errors import ConfigError

IDLE_S: Final = 8 * 3_600.0  # a session ends when it was not used for this time,
LIFETIME_S: Final = 7 * 86_400.0  # and in any case after this time
MAX_SESSIONS: Final = 10_000
MAX_ADDRESSES: Final = 10_000  # whose attempts to log in are counted
TRIES: Final = 10  # to log in, from one address, at once
TRY_AGAIN_S: Final = 30.0  # after which one more is possible
ALL_TRIES: Final = 100  # from all addresses without a successful login
ALL_TRY_AGAIN_S: Final = 3.0
MAX_PASSWORD: Final = 1_000  # characters
SCRYPT: Final = (15, 8, 1)  # the logarithm of the cost (32 MB of memory, a tenth of a second), block size, parallelism
MAX_NAME: Final = 200  # characters of the name of a user

PEER: Final = "horsies.peer"
"""Where the scope of a request has the address that it came from, if that is a proxy."""

_COOKIE: Final = re.compile(r"[A-Za-z0-9_-]{43}")
_FORWARDED: Final = re.compile(
    r"forwarded|via|x-(forwarded|original|envoy)-.*|x-(real|client|cluster-client)-ip|(cf-connecting|true-client|fly-client|fastly-client)-ip"
)
"""Headers that only proxies add."""
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


class Role(StrEnum):
    """What a user may do."""

    READ_ONLY = "read-only"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class User:
    """Who is signed in. Actions are recorded under the name."""

    name: str
    role: Role = Role.READ_ONLY

    def __post_init__(self) -> None:
        if not is_user_name(self.name):
            raise ValueError(f"the name of a user has 1 to {MAX_NAME} printable characters, unlike {self.name[:50]!r}")
        object.__setattr__(self, "role", Role(self.role))  # `authorize` may give it as text


Authorize: TypeAlias = Callable[[Request], "User | Response | Awaitable[User | Response | None] | None"]
"""Returns who a request is from, None to refuse it, or what to answer instead, such as a redirect to a login."""


def is_user_name(name: str) -> bool:
    return 1 <= len(name) <= MAX_NAME and name.isprintable() and name.strip() == name


# -- passwords and tokens


@dataclass(frozen=True, slots=True)
class Credential:
    """A user with the hash of a password or of a token."""

    user: User
    hashed: str

    @property
    def is_token(self) -> bool:
        return self.hashed.startswith("token.")


def hash_password(password: str) -> str:
    """Return the text that is stored of a password."""
    return _scrypt(password, secrets.token_bytes(16), SCRYPT)


def new_token() -> tuple[str, str]:
    """Return a new token, and the text that is stored of it."""
    token = f"horsies_{secrets.token_urlsafe(32)}"
    return token, hash_token(token)


def hash_token(token: str) -> str:
    return f"token.{hashlib.sha256(token.encode()).hexdigest()}"


def is_password(password: str, hashed: str) -> bool:
    """Compare in constant time. Takes a tenth of a second of a CPU."""
    _, cost, block, parallel, salt, _ = hashed.split(".")
    found = _scrypt(password, _from_text(salt), (int(cost), int(block), int(parallel)))
    return hmac.compare_digest(found, hashed)


def _scrypt(password: str, salt: bytes, parameters: tuple[int, int, int]) -> str:
    cost, block, parallel = parameters
    digest = hashlib.scrypt(
        password.encode(errors="surrogatepass"), salt=salt, n=1 << cost, r=block, p=parallel, maxmem=1 << 28, dklen=32
    )
    return f"scrypt.{cost}.{block}.{parallel}.{_to_text(salt)}.{_to_text(digest)}"


def _to_text(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _from_text(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


# With these parameters, scrypt takes at most 150 MB.
_HASH: Final = re.compile(r"scrypt\.1[0-7]\.[1-9]\.[1-9]\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}|token\.[0-9a-f]{64}")


def read_credentials(text: str, source: str) -> list[Credential]:
    """Read lines such as `alice operator scrypt.…`. A line that is only the hash of a password is for `admin`, an operator."""
    found: list[Credential] = []
    problems: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        name, role, hashed = ["admin", Role.OPERATOR, *words] if len(words) == 1 else [*words, "", "", ""][:3]
        # A line may have a password by mistake, so nothing of it is shown.
        if not is_user_name(name):
            problems.append(f"line {number}: the name has 1 to {MAX_NAME} printable characters")
        elif role not in set(Role):
            problems.append(f"line {number}: the role is {' or '.join(Role)}")
        elif len(words) > 3 or not _HASH.fullmatch(hashed):  # noqa: PLR2004 - a name, a role and a hash
            problems.append(f"line {number}: expected NAME ROLE HASH, as `horsies web hash-password` prints it")
        else:
            found.append(Credential(User(name, Role(role)), hashed))
    if not found and not problems:
        problems.append("there is no credential in it; make one with `horsies web hash-password`")
    if problems:
        raise ConfigError(f"credentials in {source}", problems)
    return found


class Credentials:
    """Finds the user of a password or a token."""

    def __init__(self, credentials: Sequence[Credential]) -> None:
        self._passwords: dict[str, list[Credential]] = {}
        for credential in credentials:
            if not credential.is_token:
                self._passwords.setdefault(credential.user.name, []).append(credential)
        self._tokens = {credential.hashed: credential.user for credential in credentials if credential.is_token}
        self._decoy = hash_password(secrets.token_urlsafe())

    @property
    def have_passwords(self) -> bool:
        return bool(self._passwords)

    def user_of_token(self, token: str) -> User | None:
        """Look a token up by its hash, so that the time of the lookup shows nothing of the token."""
        return self._tokens.get(hash_token(token))

    def user_of_password(self, name: str, password: str) -> User | None:
        """Check a password. A name that does not exist takes as long as one that does."""
        if len(password) > MAX_PASSWORD:
            password = ""
        found = None
        for credential in self._passwords.get(name, ()):
            if is_password(password, credential.hashed):
                found = credential.user
        if name not in self._passwords:
            is_password(password, self._decoy)
        return found


class LoginLimits:
    """Limits attempts to log in, from one address and from all. Each takes a try before the password is looked at; a success gives it back.

    Too many from all addresses do not lock out those from which users have logged in before. Memory is bounded: the address that
    was seen the longest time ago is forgotten, and the limit for all still holds for it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._all = _Tries(ALL_TRIES, ALL_TRY_AGAIN_S, clock())
        self._by_address: OrderedDict[str, _Tries] = OrderedDict()
        self._known: OrderedDict[str, None] = OrderedDict()

    def take(self, address: str) -> float:
        """Take a try. Return 0, or in how many seconds there is one again."""
        now, key = self._clock(), _address_key(address)
        tries = self._by_address.setdefault(key, _Tries(TRIES, TRY_AGAIN_S, now))
        self._by_address.move_to_end(key)
        if len(self._by_address) > MAX_ADDRESSES:
            self._by_address.popitem(last=False)
        if (wait_s := tries.missing_s(now)) > 0:
            return wait_s
        if key not in self._known:
            if (wait_s := self._all.missing_s(now)) > 0:
                return wait_s
            self._all.left -= 1
        tries.left -= 1
        return 0

    def give_back(self, address: str) -> None:
        """Return the try of a login that has succeeded."""
        key = _address_key(address)
        if key in self._by_address:
            self._by_address[key].left += 1
        if key not in self._known:
            self._all.left += 1
        self._known[key] = None
        self._known.move_to_end(key)
        if len(self._known) > MAX_ADDRESSES:
            self._known.popitem(last=False)

    def __len__(self) -> int:
        return len(self._by_address)


@dataclass(slots=True)
class _Tries:
    """How many attempts are left, and when that was computed."""

    most: int
    each_s: float
    at: float
    left: float = field(init=False)

    def __post_init__(self) -> None:
        self.left = self.most

    def missing_s(self, now: float) -> float:
        """Return in how many seconds there is one; 0 if there is one now."""
        self.left, self.at = min(self.most, self.left + (now - self.at) / self.each_s), now
        return 0.0 if self.left >= 1 else (1 - self.left) * self.each_s


def _address_key(address: str) -> str:
    """Return what attempts are counted by: an IPv4 address, or an IPv6 network, because one customer gets all addresses of a /64."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:50]
    if isinstance(parsed, ipaddress.IPv6Address) and not parsed.ipv4_mapped:
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)


# -- sessions


@dataclass(slots=True)
class Session:
    """A user that has logged in."""

    user: User
    started_at: float
    used_at: float


class Sessions:
    """The sessions of this process, by the hashes of their cookies."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def start(self, user: User) -> str:
        """Return the cookie of a new session."""
        cookie, now = new_cookie(), self._clock()
        self._sessions[_key(cookie)] = Session(user, now, now)
        if len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return cookie

    def user(self, cookie: str, *, is_use: bool) -> User | None:
        """Return whose session it is. `is_use`: a person did something, so the session does not end soon."""
        key, now = _key(cookie), self._clock()
        session = self._sessions.get(key)
        if session is None:
            return None
        if now - session.used_at > IDLE_S or now - session.started_at > LIFETIME_S:
            del self._sessions[key]
            return None
        if is_use:
            session.used_at = now
            self._sessions.move_to_end(key)
        return session.user

    def end(self, cookie: str) -> None:
        self._sessions.pop(_key(cookie), None)


def new_cookie() -> str:
    return secrets.token_urlsafe(32)


def valid_cookie(text: str | None) -> str | None:
    """Return the value of a cookie if it can be one of ours."""
    return text if text and _COOKIE.fullmatch(text) else None


def _key(cookie: str) -> str:
    return hashlib.sha256(cookie.encode()).hexdigest()


class Signer:
    """Makes tokens for forms, each for one browser and one user, and signs what is kept in cookies."""

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = secret or secrets.token_bytes(32)

    def csrf_token(self, cookie: str, user_name: str) -> str:
        return self._mac("csrf", cookie, user_name)

    def is_csrf_token(self, given: str, cookie: str, user_name: str) -> bool:
        return hmac.compare_digest(given.encode(), self.csrf_token(cookie, user_name).encode())

    def sign(self, cookie: str, text: str) -> str:
        """Return the text and a signature; it is valid only together with this cookie."""
        return f"{_to_text(text.encode())}.{self._mac('flash', cookie, text)}"

    def unsign(self, cookie: str, signed: str) -> str | None:
        encoded, _, mac = signed.partition(".")
        try:
            text = _from_text(encoded).decode()
        except ValueError:
            return None
        return text if hmac.compare_digest(mac.encode(), self._mac("flash", cookie, text).encode()) else None

    def _mac(self, *parts: str) -> str:
        message = b"".join(len(part.encode()).to_bytes(4) + part.encode() for part in parts)
        return _to_text(hmac.digest(self._secret, message, "sha256"))


# -- where requests come from


def parse_networks(addresses: Iterable[str]) -> list[Network]:
    """Read addresses such as `10.0.0.1` or `10.0.0.0/8`."""
    return [ipaddress.ip_network(address, strict=False) for address in addresses]


def is_in(address: str | None, networks: Sequence[Network]) -> bool:
    try:
        parsed = ipaddress.ip_address((address or "").partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None) or parsed
    return any(mapped in network for network in networks)


def client_address(forwarded_for: str, proxies: Sequence[Network]) -> str | None:
    """Return the last address of X-Forwarded-For that is not a proxy's. Those before it may be invented."""
    for address in reversed([part.strip() for part in forwarded_for.split(",")]):
        try:
            ipaddress.ip_address(address)
        except ValueError:
            return None
        if not is_in(address, proxies):
            return address
    return None


def host_of(request: HTTPConnection) -> tuple[str, int | None] | None:
    """Return the name and the port that the client believes to speak to; None if that is not clear."""
    hosts = request.headers.getlist("host")
    return _split_host(hosts[0]) if len(hosts) == 1 else None


def _split_host(text: str) -> tuple[str, int | None] | None:
    if not re.fullmatch(r"(?:[A-Za-z0-9._-]{1,255}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?", text):
        return None
    try:
        parts = urlsplit(f"//{text}")
        return (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        return None


def is_loopback_name(name: str) -> bool:
    """Whether a Host header names this machine: no other name can, whatever the DNS says at the moment."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def is_local(request: HTTPConnection) -> bool:
    """Whether the request comes from this machine and was meant for it. What a proxy has forwarded came from elsewhere.

    Not all proxies say so. nginx without further configuration names itself as the host, but speaks HTTP/1.0; and the page that has sent a form
    is then at another address.
    """
    host = host_of(request)
    is_loopback = request.client is not None and is_loopback_name(request.client.host)
    origin = request.headers.get("origin")
    page = host if origin is None else _split_host(origin.partition("://")[2])
    return (
        is_loopback
        and host is not None
        and is_loopback_name(host[0])
        and page is not None
        and is_loopback_name(page[0])
        and request.scope.get("http_version") != "1.0"
        and not any(_FORWARDED.fullmatch(name) for name in request.headers)
    )


def is_embedded_elsewhere(request: HTTPConnection) -> bool:
    """Whether a page of another site loads this as a part of itself: an image, a script, a frame, a stream. Following a link to a page is allowed."""
    is_foreign = request.headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}
    return is_foreign and (
        request.headers.get("sec-fetch-mode") != "navigate" or request.headers.get("sec-fetch-dest") != "document"
    )


def is_from_this_site(request: HTTPConnection) -> bool:
    """Whether a page of ours sent this form. All browsers of today say so themselves; others say at least which site it was."""
    if (site := request.headers.get("sec-fetch-site")) is not None:
        return site == "same-origin"
    if (origin := request.headers.get("origin")) is None:
        return True  # not a browser, or an old one: there is still the token
    scheme, _, rest = origin.partition("://")
    host, page = host_of(request), _split_host(rest)
    if host is None or page is None or scheme not in _DEFAULT_PORTS:
        return False
    default = _DEFAULT_PORTS[scheme]
    return (page[0], page[1] or default) == (host[0], host[1] or default)


class ProxyHeader:
    """An `authorize` for a proxy that authenticates users and names them in a header, such as X-Forwarded-User.

    The header counts only in requests that come directly from these proxies. `operators` may act; all others have the default role.
    """

    def __init__(
        self,
        header: str,
        proxies: Iterable[str],
        *,
        operators: Iterable[str] = (),
        default_role: Role | str = Role.READ_ONLY,
    ) -> None:
        self.header = header
        self.proxies = parse_networks(proxies)
        if not self.proxies:
            raise ValueError("name the addresses of the proxies: anyone else could send the header, too")
        self._operators = frozenset(operators)
        self._default_role = Role(default_role)

    def __call__(self, request: Request) -> User | None:
        peer = request.scope.get(PEER) or (request.client.host if request.client else None)
        names = request.headers.getlist(self.header)
        if not is_in(peer, self.proxies) or len(names) != 1:
            return None
        name = names[0]
        with suppress(UnicodeDecodeError):  # servers decode headers as Latin-1
            name = name.encode("latin-1").decode()
        if not is_user_name(name):
            return None
        return User(name, Role.OPERATOR if name in self._operators else self._default_role)
