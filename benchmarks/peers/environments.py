"""An environment per system under `benchmarks/.peers/`, made once and again when what is pinned changes."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.peers.systems import HERE, OURS, ROOT, System

FOLDER = HERE.parent / ".peers"
WANTED = "3.13"
PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")


class NotInstalled(Exception):  # noqa: N818 - named after what happened
    """An environment could not be made."""


def find_python() -> str:
    """Python 3.13 by its name, or by pyenv's, else the one that runs this: peers and ours get the same."""
    if (named := shutil.which(f"python{WANTED}")) and (found := _asked(named)):
        return found
    if pyenv := shutil.which("pyenv"):
        prefix = subprocess.run([pyenv, "prefix", WANTED], capture_output=True, text=True, check=False)
        if prefix.returncode == 0 and (found := _asked(str(Path(prefix.stdout.strip()) / "bin" / "python"))):
            return found
    return getattr(sys, "_base_executable", None) or sys.executable


def _asked(python: str) -> str | None:
    """A name on the PATH may be a shim with nothing behind it, so run it to find its version."""
    asked = subprocess.run(
        [python, "-c", "import sys; print(sys.executable)"], capture_output=True, text=True, check=False
    )
    return asked.stdout.strip() if asked.returncode == 0 else None


def base_version(python: str) -> str:
    code = "import platform; print(platform.python_version())"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def install(system: System, base: str, show_progress: Callable[[str], None]) -> Path:
    """The interpreter of the system's own environment."""
    requirements = ["--requirement", str(system.requirements)]
    if system.name == OURS:
        requirements += ["--constraint", "constraints.txt", "--editable", ".[binary]"]
    return _make(system.name, system.requirements, base, requirements, show_progress)


def install_plots(base: str, show_progress: Callable[[str], None]) -> Path:
    pinned = HERE / "versions" / "plots.txt"
    return _make("plots", pinned, base, ["--requirement", str(pinned)], show_progress)


def _make(name: str, pinned: Path, base: str, requirements: list[str], show_progress: Callable[[str], None]) -> Path:
    folder = FOLDER / name
    python = folder / "bin" / "python"
    ready = folder / ".ready"
    wanted = f"{base}\n{pinned.read_text(encoding='utf-8')}"
    if ready.is_file() and ready.read_text(encoding="utf-8") == wanted:
        return python
    show_progress(f"installing {name}")
    shutil.rmtree(folder, ignore_errors=True)
    for command in ([base, "-m", "venv", str(folder)], [str(python), *PIP, *requirements]):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ)
        if done.returncode:
            raise NotInstalled(f"{name}: {_last_line(done.stderr or done.stdout)}")
    ready.write_text(wanted, encoding="utf-8")
    return python


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1]
