import os
import queue
import threading
from collections.abc import Callable, Generator
from contextlib import closing
from operator import attrgetter

import pytest

from horsies.executor import sequential
from horsies.executor.sequential import StandbyReader
from tests.fixtures.eventually import eventually


class Child:
    """A main thread (the test's own) and its relief, at a pipe."""

    def __init__(self) -> None:
        self._out, self._in = os.pipe()
        self.heard: list[tuple[str, str]] = []
        self.pending: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.changed = threading.Event()
        self.standby = StandbyReader(self._on_message, self.changed)

    def _on_message(self) -> None:
        text = os.read(self._out, 1).decode()
        if not text:
            raise SystemExit  # the worker is gone, and so is its child
        self.heard.append((text, threading.current_thread().name))
        self.pending.put(text)
        self.changed.set()

    def say(self, text: str) -> None:
        os.write(self._in, text.encode())

    def take(self) -> str:
        """The next message, as the main thread gets it when it is idle."""
        while True:
            self.changed.clear()
            if not self.pending.empty():
                return self.pending.get()
            self.standby.wait()

    # Nobody else can tell, and the main thread is inside.

    def is_read(self) -> bool:
        return attrgetter("_reading")(self.standby).locked()

    def is_waited_for(self) -> bool:
        return attrgetter("_waits")(self.standby) > 0

    def has_its_relief_resting(self) -> bool:
        return attrgetter("_rests")(self.standby)

    def close(self) -> None:
        os.close(self._in)
        attrgetter("_wake")(self.standby).set()  # to find out


@pytest.fixture
def child() -> Generator[Child]:
    with closing(Child()) as made:
        made.standby.start()
        yield made


MAIN = threading.current_thread().name
RELIEF = "horsies-relief"

# A real one ends with its process. These end by SystemExit, which pytest would report.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


def later(what: Callable[[], object]) -> None:
    threading.Timer(0.05, what).start()


def aside(*steps: Callable[[], object]) -> None:
    """One after the other, while the main thread waits."""
    threading.Thread(target=lambda: [step() for step in steps]).start()


def test_an_idle_main_thread_reads_by_itself() -> None:
    with closing(Child()) as child:
        aside(
            lambda: eventually(child.is_read),
            child.standby.start,
            lambda: eventually(child.has_its_relief_resting),
            lambda: child.say("a"),
        )
        assert child.take() == "a"
        assert child.heard == [("a", MAIN)]


def test_relieved_once_the_main_thread_reads_again_after_the_next_message(
    child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    child.say("a")
    eventually(lambda: child.heard == [("a", RELIEF)])
    assert child.take() == "a"
    monkeypatch.setattr(sequential, "TICK_S", 10.0)  # from when it has read for the last time: no machine is so busy
    aside(lambda: eventually(child.is_waited_for), lambda: child.say("b"))
    assert child.take() == "b"  # idle, and still relieved
    child.say("c")
    assert child.take() == "c"
    assert child.heard[1:] == [("b", RELIEF), ("c", MAIN)]


def test_what_comes_while_the_main_thread_works_is_heard(child: Child) -> None:
    child.say("a")
    eventually(lambda: child.heard == [("a", RELIEF)])
    assert child.take() == "a"


def test_a_relief_that_rests_is_there_when_it_is_needed(child: Child) -> None:
    later(lambda: child.say("a"))  # long enough for it to rest
    assert child.take() == "a"
    child.say("b")
    eventually(lambda: child.heard[1:] == [("b", RELIEF)])


def test_nothing_is_lost_and_nothing_overtakes_whoever_reads(child: Child) -> None:
    said = "".join(chr(ord("a") + number % 26) for number in range(2_000))
    pauses = threading.Event()

    def speak() -> None:
        for number, text in enumerate(said):
            child.say(text)
            if number % 7 == 0:
                pauses.wait(0.0005 * (number % 40))

    speaker = threading.Thread(target=speak)
    speaker.start()
    taken: list[str] = []
    for number in range(len(said)):
        taken.append(child.take())
        if number % 50 == 0:
            pauses.wait(0.0005 * (number % 80))  # at work, now and then for longer than a tick
    speaker.join()
    assert "".join(taken) == said
