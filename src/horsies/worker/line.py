"""The parent's end of a child's socket: whole messages in, frames out, and the event loop never waits for either."""

import asyncio
import logging
import socket
from collections.abc import Callable

from horsies.child.link import RECV_BYTES
from horsies.child.wire import Message, ReportUnpacker, WireError, pack
from horsies.model.sizes import DEFAULT_MAX_BYTES

log = logging.getLogger("horsies.worker")


class Line:
    """`hear` takes each message and raises WireError for one that is out of order; `settled` follows every batch of them.

    `drained`: all that had to wait has been written. `lost`: the other end has closed its side (None), or has written what no child writes (what
    is wrong with it).
    """

    def __init__(
        self,
        ours: socket.socket,
        *,
        hear: Callable[[Message], None],
        settled: Callable[[], None],
        lost: Callable[[str | None], None],
        drained: Callable[[], None],
        max_payload: int = DEFAULT_MAX_BYTES,
    ) -> None:
        ours.settimeout(0)
        self._socket = ours
        self._hear = hear
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
    def is_mid_frame(self) -> bool:
        """A message has arrived in part."""
        return self._unpacker.is_mid_frame

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
                self._hear(message)
        except OSError:
            return False
        except WireError as error:
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
