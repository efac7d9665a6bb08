import asyncio
import importlib.metadata
import tomllib
from pathlib import Path

import psycopg
import pytest

import horsies.testing
from horsies import AppConfig, Horsies, PostgresConfig
from horsies.testing import Sandbox, SandboxError, clear, clock, drain, enqueued, open_sandbox
from tests.fixtures.journey import row
from tests.testing import shop


def test_the_app_uses_the_given_database_and_is_restored(database: str) -> None:
    before = shop.app.config
    with open_sandbox(shop.app, database) as sandbox:
        assert shop.app.broker.config.database_url == sandbox.database_url == database
        assert shop.app.config.queues == before.queues
    assert shop.app.config is before


def test_an_app_without_a_database_gets_one(database: str) -> None:
    app = Horsies()
    with open_sandbox(app, database):
        assert not app.is_embedded
        assert drain(app) == []
    assert app.config.broker is None


def test_missing_tables_are_created_in_the_schema_of_the_app(empty_database: str) -> None:
    app = Horsies(AppConfig(broker=PostgresConfig(database_url="postgresql://nowhere.invalid/x", schema="my tasks")))
    with open_sandbox(app, empty_database):
        assert enqueued(app) == []
        clock.advance(60)
    with psycopg.connect(empty_database) as connection:
        assert row(connection, 'select count(*) from "my tasks".tasks') == (0,)


def test_the_app_is_restored_after_a_failed_test(database: str) -> None:
    before = shop.app.config
    with pytest.raises(ZeroDivisionError), open_sandbox(shop.app, database):
        raise ZeroDivisionError
    assert shop.app.config is before


def test_clear_removes_everything_but_the_schema_version(sandbox: Sandbox, sql: psycopg.Connection) -> None:
    shop.note.with_options(key="k").send("a")
    drain()
    shop.note.send("b")
    clear()
    assert row(sql, "select (select count(*) from horsies.all_tasks), (select count(*) from horsies.keys)") == (0, 0)
    assert row(sql, "select count(*) > 0 from horsies.schema_versions") == (True,)
    shop.note.with_options(key="k").send("c")
    assert len(drain()) == 1


def test_an_event_loop_ends_without_closing_anything(sandbox: Sandbox) -> None:
    async def send() -> None:
        await asyncio.gather(*(shop.note.send_async(text) for text in "abc"))

    asyncio.run(send())
    assert len(enqueued()) == 3


def test_without_a_sandbox_everything_is_refused() -> None:
    for use in (drain, clear, enqueued, lambda: clock.advance(1)):
        with pytest.raises(SandboxError, match="horsies_sandbox"):
            use()


def test_the_public_names_are_sorted_and_defined() -> None:
    assert list(horsies.testing.__all__) == sorted(set(horsies.testing.__all__))
    for name in horsies.testing.__all__:
        assert getattr(horsies.testing, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = horsies.testing.nothing  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]


def test_pytest_finds_the_plug_in() -> None:
    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert declared["project"]["entry-points"]["pytest11"] == {"horsies": "horsies.testing.plugin"}
    for found in importlib.metadata.entry_points(group="pytest11", name="horsies"):
        assert found.value == "horsies.testing.plugin"
