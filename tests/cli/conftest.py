"""Run commands in this process, which is fast, on the test's own database."""

import json
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from horsies.cli.main import main

APP = """
from horsies import AppConfig, CustomQueueConfig, Horsies, QueueMode, TaskError, TaskResult
app = Horsies(AppConfig(queue_mode=QueueMode.CUSTOM, custom_queues=[
    CustomQueueConfig(name="mail", priority=10), CustomQueueConfig(name="media", max_concurrency=2)]))

@app.task("greet", queue_name="mail")
def greet(name: str) -> TaskResult[str, TaskError]:
    return TaskResult(ok=f"hello {name}")
"""


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


Cli = Callable[..., Ran]


def run(*words: str, database_url: str | None, answer: str | None = None) -> Ran:
    result = CliRunner().invoke(
        main,
        words,
        env={"HORSIES_DATABASE_URL": database_url, "HORSIES_APP": None, "DATABASE_URL": None},
        input=answer,
    )
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ran(result.exit_code, result.stdout, result.stderr)


@pytest.fixture
def cli(database: str) -> Cli:
    """Run for example `cli("tasks", "list")` on the test's database."""

    def call(*words: str, answer: str | None = None) -> Ran:
        return run(*words, database_url=database, answer=answer)

    return call


@pytest.fixture
def app_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The locator of an app that this process has not loaded before."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / f"shop_{secrets.token_hex(4)}.py"
    file.write_text(APP)
    return f"{file}:app"
