"""Where faults are injected: the fleet, its servers and networks, and the record of every injection."""

import random
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf

from benchmarks.chaos.fleet import Fleet
from benchmarks.chaos.history import Injection
from benchmarks.chaos.hosts import Hosts
from benchmarks.chaos.pair import Pair
from horsies.embedded.server import EmbeddedServer
from tests.fixtures.proxies import Proxy


@dataclass(slots=True)
class Environment:
    """A section has a server with proxies in front of it, or a pair of servers, or hosts."""

    fleet: Fleet
    rng: random.Random
    dead_after_s: float
    admin_url: Callable[[], str]
    rest: Callable[[float], None]
    server: EmbeddedServer | None = None
    proxies: Sequence[Proxy] = ()
    pair: Pair | None = None
    hosts: Hosts | None = None
    injections: list[Injection] = field(default_factory=list[Injection])

    @contextmanager
    def inject(self, kind: str, *, workers: Iterable[str] = (), pids: Iterable[int] = ()) -> Generator[None]:
        """Record a fault before it is injected, so that the record is complete however the run ends."""
        began, place = time.time(), len(self.injections)
        self.injections.append(Injection(kind, began, inf, frozenset(workers), frozenset(pids)))
        try:
            yield
        finally:
            self.injections[place] = Injection(kind, began, time.time(), frozenset(workers), frozenset(pids))
