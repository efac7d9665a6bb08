"""A member of the pool: the parent's end of one child process."""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from horsies.executor.inbox import RECV_BYTES
from horsies.executor.protocol import (
    NO_ASSIGNMENT,
    Began,
    Boot,
    Booting,
    Done,
    Interrupt,
    KeepRunning,
    LoopAlive,
    Message,
    Ping,
    Pong,
    Progress,
    ProtocolError,
    Ready,
    Recall,
    ReportUnpacker,
    Returned,
    StartFailed,
    Stop,
    StopReason,
    pack,
)
from horsies.model.error_codes import OperationalErrorCode
from horsies.model.payload_errors import DEFAULT_MAX_BYTES
from horsies.model.result import TaskError
from horsies.model.status import TaskStatus
from horsies.model.task import Claim
from horsies.worker.assignments import Assignments
from horsies.worker.prefetch import SLOW_AFTER_S
from horsies.worker.spawn import Process, ProcessFactory, describe_exit

# --------
# When a child has served long enough.

AGED = 0.8
"""Of its tasks it has been given so many when its replacement is wanted."""
AHEAD = 2.0
"""And earlier if it will need one sooner than so many times what a start takes: while there is nobody to take its place it would stand idle."""
PACED = 0.1
"""Its pace is known when it has been given so many: one task tells nothing of the next."""


@dataclass(slots=True)
class RecyclePolicy:
    """Of one child. `budget` is how many tasks it may be given in its life; None: any number. `start_s` is how long it took to start."""

    budget: int | None
    given: int = 0
    start_s: float = 0.0
    is_too_big: bool = False
    is_reprieved: bool = False
    """It goes on although it should not, because nobody can take its place."""
    is_retired: bool = False
    """For good."""

    @property
    def left(self) -> int | None:
        if self.budget is None or self.is_reprieved:
            return None
        return max(0, self.budget - self.given)

    @property
    def is_retiring(self) -> bool:
        """It takes no new work, and is to be replaced."""
        return self.is_retired or (not self.is_reprieved and (self.is_too_big or self.left == 0))

    def is_aged(self, served_s: float) -> bool:
        """Its replacement is wanted, or will be soon. (Of a budget of two, after the first.) It has been there for `served_s`."""
        if self.is_retired or self.is_too_big:
            return True
        if self.budget is None:
            return False
        if self.given >= min(self.budget - 1, self.budget * AGED):
            return True
        if self.given < self.budget * PACED:
            return False
        return served_s * (self.budget - self.given) < AHEAD * self.start_s * self.given


# --------
# The parent's end of a child's socket: whole messages in, frames out, and the event loop never waits for either.

log = logging.getLogger("horsies.worker")


class ChildSocket:
    """`hear` takes each message and raises WireError for one that is out of order; `settled` follows every batch of them.

    `drained`: all that had to wait has been written. `lost`: the other end has closed its side (None), or has written what no child writes (what
    is wrong with it).
    """

    def __init__(
        self,
        ours: socket.socket,
        *,
        receive_message: Callable[[Message], None],
        settled: Callable[[], None],
        lost: Callable[[str | None], None],
        drained: Callable[[], None],
        max_payload: int = DEFAULT_MAX_BYTES,
    ) -> None:
        ours.settimeout(0)
        self._socket = ours
        self._on_message = receive_message
        self._settled = settled
        self._lost = lost
        self._drained = drained
        self._unpacker = ReportUnpacker(max_payload)
        self._trouble: str | None = None
        self.received = 0
        """Bytes, in all."""
        self._out = bytearray()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(ours.fileno(), self._readable)

    @property
    def is_open(self) -> bool:
        return self._socket.fileno() >= 0

    @property
    def unsent_bytes(self) -> int:
        return len(self._out)

    @property
    def is_mid_message(self) -> bool:
        """A message has arrived in part."""
        return self._unpacker.is_mid_message

    def send(self, message: Message) -> None:
        """To a child that is dead it goes nowhere."""
        if not self.is_open:
            return
        nothing_waits = not self._out
        self._out += pack(message)
        if nothing_waits and not self._write():
            self._loop.add_writer(self._socket.fileno(), self._writable)

    def drain(self) -> None:
        """A dead child's last words are still in the socket."""
        while self.is_open and self._take_in():
            pass
        self.close()

    def close(self) -> None:
        if self.is_open:
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()
            self._out.clear()

    def _readable(self) -> None:
        """Take in what has arrived, then let it be acted upon all at once."""
        if not self._take_in():
            self.close()
            self._lost(self._trouble)
        self._settled()

    def _take_in(self) -> bool:
        """False: there is nothing more to come."""
        try:
            data = self._socket.recv(RECV_BYTES)
            self.received += len(data)
            for message in self._unpacker.feed(data):
                self._on_message(message)
        except OSError:
            return False
        except ProtocolError as error:
            self._trouble = f"sent what no child sends ({error})"
            return False
        except Exception:
            # The rest of this batch is lost, and what was heard would be heard again: this child cannot be listened to any longer.
            log.exception("a report of a child could not be processed")
            self._trouble = "sent a report that could not be processed"
            return False
        return bool(data)

    def _writable(self) -> None:
        if self._write():
            self._loop.remove_writer(self._socket.fileno())
            self._drained()

    def _write(self) -> bool:
        """Whether nothing is left to be written."""
        try:
            del self._out[: self._socket.send(self._out)]
        except BlockingIOError:
            pass
        except OSError:
            self._out.clear()  # it is dying; its end is noticed by its process
        return not self._out


ASSIGNMENT_BYTES = 1 << 25
NAMES_SHOWN = 5


class ReportHandler(Protocol):
    """Who hears what a member has to say. Always called on the event loop."""

    def began(self, child: "Child", assignment_no: int, claim: Claim) -> None: ...
    def progressed(self, claim: Claim, fraction: float | None, message: str | None) -> None: ...
    def done(self, claim: Claim, done: Done) -> None: ...
    def returned(self, claims: list[Claim]) -> None: ...
    def died(self, begun: list[tuple[Claim, TaskError]], unbegun: list[Claim]) -> None: ...
    def settled(self) -> None: ...


class Child:
    """One child: its process, its socket, and what it has been given to do.

    The child is dead when its *process* is gone. The end of the stream alone does not tell: a program that a task started may
    hold the other end open, or user code may have closed it (then we kill what is left).

    It *retires* when it has been given its `budget` of tasks, has grown too big, or had to leave a task behind: it takes no new work,
    and leaves when what it has is done and the pool has another ready. `changed` is called after each report of one that is on
    its way there.
    """

    def __init__(
        self,
        reports: ReportHandler,
        boot: Boot,
        *,
        budget: int | None = None,
        changed: Callable[[], None] = lambda: None,
        max_payload: int = DEFAULT_MAX_BYTES,
    ) -> None:
        self._reports = reports
        self._boot = boot
        self._changed = changed
        self._max_payload = max_payload
        self.assigned = Assignments()
        self._age = RecyclePolicy(budget)
        self._process: Process | None = None
        self._line: ChildSocket | None = None
        self.ready = asyncio.Event()
        self.doing = "starting"
        self.refusal: str | None = None
        self.rss_mb = 0.0
        self.recalled = False
        self.began_at = 0.0
        self._worked_us = 0
        self._started_at = self._ready_at = time.monotonic()
        self._has_news = False
        self._killed_for: str | None = None
        self.asked_since: float | None = None
        """Since when it has been asked for a sign of life and has not said anything."""
        self.loop_asked_since: float | None = None
        """The same for its event loop, if it has one of its own."""
        self.loop_answers = 0
        self._is_blocked = False
        self._on_loop = NO_ASSIGNMENT
        self.spare_capacity: Callable[[], int] | None = None
        """A spare's: what the others leave it to do."""

    # -- life

    async def start(self, factory: ProcessFactory) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = await factory.start(theirs)
            except BaseException:
                ours.close()
                raise
        self._line = ChildSocket(
            ours,
            receive_message=self._on_message,
            settled=self._settled,
            lost=self._lost,
            drained=self._reports.settled,
            max_payload=self._max_payload,
        )
        self._line.send(self._boot)

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    async def wait_until_dead(self) -> str:
        """How it died, in words, once all that it said has been heard."""
        assert self._process is not None  # noqa: S101 - it has been started
        assert self._line is not None  # noqa: S101
        code = await self._process.wait()
        self._line.drain()
        return describe_exit(code)

    def stop(self) -> None:
        """It leaves when it has done what it was given."""
        self._age.is_retired = True
        self._send(Stop())

    def kill(self, reason: str | None = None) -> None:
        """`reason` is what the tasks that it ran are told, unless they were condemned to another ending."""
        self._killed_for = self._killed_for or reason
        if self._process:
            self._process.kill()

    def kill_blocked(self) -> None:
        """One of its tasks blocks the event loop, so that none of the others can end."""
        log.error("child %d is killed: its event loop is blocked; it runs %s", self.pid, self.describe_running())
        blocker = self.assigned.running_claim(self._on_loop)
        if blocker is not None and not self.assigned.has_kill_reason(self._on_loop):
            describe_exit = f"it blocked the event loop of its child process (pid {self.pid}), which was killed"
            self.set_kill_reason(self._on_loop, OperationalErrorCode.WORKER_CRASHED, describe_exit)
        who = "" if blocker is None else f", {blocker.task_name},"
        self.kill(f"another task{who} of the same child process (pid {self.pid}) blocked its event loop; it was killed")

    def report_crash(self, cause: str) -> None:
        """It is dead: tell what had begun, and what had not."""
        crash = TaskError(
            error_code=OperationalErrorCode.WORKER_CRASHED,
            message=self._killed_for or f"the child process (pid {self.pid}) {cause} while it ran this task",
        )
        self._reports.died(*self.assigned.report_crash(crash))

    def _lost(self, trouble: str | None) -> None:
        """It cannot be talked to any longer. Without trouble it may be dying by itself, and its exit code tells more than we could."""
        if trouble is None:
            self.kill()
        else:
            log.error("child %d %s, and is killed", self.pid, trouble)
            self.kill(f"the child process (pid {self.pid}) that ran it {trouble}, and was killed")

    # -- work

    @property
    def is_open(self) -> bool:
        """It may be given tasks now."""
        return (
            self.ready.is_set()
            and self._line is not None
            and self._line.is_open
            and not self.recalled
            and not self._is_blocked
            and not self.is_retiring
            and self.budget_left != 0
            and not self._is_slow(time.monotonic())
        )

    @property
    def budget_left(self) -> int | None:
        """How many tasks it may still be given; None: any number."""
        left = self._age.left
        if self.spare_capacity is None:
            return left
        capacity = max(0, self.spare_capacity())
        return capacity if left is None else min(capacity, left)

    @property
    def load(self) -> int:
        return len(self.assigned)

    def stuck_behind(self, now: float, slow_after_s: float, slow_together_s: float) -> int | None:
        """Nobody has asked yet for those that wait here, and what runs before them has taken long: one task, or `NO_ASSIGNMENT` when it is many together.

        One task may also seem so because the machine was busy elsewhere: by the time the child hears of it, it has ended.
        """
        if self._boot.concurrency > 1 or self.recalled or not self.assigned.has_begun:
            return None
        if self._ahead_s(now) > slow_together_s:
            return NO_ASSIGNMENT
        return self.assigned.running()[0][0] if now - self.began_at > slow_after_s else None

    def _ahead_s(self, now: float) -> float:
        """Only what tasks take counts, and not what comes between them: that is the same wherever they run."""
        return now - self.began_at + self.assigned.worked_before(self._worked_us) / 1_000_000

    def _is_slow(self, now: float) -> bool:
        """Its current task takes so long that nothing should wait behind it."""
        return self._boot.concurrency == 1 and self.assigned.has_begun and now - self.began_at > SLOW_AFTER_S

    def assign(self, claims: Sequence[Claim]) -> None:
        """The rows are RUNNING in the database: only now may they come here."""
        for share in _shares(claims) if len(claims) > 1 else (claims,):
            run = self.assigned.give(share, self._worked_us)
            self._age.given += len(run.assignments)
            self._send(run)

    @property
    def unsent_bytes(self) -> int:
        """What it has been given and has not taken in yet."""
        return self._line.unsent_bytes if self._line else 0

    def ping(self, now: float) -> None:
        """Ask for a sign of life, of the process and of its event loop."""
        self._send(Ping())
        self.asked_since = now if self.asked_since is None else self.asked_since
        if self._boot.concurrency > 1:
            self.loop_asked_since = now if self.loop_asked_since is None else self.loop_asked_since

    def ask_loop(self) -> int:
        """Ask for a sign of life of the event loop. It has been given when `loop_answers` is no longer what is returned."""
        self.ping(time.monotonic())
        return self.loop_answers

    @property
    def is_mid_message(self) -> bool:
        """It has begun to send a message and has not ended it."""
        return self._line is not None and self._line.is_mid_message

    @property
    def received(self) -> int:
        """Bytes, in all."""
        return self._line.received if self._line else 0

    def describe_running(self) -> str:
        """The names of its tasks, for the log."""
        names = sorted({claim.task_name for _, claim in self.assigned.running()})
        shown = ", ".join(names[:NAMES_SHOWN])
        return f"{shown} and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else shown or "nothing"

    def recall(self, behind: int) -> None:
        """Ask for what has not begun; it comes back as `returned`, and no new work goes here until the current task ends."""
        self.recalled = True
        self._send(Recall(behind))

    def close_blocked(self) -> None:
        """Its event loop does not run: ask for what has not begun, and take no new work until it runs again."""
        self._is_blocked = True
        if self.assigned.has_unbegun:
            self._send(Recall(NO_ASSIGNMENT))

    # -- stopping a task

    def interrupt(self, assignment_no: int, reason: StopReason) -> None:
        """Make the task raise."""
        self._send(Interrupt(assignment_no, reason))

    def set_kill_reason(self, assignment_no: int, error_code: str, message: str) -> None:
        """If the child dies before this task has ended, the task ends so, and not as crashed."""
        self.assigned.set_kill_reason(assignment_no, TaskError(error_code=error_code, message=message))

    def abandon(self, assignment_no: int) -> tuple[Claim, TaskError]:
        """Forget a task that does not stop, to be ended as it was condemned to. The child runs others beside it: it retires, and is
        killed when nothing is left in it but what was abandoned.
        """
        abandoned = self.assigned.abandon(assignment_no)
        self._age.is_retired = True
        self._kill_if_deserted()
        self._changed()
        return abandoned

    def _kill_if_deserted(self) -> None:
        if self.assigned.is_deserted:
            self.kill()

    # -- growing old

    @property
    def is_retiring(self) -> bool:
        """It takes no new work, and is to be replaced."""
        return self._age.is_retiring

    @property
    def is_aged(self) -> bool:
        """Its replacement is wanted, or will be soon."""
        return self._age.is_aged(time.monotonic() - self._ready_at)

    def extend(self) -> bool:
        """Nobody can take its place: better an old child than none. False: it cannot go on, because it leaves a task behind."""
        if self._age.is_retired:
            return False
        self._age.is_reprieved = True
        if self._age.is_too_big:
            self._send(KeepRunning())
        return True

    def retire(self) -> bool:
        """Somebody can take its place after all. False: it was not reprieved."""
        self._age.is_retired = self._age.is_retired or self._age.is_reprieved
        return self._age.is_retired

    # -- what it says

    def _on_message(self, message: Message) -> None:
        self.asked_since = None
        # A beginning by itself changes nothing that anybody could act on, and there is one for every task.
        self._has_news = self._has_news or not isinstance(message, Began)
        match message:
            case Began(assignment_no) if self.assigned.is_waiting(assignment_no):
                self.began_at = time.monotonic()
                self._reports.began(self, assignment_no, self.assigned.begin(assignment_no, self.began_at))
            case Progress(assignment_no, fraction, words):
                if assignment_no in self.assigned:  # else it comes from a thread that a task has left behind
                    self._reports.progressed(self.assigned[assignment_no], fraction, words)
            case Done() if self._may_end(message):
                self._ended(message)
            case Returned(assigned) if all(map(self.assigned.is_waiting, assigned)):
                self._take_back(assigned)
            case Done(assignment_no) if self.assigned.is_abandoned(assignment_no):
                self.assigned.forget(assignment_no)
            case _:
                self._hear_of_itself(message)

    def _hear_of_itself(self, message: Message) -> None:
        match message:
            case Booting(step):
                self.doing = step
            case Ready(_, rss_mb) if not self.ready.is_set():
                self._measured(rss_mb)
            case StartFailed(reason):
                self.refusal = reason
            case Pong(on_loop):
                self._on_loop = on_loop
            case LoopAlive():
                self.loop_asked_since = None
                self.loop_answers += 1
                self._is_blocked = False
            case _:
                raise ProtocolError(f"{type(message).__name__} out of order")

    def _may_end(self, done: Done) -> bool:
        """What has not begun can only have been cancelled."""
        return done.assignment_no in self.assigned and (
            self.assigned.running_claim(done.assignment_no) is not None or done.status == TaskStatus.CANCELLED.value
        )

    def _ended(self, done: Done) -> None:
        self.recalled = False
        self._worked_us += done.duration_us
        self._age.is_too_big = self._age.is_too_big or done.leaving
        self._reports.done(self.assigned.end(done.assignment_no), done)

    def _take_back(self, assigned: list[int]) -> None:
        self._age.given -= len(assigned)
        self._reports.returned(self.assigned.take_back(assigned))
        if not self.assigned:
            self.recalled = False  # nothing runs whose end could say so

    def _measured(self, rss_mb: float) -> None:
        self.rss_mb = rss_mb
        limit_mb = self._boot.max_memory_mb
        if limit_mb is not None and rss_mb >= limit_mb:
            self.refusal = (
                f"a child takes {rss_mb:.0f} MB before its first task, so --max-memory-per-child-mb={limit_mb:g} would "
                f"replace it after every one; allow well over {rss_mb:.0f}, or import less"
            )
            self.kill()
        else:
            self._ready_at = time.monotonic()
            self._age.start_s = self._ready_at - self._started_at
            self.ready.set()
            self._changed()

    def _settled(self) -> None:
        """All that has arrived was heard."""
        if not self._has_news:
            return
        self._has_news = False
        self._kill_if_deserted()
        if self.is_aged:
            self._changed()
        self._reports.settled()

    def _send(self, message: Message) -> None:
        if self._line:
            self._line.send(message)


def _shares(claims: Iterable[Claim]) -> Iterator[list[Claim]]:
    """As they fit into messages of FRAME_BYTES each; what is larger has one for itself."""
    share: list[Claim] = []
    weight = 0
    for claim in claims:
        if share and weight + claim.weight > ASSIGNMENT_BYTES:
            yield share
            share, weight = [], 0
        share.append(claim)
        weight += claim.weight
    if share:
        yield share
