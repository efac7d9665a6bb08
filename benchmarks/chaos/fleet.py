"""The workers of a run: real `horsies worker` processes, each with a name that its tasks record in their notes."""

import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.chaos.notes import FILE, WORKER
from benchmarks.chaos.shop import BULK, DATABASE_URL, DEAD_AFTER_MS, FLOWS, PREFETCH

ROOT = Path(__file__).parent.parent.parent
TOKEN = "CHAOS_RUN"  # noqa: S105 - an environment variable by which all processes of a run are found
READY = b"is ready on queues"
STOP_S = 60.0
START_S = 120.0


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """How to start a worker, and its replacement. `before` is the prefix of the command."""

    url: str
    options: tuple[str, ...]
    prefetch: str = "0"
    before: tuple[str, ...] = ()
    proxy: int = 0
    """The number of the proxy through which it connects."""


ALL_ROUND = ("--processes=2",)
CONCURRENT = ("--processes=1", "--concurrency=8", "--max-tasks-per-child=0")
BUFFERED = ("--processes=2", f"--queues={BULK},{FLOWS}", "--max-tasks-per-child=0")
"""Without the capped queue: a buffer lets a cap be exceeded for a moment, which is not a violation."""


@dataclass(frozen=True, slots=True)
class Worker:
    name: str
    spec: WorkerSpec
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    @property
    def is_ready(self) -> bool:
        return READY in self.log.read_bytes()

    def descendants(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.pid).children(recursive=True)
        return []

    def tree(self) -> list[int]:
        return [self.pid, *(process.pid for process in self.descendants())]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_S
        while not self.is_ready:
            if not self.is_alive or time.monotonic() > deadline:
                raise RuntimeError(f"worker {self.name} did not start:\n{self.log.read_text(encoding='utf-8')[-3000:]}")
            time.sleep(0.05)


class Fleet:
    """Closing it kills every process that it has started, whatever state they are in."""

    def __init__(self, folder: Path, specs: Sequence[WorkerSpec], *, dead_after_ms: int, rng: random.Random) -> None:
        self.folder = folder
        self._specs = specs
        self._dead_after_ms = dead_after_ms
        self._rng = rng
        self._token = secrets.token_hex(8)
        self._count = 0
        self.notes = folder / "tasks.log"
        self.live: list[Worker] = []
        self.problems: list[str] = []

    def start(self) -> None:
        self.live = [self._start(spec) for spec in self._specs]
        for worker in self.live:
            worker.wait_until_ready()

    def any_worker(self) -> Worker:
        return self._rng.choice(self.live)

    def with_pid(self, pid: int) -> Worker | None:
        return next((worker for worker in self.live if worker.pid == pid), None)

    def kill(self, worker: Worker) -> None:
        """Kill it with SIGKILL, and start another one."""
        worker.kill()
        self._replace(worker)

    def leave(self, worker: Worker) -> None:
        """Send SIGTERM: it must finish what it runs and exit with code 0. Start another one."""
        worker.process.terminate()
        self._wait_for_end(worker)
        self._replace(worker)

    def replace_exited(self) -> None:
        """Replace the workers that have exited by themselves, which is a problem: no fault explains it."""
        for worker in [worker for worker in self.live if not worker.is_alive]:
            self._report(worker, f"exited by itself with code {worker.process.returncode}")
            self._replace(worker)

    def stop(self) -> None:
        """Stop all of them with SIGTERM."""
        for worker in self.live:
            worker.process.terminate()
        for worker in self.live:
            self._wait_for_end(worker)
        self.live = []
        deadline = time.monotonic() + 10
        while (left := self.survivors()) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.problems += [f"process {process.pid} is still running after its worker has exited" for process in left]

    def close(self) -> None:
        for process in self.survivors():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for worker in self.live:
            worker.process.wait()

    def survivors(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if self._started(process)]

    def _started(self, process: psutil.Process) -> bool:
        try:
            return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(TOKEN) == self._token
        except (psutil.Error, OSError):
            return False  # it has exited, or belongs to another user

    def _wait_for_end(self, worker: Worker) -> None:
        try:
            code = worker.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._report(worker, f"did not exit within {STOP_S:g} s")
            worker.kill()
        else:
            if code != 0:
                self._report(worker, f"exited with code {code}")

    def _report(self, worker: Worker, problem: str) -> None:
        tail = worker.log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
        self.problems.append("\n    ".join([f"worker {worker.name} {problem}", *tail]))

    def _replace(self, worker: Worker) -> None:
        self.live[self.live.index(worker)] = self._start(worker.spec)

    def _start(self, spec: WorkerSpec) -> Worker:
        """Start it in its own session: Ctrl-C must not reach it directly."""
        self._count += 1
        name = f"w{self._count}"
        log = self.folder / f"{name}.log"
        command = [*spec.before, sys.executable, "-m", "horsies.cli.main", "worker", "benchmarks.chaos.app:app"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, *spec.options],
                cwd=ROOT,
                env={**os.environ, **self._environment(name, spec)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return Worker(name, spec, process, log)

    def _environment(self, name: str, spec: WorkerSpec) -> Mapping[str, str]:
        return {
            TOKEN: self._token,
            WORKER: name,
            FILE: str(self.notes),
            DATABASE_URL: spec.url,
            PREFETCH: spec.prefetch,
            DEAD_AFTER_MS: str(self._dead_after_ms),
        }


def pause(pids: Sequence[int]) -> None:
    """Stop the processes, parents first, so that they start no more children."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)


def resume(pids: Sequence[int]) -> None:
    for pid in reversed(pids):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
