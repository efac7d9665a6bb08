"""What `import horsies` provides, and what it does not import."""

import inspect
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.resources import files

import pytest

import horsies


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)


def test_the_list_of_public_names_is_sorted_and_has_no_name_twice() -> None:
    assert list(horsies.__all__) == sorted(set(horsies.__all__))


def test_every_public_name_is_there_and_nothing_else_is() -> None:
    given = {name: getattr(horsies, name) for name in horsies.__all__}
    assert all(value is getattr(horsies, name) for name, value in given.items())
    modules = {name for name, value in vars(horsies).items() if inspect.ismodule(value)}
    assert {name for name in vars(horsies) if not name.startswith("_")} - modules == set(horsies.__all__)
    assert not hasattr(horsies, "PostgresBrocker")


def test_every_exception_that_may_reach_a_user_is_public() -> None:
    from horsies.model import errors  # noqa: PLC0415 - its contents are the question

    raised = {
        name for name, value in vars(errors).items() if inspect.isclass(value) and value.__module__ == errors.__name__
    }
    inner = {"ResultTypeError"}  # becomes a RETURN_TYPE_MISMATCH inside the library
    assert raised - inner <= set(horsies.__all__)


def test_every_public_class_and_function_has_a_docstring() -> None:
    public = {name: getattr(horsies, name) for name in horsies.__all__}
    assert [name for name, value in public.items() if not callable(value) or not (value.__doc__ or "").strip()] == [
        "Result"
    ]


def documented_methods(kind: type) -> Iterator[tuple[str, str | None]]:
    """Yield its own public methods and properties, with their docstrings."""
    for owner in kind.__mro__:
        for name, value in vars(owner).items() if owner.__module__.startswith("horsies.") else ():
            written = getattr(value, "__func__", value)
            if not name.startswith("_") and (inspect.isfunction(written) or isinstance(written, property)):
                yield f"{owner.__name__}.{name}", written.__doc__


def test_every_public_method_has_a_docstring() -> None:
    kinds = [value for name in horsies.__all__ if inspect.isclass(value := getattr(horsies, name))]
    assert {name for kind in kinds for name, docstring in documented_methods(kind) if not docstring} == set()


def test_the_whole_api_of_a_task_can_be_imported_from_the_package() -> None:
    done = run("from horsies import *; app = Horsies(); assert TaskResult(ok=1).unwrap() == 1")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "module", ["click", "rich", "horsies.cli", "horsies.doctor", "horsies.embedded.server", "horsies.worker"]
)
def test_importing_horsies_does_not_import(module: str, imported: list[str]) -> None:
    """A producer need not load a command line, a worker or a server."""
    assert "horsies" in imported
    assert module not in imported


@pytest.fixture(scope="module")
def imported() -> list[str]:
    """The modules of a new process that has imported horsies."""
    done = run("import horsies, sys; print(*sys.modules)")
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_worker_command_imports_no_other_command() -> None:
    """It would keep them in memory as long as it runs."""
    code = """
import sys
from click.testing import CliRunner
from horsies.cli.main import main
assert CliRunner().invoke(main, ["worker", "--help"]).exit_code == 0
assert "horsies.worker.run" in sys.modules
assert not {"rich", "horsies.doctor"} & sys.modules.keys()
"""
    done = run(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "module",
    [
        "horsies.app",
        "horsies.locate",
        "horsies.tasks.task",
        "horsies.tasks.handle",
        "horsies.workflows.definition",
        "horsies.db.broker",
        "horsies.executor.main",
        "horsies.executor.fork_server",
        "horsies.maintenance.leader",
        "horsies.worker.run",
        "horsies.cli.main",
        "horsies.embedded.project",
        "horsies.testing.drainer",
        "horsies.testing.plugin",
    ],
)
def test_every_module_can_be_imported_first(module: str) -> None:
    """No import depends on an earlier one."""
    done = run(f"import {module}")
    assert done.returncode == 0, done.stderr


def test_the_package_is_typed_and_brings_its_sql() -> None:
    package = files("horsies")
    assert (package / "py.typed").is_file()
    assert (package / "tasks" / "claim.sql").is_file()
    assert (package / "db" / "migrations" / "0001_initial.sql").is_file()


OLD_PLACES = {
    "app": "AppConfig Horsies",
    "broker": "PostgresBroker PostgresConfig",
    "queues": "CustomQueueConfig QueueMode",
    "recovery": "RecoveryConfig",
    "resilience": "WorkerResilienceConfig",
    "schedule": (
        "CronSchedule DailySchedule HourlySchedule IntervalSchedule MonthlySchedule ScheduleConfig TaskSchedule Weekday WeeklySchedule"
    ),
    "tasks": "RetryPolicy TaskError TaskHandle TaskInfo TaskResult TaskStatus",
    "worker": "WorkerConfig",
    "workflow": (
        "NodeKey NodeStatus OnError SubWorkflowNode SuccessCase SuccessPolicy TaskNode WorkflowContext WorkflowDefinition "
        "WorkflowHandle WorkflowMeta WorkflowSpec WorkflowStatus"
    ),
}


@pytest.mark.parametrize("module", OLD_PLACES)
def test_names_can_be_imported_from_where_older_documents_have_them(module: str) -> None:
    found = import_module(f"horsies.core.models.{module}")
    assert found.__all__ == OLD_PLACES[module].split()
    assert all(getattr(found, name) is getattr(horsies, name) for name in found.__all__)


def test_every_module_of_older_documents_is_tested() -> None:
    names = {file.name for file in files("horsies.core.models").iterdir() if file.name.endswith(".py")}
    assert names == {"__init__.py", "queues.py"}
    assert {"queues", *import_module("horsies.core.models").OLD_MODULES} == OLD_PLACES.keys()
