"""Connection strings: check them, convert them for libpq, and show them without their passwords.

There are two ways of masking, because the inputs differ. `masked` parses one whole connection string as libpq does and
shows only parameters that are known to be harmless. `mask_passwords` looks for secrets inside any text, such as an error message,
and hides too much rather than too little.

The checks are as thorough as libpq's own parser, because that parser quotes what it does not understand in its error message. A password
with an unescaped `%` or `/` would be such a part.
"""

import re
from typing import Final

ACCEPTED: Final = (
    "write postgresql://user:password@host:5432/dbname (or postgres://, postgresql+psycopg://) "
    "or a libpq string such as 'host=localhost dbname=app'"
)
MASK: Final = "***"
SCHEMES: Final = frozenset({"postgresql", "postgres", "postgresql+psycopg"})

# Parameters that may be shown. Anything else may be a secret, or a misspelt `password`.
SHOWN: Final = frozenset(
    {
        "application_name",
        "channel_binding",
        "client_encoding",
        "connect_timeout",
        "dbname",
        "host",
        "hostaddr",
        "keepalives",
        "keepalives_count",
        "keepalives_idle",
        "keepalives_interval",
        "load_balance_hosts",
        "options",
        "passfile",
        "port",
        "require_auth",
        "service",
        "sslcert",
        "sslkey",
        "sslmode",
        "sslrootcert",
        "target_session_attrs",
        "tcp_user_timeout",
        "user",
    }
)

# Patterns as strings: `re` compiles and caches them at their first use. Every child loads this module, and uses few of them.
_SCHEME: Final = r"([A-Za-z][A-Za-z0-9+.-]*)://"
# As in libpq, the user part ends at the first `@` before any `/`, and may itself contain `?`.
_URL: Final = (
    r"(?s)(?P<scheme>[^:]+)://(?:(?P<user>[^:@/]*)(?P<secret>:[^@/]*)?@)?"
    r"(?P<hosts>[^/?]*)(?P<dbname>/[^?]*)?(?:\?(?P<query>.*))?"
)
_HOST: Final = r"(?:\[[^\[\]]*\]|[^\[\]:]*)(?::(?P<port>[0-9]*))?"
_NAME: Final = "[a-z_]+"
_BAD_ESCAPE: Final = r"%(?![0-9A-Fa-f]{2})|%00"
_PAIR: Final = r"(?as)\s*(?P<key>[a-z_]+)\s*=\s*(?P<value>'(?:\\.|[^'\\])*'|(?!')(?:\\.|[^\s\\])*)"

_SPACE: Final = " \t\n\r\f\v"  # what libpq skips; Python has more kinds of white space

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
    if not url.isprintable() and not re.fullmatch(r"[^\x00\ud800-\udfff]*", url):
        return "contains a NUL or a broken character; remove it"
    if scheme := re.match(_SCHEME, url):
        return _url_form_problem(url, scheme[1])
    if "=" in url:
        return _pairs_problem(url)
    return f"is neither a URL nor key=value pairs; {ACCEPTED}"


def conninfo(url: str) -> str:
    """Return a connection string in the form that libpq understands: without a driver in the scheme."""
    return "postgresql" + url.removeprefix("postgresql+psycopg") if url.startswith("postgresql+psycopg://") else url


def masked(url: str) -> str:
    """Return a connection string without its secrets; one that cannot be parsed is masked completely."""
    if url_problem(url) is not None:
        return MASK
    if not re.match(_SCHEME, url):
        pairs = [(pair["key"], pair["value"]) for pair in re.finditer(_PAIR, url)]
        return " ".join(f"{key}={value if key in SHOWN else MASK}" for key, value in pairs)
    parts = re.fullmatch(_URL, url)
    if parts is None:
        return MASK
    user = "" if parts["user"] is None else parts["user"] + (f":{MASK}" if parts["secret"] else "") + "@"
    query: list[str] = []
    for pair in () if parts["query"] is None else parts["query"].split("&"):
        key, equals, value = pair.partition("=")
        query.append(f"{key}{equals}{value if _unquote(key) in SHOWN else MASK}" if equals else pair)
    end = f"?{'&'.join(query)}" if query else ""
    return f"{parts['scheme']}://{user}{parts['hosts']}{parts['dbname'] or ''}{end}"


def mask_passwords(text: str) -> str:
    """Replace the passwords of connection strings in any text, for errors and logs."""
    text = re.sub(_URL_IN_TEXT, rf"\1{MASK}@", text)
    text = re.sub(_QUERY_IN_TEXT, _mask_query_pair, text)
    return re.sub(_PAIR_IN_TEXT, rf"\1{MASK}", text)


def _url_form_problem(url: str, scheme: str) -> str | None:
    if scheme not in SCHEMES:
        return f"starts with {scheme}://, which is not supported; {ACCEPTED}"
    if url.split() != [url]:
        return "contains white space; remove it, or write a space that belongs there as %20"
    if "%" in url and re.search(_BAD_ESCAPE, url):
        return "contains a % without two hexadecimal digits after it, or %00; write the percent sign itself as %25"
    parts = re.fullmatch(_URL, url)
    if parts is None or "@" in parts["hosts"] or "@" in (parts["dbname"] or ""):
        return "has an @ in the wrong place; in a user name, a password or a database name write @ as %40 and / as %2F"
    return _hosts_problem(parts["hosts"]) or _query_problem(parts["query"] or "")


def _hosts_problem(hosts: str) -> str | None:
    for host in hosts.split(","):
        found = re.fullmatch(_HOST, host)
        if found is None or int(found["port"] or "1") not in range(1, 65536):
            return (
                "has a port that is not a number from 1 to 65535; "
                "if that is part of a password, write : / ? # [ ] @ in it percent-encoded, such as %2F for /"
            )
    return None


def _query_problem(query: str) -> str | None:
    for name, equals, value in (pair.partition("=") for pair in query.split("&") if pair):
        if not equals or "=" in value or not re.fullmatch(_NAME, _unquote(name)):
            return (
                "has a parameter after the ? that is not name=value with a lower-case name; "
                "write ? = & in a value or a password as %3F %3D %26"
            )
    return None


def _pairs_problem(text: str) -> str | None:
    position = 0
    while text[position:].strip(_SPACE):
        pair = re.compile(_PAIR).match(text, position)
        if pair is None:
            return r"is not all key=value with lower-case keys; put a value with spaces into quotes, as in password='a b', and write ' there as \'"
        position = pair.end()
    return None


def _mask_query_pair(pair: re.Match[str]) -> str:
    # libpq decodes the names of parameters too, so `p%61ssword` is a password.
    return f"{pair[1]}{pair[2]}={MASK}" if re.search(_HIDDEN_NAME, _unquote(pair[2])) else pair[0]


def _unquote(text: str) -> str:
    if "%" not in text:
        return text
    from urllib.parse import unquote  # noqa: PLC0415 - every child loads this module, and urllib is slow to import

    return unquote(text)
