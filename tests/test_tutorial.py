"""docs/tutorial.md, typed as it is printed: every file is saved, every command runs, and prints what the page says. The files pass both type checkers."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from horsies.embedded.server import EmbeddedServer
from tests.fixtures.workers import READY, Program
from tests.test_snippets import check_types

PAGE = Path(__file__).parents[1] / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(?P<kind>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
INSTALLING = (
    "mkdir ",
    "cd ",
    "python3 -m venv ",
    ". .venv/",
    "pip install ",
)  # done already, by the environment of the tests
DEV = "horsies dev shop:app"


@pytest.fixture
def folder() -> Generator[Path]:
    """An empty folder with a short path, for the socket of its server."""
    folder = Path(tempfile.mkdtemp(prefix="horsies-t-", dir="/tmp"))
    folder.chmod(0o711)
    (folder / "shop").mkdir()
    yield folder
    EmbeddedServer(folder / "embedded").stop("immediate")
    shutil.rmtree(folder)


class Reader:
    """Someone who follows the page."""

    def __init__(self, folder: Path) -> None:
        self.shop = folder / "shop"
        paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        cleared = dict.fromkeys(
            ("HORSIES_DATABASE_URL", "DATABASE_URL", "HORSIES_TEST_DATABASE_URL", "PYTEST_ADDOPTS"), ""
        )
        self.env = cleared | {"HORSIES_EMBEDDED_DIR": str(folder / "embedded"), "PATH": paths, "COLUMNS": "200"}
        self.dev: Program | None = None
        self.ran: list[str] = []
        self.saved_at: int | None = None

    def save(self, title: str, text: str) -> None:
        name, _, where = title.partition(", ")
        file = self.shop / name
        if where == "at the end":
            text = file.read_text() + "\n\n" + text
        elif where:
            line = where.removeprefix("instead of ") + "\n"
            assert file.read_text().count(line) == 1
            text = file.read_text().replace(line, text)
        self.saved_at = len(self.dev.logs) if self.dev else None
        file.write_text(text)

    def wait_for_restart(self) -> None:
        """`horsies dev` restarts when a file is saved; once for all that are saved together."""
        if self.dev is not None and self.saved_at is not None:
            self.dev.wait_for_log(READY, 60, after=self.saved_at)
            self.saved_at = None

    def type(self, text: str) -> None:
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            if command == DEV:
                self.dev = Program(*command.split()[1:], env=self.env, cwd=self.shop)
                self.dev.wait_for_log(READY, 60)
                self.dev.wait_for_log("the dashboard is at http://127.0.0.1:")
            elif not command.startswith(INSTALLING):
                self.wait_for_restart()
                self._run(command, printed)
            self.ran.append(command)

    def _run(self, command: str, printed: str) -> None:
        done = subprocess.run(
            command.split(),
            cwd=self.shop,
            env={**os.environ, **self.env},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        pattern = r"[\s\S]*".join(map(re.escape, printed.rstrip().split("…")))
        assert re.fullmatch(pattern, done.stdout.rstrip()), f"{command}\n{done.stdout}"


@pytest.mark.timeout(300)
def test_the_tutorial(folder: Path) -> None:
    reader = Reader(folder)
    try:
        for block in BLOCK.finditer(PAGE.read_text()):
            if block["kind"] == "python":
                reader.save(block["title"], block["text"])
            else:
                reader.type(block["text"])
        assert reader.dev is not None
        reader.dev.signal(signal.SIGINT)
        assert reader.dev.process.wait(30) == 0
        assert not EmbeddedServer(folder / "embedded").is_running
        assert len(reader.ran) > 10
    finally:
        if reader.dev is not None:
            reader.dev.close()


@pytest.mark.timeout(120)
def test_the_files_of_the_tutorial_pass_both_type_checkers(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.shop.mkdir()
    for block in BLOCK.finditer(PAGE.read_text()):
        if block["kind"] == "python":
            reader.save(block["title"], block["text"])
    assert len(list(reader.shop.glob("*.py"))) == 5
    check_types(reader.shop)
