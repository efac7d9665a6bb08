"""`DevProcess` and `Reloader` with small commands instead of workers: restarts, output, and stopping."""

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from horsies.cli.dev import DevProcess, Reloader, survey_app
from horsies.cli.dev_process import AppSurvey

APP = "from horsies import Horsies\napp = Horsies()\n"
SECRET = "my-secret"


class Output:
    """Lines of output, and a way to wait for them."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._more = asyncio.Event()

    def __call__(self, line: str) -> None:
        self.lines.append(line)
        self._more.set()

    async def until(self, condition: Callable[[list[str]], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition(self.lines):
                self._more.clear()
                await self._more.wait()


def shell(command: str, output: Output, first_delay_s: float = 0.01) -> DevProcess:
    arguments = ["/bin/sh", "-c", command]
    return DevProcess("worker", arguments, env={"WORD": "hello"}, on_line=output, first_delay_s=first_delay_s)


async def test_a_command_that_exits_by_itself_is_restarted_after_growing_delays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    output = Output()
    process = shell("echo $WORD; exit 3", output)
    async with asyncio.TaskGroup() as group:
        group.create_task(process.run())
        await output.until(lambda lines: len(lines) == 4)
        process.request_stop()
    assert set(output.lines) == {"hello"}
    assert [line for line in caplog.messages if "exited with code 3" in line][:3] == [
        f"worker exited with code 3, restarting in {delay_s:g} s" for delay_s in (0.01, 0.02, 0.04)
    ]


async def test_lines_arrive_whole_whatever_they_contain() -> None:
    output = Output()
    program = "import sys; sys.stdout.buffer.write(b'x' * 300_000 + b'\\n\\xff\\nno end')"
    process = shell(f"{shlex.join([sys.executable, '-c', program])}; kill $$", output, first_delay_s=60)
    async with asyncio.TaskGroup() as group:
        group.create_task(process.run())
        await output.until(lambda lines: "no end" in lines)
        process.request_stop()
    assert output.lines == ["x" * 300_000, "�", "no end"]


async def test_a_process_that_a_command_leaves_behind_does_not_delay_its_end() -> None:
    """For example a process that a task has started, which keeps the pipe open."""
    output = Output()
    process = shell("sleep 60 & echo $!; wait", output)
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(process.run())
        await output.until(lambda lines: len(lines) == 1)
        process.request_stop()
    os.kill(int(output.lines[0]), signal.SIGKILL)


async def test_a_command_that_ignores_stop_requests_is_killed() -> None:
    output = Output()
    process = shell("trap 'echo signalled' TERM; echo ready; while :; do sleep 0.01; done", output)
    async with asyncio.TaskGroup() as group:
        run = group.create_task(process.run())
        await output.until(lambda lines: lines == ["ready"])
        for times in (1, 2, 3):
            process.request_stop()
            await output.until(lambda lines, times=times: lines.count("signalled") == times)
        assert not run.done()
        process.request_stop()


# -- the app


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An app with a task module in another folder, on a database that is never used."""
    monkeypatch.setenv("HORSIES_DATABASE_URL", f"postgresql://me:{SECRET}@example.invalid/shop")
    (tmp_path / "app").mkdir()
    (tmp_path / "tasks" / "deep").mkdir(parents=True)
    (tmp_path / "tasks" / "mail.py").touch()
    (tmp_path / "app" / "shop.py").write_text(f"{APP}app.discover_tasks([{str(tmp_path / 'tasks' / 'mail.py')!r}])\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def test_a_survey_loads_the_app_without_running_it(project: Path) -> None:
    (project / "app" / "shop.py").write_text(f"print('not JSON')\n{(project / 'app' / 'shop.py').read_text()}")
    survey = await survey_app("app/shop.py:app")
    assert isinstance(survey, AppSurvey)
    assert survey.folders == [str(project / "app"), str(project / "tasks")]
    assert survey.database_url == "postgresql://me:***@example.invalid/shop"
    assert not survey.has_schedules


@asynccontextmanager
async def reloading(output: Output, command: str) -> AsyncGenerator[None]:
    """Run `command` for the app."""
    reloader = Reloader(
        "app/shop.py:app",
        lambda _survey: {"worker": ["/bin/sh", "-c", command]},
        lambda _name, line: output(line),
        grace_s=0.2,
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(reloader.run())
        yield
        for _ in range(4):
            reloader.stop()


async def test_code_that_hangs_when_imported_is_surveyed_again_when_it_changes(project: Path) -> None:
    output, hanging = Output(), project / "hanging"
    shop = (project / "app" / "shop.py").read_text()
    (project / "app" / "shop.py").write_text(f"import time\nopen({str(hanging)!r}, 'w')\ntime.sleep(600)\n{shop}")
    async with reloading(output, "echo ran; sleep 60 & wait"):
        while not hanging.exists():  # noqa: ASYNC110 - another process creates it
            await asyncio.sleep(0.01)
        (project / "app" / "shop.py").write_text(shop)
        await output.until(lambda lines: lines == ["ran"])


async def test_a_command_that_does_not_stop_is_replaced_when_a_task_module_changes(project: Path) -> None:
    output = Output()
    async with reloading(output, "trap 'echo signalled' TERM; echo ran; while :; do sleep 0.01; done"):
        await output.until(lambda lines: lines == ["ran"])
        (project / "tasks" / "deep" / "new.py").write_text("x = 1")
        await output.until(lambda lines: lines == ["ran", *["signalled"] * 3, "ran"])
