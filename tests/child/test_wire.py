import marshal
import random
import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.child.wire import (
    MAX_FRAME,
    Assignment,
    Began,
    Boot,
    Booting,
    Done,
    Fork,
    Forked,
    Interrupt,
    Message,
    Progress,
    Ready,
    Reaped,
    Recall,
    Refused,
    Returned,
    Run,
    Stay,
    Stop,
    Unpacker,
    WireError,
    pack,
)

numbers = st.integers(0, 2**63)
# Half of a surrogate pair included: a task's name may hold anything.
texts = st.text(st.characters(codec=None), max_size=200)
maybe_texts = st.none() | texts
assignments = st.tuples(numbers, texts, texts, texts, numbers, st.none() | numbers, texts)
flags = st.booleans()
reals = st.floats(allow_nan=False)

messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(Boot, texts, texts, numbers, st.none() | reals, st.lists(texts, max_size=3)),
    st.builds(Run, st.lists(assignments, max_size=5)),
    st.builds(Recall, numbers),
    st.just(Stop()),
    st.builds(Interrupt, numbers, st.sampled_from(["timeout", "cancel"])),
    st.just(Stay()),
    st.builds(Booting, texts),
    st.builds(Ready, numbers, reals),
    st.builds(Progress, numbers, st.none() | reals, maybe_texts),
    st.just(Fork()),
    st.builds(Forked, numbers),
    st.builds(Reaped, numbers, st.integers(-64, 255)),
    st.builds(Refused, texts),
    st.builds(Began, numbers),
    st.builds(Done, numbers, texts, numbers, maybe_texts, maybe_texts, maybe_texts, flags, st.none() | numbers, flags),
    st.builds(Returned, st.lists(numbers, max_size=5)),
)


def framed(value: Any) -> bytes:
    """A frame in order around any value."""
    body = marshal.dumps(value)
    return struct.pack("!I", len(body)) + body


def read(data: bytes) -> list[Message]:
    return list(Unpacker().feed(data))


@given(st.lists(messages, max_size=8), st.randoms(use_true_random=False))
def test_messages_arrive_as_they_were_sent_in_whatever_pieces(sent: list[Message], chance: random.Random) -> None:
    stream, unpacker = pack(*sent), Unpacker()
    heard: list[Message] = []
    while stream:
        cut = chance.randint(1, len(stream))
        heard += unpacker.feed(stream[:cut])
        stream = stream[cut:]
    assert heard == sent
    assert [type(message) for message in heard] == [type(message) for message in sent]


def test_a_message_arrives_byte_by_byte() -> None:
    unpacker, message = Unpacker(), Run([(1, "id", "name", "queue", 1, 5, '{"a": 1}', None, None, None)])
    stream = pack(message)
    heard = [found for byte in stream for found in unpacker.feed(bytes([byte]))]
    assert heard == [message]


def test_an_assignment_is_made_of_a_frame_s_fields() -> None:
    (run,) = read(pack(Run([(7, "id", "name", "queue", 2, None, "{}", None, "root", None)])))
    assert isinstance(run, Run)
    assert Assignment(*run.assignments[0]) == Assignment(
        ticket=7,
        task_id="id",
        task_name="name",
        queue_name="queue",
        attempt=2,
        timeout_ms=None,
        args="{}",
        root_id="root",
    )


def test_megabytes_pass() -> None:
    result = "x" * 20_000_000
    (done,) = read(pack(Done(1, "COMPLETED", 5, None, result, None)))
    assert isinstance(done, Done)
    assert done.result == result


@pytest.mark.parametrize("length", [MAX_FRAME + 1, 2**32 - 1])
def test_a_frame_too_long_to_be_ours_is_refused_before_it_is_read(length: int) -> None:
    with pytest.raises(WireError, match=str(length)):
        read(struct.pack("!I", length))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00",
        b"plain text",
        marshal.dumps((0, "app", "INFO"))[:-3],  # cut short
    ],
)
def test_what_cannot_be_read_is_refused(body: bytes) -> None:
    with pytest.raises(WireError):
        read(struct.pack("!I", len(body)) + body)


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        "text",
        (),
        [],
        {},
        {0: 1},
        ("Began", 1),
        (99, 1),
        (-1, [1]),
        (7,),
        (6, 1, 2),
        (float("inf"), 1),
        (float("nan"), 1),
        (None, 1),
        ([], 1),
        frozenset({1}),
    ],
    ids=repr,
)
def test_what_is_no_message_is_refused(value: object) -> None:
    with pytest.raises(WireError):
        read(framed(value))


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=6,
)


@given(plain_values)
def test_any_value_in_a_frame_is_a_message_or_a_wire_error(value: object) -> None:
    with suppress(WireError):
        read(framed(value))


def test_what_came_before_the_nonsense_is_still_heard() -> None:
    heard: list[Message] = []
    with pytest.raises(WireError):
        heard.extend(Unpacker().feed(pack(Began(1)) + b"nonsense, a lot of it"))
    assert heard == [Began(1)]
