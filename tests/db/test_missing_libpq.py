"""What a user sees on a machine without libpq, who has installed psycopg without its wheels."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT_LIBPQ = """
import ctypes.util
import sys

find = ctypes.util.find_library
ctypes.util.find_library = lambda name: None if name == "pq" else find(name)
sys.modules["psycopg_binary"] = sys.modules["psycopg_c"] = None  # importing them fails
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_LIBPQ)
    return {**os.environ, "PYTHONPATH": str(tmp_path)}


def run(*command: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("command", [[str(Path(sys.executable).parent / "horsies")], [sys.executable, "-m", "horsies"]])
def test_the_command_prints_one_line_that_says_what_to_install(env: dict[str, str], command: list[str]) -> None:
    found = run(*command, "status", env=env)
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr.startswith("Error: psycopg finds no libpq")
    assert found.stderr.count("\n") == 1
    assert 'pip install "horsies[binary]"' in found.stderr


def test_a_program_gets_an_import_error_that_says_what_to_install(env: dict[str, str]) -> None:
    found = run(sys.executable, "-c", "import horsies", env=env)
    assert found.returncode == 1
    assert "no pq wrapper available" in found.stderr, "the cause, for those who have to look further"
    last = found.stderr.splitlines()[-1]
    assert last.startswith("ImportError: psycopg finds no libpq")
    assert 'pip install "horsies[binary]"' in last
