"""`make walk`, without make, and the walk that the page has."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tools.walk_page import documented_walks

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "horsies"


def walk(*arguments: str) -> dict[str, Any]:
    """Run it as `make walk` does. SIGTERM lets it stop its worker and its server if it hangs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tools.walk", "--json", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONWARNINGS": "default"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=45)
    finally:
        process.terminate()
        process.wait(10)
    assert process.returncode == 0, output
    return json.loads(output)


def test_the_walk_of_a_task_goes_from_the_send_through_the_worker_to_its_child() -> None:
    task = walk("--operation", "task", "--runs", "2")["task"]
    steps: list[dict[str, str]] = task["steps"]
    assert steps[0]["process"] == "producer"
    assert steps[0]["file"].startswith("tasks/")
    assert steps[0]["function"].endswith(".send")
    by_process = {process: [step for step in steps if step["process"] == process] for process in processes(steps)}
    assert list(by_process) == ["producer", "worker parent", "worker child"]
    assert any(step["file"].startswith("worker/") for step in by_process["worker parent"])
    assert not any(step["file"].startswith("db/") for step in by_process["worker child"])
    assert all((PACKAGE / step["file"]).is_file() for step in steps)
    assert task["functions"] == len({(step["file"], step["function"]) for step in steps})
    assert task["files"] == len({step["file"] for step in steps})


def processes(steps: list[dict[str, str]]) -> list[str]:
    return list(dict.fromkeys(step["process"] for step in steps))


def test_the_walks_of_the_page_pass_through_files_that_exist() -> None:
    walks = documented_walks((ROOT / "docs" / "architecture.md").read_text())
    assert [walk.title for walk in walks] == ["`add.send(1, 2).get()`", "A workflow of two nodes", "A schedule tick"]
    assert len(walks[0].listed_files) == walks[0].file_count
    for file in {file for walk in walks for file in walk.listed_files}:
        assert (PACKAGE / file).is_file(), f"{file} is gone; run `make walk ARGS=--write`"
