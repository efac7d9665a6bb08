import asyncio
import importlib
import inspect
import subprocess
import sys
import time
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from horsies import (
    AppConfig,
    AsyncTask,
    BlockingCallError,
    BrokerError,
    ConfigError,
    CustomQueueConfig,
    Horsies,
    HorsiesError,
    PayloadError,
    PostgresConfig,
    QueueMode,
    SendSuppressed,
    Task,
    TaskDefinitionError,
    TaskError,
    TaskHandle,
    TaskResult,
)
from horsies.model.error_codes import RESERVED_CODES
from horsies.tasks.sender import suppress_sends
from tests.fixtures.workers import StartWorker
from tests.worker.steps import PATIENCE_MS, begun


@pytest.fixture
def app() -> Horsies:
    return Horsies()


def custom(*names: str) -> Horsies:
    queues = [CustomQueueConfig(name=name) for name in names]
    return Horsies(AppConfig(queue_mode=QueueMode.CUSTOM, custom_queues=queues))


def echo(text: str) -> TaskResult[str, TaskError]:
    return TaskResult(ok=text)


def good(value: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=value)


# -- decoration


@pytest.mark.promise("A5")
def test_a_function_that_does_not_return_a_task_result_is_refused_when_it_is_decorated(app: Horsies) -> None:
    def bare(value: int) -> int:
        return value

    with pytest.raises(TaskDefinitionError, match=r"bare.* returns int.*TaskResult\[T, TaskError\]"):
        app.task("bare")(bare)  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert not app.tasks


@pytest.mark.promise("A5")
@pytest.mark.parametrize("returned", [None, "nothing", TaskResult, TaskResult[int, Any], list[int], dict])
def test_every_other_return_annotation_is_refused(app: Horsies, returned: object) -> None:
    def wrong() -> Any: ...

    if returned == "nothing":
        del wrong.__annotations__["return"]
    else:
        wrong.__annotations__["return"] = returned
    with pytest.raises(TaskDefinitionError, match="TaskResult"):
        app.task("wrong")(wrong)


@pytest.mark.promise("A5")
def test_a_parameter_that_cannot_be_encoded_is_refused_when_it_is_decorated(app: Horsies) -> None:
    def takes_a_lock(lock: "asyncio.Lock") -> TaskResult[int, TaskError]: ...

    with pytest.raises(TaskDefinitionError, match="parameter 'lock'"):
        app.task("takes_a_lock")(takes_a_lock)


def test_a_task_needs_a_name_and_the_error_shows_how(app: Horsies) -> None:
    bare: Any = app.task
    with pytest.raises(TaskDefinitionError, match=r'write @app\.task\("'):

        @bare
        def forgot_the_call() -> TaskResult[int, TaskError]: ...


@pytest.mark.parametrize("name", ["", None, 7])
def test_a_name_is_a_non_empty_string(app: Horsies, name: Any) -> None:
    with pytest.raises(TaskDefinitionError, match="explicit name"):
        app.task(name)(good)


def test_two_tasks_of_one_name_are_refused_naming_both(app: Horsies) -> None:
    app.task("same")(good)

    def other() -> TaskResult[int, TaskError]: ...

    with pytest.raises(TaskDefinitionError, match=r"'same'.*test_app\.good.*other.*rename"):
        app.task("same")(other)
    assert app.tasks["same"].function is good


SHOP = """
import os
from shop_app import app
from horsies import TaskError, TaskResult

@app.task("price")
def price(item: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=item * int(os.environ["SHOP_FACTOR"]))
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """A folder with a module of tasks, `shop_tasks`, and one with their app, `shop_app`."""
    (tmp_path / "shop_app.py").write_text("from horsies import Horsies\napp = Horsies()\n")
    (tmp_path / "shop_tasks.py").write_text(SHOP)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("SHOP_FACTOR", "2")
    yield tmp_path
    for name in ("shop_app", "shop_tasks"):
        sys.modules.pop(name, None)


def test_a_module_that_is_reloaded_replaces_its_tasks(shop: Path) -> None:
    tasks = importlib.import_module("shop_tasks")
    (shop / "shop_tasks.py").write_text("# another line, so that nothing stands where it was\n\n" + SHOP + "# and\n")
    importlib.invalidate_caches()
    again = importlib.reload(tasks)
    assert again.app.tasks["price"] is again.price
    assert again.price(3).unwrap() == 6


def test_a_script_may_also_be_imported_by_its_name(shop: Path) -> None:
    (shop / "shop_tasks.py").write_text(
        SHOP + "import shop_tasks\nprint(price(3).unwrap(), app.tasks['price'](4).unwrap())\n"
    )
    done = subprocess.run([sys.executable, "shop_tasks.py"], cwd=shop, capture_output=True, text=True, check=False)
    assert (done.stderr, done.stdout.split("\n")[-2]) == ("", "6 8")


@pytest.mark.parametrize(
    "second",
    [
        SHOP.partition("@app")[2].join(["@app", ""]),  # the same name in the same file once more
        SHOP.partition("@app")[2].replace("def price", "def cost").join(["@app", ""]),
        "for _ in range(2):\n    @app.task('loop')\n    def loop() -> TaskResult[int, TaskError]: ...\n",
        "def make():\n    @app.task('made')\n    def made() -> TaskResult[int, TaskError]: ...\nmake()\nmake()\n",
    ],
    ids=["again", "other", "loop", "made"],
)
def test_two_functions_of_one_name_in_one_module_stay_an_error(shop: Path, second: str) -> None:
    (shop / "shop_tasks.py").write_text(SHOP + second)
    with pytest.raises(TaskDefinitionError, match="two tasks are named"):
        importlib.import_module("shop_tasks")


def test_two_modules_with_functions_of_one_name_stay_an_error(shop: Path) -> None:
    (shop / "shop_copy.py").write_text(SHOP)
    importlib.import_module("shop_tasks")
    with pytest.raises(TaskDefinitionError, match=r"shop_tasks\.price and shop_copy\.price"):
        importlib.import_module("shop_copy")


@pytest.mark.parametrize("code", sorted(RESERVED_CODES))
def test_codes_of_the_library_are_not_for_exceptions(app: Horsies, code: str) -> None:
    with pytest.raises(TaskDefinitionError) as refused:
        app.task("t", exception_mapper={ValueError: code}, default_unhandled_error_code=code)
    assert f"exception_mapper[ValueError] is '{code}', which is one of the library's own codes" in str(refused.value)
    assert f"default_unhandled_error_code is '{code}', which is one" in str(refused.value)
    with pytest.raises(ConfigError) as problems:
        AppConfig(exception_mapper={ValueError: code}, default_unhandled_error_code=code)
    assert len(problems.value.problems) == 2


def test_the_registry_of_tasks_is_read_only(app: Horsies) -> None:
    task = app.task("good")(good)
    assert dict(app.tasks) == {"good": task}
    with pytest.raises(TypeError):
        app.tasks["more"] = task  # pyright: ignore[reportIndexIssue]


def test_a_task_looks_like_its_function(app: Horsies) -> None:
    @app.task("documented")
    def documented(value: int, *, twice: bool = False) -> TaskResult[int, TaskError]:
        """Says what it does."""
        return TaskResult(ok=value * (2 if twice else 1))

    assert documented.__name__ == "documented"
    assert documented.__doc__ == "Says what it does."
    assert list(inspect.signature(documented).parameters) == ["value", "twice"]
    assert "documented" in repr(documented)


# -- queues


@pytest.mark.parametrize("name", ["a\0b", "a\nb", "half \ud800", "x" * 201])
def test_a_name_that_cannot_be_stored_or_shown_is_refused(app: Horsies, name: str) -> None:
    with pytest.raises(TaskDefinitionError, match="its name must be 1 to 200 printable characters"):
        app.task(name)


def test_all_problems_of_a_task_s_options_come_together(app: Horsies) -> None:
    options: Any = {"timeout_ms": 0, "retry_policy": [1], "exception_mapper": {int: "lower"}}
    with pytest.raises(TaskDefinitionError) as caught:
        app.task("wrong", **options)
    for problem in ("timeout_ms is 0", "retry_policy must be", "has the key <class 'int'>", "[int] is 'lower'"):
        assert problem in str(caught.value)


@pytest.mark.parametrize(
    "config", ["postgresql://ann:S3cr3t@db.example/app", 7, PostgresConfig(database_url="postgresql://")]
)
def test_an_invalid_configuration_is_refused_with_an_example(config: Any) -> None:
    with pytest.raises(ConfigError, match=r"write config=AppConfig\.for_database_url") as caught:
        Horsies(config)
    assert "S3cr3t" not in str(caught.value)


def test_arguments_that_are_too_big_are_refused_where_they_are_sent() -> None:
    app = Horsies(
        AppConfig(broker=PostgresConfig(database_url="postgresql://nowhere.invalid/x"), max_payload_bytes=1_000)
    )
    task = app.task("echo")(echo)
    with pytest.raises(PayloadError, match=r"echo\(\) cannot be sent: as JSON it has 2,011 bytes"):
        task.send("x" * 2_000)


@pytest.mark.promise("C9")
def test_in_default_mode_a_queue_name_is_refused(app: Horsies) -> None:
    with pytest.raises(TaskDefinitionError, match=r"'media'.*only the default queue.*QueueMode\.CUSTOM"):
        app.task("good", queue_name="media")(good)
    assert app.task("good")(good).queue_name == "default"


@pytest.mark.promise("C9")
def test_in_custom_mode_a_queue_name_is_required_and_must_exist() -> None:
    app = custom("media", "mail")
    with pytest.raises(TaskDefinitionError, match="names no queue; set queue_name to one of media, mail"):
        app.task("good")(good)
    with pytest.raises(TaskDefinitionError, match="unknown queue 'medai'; set queue_name to one of media, mail"):
        app.task("good", queue_name="medai")(good)
    assert app.task("good", queue_name="mail")(good).queue_name == "mail"


# -- calls in place


def test_calling_a_task_runs_it_here_and_enqueues_nothing(app: Horsies) -> None:
    task = app.task("good")(good)
    assert isinstance(task, Task)
    assert task(7) == TaskResult(ok=7)


async def test_calling_an_async_task_gives_a_coroutine(app: Horsies) -> None:
    @app.task("later")
    async def later(value: int) -> TaskResult[int, TaskError]:
        await asyncio.sleep(0)
        return TaskResult(ok=value)

    assert isinstance(later, AsyncTask)
    assert await later(7) == TaskResult(ok=7)


# -- discovery


@pytest.mark.promise("W2")
def test_task_modules_are_kept_in_order_and_once(app: Horsies) -> None:
    app.discover_tasks(["shop.mail", "shop/media.py"])
    app.discover_tasks(["shop.mail", "shop.more"])
    assert app.task_modules == ("shop.mail", "shop/media.py", "shop.more")


def test_a_single_text_instead_of_a_list_is_refused(app: Horsies) -> None:
    with pytest.raises(TypeError, match=r"discover_tasks\(\['shop\.mail'\]\)"):
        app.discover_tasks("shop.mail")


# -- where the database is


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"HORSIES_DATABASE_URL": "postgresql://a/1", "DATABASE_URL": "postgresql://b/2"}, "postgresql://a/1"),
        ({"DATABASE_URL": "postgresql://b/2"}, "postgresql://b/2"),
        ({"HORSIES_DATABASE_URL": "", "DATABASE_URL": "postgresql://b/2"}, "postgresql://b/2"),
    ],
)
def test_without_configuration_the_environment_names_the_database(
    app: Horsies, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str
) -> None:
    for name in ("HORSIES_DATABASE_URL", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    assert app.is_embedded
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert not app.is_embedded
    assert app.broker.config.database_url == expected  # made at first need, and connected at the first verb


def test_a_configured_database_is_not_overruled_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORSIES_DATABASE_URL", "postgresql://a/1")
    app = Horsies(AppConfig.for_database_url("postgresql://mine/3"))
    assert app.broker.config.database_url == "postgresql://mine/3"


@pytest.mark.promise("A6")
def test_a_missing_database_is_raised_and_not_returned(app: Horsies, database: str) -> None:
    config = PostgresConfig(database_url="postgresql://nobody@127.0.0.1:1/none", connect_timeout_s=1)
    app = Horsies(AppConfig(broker=config))
    task = app.task("good")(good)
    try:
        with pytest.raises(BrokerError) as caught:
            task.send(1)
    finally:
        app.close()
    assert caught.value.retryable
    assert isinstance(caught.value, HorsiesError)


# -- sending and waiting


@pytest.mark.promise("A3", "A4")
def test_a_result_is_kept_by_its_handle(basic: Any, worker: StartWorker) -> None:
    worker()
    handle = basic.add.send(1, 2)
    assert issubclass(type(handle), TaskHandle)
    first = handle.get(PATIENCE_MS)
    assert first == TaskResult(ok=3)
    basic.app.close()
    assert handle.get() is first  # without a look at the database


@pytest.mark.promise("A3")
def test_bad_arguments_are_refused_in_the_producer(basic: Any, sql: Any) -> None:
    with pytest.raises(PayloadError, match="argument 'right'"):
        basic.add.send(1, "two")
    with pytest.raises(PayloadError, match="add\\(\\) cannot be called like this"):
        basic.add.send(1)
    with pytest.raises(PayloadError):
        basic.echo.send(object())
    assert sql.execute("select count(*) from horsies.tasks").fetchone() == (0,)


@pytest.mark.promise("A3", "A4")
async def test_the_async_verbs_do_the_same(basic: Any, worker: StartWorker) -> None:
    worker()
    try:
        handle = await basic.add.send_async(1, 2)
        first = await handle.get_async(PATIENCE_MS)
        assert first == TaskResult(ok=3)
        assert await handle.get_async() is first
        many = await asyncio.gather(*(basic.echo.send_async(number) for number in range(20)))
        results = await asyncio.gather(*(one.get_async(PATIENCE_MS) for one in many))
        assert [result.ok_value for result in results] == list(range(20))
    finally:
        await basic.app.close_async()


async def test_get_in_a_running_event_loop_is_refused_and_names_get_async(basic: Any) -> None:
    try:
        handle = await basic.add.send_async(1, 2)
        with pytest.raises(BlockingCallError, match="get_async"):
            handle.get()
    finally:
        await basic.app.close_async()


async def test_send_in_a_running_event_loop_works_and_warns(basic: Any, sql: Any) -> None:
    with pytest.warns(UserWarning, match="send_async") as caught:
        handle = basic.add.send(1, 2)
    assert caught[0].filename == __file__  # the line that has to change
    assert sql.execute("select id::text from horsies.tasks").fetchall() == [(handle.task_id,)]


async def test_the_warning_comes_once_from_one_place(basic: Any) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            basic.add.send(1, 2)
    assert len(caught) == 1


def test_many_and_delayed_tasks_are_run(basic: Any, worker: StartWorker) -> None:
    worker(options=("--max-tasks-per-child=0",))  # or a dozen interpreters would be started on the way
    later = basic.add.schedule(0.2, 1, 1)
    again = basic.add.with_options(key="k", on_conflict="replace").schedule(3600, 2, 2)
    many = basic.add.send_many(basic.add.call(number, 0) for number in range(1_100))
    basic.add.with_options(key="k", on_conflict="replace").send(3, 3)
    assert later.get(PATIENCE_MS).ok_value == 2
    assert again.get(PATIENCE_MS).ok_value == 6  # replaced, brought forward, and announced
    assert [handle.get(PATIENCE_MS).ok_value for handle in many[:50]] == list(range(50))


def test_a_wait_that_times_out_does_not_stop_the_task(basic: Any, worker: StartWorker, tmp_path: Any) -> None:
    worker()
    handle = basic.gate.send(str(tmp_path / "begun"), str(tmp_path / "open"))
    pid = begun(tmp_path / "begun")
    early = handle.get(50).err_value
    assert early.error_code == "WAIT_TIMEOUT"
    assert handle.task_id in early.message
    (tmp_path / "open").touch()
    assert handle.get(PATIENCE_MS).ok_value == pid  # the timeout was not kept as its result


def test_a_wait_with_timeout_zero_checks_once(basic: Any) -> None:
    handle = basic.add.send(1, 2)
    began = time.monotonic()
    assert handle.get(0).err_value.error_code == "WAIT_TIMEOUT"
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("task_id", ["5fa3aef7-be9f-48ca-b94f-6ed5dc442fbc", "01890000-0000-7000-8000-000000000000"])
def test_an_unknown_id_is_not_found(basic: Any, task_id: str) -> None:
    handle = basic.add.send(1, 2)
    handle.task_id = task_id
    assert handle.get(20).err_value.error_code == "TASK_NOT_FOUND"


@pytest.mark.promise("A4")
def test_a_wait_that_began_first_is_woken_by_the_ending(basic: Any, worker: StartWorker) -> None:
    handle = basic.add.send(1, 2)
    assert handle.get(20).err_value.error_code == "WAIT_TIMEOUT"
    worker(until_ready=False)
    assert handle.get(PATIENCE_MS).ok_value == 3


@pytest.mark.promise("W3")
def test_a_suppressed_send_gives_an_inert_handle(basic: Any, sql: Any) -> None:
    with suppress_sends():
        handle = basic.add.send(1, 2)
        with pytest.raises(PayloadError):
            basic.add.send("one", 2)  # a mistake is a mistake there, too
    with pytest.raises(SendSuppressed, match="top level"):
        handle.get()
    assert sql.execute("select count(*) from horsies.tasks").fetchone() == (0,)
    basic.add.send(1, 2)
    assert sql.execute("select count(*) from horsies.tasks").fetchone() == (1,)


@pytest.mark.promise("W3")
async def test_a_suppressed_async_send_gives_an_inert_handle(basic: Any) -> None:
    with suppress_sends():
        handle = await basic.add.send_async(1, 2)
    with pytest.raises(SendSuppressed):
        await handle.get_async()


def test_an_app_that_was_closed_works_again(basic: Any, sql: Any) -> None:
    basic.add.send(1, 2)
    basic.app.close()
    basic.app.close()
    basic.add.send(3, 4)
    assert sql.execute("select count(*) from horsies.tasks").fetchone() == (2,)


# -- aliases


@pytest.mark.promise("D1")
def test_a_task_is_known_by_its_aliases_and_listed_by_its_name(app: Horsies) -> None:
    @app.task("new", aliases=["old", "older"])
    def task(value: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=value)

    assert list(app.tasks) == ["new"]
    assert set(app.known_tasks) == {"new", "old", "older"}
    assert all(known is app.tasks["new"] for known in app.known_tasks.values())
    assert task.name == "new"


@pytest.mark.parametrize(
    ("aliases", "words"),
    [
        ("old", "give a list of names"),
        ([1], "a name is a string"),
        ([""], "not empty"),
        (["new"], "the name of the task itself"),
        (["x" * 300], "1 to 200"),
    ],
)
def test_aliases_that_are_not_names_are_refused(app: Horsies, aliases: Any, words: str) -> None:
    with pytest.raises(TaskDefinitionError, match=words):
        app.task("new", aliases=aliases)


def test_a_name_belongs_to_one_task_also_as_an_alias(app: Horsies) -> None:
    def task() -> TaskResult[int, TaskError]:
        return TaskResult(ok=1)

    app.task("first", aliases=["former"])(task)
    for name, aliases in [("former", []), ("second", ["first"]), ("second", ["former"])]:
        with pytest.raises(TaskDefinitionError, match="aliases"):
            app.task(name, aliases=aliases)(task)
    assert set(app.known_tasks) == {"first", "former"}


@pytest.mark.promise("W3")
def test_an_app_can_suppress_its_sends(basic: Any, sql: Any) -> None:
    other = Horsies(basic.app.config)
    basic.app.suppress_sends(True)  # noqa: FBT003 - as it is called
    handle = basic.add.send(1, 2)
    flow = basic.app.workflow("flow", [basic.add.node(node_id="add")(1, 2)]).start()
    with pytest.raises(SendSuppressed, match=r"app\.suppress_sends\(True\)"):
        handle.get()
    with pytest.raises(SendSuppressed, match=r"app\.suppress_sends\(True\)"):
        flow.get()
    assert sql.execute("select count(*) from horsies.all_tasks").fetchone() == (0,)
    assert not other.suppresses_sends
    basic.app.suppress_sends(False)  # noqa: FBT003 - as it is called
    basic.add.send(1, 2)
    assert sql.execute("select count(*) from horsies.tasks").fetchone() == (1,)


@pytest.mark.parametrize(
    ("word", "suppressed"), [("1", True), ("true", True), ("On", True), ("0", False), ("", False), ("no", False)]
)
def test_the_environment_can_suppress_the_sends_of_an_app(
    monkeypatch: pytest.MonkeyPatch, word: str, *, suppressed: bool
) -> None:
    monkeypatch.setenv("HORSIES_SUPPRESS_SENDS", word)
    assert Horsies().suppresses_sends is suppressed


def test_an_environment_value_that_is_neither_yes_nor_no_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORSIES_SUPPRESS_SENDS", "maybe")
    with pytest.raises(ConfigError, match=r"\$HORSIES_SUPPRESS_SENDS is 'maybe'; set it to 1 or 0"):
        Horsies()


def test_a_task_may_be_named_by_a_keyword(app: Horsies) -> None:
    assert app.task(task_name="echo")(echo).name == "echo"
    assert app.task(name="other echo")(echo).name == "other echo"
    with pytest.raises(TaskDefinitionError, match="a task has one name: give 'a' or task_name='b', not both"):
        app.task("a", task_name="b")
    with pytest.raises(TaskDefinitionError, match="a task needs an explicit name"):
        app.task()


class Shop:
    """Its methods cannot be tasks."""

    def sell(self) -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    @classmethod
    def open(cls) -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    @staticmethod
    def close() -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)


@pytest.mark.parametrize(
    "method",
    [Shop.sell, Shop().sell, Shop.open, Shop.close, vars(Shop)["open"], vars(Shop)["close"]],
    ids=["function", "bound", "class method", "static", "classmethod object", "staticmethod object"],
)
def test_a_method_is_refused_with_what_to_write(method: Any) -> None:
    app = Horsies()
    with pytest.raises(TaskDefinitionError, match=r"Shop\.\w+ belongs to a class; write a function outside of it"):
        app.task("sell")(method)
    assert app.tasks == {}


def test_a_generator_function_is_refused_with_what_to_write() -> None:
    app = Horsies()

    def count() -> Any:
        yield TaskResult(ok=1)

    async def count_async() -> Any:
        yield TaskResult(ok=1)

    for function in (count, count_async):
        with pytest.raises(TaskDefinitionError, match=r"is a generator function.*return a list.*progress"):
            app.task("count")(function)


def test_for_a_task_without_a_name_the_error_says_which_to_write() -> None:
    app: Any = Horsies()

    def resize() -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    with pytest.raises(TaskDefinitionError, match=r'write @app\.task\("resize"\)'):
        app.task(resize)
    with pytest.raises(TaskDefinitionError, match=r"write @app\.task\("):
        app.task()
