"""Who reads what the worker says, in a child that runs one task at a time: whoever has nothing else to do.

That is the main thread, as long as it is idle. Were another to read for it, each task would be handed over from thread to thread, which takes longer than most of what
is done for it here. But while the main thread is at its tasks it does not hear that one of them is to be stopped, or that the others are wanted back. So a second thread,
the *relief*, looks again and again whether it has read meanwhile. If not, the relief reads, and goes on until something comes when the main thread is idle again.

While the main thread reads for long there is nothing to watch: the relief rests, and is woken when something has come.
"""

import threading
from collections.abc import Callable

TICK_S = 0.01
"""The main thread is relieved when it has not read for so long, or twice that: a task that has just begun may be stopped that much later."""


class Relief:
    """`hear` waits for messages and takes them in; `changed` wakes the main thread when it waits and does not read."""

    def __init__(self, hear: Callable[[], None], changed: threading.Event) -> None:
        self._hear = hear
        self._changed = changed
        self._reading = threading.Lock()  # held by the one who reads
        self._readings = self._waits = 0  # of the main thread
        self._rests = False
        self._wake = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._watch, name="horsies-relief", daemon=True).start()

    def wait(self) -> None:
        """For the main thread, when it has nothing to do. Returns when there may be something."""
        if not self._reading.acquire(blocking=False):
            self._waits += 1
            self._changed.wait()
            return
        try:
            self._hear()
        finally:
            self._reading.release()
        self._readings += 1
        if self._rests:
            self._rests = False
            self._wake.set()

    def _watch(self) -> None:
        while True:
            readings = self._readings
            self._wake.clear()
            self._wake.wait(TICK_S)
            if self._readings != readings:
                continue
            if self._reading.acquire(blocking=False):
                self._read()
            else:
                self._rest()

    def _read(self) -> None:
        waits = self._waits
        while self._waits == waits:
            self._hear()
        self._reading.release()
        self._changed.set()  # from now on the main thread reads, also if what came was not for it

    def _rest(self) -> None:
        self._wake.clear()
        self._rests = True
        if self._reading.locked():  # else something has just come, and the main thread may not have seen that we rest
            self._wake.wait()
        self._rests = False
