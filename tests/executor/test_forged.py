"""User code that writes to the socket of its child, or breaks it: the worker and the other children are not affected."""

import struct
from pathlib import Path

import pytest

from horsies.executor.protocol import (
    Began,
    Done,
    Forked,
    ForkExited,
    LogLines,
    LoopAlive,
    Message,
    Pong,
    Progress,
    Ready,
    Returned,
    pack,
)
from horsies.model.attempt_log import LoggedLine
from tests.fixtures.pools import FakeDispatcher, open_pool
from tests.worker.test_child_recall import send_together

FORGING = "tests.apps.forging:app"
COMPLETED = Done(2, "COMPLETED", 5, None, '"forged"', None)
LINES = [LoggedLine(1, 1.0, "INFO", "shop", "forged", None)]
FAILED = Done(2, "FAILED", 5, "FORGED", None, "{}")


def framed(kind: int, body: bytes) -> bytes:
    return struct.pack("!IB", 1 + len(body), kind) + body


FORGED: dict[str, bytes] = {
    "nonsense": b"nonsense, a lot of it",
    "a gigabyte to come": struct.pack("!IB", 1 << 30, 17),
    "a second start": pack(Began(1)),
    "a start of an unknown assignment": pack(Began(99)),
    "an ending of an unknown assignment": pack(COMPLETED._replace(assignment_no=99)),
    "a success before the start": pack(COMPLETED),
    "a failure before the start": pack(FAILED),
    "the return of a running task": pack(Returned([1])),
    "the return of a pending and a running task": pack(Returned([2, 1])),
    "the return of an unknown assignment": pack(Returned([99])),
    "a second return": pack(Returned([3]), Returned([3])),
    "a second Ready": pack(Ready(1, 1.0)),
    "Forked, of the fork server": pack(Forked(1)),
    "ForkExited, of the fork server": pack(ForkExited(1, 0)),
    "a message for a child": framed(6, b"(\x00\x00\x00\x00"),
    "a tuple of two thousand million": framed(17, b"(\xff\xff\xff\x7f"),
    "a log line with a zero byte": framed(pack(LogLines(1, LINES))[4], b'[1, [[1, 1, "", "", "\\u0000", null]]]'),
    "progress out of range": framed(pack(Progress(1, None, None))[4], b"[1, 1e999, null]"),
}


async def forge(dispatcher: FakeDispatcher, frames: bytes, folder: Path) -> tuple[str, list[str], str]:
    """Let one child forge a message while two tasks wait behind it; a task in another child waits at a gate."""
    forger, *behind = send_together(
        dispatcher,
        ("forge", {"frames": frames.hex(), "until": str(folder / "never")}),
        ("whoami", {}),
        ("whoami", {}),
    )
    await dispatcher.beginning(forger)
    other = dispatcher.send("gate", until=str(folder / "go"))
    await dispatcher.beginning(other)
    return forger, behind, other


@pytest.mark.promise("A8")
@pytest.mark.parametrize("frames", FORGED.values(), ids=FORGED.keys())
async def test_a_child_that_sends_an_invalid_message_is_killed_and_no_other_task_is_affected(
    frames: bytes, tmp_path: Path
) -> None:
    async with open_pool(FORGING, processes=2, prefetch=3) as dispatcher:
        forger, behind, other = await forge(dispatcher, frames, tmp_path)
        error = await dispatcher.crash(forger)
        assert error.error_code == "WORKER_CRASHED"
        assert "sent invalid data" in error.message
        (tmp_path / "go").touch()
        for task_id in (other, *behind):
            assert (await dispatcher.ending(task_id)).status == "COMPLETED"  # elsewhere, and once
        assert {*dispatcher.crashed} == {forger}


@pytest.mark.parametrize(
    "message",
    [
        Pong(7),
        Pong(99),
        LoopAlive(),
        Progress(99, 0.5, "x"),
        Progress(1, 0.5, "x"),
        LogLines(99, LINES),
        LogLines(1, LINES),
    ],
)
async def test_a_valid_message_out_of_place_changes_nothing(message: Message, tmp_path: Path) -> None:
    async with open_pool(FORGING, processes=2, prefetch=3) as dispatcher:
        forger, _behind, other = await forge(dispatcher, pack(message), tmp_path)
        (tmp_path / "never").touch()
        (tmp_path / "go").touch()
        for task_id in (forger, other):
            assert (await dispatcher.ending(task_id)).status == "COMPLETED"


@pytest.mark.parametrize(
    "how",
    [
        "shut down",
        "shut down reading",
        "shut down writing",
        "close",
        "put a file in its place",
        "put a pipe in its place",
    ],
)
@pytest.mark.parametrize("concurrency", [1, 3])
async def test_a_child_that_lost_its_socket_is_replaced(tmp_path: Path, how: str, concurrency: int) -> None:
    async with open_pool(FORGING, processes=1, concurrency=concurrency) as dispatcher:
        broken = dispatcher.send("sabotage", how=how)
        child, _assignment_no = await dispatcher.beginning(broken)
        # A child that cannot read any more may still have reported the ending.
        await dispatcher.until(lambda: broken in dispatcher.ended or broken in dispatcher.crashed)
        await dispatcher.until(lambda: child not in dispatcher.children)
        assert await dispatcher.value("whoami") != child.pid


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_a_socket_that_was_made_non_blocking_still_works(concurrency: int) -> None:
    async with open_pool(FORGING, concurrency=concurrency) as dispatcher:
        assert await dispatcher.value("sabotage", how="set non-blocking") == "done"
        (child,) = dispatcher.children
        assert [await dispatcher.value("whoami") for _ in range(3)] == [child.pid] * 3
