import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from horsies import Horsies, LocateError, SendSuppressed, TaskHandle
from horsies.locate import find_app, import_tasks, load_app

APP = """
from horsies import Horsies, TaskError, TaskResult
app = Horsies()

@app.task("greet")
def greet(name: str) -> TaskResult[str, TaskError]:
    return TaskResult(ok=f"hello {name}")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """The current folder, with imports that are forgotten afterwards. Its name cannot be part of a dotted name."""
    here = tmp_path / "here-and-now"
    here.mkdir()
    monkeypatch.chdir(here)
    path, modules = list(sys.path), dict(sys.modules)
    yield here
    sys.path[:] = path
    for name in set(sys.modules) - set(modules):
        del sys.modules[name]
    sys.modules.update(modules)


def write(path: str, text: str) -> Path:
    made = Path(path)
    made.parent.mkdir(parents=True, exist_ok=True)
    made.write_text(text)
    return made


def refusal(locator: str) -> str:
    with pytest.raises(LocateError) as caught:
        load_app(locator)
    return str(caught.value)


# -- finding


@pytest.mark.promise("W1")
@pytest.mark.parametrize("locator", ["shop:app", "shop.py:app", "./shop.py:app"])
def test_an_app_is_found_by_module_and_by_file(locator: str) -> None:
    write("shop.py", APP)
    app = load_app(locator)
    assert isinstance(app, Horsies)
    assert list(app.tasks) == ["greet"]


@pytest.mark.parametrize("locator", ["store.front.shop:app", "store/front/shop.py:app"])
def test_an_app_is_found_inside_a_package_or_plain_folders(locator: str) -> None:
    write("store/front/shop.py", APP)
    assert list(load_app(locator).tasks) == ["greet"]


def test_a_file_is_found_anywhere(tmp_path: Path) -> None:
    path = write(str(tmp_path / "else-where" / "shop.py"), APP)
    assert list(load_app(f"{path}:app").tasks) == ["greet"]


def test_a_file_imports_its_neighbours(tmp_path: Path) -> None:
    write(str(tmp_path / "else-where" / "near_by.py"), "WORD = 'near'")
    path = write(str(tmp_path / "else-where" / "shop.py"), f"import near_by\n{APP}")
    assert load_app(f"{path}:app")


def test_one_module_is_one_module_however_it_is_named() -> None:
    """By path first and by name later it must not run twice, or its tasks would be registered in two apps."""
    write("store/shop.py", APP)
    assert load_app("store/shop.py:app") is load_app("store.shop:app")


def test_a_module_behind_a_symbolic_link_is_one_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(str(tmp_path / "real-folder" / "shop.py"), APP)
    (tmp_path / "link").symlink_to(tmp_path / "real-folder")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "link"), *sys.path])
    assert load_app(f"{tmp_path / 'link' / 'shop.py'}:app") is load_app("shop:app")


def test_an_app_without_a_name_is_named_after_its_module_however_it_was_found() -> None:
    write("store/__init__.py", "")
    write(
        "store/shop.py",
        f"{APP}\nnamed = Horsies(AppConfig(name='mill'))".replace("import Horsies", "import AppConfig, Horsies"),
    )
    assert load_app("store/shop.py:app").name == "store.shop:app"
    assert load_app("store.shop:app").name == "store.shop:app"
    assert load_app("store.shop:named").name == "mill"
    assert load_app("store.shop:named").locator == "store.shop:named"
    assert Horsies().name == "app"


def test_a_lone_file_is_imported_once(tmp_path: Path) -> None:
    path = write(str(tmp_path / "else-where" / "shop.py"), APP)
    assert find_app(f"{path}:app") is find_app(f"{path}:app")


def test_task_modules_are_imported_by_name_and_by_path(tmp_path: Path) -> None:
    task = "from shop import app\n" + APP.replace("app = Horsies()", "")
    write("mail/tasks.py", task.replace("greet", "post"))
    loose = write(str(tmp_path / "else-where" / "tasks.py"), task.replace("greet", "ship"))
    write("shop.py", f"{APP}\napp.discover_tasks(['mail.tasks', {str(loose)!r}])")
    assert sorted(load_app("shop:app").tasks) == ["greet", "post", "ship"]


def test_a_script_may_be_in_a_folder_of_its_own_name(folder: Path) -> None:
    """`python shop/shop.py` has `shop/` on its path, and the current folder is there, too."""
    write("shop/shop.py", APP)
    sys.path.append(str(folder / "shop"))
    assert "greet" in load_app("shop/shop.py:app").tasks
    assert load_app("shop:app") is load_app("shop/shop.py:app")


def test_two_lone_files_of_one_name_are_two_modules(tmp_path: Path) -> None:
    task = "from shop import app\n" + APP.replace("app = Horsies()", "")
    paths = [
        write(str(tmp_path / folder / "tasks.py"), task.replace("greet", name))
        for folder, name in (("one-place", "post"), ("other-place", "ship"))
    ]
    write("shop.py", f"{APP}\napp.discover_tasks({[str(path) for path in paths]!r})")
    assert sorted(load_app("shop:app").tasks) == ["greet", "post", "ship"]


def test_a_folder_may_be_named_like_an_installed_package() -> None:
    """`test` is a package of Python itself, and wins over a folder without an `__init__.py`."""
    write("test/shop.py", APP)
    assert list(load_app("test/shop.py:app").tasks) == ["greet"]


def test_a_file_named_like_a_module_of_python_does_not_take_its_place(tmp_path: Path) -> None:
    """In a process of its own: what it would break is everything that imports that module later."""
    path = write(str(tmp_path / "else-where" / "queue.py"), APP)
    code = (
        "import queue as before; from horsies.locate import load_app; "
        f"app = load_app({f'{path}:app'!r}); assert list(app.tasks) == ['greet']; "
        "import queue as after; assert after is before, after"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# -- what is refused


@pytest.mark.parametrize("locator", ["shop", "", ":", ":app", "shop:", "shop:app.more", "shop:1", "shop:a b"])
def test_an_invalid_locator_is_refused_with_the_two_valid_forms(locator: str) -> None:
    write("shop.py", APP)
    message = refusal(locator)
    assert "package.module:attribute" in message
    assert "path/file.py:attribute" in message


@pytest.mark.parametrize(
    ("locator", "missing"),
    [("no_such_thing:app", "no_such_thing"), ("no_such.thing:app", "no_such"), ("shop.thing:app", "shop.thing")],
)
def test_a_missing_module_is_named_with_what_to_change(locator: str, missing: str) -> None:
    write("shop.py", APP)
    module = locator.removesuffix(":app")
    assert refusal(locator) == (
        f"cannot import {module!r}: there is no module {missing!r} here; "
        "run from the folder that contains it, or write the path of a .py file"
    )


def test_a_missing_file_is_named() -> None:
    assert "there is no file 'nowhere/shop.py'" in refusal("nowhere/shop.py:app")


def test_a_missing_attribute_is_named_with_the_apps_of_the_module() -> None:
    write("shop.py", APP)
    assert refusal("shop:application") == "'shop' has no attribute 'application'; it has app"
    write("empty.py", "")
    assert "it has no Horsies app at its top level" in refusal("empty:app")


def test_an_attribute_that_is_not_an_app_is_named_by_its_type() -> None:
    write("shop.py", APP)
    assert refusal("shop:greet") == (
        "'shop:greet' is a Task, not a Horsies app; name the variable that holds Horsies(...)"
    )


# -- mistakes in the user's own modules


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1\nx / 0\n", "ZeroDivisionError: division by zero"),
        ("\nimport no_such_library\n", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("\nimport sys; sys.exit('wrong machine')\n", "SystemExit: wrong machine"),
        ("\nimport json; json.loads('{')\n", "JSONDecodeError"),
    ],
)
def test_an_error_at_import_names_the_line_of_the_user_code(folder: Path, text: str, expected: str) -> None:
    write("shop.py", text)
    message = refusal("shop:app")
    assert "cannot import 'shop'" in message
    assert expected in message
    assert f"{folder / 'shop.py'}:2" in message


@pytest.mark.parametrize("locator", ["shop:app", "shop.py:app"])
def test_a_syntax_error_names_the_line_of_the_user_code(folder: Path, locator: str) -> None:
    write("shop.py", "x = 1\ndef broken(:\n")
    message = refusal(locator)
    assert "SyntaxError" in message
    assert f"{folder / 'shop.py'}:2" in message
    assert "locate.py" not in message


def test_a_wrong_return_annotation_names_the_function_and_its_line(folder: Path) -> None:
    write("shop.py", APP.replace("TaskResult[str, TaskError]", "str"))
    message = refusal("shop:app")
    assert "greet returns str, but a task returns TaskResult[T, TaskError]" in message
    assert f"{folder / 'shop.py'}:5" in message


def test_an_error_in_a_task_module_names_module_and_app(folder: Path) -> None:
    write("tasks.py", "raise OSError('no disk')")
    write("shop.py", f"{APP}\napp.discover_tasks(['tasks'])")
    message = refusal("shop:app")
    assert "task module 'tasks' of shop:app" in message
    assert f"OSError: no disk ({folder / 'tasks.py'}:1)" in message


def test_a_missing_task_module_is_named() -> None:
    write("shop.py", f"{APP}\napp.discover_tasks(['shop_tasks'])")
    assert "there is no module 'shop_tasks' here" in refusal("shop:app")


# -- sends


@pytest.mark.promise("W3")
def test_sends_are_suppressed_while_modules_are_imported() -> None:
    write("shop.py", f"{APP}\nhandle = greet.send('you')\n")
    load_app("shop:app")
    handle = sys.modules["shop"].handle
    assert isinstance(handle, TaskHandle)
    with pytest.raises(SendSuppressed):
        handle.get()


@pytest.mark.promise("W3")
def test_a_failed_import_leaves_no_send_suppressed() -> None:
    from horsies.tasks.sender import sends_are_suppressed  # noqa: PLC0415 - what it says now

    write("shop.py", "1 / 0")
    refusal("shop:app")
    assert not sends_are_suppressed()


# -- patterns


def tasks_of(*patterns: str) -> list[str]:
    write("shop.py", f"{APP}\napp.discover_tasks({list(patterns)!r})")
    return [name for name in load_app("shop:app").tasks if name != "greet"]


@pytest.fixture
def many() -> None:
    task = "from shop import app\n" + APP.replace("app = Horsies()", "")
    for place in ("mail/tasks", "media/tasks", "media/video/tasks", "bare/tasks"):
        write(f"myapp/{place}.py", task.replace('"greet"', f'"{place}"'))
    write("myapp/media/other.py", "raise SystemExit('not asked for')")
    write("myapp/__main__.py", "raise SystemExit('a program')")
    for package in ("", "mail/", "media/", "media/video/"):  # `bare` is a namespace package
        write(f"myapp/{package}__init__.py", "")
    for name in ("ship", "bill"):
        write(f"jobs/{name}.py", task.replace("greet", name))
    write("jobs/__init__.py", "")


@pytest.mark.promise("W2")
@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("myapp.*.tasks", ["bare/tasks", "mail/tasks", "media/tasks"]),
        ("myapp.m*.tasks", ["mail/tasks", "media/tasks"]),
        ("myapp.**.tasks", ["bare/tasks", "mail/tasks", "media/tasks", "media/video/tasks"]),
        ("myapp.media.*.task?", ["media/video/tasks"]),
        ("jobs.*", ["bill", "ship"]),
        ("jobs/*.py", ["bill", "ship"]),
        ("jobs/[a-c]*.py", ["bill"]),
        ("myapp/**/tasks.py", ["bare/tasks", "mail/tasks", "media/tasks", "media/video/tasks"]),
    ],
)
@pytest.mark.usefixtures("many")
def test_a_pattern_imports_all_matches_sorted_by_name(pattern: str, expected: list[str]) -> None:
    assert tasks_of(pattern) == expected


@pytest.mark.usefixtures("many")
def test_a_module_that_two_patterns_match_is_imported_once() -> None:
    assert tasks_of("jobs/*.py", "jobs.ship", "jobs.*") == ["bill", "ship"]


@pytest.mark.promise("W2")
@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("myapp.*.jobs", "task modules 'myapp.*.jobs' of shop:app match nothing; each \\* stands for one part"),
        ("nothing/*.py", "task modules 'nothing/\\*.py' of shop:app match nothing; write the pattern as seen from"),
        ("*.tasks", "a pattern begins with the name of a package"),
        ("nowhere.*.tasks", "there is no module 'nowhere' here"),
    ],
)
@pytest.mark.usefixtures("many")
def test_a_pattern_that_matches_nothing_is_reported(pattern: str, problem: str) -> None:
    with pytest.raises(LocateError, match=problem):
        tasks_of(pattern)
    noted: list[LocateError] = []
    import_tasks(find_app("shop:app"), "shop:app", on_error=noted.append)  # as `horsies check` does, which goes on
    assert len(noted) == 1
