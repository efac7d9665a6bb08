"""What every operator's command does where there is nothing, or not what it needs."""

import psycopg
import pytest

from tests.cli.conftest import Cli, run

GONE = "postgresql://somebody:my-secret@127.0.0.1:1/nothing"  # nobody listens on port 1
ID = "0198c0de-1234-7abc-8def-0123456789ab"

COMMANDS = [
    ("status",),
    ("tasks", "list"),
    ("tasks", "show", ID),
    ("tasks", "cancel", ID),
    ("tasks", "retry", ID),
    ("tasks", "retry", "--task", "add", "--yes"),
    ("tasks", "purge", "--all", "--yes"),
    ("queues", "list"),
    ("queues", "pause", "mail"),
    ("queues", "resume", "mail"),
    ("queues", "purge", "mail", "--yes"),
    ("workers", "list"),
    ("workers", "show", "0198"),
    ("workers", "ping"),
]
FRUITLESS = {("tasks", "show"), ("tasks", "cancel"), ("tasks", "retry"), ("workers", "show"), ("workers", "ping")}
every_command = pytest.mark.parametrize("words", COMMANDS, ids=" ".join)


@every_command
def test_it_works_on_an_empty_database_and_speaks_json_too(cli: Cli, words: tuple[str, ...]) -> None:
    ran = cli(*words)
    is_fruitless = words[:2] in FRUITLESS and "--task" not in words
    assert ran.code == (1 if is_fruitless else 0), ran.err
    assert ran.out or ran.err
    spoken = cli(*words, "--json")
    assert spoken.code == ran.code
    assert spoken.out.startswith("{") == (words[1:2] != ("show",))


@every_command
def test_it_says_in_one_message_that_the_database_is_not_there(words: tuple[str, ...]) -> None:
    ran = run(*words, database_url=GONE)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("Error: PostgreSQL: ")
    assert "my-secret" not in ran.err


@pytest.mark.parametrize("option", ["--database-url=", "--schema=", "--app="])
def test_an_empty_name_of_a_database_does_not_lead_to_another(cli: Cli, option: str) -> None:
    """As in `--database-url "$STAGING"` where that is not set."""
    ran = cli("tasks", "purge", "--all", "--yes", option)
    assert ran.code == 2
    assert "is empty" in ran.err


def test_they_name_migrate_where_the_schema_is_older(database: str, sql: psycopg.Connection) -> None:
    sql.execute("delete from horsies.schema_versions where version > 1")
    for words in COMMANDS:
        ran = run(*words, database_url=database)
        assert (ran.code, ran.out) == (1, "")
        assert "run `horsies migrate` first" in ran.err


@every_command
def test_its_help_says_what_it_does(words: tuple[str, ...]) -> None:
    names = words[: 1 if words[0] == "status" else 2]
    ran = run(*names, "--help", database_url=None)
    assert ran.code == 0
    assert "--database-url" in ran.out
    assert len(ran.out.splitlines()[2].strip()) > 30


def test_without_app_and_database_it_says_how_to_name_them() -> None:
    ran = run("status", database_url=None)
    assert ran.code == 2
    assert "give --database-url" in ran.err
