import json
import marshal
import random
import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from horsies.executor.protocol import (
    MAX_FRAME,
    MAX_REPORTED_TEXT,
    Assignment,
    Began,
    Boot,
    Booting,
    Done,
    Fork,
    Forked,
    ForkExited,
    Interrupt,
    KeepRunning,
    LogLines,
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
    RunTasks,
    StartFailed,
    Stop,
    Unpacker,
    pack,
)
from horsies.model.attempt_log import MAX_LINE, MAX_LINES, LoggedLine
from horsies.model.status import Misfit

numbers = st.integers(0, 2**63)
# Lone surrogates included: the name of a task may contain anything.
texts = st.text(st.characters(codec=None), max_size=200)
maybe_texts = st.none() | texts
assignments = st.builds(Assignment, numbers, texts, texts, texts, numbers, st.none() | numbers, texts)
flags = st.booleans()
reals = st.floats(allow_nan=False)
sizes = st.floats(0, 1e9)
codes = st.from_regex(r"\A[A-Z][A-Z0-9_]{0,20}\Z")
storable = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=200)
lines = st.builds(
    LoggedLine, st.integers(1, 2**31 - 1), st.floats(0, 2e11), storable, storable, storable, st.none() | storable
)
pauses = st.none() | st.integers(0, 1_000_000)

orders: st.SearchStrategy[Message] = st.one_of(
    st.builds(Boot, texts, texts, numbers, st.none() | reals, st.lists(texts, max_size=3)),
    st.builds(RunTasks, st.lists(assignments, max_size=5)),
    st.builds(Recall, numbers),
    st.just(Ping()),
    st.just(Stop()),
    st.builds(Interrupt, numbers, st.sampled_from(["timeout", "cancel"])),
    st.just(KeepRunning()),
    st.just(Fork()),
)
reports: st.SearchStrategy[Message] = st.one_of(
    st.builds(Booting, texts),
    st.builds(Ready, numbers, sizes),
    st.builds(Progress, numbers, st.none() | st.floats(0, 1), maybe_texts),
    st.builds(Forked, numbers),
    st.builds(ForkExited, numbers, st.integers(-64, 255)),
    st.builds(StartFailed, texts),
    st.builds(Began, numbers),
    st.builds(
        Done,
        numbers,
        st.just("COMPLETED"),
        numbers,
        st.none(),
        storable,
        st.none(),
        flags,
        pauses,
        flags,
        st.just(Misfit.NONE),
    ),
    st.builds(
        Done,
        numbers,
        st.sampled_from(["FAILED", "CANCELLED"]),
        numbers,
        codes,
        st.none(),
        storable,
        flags,
        pauses,
        flags,
        st.sampled_from(Misfit),
    ),
    st.builds(Returned, st.lists(numbers, max_size=5, unique=True)),
    st.builds(Pong, numbers),
    st.just(LoopAlive()),
    st.builds(LogLines, numbers, st.lists(lines, max_size=3)),
)
BOTH_WAYS = [(orders, Unpacker), (reports, ReportUnpacker)]


def framed(kind: int, body: bytes) -> bytes:
    """Put a valid frame around any bytes."""
    return struct.pack("!IB", 1 + len(body), kind) + body


def read(data: bytes) -> list[Message]:
    """Read the bytes of a child as a worker does."""
    return list(ReportUnpacker().feed(data))


@pytest.mark.parametrize(("messages", "unpackers"), BOTH_WAYS, ids=["to the child", "from the child"])
@given(data=st.data(), chance=st.randoms(use_true_random=False))
def test_messages_arrive_as_they_were_sent_in_whatever_pieces(
    messages: st.SearchStrategy[Message], unpackers: type[Unpacker], data: st.DataObject, chance: random.Random
) -> None:
    sent = data.draw(st.lists(messages, max_size=8))
    stream, unpacker = pack(*sent), unpackers()
    received: list[Message] = []
    while stream:
        cut = chance.randint(1, len(stream))
        received += unpacker.feed(stream[:cut])
        stream = stream[cut:]
    assert received == sent
    assert [type(message) for message in received] == [type(message) for message in sent]
    assert not unpacker.is_mid_message


def test_a_message_arrives_byte_by_byte() -> None:
    unpacker, message = Unpacker(), RunTasks([Assignment(1, "id", "name", "queue", 1, 5, '{"a": 1}', None, None, None)])
    stream = pack(message)
    received = [found for byte in stream for found in unpacker.feed(bytes([byte]))]
    assert received == [message]


def test_an_assignment_is_created_from_the_fields_of_a_message() -> None:
    (run,) = Unpacker().feed(pack(RunTasks([Assignment(7, "id", "name", "queue", 2, None, "{}", None, "root", None)])))
    assert isinstance(run, RunTasks)
    assert run.assignments[0] == Assignment(
        assignment_no=7,
        id="id",
        task_name="name",
        queue_name="queue",
        attempt=2,
        timeout_ms=None,
        args="{}",
        root_id="root",
    )


def test_megabytes_pass() -> None:
    result = "x" * 20_000_000
    (done,) = ReportUnpacker(20_000_000).feed(pack(Done(1, "COMPLETED", 5, None, result, None)))
    assert isinstance(done, Done)
    assert done.result == result


def test_a_long_reason_why_a_child_cannot_start_is_cut() -> None:
    (failed,) = read(pack(StartFailed("why " * MAX_REPORTED_TEXT)))
    assert isinstance(failed, StartFailed)
    assert len(failed.reason) == MAX_REPORTED_TEXT


# -- what user code may have written to the socket


@pytest.mark.parametrize("length", [0, MAX_FRAME + 1, 2**32 - 1])
@pytest.mark.parametrize("unpackers", [Unpacker, ReportUnpacker])
def test_a_frame_with_an_invalid_length_is_rejected_before_it_is_read(unpackers: type[Unpacker], length: int) -> None:
    with pytest.raises(ProtocolError, match=str(length)):
        list(unpackers().feed(struct.pack("!IB", length, 0)))


def test_a_frame_longer_than_a_result_may_be_is_rejected_before_it_is_read() -> None:
    waits = ReportUnpacker(1 << 25)
    assert list(waits.feed(struct.pack("!IB", 1 << 25, 17))) == []
    for kind, length in ((17, 1 << 27), (16, 1 << 25), (24, 1 << 25)):  # an ending, a start, returned assignments
        with pytest.raises(ProtocolError, match=str(length)):
            list(ReportUnpacker(1 << 25).feed(struct.pack("!IB", length, kind)))


@pytest.mark.promise("A8")
@pytest.mark.parametrize(
    "body",
    [
        b"(\xff\xff\xff\x7f",  # a tuple of two thousand million: memory for it is allocated before it is read
        b"(\x01\x00\x00\x00" * 5_000,
        marshal.dumps((1,)),
        marshal.dumps(compile("1", "", "eval")),
    ],
)
def test_bytes_from_a_child_are_never_unmarshalled(body: bytes) -> None:
    for kind in range(256):
        with pytest.raises(ProtocolError):
            read(framed(kind, body))


INVALID_LINES: list[Any] = [
    None, 5, "x", {}, [None], [[]], [[0, 1.0, "", "", "", None]], [[True, 1.0, "", "", "", None]], [[1, -1, "", "", "", None]],
    [[1, float("nan"), "", "", "", None]], [[1, 1e300, "", "", "", None]], [[1, 1, "", "", None, None]], [[1, 1, "", "", "\0", None]],
    [[1, 1, "", "\ud800", "", None]], [[1, 1, "", "", "", 1]], [[1, 1, "", "", "x" * (MAX_LINE + 1), None]], [[1, 1, "", "", ""]],
    [[1, 1, "", "", "", None]] * (MAX_LINES + 1),
]  # fmt: skip
OF_ANOTHER_KIND: list[tuple[Message, Any]] = [
    (Progress(1, 0.5, "x"), [1, float("nan"), "x"]),
    (Progress(1, 0.5, "x"), [1, 1.5, "x"]),
    (Progress(1, 0.5, "x"), [1, "half", "x"]),
    (Progress(1, 0.5, "x"), ["1", 0.5, "x"]),
    (Progress(1, 0.5, "x"), [1, 0.5, ["x"]]),
    (Progress(1, 0.5, "x"), [1, 0.5]),
    (Ready(1, 1.0), [1, float("inf")]),
    (Ready(1, 1.0), [1, float("nan")]),
    (Ready(1, 1.0), [-1, 1.0]),
    (Booting("x"), ["x" * (MAX_REPORTED_TEXT + 1)]),
    (Booting("x"), [None]),
    (Returned([1]), [[1, 1]]),
    (Returned([1]), [[True]]),
    (Returned([1]), [[1.0]]),
    (Returned([1]), [1]),
    (Returned([1]), [[[]]]),
    *((LogLines(1, []), [1, invalid]) for invalid in INVALID_LINES),
    (Pong(1), [None]),
    (LoopAlive(), [1]),
    (LoopAlive(), {}),
    (LoopAlive(), None),
]


@pytest.mark.parametrize(("report", "fields"), OF_ANOTHER_KIND, ids=repr)
def test_fields_of_another_kind_are_refused(report: Message, fields: object) -> None:
    kind = pack(report)[4]
    with pytest.raises(ProtocolError):
        read(framed(kind, json.dumps(fields).encode()))


@pytest.mark.parametrize(
    "body", [b"", b"[", b"[" * 100_000, b"\xff\xfe", b"[1" + b"0" * 5_000 + b"]", b"nonsense, a lot"]
)
def test_what_is_no_report_is_refused(body: bytes) -> None:
    for kind in range(256):
        with pytest.raises(ProtocolError):
            read(framed(kind, body))


ENDING = struct.Struct("!QBBQqIII")
NONE = 2**32 - 1


@pytest.mark.parametrize(
    ("head", "texts"),
    [
        ((1, 0, 0, 5, -1, NONE, 3, NONE), b"\xff\xff\xff"),  # no UTF-8
        ((1, 0, 0, 5, -1, NONE, 3, NONE), "\ud800".encode("utf-8", "surrogatepass")),  # PostgreSQL takes none
        ((1, 0, 0, 5, -1, NONE, 3, NONE), b"1\x001"),  # nor that
        ((1, 0, 0, 5, -1, NONE, NONE, NONE), b""),  # completed without a result
        ((1, 0, 0, 5, -1, 1, 1, 1), b"A1{"),  # and with an error
        ((1, 1, 0, 5, -1, NONE, 1, NONE), b"1"),  # failed with a result
        ((1, 1, 0, 5, -1, 1, NONE, NONE), b"A"),
        ((1, 1, 0, 5, -1, 1, NONE, 2), b"a{}"),  # no code
        ((1, 3, 0, 5, -1, 1, NONE, 2), b"A{}"),  # no status
        ((1, 0, 0, 5, 2**60, NONE, 1, NONE), b"1"),  # again in a thousand years
        ((1, 0, 0, 5, -2, NONE, 1, NONE), b"1"),
        ((1, 0, 0, 5, -1, NONE, 2, NONE), b"1"),  # longer than it is
        ((1, 0, 0, 5, -1, NONE, 1, NONE), b"12"),
        ((1, 1, 0, 5, -1, 2**31, NONE, 2**31), b"A{}"),
    ],
    ids=repr,
)
def test_an_ending_that_the_database_would_refuse_is_refused(head: tuple[int, ...], texts: bytes) -> None:
    kind = pack(Done(1, "COMPLETED", 5, None, "1", None))[4]
    assert read(framed(kind, ENDING.pack(1, 0, 0, 5, -1, NONE, 1, NONE) + b"1"))
    with pytest.raises(ProtocolError):
        read(framed(kind, ENDING.pack(*head) + texts))
    with pytest.raises(ProtocolError):
        read(framed(kind, ENDING.pack(*head)[:-1]))


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=6,
)


@given(st.integers(0, 30), plain_values)
def test_any_value_in_a_frame_is_a_message_or_a_wire_error(kind: int, value: Any) -> None:
    with suppress(ProtocolError):
        read(framed(kind, json.dumps(value).encode()))


@given(st.binary(max_size=200))
@example(b"\x00\x00\x00\x01\x10")
@example(b"\x00\x00\x00\x01\x11")
def test_any_bytes_are_messages_or_a_wire_error(data: bytes) -> None:
    with suppress(ProtocolError):
        read(data)


@given(st.integers(0, 30), st.binary(max_size=100))
def test_any_bytes_in_a_frame_are_a_message_or_a_wire_error(kind: int, body: bytes) -> None:
    with suppress(ProtocolError):
        read(framed(kind, body))


def test_what_came_before_the_nonsense_is_still_received() -> None:
    received: list[Message] = []
    with pytest.raises(ProtocolError):
        received.extend(ReportUnpacker().feed(pack(Began(1)) + b"nonsense, a lot of it"))
    assert received == [Began(1)]
