"""Connection strings: check them, convert them for libpq, and show them without their passwords.

libpq parses them. Its error messages are never shown: they quote what it does not understand, such as a password with an unescaped `%`. Nor is
a string accepted in which part of a password would become a host, a port or a database name, because errors at connect time quote those.

There are two ways of masking, because the inputs differ. `masked` shows of one connection string only the parameters that are known to be
harmless. `mask_passwords` looks for secrets inside any text, such as an error message, and hides too much rather than too little.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import unquote

ACCEPTED: Final = (
    "write postgresql://user:password@host:5432/dbname (or postgres://, or with the driver of SQLAlchemy, such as postgresql+psycopg://) "
    "or a libpq string such as 'host=localhost dbname=app'"
)
ESCAPES: Final = (
    "in a user name, a password or a database name, write % as %25, @ as %40, / as %2F, : as %3A, "
    "? as %3F, = as %3D, & as %26 and a space as %20"
)
PAIRS_ADVICE: Final = (
    "is not all key=value with lower-case names that libpq knows; "
    r"put a value with spaces into quotes, as in password='a b', and write ' there as \'"
)
MASK: Final = "***"

_INSTEAD: Final = {
    "write sslmode=require, or another sslmode": ("ssl", "ssl_require", "sslaccept", "sslfactory", "direct_tls"),
    "remove it, and set PostgresConfig(connect_timeout_s=...)": ("timeout", "pool_timeout", "socket_timeout"),
    "remove it, and set PostgresConfig(pool_max_size=...)": (
        "connection_limit", "max_overflow", "pool", "pool_max_size", "pool_min_size", "pool_size", "max_size", "min_size",
    ),
    "remove it, and set PostgresConfig(schema=...): horsies has a schema of its own": ("schema", "currentSchema", "search_path"),
    "remove it; for a setting of the session write options=-c%20name%3Dvalue": (
        "server_settings", "command_timeout", "statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout",
    ),
    "remove it; horsies finds poolers by itself, and prepares statements only where that is safe": (
        "pgbouncer", "prepare_threshold", "prepareThreshold", "prepared_statements", "prepared_statement_cache_size",
        "prepared_statement_name_func", "statement_cache_size", "max_cached_statement_lifetime", "max_cacheable_statement_size",
    ),
    "write application_name": ("ApplicationName",),
    "remove it": (
        "async_fallback", "autocommit", "conn_health_checks", "conn_max_age", "encoding", "executemany_mode", "pool_pre_ping",
        "pool_recycle", "reWriteBatchedInserts", "use_native_hstore", "use_native_uuid",
    ),
}  # fmt: skip
OF_DRIVERS: Final = {name: advice for advice, names in _INSTEAD.items() for name in names}
"""Options that URLs for other drivers and libraries have after the `?`, and what to write instead.

Only these names are shown: what libpq does not know may as well be a part of a password.
"""

# Parameters that may be shown. Anything else may be a secret, or a misspelt `password`.
SHOWN: Final = frozenset({
    "application_name", "channel_binding", "client_encoding", "connect_timeout", "dbname", "host", "hostaddr", "keepalives",
    "keepalives_count", "keepalives_idle", "keepalives_interval", "load_balance_hosts", "options", "passfile", "port",
    "require_auth", "service", "sslcert", "sslkey", "sslmode", "sslrootcert", "target_session_attrs", "tcp_user_timeout", "user",
})  # fmt: skip

# Compiled here, and so before a fork: every child that loads an app checks its database URL.
_BROKEN: Final = re.compile(r"[\x00\ud800-\udfff]")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_DRIVER: Final = re.compile(r"\A(postgres|postgresql)\+[a-z0-9_]+://")  # as in URLs for SQLAlchemy
_URL_IN_TEXT: Final = r"(://[^\s:/]*:)\S*@"
_QUERY_IN_TEXT: Final = r"([?&])([^=&\s]+)=[^&\s]*"
_HIDDEN_NAME: Final = r"(?i)pass(word|wd)|secret|scram_(client|server)_key"
_PAIR_IN_TEXT: Final = (
    r"(?is)(?<![?&])\b(\w*(?:password|passwd|secret|scram_client_key|scram_server_key)\w*['\"]?\s*[=:]\s*)"
    r"(?:'(?:\\.|[^'\\])*'?|\"(?:\\.|[^\"\\])*\"?|(?:\\.|[^\s\\])*)"
)


def url_problem(url: object) -> str | None:
    """Return what is wrong with a connection string, without quoting it; None if it is valid."""
    if not isinstance(url, str):
        return f"must be a string, not {type(url).__name__}; {ACCEPTED}"
    if not url.strip():
        return f"is empty; {ACCEPTED}"
    if _BROKEN.search(url):
        return "contains a NUL or a broken character; remove it"
    if scheme := _SCHEME.match(conninfo(url)):
        problem = _url_form_problem(url, scheme[1])
    elif "=" not in url:
        problem = f"is neither a URL nor key=value pairs; {ACCEPTED}"
    else:
        problem = None if _parse(url) is not None else PAIRS_ADVICE
    return problem or _port_problem(_parse(url) or {})


def _url_form_problem(url: str, scheme: str) -> str | None:
    if scheme not in {"postgresql", "postgres"}:
        return f"starts with {scheme}://, which is not supported; {ACCEPTED}"
    if url.split() != [url]:
        return "contains white space; remove it, or write a space that belongs there as %20"
    if _parse(url) is None:
        names = {unquote(pair.partition("=")[0]) for pair in _split(url)[2].split("&")}
        if found := sorted(OF_DRIVERS.keys() & names):
            advice = "; ".join(f"{name}: {OF_DRIVERS[name]}" for name in found)
            return f"has options of other drivers after the ?, which libpq does not know; {advice}"
        return f"is not a URL that libpq understands; {ESCAPES}; after the ?, write name=value with lower-case names that libpq knows"
    return f"has an @ in the wrong place; {ESCAPES}" if "@" in _split(url)[1] else None


def _port_problem(params: Mapping[str, str]) -> str | None:
    for port in params.get("port", "").split(","):
        if port and not (port.isascii() and port.isdigit() and int(port) in range(1, 65536)):
            return f"has a port that is not a number from 1 to 65535; if that is part of a password, {ESCAPES}"
    return None


def conninfo(url: str) -> str:
    """Return a connection string in the form that libpq understands: without a driver in the scheme."""
    return _DRIVER.sub(r"\1://", url)


def masked(url: str) -> str:
    """Return a connection string without its secrets; one that cannot be parsed is masked completely."""
    if url_problem(url) is not None or (params := _parse(url)) is None:
        return MASK
    if not re.match(_SCHEME, url):
        from psycopg.conninfo import make_conninfo  # noqa: PLC0415 - as below

        return make_conninfo("", **{name: value if name in SHOWN else MASK for name, value in params.items()})
    user, location, query = _split(url)
    if user is not None:
        name, colon, _ = user.partition(":")
        location = f"{name}:{MASK}@{location}" if colon else f"{name}@{location}"
    pairs = [pair.partition("=") for pair in query.split("&")]
    query = "&".join(f"{name}{is_}{value if unquote(name) in SHOWN else value and MASK}" for name, is_, value in pairs)
    return f"{url.partition('://')[0]}://{location}{'?' if query else ''}{query}"


def unknown_parameters(names: Iterable[str]) -> list[str]:
    """Return those that are not parameters of libpq, sorted."""
    from psycopg.pq import Conninfo  # noqa: PLC0415 - as above

    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    return sorted(set(names) - known)


def make_conninfo(params: Mapping[str, str]) -> str:
    """Return the connection string with these parameters of libpq."""
    from psycopg.conninfo import make_conninfo as make  # noqa: PLC0415 - as above

    return make("", **params)


def _parse(url: str) -> dict[str, str] | None:
    """Return the parameters of a connection string, or None if libpq refuses it."""
    from psycopg import Error  # noqa: PLC0415 - only to check or show a URL: the driver is slow to import
    from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415

    try:
        return {name: str(value) for name, value in conninfo_to_dict(conninfo(url)).items()}
    except (Error, UnicodeDecodeError):  # the second for bytes in %-escapes that are not UTF-8
        return None


def _split(url: str) -> tuple[str | None, str, str]:
    """Return the user part of a URL, the hosts with the database name, and the query."""
    rest = url.partition("://")[2]
    # As in libpq, the user part ends at the first `@` before any `/`, and may itself contain `?`.
    user, at, after = rest.partition("@")
    has_user = bool(at) and "/" not in user
    location, _, query = (after if has_user else rest).partition("?")
    return user if has_user else None, location, query


def mask_passwords(text: str) -> str:
    """Replace the passwords of connection strings in any text, for errors and logs."""
    text = re.sub(_URL_IN_TEXT, rf"\1{MASK}@", text)
    text = re.sub(_QUERY_IN_TEXT, _mask_query_pair, text)
    return re.sub(_PAIR_IN_TEXT, rf"\1{MASK}", text)


def _mask_query_pair(pair: re.Match[str]) -> str:
    # libpq decodes the names of parameters too, so `p%61ssword` is a password.
    return f"{pair[1]}{pair[2]}={MASK}" if re.search(_HIDDEN_NAME, unquote(pair[2])) else pair[0]
