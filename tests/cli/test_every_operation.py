"""What every command for operators does with an empty, missing or outdated database."""

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from horsies.cli.main import main
from horsies.db import migrate
from horsies.db.migrate import Migration, library_version, migrations
from tests.cli.conftest import Cli, run

GONE = "postgresql://somebody:my-secret@127.0.0.1:1/nothing"  # nothing listens on port 1
ID = "0198c0de-1234-7abc-8def-0123456789ab"

COMMANDS = [
    ("status",),
    ("errors", "list"),
    ("errors", "show", "3fa2b1c0"),
    ("errors", "retry", "3fa2b1c0", "--yes"),
    ("tasks", "list"),
    ("tasks", "show", ID),
    ("tasks", "cancel", ID),
    ("tasks", "retry", ID),
    ("tasks", "retry", "--task", "add", "--yes"),
    ("tasks", "purge", "--all", "--yes"),
    ("queues", "list"),
    ("queues", "pause", "mail"),
    ("queues", "resume", "mail"),
    ("queues", "cap", "mail", "5"),
    ("queues", "purge", "mail", "--yes"),
    ("workers", "list"),
    ("workers", "show", "0198"),
    ("workers", "ping"),
    ("workers", "leave", ID),
    ("audit",),
    ("limits",),
    ("events",),
    ("workflows", "list"),
    ("workflows", "show", ID),
    ("workflows", "pause", ID),
    ("workflows", "resume", ID),
    ("workflows", "cancel", ID, "--yes"),
    ("workflows", "retry", ID),
    ("schedules", "list"),
    ("schedules", "show", "report"),
    ("schedules", "run", "report"),
    ("schedules", "pause", "report"),
    ("schedules", "resume", "report"),
    ("schedules", "create", "report", "--task", "report", "--every", "5m"),
    ("schedules", "change", "report", "--every", "5m"),
    ("schedules", "remove", "report", "--yes"),
]
OTHERS = {("worker",), ("scheduler",), ("dev",), ("migrate",), ("check",), ("doctor",), ("completion",)} | {
    ("web", verb) for verb in ("serve", "hash-password", "make-token")
}
"""They keep running, or also work without a database or schema: they have tests of their own."""
UNKNOWN = {("errors", "show"), ("errors", "retry"), ("tasks", "show"), ("workers", "show"), ("workflows", "show")} | {
    ("schedules", verb) for verb in ("show", "run", "pause", "resume", "create", "change", "remove")
}
"""They fail if the named thing does not exist."""
FRUITLESS = {("tasks", "cancel"), ("tasks", "retry"), ("workers", "ping"), ("workers", "leave")} | {
    ("workflows", verb) for verb in ("pause", "resume", "cancel", "retry")
}
every_command = pytest.mark.parametrize("words", COMMANDS, ids=" ".join)


@every_command
def test_it_works_on_an_empty_database_with_and_without_json(cli: Cli, words: tuple[str, ...]) -> None:
    ran = cli(*words)
    is_fruitless = words[:2] in UNKNOWN or (words[:2] in FRUITLESS and "--task" not in words)
    assert ran.code == (1 if is_fruitless else 0), ran.err
    assert ran.out or ran.err
    spoken = cli(*words, "--json")
    assert spoken.code == ran.code
    assert spoken.out.startswith("{") == (words[:2] not in UNKNOWN)


@every_command
def test_an_unreachable_database_is_reported_in_one_message(words: tuple[str, ...]) -> None:
    ran = run(*words, database_url=GONE)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("Error: PostgreSQL: ")
    assert "my-secret" not in ran.err


@pytest.mark.parametrize("option", ["--database-url=", "--schema=", "--app="])
def test_an_empty_database_option_does_not_select_another_database(cli: Cli, option: str) -> None:
    """For example `--database-url "$STAGING"` if the variable is not set."""
    ran = cli("tasks", "purge", "--all", "--yes", option)
    assert ran.code == 2
    assert "is empty" in ran.err


def test_they_name_migrate_if_the_schema_is_older(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    later = Migration(library_version() + 1, "later", library_version() + 1, "select 1;")
    both = (*migrations(), later)
    monkeypatch.setattr(migrate, "migrations", lambda: both)  # the library of the next release
    expect_migrate_to_be_named(database)


def test_they_name_migrate_if_there_is_no_schema(empty_database: str) -> None:
    expect_migrate_to_be_named(empty_database)


def expect_migrate_to_be_named(database: str) -> None:
    for words in COMMANDS:
        ran = run(*words, database_url=database)
        assert (ran.code, ran.out) == (1, "")
        assert "run `horsies migrate` first" in ran.err


def leaves(command: click.Command, names: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(command, click.Group):
        yield names, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from leaves(below, (*names, name))


LEAVES = dict(leaves(main))


def test_every_command_is_tested_here() -> None:
    tested = {words[: 1 if words[0] in ("status", "audit", "limits", "events") else 2] for words in COMMANDS}
    assert tested | OTHERS == LEAVES.keys()


@pytest.mark.promise("A9")
@pytest.mark.parametrize("names", LEAVES, ids=" ".join)
def test_its_help_has_a_description_and_an_example(names: tuple[str, ...]) -> None:
    ran = run(*names, "--help", database_url=None)
    assert ran.code == 0
    assert "--database-url" in ran.out or names in OTHERS
    assert len(ran.out.splitlines()[2].strip()) > 30
    assert f"horsies {' '.join(names)}" in "\n".join(ran.out.splitlines()[2:])


def test_without_app_and_database_it_explains_how_to_name_them() -> None:
    ran = run("status", database_url=None)
    assert ran.code == 2
    assert "give --database-url" in ran.err


# -- how the app is named


def test_the_app_is_named_by_an_argument_an_option_or_a_variable(cli: Cli, app_file: str, database: str) -> None:
    for words in ([app_file], ["--app", app_file], ["-A", app_file], ["-a", app_file]):
        assert {queue["name"] for queue in cli("status", *words, "--json").json["queues"]} == {"mail", "media"}, words
    ran = CliRunner().invoke(main, ["queues", "list"], env={"HORSIES_APP": app_file, "HORSIES_DATABASE_URL": database})
    assert "media" in ran.stdout


def test_the_database_is_named_by_an_option_or_a_variable(database: str) -> None:
    for words, env in (
        ([f"--database-url={database}"], {}),
        ([f"--database-url={database}"], {"HORSIES_APP": "no_such:app", "DATABASE_URL": GONE}),
        ([], {"HORSIES_DATABASE_URL": database, "DATABASE_URL": GONE}),
        ([], {"DATABASE_URL": database}),
    ):
        unset: dict[str, str | None] = {"HORSIES_APP": None, "HORSIES_DATABASE_URL": None, "DATABASE_URL": None}
        ran = CliRunner().invoke(main, ["tasks", "list", *words], env=unset | env)
        assert (ran.exit_code, ran.stderr) == (0, "no task matches\n")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("status", "a:b", "--app=c:d"), "the app is named twice, as a:b and as c:d"),
        (("status", "a:b", "--database-url=x"), "both the app a:b and --database-url are given"),
        (("tasks", "list", "-A", "a:b", "--database-url=x"), "both the app a:b and --database-url are given"),
        (("status", "postgresql://there"), "give it as --database-url"),
        (("worker", "a:b", "-A", "c:d"), "the app is named twice"),
        (("-A", "a:b", "worker", "c:d"), "the app is named twice"),
        (("-A", "a:b", "errors", "-A", "c:d"), "the app is named twice, as a:b and as c:d; name it once"),
        (("--app", "", "tasks", "list"), "the APP is empty"),
        (("-A", "postgresql://there", "errors"), "give it as --database-url"),
        (("worker",), "name the APP"),
        (("check",), "name the APP"),
    ],
)
def test_an_app_that_is_named_twice_or_not_at_all_is_wrong_usage(words: tuple[str, ...], expected: str) -> None:
    ran = run(*words, database_url=None)
    assert (ran.code, ran.out) == (2, "")
    assert expected in ran.err


@pytest.mark.parametrize(
    "words", [["errors", "APP"], ["errors", "list", "APP"], ["-A", "APP", "errors"], ["errors", "--app", "APP"]]
)
def test_the_app_is_named_in_the_same_ways_everywhere(words: list[str], cli: Cli, app_file: str) -> None:
    ran = cli(*[app_file if word == "APP" else word for word in words])
    assert (ran.code, ran.err) == (0, "no task has failed in this time\n")


@pytest.mark.parametrize("group", ["tasks", "queues", "workers", "workflows", "schedules"])
def test_lists_take_the_app_as_an_argument_and_before_the_command(group: str, cli: Cli, app_file: str) -> None:
    found = cli(group, "list", app_file, "--json")
    assert found.json == cli("-A", app_file, group, "list", "--json").json
    assert (group != "queues") or found.json["queues"], "those of the app"
