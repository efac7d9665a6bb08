"""Parts with small commands in the place of workers: how they are started again, heard, and stopped."""

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from horsies.cli.dev import AppSurvey, DevProcess, Reloader, survey_app

APP = "from horsies import Horsies\napp = Horsies()\n"
SECRET = "my-secret"


class Heard:
    """Lines, and a way to wait for one."""

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


def part(command: str, show: Callable[[str], None] | None, pause_s: float = 0.01) -> DevProcess:
    return DevProcess("worker", ["/bin/sh", "-c", command], env={"WORD": "hello"}, show=show, pause_s=pause_s)


async def test_a_part_that_ends_by_itself_is_started_again_after_growing_pauses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard = Heard()
    made = part("echo $WORD; exit 3", heard)
    async with asyncio.TaskGroup() as group:
        group.create_task(made.run())
        await heard.until(lambda lines: len(lines) == 4)
        made.ask()
    assert set(heard.lines) == {"hello"}
    assert [line for line in caplog.messages if "exited with code 3" in line][:3] == [
        f"the worker exited with code 3 by itself; starting it again in {pause_s:g} s" for pause_s in (0.01, 0.02, 0.04)
    ]


async def test_lines_are_heard_whole_whatever_is_in_them() -> None:
    heard = Heard()
    program = "import sys; sys.stdout.buffer.write(b'x' * 300_000 + b'\\n\\xff\\nno end')"
    made = part(f"{shlex.join([sys.executable, '-c', program])}; kill $$", heard, pause_s=60)
    async with asyncio.TaskGroup() as group:
        group.create_task(made.run())
        await heard.until(lambda lines: "no end" in lines)
        made.ask()
    assert heard.lines == ["x" * 300_000, "�", "no end"]


async def test_what_a_part_leaves_behind_does_not_keep_it() -> None:
    """A process that a task has started, say, which holds the output open."""
    heard = Heard()
    made = part("sleep 60 & echo $!; wait", heard)
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(made.run())
        await heard.until(lambda lines: len(lines) == 1)
        made.ask()
    os.kill(int(heard.lines[0]), signal.SIGKILL)


async def test_a_part_that_does_not_mind_is_killed_in_the_end() -> None:
    heard = Heard()
    made = part("trap 'echo asked' TERM; echo ready; while :; do sleep 0.01; done", heard)
    async with asyncio.TaskGroup() as group:
        run = group.create_task(made.run())
        await heard.until(lambda lines: lines == ["ready"])
        for times in (1, 2, 3):
            made.ask()
            await heard.until(lambda lines, times=times: lines.count("asked") == times)
        assert not run.done()
        made.ask()


# -- the app they belong to


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An app with a task module in another folder, on a database that nobody asks."""
    monkeypatch.setenv("HORSIES_DATABASE_URL", f"postgresql://me:{SECRET}@example.invalid/shop")
    (tmp_path / "app").mkdir()
    (tmp_path / "tasks" / "deep").mkdir(parents=True)
    (tmp_path / "tasks" / "mail.py").touch()
    (tmp_path / "app" / "shop.py").write_text(f"{APP}app.discover_tasks([{str(tmp_path / 'tasks' / 'mail.py')!r}])\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def test_an_app_is_looked_at_without_being_run(project: Path) -> None:
    (project / "app" / "shop.py").write_text(f"print('no answer')\n{(project / 'app' / 'shop.py').read_text()}")
    found = await survey_app("app/shop.py:app")
    assert isinstance(found, AppSurvey)
    assert found.folders == [str(project / "app"), str(project / "tasks")]
    assert found.database_url == "postgresql://me:***@example.invalid/shop"
    assert not found.has_schedules


@asynccontextmanager
async def reloading(heard: Heard, command: str) -> AsyncGenerator[None]:
    """`command` is all that runs for the app."""
    reloader = Reloader(
        "app/shop.py:app",
        lambda _found: {"worker": ["/bin/sh", "-c", command]},
        lambda _name, line: heard(line),
        grace_s=0.2,
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(reloader.run())
        yield
        for _ in range(4):
            reloader.stop()


async def test_code_that_hangs_when_it_is_imported_is_looked_at_again_when_it_changes(project: Path) -> None:
    heard, hanging = Heard(), project / "hanging"
    shop = (project / "app" / "shop.py").read_text()
    (project / "app" / "shop.py").write_text(f"import time\nopen({str(hanging)!r}, 'w')\ntime.sleep(600)\n{shop}")
    async with reloading(heard, "echo ran; sleep 60 & wait"):
        while not hanging.exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.01)
        (project / "app" / "shop.py").write_text(shop)
        await heard.until(lambda lines: lines == ["ran"])


async def test_a_part_that_does_not_stop_is_replaced_when_a_task_module_changes(project: Path) -> None:
    heard = Heard()
    async with reloading(heard, "trap 'echo asked' TERM; echo ran; while :; do sleep 0.01; done"):
        await heard.until(lambda lines: lines == ["ran"])
        (project / "tasks" / "deep" / "new.py").write_text("x = 1")
        await heard.until(lambda lines: lines == ["ran", *["asked"] * 3, "ran"])
