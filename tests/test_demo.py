"""`make demo`, without make: the first thing a newcomer runs."""

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import psutil
import pytest

from tests.fixtures.eventually import eventually

ROOT = Path(__file__).parents[1]
TOKEN = "HORSIES_TEST_DEMO"


@pytest.fixture
def home() -> Generator[Path]:
    """For the embedded server: directly in /tmp, because as root its user must be able to enter."""
    folder = Path(tempfile.mkdtemp(prefix="horsies-demo-", dir="/tmp"))
    folder.chmod(0o711)
    yield folder / "server"
    shutil.rmtree(folder, ignore_errors=True)


def demo(home: Path, token: str) -> subprocess.CompletedProcess[str]:
    dropped = ("HORSIES_APP", "HORSIES_DATABASE_URL", "DATABASE_URL", "HORSIES_FAULTS")
    inherited = {name: value for name, value in os.environ.items() if name not in dropped}
    return subprocess.run(
        [sys.executable, "-m", "examples.demo"],
        cwd=ROOT,
        env={**inherited, "HORSIES_EMBEDDED_DIR": str(home), TOKEN: token, "COLUMNS": "160"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=50,
        check=False,
    )


def started_by(token: str) -> list[psutil.Process]:
    """The worker and its children inherit the token; the server's processes are found by their folder."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(TOKEN) == token and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue  # it has ended, or belongs to another user
    return found


def servers_in(home: Path) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for process in psutil.process_iter(["cmdline"]):
        words: list[str] = process.info["cmdline"] or []
        if any(str(home) in word for word in words) and "postgres" in words[0]:
            found.append(process)
    return found


@pytest.mark.promise("A1")
def test_the_demo_shows_every_ending_and_leaves_nothing_behind(home: Path) -> None:
    token = secrets.token_hex(8)
    done = demo(home, token)
    assert done.returncode == 0, done.stdout
    assert "Results by kind" in done.stdout
    for shown in (
        "Thumbnail(image_id=7, width=800)",
        "CARD_DECLINED",
        "UNHANDLED_ERROR",
        "ZeroDivisionError: division by zero",
        "<h1>home</h1>",
        "WORKER_CRASHED",
        "was killed by SIGKILL",
        "Thumbnail(image_id=8, width=64)",
    ):
        assert shown in done.stdout, done.stdout
    assert "Traceback" not in done.stdout
    eventually(
        lambda: not started_by(token) and not servers_in(home), seen=lambda: [started_by(token), servers_in(home)]
    )


def test_the_demo_says_what_is_wrong_when_its_server_cannot_start(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    done = demo(blocked / "server", secrets.token_hex(8))
    assert done.returncode == 1
    assert "embedded PostgreSQL" in done.stdout
    assert "Traceback" not in done.stdout
