"""A member of the pool: the parent's end of one child process."""

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Protocol

from horsies.child.wire import (
    Began,
    Boot,
    Done,
    Message,
    Ready,
    Recall,
    Refused,
    Returned,
    Run,
    Stop,
    Unpacker,
    WireError,
    pack,
)
from horsies.model.task import Claim

RECV_BYTES = 1 << 18


class Reports(Protocol):
    """Who hears what a member has to say. Always called on the event loop."""

    def done(self, claim: Claim, done: Done) -> None: ...
    def returned(self, claims: list[Claim]) -> None: ...
    def died(self, begun: list[Claim], unbegun: list[Claim], cause: str) -> None: ...
    def settled(self) -> None: ...


class Member:
    """One child: its process, its socket, and what it has been given to do.

    The child is dead when its *process* is gone. The end of the stream alone does not tell: a program that a task started may
    hold the other end open, or user code may have closed it (then we kill what is left).
    """

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._unpacker = Unpacker()
        self._out = bytearray()
        self._assigned: dict[int, Claim] = {}
        self._begun: set[int] = set()
        self._last_ticket = 0
        self._loop = asyncio.get_running_loop()
        self.ready = asyncio.Event()
        self.refusal: str | None = None
        self.recalled = False
        self.began_at = 0.0

    # -- life

    async def start(self, boot: Boot, env: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            # Called on the main thread: the kernel ties the child's life to the thread that started it.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "horsies.child",
                str(theirs.fileno()),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                process_group=0,
                env={**os.environ, **env},
            )
        ours.settimeout(0)  # never blocks the event loop
        self._socket = ours
        self._loop.add_reader(ours.fileno(), self._readable)
        self._send(Boot(*boot))

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait_until_dead(self) -> str:
        """How it died, in words, once all that it said has been heard."""
        code = await self._process.wait()
        self._drain()
        self._close()
        return _words(code)

    def stop(self) -> None:
        """It leaves when it has done what it was given."""
        self._send(Stop())

    def kill(self) -> None:
        if self._process.returncode is None:
            # Not by way of Popen: it looks first whether the child is dead, and would take the exit code from who waits for it.
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    # -- work

    @property
    def is_ready(self) -> bool:
        return self.ready.is_set() and self._socket.fileno() >= 0

    @property
    def load(self) -> int:
        return len(self._assigned)

    @property
    def has_unbegun(self) -> bool:
        return len(self._assigned) > len(self._begun)

    def is_stuck(self, now: float, slow_after_s: float) -> bool:
        """Its current task has run for long, and nobody has asked yet for what waits behind it."""
        return not self.recalled and bool(self._begun) and now - self.began_at > slow_after_s

    def assign(self, claims: Iterable[Claim]) -> None:
        """The rows are RUNNING in the database: only now may they come here."""
        assignments: list[tuple[int, str, str, int, str]] = []
        for claim in claims:
            self._last_ticket += 1
            self._assigned[self._last_ticket] = claim
            assignments.append((self._last_ticket, claim.id, claim.task_name, claim.attempt, claim.args))
        self._send(Run(assignments))

    def recall(self) -> None:
        """Ask for what has not begun; it comes back as `returned`, and no new work goes here until the current task ends."""
        self.recalled = True
        self._send(Recall())

    def bequeath(self, cause: str) -> None:
        """It is dead: tell what had begun, and what had not."""
        begun = [claim for ticket, claim in self._assigned.items() if ticket in self._begun]
        unbegun = [claim for ticket, claim in self._assigned.items() if ticket not in self._begun]
        self._assigned.clear()
        self._begun.clear()
        self._reports.died(begun, unbegun, f"the child process (pid {self.pid}) {cause}")

    def assigned(self) -> Iterable[Claim]:
        return self._assigned.values()

    # -- the socket

    def _readable(self) -> None:
        """Take in what has arrived, then let the pump act on all of it at once."""
        if not self._take_in():
            self._close()
            self.kill()  # it said its last word; what is left of it only holds a place
        self._reports.settled()

    def _drain(self) -> None:
        """A dead child's last words are still in the socket."""
        while self._socket.fileno() >= 0 and self._take_in():
            pass

    def _take_in(self) -> bool:
        """False: there is nothing more to come."""
        try:
            data = self._socket.recv(RECV_BYTES)
            for message in self._unpacker.feed(data):
                self._hear(message)
        except (OSError, WireError):
            return False
        return bool(data)

    def _hear(self, message: Message) -> None:
        match message:
            case Began(ticket) if ticket in self._assigned:
                self._begun.add(ticket)
                self.began_at = time.monotonic()
            case Done(ticket) if ticket in self._assigned:
                self._begun.discard(ticket)
                self.recalled = False
                self._reports.done(self._assigned.pop(ticket), message)
            case Returned(tickets) if self._assigned.keys() >= set(tickets):
                self._reports.returned([self._assigned.pop(ticket) for ticket in tickets])
            case Ready():
                self.ready.set()
            case Refused(reason):
                self.refusal = reason
            case _:
                raise WireError(f"a child in order does not send {message}")

    def _send(self, message: Message) -> None:
        if self._socket.fileno() < 0:
            return  # dead: whatever it was given is in its leftovers
        nothing_waits = not self._out
        self._out += pack(message)
        if nothing_waits:
            self._writable()

    def _writable(self) -> None:
        try:
            del self._out[: self._socket.send(self._out)]
        except BlockingIOError:
            pass
        except OSError:
            self._out.clear()  # it is dying; its end is noticed by its process
        if self._out:
            self._loop.add_writer(self._socket.fileno(), self._writable)
        else:
            self._loop.remove_writer(self._socket.fileno())

    def _close(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()


def _words(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
