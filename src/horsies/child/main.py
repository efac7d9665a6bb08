"""The life of a child process: load the app, then run what comes over the socket until told to stop.

Two threads. The *reader* takes frames from the socket, so that a recall is answered while a task runs and the end of
the parent is noticed at once. The *main thread* runs the tasks, one at a time, in the order they came.

A child holds no database connection for queue work, ignores SIGINT and SIGTERM (Ctrl-C and service managers signal the whole
group; only the parent decides), and never outlives its parent.
"""

import ctypes
import fcntl
import logging
import os
import signal
import socket
import sys
import threading
from collections import deque
from types import FrameType

from horsies import locate
from horsies.child.execute import Executor
from horsies.child.wire import (
    Assignment,
    Began,
    Boot,
    Message,
    Ready,
    Recall,
    Refused,
    Returned,
    Run,
    Stop,
    Unpacker,
    pack,
)
from horsies.model.errors import HorsiesError

PR_SET_PDEATHSIG = 1
RECV_BYTES = 1 << 18

log = logging.getLogger("horsies.child")


def main(fd: int) -> None:
    _guard()
    fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)  # what a task starts must not keep the socket open
    with socket.socket(fileno=fd) as link:
        unpacker = Unpacker()
        boot, *early = _receive(link, unpacker)
        if not isinstance(boot, Boot):
            raise TypeError("a child's first message is what to load")
        logging.basicConfig(level=boot.loglevel, format="%(asctime)s %(levelname)s [%(process)d] %(name)s: %(message)s")
        try:
            app = locate.load_app(boot.app)
        except HorsiesError as error:
            link.sendall(pack(Refused(str(error))))
            return
        desk = Desk(link, unpacker, early)
        link.sendall(pack(Ready(os.getpid())))
        executor = Executor(app.tasks)
        desk.work_through(executor)
        executor.close()
        app.close()


def _guard() -> None:
    """Die with the parent, and only by its word."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # it died in between
    # Handlers, not SIG_IGN, which programs started by a task would inherit.
    signal.signal(signal.SIGINT, _ignore)
    signal.signal(signal.SIGTERM, _ignore)


def _ignore(_signal: int, _frame: FrameType | None) -> None:
    pass


def _receive(link: socket.socket, unpacker: Unpacker) -> list[Message]:
    """At least one message; the parent's death ends the process."""
    while True:
        data = link.recv(RECV_BYTES)
        if not data:
            os._exit(0)
        if messages := list(unpacker.feed(data)):
            return messages


class Desk:
    """What lies before the child: filled by the reader thread, worked through by the main thread."""

    def __init__(self, link: socket.socket, unpacker: Unpacker, early: list[Message]) -> None:
        self._link = link
        self._unpacker = unpacker
        self._tray: deque[Assignment] = deque()
        self._stopping = False
        self._changed = threading.Condition()
        self._sending = threading.Lock()  # the reader answers recalls while the main thread reports
        for message in early:
            self._take(message)
        threading.Thread(target=self._read, name="horsies-reader", daemon=True).start()

    def work_through(self, executor: Executor) -> None:
        """Run the tray until told to stop and nothing is left. One write per task: an ending and the next beginning."""
        ended: bytes = b""
        while True:
            assignment = self._next(wait=not ended)
            if assignment is None:
                if not ended:
                    return
                self._send(ended)
                ended = b""
                continue
            self._send(ended + pack(Began(assignment.ticket)))
            ended = pack(executor.execute(assignment))

    def _next(self, *, wait: bool) -> Assignment | None:
        with self._changed:
            while wait and not self._tray and not self._stopping:
                self._changed.wait()
            return self._tray.popleft() if self._tray else None

    def _send(self, frames: bytes) -> None:
        with self._sending:
            self._link.sendall(frames)

    def _read(self) -> None:
        try:
            while True:
                for message in _receive(self._link, self._unpacker):
                    self._take(message)
        except BaseException as error:  # noqa: BLE001 - a child that cannot hear would wait for ever and hold its place
            log.warning("this child can no longer hear its worker: %r", error)
            os._exit(1)

    def _take(self, message: Message) -> None:
        with self._changed:
            match message:
                case Run(assignments):
                    self._tray.extend(Assignment(*fields) for fields in assignments)
                case Recall():
                    self._send(pack(Returned([assignment.ticket for assignment in self._tray])))
                    self._tray.clear()
                case Stop():
                    self._stopping = True
                case _:
                    raise AssertionError(f"a child is never sent {message}")
            self._changed.notify()
