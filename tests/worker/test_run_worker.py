"""`app.run_worker(WorkerConfig(...))`: a worker in the user's own script."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from horsies import BlockingCallError, ConfigError, Horsies, HorsiesError, LocateError
from horsies.worker.run import locate
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import row
from tests.worker.steps import begun, insert, statuses, wait_until_ended

TIMEOUT_S = 30
GONE = "postgresql://somebody@127.0.0.1:1/nothing"  # nothing listens on port 1

TASKS = """
import os, time
from pathlib import Path
from typing import Any
from horsies import *

def define(app, **options):
    @app.task("whereami", **options)
    def whereami() -> TaskResult[str, TaskError]:
        return TaskResult(ok=__name__)

    @app.task("gate", **options)
    def gate(begun: str, until: str) -> TaskResult[int, TaskError]:
        with open(begun, "a") as file:
            file.write(f"{os.getpid()}\\n")
        while not Path(until).exists():
            time.sleep(0.005)
        return TaskResult(ok=os.getpid())
"""

SIMPLE = """
import sys
from tasks import *
app = Horsies()
define(app)
if __name__ == "__main__":
    sys.exit(app.run_worker(WorkerConfig(processes=1{options})))
"""


class Script:
    """A program in a folder of its own; its log is on stderr."""

    def __init__(self, folder: Path, text: str, database_url: str | None) -> None:
        (folder / "tasks.py").write_text(TASKS)
        (folder / "shop.py").write_text(text)
        env = {name: value for name, value in os.environ.items() if not name.endswith("DATABASE_URL")}
        self.process = subprocess.Popen(
            [sys.executable, str(folder / "shop.py")],
            cwd=folder.parent,  # not the folder of the script: the children must still find it
            env=env | ({"HORSIES_DATABASE_URL": database_url} if database_url else {}),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.output = ""

    def wait_until(self, words: str) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.output += line
            if words in line:
                return
        pytest.fail(f"it never wrote {words!r}:\n{self.output}")

    def wait_until_ready(self) -> None:
        self.wait_until("is ready on queues")

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        self.output += self.process.communicate(timeout=TIMEOUT_S)[1]
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


class Scripts:
    def __init__(self, folder: Path, database_url: str) -> None:
        self.folder = folder
        self.database_url = database_url
        self.started: list[Script] = []

    def __call__(self, text: str, *, database_url: str | None = "") -> Script:
        """Use the test's database by default; None for none."""
        url = self.database_url if database_url == "" else database_url
        self.started.append(Script(self.folder, text, url))
        return self.started[-1]

    def simple(self, options: str = "") -> Script:
        made = self(SIMPLE.replace("{options}", options))
        made.wait_until_ready()
        return made


@pytest.fixture
def script(tmp_path: Path, database: str) -> Generator[Scripts]:
    folder = tmp_path / "shop"
    folder.mkdir()
    made = Scripts(folder, database)
    yield made
    for started in made.started:
        started.close()


# -- from start to stop


@pytest.mark.promise("W15", "W10")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_script_runs_a_worker_until_it_receives_a_stop_signal(
    script: Scripts, sql: psycopg.Connection, tmp_path: Path, number: signal.Signals
) -> None:
    """Without a locator: the children find the app in the script, which they import under its own name."""
    running = script.simple()
    insert(sql, "gate", begun=str(tmp_path / "begun"), until=str(tmp_path / "open"))
    pid = begun(tmp_path / "begun")
    running.process.send_signal(number)
    running.wait_until("shutdown: claiming no more tasks")
    (tmp_path / "open").touch()
    assert running.wait() == 0
    assert row(sql, "select status, result::text from horsies.finished") == ("COMPLETED", str(pid))
    assert row(sql, "select count(*) from horsies.workers") == (0,)


@pytest.mark.promise("W15")
def test_a_script_gets_its_signal_handlers_back_after_its_worker(script: Scripts) -> None:
    ends = "sys.exit(app.run_worker(WorkerConfig(processes=1{options})))"
    assert ends in SIMPLE
    checks = (
        "import signal\n    signal.signal(signal.SIGTERM, print)\n    app.run_worker(WorkerConfig(processes=1))\n"
        "    sys.exit(signal.getsignal(signal.SIGTERM) is not print)"
    )
    running = script(SIMPLE.replace(ends, checks))
    running.wait_until_ready()
    assert running.stop() == 0


@pytest.mark.promise("W15")
def test_run_worker_needs_no_configuration(script: Scripts, sql: psycopg.Connection) -> None:
    running = script(SIMPLE.replace("WorkerConfig(processes=1{options})", ""))
    running.wait_until_ready()
    assert f"Concurrency config: processes={os.cpu_count()}, " in running.output
    insert(sql, "whereami")
    assert wait_until_ended(sql, 1) == {"COMPLETED": 1}
    assert running.stop() == 0


@pytest.mark.promise("W15")
def test_its_exit_code_is_what_run_worker_returns(script: Scripts, sql: psycopg.Connection, tmp_path: Path) -> None:
    running = script.simple(", shutdown_timeout_ms=0")
    insert(sql, "gate", begun=str(tmp_path / "begun"), until=str(tmp_path / "never"))
    begun(tmp_path / "begun")
    assert running.stop() == 3  # it had to interrupt a task
    assert row(sql, "select error_code from horsies.finished") == ("INTERRUPTED",)


def test_the_script_s_own_logging_is_left_alone(script: Scripts) -> None:
    text = SIMPLE.replace("{options}", ', loglevel="DEBUG"')
    running = script(f"import logging\nlogging.basicConfig(level='INFO', format='mine: %(message)s')\n{text}")
    running.wait_until("mine: worker ")
    assert running.stop() == 0


# -- where the app is


@pytest.mark.promise("W15", "W3")
def test_a_script_without_a_main_guard_gets_an_error_and_starts_no_endless_workers(script: Scripts) -> None:
    running = script(SIMPLE.replace("{options}", "").replace('if __name__ == "__main__":', "if True:"))
    assert running.wait() == 1
    assert 'write it below `if __name__ == "__main__":`' in running.output


@pytest.mark.promise("W15")
def test_an_app_of_another_module_is_found_there_and_the_script_is_not_imported_again(
    script: Scripts, sql: psycopg.Connection
) -> None:
    (script.folder / "store.py").write_text("from tasks import *\napp = Horsies()\ndefine(app)\n")
    running = script(
        "from store import app\nfrom horsies import WorkerConfig\napp.run_worker(WorkerConfig(processes=1))"
    )
    running.wait_until_ready()
    insert(sql, "whereami")
    assert wait_until_ended(sql, 1) == {"COMPLETED": 1}
    assert running.stop() == 0


def test_an_app_that_no_module_holds_cannot_be_found() -> None:
    with pytest.raises(LocateError, match=r"WorkerConfig\(app_locator="):
        locate(Horsies())


def test_a_value_that_is_not_a_worker_config_is_refused_before_anything_starts() -> None:
    anything: Any = 4
    with pytest.raises(ConfigError, match="config must be of type WorkerConfig, not int"):
        Horsies().run_worker(anything)


def test_the_module_of_an_app_is_preferred_to_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Horsies()
    script = sys.modules["__main__"]
    monkeypatch.setitem(sys.modules, "__mp_main__", script)  # as in a process that multiprocessing has spawned
    monkeypatch.setattr(script, "imported", app, raising=False)
    monkeypatch.setattr(sys.modules[__name__], "defined", app, raising=False)
    assert locate(app) == f"{__name__}:defined"


def test_a_worker_is_refused_on_a_thread_that_receives_no_signals() -> None:
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - only here

    with ThreadPoolExecutor(1) as other, pytest.raises(HorsiesError, match="main thread"):
        other.submit(Horsies().run_worker).result()


async def test_a_worker_is_refused_where_an_event_loop_is_running() -> None:
    with pytest.raises(
        BlockingCallError, match=r"run_worker\(\) would block the running event loop.*before the loop starts"
    ):
        Horsies().run_worker()


# -- the configuration


@pytest.mark.promise("W15")
def test_the_children_load_the_app_that_app_locator_names(script: Scripts, sql: psycopg.Connection) -> None:
    """Not the app that the method is called on, though the children could find that, too."""
    app = """
from horsies import *
app = Horsies()

@app.task("which")
def which() -> TaskResult[str, TaskError]:
    return TaskResult(ok={name!r})
"""
    (script.folder / "store.py").write_text(app.replace("{name!r}", "'store'"))
    runs = "if __name__ == '__main__':\n    app.run_worker(WorkerConfig(processes=1, app_locator='store:app'))\n"
    running = script(app.replace("{name!r}", "'script'") + runs)
    running.wait_until_ready()
    insert(sql, "which")
    wait_until_ended(sql, 1)
    assert row(sql, "select status, result::text from horsies.finished") == ("COMPLETED", '"store"')
    assert running.stop() == 0


@pytest.mark.promise("W15")
@pytest.mark.parametrize(
    ("option", "levels"),
    [
        ("", {"INFO", "WARNING"}),
        (", loglevel='DEBUG'", {"DEBUG", "INFO", "WARNING"}),
        (", loglevel='WARNING'", {"WARNING"}),
    ],
    ids=["default", "DEBUG", "WARNING"],
)
def test_the_loglevel_holds_for_the_worker_and_for_its_children(
    script: Scripts, sql: psycopg.Connection, option: str, levels: set[str]
) -> None:
    text = f"""
import logging, sys
from horsies import *
app = Horsies()

def log_at_each_level(who):
    for level in ("DEBUG", "INFO", "WARNING"):
        logging.getLogger("shop").log(getattr(logging, level), "%s logs at %s", who, level)

@app.task("log")
def log() -> TaskResult[None, TaskError]:
    log_at_each_level("a task")
    return TaskResult(ok=None)

if __name__ == "__main__":
    code = app.run_worker(WorkerConfig(processes=1{option}))
    log_at_each_level("the worker")
    sys.exit(code)
"""
    running = script(text)
    eventually(lambda: row(sql, "select count(*) from horsies.workers") == (1,), what="the worker is registered")
    insert(sql, "log")
    wait_until_ended(sql, 1)
    assert running.stop() == 0
    assert set(re.findall(r"a task logs at (\w+)", running.output)) == levels
    assert set(re.findall(r"the worker logs at (\w+)", running.output)) == levels
    assert ("is ready on queues" in running.output) == ("INFO" in levels)


@pytest.mark.promise("W15", "W2")
def test_imports_are_imported_by_the_children(script: Scripts, sql: psycopg.Connection) -> None:
    """A dotted name and a path."""
    (script.folder / "more.py").write_text("from shop import app\nfrom tasks import *\ndefine(app)\n")
    beside = script.folder / "deep" / "beside.py"
    beside.parent.mkdir()
    beside.write_text(
        "from shop import app\nfrom tasks import *\n"
        "@app.task('other')\ndef other() -> TaskResult[int, TaskError]:\n    return TaskResult(ok=1)\n"
    )
    text = SIMPLE.replace("define(app)\n", "").replace("{options}", f", imports=['more', {str(beside)!r}]")
    script(text).wait_until_ready()
    insert(sql, "whereami")
    insert(sql, "other")
    assert wait_until_ended(sql, 2) == {"COMPLETED": 2}


@pytest.mark.promise("W15")
def test_an_import_that_fails_is_named(script: Scripts) -> None:
    running = script(SIMPLE.replace("{options}", ", imports=['no_such_module']"))
    assert running.wait() == 1
    assert "no_such_module" in running.output
    assert "children are ready" not in running.output


@pytest.mark.promise("W15")
def test_the_dsn_overrides_other_settings_also_for_sends_in_tasks(
    script: Scripts, sql: psycopg.Connection, database: str
) -> None:
    """The app itself is configured for a database that does not exist, and so is the environment."""
    text = f"""
import sys
from tasks import *
app = Horsies(AppConfig.for_database_url({GONE!r}))
define(app)

@app.task("send_on")
def send_on() -> TaskResult[str, TaskError]:
    return TaskResult(ok=app.tasks["whereami"].send().task_id)

if __name__ == "__main__":
    sys.exit(app.run_worker(WorkerConfig(processes=1, dsn={database!r})))
"""
    running = script(text, database_url=GONE)
    running.wait_until_ready()
    insert(sql, "send_on")
    assert wait_until_ended(sql, 2) == {"COMPLETED": 2}
    assert running.stop() == 0


@pytest.mark.promise("W15")
def test_the_dsn_changes_nothing_but_the_database(script: Scripts, sql: psycopg.Connection, database: str) -> None:
    text = SIMPLE.replace("{options}", f", dsn={database!r}").replace(
        "Horsies()",
        f"Horsies(AppConfig(broker=PostgresConfig(database_url={GONE!r}, listen_url={GONE!r}, schema='jobs')))",
    )
    running = script(text, database_url=None)
    running.wait_until_ready()
    assert row(sql, "select count(*) from jobs.workers") == (1,)
    assert row(sql, "select count(*) from horsies.workers") == (0,)
    assert running.stop() == 0


QUEUES = """
import sys
from tasks import *
app = Horsies(AppConfig(queue_mode=QueueMode.CUSTOM, custom_queues=[
    CustomQueueConfig(name="first", priority=1), CustomQueueConfig(name="second", priority=2),
    CustomQueueConfig(name="third", priority=3, max_concurrency=1)]))
define(app, queue_name="first")
if __name__ == "__main__":
    sys.exit(app.run_worker(WorkerConfig(processes=1, {options})))
"""


def insert_into(sql: psycopg.Connection, queue: str) -> None:
    sql.execute("insert into horsies.tasks (task_name, queue_name, args) values ('whereami', %s, '{}')", [queue])


@pytest.mark.promise("W15")
def test_only_the_named_queues_are_served(script: Scripts, sql: psycopg.Connection) -> None:
    for queue in ("first", "second", "third"):
        insert_into(sql, queue)
    running = script(QUEUES.replace("{options}", "queues=['third', 'first']"))
    running.wait_until("is ready on queues first, third ")
    eventually(lambda: statuses(sql)["COMPLETED"] == 2, seen=lambda: statuses(sql))
    assert row(sql, "select queue_name, status from horsies.tasks") == ("second", "PENDING")
    assert running.stop() == 0


@pytest.mark.promise("W15", "C20")
def test_a_worker_may_serve_the_queues_in_its_own_order(script: Scripts, sql: psycopg.Connection) -> None:
    for queue in ("first", "second", "third"):
        insert_into(sql, queue)
    running = script(QUEUES.replace("{options}", "queue_priorities={'third': 0, 'first': 9}"))
    running.wait_until("is ready on queues third, second, first ")
    wait_until_ended(sql, 3)
    served = sql.execute("select queue_name from horsies.finished order by claimed_at").fetchall()
    assert [queue for (queue,) in served] == ["third", "second", "first"]


@pytest.mark.promise("W15", "C10")
def test_a_worker_may_set_its_own_caps(script: Scripts, sql: psycopg.Connection, tmp_path: Path) -> None:
    """`first` is paused here, and the app's cap on `third` does not hold."""
    options = "queue_max_concurrency={'first': 0, 'third': None}"
    script(QUEUES.replace("processes=1", "processes=3").replace("{options}", options)).wait_until_ready()
    insert_into(sql, "first")
    for number in range(2):
        sql.execute(
            "insert into horsies.tasks (task_name, queue_name, args) "
            "values ('gate', 'third', json_build_object('begun', %s::text, 'until', %s::text))",
            [str(tmp_path / str(number)), str(tmp_path / "open")],
        )
    for number in range(2):
        begun(tmp_path / str(number))
    (tmp_path / "open").touch()
    insert_into(sql, "second")
    eventually(lambda: statuses(sql) == {"COMPLETED": 3, "PENDING": 1}, seen=lambda: statuses(sql))
    assert row(sql, "select queue_name from horsies.tasks") == ("first",)


@pytest.mark.promise("W15")
@pytest.mark.parametrize(
    "options", ["queues=['fourth']", "queue_priorities={'fourth': 1}", "queue_max_concurrency={'fourth': 1}"]
)
def test_a_queue_that_the_app_does_not_have_is_refused(script: Scripts, options: str) -> None:
    running = script(QUEUES.replace("{options}", options))
    assert running.wait() == 1
    assert "there is no queue 'fourth'; this app has first, second, third" in running.output
    assert "children are ready" not in running.output
