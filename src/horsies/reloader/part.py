"""A command that runs as a child process until it is told to stop, and is started again when it ends by itself."""

import asyncio
import logging
import os
import signal
import time
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from horsies.worker.process import words

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
STEADY_S = 30.0  # whatever has run for so long gets a short pause again
LAST_WORDS_S = 1.0  # a process that it has left behind may hold its output open for ever
ASKS = 3  # a worker is asked, hurried and told to kill; then it is killed itself
READ_BYTES = 1 << 16

log = logging.getLogger("horsies.dev")


class Part:
    """In a process group of its own, so that Ctrl-C reaches only who started it.

    `show` gets its output line by line; without it, the output is ours.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        show: Callable[[str], None] | None,
        pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        self.name = name
        self._command = command
        self._env = env
        self._show = show
        self._first_pause_s = pause_s
        self._process: Process | None = None
        self._stopping = asyncio.Event()
        self._asks = 0

    def ask(self) -> None:
        """To stop; once more to hurry."""
        self._stopping.set()
        if self._process:
            self._asks += 1
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM if self._asks <= ASKS else signal.SIGKILL)

    async def run(self) -> None:
        pause_s = self._first_pause_s
        while not self._stopping.is_set():
            began = time.monotonic()
            code = await self._run_once()
            if self._stopping.is_set():
                return
            if time.monotonic() - began > STEADY_S:
                pause_s = self._first_pause_s
            log.warning("the %s %s by itself; starting it again in %g s", self.name, words(code), pause_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _run_once(self) -> int:
        if self._show is None:
            return await self._wait_for(await self._start(None))
        ours, theirs = os.pipe()
        with os.fdopen(ours, "rb", 0) as stream:
            try:
                process = await self._start(theirs)
            finally:
                os.close(theirs)
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(_read(stream, self._show))
                code = await self._wait_for(process)
                await asyncio.wait([reading], timeout=LAST_WORDS_S)
                reading.cancel()
        return code

    async def _start(self, output: int | None) -> Process:
        """On the main thread: the kernel ties its life to the thread that started it."""
        return await asyncio.create_subprocess_exec(
            *self._command,
            stdin=DEVNULL,
            stdout=output,
            stderr=None if output is None else STDOUT,
            process_group=0,
            env={**os.environ, **self._env},
        )

    async def _wait_for(self, process: Process) -> int:
        self._process = process
        if self._stopping.is_set():
            self.ask()  # while it was being started
        try:
            return await process.wait()
        except BaseException:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise
        finally:
            self._process = None


async def _read(stream: object, show: Callable[[str], None]) -> None:
    """Whole lines, however long."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), stream
    )
    try:
        rest = b""
        while data := await reader.read(READ_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                show(line.decode(errors="replace"))
        if rest:
            show(rest.decode(errors="replace"))
    finally:
        transport.close()
