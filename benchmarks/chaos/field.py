"""Where faults are done: the fleet, what is around it, and the record of every blow."""

import random
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf

from benchmarks.chaos.fleet import Fleet
from benchmarks.chaos.history import Blow
from benchmarks.chaos.hosts import Hosts
from benchmarks.chaos.pair import Pair
from horsies.embedded.server import EmbeddedServer
from tests.fixtures.proxies import Proxy


@dataclass(slots=True)
class Field:
    """A section has a server with lines to it, or a pair of servers, or hosts."""

    fleet: Fleet
    rng: random.Random
    dead_after_s: float
    admin_url: Callable[[], str]
    rest: Callable[[float], None]
    server: EmbeddedServer | None = None
    lines: Sequence[Proxy] = ()
    pair: Pair | None = None
    hosts: Hosts | None = None
    blows: list[Blow] = field(default_factory=list[Blow])

    @contextmanager
    def blow(self, kind: str, *, workers: Iterable[str] = (), pids: Iterable[int] = ()) -> Generator[None]:
        """Written down before it falls, so that it is known however the run ends."""
        began, place = time.time(), len(self.blows)
        self.blows.append(Blow(kind, began, inf, frozenset(workers), frozenset(pids)))
        try:
            yield
        finally:
            self.blows[place] = Blow(kind, began, time.time(), frozenset(workers), frozenset(pids))
