"""Start child processes: each as a fresh interpreter (`SpawnFactory`), or forked from a process that has loaded the app (`ForkServer`, Linux).

The fork server is started when the first child is needed, and again for the next child after it has died. Its children die with it. They are its
children and not ours: we know them by a descriptor of their process (pidfd), and the fork server reports how they ended.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL
from asyncio.subprocess import Process as Subprocess
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Literal, Protocol

from horsies.executor.fork_server import MAX_PACKET
from horsies.executor.protocol import (
    Boot,
    Booting,
    Fork,
    Forked,
    ForkExited,
    Message,
    ProtocolError,
    Ready,
    ReportUnpacker,
    StartFailed,
    pack,
)

WARN_AFTER_S = 10.0

log = logging.getLogger("horsies.worker")


class SpawnError(Exception):
    """No process could be started; the message says why."""


class Process(Protocol):
    @property
    def pid(self) -> int: ...
    def kill(self) -> None: ...
    async def wait(self) -> int:
        """Return its exit code, or the signal that killed it as a negative number."""
        ...


class ProcessFactory(Protocol):
    """Starts child processes. `start` raises SpawnError if it cannot at the moment."""

    async def start(self, theirs: socket.socket) -> Process: ...
    async def close(self) -> None: ...


def describe_exit(code: int) -> str:
    """Describe how a process ended."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


class Bootable(Protocol):
    """A process that loads the app: a child or the fork server."""

    ready: asyncio.Event
    current_step: str
    start_error: str | None

    @property
    def pid(self) -> int: ...
    def kill(self) -> None: ...


async def watch_boot(process: Bootable, timeout_s: float, warn_after_s: float = WARN_AFTER_S) -> None:
    """Wait until the process is ready. Kill it, and set its `start_error`, if that takes too long."""
    try:
        async with asyncio.timeout(timeout_s):
            try:
                async with asyncio.timeout(warn_after_s):
                    await process.ready.wait()
            except TimeoutError:
                log.warning("child %d: not ready after %g s, it is %s", process.pid, warn_after_s, process.current_step)
                await process.ready.wait()
    except TimeoutError:
        process.start_error = f"the child was not ready within {timeout_s:g} s: it was {process.current_step}"
        process.kill()


# -- fresh interpreters


class SpawnFactory:
    """Starts every child as a fresh interpreter that inherits nothing but its socket."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env

    async def start(self, theirs: socket.socket) -> Process:
        return await spawn("child", theirs, self._env)

    async def close(self) -> None:
        pass


async def spawn(kind: Literal["child", "fork-server"], theirs: socket.socket, env: Mapping[str, str]) -> "Spawned":
    """Start an interpreter. Call it on the worker's thread: the kernel kills the new process when the thread that started it ends."""
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


class Spawned:
    def __init__(self, subprocess: Subprocess) -> None:
        self._subprocess = subprocess

    @property
    def pid(self) -> int:
        return self._subprocess.pid

    def kill(self) -> None:
        if self._subprocess.returncode is None:
            with suppress(ProcessLookupError):
                # Not Popen.kill(): it polls first, and could take the exit code away from asyncio's child watcher.
                os.kill(self.pid, signal.SIGKILL)

    async def wait(self) -> int:
        return await self._subprocess.wait()


# -- forked processes


def can_fork() -> bool:
    """Whether this is Linux with pidfds."""
    if sys.platform != "linux":
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


class ForkServer:
    """Forks children from one process that has loaded the app."""

    def __init__(self, group: asyncio.TaskGroup, boot: Boot, env: Mapping[str, str], boot_timeout_s: float) -> None:
        self._group = group
        self._boot = boot
        self._env = env
        self._boot_timeout_s = boot_timeout_s
        self._server: _ForkServerProcess | None = None
        self._start_lock = asyncio.Lock()

    async def start(self, theirs: socket.socket) -> Process:
        async with self._start_lock:  # children start together, and must share one server
            if self._server is None or self._server.has_ended.is_set():
                self._server = None
                self._server = await self._start_server()
            server = self._server
        return await server.fork(theirs)

    async def close(self) -> None:
        """End the server; its children have left, or leave with it."""
        if self._server:
            await self._server.close()

    async def _start_server(self) -> "_ForkServerProcess":
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                process = await spawn("fork-server", theirs, self._env)
            except BaseException:
                ours.close()
                raise
        server = _ForkServerProcess(process, ours)
        self._group.create_task(server.run(self._boot, self._boot_timeout_s))
        await server.is_open
        return server


class _ForkServerProcess:
    """One fork server, from its start to its end."""

    def __init__(self, process: Spawned, control: socket.socket) -> None:
        control.settimeout(0)
        self._process = process
        self._control = control
        self._children: dict[int, _ForkedProcess] = {}
        self._requests: deque[asyncio.Future[_ForkedProcess]] = deque()
        self._loop = asyncio.get_running_loop()
        self.has_ended = asyncio.Event()
        self.is_open: asyncio.Future[None] = self._loop.create_future()
        self.ready = asyncio.Event()
        self.current_step = "starting"
        self.start_error: str | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()

    async def run(self, boot: Boot, boot_timeout_s: float) -> None:
        """Send what to load, and wait until the process has ended."""
        self._loop.add_reader(self._control.fileno(), self._on_readable)
        self._control.sendall(pack(boot))
        try:
            async with asyncio.TaskGroup() as group:
                booting = group.create_task(watch_boot(self, boot_timeout_s))
                code = await self._process.wait()
                booting.cancel()
        except BaseException:
            self.kill()
            self._on_exit(await self._process.wait())
            raise
        self._on_exit(code)

    async def fork(self, theirs: socket.socket) -> Process:
        request: asyncio.Future[_ForkedProcess] = self._loop.create_future()
        try:
            socket.send_fds(self._control, [pack(Fork())], [theirs.fileno()])
        except OSError as error:
            raise SpawnError(f"the fork server does not answer: {error}") from error
        self._requests.append(request)
        return await request

    async def close(self) -> None:
        self._close_control()  # the fork server exits then
        await self.has_ended.wait()

    def _close_control(self) -> None:
        if self._control.fileno() >= 0:
            self._loop.remove_reader(self._control.fileno())
            self._control.close()

    def _on_exit(self, code: int) -> None:
        while self._control.fileno() >= 0 and self._read():
            pass
        self._close_control()
        self.has_ended.set()
        how = f"the process that loads the app {describe_exit(code)} while it was {self.current_step}"
        for waiting in (self.is_open, *self._requests):
            if not waiting.done():
                waiting.set_exception(SpawnError(self.start_error or how))
        for child in self._children.values():
            child.on_orphaned()

    def _on_readable(self) -> None:
        if not self._read():
            self._loop.remove_reader(self._control.fileno())

    def _read(self) -> bool:
        """Read one packet. False if nothing more will come."""
        try:
            data, fds, _flags, _address = socket.recv_fds(self._control, MAX_PACKET, 1, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            return False
        try:
            for message in ReportUnpacker().feed(data):
                self._on_message(message, fds)
        except ProtocolError as error:  # a module that is imported there has written to the socket
            log.error("fork server %d sent invalid data (%s), and is killed", self.pid, error)  # noqa: TRY400 - not our bug
            self.kill()
        finally:
            for fd in fds:  # those that no message took over
                os.close(fd)
        return bool(data)

    def _on_message(self, message: Message, fds: list[int]) -> None:
        match message:
            case Booting(step):
                self.current_step = step
            case Ready() if not self.ready.is_set():
                self.current_step = "forking"
                self.ready.set()
                if not self.is_open.done():
                    self.is_open.set_result(None)
            case StartFailed(reason):
                self._on_refused(reason)
            case Forked(pid) if fds and self._requests and pid not in self._children:
                self._on_forked(_ForkedProcess(pid, fds.pop()))
            case ForkExited(pid, code) if pid in self._children:
                self._children.pop(pid).on_exit(code)
            case _:
                raise ProtocolError(f"unexpected message from fork server: {type(message).__name__}")

    def _on_refused(self, reason: str) -> None:
        if not self._requests:
            self.start_error = reason
        elif not (request := self._requests.popleft()).done():
            request.set_exception(SpawnError(reason))

    def _on_forked(self, child: "_ForkedProcess") -> None:
        self._children[child.pid] = child
        request = self._requests.popleft()
        if request.done():  # it was cancelled
            child.kill()
        else:
            request.set_result(child)


class _ForkedProcess:
    def __init__(self, pid: int, pidfd: int) -> None:
        self._pid = pid
        self._pidfd = pidfd
        self._loop = asyncio.get_running_loop()
        self._code: asyncio.Future[int] = self._loop.create_future()

    @property
    def pid(self) -> int:
        return self._pid

    def kill(self) -> None:
        if not self._code.done():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def wait(self) -> int:
        return await asyncio.shield(self._code)

    def on_exit(self, code: int) -> None:
        os.close(self._pidfd)
        self._code.set_result(code)

    def on_orphaned(self) -> None:
        """Wait for the kernel: it is killing this process, because the fork server is dead, and no one else can report its end."""

        def on_gone() -> None:
            self._loop.remove_reader(self._pidfd)
            self.on_exit(-signal.SIGKILL)

        self._loop.add_reader(self._pidfd, on_gone)
