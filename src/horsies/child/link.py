"""The child's end of the socket to its worker, by its descriptor alone: the module `socket` takes a twentieth of a child's start to load."""

import os

RECV_BYTES = 1 << 16
"""A buffer of this size is made for each read. From 128 KiB on the C library maps and unmaps it, which takes longer than to read."""


class Link:
    """Bytes in both directions; many threads may send, one whole message at a time, if they take turns.

    Nobody closes it: somebody may read to the last, and the process takes it along when it ends.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def receive(self) -> bytes:
        """At least one byte; none when the worker has closed its end."""
        return os.read(self._fd, RECV_BYTES)

    def send(self, data: bytes) -> None:
        """All of it."""
        sent = os.write(self._fd, data)
        while sent < len(data):
            data = data[sent:]
            sent = os.write(self._fd, data)
