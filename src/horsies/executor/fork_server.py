"""The fork server: imports the app once, then forks a child for every request. Linux only, and single-threaded.

Forked children share its memory until they write to it, and need not import anything. What was created at import exists in all of them
(each has its own copy from the first write on): open connections and start threads in `@app.on_child_start`, which runs after the
fork. Python reseeds `random` after a fork; other generators whose state is created at import need a hook too.

Requests, with the new child's socket, arrive over a socket that preserves message boundaries. The answer carries a descriptor of the
child's process, opened before the process could be waited for, so that its pid cannot have been reused. The fork server waits for its
children and reports how they ended. It dies with the worker, and they die with it.
"""

import fcntl
import gc
import logging
import os
import select
import signal
import socket
import sys
import threading
from contextlib import suppress

from horsies.executor.inbox import ParentSocket
from horsies.executor.main import load, run_child
from horsies.executor.os_process import die_with_parent, ignore_signals, rss_meter, set_title
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
from horsies.model.errors import HorsiesError

MAX_PACKET = 1 << 16

log = logging.getLogger("horsies.executor")


def main(fd: int) -> None:
    die_with_parent(os.getppid())
    ignore_signals()
    control = socket.socket(fileno=fd)
    fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    (boot,) = Unpacker().feed(control.recv(MAX_PACKET))
    if not isinstance(boot, Boot):
        raise TypeError(f"the first message to a fork server must be Boot, not {boot}")
    try:
        app = load(boot, lambda step: _send(control, Booting(step)))
    except HorsiesError as error:
        _send(control, StartFailed(str(error)[: MAX_PACKET // 8]))
        return
    set_title("fork server")
    if threads := [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]:
        log.warning(
            "fork server: importing the app has started threads, which its children will not have: %s; start them in "
            "@app.on_child_start, or run with --max-tasks-per-child to have children that import the app themselves",
            ", ".join(threads),
        )
    gc.collect()
    gc.freeze()  # or the first collection in a child would write to every object, and so copy them all
    _send(control, Ready(os.getpid(), rss_meter()()))
    run_child(ForkServerMain(control).serve(), lambda _boot, _report_step: app)


def _send(control: socket.socket, message: Message) -> None:
    try:
        control.sendall(pack(message))
    except ConnectionError:
        os._exit(0)  # the worker is dead


class ForkServerMain:
    """The loop of the fork server: fork on request, and report exits."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._children: dict[int, int] = {}
        """Pids by the descriptors of their processes."""

    def serve(self) -> ParentSocket:
        """Return in every child, with its socket. The fork server itself never returns."""
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
            os._exit(0)  # the worker is dead, or has closed the socket to stop us
        (message,) = Unpacker().feed(data)
        if not isinstance(message, Fork) or len(fds) != 1:
            raise TypeError(f"unexpected message to the fork server: {message} with {len(fds)} descriptors")
        try:
            if self._fork():
                return ParentSocket(fds[0])
        except OSError as error:  # no processes or descriptors left at the moment
            _send(self._control, StartFailed(f"cannot fork: {error}"))
        os.close(fds[0])
        return None

    def _fork(self) -> bool:
        """Fork a child. Return True in the child."""
        server_pid = os.getpid()
        sys.stdout.flush()  # or the child would have a copy of the buffer and write it again
        sys.stderr.flush()
        pid = os.fork()
        if not pid:
            die_with_parent(server_pid)  # not inherited by a fork
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
        socket.send_fds(self._control, [pack(Forked(pid))], [pidfd])
        return False
