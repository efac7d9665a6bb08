"""The pages for users of other task queues name only what exists, and their code runs."""

import inspect
import re
from pathlib import Path
from typing import Any

import click
import pytest

import horsies
import horsies.events
import horsies.testing
from horsies import AppConfig, CurrentTask, Horsies, TaskError, TaskResult, WorkerConfig
from horsies.cli.main import main as cli
from horsies.ops import Ops
from tools.port_diff import PAGE, with_diffs

DOCS = Path(__file__).parents[1] / "docs"
PAGES = ["from-celery.md", "from-other-queues.md", "comparison.md"]
CODE = re.compile(r"`([^`\n]+)`")


def ours(page: str) -> list[str]:
    """All code in the last column of the tables."""
    rows = [line.rstrip("| ") for line in (DOCS / page).read_text().splitlines() if line.startswith("| ")]
    return [code for row in rows for code in CODE.findall(row.rpartition(" | ")[2])]


def made() -> tuple[Any, dict[str, Any]]:
    app = Horsies(AppConfig.for_database_url("postgresql://nowhere.invalid/shop"))

    @app.task("resize")
    def resize(image_id: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=image_id)

    handle = app.handle("01a1f206-3828-7272-bea0-acf8f9c3af19")
    return app, {"task": resize, "app": app, "handle": handle, "a": resize, "body": resize}


@pytest.mark.parametrize("page", PAGES)
def test_every_method_that_a_page_names_exists(page: str) -> None:
    _, places = made()
    for code in ours(page):
        for place, name in re.findall(r"(?<![\w.])(task|app|handle|a|body)\.(\w+)", code):
            assert hasattr(places[place], name) or (place, name) == ("handle", "workflow_id"), code
    for name in re.findall(r"app\.ops\.(\w+)", " ".join(ours(page))):
        assert hasattr(Ops, name), name
    for name in re.findall(r"current_task\(\)\.(\w+)", " ".join(ours(page))):
        assert hasattr(CurrentTask, name) or name in CurrentTask.__annotations__, name


@pytest.mark.parametrize("page", PAGES)
def test_every_class_and_option_that_a_page_calls_exists(page: str) -> None:
    for code in ours(page):
        for name, rest in re.findall(r"(?<![\w.])([A-Z][a-z]\w+)\(([^()]*)", code):
            kind = getattr(horsies, name)
            known = inspect.signature(kind).parameters.keys()
            assert set(re.findall(r"(\w+)=", rest)) <= known, code
        for name, rest in re.findall(r"RetryPolicy\.(\w+)\(([^()]*)\)", code):
            known = inspect.signature(getattr(horsies.RetryPolicy, name)).parameters.keys()
            assert set(re.findall(r"(\w+)=", rest)) <= known, code


@pytest.mark.parametrize("page", PAGES)
def test_every_command_and_flag_that_a_page_shows_exists(page: str) -> None:
    text = (DOCS / page).read_text()
    shown = [
        code for code in CODE.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL)) if code.startswith("horsies ")
    ]
    for code in shown:
        words = code.split()[1:]
        command: click.Command = cli
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            found = command.get_command(click.Context(command), words.pop(0))
            if found is None and command.name == "web":  # `horsies web APP` serves it
                break
            assert found is not None, code
            command = found
        flags = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= flags, code
    worker = cli.get_command(click.Context(cli), "worker")
    assert worker is not None
    flags = {option for parameter in worker.params for option in parameter.opts}
    bare = [code.split()[0] for code in ours(page) if code.startswith("--")]
    assert set(bare) <= flags | {"--watch"}


@pytest.mark.parametrize("page", PAGES)
def test_every_program_of_a_page_runs(page: str) -> None:
    for code in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL):
        if "from horsies import" in code:
            exec(compile(code, page, "exec"), {"__name__": "snippet"})  # noqa: S102 - our own page


def test_fixtures_and_events_are_called_what_the_pages_call_them() -> None:
    from horsies.testing import plugin  # noqa: PLC0415 - pytest has loaded it as a plug-in

    text = " ".join(" ".join(ours(page)) for page in PAGES)
    fixtures = set(re.findall(r"horsies_(?:inline|sandbox|clock)\b", text))
    assert len(fixtures) == 3
    assert all(hasattr(plugin, name) for name in fixtures)
    for name in ("TasksSent", "TaskEnded", "ScheduleSlotDecided"):
        assert name in text
        assert hasattr(horsies.events, name)
    assert hasattr(horsies.testing, "drain")
    assert WorkerConfig().max_tasks_per_child == 100


def test_the_page_shows_the_difference_between_the_two_versions() -> None:
    page = PAGE.read_text()
    assert page.count("```diff") == 3
    assert page == with_diffs(page), "run python -m tools.port_diff"
