"""What users of other task queues try first is an error that says what to write."""

import copy
import inspect
import pickle
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast, runtime_checkable
from unittest.mock import Mock, create_autospec

import pytest

import horsies
from horsies import (
    AppConfig,
    CurrentTask,
    Horsies,
    TaskDefinitionError,
    TaskError,
    TaskHandle,
    TaskResult,
    WorkflowHandle,
)
from horsies.model.other_queues import (
    APP_NAMES,
    APP_OPTIONS,
    CONFIG_OPTIONS,
    CURRENT_TASK_NAMES,
    GET_OPTIONS,
    HANDLE_NAMES,
    MODULE_NAMES,
    SEND_OPTIONS,
    TASK_NAMES,
    TASK_OPTIONS,
)

ID = "01a1f206-3828-7272-bea0-acf8f9c3af19"


def made_app() -> Horsies:
    return Horsies(AppConfig.for_database_url("postgresql://nowhere.invalid/shop"))


app: Any = made_app()


@app.task("resize")
def resize(image_id: int, *, width: int = 800) -> TaskResult[int, TaskError]:
    return TaskResult(ok=image_id * width)


@app.task("fetch")
async def fetch(url: str) -> TaskResult[str, TaskError]:
    return TaskResult(ok=url)


CURRENT = CurrentTask(
    task_id=ID,
    task_name="resize",
    queue_name="default",
    attempt=1,
    deadline=None,
    until=None,
    is_cancelled=lambda: False,
    report=lambda _fraction, _message: None,
)
SENDER = resize.with_options(priority=5)
OBJECTS: list[tuple[object, Mapping[str, str]]] = [
    (resize, TASK_NAMES),
    (fetch, TASK_NAMES),
    (SENDER, TASK_NAMES),
    (app, APP_NAMES),
    (app.handle(ID), HANDLE_NAMES),
    (app.workflow_handle(ID), HANDLE_NAMES),
    (CURRENT, CURRENT_TASK_NAMES),
]
NAMES = [(thing, name, advice) for thing, table in OBJECTS for name, advice in table.items()]


@pytest.mark.parametrize(
    ("thing", "name", "advice"), NAMES, ids=[f"{type(thing).__name__}.{name}" for thing, name, _ in NAMES]
)
def test_a_name_of_another_library_is_missing_and_says_what_to_write(thing: object, name: str, advice: str) -> None:
    assert not hasattr(thing, name)
    assert name not in dir(thing)
    with pytest.raises(AttributeError) as caught:
        getattr(thing, name)
    assert str(caught.value) == f"{type(thing).__name__!r} object has no attribute {name!r}: {advice}"


@pytest.mark.parametrize("thing", [each for each, _ in OBJECTS], ids=lambda each: type(each).__name__)
def test_any_other_missing_name_has_the_usual_error(thing: Any) -> None:
    with pytest.raises(AttributeError, match=rf"^'{type(thing).__name__}' object has no attribute 'snd'$") as caught:
        _ = thing.snd
    assert (caught.value.name, caught.value.obj) == ("snd", thing)  # for "Did you mean: 'send'?"


def test_the_error_of_a_property_is_not_hidden() -> None:
    class Broken(Horsies):
        @property
        def broker(self) -> Any:
            raise AttributeError("the settings have no attribute 'DATABASE'")

    with pytest.raises(AttributeError, match=r"^the settings have no attribute 'DATABASE'$"):
        _ = Broken().broker


@pytest.mark.parametrize("option", TASK_OPTIONS)
def test_an_option_of_another_library_is_refused_where_the_task_is_defined(option: str) -> None:
    with pytest.raises(TaskDefinitionError) as caught:
        app.task("other", **{option: True})
    assert str(caught.value) == f"@app.task has no option {option!r}: {TASK_OPTIONS[option]}"


@pytest.mark.parametrize("option", SEND_OPTIONS)
def test_an_option_of_another_library_is_refused_where_it_is_sent(option: str) -> None:
    with pytest.raises(TypeError) as caught:
        resize.with_options(**{option: 5})
    assert str(caught.value) == f"with_options() has no option {option!r}: {SEND_OPTIONS[option]}"


@pytest.mark.parametrize("option", APP_OPTIONS)
def test_an_option_of_another_library_is_refused_where_the_app_is_made(option: str) -> None:
    made: Any = Horsies
    with pytest.raises(TypeError) as caught:
        made("shop", **{option: "redis://"})
    assert str(caught.value) == f"Horsies() has no option {option!r}: {APP_OPTIONS[option]}"


@pytest.mark.parametrize("option", CONFIG_OPTIONS)
def test_an_option_of_another_library_is_refused_where_the_app_is_configured(option: str) -> None:
    made: Any = AppConfig
    with pytest.raises(TypeError) as caught:
        made(name="shop", **{option: "redis://"})
    assert str(caught.value) == f"AppConfig() has no option {option!r}: {CONFIG_OPTIONS[option]}"


@pytest.mark.parametrize("name", MODULE_NAMES)
def test_a_name_of_another_library_cannot_be_imported_and_says_what_to_write(name: str) -> None:
    with pytest.raises(ImportError) as caught:
        exec(f"from horsies import {name}", {})  # noqa: S102 - our own table
    assert str(caught.value) == f"cannot import name {name!r} from 'horsies': {MODULE_NAMES[name]}"


def test_any_other_name_is_missing_from_the_module_as_usual() -> None:
    assert not hasattr(horsies, "snd")
    with pytest.raises(ImportError, match=r"^cannot import name 'snd' from 'horsies' \("):
        exec("from horsies import snd", {})  # noqa: S102 - the statement is what is tested
    with pytest.raises(AttributeError, match=r"^module 'horsies' has no attribute 'Horses'$") as caught:
        _ = cast("Any", horsies).Horses
    assert (caught.value.name, caught.value.obj) == ("Horses", horsies)  # for "Did you mean: 'Horsies'?"


@pytest.mark.parametrize("handle", [app.handle(ID), app.workflow_handle(ID)])
async def test_an_option_of_another_library_is_refused_where_a_result_is_waited_for(handle: Any) -> None:
    for option, advice in GET_OPTIONS.items():
        with pytest.raises(TypeError) as caught:
            handle.get(**{option: 5})
        assert str(caught.value) == f"get() has no option {option!r}: {advice}"
        with pytest.raises(TypeError) as caught:
            await handle.get_async(**{option: 5})
        assert str(caught.value) == f"get_async() has no option {option!r}: {advice}"
    with pytest.raises(TypeError, match=r"^get\(\) has no option 'timeuot_ms'$"):
        handle.get(timeuot_ms=5)


def test_all_such_options_are_reported_together() -> None:
    with pytest.raises(TaskDefinitionError, match=r"no option 'bind': .*; no option 'max_retries': "):
        app.task(bind=True, max_retries=5)


OPTIONS: list[tuple[Any, Mapping[str, str]]] = [
    (app.task, TASK_OPTIONS),
    (resize.with_options, SEND_OPTIONS),
    (Horsies, APP_OPTIONS),
    (AppConfig, CONFIG_OPTIONS),
]


@pytest.mark.parametrize("method", [method for method, _ in OPTIONS])
def test_any_other_unknown_option_has_the_usual_error(method: Callable[..., object]) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'widht'"):
        method(widht=3)


@pytest.mark.parametrize(("method", "table"), OPTIONS)
def test_no_option_that_exists_is_refused(method: Callable[..., object], table: Mapping[str, str]) -> None:
    assert inspect.signature(method).parameters.keys() & table.keys() == set()


# -- the advice itself

WORD = re.compile(r"(?:(?<=\s)|^)(task|app|handle|current_task\(\))\.(\w+)")
PLACES = {"task": resize, "app": app, "handle": app.handle(ID), "current_task()": CURRENT}
TABLES = [
    TASK_NAMES, APP_NAMES, HANDLE_NAMES, CURRENT_TASK_NAMES, TASK_OPTIONS, SEND_OPTIONS, APP_OPTIONS, CONFIG_OPTIONS, GET_OPTIONS, MODULE_NAMES,
]  # fmt: skip
ADVICE = sorted({advice for table in TABLES for advice in table.values()})


@pytest.mark.parametrize("advice", ADVICE)
def test_the_advice_names_only_what_exists(advice: str) -> None:
    assert [f"{place}.{name}" for place, name in WORD.findall(advice) if not hasattr(PLACES[place], name)] == []
    for option in re.findall(r"with_options\((\w+)=", advice):
        assert option in inspect.signature(resize.with_options).parameters


SHOWN = re.compile(r"write (\w+=(?:\w+\.\w+\(.*?\]\)|{.*?}))")


@pytest.mark.parametrize("option", sorted({shown[1] for advice in ADVICE if (shown := SHOWN.search(advice))}))
def test_the_options_that_the_advice_shows_are_accepted(option: str) -> None:
    names = {**vars(horsies), "OrderClosed": type("OrderClosed", (Exception,), {})}
    made_app().task("shown", **eval(f"dict({option})", names))  # noqa: S307 - our own table


# -- the protocols that look for attributes


@runtime_checkable
class Delayable(Protocol):
    def delay(self) -> object: ...


def test_other_libraries_do_not_take_a_task_for_theirs() -> None:
    assert not isinstance(resize, Delayable)
    assert getattr(resize, "delay", None) is None


@pytest.mark.parametrize("thing", [each for each, _ in OBJECTS], ids=lambda each: type(each).__name__)
def test_objects_can_be_copied_and_looked_into(thing: object) -> None:
    copied = copy.copy(thing)
    assert type(copied) is type(thing)
    assert vars(copied) == vars(thing)
    names = {name for name, _ in inspect.getmembers(type(thing))}
    assert "__getattr__" in names
    assert not {"delay", "s", "ready"} & names


def test_an_object_that_is_not_initialised_has_no_endless_lookup() -> None:
    kinds: list[type] = [type(resize), Horsies, TaskHandle, WorkflowHandle, CurrentTask]
    for kind in kinds:
        with pytest.raises(AttributeError):
            getattr(cast("object", object.__new__(kind)), "_broker")  # noqa: B009 - by its name, because it is private


def test_what_could_be_pickled_still_can() -> None:
    current = CurrentTask(
        task_id=ID,
        task_name="resize",
        queue_name="default",
        attempt=1,
        deadline=None,
        until=None,
        is_cancelled=bool,
        report=print,
    )
    assert pickle.loads(pickle.dumps(current)) == current  # noqa: S301 - our own


def test_a_mock_of_a_task_has_what_the_task_has() -> None:
    for double in (Mock(spec=resize), create_autospec(resize)):
        double.send(7)
        double.send.assert_called_once_with(7)
        with pytest.raises(AttributeError):
            _ = double.delay


def test_the_signatures_stay_visible() -> None:
    assert list(inspect.signature(resize).parameters) == ["image_id", "width"]
    assert "queue_name" in inspect.signature(app.task).parameters
    assert inspect.getdoc(app.task) is not None
