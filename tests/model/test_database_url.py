from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict

from horsies.model.config import PostgresConfig
from horsies.model.database_url import OF_DRIVERS, conninfo, mask_passwords, masked, url_problem
from horsies.model.errors import ConfigError

SECRET = "S3cr3t"
around = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
delimiters = st.text("@:/?#&=%'\" \\[]+,;.a1", max_size=12)
secrets = st.tuples(around | delimiters, around | delimiters).map(lambda sides: sides[0] + SECRET + sides[1])


def quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def escaped(value: str) -> str:
    return "".join(char if char.isalnum() else f"\\{char}" for char in value)


# How a password can stand in a connection string, each as a recipe.
FORMS: dict[str, Callable[[str], str]] = {
    "in the user part": lambda secret: f"postgresql://ann:{quote(secret, safe='')}@db.example:5433/app",
    "without a user": lambda secret: f"postgres://:{quote(secret, safe='')}@/app",
    "with a driver": lambda secret: f"postgresql+psycopg://ann:{quote(secret, safe='')}@h1,h2:5433/app?sslmode=prefer",
    "as a parameter": lambda secret: f"postgresql://h/app?user=ann&password={quote(secret, safe='')}&sslmode=prefer",
    "as an encoded parameter": lambda secret: f"postgresql://h/app?p%61ssword={quote(secret, safe='')}",
    "in quotes": lambda secret: f"host=h password={quoted(secret)} dbname=app",
    "in quotes, spaced": lambda secret: f"host = h  password = {quoted(secret)}  dbname = 'app x'",
    "with backslashes": lambda secret: f"password={escaped(secret)} dbname=app",
}
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())


@every_form
@given(secret=secrets)
def test_a_password_never_shows(form: Callable[[str], str], secret: str):
    url = form(secret)
    assert conninfo_to_dict(conninfo(url))["password"] == secret, "the recipe must be one that libpq understands"
    config = PostgresConfig(database_url=url, listen_url=url)
    for shown in (repr(config), str(config), f"{config}", masked(url)):
        assert SECRET not in shown
        assert "app" in shown
        assert "***" in shown


@every_form
@given(secret=secrets)
def test_a_password_never_shows_in_a_message_around_it(form: Callable[[str], str], secret: str):
    message = mask_passwords(f'connection to "{form(secret)}" failed for bob@example, sorry')
    assert SECRET not in message
    assert message.startswith("connection to ")


@given(before=around | delimiters, after=around | delimiters)
@example(before="", after="%80")
def test_a_password_that_was_not_percent_encoded_never_shows_either(before: str, after: str):
    assume("user=" not in before)
    url = f"postgresql://ann:{before}{SECRET}{after}@db.example/app"
    try:
        shown = repr(PostgresConfig(database_url=url))
    except ConfigError as error:
        shown = str(error)
    assert SECRET not in shown


@given(st.text())
def test_libpq_understands_every_accepted_text(text: str):
    for url in (text, f"postgresql://{text}", f"host={text}", f"host=h {text}"):
        if url_problem(url) is None:
            conninfo_to_dict(conninfo(url))


@pytest.mark.parametrize("key", ["password", "sslpassword", "requirepeer"])
def test_only_harmless_parameters_show(key: str):
    assert set(masked(f"user=ann host=h {key}={SECRET}").split()) == {"user=ann", "host=h", f"{key}=***"}
    assert masked(f"postgresql://h/app?{key}={SECRET}&user=ann") == f"postgresql://h/app?{key}=***&user=ann"


@pytest.mark.parametrize("key", ["pasword", "pwd"])
def test_nothing_shows_of_a_string_with_a_parameter_that_libpq_does_not_know(key: str):
    assert masked(f"host=h {key}={SECRET}") == masked(f"postgresql://h/app?{key}={SECRET}") == "***"


@pytest.mark.parametrize("key", ["password", "sslpassword", "PGPASSWORD", "client_secret", "scram_server_key"])
@pytest.mark.parametrize(
    "value", [SECRET, f"'{SECRET} x'", f'"{SECRET} x"', rf"'a\' {SECRET}'", f"'{SECRET}", rf"a\ {SECRET}"]
)
@pytest.mark.parametrize("equals", ["=", " = ", ": "])
def test_a_secret_in_a_text_is_found_by_its_name(key: str, value: str, equals: str):
    assert mask_passwords(f"could not use {key}{equals}{value}") == f"could not use {key}{equals}***"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mysql://u:p@h/db is no use", "mysql://u:***@h/db is no use"),
        ("postgresql://me@srv:p@h/db", "postgresql://me@srv:***@h/db"),
        ("postgresql://u:a/b@c@h/db", "postgresql://u:***@h/db"),
        ("postgresql://h/db?password=p&user=u", "postgresql://h/db?password=***&user=u"),
        ("{'host': 'h', 'password': 'p'}", "{'host': 'h', 'password': ***}"),
    ],
)
def test_in_a_text_even_a_malformed_url_is_masked(text: str, expected: str):
    assert mask_passwords(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        'FATAL:  password authentication failed for user "ann"',
        "connection to server at 127.0.0.1, port 5432 failed: Connection refused",
        "postgresql://ann@db.example:5432/app?sslmode=require",
        "postgresql://db.example:5432/app",
        "mail bob@example: it failed",
    ],
)
def test_a_text_without_secrets_stays_as_it_is(text: str):
    assert mask_passwords(text) == text


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://ann:x@h:1/app?sslmode=require", "postgresql://ann:***@h:1/app?sslmode=require"),
        ("postgresql://ann@h/app", "postgresql://ann@h/app"),
        ("postgresql://ann:@h/app", "postgresql://ann:***@h/app"),
        ("postgresql:///app?host=/run/pg", "postgresql:///app?host=/run/pg"),
        ("dbname=app host='/run/my pg'", "dbname=app host='/run/my pg'"),
        ("no connection string", "***"),
    ],
)
def test_everything_but_the_password_can_be_read(url: str, expected: str):
    assert masked(url) == expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql+psycopg://u:p@h/db", "postgresql://u:p@h/db"),
        ("postgresql://u:p@h/db", "postgresql://u:p@h/db"),
        ("postgres://u:p@h/db", "postgres://u:p@h/db"),
        ("postgresql+asyncpg://u:p@h/db", "postgresql://u:p@h/db"),
        ("postgres+psycopg2://u:p@h/db", "postgres://u:p@h/db"),
        ("postgresql+psycopg2cffi://u:p@h/db", "postgresql://u:p@h/db"),
        ("postgresql+psycopg_async://u:p@h/db?sslmode=require", "postgresql://u:p@h/db?sslmode=require"),
        ("postgres+asyncpg:///db", "postgres:///db"),
        ("host=h dbname=postgresql+psycopg://", "host=h dbname=postgresql+psycopg://"),
    ],
)
def test_libpq_gets_the_url_without_a_driver(url: str, expected: str):
    assert conninfo(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://",
        "postgresql:///app",
        "postgresql://h1:5432,h2:5433,h3/app?target_session_attrs=read-write",
        "postgresql://ann:p%40ss%2Fw%3Ard@h/app",
        "postgresql://ann:who?knows#it@h/app",
        "postgresql://[::1]:5432,[fe80::1%25eth0]/app",
        "postgresql://%2Frun%2Fpostgresql/app",
        "postgresql://h/app?user=me@server",
        "dbname=app",
        "host=h1,h2 port=5432,5433 dbname=app",
        " host = h dbname='a b' ",
        "host='h'dbname=app",
        "service=prod",
    ],
)
def test_every_usual_form_is_accepted_and_libpq_agrees(url: str):
    assert url_problem(url) is None
    conninfo_to_dict(conninfo(url))


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        (None, "must be a string, not NoneType"),
        (b"postgresql://h/app", "must be a string, not bytes"),
        ("", "is empty"),
        ("  \n", "is empty"),
        ("app", "neither a URL nor key=value"),
        ("mysql://u:p@h/app", "starts with mysql://"),
        ("POSTGRESQL://h/app", "write postgresql://"),
        ("postgresql://h/app\n", "white space"),
        ("postgresql://h/a b", "%20"),
        ("postgresql://h/app\0", "NUL"),
        ("host=h\ud800", "broken character"),
        ("postgresql://u:100%sure@h/app", "%25"),
        ("postgresql://u:a%00b@h/app", "that libpq understands"),
        ("postgresql://u:p@ss@h/app", "%40"),
        ("postgresql://u:1/w@h/app", "%2F"),
        ("postgresql://u:p/w@h/app", "@ as %40, / as %2F"),
        ("postgresql://u:p/5432@h/app", "%2F"),
        ("postgresql://h:port/app", "number from 1 to 65535"),
        ("postgresql://h:0/app", "number from 1 to 65535"),
        ("postgresql://h:70000/app", "number from 1 to 65535"),
        ("postgresql://h/app?sslmode", "name=value"),
        ("postgresql://h/app?options=-c a=b", "%20"),
        ("postgresql://h/app?options=a=b", "%3D"),
        ("host=h password=a b", "quotes"),
        ("host=h password='a", "quotes"),
        ("=h", "key=value"),
        ("PASSWORD=x", "lower-case names"),
        ("host=h port=x", "number from 1 to 65535"),
        ("host=h pasword=x", "names that libpq knows"),
        ("postgresql://h/app?PASSWORD=x", "lower-case names"),
        ("postgresql://u:@?S3cr3t=@h/app", "%3F"),
    ],
)
def test_anything_else_is_refused_with_what_to_write(url: object, advice: str):
    problem = url_problem(url)
    assert problem is not None
    assert advice in problem


@pytest.mark.parametrize("name", OF_DRIVERS)
def test_an_option_of_another_driver_is_named_with_what_to_write_instead(name: str):
    problem = url_problem(f"postgresql+asyncpg://ann:{SECRET}@h/app?sslmode=require&{name}=x")
    assert problem == (
        f"has options of other drivers after the ?, which libpq does not know; {name}: {OF_DRIVERS[name]}"
    )
    with pytest.raises(ConfigError, match=f"listen_url has options .*{name}"):
        PostgresConfig(database_url="postgresql://h/app", listen_url=f"postgresql+asyncpg://h/app?{name}=x")


def test_options_of_other_drivers_are_named_together_and_nothing_else_of_the_url():
    problem = url_problem(f"postgresql+asyncpg://ann:{SECRET}@h/app?ssl=require&pgbouncer=true&{SECRET}=1") or ""
    assert "; pgbouncer: remove it;" in problem
    assert problem.endswith("; ssl: write sslmode=require, or another sslmode")
    assert SECRET not in problem


def test_no_option_of_another_driver_is_one_that_libpq_knows():
    assert [name for name in OF_DRIVERS if url_problem(f"postgresql://h/app?{name}=x") is None] == []
