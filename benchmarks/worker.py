"""A real `horsies worker` in a process of its own."""

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.place import Place
from benchmarks.tasks import DATABASE_URL, PREFETCH, QUEUES, STARTS_FOLDER, Prefetch, read_starts

PROCESSES = 2
APP = "benchmarks.app:app"
NO_RECYCLING = ("--max-tasks-per-child", "0")
STOP_S = 20
ROOT = Path(__file__).parent.parent


class WorkerFailed(Exception):  # noqa: N818 - named after what happened
    """The worker ended by itself."""


@dataclass(frozen=True, slots=True)
class Worker:
    process: subprocess.Popen[bytes]
    folder: Path
    log: Path

    def insist(self) -> None:
        """Raise when it no longer runs."""
        code = self.process.poll()
        if code is not None:
            raise WorkerFailed(f"the worker ended with code {code}:\n{self.log.read_text(encoding='utf-8')[-2000:]}")

    def starts(self) -> list[tuple[int, float]]:
        return read_starts(self.folder)


@contextmanager
def running_worker(
    place: Place,
    prefetch: Prefetch,
    *options: str,
    url: str | None = None,
    processes: int = PROCESSES,
    queues: int = 0,
    app: str = APP,
) -> Generator[Worker]:
    """Run a worker in its own session: Ctrl-C must not reach it directly. `queues`: the number of its queues; 0 for the default one."""
    log = place.new_folder() / "worker.log"
    starts = place.new_folder()
    env = {
        DATABASE_URL: url or place.url,
        PREFETCH: str(prefetch),
        STARTS_FOLDER: str(starts),
        QUEUES: str(queues),
    }
    # Byte code is kept, as it is where packages are installed: a worker that recycles starts an interpreter per hundred tasks.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = str(place.folder / "bytecode")
    command = [sys.executable, "-m", "horsies.cli.main", "worker", app, "--processes", str(processes)]
    command += options
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=inherited | env, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield Worker(process, starts, log)
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_S)
    except BaseException:  # also a second Ctrl-C: its children die with it
        process.kill()
        process.wait()
        raise
