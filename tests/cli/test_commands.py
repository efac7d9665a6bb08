"""The command line as a process: its exit code and its output."""

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from horsies.embedded.server import EmbeddedServer
from tests.fixtures.processes import ModuleProcess, run_module
from tests.fixtures.roles import PlainUser
from tests.fixtures.scratch_server import scratch_server
from tests.fixtures.server import DatabaseServer

TIMEOUT_S = 30
GONE = "postgresql://somebody:my-secret@127.0.0.1:1/nothing"  # nothing listens on port 1

APP = """
from horsies import AppConfig, Horsies, TaskError, TaskResult, WorkerResilienceConfig
app = Horsies(AppConfig(resilience=WorkerResilienceConfig(
    db_retry_initial_ms=100, db_retry_max_ms=500, db_retry_max_attempts=2)))

@app.task("greet")
def greet(name: str) -> TaskResult[str, TaskError]:
    return TaskResult(ok=f"hello {name}")
"""


@dataclass(frozen=True)
class Output:
    code: int
    out: str
    err: str

    @property
    def message(self) -> str:
        """The one message of a command that failed: no traceback, and nothing on the other stream."""
        assert "Traceback" not in self.err, self.err
        assert self.out == ""
        found = re.findall(r"^Error: .*", self.err, re.MULTILINE | re.DOTALL)
        assert len(found) == 1, self.err
        return found[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(APP)
    return tmp_path


class Horsies:
    """Runs for example `horsies("migrate", "shop:app")` in its own folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *words: str, env: Mapping[str, str] | None = None) -> Output:
        dropped = ("HORSIES_APP", "HORSIES_DATABASE_URL", "DATABASE_URL")
        inherited = {name: value for name, value in os.environ.items() if name not in dropped}
        done = run_module(
            "horsies.cli.main", *words, env={**inherited, **(env or {})}, cwd=self.folder, timeout_s=TIMEOUT_S
        )
        return Output(done.returncode, done.stdout, done.stderr)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)


@pytest.fixture
def horsies(folder: Path) -> Horsies:
    return Horsies(folder)


# -- help


def test_the_version_is_the_package_s_own(horsies: Horsies) -> None:
    output = horsies("--version")
    assert output.code == 0
    assert version("horsies") in output.out


@pytest.mark.promise("A9")
@pytest.mark.parametrize("words", [("-h",), ("--help",), ("worker", "-h"), ("migrate", "--help")])
def test_help_has_two_spellings(horsies: Horsies, words: tuple[str, ...]) -> None:
    output = horsies(*words)
    assert output.code == 0
    assert "Usage: " in output.out
    assert "APP" in output.out


def test_the_installed_command_is_the_same() -> None:
    command = Path(sys.executable).with_name("horsies")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    assert done.returncode == 0


# -- wrong usage


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("worker",), "name the APP, such as shop.tasks:app or shop.py:app, or set $HORSIES_APP"),
        (("worker", "shop:app", "--processes", "0"), "--processes"),
        (("worker", "shop:app", "--processes", "-1"), "--processes"),
        (("worker", "shop:app", "--processes", "two"), "--processes"),
        (("worker", "shop:app", "--loglevel", "LOUD"), "--loglevel"),
        (("worker", "shop:app", "--no-such-flag"), "--no-such-flag"),
        (("worker", "shop:app", "--concurrency", "0"), "--concurrency"),
        (("worker", "shop:app", "--max-claim-batch", "-1"), "--max-claim-batch"),
        (("worker", "shop:app", "--max-claim-per-worker", "-1"), "--max-claim-per-worker"),
        (("worker", "shop:app", "--shutdown-timeout", "-1"), "--shutdown-timeout"),
        pytest.param(
            ("worker", "shop:app", "--max-tasks-per-child", "1"),
            "--max-tasks-per-child takes 2 or more, or 0",
            marks=pytest.mark.promise("C2"),
        ),
        pytest.param(
            ("worker", "shop:app", "--max-tasks-per-child=-5"),
            "--max-tasks-per-child takes 2 or more, or 0",
            marks=pytest.mark.promise("C2"),
        ),
        (("migrate",), "name an APP, give --database-url, or set $HORSIES_APP or $HORSIES_DATABASE_URL"),
        (("no-such-command",), "no-such-command"),
    ],
)
def test_wrong_usage_is_reported_with_exit_code_2(horsies: Horsies, words: tuple[str, ...], expected: str) -> None:
    output = horsies(*words)
    assert output.code == 2
    assert expected in output.message


# -- an app that cannot be loaded


@pytest.mark.promise("W1")
@pytest.mark.parametrize("command", ["worker", "migrate"])
@pytest.mark.parametrize(
    ("app", "expected"),
    [
        ("shop", "package.module:attribute"),
        ("no_such_module:app", "there is no module 'no_such_module' here"),
        ("no/such/file.py:app", "there is no file 'no/such/file.py'"),
        ("shop:application", "'shop' has no attribute 'application'; it has app"),
        ("shop:greet", "is a Task, not a Horsies app"),
        ("broken:app", "ZeroDivisionError: division by zero"),
        ("unfinished:app", "SyntaxError"),
        ("wrong:app", "greet returns str, but a task returns TaskResult[T, TaskError]"),
        ("misconfigured:app", "prefetch_buffer"),
    ],
)
def test_an_app_that_cannot_be_loaded_is_reported_in_one_message(
    horsies: Horsies, folder: Path, command: str, app: str, expected: str
) -> None:
    horsies.write("broken.py", "x = 1\nx / 0\n")
    horsies.write("unfinished.py", "x = 1\ndef (\n")
    horsies.write("wrong.py", APP.replace("TaskResult[str, TaskError]", "str"))
    horsies.write("misconfigured.py", "from horsies import *\napp = Horsies(AppConfig(prefetch_buffer=-1))\n")
    output = horsies(command, app)
    assert output.code == 1
    assert expected in output.message
    module = app.removesuffix(":app")
    if module in {"broken", "unfinished", "misconfigured"}:
        assert f"{folder / module}.py:2" in output.message
    if module == "wrong":
        assert f"{folder / module}.py:6" in output.message


# -- a database that cannot be used


def test_migrating_an_unreachable_database_fails_at_once(horsies: Horsies) -> None:
    output = horsies("migrate", "--database-url", GONE)
    assert output.code == 1
    assert "127.0.0.1" in output.message
    assert "refused" in output.message
    assert "my-secret" not in output.err


@pytest.mark.promise("W11", "W13")
def test_a_worker_retries_an_unreachable_database_and_gives_up_after_the_configured_attempts(horsies: Horsies) -> None:
    output = horsies("worker", "shop:app", "--processes=1", env={"HORSIES_DATABASE_URL": GONE})
    assert output.code == 4
    assert output.err.count("database unavailable, retrying in") == 2  # db_retry_max_attempts
    assert "WARNING" in output.err
    assert re.search("ERROR.*gave up after 2 failed attempts.*refused", output.err)
    assert "Traceback" not in output.err
    assert "my-secret" not in output.err


@pytest.fixture(scope="module")
def guarded_server() -> Generator[EmbeddedServer]:
    """A server that requires passwords over TCP."""
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = int(chosen.getsockname()[1])
    with scratch_server(settings={"fsync": "off"}, tcp_port=port) as server:
        yield server


def changed(url: str, **parts: str) -> str:
    given = {key: str(value) for key, value in conninfo_to_dict(url).items() if value is not None}
    return make_conninfo("", **given | parts)


@pytest.mark.parametrize("command", [("worker", "shop:app", "--processes=1"), ("migrate", "shop:app")])
@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"password": "wrong-secret"}, "password authentication failed"),
        ({"user": "nobody-known", "password": "wrong-secret"}, "password authentication failed"),
        ({"dbname": "no_such_database"}, 'database "no_such_database" does not exist'),
    ],
)
def test_a_wrong_password_or_database_is_reported_at_once(
    horsies: Horsies, guarded_server: EmbeddedServer, command: tuple[str, ...], parts: dict[str, str], expected: str
) -> None:
    """Waiting does not fix it, so a worker does not retry."""
    url = changed(guarded_server.url(), **parts)
    output = horsies(*command, env={"HORSIES_DATABASE_URL": url})
    assert output.code == 1
    assert expected in output.message
    assert "retrying" not in output.err
    secret = str(conninfo_to_dict(url)["password"])
    assert secret not in output.err + output.out


@pytest.mark.parametrize("command", [("worker", "shop:app", "--processes=1"), ("migrate", "shop:app")])
def test_without_the_privilege_to_create_the_schema_the_error_names_what_to_grant(
    horsies: Horsies, server: DatabaseServer, empty_database: str, plain_user: PlainUser, command: tuple[str, ...]
) -> None:
    output = horsies(*command, env={"HORSIES_DATABASE_URL": plain_user.url(empty_database)})
    assert output.code == 1
    assert "may not" in output.message
    assert "horsies migrate" in output.message
    assert plain_user.password not in output.err


@pytest.mark.parametrize("command", [("worker", "shop:app", "--processes=1"), ("migrate", "shop:app")])
def test_without_the_privilege_to_use_the_schema_the_error_names_what_to_grant(
    horsies: Horsies, database: str, plain_user: PlainUser, command: tuple[str, ...]
) -> None:
    output = horsies(*command, env={"HORSIES_DATABASE_URL": plain_user.url(database)})
    assert output.code == 1
    assert "grant" in output.message


def test_an_invalid_url_is_reported(horsies: Horsies) -> None:
    output = horsies("migrate", "--database-url", "mysql://root:my-secret@localhost/shop")
    assert output.code == 1
    assert "database_url" in output.message
    assert "my-secret" not in output.err


# -- migrate


@pytest.mark.promise("W16")
@pytest.mark.parametrize("way", ["app", "option", "variable", "HORSIES_APP"])
def test_migrate_creates_the_schema_and_reports_it(horsies: Horsies, empty_database: str, way: str) -> None:
    words, env = {
        "app": (["shop:app"], {"HORSIES_DATABASE_URL": empty_database}),
        "option": (["--database-url", empty_database], {}),
        "variable": ([], {"HORSIES_DATABASE_URL": empty_database}),
        "HORSIES_APP": ([], {"HORSIES_DATABASE_URL": empty_database, "HORSIES_APP": "shop:app"}),
    }[way]
    first = horsies("migrate", *words, env=env)
    assert (first.code, first.err) == (0, "")
    assert "applied initial" in first.out
    assert "schema 'horsies' is up to date" in first.out
    second = horsies("migrate", *words, env=env)
    assert second.code == 0
    assert "applied" not in second.out
    with psycopg.connect(empty_database) as connection:
        assert connection.execute("select count(*) from horsies.tasks").fetchone() == (0,)


def test_migrate_shows_no_password(horsies: Horsies, server: DatabaseServer, empty_database: str) -> None:
    secret = secrets.token_hex(8)
    output = horsies("migrate", "--database-url", changed(empty_database, password=secret))
    assert output.code == 0
    assert secret not in output.out + output.err


# -- worker


@pytest.mark.promise("A9")
@pytest.mark.parametrize("way", ["argument", "HORSIES_APP"])
def test_the_worker_s_app_is_an_argument_or_a_variable(folder: Path, database: str, way: str) -> None:
    named = [] if way == "HORSIES_APP" else ["shop:app"]
    env = {**os.environ, "HORSIES_DATABASE_URL": database, "HORSIES_APP": "shop:app" if not named else ""}
    with ModuleProcess(
        [sys.executable, "-m", "horsies.cli.main", "worker", *named, "--processes=1"],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        try:
            assert any("is ready on queues default" in line for line in process.stderr)
        finally:
            process.terminate()
            process.stderr.read()
            assert process.wait(TIMEOUT_S) == 0


@pytest.mark.promise("C6")
def test_a_memory_limit_below_the_size_of_an_idle_child_is_refused_with_both_numbers(
    horsies: Horsies, database: str
) -> None:
    output = horsies(
        "worker", "shop:app", "--processes=1", "--max-memory-per-child-mb=5", env={"HORSIES_DATABASE_URL": database}
    )
    assert output.code == 1
    match = re.search(r"takes (\d+) MB before its first task.*--max-memory-per-child-mb=5 ", output.message)
    assert match
    assert int(match[1]) > 5


@pytest.mark.promise("C5")
@pytest.mark.parametrize("limit", ["0", "-1", "nan", "inf"])
def test_an_invalid_memory_limit_is_refused(horsies: Horsies, limit: str) -> None:
    output = horsies("worker", "shop:app", f"--max-memory-per-child-mb={limit}", env={"HORSIES_DATABASE_URL": GONE})
    assert output.code == 2
    assert "positive" in output.message


def test_a_queue_that_the_app_does_not_have_is_refused_before_anything_is_started(horsies: Horsies) -> None:
    """Even before the worker connects: it would wait for this database, which is unreachable."""
    output = horsies(
        "worker", "shop:app", "--processes=1", "--queues=default, mial", env={"HORSIES_DATABASE_URL": GONE}
    )
    assert output.code == 1
    assert "there is no queue 'mial'; this app has default" in output.message
    assert "children are ready" not in output.err


@pytest.mark.promise("W1")
def test_the_default_number_of_processes_is_the_number_of_cpus(folder: Path, database: str) -> None:
    with ModuleProcess(
        [sys.executable, "-m", "horsies.cli.main", "worker", "shop:app"],
        cwd=folder,
        env={**os.environ, "HORSIES_DATABASE_URL": database},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        try:
            assert any(f"Concurrency config: processes={os.cpu_count()}" in line for line in process.stderr)
        finally:
            process.terminate()
            process.stderr.read()
            process.wait(TIMEOUT_S)


@pytest.mark.parametrize(("level", "is_logged"), [("DEBUG", True), ("info", True), ("WARNING", False)])
def test_the_log_level_applies_to_the_worker_and_its_children(
    folder: Path, database: str, level: str, *, is_logged: bool
) -> None:
    (folder / "shop.py").write_text(f"{APP}\nimport logging\nlogging.getLogger('shop').error('loaded')\n")
    with ModuleProcess(
        [sys.executable, "-m", "horsies.cli.main", "worker", "shop:app", "--processes=1", "--loglevel", level],
        cwd=folder,
        env={**os.environ, "HORSIES_DATABASE_URL": database},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        lines = [next(line for line in process.stderr if "loaded" in line) for _ in range(2)]  # parent, then child
        process.terminate()
        rest = process.stderr.read()
        assert process.wait(TIMEOUT_S) == 0
    assert lines[0] != lines[1]
    assert ("stopped" in rest) is is_logged


INTERRUPTED_IMPORT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.{handler})

class Interrupter:
    def find_spec(self, name, path=None, target=None):
        if name == "horsies.cli.main":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupter())
sys.argv = ["horsies", "--version"]
from horsies.cli.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("handler", "expected"), [("default_int_handler", -signal.SIGINT), ("SIG_IGN", 0)], ids=["handled", "ignored"]
)
def test_ctrl_c_while_the_command_line_is_loading_exits_without_a_traceback(handler: str, expected: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT.replace("{handler}", handler)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == expected
    assert done.stderr == ""


def test_ctrl_c_is_handled_as_usual_once_the_command_line_is_loaded() -> None:
    words = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "  # it may be ignored in the background
        "from horsies.cli.__main__ import main; import horsies.cli.main as rest; "
        "rest.main = lambda: sys.exit(signal.getsignal(signal.SIGINT) is not signal.default_int_handler); main()"
    )
    assert subprocess.run([sys.executable, "-c", words], timeout=TIMEOUT_S, check=False).returncode == 0
