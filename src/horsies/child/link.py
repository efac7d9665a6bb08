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
        """At least one byte; none when the worker has closed its end, or is gone."""
        while True:
            try:
                return os.read(self._fd, RECV_BYTES)
            except BlockingIOError:
                self._wait_again()
            except ConnectionError:
                return b""

    def send(self, data: bytes) -> None:
        """All of it. To a worker that is gone there is nothing to say: the process ends, whichever thread found out, and without a word."""
        while True:
            try:
                sent = os.write(self._fd, data)
            except BlockingIOError:
                self._wait_again()
            except ConnectionError:
                os._exit(0)
            else:
                if sent == len(data):
                    return
                data = data[sent:]

    def close_in_copy(self) -> None:
        """In a copy of this process that a task has forked: it has nothing to say, and must not hear what is said to the original."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _wait_again(self) -> None:
        """User code has made every descriptor that it found non-blocking."""
        os.set_blocking(self._fd, True)
