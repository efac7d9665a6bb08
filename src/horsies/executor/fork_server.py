"""The template: loads the app once, then forks a child for every request. Linux only, and single-threaded.

Forked children share its memory until they write to it, and need not import anything. What was made at import is there in all of them
(each has its own copy from the first write on): open connections and start threads in `@app.on_child_start`, which runs after the
fork. Python reseeds `random` after a fork; other generators with a state made at import need a hook, too.

Requests, with the new child's socket, come over a socket that keeps messages apart. The answer carries a descriptor of the child's
process, made before anybody could have reaped it: its number cannot have been given to another. The template reaps its children
and tells how they died; it dies with the worker, and they with it.
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
from horsies.executor.main import live, load
from horsies.executor.os_process import die_with, ignore_signals, rss_meter, set_title
from horsies.executor.protocol import Boot, Booting, Fork, Forked, ForkExited, Message, Ready, Refused, Unpacker, pack
from horsies.model.errors import HorsiesError

MAX_PACKET = 1 << 16

log = logging.getLogger("horsies.executor")


def main(fd: int) -> None:
    die_with(os.getppid())
    ignore_signals()
    control = socket.socket(fileno=fd)
    fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    (boot,) = Unpacker().feed(control.recv(MAX_PACKET))
    if not isinstance(boot, Boot):
        raise TypeError("a template's first message is what to load")
    try:
        app = load(boot, lambda what: _tell(control, Booting(what)))
    except HorsiesError as error:
        _tell(control, Refused(str(error)[: MAX_PACKET // 8]))
        return
    _settle()
    _tell(control, Ready(os.getpid(), rss_meter()()))
    live(ForkServerMain(control).serve(), lambda _boot, _at: app)


def _tell(control: socket.socket, message: Message) -> None:
    """To a worker that is gone there is nothing to say: the template ends without a word."""
    try:
        control.sendall(pack(message))
    except ConnectionError:
        os._exit(0)


def _settle() -> None:
    set_title("template")
    if threads := [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]:
        log.warning(
            "importing the app has started threads, which its children will not have: %s; start them in "
            "@app.on_child_start, or run with --max-tasks-per-child to have children that import by themselves",
            ", ".join(threads),
        )
    gc.collect()
    gc.freeze()  # or the first collection in a child would write to every object, and so copy them all


class ForkServerMain:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._children: dict[int, int] = {}  # descriptors of their processes, and their pids

    def serve(self) -> ParentSocket:
        """Returns in every child, with its socket. The template itself never returns."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        while True:
            for fd, _events in poll.poll():
                if fd != self._control.fileno():
                    poll.unregister(fd)
                    self._collect_exits(fd)
                elif (link := self._answer(poll)) is not None:
                    return link

    def _answer(self, poll: "select.poll") -> ParentSocket | None:
        data, fds = b"", list[int]()
        with suppress(ConnectionError):
            data, fds, _flags, _address = socket.recv_fds(self._control, MAX_PACKET, 1, socket.MSG_CMSG_CLOEXEC)
        if not data:
            os._exit(0)  # the worker is gone, or needs us no longer
        (message,) = Unpacker().feed(data)
        if not isinstance(message, Fork) or len(fds) != 1:
            raise TypeError(f"a template is never sent {message} with {len(fds)} descriptors")
        try:
            if self._fork(poll):
                return ParentSocket(fds[0])
        except OSError as error:  # out of processes or descriptors, for now
            _tell(self._control, Refused(f"cannot fork: {error}"))
        os.close(fds[0])
        return None

    def _fork(self, poll: "select.poll") -> bool:
        """True in the child."""
        template = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if not pid:
            self._leave(template)
            return True
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self._children[pidfd] = pid
        poll.register(pidfd, select.POLLIN)
        socket.send_fds(self._control, [pack(Forked(pid))], [pidfd])
        return False

    def _leave(self, template: int) -> None:
        """In the child: nothing of ours stays open, only what the user's modules opened."""
        die_with(template)  # a fork forgets this
        os.setpgid(0, 0)
        self._control.close()
        for pidfd in self._children:
            os.close(pidfd)

    def _collect_exits(self, pidfd: int) -> None:
        pid = self._children.pop(pidfd)
        _pid, status = os.waitpid(pid, 0)
        os.close(pidfd)
        _tell(self._control, ForkExited(pid, os.waitstatus_to_exitcode(status)))
