"""The parent's end of the template: a process that has loaded the app and forks children on request (Linux).

It is started when the first child is asked for, and again by the next request after it has died. Its children die with it. That they
are its children and not ours is hidden here: they are known by a descriptor of their process, and the template tells how they ended.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Mapping
from contextlib import suppress

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
from horsies.worker.spawn import Process, Spawned, SpawnError, describe_exit, spawn, watch_boot

log = logging.getLogger("horsies.worker")


def can_fork() -> bool:
    """Linux, with a kernel that has descriptors of processes."""
    if sys.platform != "linux":
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


class ForkServer:
    """Where forked children come from."""

    def __init__(self, group: asyncio.TaskGroup, boot: Boot, env: Mapping[str, str], boot_timeout_s: float) -> None:
        self._group = group
        self._boot = boot
        self._env = env
        self._boot_timeout_s = boot_timeout_s
        self._server: _ForkServerProcess | None = None
        self._one_at_a_time = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        return self._server.pid if self._server else None

    async def start(self, theirs: socket.socket) -> Process:
        async with self._one_at_a_time:
            if self._server is None or self._server.is_dead:
                self._server = None
                self._server = await self._open()
            server = self._server
        return await server.fork(theirs)

    async def close(self) -> None:
        """Its children have left by now, or leave with it."""
        if self._server:
            await self._server.close()

    async def _open(self) -> "_ForkServerProcess":
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                process = await spawn("fork-server", theirs, self._env)
            except BaseException:
                ours.close()
                raise
        server = _ForkServerProcess(process, ours)
        self._group.create_task(server.live(self._boot, self._boot_timeout_s))
        await server.is_open
        return server


class _ForkServerProcess:
    """One template process, from its start to its death."""

    def __init__(self, process: Spawned, control: socket.socket) -> None:
        control.settimeout(0)
        self._process = process
        self._control = control
        self._children: dict[int, _ForkedProcess] = {}
        self._factory: deque[asyncio.Future[_ForkedProcess]] = deque()
        self._loop = asyncio.get_running_loop()
        self._dead = asyncio.Event()
        self.is_open: asyncio.Future[None] = self._loop.create_future()
        self.ready = asyncio.Event()
        self.doing = "starting"
        self.refusal: str | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_dead(self) -> bool:
        return self._dead.is_set()

    def kill(self) -> None:
        self._process.kill()

    async def live(self, boot: Boot, boot_timeout_s: float) -> None:
        self._loop.add_reader(self._control.fileno(), self._readable)
        self._control.sendall(pack(boot))
        try:
            async with asyncio.TaskGroup() as both:
                booting = both.create_task(watch_boot(self, boot_timeout_s))
                code = await self._process.wait()
                booting.cancel()
        except BaseException:
            self.kill()
            self._end(describe_exit(await self._process.wait()))
            raise
        self._end(describe_exit(code))

    async def fork(self, theirs: socket.socket) -> Process:
        birth: asyncio.Future[_ForkedProcess] = self._loop.create_future()
        try:
            socket.send_fds(self._control, [pack(Fork())], [theirs.fileno()])
        except OSError as error:
            raise SpawnError(f"the template process does not answer: {error}") from error
        self._factory.append(birth)
        return await birth

    async def close(self) -> None:
        if self._control.fileno() >= 0:
            self._loop.remove_reader(self._control.fileno())
            self._control.close()  # it leaves then
        await self._dead.wait()

    def _end(self, how: str) -> None:
        """Tell all who wait for it."""
        while self._control.fileno() >= 0 and self._take_in():
            pass
        if self._control.fileno() >= 0:
            self._loop.remove_reader(self._control.fileno())
            self._control.close()
        self._dead.set()
        reason = SpawnError(self.refusal or f"the process that loads the app {how} while it was {self.doing}")
        for waiting in (self.is_open, *self._factory):
            if not waiting.done():
                waiting.set_exception(reason)
        for child in self._children.values():
            child.orphaned()

    def _readable(self) -> None:
        if not self._take_in():
            self._loop.remove_reader(self._control.fileno())

    def _take_in(self) -> bool:
        try:
            data, fds, _flags, _address = socket.recv_fds(self._control, MAX_PACKET, 1, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            return False
        try:
            for message in ReportUnpacker().feed(data):
                self._on_message(message, fds)
        except ProtocolError as error:  # a module that is imported there has written to the socket
            log.error("the template (pid %d) sent what it never sends (%s), and is killed", self.pid, error)  # noqa: TRY400 - it is no bug of ours
            self.kill()
        finally:
            for fd in fds:  # of a message that has none
                os.close(fd)
        return bool(data)

    def _on_message(self, message: Message, fds: list[int]) -> None:
        match message:
            case Booting(step):
                self.doing = step
            case Ready() if not self.ready.is_set():
                self.doing = "forking"
                self.ready.set()
                if not self.is_open.done():
                    self.is_open.set_result(None)
            case StartFailed(reason):
                self._refused(reason)
            case Forked(pid) if fds and self._factory and pid not in self._children:
                self._born(_ForkedProcess(pid, fds.pop()))
            case ForkExited(pid, code) if pid in self._children:
                self._children.pop(pid).ended(code)
            case _:
                raise ProtocolError(f"{type(message).__name__} out of order")

    def _refused(self, reason: str) -> None:
        if not self._factory:
            self.refusal = reason
        elif not (birth := self._factory.popleft()).done():
            birth.set_exception(SpawnError(reason))

    def _born(self, child: "_ForkedProcess") -> None:
        self._children[child.pid] = child
        birth = self._factory.popleft()
        if birth.done():  # nobody waits for it any more
            child.kill()
        else:
            birth.set_result(child)


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

    def ended(self, code: int) -> None:
        os.close(self._pidfd)
        self._code.set_result(code)

    def orphaned(self) -> None:
        """The template is dead, so this one is being killed by the kernel; only the kernel can tell when it is done."""
        self._loop.add_reader(self._pidfd, self._gone)

    def _gone(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self.ended(-signal.SIGKILL)
