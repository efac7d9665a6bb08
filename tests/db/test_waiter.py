"""The reader, step by step: it is a generator that the test advances, so every race happens at a known point."""

import asyncio
import ctypes
import gc
import operator
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, cast

import pytest

from horsies.db.channels import Channel
from horsies.db.listener import Subscriptions, call_subscribers
from horsies.db.waiter import (
    BATCH,
    Input,
    LoopReader,
    Read,
    ReadResult,
    ResultReader,
    Step,
    ThreadReader,
    WaiterTimings,
)
from horsies.model.errors import BrokerError, TaskTimeoutError
from tests.fixtures.eventually import eventually

LIVE: ReadResult[str] = ReadResult("live")
ENDED: ReadResult[str] = ReadResult("ended", is_final=True)


def source(ids: list[str]) -> Any:
    raise NotImplementedError("the test answers for the database")


def other_source(ids: list[str]) -> Any:
    raise NotImplementedError


class FakeListener:
    """Subscriptions without a connection: the test notifies them."""

    def __init__(self) -> None:
        self.subscriptions: Subscriptions = {}
        self.subscribers = 0
        self.is_polling = self.lacks_waiter_slot = False
        self.is_in_force = True

    def subscribe(self, channel: Channel, key: str | None, wake: Any) -> bool:
        self.subscriptions[channel, key, wake] = None
        self.subscribers += 1
        return self.is_in_force

    def unsubscribe(self, channel: Channel, key: str | None, wake: Any) -> None:
        self.subscriptions.pop((channel, key, wake), None)
        self.subscribers -= 1

    def notify(self, *ids: str) -> None:
        call_subscribers(self.subscriptions, Channel.DONE, " ".join(ids))


class SteppedReader(ResultReader):
    """Runs when the test advances it."""

    def __init__(self, listener: Callable[[], FakeListener], timings: WaiterTimings | None = None) -> None:
        self.inbox: list[Input] = []
        super().__init__(cast("Any", listener), timings, Future[str], self.inbox.append)
        self.kept: list[FakeWaiter] = []  # a waiter that is garbage-collected leaves
        self._op = self._steps()
        self._step: Step | None = next(self._op)

    def _take_inbox(self) -> list[Input]:
        taken = self.inbox[:]
        self.inbox.clear()
        return taken

    @property
    def step(self) -> Step | None:
        """What it does now: it reads, sleeps, or has stopped."""
        while isinstance(self._step, float) and (self.inbox or not self._step):
            self._move(lambda: self._op.send(self._take_inbox()))
        return self._step

    @property
    def reads(self) -> list[str]:
        assert isinstance(self.step, Read), f"it does not read but {self.step}"
        return [name for _, name in self.step.keys]

    @property
    def sleeps_s(self) -> float:
        assert isinstance(self.step, float), f"it does not sleep but {self.step}"
        return self.step

    def find(self, found: ReadResult[str] = LIVE, **others: ReadResult[str]) -> None:
        """The read has come back."""
        assert isinstance(self.step, Read)
        self.answer({key: others.get(key[1], found) for key in self.step.keys})

    def answer(self, results: dict[Any, ReadResult[str]]) -> None:
        self._move(lambda: self._op.send(results))

    def fail(self, error: BaseException) -> None:
        assert isinstance(self.step, Read)
        self._move(lambda: self._op.throw(error))

    def wake(self) -> None:
        """The time that it sleeps has passed, or so it seems."""
        assert isinstance(self.step, float)
        self._move(lambda: self._op.send([]))

    def _move(self, move: Callable[[], Any]) -> None:
        try:
            self._step = move()
        except StopIteration:
            self._step = None


class FakeWaiter:
    def __init__(
        self,
        reader: SteppedReader,
        ids: Iterable[str],
        deadline: float | None = None,
        first_read_at: float = 0.0,
        of: Any = source,
    ) -> None:
        self._context = reader.register(of, ids, deadline, first_read_at)
        self.futures: dict[str, Future[str]] = self._context.__enter__().futures
        reader.kept.append(self)

    def leave(self) -> None:
        self._context.__exit__(None, None, None)

    @property
    def answers(self) -> dict[str, str]:
        return {name: future.result() for name, future in self.futures.items() if future.done()}


@pytest.fixture
def listener() -> FakeListener:
    return FakeListener()


@pytest.fixture
def reader(listener: FakeListener) -> Generator[SteppedReader]:
    reader = SteppedReader(lambda: listener)
    yield reader
    assert reader.step is None, "it has stopped, because all waiters have left or have their results"
    assert listener.subscribers == 0


@pytest.mark.promise("A4")
def test_it_reads_completes_the_future_and_stops(reader: SteppedReader) -> None:
    one = FakeWaiter(reader, ["a"])
    assert reader.reads == ["a"]
    reader.find(ENDED)
    assert one.answers == {"a": "ended"}


def test_the_first_read_of_a_new_task_waits_for_its_notification(reader: SteppedReader, listener: FakeListener) -> None:
    one = FakeWaiter(reader, ["a"], first_read_at=time.monotonic() + 60)
    assert reader.sleeps_s <= WaiterTimings().poll_s
    listener.notify("a")
    assert reader.reads == ["a"]
    reader.find(ENDED)
    assert one.answers == {"a": "ended"}


def test_the_first_read_of_a_new_task_happens_in_time_without_a_notification(reader: SteppedReader) -> None:
    FakeWaiter(reader, ["a"], first_read_at=time.monotonic() + 0.01)
    time.sleep(reader.sleeps_s)
    reader.wake()
    assert reader.reads == ["a"]
    reader.find(ENDED)


@pytest.mark.promise("A4")
def test_a_notification_after_the_first_read_causes_a_second(reader: SteppedReader, listener: FakeListener) -> None:
    one = FakeWaiter(reader, ["a"])
    assert reader.reads == ["a"]
    reader.find(LIVE)
    assert reader.sleeps_s
    listener.notify("x", "a")
    assert reader.reads == ["a"]
    reader.find(ENDED)
    assert one.answers == {"a": "ended"}


@pytest.mark.promise("A4")
def test_a_notification_during_a_read_causes_another(reader: SteppedReader, listener: FakeListener) -> None:
    FakeWaiter(reader, ["a"])
    assert reader.reads == ["a"]
    listener.notify("a")  # perhaps too late for the snapshot of that read
    reader.find(LIVE)
    assert reader.reads == ["a"]
    reader.find(ENDED)


def test_a_waiter_that_arrives_during_a_read_of_its_id_gets_a_read_of_its_own(reader: SteppedReader) -> None:
    FakeWaiter(reader, ["a"])
    assert reader.reads == ["a"]
    two = FakeWaiter(reader, ["a"])
    reader.find(ENDED)
    assert two.answers == {}
    assert reader.reads == ["a"]
    reader.find(ENDED)
    assert two.answers == {"a": "ended"}


def test_a_notification_for_others_does_not_wake_it(reader: SteppedReader, listener: FakeListener) -> None:
    FakeWaiter(reader, ["a"])
    assert reader.reads == ["a"]
    reader.find(LIVE)
    assert reader.sleeps_s
    listener.notify("x", "y")
    assert reader.inbox == []
    listener.notify("a")
    assert reader.reads == ["a"]
    reader.find(ENDED)


@pytest.mark.promise("A4")
def test_the_first_read_waits_until_listen_is_in_force(reader: SteppedReader, listener: FakeListener) -> None:
    listener.is_in_force = False
    FakeWaiter(reader, ["a"])
    assert reader.sleeps_s <= WaiterTimings().listen_timeout_s, "a read now could be too early"
    listener.notify("a")
    assert reader.sleeps_s
    call_subscribers(listener.subscriptions, Channel.DONE, None)  # now it is in force
    assert reader.reads == ["a"]
    reader.find(ENDED)


def test_a_waiter_that_has_timed_out_does_not_wait_for_listen(reader: SteppedReader, listener: FakeListener) -> None:
    listener.is_in_force = False
    one = FakeWaiter(reader, ["a"], deadline=0.0)
    assert reader.reads == ["a"]
    reader.find(LIVE)
    assert one.answers == {"a": "live"}


def test_it_reads_for_all(reader: SteppedReader, listener: FakeListener) -> None:
    one, two, three = FakeWaiter(reader, ["a"]), FakeWaiter(reader, ["b", "c"]), FakeWaiter(reader, ["b"])
    assert reader.reads == ["a", "b", "c"]
    reader.find(LIVE)
    assert reader.sleeps_s
    listener.notify("a", "b", "c")
    assert reader.reads == ["a", "b", "c"]
    reader.find(ENDED, a=LIVE)
    assert (one.answers, two.answers, three.answers) == ({}, {"b": "ended", "c": "ended"}, {"b": "ended"})
    listener.notify("a")
    assert reader.reads == ["a"]
    reader.find(ENDED)


def test_one_reader_serves_several_sources(reader: SteppedReader, listener: FakeListener) -> None:
    """An id of one source does not get the answer of another."""
    one, two = FakeWaiter(reader, ["a"]), FakeWaiter(reader, ["a"], of=other_source)
    assert isinstance(reader.step, Read)
    assert reader.step.keys == [(source, "a"), (other_source, "a")]
    reader.answer({(source, "a"): ENDED, (other_source, "a"): LIVE})
    assert (one.answers, two.answers) == ({"a": "ended"}, {})
    two.leave()


def test_a_read_asks_each_source_for_its_ids() -> None:
    asked: list[tuple[str, list[str]]] = []

    def make(name: str) -> Any:
        def read(ids: list[str]) -> Any:
            asked.append((name, ids))
            yield from ()
            return {each: ReadResult(f"{name} {each}") for each in ids}

        return read

    tasks, runs = make("task"), make("run")
    op = Read([(tasks, "a"), (runs, "a"), (tasks, "b")])()
    with pytest.raises(StopIteration) as end:
        next(op)
    found = {(key[0] is runs, key[1]): result.answer for key, result in end.value.value.items()}
    assert asked == [("task", ["a", "b"]), ("run", ["a"])]
    assert found == {(False, "a"): "task a", (False, "b"): "task b", (True, "a"): "run a"}


def test_a_waiter_that_leaves_is_forgotten(reader: SteppedReader) -> None:
    one, two = FakeWaiter(reader, ["a", "b"]), FakeWaiter(reader, ["b"])
    one.leave()
    assert reader.reads == ["b"]
    reader.find(ENDED)
    assert (one.answers, two.answers) == ({}, {"b": "ended"})


def test_a_waiter_that_is_garbage_collected_leaves(reader: SteppedReader) -> None:
    FakeWaiter(reader, ["a"])
    assert reader.reads == ["a"]
    reader.kept.clear()
    gc.collect()
    reader.find(LIVE)


def test_a_waiter_may_leave_while_its_ids_are_read(reader: SteppedReader) -> None:
    one = FakeWaiter(reader, ["a"])
    assert reader.reads == ["a"]
    one.leave()
    reader.find(LIVE)


@pytest.mark.promise("A4")
def test_a_failed_read_fails_for_all_waiters_with_requested_ids(reader: SteppedReader, listener: FakeListener) -> None:
    one, two, three = FakeWaiter(reader, ["a"]), FakeWaiter(reader, ["b"]), FakeWaiter(reader, ["c", "d"])
    assert reader.reads == ["a", "b", "c", "d"]
    reader.find(LIVE)
    assert reader.sleeps_s
    listener.notify("b", "c")
    assert reader.reads == ["b", "c"]
    reader.fail(BrokerError("away", retryable=True))
    for future in (*two.futures.values(), *three.futures.values()):
        with pytest.raises(BrokerError, match="away"):
            future.result(0)
    assert one.answers == {}, "it was not concerned"
    listener.notify("a")
    assert reader.reads == ["a"]
    reader.find(ENDED)
    assert one.answers == {"a": "ended"}


def test_a_last_read_is_made_at_the_deadline(reader: SteppedReader) -> None:
    one = FakeWaiter(reader, ["a"], deadline=time.monotonic() + 0.01)
    assert reader.reads == ["a"]
    reader.find(LIVE)
    time.sleep(reader.sleeps_s)
    reader.wake()
    assert reader.reads == ["a"]
    reader.find(LIVE)
    assert one.answers == {"a": "live"}


def test_a_deadline_that_has_passed_needs_one_read(reader: SteppedReader) -> None:
    one, two = FakeWaiter(reader, ["a"]), FakeWaiter(reader, ["a", "b"], deadline=0.0)
    assert reader.reads == ["a", "b"]
    reader.find(LIVE)
    assert (one.answers, two.answers) == ({}, {"a": "live", "b": "live"})
    one.leave()


def test_an_id_is_read_again_after_the_given_time(reader: SteppedReader) -> None:
    one = FakeWaiter(reader, ["a"])
    assert reader.reads == ["a"]
    reader.find(ReadResult("live", read_again_s=0.02))
    assert 0 < reader.sleeps_s <= 0.02
    reader.wake()  # too early
    time.sleep(reader.sleeps_s)
    reader.wake()
    assert reader.reads == ["a"]
    reader.find(ENDED)
    assert one.answers == {"a": "ended"}


@pytest.mark.promise("A4")
@pytest.mark.parametrize("expected_s", [5.0, 0.25])
def test_everything_is_polled_more_often_while_notifications_do_not_arrive(
    reader: SteppedReader, listener: FakeListener, expected_s: float
) -> None:
    listener.is_polling = expected_s < 1
    one = FakeWaiter(reader, ["a"])
    assert reader.reads == ["a"]
    reader.find(LIVE)
    assert expected_s / 2 < reader.sleeps_s <= expected_s
    one.leave()


@pytest.mark.parametrize("payload", [None, "*"])
def test_every_id_is_read_when_anything_may_have_happened(
    reader: SteppedReader, listener: FakeListener, payload: str | None
) -> None:
    one = FakeWaiter(reader, ["a", "b"])
    assert reader.reads == ["a", "b"]
    reader.find(LIVE)
    assert reader.sleeps_s
    if payload is None:
        call_subscribers(listener.subscriptions, None, None)
    else:
        listener.notify(payload)
    while not isinstance(reader.step, Read):
        reader.wake()
    assert reader.reads == ["a", "b"]
    reader.find(ENDED)
    assert one.answers == {"a": "ended", "b": "ended"}


@pytest.mark.promise("D6")
def test_notifications_cannot_cause_many_reads_of_everything(
    listener: FakeListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An id that is notified by name is read at once all the same."""
    reader = SteppedReader(lambda: listener, WaiterTimings(read_all_interval_s=3_600.0))
    monkeypatch.setattr(reader, "_read_all_at", -3_600.0)  # the first read of everything was an hour ago
    FakeWaiter(reader, ["a"])
    assert reader.reads == ["a"]
    reader.find(LIVE)
    assert reader.sleeps_s
    listener.notify("*")
    assert reader.reads == ["a"]
    reader.find(LIVE)
    for _ in range(100):
        listener.notify("*")
    assert reader.sleeps_s
    listener.notify("a")
    assert reader.reads == ["a"]
    reader.find(ENDED)


def test_many_ids_are_read_in_several_batches(reader: SteppedReader) -> None:
    one = FakeWaiter(reader, [str(number) for number in range(2 * BATCH + 1)], deadline=0.0)
    sizes = list[int]()
    while reader.step:
        sizes.append(len(reader.reads))
        reader.find(LIVE)
    assert sizes == [BATCH, BATCH, 1]
    assert len(one.answers) == 2 * BATCH + 1


def test_with_many_waiters_notifications_are_collected(listener: FakeListener) -> None:
    reader = SteppedReader(lambda: listener, WaiterTimings(slack=1e9))  # practically infinite
    ids = [str(number) for number in range(BATCH + 1)]
    FakeWaiter(reader, ids)
    for _ in range(2):
        assert reader.reads
        reader.find(LIVE)
    for each in ids[1:-1]:
        listener.notify(each)
        assert reader.sleeps_s
    listener.notify(ids[0])
    assert sorted(reader.reads) == sorted(ids[:-1]), "a full batch gains nothing by waiting"
    reader.find(ENDED)
    listener.notify(ids[-1])
    assert reader.reads == [ids[-1]], "alone again, it is not kept waiting"
    reader.find(ENDED)
    assert reader.step is None


def test_timers_of_waiters_that_are_gone_are_dropped(reader: SteppedReader, listener: FakeListener) -> None:
    """A process that waits thousands of times, with long timeouts, keeps nothing of them."""
    stays = FakeWaiter(reader, ["stays"])
    for number in range(1_000):
        FakeWaiter(reader, [str(number)], deadline=time.monotonic() + 3_600)
        assert reader.reads
        reader.find(ENDED, stays=LIVE)
    assert reader.sleeps_s
    assert len(operator.attrgetter("_timers")(reader)) < 200  # not visible otherwise
    stays.leave()


def test_it_subscribes_to_the_next_listener_of_a_closed_broker() -> None:
    listeners = [FakeListener()]
    reader = SteppedReader(lambda: listeners[-1])
    FakeWaiter(reader, ["a"])
    assert reader.reads == ["a"]
    reader.find(LIVE)
    assert reader.sleeps_s
    listeners.append(FakeListener())
    reader.wake()
    assert reader.sleeps_s
    listeners[-1].notify("a")
    assert reader.reads == ["a"]
    reader.find(ENDED)
    assert reader.step is None
    assert [listener.subscribers for listener in listeners] == [0, 0]


# -- the thread


def all_ended(step: Read, **_again: Read) -> Any:
    return dict.fromkeys(step.keys, ENDED)


def only(ended: set[str]) -> Callable[..., Any]:
    """A read that finds that these have ended."""

    def read(step: Read, **_again: Read) -> Any:
        return {key: ENDED if key[1] in ended else LIVE for key in step.keys}

    return read


def wait(reader: ThreadReader, *ids: str) -> list[str]:
    with reader.register(source, ids, None) as waiter:
        reader.wait(waiter)
        return [future.result(0) for future in waiter.futures.values()]


def interrupt(stop: type[BaseException]) -> None:
    """Raise it in the thread that waits, when that runs again."""
    (thread,) = (each for each in threading.enumerate() if each.name.startswith("ThreadPoolExecutor"))
    prototype = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.py_object)
    prototype(("PyThreadState_SetAsyncExc", ctypes.pythonapi))(thread.ident, stop)


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "horsies-reader"]


def test_a_lone_waiter_reads_on_its_own_thread(listener: FakeListener) -> None:
    read_on: list[threading.Thread] = []

    def read(step: Read, **_again: Read) -> Any:
        read_on.append(threading.current_thread())
        return all_ended(step)

    reader = ThreadReader(cast("Any", lambda: listener), read)
    assert wait(reader, "a", "b") == ["ended", "ended"]
    assert read_on == [threading.current_thread()]
    assert (listener.subscribers, readers()) == (0, [])


def test_a_thread_reads_for_those_who_stay_when_the_reading_waiter_leaves(listener: FakeListener) -> None:
    ended: set[str] = set()
    reader = ThreadReader(
        cast("Any", lambda: listener),
        only(ended),
    )
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(wait, reader, "a")
        eventually(lambda: listener.subscribers)
        others = [threads.submit(wait, reader, "b"), threads.submit(wait, reader, "b", "c")]
        eventually(lambda: len(operator.attrgetter("_waiters")(reader)) == 3, what="not visible otherwise")
        assert readers() == []
        for each in "abc":
            ended.add(each)
            listener.notify(each)
            if each == "a":
                assert first.result(10) == ["ended"]
        assert [other.result(10) for other in others] == [["ended"], ["ended", "ended"]]
    eventually(lambda: not readers(), what="the thread ends when there is no waiter")
    assert listener.subscribers == 0


@pytest.mark.parametrize("during", ["a read", "a sleep"])
@pytest.mark.parametrize("stop", [KeyboardInterrupt, TaskTimeoutError])
def test_when_the_reading_waiter_is_interrupted_others_get_their_results(
    listener: FakeListener, during: str, stop: type[BaseException]
) -> None:
    """By Ctrl-C, or by the soft stop of a task."""
    reads: list[list[str]] = []

    def read(step: Read, **_again: Read) -> Any:
        reads.append([name for _, name in step.keys])
        if during == "a read":
            eventually(lambda: len(operator.attrgetter("_all")(reader)) == 2)
            if len(reads) == 1:
                raise stop
        return {key: LIVE if key[1] == "a" else ENDED for key in step.keys}

    def interrupted() -> None:
        with pytest.raises(stop):
            wait(reader, "a")

    reader = ThreadReader(cast("Any", lambda: listener), read)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(interrupted)
        eventually(lambda: listener.subscribers)
        if during == "a sleep":
            eventually(lambda: reads)
            interrupt(stop)
        other = threads.submit(wait, reader, "b")
        first.result(10)
        assert other.result(10) == ["ended"]
    eventually(lambda: not readers())
    assert listener.subscribers == 0


@contextmanager
def without_collections() -> Generator[None]:
    """An exception that is raised inside a finalizer is lost, and a collection runs the finalizers of other tests."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_an_interrupt_at_any_moment_leaves_the_reader_to_the_next_waiter(listener: FakeListener) -> None:
    """A soft stop may be raised after any call of the thread that runs the reader, and while that begins or ends."""
    reader = ThreadReader(cast("Any", lambda: listener), all_ended)
    started = threading.Event()

    def wait_until_interrupted() -> str:
        try:
            started.set()
            while True:
                wait(reader, "a")
        except TaskTimeoutError:
            return "interrupted"

    with without_collections(), ThreadPoolExecutor(1) as threads:
        for _ in range(300):
            started.clear()
            waits = threads.submit(wait_until_interrupted)
            assert started.wait(10)
            interrupt(TaskTimeoutError)
            assert waits.result(10) == "interrupted"
        assert threads.submit(wait, reader, "b").result(10) == ["ended"]
    eventually(lambda: not readers())


def test_an_interrupt_between_the_answer_and_the_future_loses_no_waiter(listener: FakeListener) -> None:
    """The reader has taken the last key of another thread's waiter, and is interrupted before it completes the future."""
    ended: set[str] = set()
    has_left = threading.Event()
    reader = ThreadReader(
        cast("Any", lambda: listener),
        only(ended),
        WaiterTimings(poll_s=0.1),
    )

    def interrupted() -> None:
        with pytest.raises(TaskTimeoutError):
            wait(reader, "a")

    def wait_for_two() -> list[str]:
        with reader.register(source, ["b", "c"], None) as waiter:
            future = waiter.futures["c"]
            complete = future.set_result

            def interrupt_once(answer: str) -> None:
                future.set_result = complete
                has_left.wait(1)
                raise TaskTimeoutError

            future.set_result = interrupt_once
            reader.wait(waiter)
        has_left.set()
        return [each.result(5) for each in waiter.futures.values()]

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(interrupted)
        eventually(lambda: listener.subscribers)
        second = threads.submit(wait_for_two)
        eventually(lambda: len(operator.attrgetter("_waiters")(reader)) == 3)
        ended.update("bc")
        listener.notify("b", "c")
        first.result(10)
        assert second.result(10) == ["ended", "ended"]
    eventually(lambda: not readers())


def test_an_interrupt_in_a_callback_does_not_hang_as_completed(listener: FakeListener) -> None:
    """A thread that waits by `get` runs the reader for all, and is interrupted after it has completed the future of another waiter."""
    ended: set[str] = set()
    reader = ThreadReader(
        cast("Any", lambda: listener),
        only(ended),
        WaiterTimings(poll_s=0.1),
    )

    def interrupted() -> None:
        with pytest.raises(KeyboardInterrupt):
            wait(reader, "a")

    def interrupt(_future: object) -> None:
        raise KeyboardInterrupt

    def complete_two() -> list[str]:
        with reader.register(source, ["b", "c"], None) as waiter:
            # Before the callback of `completed`, which is not called then.
            waiter.futures["b"].add_done_callback(interrupt)
            return [name for name, _ in reader.completed(waiter)]

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(interrupted)
        eventually(lambda: listener.subscribers)
        second = threads.submit(complete_two)
        eventually(lambda: len(operator.attrgetter("_waiters")(reader)) == 3)
        ended.update("bc")
        listener.notify("b", "c")
        first.result(10)
        assert sorted(second.result(10)) == ["b", "c"]
    eventually(lambda: not readers())


def test_many_threads_that_come_and_go_all_get_their_results(listener: FakeListener) -> None:
    """No waiter is left without a reader, whenever the one that reads leaves."""
    reader = ThreadReader(cast("Any", lambda: listener), all_ended)
    answers: list[str] = []

    def wait_often(number: int) -> None:
        for turn in range(200):
            answers.extend(wait(reader, f"{number} {turn}", f"{turn}"))

    threads = [threading.Thread(target=wait_often, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert answers == ["ended"] * 3_200
    eventually(lambda: not readers())
    assert listener.subscribers == 0


def test_an_error_in_the_reader_itself_leaves_no_waiter_waiting(
    listener: FakeListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", list[object]().append)

    def find_nothing(_step: Read, **_again: Read) -> Any:
        return {}  # no result for the id: a defect of the source

    reader = ThreadReader(cast("Any", lambda: listener), find_nothing)
    with pytest.raises(KeyError):
        wait(reader, "a")
    with reader.register(source, ["a"], None) as waiter:
        reader.start()
        with pytest.raises(KeyError):
            waiter.futures["a"].result(10)
    eventually(lambda: not readers())
    assert listener.subscribers == 0


# -- the task of an event loop


async def read_forever(_step: Read, **_again: Read) -> Any:
    await asyncio.get_running_loop().create_future()


async def all_ended_async(step: Read, **_again: Read) -> Any:
    return all_ended(step)


async def test_the_task_ends_with_its_last_waiter(listener: FakeListener) -> None:
    reader = LoopReader(cast("Any", lambda: listener), all_ended_async)
    for _ in range(2):
        with reader.register(source, ["a"], None) as waiter:
            reader.start()
            assert await waiter.futures["a"] == "ended"
        assert asyncio.all_tasks() == {asyncio.current_task()}
    assert listener.subscribers == 0


async def test_waiters_are_cancelled_with_the_task(listener: FakeListener) -> None:
    reader = LoopReader(cast("Any", lambda: listener), read_forever)
    with reader.register(source, ["a"], None) as waiter:
        reader.start()
        await asyncio.sleep(0)
        (task,) = asyncio.all_tasks() - {asyncio.current_task()}
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter.futures["a"]
    await asyncio.sleep(0)
    assert listener.subscribers == 0
    with reader.register(source, ["a"], None):
        reader.start()
        await asyncio.sleep(0)
        assert listener.subscribers == 1, "the next waiter has a new reader"


async def test_a_task_that_is_cancelled_before_its_first_step_leaves_no_waiter_waiting(listener: FakeListener) -> None:
    reader = LoopReader(cast("Any", lambda: listener), all_ended_async)
    with reader.register(source, ["a"], None) as waiter:
        reader.start()
        (task,) = asyncio.all_tasks() - {asyncio.current_task()}
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(waiter.futures["a"], 5)
    with reader.register(source, ["a"], None) as waiter:
        reader.start()
        assert await asyncio.wait_for(waiter.futures["a"], 5) == "ended"


@pytest.mark.skipif(not hasattr(asyncio, "eager_task_factory"), reason="since Python 3.12")
async def test_a_task_that_fails_before_its_first_pause_is_replaced(listener: FakeListener) -> None:
    """With a task factory that runs it at once."""
    listeners: list[FakeListener] = []

    def get_listener() -> FakeListener:
        if not listeners:
            listeners.append(listener)
            raise RuntimeError("can't start new thread")
        return listener

    reader = LoopReader(cast("Any", get_listener), all_ended_async)
    loop = asyncio.get_running_loop()
    loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009 - unknown to type checkers of 3.11
    try:
        with reader.register(source, ["a"], None) as waiter:
            reader.start()
            with pytest.raises(RuntimeError):
                await waiter.futures["a"]
        with reader.register(source, ["a"], None) as waiter:
            reader.start()
            assert await asyncio.wait_for(waiter.futures["a"], 5) == "ended"
    finally:
        loop.set_task_factory(None)


def test_a_loop_may_close_while_its_reader_waits(listener: FakeListener) -> None:
    """Without `asyncio.run`, which would cancel the tasks."""
    loop = asyncio.new_event_loop()

    async def begin() -> Any:
        reader = LoopReader(cast("Any", lambda: listener), read_forever)
        context = reader.register(source, ["a"], None)
        context.__enter__()
        reader.start()
        await asyncio.sleep(0.01)
        return context

    context = loop.run_until_complete(begin())
    assert listener.subscribers == 1
    loop.close()
    listener.notify("a")
    assert listener.subscribers == 0
    context.__exit__(None, None, None)


LEAVING = """
import asyncio, sys
from horsies import Horsies, TaskError, TaskResult

app = Horsies()
@app.task("add")
def add() -> TaskResult[int, TaskError]: ...

async def main():
    handle = await add.send_async()
    waits = [asyncio.create_task(handle.get_async()) for _ in range(3)]
    completed = app.as_completed_async([handle])
    waits.append(asyncio.create_task(anext(completed)))
    assert (await handle.get_async(50)).unwrap_err().error_code == "WAIT_TIMEOUT"
    try:
        await asyncio.wait_for(handle.get_async(), 0.05)
    except TimeoutError:
        print("timed out")

asyncio.run(main())
asyncio.run(main())
"""


@pytest.mark.promise("A4")
def test_a_loop_that_ends_while_coroutines_wait_ends_without_output(database: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LEAVING],
        env={**os.environ, "HORSIES_DATABASE_URL": database},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "timed out\ntimed out\n", "")
