"""Do the children live? Asked at every heartbeat, over the socket; it is the interpreter that answers, not the task.

Silence is reported. It is no proof of death: a call into C that holds the GIL is silent and healthy. So killing for it is opt-in.
"""

import logging
import time
from collections.abc import Iterable

from horsies.model.codes import OperationalErrorCode
from horsies.worker.member import Member

REPORT_AFTER_S = 30.0

log = logging.getLogger("horsies.worker")


class Liveness:
    def __init__(self, frozen_after_ms: int | None) -> None:
        self._frozen_after_s = None if frozen_after_ms is None else frozen_after_ms / 1000
        self._reported: set[int] = set()

    def look(self, roster: Iterable[Member]) -> None:
        now = time.monotonic()
        ready = [member for member in roster if member.ready.is_set()]
        self._reported &= {member.pid for member in ready}
        for member in ready:
            silent_s = member.ping(now)
            if self._frozen_after_s is not None and silent_s > self._frozen_after_s:
                self._kill(member, silent_s)
            elif silent_s > REPORT_AFTER_S and member.pid not in self._reported:
                self._reported.add(member.pid)
                log.warning("child %d has given no sign of life for %.0f s", member.pid, silent_s)

    def _kill(self, member: Member, silent_s: float) -> None:
        log.error("child %d has given no sign of life for %.0f s and is killed", member.pid, silent_s)
        for ticket, _ in member.tickets.running():
            words = f"its child process gave no sign of life for {silent_s:.0f} s and was killed"
            member.condemn(ticket, OperationalErrorCode.WORKER_CRASHED, words)
        member.kill()
