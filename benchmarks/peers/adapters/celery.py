"""Celery on Redis with results in Redis. `best` prefetches more and skips what only clusters need."""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportArgumentType=false
# The package is in an environment of its own.

import sys
import time
from typing import Any

import celery
import redis

from benchmarks.peers.adapters.body import SLEEP_S, note_start, redis_url, settings
from benchmarks.peers.adapters.protocol import Adapter, serve

BEST = settings() == "best"
TIMEOUT_S = 120

app = celery.Celery("benchmarks.peers.adapters.celery", broker=redis_url(), backend=redis_url())
if BEST:
    app.conf.worker_prefetch_multiplier = 64


@app.task(name="plain")
def plain(n: int) -> int:
    return note_start(n)


@app.task(name="sleep")
def sleep(n: int) -> int:
    note_start(n)
    time.sleep(SLEEP_S)
    return n


@app.task(name="join")
def join(parts: list[int]) -> int:
    return note_start(len(parts))


class CeleryAdapter(Adapter):
    has_workflows = True
    portion = 500

    async def open(self) -> None:
        self.redis = redis.Redis.from_url(redis_url())

    def workers(self) -> list[list[str]]:
        command = [sys.executable, "-m", "celery", "-A", "benchmarks.peers.adapters.celery:app", "worker"]
        command += ["--concurrency", "2", "--loglevel", "WARNING"]
        return [[*command, "--without-gossip", "--without-mingle", "--without-heartbeat"] if BEST else command]

    async def bulk(self, kind: str, numbers: range) -> None:
        task = {"plain": plain, "sleep": sleep}[kind]
        with app.producer_pool.acquire(block=True) as producer, producer.batch():
            for number in numbers:
                task.apply_async((number,), producer=producer)

    async def send(self, number: int) -> Any:
        return plain.delay(number)

    async def wait(self, sent: Any) -> None:
        sent.get(timeout=TIMEOUT_S)

    async def done(self) -> int:
        """Results are keys that expire, as is one of the broker's own, and Redis knows how many of those there are."""
        with self.redis.pipeline() as both:
            keyspace, mutex = both.info("keyspace").exists("unacked_mutex").execute()
        return keyspace.get("db0", {}).get("expires", 0) - mutex

    async def start_fan(self, width: int) -> Any:
        return celery.chord([plain.s(number) for number in range(width)])(join.s())

    async def start_chain(self, steps: int) -> Any:
        return celery.chain(plain.s(0), *(plain.s() for _ in range(steps - 1))).apply_async()


if __name__ == "__main__":
    serve(CeleryAdapter())
