"""The log of a worker and its children: each line names its task, and no arguments are logged."""

import json
import re
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.fixtures.apps import load_fresh
from tests.fixtures.pools import open_pool
from tests.fixtures.workers import StartWorker

SECRET = "correct-horse-battery"


def entries(lines: Iterable[str]) -> list[dict[str, Any]]:
    """A log, every line of which is a JSON object."""
    return [json.loads(line) for line in lines]


def messages(lines: list[dict[str, Any]], **wanted: Any) -> list[str]:
    return [line["message"] for line in lines if wanted.items() <= line.items()]


@pytest.mark.parametrize("concurrency", [1, 5], ids=["sequential", "concurrent"])
async def test_every_line_inside_a_task_names_it_also_from_its_threads_and_coroutines(
    capfd: pytest.CaptureFixture[str], concurrency: int
) -> None:
    async with open_pool("tests.apps.talkative:app", concurrency=concurrency, log_format="json") as dispatcher:
        talks = [dispatcher.send("talk", words=f"no {number}") for number in range(3)]
        chats = [dispatcher.send("chat", words=f"no {number}") for number in range(3)]
        for task_id in (*talks, *chats):
            await dispatcher.ending(task_id)
    lines = entries(capfd.readouterr().err.splitlines())
    for number, (talk, chat) in enumerate(zip(talks, chats, strict=True)):
        assert messages(lines, task_id=talk, task_name="talk", attempt=1, queue_name="media", logger="shop") == [
            f"talk: no {number}"
        ]
        assert sorted(
            messages(lines, task_id=chat, task_name="chat", attempt=1, queue_name="media", logger="shop")
        ) == [f"chat: no {number} {each}" for each in (1, 2, 3)]
    assert [line["basket"] for line in lines if "basket" in line] == [{"pears": 3}] * 3


@pytest.fixture
def shop(database: str, monkeypatch: pytest.MonkeyPatch) -> Generator[Any]:
    """`tests/apps/talkative.py` as a producer."""
    monkeypatch.setenv("HORSIES_DATABASE_URL", database)
    module = load_fresh("talkative")
    yield module
    module.app.close()


def test_each_failure_is_one_warning_and_arguments_are_never_logged(
    worker: StartWorker, shop: Any, sql: psycopg.Connection
) -> None:
    running = worker("tests.apps.talkative:app", options=("--log-format=json", "--loglevel=DEBUG"))
    raises = shop.fail.send(SECRET, "raise")
    refuses = shop.fail.send(SECRET, "err")
    oversleeps = shop.oversleep.send(SECRET)
    crashes = shop.fail.send(SECRET, "crash")
    shop.app.gather([raises, refuses, oversleeps, crashes], timeout_ms=15_000)
    workflow = shop.flow.start()
    workflow.get(timeout_ms=15_000)
    wrong = f'{{"number": "{SECRET}"}}'
    sql.execute("insert into horsies.tasks (id, task_name, args) values (gen_random_uuid(), 'picky', %s)", [wrong])
    running.wait_for_log('"task picky failed: WORKER_SERIALIZATION_ERROR"')
    assert running.terminate() == 0
    lines = entries(running.logs)

    def of(handle: Any) -> list[tuple[str, int]]:
        found = [line for line in lines if line["level"] == "WARNING" and line.get("task_id") == handle.task_id]
        return [(line["message"], line["attempt"]) for line in found]

    assert of(raises) == [("task fail: raised RuntimeError, attempt 1 of 2", 1)]
    assert of(refuses) == [
        ("task fail: failed with FAULTY, attempt 1 of 2", 1),
        ("task fail: failed with FAULTY, attempt 2 of 2, no retry follows", 2),
    ]
    message = "task oversleep: ran longer than its timeout of 50 ms, failed, attempt 1 of 1, no retry follows"
    assert of(oversleeps) == [(message, 1)]
    decided = [line["message"] for line in lines if line["logger"] == "horsies.worker" and "; " in line["message"]]
    assert "task fail: attempt 1 of 2 failed with UNHANDLED_ERROR; no retry follows" in decided
    assert "task fail: attempt 1 of 2 failed with FAULTY; retry in 0.0 s" in decided
    ((words, attempt),) = of(crashes)
    assert attempt == 1
    assert re.search(rf"task fail \({crashes.task_id}\) ended as WORKER_CRASHED: .* was killed by SIGKILL", words)
    (trace,) = [line["exc_info"] for line in lines if "raised RuntimeError" in line["message"]]
    assert 'raise RuntimeError("nothing about it")' in trace
    assert messages(lines, logger="shop", root_id=workflow.workflow_id) == ["talk: in a workflow"]
    assert (
        len(
            [line for line in messages(lines, level="DEBUG") if re.fullmatch(r"task \w+: completed in [\d.]+ ms", line)]
        )
        == 3
    )
    assert "stopped" in messages(lines, logger="horsies.worker", level="INFO")
    assert SECRET not in "\n".join(running.logs)


OWN_LOGGING = """
import logging.config

logging.config.dictConfig({
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {"task": {"()": "horsies.logs.TaskFields"}},
    "formatters": {"own": {"format": "own %(levelname)s <%(task_name)s> %(message)s"}},
    "handlers": {"own": {"class": "logging.StreamHandler", "formatter": "own", "filters": ["task"]}},
    "root": {"handlers": ["own"], "level": "INFO"},
})

from tests.apps.talkative import app
"""


def test_the_logging_configuration_of_an_app_is_not_changed(worker: StartWorker, shop: Any, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(OWN_LOGGING)
    running = worker(f"{tmp_path / 'main.py'}:app", options=("--log-format=json",))
    shop.talk.send("to all").get(timeout_ms=15_000)
    assert running.terminate() == 0
    assert "own INFO <talk> talk: to all" in running.logs
    assert "own INFO <-> stopped" in running.logs
