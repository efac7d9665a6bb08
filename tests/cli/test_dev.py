"""`horsies dev` and `horsies worker --reload` for a developer: code is edited, and the new code runs."""

import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from horsies import Horsies, TaskError, TaskResult
from horsies.cli.main import main
from horsies.embedded.server import EmbeddedServer
from tests.fixtures.web import fetch
from tests.fixtures.workers import READY, Program

PATIENCE_S = 20.0
APP = """
import logging
from horsies import Horsies, TaskError, TaskResult

app = Horsies()
app.discover_tasks(["more"])


@app.task("greet")
def greet(name: str) -> TaskResult[str, TaskError]:
    print("printed", flush=True)
    logging.getLogger("shop").info("greeting")
    return TaskResult(ok=f"hello {name}")
"""

Start = Callable[..., Program]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "more.py").touch()
    return tmp_path


@pytest.fixture
def start(project: Path) -> Generator[Start]:
    """`start("dev", "shop:app", HORSIES_DATABASE_URL=...)` in the project's folder."""
    started: list[Program] = []

    def begin(*words: str, **env: str) -> Program:
        started.append(Program(*words, env={"HORSIES_DATABASE_URL": "", "DATABASE_URL": "", **env}, cwd=project))
        return started[-1]

    yield begin
    for program in started:
        program.close()


@pytest.fixture
def home() -> Generator[Path]:
    """The folder of an embedded server: a short path, for its socket."""
    folder = Path(tempfile.mkdtemp(prefix="horsies-t-", dir="/tmp"))
    folder.chmod(0o711)
    yield folder / "embedded"
    EmbeddedServer(folder / "embedded").stop("immediate")
    shutil.rmtree(folder)


class Producer:
    """Sends to the running app, in the database whose URL dev logs."""

    def __init__(self, url: str) -> None:
        self._app = Horsies()
        self._app.use_database(url)

        @self._app.task("greet")
        def greet(name: str) -> TaskResult[str, TaskError]:
            return TaskResult(ok=name)

        self._greet: Any = greet

    def greet(self) -> str:
        return self._greet.send("Ada").get(timeout_ms=15_000).unwrap()

    def close(self) -> None:
        self._app.close()


def test_edited_code_runs_until_ctrl_c_and_nothing_is_left(start: Start, project: Path, home: Path) -> None:
    running = start("dev", "shop:app", "--processes=1", HORSIES_EMBEDDED_DIR=str(home))
    url = running.wait_for_log(r"dev +\| .*using database (\S+)", PATIENCE_S)[1]
    assert running.wait_for_log(r"dev +\| .*watching (.*)")[1] == str(project)
    running.wait_for_log(rf"worker +\| .*{READY}", PATIENCE_S)
    port = running.wait_for_log(r"^web +\| .*the dashboard is at http://127.0.0.1:(\d+)/$", PATIENCE_S)[1]
    assert "Overview" in fetch(int(port), "/").text
    producer = Producer(url)
    assert producer.greet() == "hello Ada"
    running.wait_for_log(r"^worker +\| .*\[task=\S+ name=greet attempt=1 queue=default\] greeting$")
    running.wait_for_log(r"^worker +\| printed$")
    running.wait_for_log(r"^worker +\| .*INFO .*task greet: completed in")

    (project / "shop.py").write_text(f"{APP}\ndef (")
    running.wait_for_log(r"dev +\| .*ERROR.*SyntaxError.*shop.py:15.*waiting for a change", PATIENCE_S)
    before = len(running.logs)
    (project / "shop.py").write_text(APP.replace("hello", "good morning,"))
    running.wait_for_log("shop.py changed, restarting", after=before)
    running.wait_for_log(READY, PATIENCE_S, after=before)
    assert producer.greet() == "good morning, Ada"

    producer.close()
    running.signal(signal.SIGINT)
    assert running.wait() == 0
    assert not any("Traceback" in line for line in running.logs)
    assert not EmbeddedServer(home).is_running


def test_no_process_outlives_dev_when_it_is_killed(database: str, start: Start) -> None:
    running = start("dev", "shop:app", "--processes=1", HORSIES_DATABASE_URL=database)
    running.wait_for_log(READY, PATIENCE_S)
    running.kill()  # the fixture checks that everything it started ends


def test_a_reloaded_worker_restarts_with_the_same_options(database: str, start: Start, project: Path) -> None:
    options = "--processes=1", "--queues=default", "--shutdown-timeout=5.0", "--log-format=json"
    running = start("worker", "shop:app", "--reload", *options, HORSIES_DATABASE_URL=database)
    running.wait_for_log(READY, PATIENCE_S)
    before = len(running.logs)
    (project / "more.py").write_text("import logging\nlogging.getLogger('more').info('loaded')\n")
    running.wait_for_log("more.py changed", PATIENCE_S, after=before)
    running.wait_for_log('"logger": "more"', PATIENCE_S, after=before)
    (child,) = running.children()
    assert [word for word in child.cmdline() if word.startswith("--")] == list(options)
    running.wait_for_log(READY, PATIENCE_S, after=before)
    running.signal(signal.SIGTERM)
    assert running.wait() == 0
    assert all(json.loads(line)["message"] for line in running.logs)


@pytest.mark.parametrize("command", ["dev", "worker --reload"])
def test_a_missing_watchfiles_package_is_named(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    name, *options = command.split()
    result = CliRunner().invoke(main, [name, "shop:app", *options])
    assert result.exit_code == 1
    assert result.output == 'Error: to reload on change, install watchfiles: pip install "horsies[dev]"\n'


@pytest.mark.parametrize("command", ["dev", "worker --reload"])
def test_a_malformed_locator_is_reported_at_once(command: str) -> None:
    name, *options = command.split()
    result = CliRunner().invoke(main, [name, "shop", *options])
    assert result.exit_code == 1
    assert "write package.module:attribute" in result.output
