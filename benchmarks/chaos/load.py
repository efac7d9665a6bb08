"""The load: producers in threads of this process, which record the outcome of every send, and waiters, which record the results."""

import asyncio
import itertools
import json
import random
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import psycopg

from benchmarks.chaos.history import Cancel, Got, KeyedSend, Outcome, Sent
from benchmarks.chaos.shop import Shop
from horsies import HorsiesError, RetrievalCode, Task, TaskHandle

KEYS: Final = 8
KEYED_S: Final = 0.02
MANY: Final = 20
SEVERAL: Final = 8
WAIT_MS: Final = 20_000
UNKNOWN: Final = "UNKNOWN"

Handle = TaskHandle[Any]


class Load:
    """Runs between `start` and `stop`. What it has recorded may be read after that."""

    def __init__(self, shops: Sequence[Shop], direct_url: str, *, seed: int, pause_s: float, long_s: float) -> None:
        self._shops = shops
        self._url = direct_url
        self._seed = seed
        self._pause_s = pause_s
        self.long_s = long_s
        self._numbers = itertools.count()
        self._over = threading.Event()
        self._recent: deque[Handle] = deque(maxlen=200)
        self._threads: list[threading.Thread] = []
        self.sent: list[Sent] = []
        self.keyed: list[KeyedSend] = []
        self.cancels: list[Cancel] = []
        self.got: list[Got] = []
        self.flows: list[str] = []
        self.errors: list[str] = []

    def start(self) -> None:
        for number, shop in enumerate(self._shops):
            rng = random.Random(f"{self._seed} {number}")  # noqa: S311 - a run is to be repeated
            self._begin(f"producer {number}", lambda shop=shop, rng=rng: Producer(self, shop, rng).produce())
            self._begin(f"asyncio producer {number}", lambda shop=shop, rng=rng: asyncio.run(self._nap(shop, rng)))
        self._begin("waiter", lambda: self._wait(random.Random(self._seed)))  # noqa: S311 - the same

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def close(self) -> None:
        self.stop()
        for shop in self._shops:
            shop.app.close()

    # -- for producers

    @property
    def is_running(self) -> bool:
        return not self._over.wait(self._pause_s)

    @property
    def direct_url(self) -> str:
        return self._url

    def number(self) -> int:
        return next(self._numbers)

    def note(self, n: int, at: float, send: Callable[[], Handle], delay_s: float = 0.0) -> Handle | None:
        """Send, and record the outcome."""
        try:
            handle = send()
        except HorsiesError:
            self.sent.append(Sent(n, Outcome.UNKNOWN, at, delay_s=delay_s))
            return None
        self.sent.append(Sent(n, Outcome.COMMITTED, at, handle.task_id, delay_s))
        self._recent.append(handle)
        return handle

    # -- the threads

    def _begin(self, name: str, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - reported at the end: a run without its producers proves nothing
                self.errors.append(f"{name}: {type(error).__name__}: {error}")

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    async def _nap(self, shop: Shop, rng: random.Random) -> None:
        while not self._over.is_set():
            await asyncio.sleep(self._pause_s * 2)
            n, at, seconds = self.number(), time.time(), rng.uniform(0, 0.05)
            await self._note_async(n, at, shop.nap.send_async(n, seconds))

    async def _note_async(self, n: int, at: float, sending: Awaitable[Handle]) -> None:
        try:
            handle = await sending
        except HorsiesError:
            self.sent.append(Sent(n, Outcome.UNKNOWN, at))
        else:
            self.sent.append(Sent(n, Outcome.COMMITTED, at, handle.task_id))

    def _wait(self, rng: random.Random) -> None:
        while not self._over.wait(0.05):
            if not self._recent:
                continue
            handle = rng.choice(self._recent)
            try:
                result = handle.get(timeout_ms=WAIT_MS if not self._over.is_set() else 0)
            except HorsiesError:
                continue
            outcome = f"ok {json.dumps(result.ok_value)}" if result.is_ok() else f"err {result.err_value.error_code}"
            if outcome != f"err {RetrievalCode.WAIT_TIMEOUT}":
                self.got.append(Got(handle.task_id, outcome))


class Producer:
    """One blocking producer, which repeats random actions of an application."""

    def __init__(self, load: Load, shop: Shop, rng: random.Random) -> None:
        self._load = load
        self._shop = shop
        self._rng = rng
        self._actions: dict[Callable[[], None], int] = {
            self._steady: 30,
            self._once: 10,
            self._long: 2,
            self._flaky: 8,
            self._capped: 6,
            self._keyed: 10,
            self._later: 8,
            self._expiring: 5,
            self._many: 3,
            self._cancelled: 5,
            self._poison: 1,
            self._flow: 5,
            self._rolled_back: 3,
        }

    def produce(self) -> None:
        actions, weights = list(self._actions), list(self._actions.values())
        while self._load.is_running:
            self._rng.choices(actions, weights)[0]()

    def _steady(self) -> None:
        n = self._load.number()
        seconds = self._rng.choice([0.0, 0.01, 0.1])
        self._load.note(n, time.time(), lambda: self._shop.steady.send(n, seconds))

    def _once(self) -> None:
        n = self._load.number()
        self._load.note(n, time.time(), lambda: self._shop.once.send(n, 0.02))

    def _long(self) -> None:
        """Send a task that may still run when its worker is declared dead."""
        n, seconds = self._load.number(), self._rng.uniform(0.4, 2.0) * self._load.long_s
        self._load.note(n, time.time(), lambda: self._shop.steady.send(n, seconds))

    def _flaky(self) -> None:
        n, failures = self._load.number(), self._rng.randint(1, 3)
        self._load.note(n, time.time(), lambda: self._shop.flaky.send(n, failures))

    def _capped(self) -> None:
        """Send several at once, so that all workers claim them at the same time."""
        seconds = self._rng.uniform(0.01, 0.05)
        self._batch(self._shop.capped, SEVERAL, seconds)

    def _keyed(self) -> None:
        key = f"key-{self._rng.randrange(KEYS)}"
        try:
            handle = self._shop.keyed.with_options(key=key).send(key, KEYED_S)
        except HorsiesError:
            return
        self._load.keyed.append(KeyedSend(key, handle.task_id))

    def _later(self) -> None:
        n, delay_s = self._load.number(), self._rng.uniform(0.1, 2.0)
        self._load.note(n, time.time(), lambda: self._shop.steady.schedule(delay_s, n, 0.0), delay_s)

    def _expiring(self) -> None:
        n, at = self._load.number(), datetime.now(UTC)
        sender = self._shop.steady.with_options(good_until=at + timedelta(seconds=self._rng.uniform(0.005, 2)))
        self._load.note(n, at.timestamp(), lambda: sender.send(n, 0.0))

    def _many(self) -> None:
        self._batch(self._shop.once, MANY, 0.0)

    def _batch(self, task: Task[[int, float], Any], size: int, seconds: float) -> None:
        numbers, at = [self._load.number() for _ in range(size)], time.time()
        try:
            handles = task.send_many([task.call(n, seconds) for n in numbers])
        except HorsiesError:
            self._load.sent += [Sent(n, Outcome.UNKNOWN, at) for n in numbers]
        else:
            self._load.sent += [
                Sent(n, Outcome.COMMITTED, at, handle.task_id) for n, handle in zip(numbers, handles, strict=True)
            ]

    def _cancelled(self) -> None:
        n, seconds = self._load.number(), self._rng.choice([0.05, 1.0])
        handle = self._load.note(n, time.time(), lambda: self._shop.steady.send(n, seconds))
        if handle is None:
            return
        time.sleep(self._rng.choice([0.0, 0.02, 0.2]))
        try:
            outcome = handle.cancel().name
        except HorsiesError:
            outcome = UNKNOWN
        self._load.cancels.append(Cancel(handle.task_id, outcome, time.time()))

    def _poison(self) -> None:
        n = self._load.number()
        self._load.note(n, time.time(), lambda: self._shop.poison.send(n))

    def _flow(self) -> None:
        try:
            handle = self._shop.flows(self._load.number()).start()
        except HorsiesError:
            return
        self._load.flows.append(handle.workflow_id)

    def _rolled_back(self) -> None:
        n, at = self._load.number(), time.time()
        try:
            with psycopg.connect(self._load.direct_url, connect_timeout=5) as connection:
                self._shop.steady.with_options(connection=connection).send(n, 0.0)
                connection.rollback()
        except (psycopg.Error, HorsiesError):
            pass  # not committed either
        self._load.sent.append(Sent(n, Outcome.ROLLED_BACK, at))
