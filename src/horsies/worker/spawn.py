"""Start child processes, by one of three methods.

`spawn` starts each as a new interpreter. The others fork it from a *fork server* (Linux): with `forkserver` that is a process which has loaded horsies and
its dependencies, but nothing of the app, so the child imports the app itself; with `fork` it has loaded the app.

The fork server is started when the first child is needed, and again for the next child after it has died or did not answer. Its children live on: they
are processes of their own, which we know by a descriptor (pidfd): it says when they end. How they ended is reported by the fork server, which is their
parent. Without its report that is not known, unless the system made us their parent. It kills them if the worker dies; their closed sockets end them, too.

`horsies worker` forks the first fork server from itself before it loads the app (`fork_server_early`). Its memory and the time to import horsies are then shared.
"""

import asyncio
import json
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
from pathlib import Path
from typing import Protocol

from horsies.executor.fork_server import MAX_PACKET, preload, serve_forked
from horsies.executor.os_process import freeze_objects
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
from horsies.model.errors import ConfigError
from horsies.model.worker_config import StartMethod

WARN_AFTER_S = 10.0
REPORT_TIMEOUT_S = 1.0

log = logging.getLogger("horsies.worker")


class SpawnError(Exception):
    """No process could be started; the message says why."""


class Process(Protocol):
    @property
    def pid(self) -> int: ...
    def kill(self) -> None: ...
    async def wait(self) -> int | None:
        """Return its exit code, or the signal that killed it as a negative number. None if that is not known."""
        ...


def choose_start_method(requested: StartMethod | None, *, has_recycling: bool) -> StartMethod:
    """Return the method to use. Raise ConfigError if this system does not have the one that was requested."""
    if _has_pidfds():
        return requested or ("forkserver" if has_recycling else "fork")
    if requested in {"forkserver", "fork"}:
        raise ConfigError(
            "WorkerConfig", [f"start_method {requested!r} needs Linux 5.3 or newer; use 'spawn', or leave it out"]
        )
    return "spawn"


def _has_pidfds() -> bool:
    if sys.platform == "linux":
        with suppress(OSError):
            os.close(os.pidfd_open(os.getpid()))
            return True
    return False


def describe_exit(code: int | None) -> str:
    """Describe how a process ended."""
    if code is None:
        return "ended (its exit code is unknown: the fork server has not reported it)"
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


class ProcessFactory:
    """Starts children. `group` runs what watches the fork server."""

    def __init__(
        self,
        group: asyncio.TaskGroup,
        method: StartMethod,
        boot: Boot,
        env: Mapping[str, str],
        *,
        boot_timeout_s: float,
        answer_timeout_s: float,
    ) -> None:
        self._group = group
        self._method = method
        self._boot = boot
        # As it is now, whatever the method: a fork server could not give its children a later one.
        self._env = {**os.environ, **env}
        self._boot_timeout_s = boot_timeout_s
        self._answer_timeout_s = answer_timeout_s
        self._server: _ForkServer | None = None
        self._lock = asyncio.Lock()

    async def start(self) -> tuple[Process, socket.socket]:
        """Start a child. Return our end of its socket, too. Raise SpawnError if that is not possible at the moment."""
        server = await self._get_server()
        try:
            return await self._start(server)
        except SpawnError:
            if server is None or not server.has_ended.is_set():
                raise
        # It was dead or stopped; another one, once. With another socket: it may have forked a child that it could not report.
        return await self._start(await self._get_server())

    async def _start(self, server: "_ForkServer | None") -> tuple[Process, socket.socket]:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                return await (server.fork(theirs) if server else _spawn("child", theirs, self._env)), ours
            except BaseException:
                ours.close()
                raise

    async def close(self) -> None:
        """End the fork server, when all children have ended."""
        if self._server:
            self._server.kill()
            await self._server.has_ended.wait()

    async def _get_server(self) -> "_ForkServer | None":
        """Return the fork server, and start one if there is none. None: children are spawned."""
        async with self._lock:  # children start together, and must share one server
            if self._method == "spawn" or (self._server and not self._server.has_ended.is_set()):
                return self._server
            self._server = None
            if (early := self._take_early_server()) is not None:
                with suppress(SpawnError):  # it has died since it was forked
                    return await self._open_server(*early)
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                try:
                    process = await _spawn(self._method, theirs, self._env)
                except BaseException:
                    ours.close()
                    raise
            return await self._open_server(process, ours)

    def _take_early_server(self) -> tuple[Process, socket.socket] | None:
        """Take the one that this process has forked from itself, and send it the environment and the folder that children are to have."""
        if not _early:  # `spawn` has none
            return None
        folder = None
        with suppress(OSError):  # it was removed; children stay in it
            folder = str(Path.cwd())
        packet = json.dumps([self._method, self._env, folder]).encode()
        if len(packet) > MAX_PACKET:
            return None
        pid, pidfd, ours = _early.pop()
        with suppress(OSError):  # it is dead: that is found next
            ours.sendall(packet)
        return _Forked(pid, pidfd, report_timeout_s=0.0), ours

    async def _open_server(self, process: Process, ours: socket.socket) -> "_ForkServer | None":
        server = _ForkServer(process, ours, self._answer_timeout_s)
        self._group.create_task(server.run(self._boot, self._boot_timeout_s))
        try:
            await server.is_open
        except SpawnError as error:
            if self._method == "fork" or not server.has_refused:
                raise
            log.warning("fork server: %s; children are spawned instead", error)
            self._method = "spawn"
            return None
        except asyncio.CancelledError:
            server.kill()  # the pool is closing: it must not wait until the app is loaded
            raise
        self._server = server
        return server


_early: list[tuple[int, int, socket.socket]] = []
"""The fork server that this process has forked from itself, until it is used: its pid, a descriptor of it, and our end of its socket."""


def fork_server_early() -> None:
    """Fork a fork server from this process, which has loaded horsies and nothing of an app.

    Not if children would differ from those of a new interpreter: this process has other threads, or was started with options of the interpreter (such as
    `python -O -m horsies.cli`), which are not passed on. Options in the environment are the same for both.
    """
    has_options = any(word.startswith("-") and word not in {"-m", "-c"} for word in sys.orig_argv[1:2])
    if not _has_pidfds() or len(os.listdir("/proc/self/task")) > 1 or has_options:  # noqa: PTH208 - numbers
        return
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for stream in (sys.stdout, sys.stderr):  # or both processes would write what is in the buffers
        with suppress(Exception):  # it is closed, or its reader is gone
            stream.flush()
    preload()
    freeze_objects()
    pid = os.fork()
    if not pid:
        ours.close()
        serve_forked(theirs.detach())
    theirs.close()
    # The descriptor is opened now, because the app may wait for any child, and the pid be reused.
    _early.append((pid, os.pidfd_open(pid), ours))


def close_early_fork_server() -> None:
    """End the fork server that was not used."""
    while _early:
        pid, pidfd, ours = _early.pop()
        ours.close()
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)
        with suppress(ChildProcessError):  # the app has waited for it, or this process was started with SIGCHLD ignored
            os.waitpid(pid, 0)


async def _spawn(kind: str, theirs: socket.socket, env: Mapping[str, str]) -> "_Spawned":
    """Start an interpreter. Call it on the worker's thread: the kernel signals the new process when the thread that started it ends."""
    command = (sys.executable, "-m", "horsies.executor", kind, str(theirs.fileno()))
    try:
        subprocess = await asyncio.create_subprocess_exec(
            *command, pass_fds=[theirs.fileno()], stdin=DEVNULL, process_group=0, env=env
        )
    except OSError as error:
        raise SpawnError(f"cannot start a process: {error}") from error
    return _Spawned(subprocess)


class _Spawned:
    def __init__(self, subprocess: Subprocess) -> None:
        self._subprocess = subprocess
        self.pid = subprocess.pid

    def kill(self) -> None:
        if self._subprocess.returncode is None:
            with suppress(ProcessLookupError):
                # Not Popen.kill(): it polls first, and could take the exit code away from asyncio's child watcher.
                os.kill(self.pid, signal.SIGKILL)

    async def wait(self) -> int | None:
        return await self._subprocess.wait()


class _ForkServer:
    """One fork server, from its start to its end."""

    def __init__(self, process: Process, control: socket.socket, answer_timeout_s: float) -> None:
        control.settimeout(0)
        self._answer_timeout_s = answer_timeout_s
        self._process = process
        self._control = control
        self.pid = process.pid
        self.kill = process.kill
        self._children: dict[int, _Forked] = {}
        self._requests: deque[asyncio.Future[_Forked]] = deque()
        self._loop = asyncio.get_running_loop()
        self.has_ended = asyncio.Event()
        self.has_refused = False
        self.is_open: asyncio.Future[None] = self._loop.create_future()
        self.ready = asyncio.Event()
        self.current_step = "starting"
        self.start_error: str | None = None

    async def run(self, boot: Boot, boot_timeout_s: float) -> None:
        """Send what to load, and wait until the process has ended."""
        self._loop.add_reader(self._control.fileno(), self._on_readable)
        with suppress(OSError):  # it is dead already, and its exit code says more
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
        request: asyncio.Future[_Forked] = self._loop.create_future()
        try:
            async with asyncio.timeout(self._answer_timeout_s):
                while True:
                    with suppress(BlockingIOError):  # very many requests wait to be read
                        socket.send_fds(self._control, [pack(Fork())], [theirs.fileno()])
                        break
                    await asyncio.sleep(0.01)
                self._requests.append(request)
                return await request
        except TimeoutError:
            log.error("fork server %d has not answered for %g s and is killed", self.pid, self._answer_timeout_s)  # noqa: TRY400 - not our bug
            self.kill()
            await self.has_ended.wait()
            raise SpawnError(f"the fork server did not answer within {self._answer_timeout_s:g} s") from None
        except OSError as error:
            raise SpawnError(f"the fork server does not answer: {error}") from error

    def _on_exit(self, code: int | None) -> None:
        while self._control.fileno() >= 0 and self._read():
            pass
        self._loop.remove_reader(self._control.fileno())
        self._control.close()
        self.has_ended.set()
        how = f"the process that loads the app {describe_exit(code)} while it was {self.current_step}"
        for waiting in (self.is_open, *self._requests):
            if not waiting.done():
                waiting.set_exception(SpawnError(self.start_error or how))
        if self._children:
            log.warning(
                "fork server %d %s; its children go on, and the next one gets another", self.pid, describe_exit(code)
            )

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
            case StartFailed(reason) if not self.ready.is_set():
                self.has_refused, self.start_error = True, reason
                self.kill()  # it would wait for threads that the app has started
            case StartFailed(reason) if self._requests:
                self._answer(SpawnError(reason))
            case Forked(pid) if fds and self._requests and pid not in self._children:
                self._children[pid] = _Forked(pid, fds.pop())
                self._answer(self._children[pid])
            case ForkExited(pid, code) if pid in self._children:
                self._children.pop(pid).on_exit(code)
            case _:
                raise ProtocolError(f"unexpected message from fork server: {type(message).__name__}")

    def _answer(self, answer: "_Forked | SpawnError") -> None:
        request = self._requests.popleft()
        if isinstance(answer, _Forked):
            if request.done():  # it was cancelled
                answer.kill()
            else:
                request.set_result(answer)
        elif not request.done():
            request.set_exception(answer)


class _Forked:
    """A process that the fork server, or this process itself, has forked."""

    def __init__(self, pid: int, pidfd: int, report_timeout_s: float = REPORT_TIMEOUT_S) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._report_timeout_s = report_timeout_s
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(pidfd, self._on_gone)
        self._code: asyncio.Future[int | None] = self._loop.create_future()

    def kill(self) -> None:
        if not self._code.done():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def wait(self) -> int | None:
        return await asyncio.shield(self._code)

    def on_exit(self, code: int | None) -> None:
        if not self._code.done():
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._code.set_result(code)

    def _on_gone(self) -> None:
        """The process has ended. Wait for the report of the fork server, but not long: it may be dead or stopped."""
        self._loop.remove_reader(self._pidfd)
        self._loop.call_later(self._report_timeout_s, self._end_unreported)

    def _end_unreported(self) -> None:
        if self._code.done():
            return  # it was reported, and the number of the descriptor may belong to another process by now
        code = None
        with suppress(OSError):  # we are its parent only if we have forked it, or are the first process of a container
            status = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)
            code = status and (status.si_status if status.si_code == os.CLD_EXITED else -status.si_status)
        self.on_exit(code)
