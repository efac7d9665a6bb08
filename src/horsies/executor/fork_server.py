"""The fork server: a process that has loaded what its children need, and forks one for every request. Linux only, and single-threaded.

**Without the app** (start method `forkserver`) it has loaded horsies and its dependencies. Each child imports the app itself and is otherwise like a
spawned one, with the same arguments, environment, descriptors and signals. Nothing of the app, or of earlier tasks, ever was in this process. If it has
a second thread already (from a `sitecustomize`, for example), which its children would lack, it refuses, and children are spawned.

**With the app** (`fork`) it has imported the app, and its children share that memory until they write to it. What was created at import exists in all of
them: open connections and start threads in `@app.on_child_start`, which runs after the fork. Python reseeds `random` after a fork; other generators whose
state is created at import need a hook too.

Requests, with the new child's socket, arrive over a socket that preserves message boundaries. The answer carries a descriptor of the child's process, opened
before the process could be waited for, so that its pid cannot have been reused. The fork server waits for its children and reports how they ended. When the
worker is dead it kills them. When it dies itself they go on.
"""

import fcntl
import gc
import json
import logging
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NoReturn

from horsies.app import Horsies
from horsies.executor.inbox import ParentSocket
from horsies.executor.main import load, run_child
from horsies.executor.os_process import die_with_parent, freeze_objects, ignore_signals, set_title
from horsies.executor.protocol import (
    Boot,
    Booting,
    Fork,
    Forked,
    ForkExited,
    Message,
    Ready,
    StartFailed,
    Unpacker,
    pack,
)
from horsies.model.codec import ArgumentsCodec, ResultCodec
from horsies.model.errors import HorsiesError
from horsies.model.payload_errors import PayloadSizeCheck
from horsies.model.result import TaskError, TaskResult

MAX_PACKET = 1 << 16
STDERR: Final = 2
PRELOADED: Final = ("pydantic.fields", "pydantic.plugin._loader", "horsies.executor.concurrent")
"""What most children need besides what is imported above. A test compares it with what a child has loaded."""

log = logging.getLogger("horsies.executor")


def serve(fd: int) -> None:
    """Run a fork server without an app."""
    control, _boot = _open(fd)
    preload()
    if (threads := len(list(Path("/proc/self/task").iterdir()))) > 1:
        reason = f"{threads} threads run in a new interpreter before horsies has started any, and children would not have them"
        _send(control, StartFailed(reason))
        return
    _fork_children(control, load)


@cache
def preload() -> None:
    """Load what children need, and build the codecs of a function: what pydantic and `typing` do only once is then not done in every child.

    No codecs if pydantic has plugins: it would load them, and they are not horsies' own.
    """
    for module in PRELOADED:
        import_module(module)

    def example(ids: list[int], results: list[TaskResult[int, TaskError]], note: str = "") -> None: ...

    if not metadata.entry_points(group="pydantic"):
        ArgumentsCodec(example, PayloadSizeCheck("the arguments"))
        ResultCodec[Any](list[int], PayloadSizeCheck("the result"))


def serve_forked(fd: int) -> NoReturn:
    """Run a fork server that the worker has forked from itself before it loaded the app, as if it were a new interpreter."""
    try:
        worker = os.getppid()
        os.setpgid(0, 0)
        _close_inherited()
        with Path(os.devnull).open("rb") as null:
            os.dup2(null.fileno(), 0)
        main = sys.modules["__main__"] = ModuleType("__main__")
        main.__file__, main.__package__ = str(Path(__file__).with_name("__main__.py")), "horsies.executor"
        die_with_parent(worker)
        with socket.socket(fileno=os.dup(fd)) as control:
            if not (packet := control.recv(MAX_PACKET)):
                os._exit(0)  # the worker could not start
        kind, environment, folder = json.loads(packet)
        sys.argv = [main.__file__, kind, str(fd)]
        os.environ.clear()
        os.environ.update(environment)
        if folder:
            os.chdir(folder)
        (serve_app if kind == "fork" else serve)(fd)
    except BaseException:  # noqa: BLE001 - nothing of the worker's program may run in this process
        traceback.print_exc()
    os._exit(1)


def _close_inherited() -> None:
    """Close what the worker has inherited itself, as a new interpreter would have it: all that is opened in Python is not inheritable."""
    for fd in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 - numbers
        with suppress(OSError):  # the descriptor of the listing
            if fd > STDERR and os.get_inheritable(fd):
                os.close(fd)


def serve_app(fd: int) -> None:
    """Run a fork server that loads the app."""
    control, boot = _open(fd)
    try:
        app = load(boot, lambda step: _send(control, Booting(step)))
    except HorsiesError as error:
        _send(control, StartFailed(str(error)[: MAX_PACKET // 8]))
        return
    if threads := [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]:
        log.warning(
            "fork server: importing the app has started threads, which its children will not have: %s; start them in "
            "@app.on_child_start, or run with --start-method forkserver to have children that import the app themselves",
            ", ".join(threads),
        )
    _fork_children(control, lambda _boot, _report_step: app)


def _open(fd: int) -> tuple[socket.socket, Boot]:
    die_with_parent(os.getppid())
    ignore_signals()
    signal.signal(
        signal.SIGCHLD, signal.SIG_DFL
    )  # a program may inherit that it is ignored; then no exit code can be read
    control = socket.socket(fileno=fd)
    fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    if not (packet := control.recv(MAX_PACKET)):
        os._exit(0)  # the worker is dead
    (boot,) = Unpacker().feed(packet)
    if not isinstance(boot, Boot):
        raise TypeError(f"the first message to a fork server must be Boot, not {boot}")
    return control, boot


def _send(control: socket.socket, message: Message) -> None:
    with suppress(ConnectionError):  # the worker is dead: the next read returns nothing
        control.sendall(pack(message))


def _fork_children(control: socket.socket, load: Callable[[Boot, Callable[[str], None]], Horsies]) -> None:
    """Serve requests without end. Returns only in children, when they exit."""
    gc.collect()
    freeze_objects()
    set_title("fork server")
    run_child(_ForkServerLoop(control).run(), load)


class _ForkServerLoop:
    """Fork on request, and report exits."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._children: dict[int, int] = {}
        """Pids by the descriptors of their processes."""
        # From now on the end of the worker must not kill this process before it has killed its children. A signal, because the end of the stream
        # does not come while a process that the worker's program has forked holds a copy of the socket.
        signal.signal(signal.SIGRTMAX, lambda _signal, _frame: self._exit())
        die_with_parent(os.getppid(), signal.SIGRTMAX)

    def run(self) -> ParentSocket:
        """Return in every child, with its socket. The fork server itself never returns."""
        _send(self._control, Ready(os.getpid(), 0.0))
        while True:
            for fd, _events in self._poll.poll():
                if fd == self._control.fileno():
                    if (parent := self._answer()) is not None:
                        return parent
                    continue
                self._poll.unregister(fd)
                pid = self._children.pop(fd)
                _pid, status = os.waitpid(pid, 0)
                os.close(fd)
                _send(self._control, ForkExited(pid, os.waitstatus_to_exitcode(status)))

    def _answer(self) -> ParentSocket | None:
        data, fds = b"", list[int]()
        with suppress(ConnectionError):
            data, fds, _flags, _address = socket.recv_fds(self._control, MAX_PACKET, 1, socket.MSG_CMSG_CLOEXEC)
        if not data:
            self._exit()
        (message,) = Unpacker().feed(data)
        if not isinstance(message, Fork) or len(fds) != 1:
            raise TypeError(f"unexpected message to the fork server: {message} with {len(fds)} descriptors")
        try:
            if self._fork():
                sys.argv[1:] = ["child", str(fds[0])]
                return ParentSocket(fds[0])
        except OSError as error:  # no processes or descriptors left at the moment
            _send(self._control, StartFailed(f"cannot fork: {error}"))
        os.close(fds[0])
        return None

    def _fork(self) -> bool:
        """Fork a child. Return True in the child."""
        for stream in (sys.stdout, sys.stderr):  # or the child would have a copy of the buffer and write it again
            with suppress(Exception):  # it is closed, or its reader is gone
                stream.flush()
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGRTMAX, signal.SIG_DFL)
            os.setpgid(0, 0)
            # The child keeps nothing of ours open, only what the user's modules opened.
            self._control.close()
            for pidfd in self._children:
                os.close(pidfd)
            return True
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self._children[pidfd] = pid
        self._poll.register(pidfd, select.POLLIN)
        with suppress(ConnectionError):
            socket.send_fds(self._control, [pack(Forked(pid))], [pidfd])
        return False

    def _exit(self) -> NoReturn:
        """Exit because the worker is dead, and its children with it: the one that is stuck in C code does not read that its socket is closed."""
        for pidfd in self._children:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os._exit(0)
