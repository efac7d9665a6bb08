"""Frames over a socketpair to another process and back. Run as a module, it is that other process."""

import socket
import subprocess
import sys
import time

from benchmarks.measures import Measure

MESSAGE = b"x" * 100  # about what one assignment weighs


def socketpair_round_trips(prefetch: int) -> dict[Measure, float]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-m", "benchmarks.raw.sockets", str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()
        try:
            return {
                Measure.SOCKET_1: _rate(ours, prefetch, messages=1),
                Measure.SOCKET_100: _rate(ours, prefetch, messages=100),
            }
        finally:
            ours.close()
            process.wait()


def _rate(link: socket.socket, prefetch: int, *, messages: int) -> float:
    frame = _frame(MESSAGE * messages)
    _there_and_back(link, frame)  # the other side has started
    began = time.perf_counter()
    for _ in range(prefetch):
        _there_and_back(link, frame)
    return prefetch * messages / (time.perf_counter() - began)


def _there_and_back(link: socket.socket, frame: bytes) -> None:
    link.sendall(frame)
    _receive(link)


def _frame(body: bytes) -> bytes:
    return len(body).to_bytes(4) + body


def _receive(link: socket.socket) -> bytes:
    """One frame; nothing at the end of the stream."""
    data = link.recv(1 << 18)
    while data and len(data) < 4 + int.from_bytes(data[:4]):
        data += link.recv(1 << 18)
    return data


def _echo(link: socket.socket) -> None:
    while data := _receive(link):
        link.sendall(data)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as other_end:
        _echo(other_end)
