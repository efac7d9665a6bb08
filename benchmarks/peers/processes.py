"""The processes of a system: the adapter that is asked, and the workers. Each is stopped with everything it started."""

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from benchmarks.peers.systems import ROOT

STOP_S = 3
LOOK_S = 0.5
LOG_TAIL = 300

Answer = dict[str, Any]


class PeerFailed(Exception):  # noqa: N818 - named after what happened
    """A system could not do what was asked, or its worker ended."""


class Asked:
    """An adapter in its own environment: a command in, an answer out."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log

    def __call__(self, *command: object, within_s: float, insist: Callable[[], None] | None = None) -> Answer:
        """`insist` raises when there is no sense in waiting any longer."""
        assert self._process.stdin is not None  # noqa: S101 - both are pipes
        assert self._process.stdout is not None  # noqa: S101 - the same
        with suppress(BrokenPipeError):
            self._process.stdin.write(" ".join(map(str, command)) + "\n")
            self._process.stdin.flush()
        deadline = time.monotonic() + within_s
        while not select.select([self._process.stdout], [], [], LOOK_S)[0]:
            if insist:
                insist()
            if time.monotonic() > deadline:
                raise PeerFailed(f"no answer to `{command[0]}` within {within_s:.0f} s")
        answer: Answer = json.loads(self._process.stdout.readline() or '{"error": "the adapter ended"}')
        if error := answer.get("error"):
            raise PeerFailed(f"`{command[0]}`: {' '.join(error.split())}; {tail(self._log)}")
        return answer


@contextmanager
def asking(python: Path, adapter: str, env: Mapping[str, str], log: Path) -> Generator[Asked]:
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [str(python), "-m", adapter],
            cwd=ROOT,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    try:
        yield Asked(process, log)
    finally:
        stop(process)
        for pipe in (process.stdin, process.stdout):
            if pipe:
                with suppress(BrokenPipeError):
                    pipe.close()


class Workers:
    """All worker processes of one system."""

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]], log: Path) -> None:
        self._processes = processes
        self._log = log

    def insist(self) -> None:
        """Raise when one no longer runs."""
        for process in self._processes:
            if process.poll() is not None:
                raise PeerFailed(f"the worker ended with code {process.returncode}: {tail(self._log)}")

    def pss_mb(self) -> float:
        """Shared pages are counted once, divided among those that share them."""
        return sum(_pss(member) for process in self._processes for member in _tree(process.pid)) / (1 << 20)


@contextmanager
def working(commands: Sequence[Sequence[str]], env: Mapping[str, str], log: Path, folder: Path) -> Generator[Workers]:
    """Sessions of their own, so that Ctrl-C reaches them only through us."""
    with ExitStack() as stack:
        output = stack.enter_context(log.open("wb"))
        processes: list[subprocess.Popen[bytes]] = []
        for command in commands:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            stack.callback(stop, process)
            processes.append(process)
        yield Workers(processes, log)
        for process in processes:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)


def stop(process: subprocess.Popen[Any]) -> None:
    """Ask, then insist; what it started goes with it, each by its id."""
    members = _tree(process.pid)
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        members = _tree(process.pid)
        process.kill()
        process.wait()
    finally:
        for member in members:
            with suppress(psutil.NoSuchProcess):  # psutil compares start times: an id that was used again is not hit
                member.kill()


def tail(log: Path) -> str:
    """The end of a log on one line."""
    return " ".join(log.read_text(encoding="utf-8", errors="replace").split())[-LOG_TAIL:]


def _tree(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _pss(process: psutil.Process) -> int:
    try:
        return process.memory_full_info().pss
    except psutil.Error:
        return 0


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Ours but without what would lead a peer to our packages; byte code is kept, as where packages are installed."""
    dropped = {"PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return kept | {"PYTHONPATH": str(ROOT)} | dict(extra)
