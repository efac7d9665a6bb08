"""Child processes as the pool needs them, however they came to be; here: each a fresh interpreter."""

import asyncio
import logging
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL
from asyncio.subprocess import Process as Subprocess
from collections.abc import Mapping
from contextlib import suppress
from typing import Literal, Protocol


class Process(Protocol):
    @property
    def pid(self) -> int: ...
    def kill(self) -> None: ...
    async def wait(self) -> int:
        """Its exit code, or the signal that killed it, negative."""
        ...


class ProcessFactory(Protocol):
    """Where children come from. `start` raises NotBorn when there cannot be one at the moment."""

    async def start(self, theirs: socket.socket) -> Process: ...
    async def close(self) -> None: ...


class SpawnError(Exception):
    """No process could be made, and why."""


class SpawnFactory:
    """Every child is a fresh interpreter, with nothing but its socket passed on."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env

    async def start(self, theirs: socket.socket) -> Process:
        return await spawn("child", theirs, self._env)

    async def close(self) -> None:
        pass


class Spawned:
    def __init__(self, subprocess: Subprocess) -> None:
        self._subprocess = subprocess

    @property
    def pid(self) -> int:
        return self._subprocess.pid

    def kill(self) -> None:
        if self._subprocess.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(
                    self.pid, signal.SIGKILL
                )  # not by way of Popen, which would take the exit code from who waits for it

    async def wait(self) -> int:
        return await self._subprocess.wait()


async def spawn(kind: Literal["child", "fork-server"], theirs: socket.socket, env: Mapping[str, str]) -> Spawned:
    """To be called on the main thread: the kernel ties the child's life to the thread that started it."""
    try:
        return Spawned(
            await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "horsies.executor",
                kind,
                str(theirs.fileno()),
                pass_fds=[theirs.fileno()],
                stdin=DEVNULL,
                process_group=0,
                env={**os.environ, **env},
            )
        )
    except OSError as error:
        raise SpawnError(f"cannot start a process: {error}") from error


def describe_exit(code: int) -> str:
    """How a process ended."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


# --------
# Watching a process load the app: it says what it is at, and is given up when it takes too long.

WARN_AFTER_S = 10.0

log = logging.getLogger("horsies.worker")


class Bootable(Protocol):
    """A process that loads the app."""

    ready: asyncio.Event
    doing: str
    refusal: str | None

    @property
    def pid(self) -> int: ...
    def kill(self) -> None: ...


async def watch_boot(process: Bootable, timeout_s: float) -> None:
    """Returns when it is ready. One that is not in time is killed, and its refusal says why."""
    try:
        async with asyncio.timeout(timeout_s):
            try:
                async with asyncio.timeout(WARN_AFTER_S):
                    await process.ready.wait()
            except TimeoutError:
                log.warning("child %d is not ready after %g s: it is %s", process.pid, WARN_AFTER_S, process.doing)
                await process.ready.wait()
    except TimeoutError:
        process.refusal = f"the child was not ready within {timeout_s:g} s: it was {process.doing}"
        process.kill()
