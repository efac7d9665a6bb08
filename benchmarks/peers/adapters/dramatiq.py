"""Dramatiq on Redis with results in Redis. `default` is two processes of one thread each, `best` has eight threads in each."""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportArgumentType=false
# The package is in an environment of its own.

import sys
import time
from typing import Any

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware.asyncio import AsyncIO
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from benchmarks.peers.adapters.body import SLEEP_S, note_start, redis_url, settings
from benchmarks.peers.adapters.protocol import Adapter, serve

BEST = settings() == "best"
TIMEOUT_MS = 120_000

broker = RedisBroker(url=redis_url())
broker.add_middleware(Results(backend=RedisBackend(url=redis_url())))
broker.add_middleware(AsyncIO())
dramatiq.set_broker(broker)


@dramatiq.actor(actor_name="plain", store_results=True)
def plain(n: int) -> int:
    return note_start(n)


@dramatiq.actor(actor_name="sleep", store_results=True)
def sleep(n: int) -> int:
    note_start(n)
    time.sleep(SLEEP_S)
    return n


@dramatiq.actor(actor_name="async", store_results=True)
async def coroutine(n: int) -> int:
    return note_start(n)


class Dramatiq(Adapter):
    two_slots = not BEST
    has_asyncio = True
    portion = 100

    async def open(self) -> None:
        self.redis = redis.Redis.from_url(redis_url())

    def workers(self) -> list[list[str]]:
        command = [sys.executable, "-m", "dramatiq", "benchmarks.peers.adapters.dramatiq"]
        return [[*command, "--processes", "2", "--threads", "8" if BEST else "1"]]

    async def bulk(self, kind: str, numbers: range) -> None:
        task = {"plain": plain, "sleep": sleep, "async": coroutine}[kind]
        for number in numbers:
            task.send(number)

    async def send(self, number: int) -> Any:
        return plain.send(number)

    async def wait(self, sent: Any) -> None:
        sent.get_result(block=True, timeout=TIMEOUT_MS)

    async def done(self) -> int:
        """Results are keys that expire, unlike the broker's own, and Redis knows how many of those there are."""
        return self.redis.info("keyspace").get("db0", {}).get("expires", 0)


if __name__ == "__main__":
    serve(Dramatiq())
