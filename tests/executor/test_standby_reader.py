import os
import queue
import threading
from collections.abc import Callable, Generator
from contextlib import closing
from operator import attrgetter

import pytest

from horsies.executor.sequential import STANDBY_INTERVAL_S, StandbyReader
from tests.fixtures.eventually import eventually


class Child:
    """A main thread (the test's own) and its standby reader, reading from a pipe."""

    def __init__(self, interval_s: float = STANDBY_INTERVAL_S) -> None:
        self._out, self._in = os.pipe()
        self.received: list[tuple[str, str]] = []
        """Each message, and the thread that has read it."""
        self.pending: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.wakeup = threading.Event()
        self.standby = StandbyReader(self._receive, self.wakeup, interval_s)

    def _receive(self) -> None:
        text = os.read(self._out, 1).decode()
        if not text:
            raise SystemExit  # the worker is dead, and so is its child
        self.received.append((text, threading.current_thread().name))
        self.pending.put(text)
        self.wakeup.set()

    def send(self, text: str) -> None:
        os.write(self._in, text.encode())

    def take(self) -> str:
        """The next message, as the main thread gets it when it is idle."""
        while True:
            self.wakeup.clear()
            if not self.pending.empty():
                return self.pending.get()
            self.standby.wait()

    # The main thread is inside `take`, so these read the state of the standby reader.

    def is_read(self) -> bool:
        return attrgetter("_reading")(self.standby).locked()

    def is_waited_for(self) -> bool:
        return attrgetter("_waits")(self.standby) > 0

    def has_sleeping_standby(self) -> bool:
        return attrgetter("_is_sleeping")(self.standby)

    def end_interval(self) -> None:
        """Let the standby reader check now whether the main thread has read."""
        attrgetter("_wake_standby")(self.standby).set()

    def close(self) -> None:
        os.close(self._in)
        eventually(lambda: self.end_interval() or STANDBY not in [thread.name for thread in threading.enumerate()])


@pytest.fixture
def child() -> Generator[Child]:
    with closing(Child()) as made:
        made.standby.start()
        yield made


MAIN = threading.current_thread().name
STANDBY = "horsies-standby"

# A real one ends with its process. These end by SystemExit, which pytest would report.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


def run_later(action: Callable[[], object]) -> None:
    threading.Timer(0.05, action).start()


def run_in_thread(*steps: Callable[[], object]) -> None:
    """One after the other, while the main thread waits."""
    threading.Thread(target=lambda: [step() for step in steps]).start()


def test_an_idle_main_thread_reads_by_itself() -> None:
    with closing(Child()) as child:
        run_in_thread(
            lambda: eventually(child.is_read),
            child.standby.start,
            lambda: eventually(child.has_sleeping_standby),
            lambda: child.send("a"),
        )
        assert child.take() == "a"
        assert child.received == [("a", MAIN)]


def test_the_main_thread_reads_again_after_the_next_message_of_the_standby_reader() -> None:
    with closing(Child(interval_s=60.0)) as child:  # so long that only `end_interval` makes the standby reader read
        child.standby.start()
        child.send("a")
        eventually(lambda: child.end_interval() or child.received == [("a", STANDBY)])
        assert child.take() == "a"
        run_in_thread(lambda: eventually(child.is_waited_for), lambda: child.send("b"))
        assert child.take() == "b"  # idle, but the standby reader still reads
        child.send("c")
        assert child.take() == "c"
        assert child.received[1:] == [("b", STANDBY), ("c", MAIN)]


def test_a_message_that_comes_while_the_main_thread_works_is_read(child: Child) -> None:
    child.send("a")
    eventually(lambda: child.received == [("a", STANDBY)])
    assert child.take() == "a"


def test_a_sleeping_standby_reader_is_woken_when_it_is_needed(child: Child) -> None:
    run_later(lambda: child.send("a"))  # long enough for it to fall asleep
    assert child.take() == "a"
    child.send("b")
    eventually(lambda: child.received[1:] == [("b", STANDBY)])


def test_no_message_is_lost_or_overtaken_whichever_thread_reads(child: Child) -> None:
    sent = "".join(chr(ord("a") + number % 26) for number in range(2_000))
    pauses = threading.Event()

    def send_all() -> None:
        for number, text in enumerate(sent):
            child.send(text)
            if number % 7 == 0:
                pauses.wait(0.0005 * (number % 40))

    sender = threading.Thread(target=send_all)
    sender.start()
    taken: list[str] = []
    for number in range(len(sent)):
        taken.append(child.take())
        if number % 50 == 0:
            pauses.wait(0.0005 * (number % 80))  # at work, now and then for longer than an interval
    sender.join()
    assert "".join(taken) == sent
