"""The start of a worker and its children: what they import, refuse and log."""

import json
import os
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from tests.fixtures.journey import column, row
from tests.fixtures.workers import READY, StartWorker
from tests.worker.steps import PATIENCE_MS, begun, insert, numbers, statuses, wait_until_ended

TASK = """
from horsies import Horsies, TaskError, TaskResult
app = Horsies()

@app.task("whoami")
def whoami() -> TaskResult[str, TaskError]:
    return TaskResult(ok=__name__)
"""


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.promise("W1", "C21")
def test_a_worker_logs_how_it_runs_and_registers_itself(worker: StartWorker, sql: psycopg.Connection) -> None:
    running = worker(processes=3)
    running.wait_for_log(
        "Concurrency config: processes=3, cluster_wide_cap=None, max_claim_per_worker=3, max_claim_batch=0, concurrency=1"
    )
    pids = running.wait_for_log(r"children are ready: pids ([\d, ]+)")[1]
    assert {int(pid) for pid in pids.split(", ")} == {child.pid for child in running.children()}
    incarnation = running.wait_for_log(rf"worker (\S+) {READY} default \(pid {running.pid}\)")[1]
    found = row(sql, "select id::text, pid, processes, queues, heartbeat_at >= started_at from horsies.workers")
    assert found == (incarnation, running.pid, 3, ["default"], True)


@pytest.mark.promise("C21")
@pytest.mark.parametrize(
    ("prefetch", "options", "expected"),
    [
        ("8", (), r"max_claim_per_worker=10, max_claim_batch=0, concurrency=1, prefetch_buffer=8$"),
        (
            "auto",
            (),
            r"max_claim_per_worker=auto \(at most 2048\), max_claim_batch=0, concurrency=1, prefetch_buffer=auto$",
        ),
        ("auto", ("--max-claim-per-worker=7",), r"max_claim_per_worker=7, .* prefetch_buffer=auto$"),
        (
            "auto",
            ("--concurrency=5",),
            r"max_claim_per_worker=auto \(at most 2056\), .* concurrency=5, prefetch_buffer=auto$",
        ),
    ],
)
def test_a_worker_logs_how_many_tasks_it_may_hold(
    worker: StartWorker, prefetch: str, options: tuple[str, ...], expected: str
) -> None:
    env = {"HORSIES_TEST_PREFETCH": prefetch}
    running = worker("tests.apps.tuned:app", processes=2, options=options, env=env, until_ready=False)
    running.wait_for_log(f"Concurrency config: processes=2, cluster_wide_cap=None, {expected}")


@pytest.mark.promise("D3")
def test_a_worker_registers_its_app_and_logs_tasks_that_another_app_has_too(
    worker: StartWorker, sql: psycopg.Connection
) -> None:
    for app, names, queues in (("bank", ["add", "count"], ["default"]), ("mill", ["add"], ["flour"])):
        sql.execute(
            "insert into horsies.workers (id, hostname, pid, processes, concurrency, queues, library_version, app, task_names) "
            "values (gen_random_uuid(), 'here', 1, 1, 1, %s, '0.1.0', %s, %s)",
            [queues, app, names],
        )
    running = worker()
    running.wait_for_log(
        "WARNING.*app 'bank' has tasks of the same name in the same queues as app 'tests.apps.basic:app': add\\."
    )
    assert not any("'mill'" in line for line in running.logs)
    assert row(sql, "select app from horsies.workers where pid = %s", running.pid) == ("tests.apps.basic:app",)


@pytest.mark.promise("W1")
def test_every_start_is_a_new_incarnation(worker: StartWorker, sql: psycopg.Connection) -> None:
    seen: set[object] = set()
    for _ in range(2):
        running = worker(processes=1)
        seen.update(column(sql, "select id from horsies.workers"))
        assert running.terminate() == 0
    assert len(seen) == 2


@pytest.mark.promise("T2")
def test_nothing_is_claimed_before_the_worker_is_registered(worker: StartWorker, sql: psycopg.Connection) -> None:
    """The leader treats the tasks of a worker that is not registered as orphans. Here the registration is half a second late."""
    insert(sql, "add", left=1, right=2)
    env = {"HORSIES_TEST_RETRY_MS": "500"}
    running = worker("tests.apps.tuned:app", env=env, faults="register_worker:before:drop")
    running.wait_for_log("planted fault: drop before register_worker")
    assert wait_until_ended(sql, 1) == {"COMPLETED": 1}
    (registered_at,) = row(sql, "select started_at from horsies.workers")
    assert row(sql, "select claimed_at >= %s from horsies.finished", registered_at) == (True,)


@pytest.mark.promise("W16")
def test_a_worker_creates_the_schema_it_needs(worker: StartWorker, empty_database: str) -> None:
    running = worker(processes=1, database_url=empty_database)
    running.wait_for_log("migrations applied: ")
    with psycopg.connect(empty_database, autocommit=True) as sql:
        insert(sql, "add", left=1, right=2)
        assert wait_until_ended(sql, 1) == {"COMPLETED": 1}
    assert running.terminate() == 0


# -- modules


@pytest.mark.promise("W3")
def test_a_send_at_import_enqueues_nothing_and_breaks_nothing(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    """Both the worker and its child import the module, and its handle says why there is nothing to wait for."""
    note = tmp_path / "note"
    text = f"""{TASK}
import os
from horsies import SendSuppressed
handle = whoami.send()
try:
    handle.get(0)
except SendSuppressed as error:
    with open({str(note)!r}, "a") as file:
        file.write("suppressed\\n")
"""
    path = written(tmp_path, "sends_at_import.py", text)
    worker(f"{path}:app", processes=1)
    assert note.read_text().split() == ["suppressed", "suppressed"]
    assert statuses(sql) == {}
    insert(sql, "whoami")
    assert wait_until_ended(sql, 1) == {"COMPLETED": 1}


@pytest.mark.promise("W2")
def test_task_modules_are_found_by_dotted_name_and_by_path(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    by_name = "from shop_app import app\n" + TASK.replace("app = Horsies()", "").replace("whoami", "by_name")
    written(tmp_path, "shop_pkg/tasks/mail.py", by_name)
    by_path = written(tmp_path / "not-importable", "loose.py", by_name.replace("by_name", "by_path"))
    modules = json.dumps(["shop_pkg.tasks.mail", str(by_path)])
    path = written(tmp_path, "shop_app.py", f"{TASK}\napp.discover_tasks({modules})\n")
    worker(f"{path}:app", processes=1, env={"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"})
    for name in ("whoami", "by_name", "by_path"):
        insert(sql, name)
    wait_until_ended(sql, 3)
    results = dict(sql.execute("select task_name, result::text from horsies.finished").fetchall())
    assert results == {"whoami": '"shop_app"', "by_name": '"shop_pkg.tasks.mail"', "by_path": '"loose"'}


@pytest.mark.promise("W6")
def test_children_load_the_app_by_themselves(worker: StartWorker, sql: psycopg.Connection, tmp_path: Path) -> None:
    text = f'{TASK}\nimport os\nopen({str(tmp_path / "loaded")!r}, "a").write(f"{{os.getpid()}}\\n")\n'
    path = written(tmp_path, "tells.py", text)
    running = worker(f"{path}:app", processes=2)
    loaded = numbers(tmp_path / "loaded")
    assert set(loaded) == {running.pid, *(child.pid for child in running.children())}
    assert len(loaded) == 3


# -- children that do not start


IN_A_CHILD = "import sys\nif 'horsies/executor' in sys.argv[0]:\n    "


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        ("raise OSError('no licence here')", r"OSError: no licence here.*only_at_home\.py:11"),
        ("sys.exit('no')", "SystemExit: no"),
        ("import os; os._exit(3)", r"exited with code 3 while it was importing \S+only_at_home\.py"),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            r"was killed by SIGKILL while it was importing \S+only_at_home\.py",
        ),
    ],
)
def test_a_worker_whose_children_cannot_load_the_app_logs_why_and_exits_with_1(
    worker: StartWorker, tmp_path: Path, failure: str, message: str
) -> None:
    path = written(tmp_path, "only_at_home.py", f"{TASK}\n{IN_A_CHILD}{failure}\n")
    running = worker(f"{path}:app", processes=2, until_ready=False)
    assert running.wait() == 1
    running.wait_for_log(f"Error: .*{message}")
    assert "Traceback" not in "\n".join(running.logs)


def test_a_replacement_that_cannot_load_the_app_is_tried_again(
    basic: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    """The other child continues to work."""
    flag = tmp_path / "flag"
    failure = f"import os\n    if os.path.exists({str(flag)!r}): raise OSError('not now')\n"
    text = f"from tests.apps import basic\napp = basic.app\n{IN_A_CHILD}{failure}"
    path = written(tmp_path, "moody.py", text)
    running = worker(f"{path}:app", processes=2)
    flag.touch()
    assert basic.kill_self.send().get(PATIENCE_MS).err_value.error_code == "WORKER_CRASHED"
    running.wait_for_log("a replacement child did not start, the next try is in .* not now")
    assert basic.add.send(1, 1).get(PATIENCE_MS).ok_value == 2
    flag.unlink()
    gates = [basic.gate.send(str(tmp_path / str(n)), str(tmp_path / "open")) for n in range(2)]
    pids = {begun(tmp_path / str(n)) for n in range(2)}  # there are two children again
    (tmp_path / "open").touch()
    assert {gate.get(PATIENCE_MS).ok_value for gate in gates} == pids
    assert len(pids) == 2


@pytest.mark.promise("T2")
@pytest.mark.parametrize("stage", ["idle", "at work"])
def test_a_worker_that_was_declared_dead_forgets_its_tasks_and_starts_again(
    basic: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path, stage: str
) -> None:
    """Its task may belong to another worker: here to none, until its own maintenance finds the orphan."""
    running = worker("tests.apps.tuned:app", processes=1, env={"HORSIES_TEST_HEARTBEAT_MS": "200"})
    task = basic.gate.send(str(tmp_path / "begun"), str(tmp_path / "never")) if stage == "at work" else None
    if task:
        begun(tmp_path / "begun")
    old_children = running.children()
    (dead,) = column(sql, "delete from horsies.workers returning id::text")
    running.wait_for_log(f"worker {dead} was declared dead.*starting again")
    incarnation = running.wait_for_log(rf"worker (?!{dead})(\S+) {READY}")[1]
    assert column(sql, "select id::text from horsies.workers") == [incarnation]
    assert incarnation != dead
    # A process whose parent was the fork server is a zombie until the system has collected it.
    alive = [child for child in old_children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    assert not alive
    if task:
        assert task.get(PATIENCE_MS).err_value.error_code == "WORKER_CRASHED"
        assert len(numbers(tmp_path / "begun")) == 1
    assert basic.add.send(1, 1).get(PATIENCE_MS).ok_value == 2
    assert "Traceback" not in "\n".join(running.logs)
    assert running.terminate() == 0


@pytest.mark.promise("C4")
def test_a_child_of_a_worker_is_like_one_that_is_a_new_interpreter(
    worker: StartWorker, sql: psycopg.Connection
) -> None:
    """Although the worker forks the fork server from itself: that happens before it knows anything of the app."""
    about: list[dict[str, Any]] = []
    for method in ("spawn", "forkserver"):
        running = worker("tests.apps.interpreter_on_database:app", options=("--start-method", method))
        task_id = insert(sql, "about_interpreter")
        wait_until_ended(sql, len(about) + 1)
        found = row(sql, "select result from horsies.finished where id = %s", task_id)[0]
        assert found["environment"].pop("HORSIES_TEST_WORKER")
        assert found.pop("session") == running.pid
        about.append(found)
        assert running.terminate() == 0
    assert about[0] == about[1]


def test_a_worker_that_cannot_start_leaves_no_fork_server(worker: StartWorker) -> None:
    """It has forked one from itself already."""
    failed = worker("tests.apps.no_such_module:app", until_ready=False)
    assert failed.wait() == 1
    assert not any("Traceback" in line for line in failed.logs)
