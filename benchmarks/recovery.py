"""`python -m benchmarks.recovery`: how soon work goes on after a fault.

Each part uses a PostgreSQL of its own, a real worker with default settings, and producers in this process:

- *outages*: the server is stopped, or the network is cut by a proxy, for 30 s. From the moment at which a plain connection is served again: when
  the worker starts a task that is sent then, and when a blocking and an asyncio producer have sent their first.
- *killed connections*: a steady stream of tasks, once undisturbed and once while one connection of the worker after the other is ended by the server.
- *full server*: the worker has one connection for its batches and gets no other. How long 300 tasks take, beside an unlimited server.
- *killed worker*: SIGKILL to the leader, to another worker, and to the only one, which is restarted immediately. When it is noticed.

Exit code 1 when a task was lost or a part did not come to its end, never for being slow.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import psycopg
from rich.console import Console

from benchmarks.bars import Bar
from benchmarks.measures import percentile
from benchmarks.place import SETTINGS, Place
from benchmarks.report import WIDTH, about_machine, bars_table
from benchmarks.tasks import make_app
from benchmarks.terminal import INTERRUPTED, end_like_ctrl_c, show_progress
from benchmarks.worker import NO_RECYCLING, Worker, running_worker
from horsies import Horsies
from horsies.db.broker import PostgresBroker
from horsies.embedded.server import EmbeddedServer
from horsies.model.config import PostgresConfig
from horsies.model.errors import HorsiesError
from tests.fixtures.proxies import Proxy
from tests.fixtures.scratch_server import scratch_server

OUTAGE_S = 30.0
PATIENCE_S = 90.0
BACK_S = 2.0
STREAM_S, STREAM_EVERY_S, KILL_EVERY_S = 10.0, 0.02, 0.4
KILLED_EXTRA_MS = 100.0
MANY_TASKS = 300
FULL_TIMES = 5.0
NOTICED_S = 6.0
ROLE = "bench_few"

T = TypeVar("T")


class NotInTime(Exception):  # noqa: N818 - named after what happened
    """A part did not come to its end."""


@dataclass(frozen=True, slots=True)
class Number:
    """`limit` None: for comparison only."""

    part: str
    what: str
    value: float
    unit: str
    limit: float | None = None


def main() -> int:
    end_like_ctrl_c()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovery", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON instead of a table")
    parser.add_argument("--outage", type=float, default=OUTAGE_S, metavar="S", help="length of an outage (default: 30)")
    parser.add_argument("--only", choices=[*PARTS], action="append", help="run this part only; may be repeated")
    options = parser.parse_args()
    numbers: list[Number] = []
    problems: list[str] = []
    try:
        for name, part in PARTS.items():
            if options.only and name not in options.only:
                continue
            show_progress(name)
            try:
                for number in part(options.outage):
                    show_progress(f"  {number.what}: {number.value:.3f} {number.unit}")
                    numbers.append(number)
            except NotInTime as problem:
                problems.append(f"{name}: {problem}")
                show_progress(f"  WRONG: {problem}")
    except KeyboardInterrupt:
        show_progress("interrupted; the workers and the servers are stopped")
        return INTERRUPTED
    _print(numbers, problems, as_json=options.json)
    return 1 if problems else 0


def _print(numbers: Sequence[Number], problems: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        report = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": about_machine(),
            "numbers": [asdict(number) for number in numbers],
            "problems": problems,
        }
        print(json.dumps(report, indent=2))
        return
    bars = [
        Bar(
            f"{number.part}: {number.what}",
            number.value,
            number.value if number.limit is None else number.limit,
            "<=",
            number.unit,
            judged=number.limit is not None,
        )
        for number in numbers
    ]
    Console(width=None if sys.stdout.isatty() else WIDTH).print(bars_table(bars))
    for problem in problems:
        print(f"WRONG: {problem}")


# -- what all parts need


@contextmanager
def _open() -> Generator[tuple[EmbeddedServer, Place]]:
    with scratch_server(settings=SETTINGS) as server, tempfile.TemporaryDirectory(prefix="horsies-bench-") as folder:
        PostgresBroker(PostgresConfig(database_url=server.url())).migrate()
        with psycopg.connect(server.url(), autocommit=True) as admin:
            yield server, Place(server.url(), admin, Path(folder))


@contextmanager
def _producing(url: str) -> Generator[Horsies]:
    app, _ = make_app(url, 0)
    try:
        yield app
    finally:
        app.close()


def _wait(predicate: Callable[[], T | None], what: str, timeout_s: float = PATIENCE_S) -> T:
    deadline = time.monotonic() + timeout_s
    while not (value := predicate()):
        if time.monotonic() > deadline:
            raise NotInTime(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.005)
    return value


def _started(worker: Worker, number: int) -> float | None:
    """When, on the monotonic clock."""
    worker.insist()
    return next((moment for found, moment in worker.starts() if found == number), None)


def _serve_one(app: Horsies, worker: Worker, number: int) -> None:
    app.tasks["note_start"].send(number)
    _wait(lambda: _started(worker, number), "the worker serves")


# -- outages


def _server_outage(outage_s: float) -> Iterator[Number]:
    with _open() as (server, place):

        def stop() -> None:
            server.stop()

        yield from _outage("server stopped", place, place.url, outage_s, stop, server.start)


def _network_outage(outage_s: float) -> Iterator[Number]:
    with _open() as (_, place):
        proxy = Proxy(place.url)
        try:
            yield from _outage("network cut", place, proxy.url, outage_s, proxy.cut, proxy.heal)
        finally:
            proxy.close()


def _outage(
    part: str, place: Place, url: str, outage_s: float, begin: Callable[[], None], end: Callable[[], None]
) -> Iterator[Number]:
    with running_worker(place, 0, *NO_RECYCLING, url=url) as worker, _producing(url) as app:
        _serve_one(app, worker, 0)
        blocking, awaiting = _Producer(url, is_async=False), _Producer(url, is_async=True)
        for producer in (blocking, awaiting):
            producer.start()
            _wait(lambda producer=producer: producer.last_sent, "the producer sends")
        begin()
        time.sleep(outage_s)
        end()
        back = _wait(lambda: _is_served(url), "the server is back")
        with psycopg.connect(url, autocommit=True) as sql:
            sql.execute("""insert into horsies.tasks (task_name, args) values ('note_start', '{"n": -1}')""")
        started = _wait(lambda: _started(worker, -1), "the worker starts the task that was sent then")
        yield Number(part, "worker: first claim after the return", max(0.0, started - back), "s", BACK_S)
        for name, producer in (("producer", blocking), ("asyncio producer", awaiting)):
            _wait(lambda producer=producer: producer.last_sent > back, f"the {name} sends again")
            yield Number(
                part, f"{name}: first send after the return", producer.first_sent_after(back) - back, "s", BACK_S
            )
            producer.stop()
            misled = sum("pool_max_size" in error for error in producer.errors)
            yield Number(part, f"{name}: errors that blame the size of the pool", misled, "", 0)


def _is_served(url: str) -> float | None:
    with suppress(psycopg.Error), psycopg.connect(url, connect_timeout=2) as sql:
        sql.execute("select 1")
        return time.monotonic()
    return None


class _Producer:
    """Sends one task after the other, and goes on after an error, as the requests of a web server do."""

    def __init__(self, url: str, *, is_async: bool) -> None:
        self._url = url
        self._is_async = is_async
        self._moments: list[float] = []
        self._stopping = False
        self.errors: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._thread.join(PATIENCE_S)

    @property
    def last_sent(self) -> float:
        return self._moments[-1] if self._moments else 0.0

    def first_sent_after(self, moment: float) -> float:
        return next(sent for sent in self._moments if sent > moment)

    def _run(self) -> None:
        app, _ = make_app(self._url, 0)
        task = app.tasks["count_to"]
        if self._is_async:
            asyncio.run(self._send_async(app))
        else:
            while not self._stopping:
                try:
                    task.send(1)
                except HorsiesError as error:
                    self.errors.append(str(error))
                else:
                    self._moments.append(time.monotonic())
                time.sleep(0.05)
            app.close()

    async def _send_async(self, app: Horsies) -> None:
        while not self._stopping:
            try:
                await app.tasks["count_to"].send_async(1)
            except HorsiesError as error:
                self.errors.append(str(error))
            else:
                self._moments.append(time.monotonic())
            await asyncio.sleep(0.05)
        await app.close_async()


# -- killed connections


def _killed_connections(_outage_s: float) -> Iterator[Number]:
    part = "killed connections"
    with _open() as (_, place), running_worker(place, 0, *NO_RECYCLING) as worker, _producing(place.url) as app:
        _serve_one(app, worker, -1)
        _stream(place, app, worker, 0, None)  # warm up
        calm = _stream(place, app, worker, 1_000, None)
        killed = _stream(place, app, worker, 2_000, _kill_one)
    yield Number(part, "longest wait from send to start, undisturbed", max(calm), "ms")
    yield Number(part, "longest wait from send to start, one killed every 0.4 s", max(killed), "ms")
    yield Number(part, "p99 of the same", percentile(killed, 99), "ms")
    yield Number(part, "extra delay of the unluckiest task", max(killed) - max(calm), "ms", KILLED_EXTRA_MS)


def _stream(
    place: Place, app: Horsies, worker: Worker, first: int, disturb: Callable[[Place], None] | None
) -> list[float]:
    """The wait of each task, in milliseconds."""
    count = round(STREAM_S / STREAM_EVERY_S)
    sent: dict[int, float] = {}
    began, disturbed = time.monotonic(), 0.0
    for number in range(first, first + count):
        time.sleep(max(0.0, began + (number - first) * STREAM_EVERY_S - time.monotonic()))
        app.tasks["note_start"].send(number)
        sent[number] = time.monotonic()
        if disturb and time.monotonic() - disturbed > KILL_EVERY_S:
            disturb(place)
            disturbed = time.monotonic()
    _wait(lambda: len({number for number, _ in worker.starts()} & sent.keys()) == count, "all tasks have started")
    return [max(0.0, (moment - sent[number]) * 1000) for number, moment in worker.starts() if number in sent]


def _kill_one(place: Place) -> None:
    place.admin.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'horsies worker' order by random() limit 1"
    )


# -- full server


def _full_server(_outage_s: float) -> Iterator[Number]:
    part = "full server"
    with _open() as (_, place):
        place.admin.execute(f"create role {ROLE} login superuser".encode())
        place.admin.execute(f"alter role {ROLE} nosuperuser".encode())  # a superuser is never turned away
        place.admin.execute(f"grant usage, create on schema horsies to {ROLE}".encode())
        place.admin.execute(f"grant all on all tables in schema horsies to {ROLE}".encode())
        place.admin.execute(f"grant all on all sequences in schema horsies to {ROLE}".encode())
        url = place.url.replace("postgres@", f"{ROLE}@") if "postgres@" in place.url else f"{place.url}&user={ROLE}"
        with running_worker(place, 0, *NO_RECYCLING, url=url, processes=4) as worker:
            place.admin.execute("""insert into horsies.tasks (task_name, args) values ('note_start', '{"n": -1}')""")
            _wait(lambda: _started(worker, -1), "the worker serves")
            time.sleep(1.0)  # its listener, too, is connected
            (count,) = place.admin.execute(
                "select count(*) from pg_stat_activity where usename = %s", [ROLE]
            ).fetchone() or (0,)
            place.admin.execute(f"alter role {ROLE} connection limit {count}".encode())
            limited = _drain(place, worker, 10_000)
            place.admin.execute(f"alter role {ROLE} connection limit -1".encode())
            time.sleep(6.0)
            free = _drain(place, worker, 20_000)
    yield Number(part, f"{MANY_TASKS} tasks, with enough connections", free, "s")
    yield Number(part, f"{MANY_TASKS} tasks, without", limited, "s", FULL_TIMES * free + 1.0)


def _drain(place: Place, worker: Worker, first: int) -> float:
    began = time.monotonic()
    place.admin.execute(
        "insert into horsies.tasks (task_name, args) "
        "select 'note_start', json_build_object('n', n) from generate_series(%s::integer, %s::integer) n",
        [first, first + MANY_TASKS - 1],
    )
    wanted = set(range(first, first + MANY_TASKS))
    _wait(lambda: wanted <= {number for number, _ in worker.starts()}, "all tasks have started")
    return time.monotonic() - began


# -- killed workers


def _killed_workers(_outage_s: float) -> Iterator[Number]:
    part = "killed worker"
    with _open() as (_, place):
        for what in ("not the leader", "the leader"):
            with ExitStack() as stack:
                workers = [stack.enter_context(running_worker(place, 0, *NO_RECYCLING)) for _ in range(2)]
                pids = {worker.process.pid: worker for worker in workers}
                _wait(lambda: _are_settled(place, 2), "both workers are registered and have a leader")
                (leader,) = place.admin.execute(
                    "select pid from horsies.workers join horsies.maintenance_lease on holder = workers.id"
                ).fetchone() or (0,)
                victim = leader if what == "the leader" else next(pid for pid in pids if pid != leader)
                pids[victim].process.kill()
                yield Number(part, f"{what}, noticed after", _noticed(place, victim), "s", NOTICED_S)
            _wait(lambda: not _count(place), "both have left")
        with running_worker(place, 0, *NO_RECYCLING) as first:
            _wait(lambda: _are_settled(place, 1), "the worker is registered and the leader")
            first.process.kill()
            began = time.monotonic()
            with running_worker(place, 0, *NO_RECYCLING):
                _noticed(place, first.process.pid)
                yield Number(
                    part, "the only one, started again, noticed after", time.monotonic() - began, "s", NOTICED_S
                )


def _count(place: Place) -> int:
    (count,) = place.admin.execute("select count(*) from horsies.workers").fetchone() or (0,)
    return count


def _are_settled(place: Place, count: int) -> bool:
    """Each has beaten at least twice since it was registered."""
    row = place.admin.execute("""
        select count(*) filter (where heartbeat_at - started_at > interval '4 s')
        from horsies.workers
        where exists (select from horsies.maintenance_lease join horsies.workers as keepers on keepers.id = holder)
    """).fetchone()
    return row == (count,)


def _noticed(place: Place, pid: int) -> float:
    began = time.monotonic()
    _wait(
        lambda: not place.admin.execute("select pid from horsies.workers where pid = %s", [pid]).fetchone(),
        "the dead worker is removed",
    )
    return time.monotonic() - began


PARTS: dict[str, Callable[[float], Iterator[Number]]] = {
    "server-outage": _server_outage,
    "network-outage": _network_outage,
    "killed-connections": _killed_connections,
    "full-server": _full_server,
    "killed-workers": _killed_workers,
}

if __name__ == "__main__":
    sys.exit(main())
