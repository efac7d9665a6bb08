"""horsies in a Django project: that of `django_project`, with its own tests, its commands and its workers as processes."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import httpx
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.fixtures.databases import refuse_leftovers
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import column, row
from tests.fixtures.processes import run_module
from tests.fixtures.server import DatabaseServer
from tests.fixtures.web import fetch, free_port
from tests.fixtures.workers import READY, Program

pytestmark = pytest.mark.timeout(300)  # each test starts several processes, each of which imports Django

PROJECT = Path(__file__).with_name("django_project")
PAGE = Path(__file__).parents[2] / "docs" / "django.md"
QUEUES = {
    "PROJECT_HORSIES": '{"custom_queues": [{"name": "default"}, {"name": "slow"}]}',
    "PROJECT_QUEUES": '["default", "slow"]',
}
DJANGO = tuple(map(int, version("django").split(".")[:2]))
IS_6 = DJANGO >= (6, 0)
BACKPORT = {"PROJECT_BACKPORT": "1"}
TASKS = QUEUES | ({} if IS_6 else BACKPORT)
POOL = {"PROJECT_DATABASE": '{"OPTIONS": {"pool": {"min_size": 1, "max_size": 4}}, "CONN_HEALTH_CHECKS": true}'}
needs_pool = pytest.mark.skipif(DJANGO < (5, 1), reason="needs the pool of Django 5.1")
HAS_TASKS = IS_6 or find_spec("django_tasks") is not None


class Project:
    """The project on one database."""

    def __init__(self, database_url: str) -> None:
        self.env = {"PROJECT_DATABASE_URL": database_url, "DJANGO_SETTINGS_MODULE": "mysite.settings"}

    def run(self, *words: str, env: Mapping[str, str] | None = None) -> str:
        """What Python prints, both streams. It must succeed."""
        done = subprocess.run(
            [sys.executable, *words],
            cwd=PROJECT,
            env={**os.environ, **self.env, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def manage(self, *words: str, env: Mapping[str, str] | None = None, code: int = 0, module: str = "manage") -> str:
        """What a command of manage.py prints, both streams. It must end with this exit code."""
        env = {**os.environ, **self.env, **(env or {})}
        done = run_module(module, *words, env=env, cwd=PROJECT, timeout_s=180)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def evaluate(self, code: str, *, env: Mapping[str, str] | None = None) -> Any:
        """Run code in the project, and return what it sets as `found`."""
        printed = self.manage(f"{code}\nprint('<found>' + json.dumps(found) + '<end>')", env=env, module="evaluate")
        return json.loads(printed.rpartition("<found>")[2].partition("<end>")[0])


@pytest.fixture(scope="session")
def project_template(server: DatabaseServer) -> Generator[str]:
    """The name of a database with the tables of the project, to be cloned."""
    name = server.create_migrated()
    Project(server.url(name)).manage("migrate", "--verbosity=0")
    yield name
    server.drop(name)


@pytest.fixture
def database(server: DatabaseServer, project_template: str) -> Generator[str]:
    """The URL of a fresh database with the tables of the project."""
    name = server.create(project_template)
    yield server.url(name)
    try:
        refuse_leftovers(server, name)
    finally:
        server.drop(name)


@pytest.fixture
def project(database: str) -> Project:
    return Project(database)


class StartManaged(Protocol):
    def __call__(
        self, project: Project | None, *words: str, env: Mapping[str, str] | None = ..., cwd: Path = ...
    ) -> Program: ...


@pytest.fixture
def managed() -> Generator[StartManaged]:
    """Start `manage.py horsies worker …` and wait until it is ready."""
    started: list[Program] = []

    def start(
        project: Project | None, *words: str, env: Mapping[str, str] | None = None, cwd: Path = PROJECT
    ) -> Program:
        worker = Program(
            "horsies",
            "worker",
            *words,
            env={**(project.env if project else {}), **(env or {})},
            cwd=cwd,
            script=cwd / "manage.py",
        )
        started.append(worker)
        worker.wait_for_log(READY, 120)
        return worker

    yield start
    for worker in started:
        worker.close()


# -- the tests of the project


@pytest.mark.parametrize(
    "words",
    [
        ["manage.py", "test", "shop", *(["mail"] if HAS_TASKS else [])],
        ["manage.py", "test", "shop.tests", "--parallel", "2"],
        ["-m", "pytest", "-p", "django", "-p", "no:cacheprovider", "-p", "no:randomly", "-q", "check_pytest.py"],
        [
            "-m",
            "pytest",
            "-p",
            "django",
            "-p",
            "no:cacheprovider",
            "-q",
            "-n",
            "2",
            "shop/tests.py",
            "-k",
            "not Worker",
        ],
    ],
    ids=["manage.py", "parallel", "pytest", "xdist"],
)
def test_the_tests_of_the_project_use_the_test_database_only(
    words: list[str], project: Project, sql: psycopg.Connection
) -> None:
    if words[1] == "pytest" and find_spec("pytest_django") is None:
        pytest.skip("needs pytest-django")
    ran = project.run(*words, env=TASKS if HAS_TASKS else QUEUES)
    assert "FAILED" not in ran.splitlines()[-1], ran
    assert row(sql, "select count(*) from horsies.all_tasks") == (0,)
    assert row(sql, "select count(*) from shop_order") == (0,)
    # Neither the runner nor we have left a connection or a database.
    name = row(sql, "select current_database()")[0]
    assert column(sql, "select datname from pg_database where starts_with(datname, %s)", f"test_{name}") == []


@needs_pool
def test_the_tests_of_a_project_with_a_pool(project: Project) -> None:
    project.manage("test", "shop", env=POOL)


@pytest.mark.skipif(not (IS_6 and find_spec("django_tasks")), reason="needs Django 6 and django-tasks")
def test_the_backport_works_with_django_6(project: Project) -> None:
    project.manage("test", "mail", env={**QUEUES, **BACKPORT})


def test_a_test_without_a_database_reaches_none(project: Project, sql: psycopg.Connection) -> None:
    """The runner creates no test database then, so the settings name the real one."""
    assert "Ran 2 tests" in project.manage("test", "shop.tests.WithoutADatabase", "shop.plain")
    assert row(sql, "select count(*) from horsies.all_tasks") == (0,)


# -- commands


def test_migrate_creates_the_schema_and_check_finds_it_missing(empty_database: str, server: DatabaseServer) -> None:
    project = Project(empty_database)
    assert "horsies.W007" in project.manage("check", "--database", "default")
    assert "horsies.W007" in project.manage("migrate", "--check", code=1)
    migrated = project.manage("migrate")
    assert "Applied to the schema 'horsies' of horsies" in migrated
    assert "horsies.W" not in migrated
    assert "horsies.W" not in project.manage("check", "--database", "default")
    assert "Applied to the schema" not in project.manage("migrate")


def test_migrate_leaves_it_alone_if_that_is_configured(empty_database: str) -> None:
    project = Project(empty_database)
    env = {"PROJECT_HORSIES": '{"migrate": false}'}
    migrated = project.manage("migrate", env=env)
    assert "Applied to the schema" not in migrated
    assert "horsies.W007" in migrated
    assert "Run manage.py horsies migrate." in migrated
    assert "does not exist" in project.manage("check", "--database", "default", env=env)


def test_the_hint_names_the_database_that_is_not_the_default_one(empty_database: str) -> None:
    env = {"PROJECT_OTHER": "1", "PROJECT_HORSIES": '{"database": "other"}'}
    project = Project(empty_database)
    project.manage("migrate", "--verbosity=0", env=env)
    assert "Run manage.py migrate --database other." in project.manage("check", "--database", "other", env=env)
    assert "Applied to the schema" in project.manage("migrate", "--database", "other", env=env)
    assert "horsies.W" not in project.manage("check", "--database", "other", env=env)


def test_dumpdata_leaves_the_tables_of_horsies_out(project: Project, sql: psycopg.Connection, tmp_path: Path) -> None:
    """They could not be loaded, and would have the arguments of sensitive tasks."""
    project.evaluate(
        "from shop import models, tasks\ntasks.charge.send('4711')\nmodels.Order(item='saddle').save()\nfound = 0"
    )
    dumped = tmp_path / "dumped.json"
    project.manage("dumpdata", "--output", str(dumped))
    assert "4711" not in dumped.read_text()
    assert "horsies.taskrecord" not in {each["model"] for each in json.loads(dumped.read_text())}
    sql.execute("truncate shop_order")
    project.manage("loaddata", str(dumped))
    assert row(sql, "select item from shop_order") == ("saddle",)
    assert row(sql, "select count(*) from horsies.all_tasks") == (1,)


def test_every_command_knows_the_project(project: Project) -> None:
    assert json.loads(project.manage("horsies", "tasks", "list", "--json", "--settings=mysite.settings"))["tasks"] == []
    assert "Usage: manage.py horsies" in project.manage("horsies", "--help")
    assert "NO_WORKERS" in project.manage("status", module="horsies")
    called = "from django.core.management import call_command\nfound = call_command('horsies', 'queues', 'list')"
    assert project.evaluate(called) is None


def test_makemigrations_finds_nothing(project: Project) -> None:
    assert "No changes detected" in project.manage("makemigrations", "--check")


# -- workers

PLACE = """
from django.db import transaction
from shop.models import Order
from shop.tasks import aconfirm, confirm, describe
with transaction.atomic():
    order = Order.objects.create(item="saddle")
    early, described = order.confirm(), describe.send()
    assert early.status() is None, "it is committed with the order"
try:
    with transaction.atomic():
        undone = confirm.send(order.pk)
        out = confirm.with_options(connection=None).send(order.pk)
        raise LookupError
except LookupError:
    pass
found = [early.get(timeout_ms=60_000).unwrap(), undone.get(timeout_ms=0).err.error_code, out.get(timeout_ms=60_000).unwrap()]
found += [aconfirm.send(order.pk).get(timeout_ms=60_000).unwrap(), described.get(timeout_ms=60_000).unwrap()[0]]
"""


@pytest.mark.parametrize("env", [{}, pytest.param(POOL, marks=needs_pool)], ids=["connections", "pool"])
@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_a_worker_sets_django_up(method: str, env: dict[str, str], project: Project, managed: StartManaged) -> None:
    concurrency = "2" if method == "spawn" else "1"
    worker = managed(project, "--processes=1", f"--start-method={method}", f"--concurrency={concurrency}", env=env)
    assert project.evaluate(PLACE, env=env) == ["saddle", "TASK_NOT_FOUND", "saddle", 1, "True"]
    assert worker.terminate() == 0


def test_a_worker_without_manage_py(project: Project) -> None:
    worker = Program("worker", "--processes=1", env=project.env, cwd=PROJECT)
    try:
        worker.wait_for_log(READY, 120)
        assert project.evaluate(PLACE)[0] == "saddle"
        assert worker.terminate() == 0
    finally:
        worker.close()


def test_a_worker_for_development_uses_the_database_of_the_project(project: Project) -> None:
    pytest.importorskip("watchfiles", reason="watchfiles is not installed")
    dev = Program("horsies", "dev", "--no-web", env=project.env, cwd=PROJECT, script=PROJECT / "manage.py")
    try:
        dev.wait_for_log(READY, 120)
        assert project.evaluate(PLACE)[0] == "saddle"
        assert dev.terminate(60) == 0
    finally:
        dev.close()


ASYNC_VIEW = """
import asyncio
from asgiref.sync import sync_to_async, async_to_sync
from django.db import transaction
from shop.models import Order
from shop.tasks import confirm
def blocking():
    with transaction.atomic():
        inside = async_to_sync(confirm.send_async)(1)
        assert inside.status() is None
        assert async_to_sync(confirm.with_options(connection=None).send_async)(2).status() == "PENDING"
        raise LookupError
async def view():
    order = await Order.objects.acreate(item="saddle")
    alone = await confirm.send_async(order.pk)
    assert await alone.status_async() == "PENDING"
    try:
        await sync_to_async(blocking)()
    except LookupError:
        pass
asyncio.run(view())
from horsies.contrib.django import app
found = len(app.ops.list_tasks().tasks)
"""


def test_sends_of_asyncio_code(project: Project) -> None:
    assert project.evaluate(ASYNC_VIEW) == 2, "one outside, and one that opted out"


WORKFLOW = """
from asgiref.sync import async_to_sync
from django.db import transaction
from horsies.contrib.django import app
from shop.tasks import place
node = place.node()("a")
spec = app.workflow("placing", [node])
def count():
    return len(app.ops.list_tasks().tasks)
found = []
for start in (spec.start, async_to_sync(spec.start_async)):
    for options in ({}, {"connection": None}):
        try:
            with transaction.atomic():
                start(**options)
                raise LookupError
        except LookupError:
            found.append(count())
    with transaction.atomic():
        start()
    found.append(count())
"""


def test_a_workflow_starts_with_the_transaction(project: Project) -> None:
    rolled_back, opted_out, committed = 0, 1, 2
    assert project.evaluate(WORKFLOW) == [rolled_back, opted_out, committed, 2, 3, 4]


SAVEPOINTS = """
from django.db import DatabaseError, transaction
from shop.models import Order
from shop.tasks import confirm
with transaction.atomic():
    kept = confirm.send(1)
    for error in (LookupError, DatabaseError):
        try:
            with transaction.atomic():
                undone = confirm.send(2)
                if error is LookupError:
                    raise LookupError
                Order.objects.create(item="saddle")
                Order.objects.create(item="saddle")
        except error:
            assert undone.status() is None
    with transaction.atomic(), transaction.atomic(savepoint=False):
        inner = confirm.send(3)
    try:
        with transaction.atomic():
            try:
                Order.objects.create(id="no number")
            except ValueError:
                pass
            try:
                with transaction.atomic(savepoint=False):
                    raise LookupError
            except LookupError:
                pass
            confirm.send(4)
    except transaction.TransactionManagementError as error:
        refused = str(error)
    last = confirm.send(5)
with transaction.atomic(durable=True):
    durable = confirm.send(6)
found = [refused, *(handle.status() for handle in (kept, undone, inner, last, durable))]
"""


def test_a_savepoint_that_is_rolled_back_takes_its_sends_with_it(project: Project, sql: psycopg.Connection) -> None:
    refused, *statuses = project.evaluate(SAVEPOINTS)
    assert "until the end of the 'atomic' block" in refused, "as for queries of Django"
    assert statuses == ["PENDING", None, "PENDING", "PENDING", "PENDING"]
    assert row(sql, "select count(*) from horsies.all_tasks") == (4,)


AUTOCOMMIT = """
from django.db import transaction
from shop.models import Order
from shop.tasks import confirm
transaction.set_autocommit(False)
Order.objects.create(item="saddle")
undone = confirm.send(1)
transaction.rollback()
kept = confirm.send(2)
transaction.commit()
found = [undone.status(), kept.status()]
"""


@pytest.mark.parametrize("autocommit", ["true", "false"])
def test_without_autocommit_a_send_is_part_of_the_transaction(autocommit: str, project: Project) -> None:
    env = {"PROJECT_DATABASE": f'{{"AUTOCOMMIT": {autocommit}}}'}
    assert project.evaluate(AUTOCOMMIT, env=env) == [None, "PENDING"]


OTHER = """
from contextlib import ExitStack
from django.db import connections, transaction
from shop.models import Order
from shop.tasks import confirm
def statuses(*aliases, **options):
    try:
        with ExitStack() as blocks:
            for alias in aliases:
                blocks.enter_context(transaction.atomic(using=alias))
                order = Order.objects.using(alias).create(item=alias)
            handle = confirm.with_options(**options).send(order.pk)
            inside = handle.status()
            raise LookupError
    except LookupError:
        pass
    return [inside, handle.status()]
found = [statuses("default"), statuses("other"), statuses("default", "other"), statuses("other", connection=connections["other"])]
found.append(Order.objects.count())
"""


def test_only_the_database_of_horsies_has_its_transactions(project: Project) -> None:
    """A send inside a block on another alias is committed at once, whatever happens to the block."""
    joined, committed, two = [None, None], ["PENDING", "PENDING"], {"PROJECT_OTHER": "1"}
    assert project.evaluate(OTHER, env=two) == [joined, committed, joined, joined, 0]
    chosen = {"PROJECT_HORSIES": '{"database": "other"}'}
    assert project.evaluate(OTHER, env=two | chosen) == [committed, joined, joined, joined, 0]


REQUESTS = """
import os
from django.test import Client
client = Client(raise_request_exception=False)
found = [client.post(path, {"item": item}).status_code for path, item in json.loads(os.environ["REQUESTS"])]
"""


def test_a_request_is_a_transaction_with_atomic_requests(project: Project, sql: psycopg.Connection) -> None:
    def post(*requests: tuple[str, str]) -> list[int]:
        settings = {"PROJECT_DATABASE": '{"ATOMIC_REQUESTS": true}', "REQUESTS": json.dumps(requests)}
        return project.evaluate(REQUESTS, env=settings)

    def counts() -> tuple[Any, ...]:
        return row(sql, "select (select count(*) from shop_order), (select count(*) from horsies.all_tasks)")

    assert post(("/orders", "saddle"), ("/orders", "sleigh")) == [201, 500]
    assert counts() == (1, 1), "the request that has failed was rolled back, with its task"
    assert post(("/orders/committed", "sleigh")) == [500]
    assert counts() == (2, 2), "transaction.non_atomic_requests"


# -- connections

LOST = """
from django.db import connection
from shop.tasks import backend_pid
def pids(count):
    return [backend_pid.send().get(timeout_ms=60_000).ok for _ in range(count)]
before = pids(4)
with connection.cursor() as cursor:
    for pid in set(before):
        cursor.execute("select pg_terminate_backend(%s, 60000)", [pid])
        assert cursor.fetchone() == (True,)
found = [before, pids(6)]
"""


@pytest.mark.parametrize(("concurrency", "has_checks"), [("1", False), ("2", True)], ids=["unchecked", "checked"])
def test_a_lost_connection_costs_one_task_at_most(
    concurrency: str,
    has_checks: bool,  # noqa: FBT001 - a parameter of the test
    project: Project,
    managed: StartManaged,
) -> None:
    settings = {"PROJECT_DATABASE": json.dumps({"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": has_checks})}
    # One task at a time, so that its thread is the same.
    managed(project, "--processes=1", f"--concurrency={concurrency}", "--max-claim-per-worker=1", env=settings)
    found, after = project.evaluate(LOST)
    before = set(found)
    assert len(before) <= int(concurrency), "the connection is kept"
    assert after.count(None) <= (0 if has_checks else len(before))
    assert None not in after[-2:]
    assert before.isdisjoint(after)


ASYNC_PIDS = """
from shop.tasks import abackend_pid
found = [abackend_pid.send().get(timeout_ms=60_000).unwrap() for _ in range(3)]
"""


def test_an_async_task_has_a_connection_of_its_own(
    project: Project, managed: StartManaged, sql: psycopg.Connection
) -> None:
    settings = {"PROJECT_DATABASE": json.dumps({"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True})}
    managed(project, "--processes=1", "--concurrency=2", env=settings)
    pids = project.evaluate(ASYNC_PIDS)
    assert all(first == second for first, second in pids)
    open_ = column(sql, "select pid from pg_stat_activity where datname = current_database()")
    assert not {first for first, _ in pids} & set(open_)


@needs_pool
def test_an_async_task_takes_its_connection_from_the_pool(project: Project, managed: StartManaged) -> None:
    one = {"PROJECT_DATABASE": '{"OPTIONS": {"pool": {"min_size": 1, "max_size": 1}}}'}
    managed(project, "--processes=1", "--concurrency=2", env=one)
    pids = project.evaluate(ASYNC_PIDS)
    assert len({pid for pair in pids for pid in pair}) == 1, "each task has given it back"


@needs_pool
def test_lost_connections_of_a_pool_cost_nothing(project: Project, managed: StartManaged) -> None:
    managed(project, "--processes=1", "--concurrency=2", "--max-claim-per-worker=1", env=POOL)
    before, after = project.evaluate(LOST, env=POOL)
    assert None not in after
    assert set(before).isdisjoint(after)


LEFT_OPEN = """
from shop.models import Order
from shop.tasks import leave_open, place
leave_open.send("lost").get(timeout_ms=60_000).unwrap()
place.send("kept").get(timeout_ms=60_000).unwrap()
found = sorted(Order.objects.values_list("item", flat=True))
"""


@pytest.mark.parametrize(
    "env",
    [{"PROJECT_DATABASE": '{"CONN_MAX_AGE": null}'}, pytest.param(POOL, marks=needs_pool)],
    ids=["kept", "pool"],
)
def test_a_transaction_that_a_task_leaves_open_does_not_swallow_the_next_one(
    env: dict[str, str], project: Project, managed: StartManaged
) -> None:
    managed(project, "--processes=1", env=env)
    assert project.evaluate(LEFT_OPEN) == ["kept"]


def test_a_transaction_that_was_left_open_before_the_attempt_does_not_swallow_it(
    project: Project, managed: StartManaged
) -> None:
    """Here a start hook leaves it open. An attempt that is stopped while it ends does the same."""
    env = {"PROJECT_DATABASE": '{"CONN_MAX_AGE": null}', "PROJECT_HOOK": "1"}
    managed(project, "--processes=1", env=env)
    code = "from shop.models import Order\nfrom shop.tasks import place\n"
    code += "place.send('kept').get(timeout_ms=60_000).unwrap()\nfound = Order.objects.count()"
    assert project.evaluate(code) == 1


# -- settings


def problems(project: Project, **env: object) -> str:
    return project.manage("check", env={name: json.dumps(value) for name, value in env.items()}, code=1)


def test_all_problems_of_the_settings_are_reported_together(project: Project) -> None:
    wrong = {
        "database": "other",
        "DATABASE_URL": "x",
        "KEEP_LOGS": True,
        "modules": "shop",
        "pool_max_size": 0,
        "recovery": {"grace_ms": -1, "unknown": 1},
        "custom_queues": [{"name": "a b"}],
        "prefetch_buffer": -1,
    }
    # A module of the project that imports the app fails with the same message, so no other check is run.
    found = problems(project, PROJECT_HORSIES=wrong)
    for part in (
        "settings.HORSIES has 8 problems",
        "database is 'other'; name one of DATABASES: 'default'",
        "there is no option 'DATABASE_URL'; horsies uses the database of DATABASES",
        "there is no option 'KEEP_LOGS'; write 'keep_logs'",
        "modules is a list",
        "pool_max_size is 0",
        "unexpected keyword argument 'unknown'",
        "'a b' is not a queue name",
        "prefetch_buffer",
    ):
        assert part in found


@pytest.mark.parametrize("modules", ["shop", [5], [""], None, {"shop": 1}])
def test_modules_that_are_no_names_are_refused(modules: object, project: Project) -> None:
    assert "modules is a list of the names of modules" in problems(project, PROJECT_HORSIES={"modules": modules})


def test_databases_that_horsies_cannot_use(project: Project) -> None:
    sqlite = {"ENGINE": "django.db.backends.sqlite3"}
    assert "'django.db.backends.sqlite3', and horsies needs PostgreSQL" in problems(project, PROJECT_DATABASE=sqlite)
    # The tasks of this project are imported by its models, so its own error comes first. A new project has none.
    env = {"PROJECT_DATABASE": json.dumps(sqlite), "PROJECT_WITHOUT_SHOP": "1"}
    refused = project.manage("horsies", "worker", env=env, code=1)
    assert refused.startswith("Error: settings.DATABASES['default'] cannot be used by horsies")
    assert "Traceback" not in refused
    options = {"OPTIONS": {"sslmode": "prefer", "statement_timeout": 5, "another": 1}}
    found = problems(project, PROJECT_DATABASE=options)
    assert "its OPTIONS have 'another', 'statement_timeout', which libpq does not know" in found


DRIVER = """
from django.db import transaction
from shop.tasks import confirm
try:
    with transaction.atomic():
        confirm.send(1)
except Exception as error:
    found = [str(error)]
found += [confirm.send(1).status(), confirm.with_options(connection=None).send(1).status()]
"""


def test_psycopg2_is_refused_with_what_to_change(project: Project) -> None:
    engine = {"ENGINE": "psycopg2_driver"}
    found = problems(project, PROJECT_DATABASE=engine)
    assert "horsies.E003" in found
    assert "Use an ENGINE on psycopg 3" in found
    refused, *sent = project.evaluate(DRIVER, env={"PROJECT_DATABASE": json.dumps(engine)})
    assert "connection= is Django's, on psycopg2; sending inside a transaction of Django needs" in refused
    assert sent == ["PENDING", "PENDING"]


def test_hints_about_connections(project: Project) -> None:
    kept = {"PROJECT_DATABASE": json.dumps({"CONN_MAX_AGE": 60})}
    assert "horsies.W004" in project.manage("check", env=kept)
    pooler = {"PROJECT_DATABASE": json.dumps({"PORT": "6432"})}
    assert "horsies.W005" in project.manage("check", env=pooler)
    direct = pooler | {"PROJECT_HORSIES": json.dumps({"listen_url": "postgresql://localhost/direct"})}
    assert "horsies.W" not in project.manage("check", env=direct)


CONVERT = """
from django.db import connections
from horsies.contrib.django.configuration import postgres_config
found = []
for changes in json.loads(os.environ["CASES"]):
    connections.settings["default"].update(changes)
    found.append(postgres_config("default", {}).conninfo)
"""


def test_all_settings_of_a_database_are_followed(project: Project) -> None:
    base: dict[str, Any] = {"NAME": "shop", "USER": "", "PASSWORD": "", "HOST": "", "PORT": "", "OPTIONS": {}}
    cases: list[dict[str, Any]] = [
        base,
        {**base, "USER": "alice", "PASSWORD": "it's a 'secret'", "HOST": "db.example", "PORT": 5433},
        {**base, "HOST": "/var/run/postgresql"},
        {**base, "NAME": None},
        {**base, "NAME": "", "OPTIONS": {"service": "shop"}},
        {**base, "OPTIONS": {"sslmode": "verify-full", "sslrootcert": "/ca.pem", "options": "-c x.y=1", "pool": True}},
        {**base, "OPTIONS": {"assume_role": "web app", "isolation_level": 3, "server_side_binding": True}},
    ]
    found = project.evaluate(f"import os\n{CONVERT}", env={"CASES": json.dumps(cases)})
    assert found == [
        "dbname=shop",
        r"dbname=shop user=alice password='it\'s a \'secret\'' host=db.example port=5433",
        "dbname=shop host=/var/run/postgresql",
        "dbname=postgres",
        "service=shop",
        "sslmode=verify-full sslrootcert=/ca.pem options='-c x.y=1' dbname=shop",
        r"dbname=shop options='-c role=web\\ app'",
    ]


# -- django.tasks


@pytest.mark.skipif(not HAS_TASKS, reason="needs Django 6 or django-tasks")
def test_a_task_that_workers_do_not_import_is_refused(project: Project) -> None:
    code = "import hidden\ntry:\n    hidden.lost.enqueue()\nexcept Exception as error:\n    found = str(error)"
    env = TASKS
    assert "workers do not import hidden" in project.evaluate(code, env=env)
    listed = {"PROJECT_HORSIES": '{"modules": ["hidden"]}', "PROJECT_QUEUES": '["default"]'}
    code = "import hidden\nfound = hidden.lost.enqueue().status"
    assert project.evaluate(code, env=env | listed) == "READY"


def test_django_is_not_imported_by_horsies() -> None:
    names = "[name for name in sys.modules if name.partition('.')[0] == 'django' or '.contrib' in name]"
    code = f"import sys, horsies, horsies.cli.worker, horsies.worker.run; print({names})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# -- the dashboard

USERS = """
from django.contrib.auth.models import Permission, User
from django.test import Client
def session(name, *codenames, is_staff=True):
    user = User.objects.create_user(name, password="a password", is_staff=is_staff)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="horsies", codename__in=codenames))
    client = Client()
    client.force_login(user)
    return client.cookies["sessionid"].value
session("operator", "operate")
found = [
    session("viewer", "view_taskrecord"),
    session("clerk"),
    session("customer", "view_taskrecord", "operate", is_staff=False),
]
"""
AUDIT = """
from horsies.contrib.django import app
found = [[entry.actor, entry.action] for entry in app.ops.list_audit()]
"""


def csrf_of(page: httpx.Response, name: str) -> str:
    found = re.search(rf'name="{name}" value="([^"]+)"', page.text)
    assert found, page.text
    return found[1]


def log_in(client: httpx.Client) -> httpx.Response:
    """Open a page of the dashboard as the operator, who has to log in to Django."""
    address = str(client.base_url).rstrip("/")
    login = client.get("/horsies/queues", follow_redirects=True)
    assert login.url == f"{address}/admin/login/?next=/horsies/queues"
    form = {"username": "operator", "password": "a password", "next": "/horsies/queues"}
    form["csrfmiddlewaretoken"] = csrf_of(login, "csrfmiddlewaretoken")
    page = client.post("/admin/login/", data=form, follow_redirects=True)
    assert (page.url, page.status_code) == (f"{address}/horsies/queues", 200)
    return page


def test_the_dashboard_is_served_to_users_of_django(project: Project) -> None:
    """By a real uvicorn, with the asgi.py of the page."""
    section = PAGE.read_text().partition("## Dashboard\n")[2]
    assert section.partition("```python\n")[2].partition("```")[0] == (PROJECT / "mysite" / "asgi.py").read_text()
    viewer, clerk, customer = project.evaluate(USERS)
    script = Path(sys.executable).with_name("uvicorn")
    server = Program("mysite.asgi:application", "--port", "0", env=project.env, cwd=PROJECT, script=script)
    try:
        address = server.wait_for_log(r"Uvicorn running on (http://\S+)", 120)[1]
        with httpx.Client(base_url=address, timeout=120, headers={"Origin": address}) as client:
            # Without a session: to the login of Django, and from there to the dashboard.
            page = log_in(client)
            style = re.search(r'href="(/horsies/static/[^"]+\.css)"', page.text)
            assert style
            assert client.get(style[1]).status_code == 200
            # An operator may act, with the token of a form.
            pause = {"name": "default"}
            assert client.post("/horsies/actions/pause-queue", data=pause).status_code == 403
            pause["csrf"] = csrf_of(page, "csrf")
            assert client.post("/horsies/actions/pause-queue", data=pause).status_code == 303
            assert project.evaluate(AUDIT) == [["operator", "pause queue"]]
            client.cookies.clear()
            # Staff who may view tasks read them. Staff without permissions, and others with them, do not.
            for session, status in ((viewer, 200), (clerk, 403), (customer, 403), ("unknown", 303)):
                client.cookies.set("sessionid", session)
                assert client.get("/horsies/").status_code == status
                assert client.post("/horsies/actions/pause-queue", data=pause).status_code == 403
                client.cookies.clear()
            assert project.evaluate(AUDIT) == [["operator", "pause queue"]]
        assert server.terminate(60) in {0, -signal.SIGTERM}
    finally:
        server.close()


class ReverseProxy(httpx.BaseTransport):
    """Passes requests on as the nginx of the page does: by their path, with the `Host` of the client."""

    def __init__(self, ports: Mapping[str, int]) -> None:
        self._ports = ports
        self._transport = httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        port = next(port for prefix, port in self._ports.items() if request.url.path.startswith(prefix))
        url = request.url.copy_with(scheme="http", host="127.0.0.1", port=port)
        request.headers["X-Forwarded-Proto"] = request.url.scheme
        return self._transport.handle_request(
            httpx.Request(request.method, url, headers=request.headers, stream=request.stream)
        )

    def close(self) -> None:
        self._transport.close()


def test_the_dashboard_beside_wsgi_knows_the_users_of_django(project: Project) -> None:
    """Django is served by a WSGI server, and the dashboard by a uvicorn, under the same host name."""
    section = PAGE.read_text().partition("### Beside WSGI\n")[2]
    assert section.partition("$ uvicorn ")[2].partition("\n")[0] == "mysite.asgi:application --port 8001"
    assert re.findall(r"location (\S+) ", section) == ["/horsies", "/"]
    project.evaluate(USERS)
    wsgi_port = free_port()
    wsgi = Program(
        "runserver", "--noreload", f"127.0.0.1:{wsgi_port}", env=project.env, cwd=PROJECT, script=PROJECT / "manage.py"
    )
    uvicorn = Path(sys.executable).with_name("uvicorn")
    asgi = Program("mysite.asgi:application", "--port", "0", env=project.env, cwd=PROJECT, script=uvicorn)
    try:
        asgi_port = int(asgi.wait_for_log(r"Uvicorn running on http://127.0.0.1:(\d+)", 120)[1])
        eventually(lambda: fetch(wsgi_port, "/admin/login/").status == 200, 60, seen=lambda: wsgi.logs)
        transport, origin = ReverseProxy({"/horsies": asgi_port, "/": wsgi_port}), {"Origin": "https://shop.example"}
        with httpx.Client(transport=transport, base_url="https://shop.example", timeout=120) as client:
            page = log_in(client)
            assert client.post("/orders", data={"item": "saddle"}).status_code == 201
            assert ">confirm<" in client.get("/horsies/tasks").text
            pause = {"name": "default", "csrf": csrf_of(page, "csrf")}
            assert client.post("/horsies/actions/pause-queue", data=pause, headers=origin).status_code == 303
            assert project.evaluate(AUDIT) == [["operator", "pause queue"]]
    finally:
        asgi.close()
        wsgi.close()


def test_the_dashboard_of_manage_py_has_users_of_its_own(project: Project, tmp_path: Path) -> None:
    section = PAGE.read_text().partition("### Beside WSGI\n")[2]
    by_password, by_proxy = (
        shlex.split(line) for line in re.findall(r"^\$ python (manage.py horsies .*)$", section, re.MULTILINE)
    )
    made = project.manage("horsies", "web", "make-token", "--name", "ann", "--role", "read-only")
    line, token = re.search(r"^ann .*$", made, re.MULTILINE), re.search(r"Bearer (\S+)", made)
    assert line
    assert token
    (tmp_path / "passwords").write_text(line[0])
    words = [str(tmp_path / word) if word == "passwords" else word for word in by_password]
    bearer = {"Authorization": f"Bearer {token[1]}"}
    trusted = {"X-Forwarded-User": "ann"}
    for command, known in (
        (words, bearer),
        ([word.replace("10.0.0.5", "127.0.0.1") for word in by_proxy], trusted),
    ):
        server = Program(*command[1:], "--port=0", env=project.env, cwd=PROJECT, script=PROJECT / command[0])
        try:
            address = server.wait_for_log(r"the dashboard is at (http://\S+)", 120)[1]
            assert httpx.get(address + "queues", headers=known).status_code == 200
            assert httpx.get(address + "queues").status_code != 200
            assert server.terminate(60) == 0
        finally:
            server.close()


# -- the page

STEP = re.compile(
    r"(?:In|Create) `(?P<file>[\w/.]+)`.*?```python\n(?P<code>.*?)```|```console\n(?P<commands>.*?)```", re.DOTALL
)
COMMAND = re.compile(r"^\$ (.*)\n((?:[^$].*\n)*)", re.MULTILINE)
MAX_STEPS = 8


def steps_of(section: str) -> list[tuple[str, str]]:
    """Each edit (a file, and what to add) and each command (with what it prints)."""
    found: list[tuple[str, str]] = []
    for step in STEP.finditer(section):
        found += [(step["file"], step["code"])] if step["file"] else COMMAND.findall(step["commands"])
    return found


def test_the_page_leads_from_nothing_to_a_task_that_ran(
    server: DatabaseServer, tmp_path: Path, managed: StartManaged
) -> None:
    section = PAGE.read_text().partition("## A new project\n")[2].partition("\n## ")[0]
    steps = steps_of(section)
    assert 0 < len(steps) <= MAX_STEPS, steps
    assert not re.search(r"\w+://", section), "nothing about URLs of databases"
    params = {name: str(value) for name, value in conninfo_to_dict(server.url("mysite")).items()}
    env = {f"PG{name.upper()}": params[name] for name in ("host", "port", "user", "password") if name in params}
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    server.drop("mysite")
    printed, worker = "", None
    for step, content in steps:
        if step.startswith("pip install "):
            continue  # this environment has it
        if step == "createdb mysite":  # its program is not in every environment
            server.admin.execute("create database mysite")
        elif step.endswith("horsies worker"):
            worker = managed(None, env=env, cwd=tmp_path)
        elif " " not in step:
            with (tmp_path / step).open("a") as file:
                file.write(content)
        else:
            words = shlex.split(step)
            ran = subprocess.run(
                words, cwd=tmp_path, env={**os.environ, **env}, capture_output=True, text=True, check=False, timeout=180
            )
            assert ran.returncode == 0, ran.stderr
            assert "WARNING" not in ran.stderr, "no step surprises the reader"
            assert content in ran.stdout
            printed = content
    assert printed == "Hello, Ann!\n", "the last step shows the result of the task"
    assert worker is not None
    worker.close()
    server.drop("mysite")
