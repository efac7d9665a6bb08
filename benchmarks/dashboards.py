"""`make bench-dashboards`: what 50 open pages of the dashboard cost a worker that drains a backlog.

A server holds 1 000 000 finished and 100 000 waiting tasks. A worker drains tasks that do nothing, in turns without a dashboard and with `horsies web` and
50 open pages. Also counted are the CPU times of the dashboard and of its sessions in PostgreSQL: they say the same where other load makes rates unreliable.
The bars: the rate is at least 0.95 of the one without, and the CPU time at most 5 % of that of all cores. Exit code 1 if one is missed.
"""

import argparse
import asyncio
import html
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

import psycopg

from benchmarks.bars import Bar, judge
from benchmarks.operator_queries import FINISHED, QUICK_SHARE, WAITING, WORKFLOWS, fill
from benchmarks.place import SETTINGS, Place
from benchmarks.tasks import DATABASE_URL, PREFETCH, Prefetch
from benchmarks.terminal import INTERRUPTED, end_like_ctrl_c, show_progress
from benchmarks.worker import APP, NO_RECYCLING, ROOT, STOP_S, Worker, running_worker
from horsies.tasks.ids import new_task_id
from horsies.web.security import new_cookie
from tests.fixtures.scratch_server import scratch_server
from tests.fixtures.web import free_port

LIMIT_SHARE = 0.05
OVERVIEWS, OTHERS = 30, 20
STREAMS_OF_SESSION = 5
ROUNDS, QUICK_ROUNDS = 3, 1
COUNTS: dict[Prefetch, int] = {"auto": 300_000, 0: 60_000}
TIMEOUT_S = 600
SAMPLE_S = 0.5
SESSIONS_S = 5.0
ROLE = "dashboard"
WATCHED = "few_queues"
"""The event of the overview that changes all the time: how often it comes is how fresh an open page is."""


@dataclass(frozen=True, slots=True)
class Round:
    rate: float
    dashboard_share: float = 0.0
    """CPU seconds per second."""
    postgres_share: float = 0.0
    client_share: float = 0.0
    ages_s: Sequence[float] = ()
    """Between two updates of the queues on an overview."""
    events: int = 0


def main() -> int:
    end_like_ctrl_c()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dashboards", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a twentieth of the tasks, one round; the bars are not judged"
    )
    parser.add_argument("--rounds", type=int, help="of each kind")
    parser.add_argument("--count", type=int, help="how many tasks are drained in a round")
    parser.add_argument(
        "--default", action="store_true", help="a worker with default settings instead of prefetch_buffer=auto"
    )
    parser.add_argument("--database-url", help="a database that is filled already")
    options = parser.parse_args()
    try:
        if options.database_url:
            return _measure(options.database_url, options)
        with scratch_server(settings=SETTINGS) as server:
            show_progress("filling a database")
            share = QUICK_SHARE if options.quick else 1
            fill(server.url(), FINISHED // share, WAITING // share, WORKFLOWS // share)
            return _measure(server.url(), options)
    except KeyboardInterrupt:
        show_progress("interrupted; the server is stopped")
        return INTERRUPTED


def _measure(url: str, options: argparse.Namespace) -> int:
    prefetch: Prefetch = 0 if options.default else "auto"
    count = options.count or COUNTS[prefetch] // (QUICK_SHARE if options.quick else 1)
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    alone, watched = list[Round](), list[Round]()
    with psycopg.connect(url, autocommit=True) as admin, tempfile.TemporaryDirectory(prefix="horsies-bench-") as folder:
        place = Place(url, admin, Path(folder))
        _make_role(admin)
        _round(
            place, prefetch, max(count // 10, 1_000)
        )  # workers and caches are warm, and the rows of workers that do not exist are gone
        for number in range(rounds):
            for is_watched in (False, True) if number % 2 == 0 else (True, False):
                done = _round(place, prefetch, count, is_watched=is_watched)
                (watched if is_watched else alone).append(done)
                show_progress(
                    f"{'with' if is_watched else 'without'} dashboards: {done.rate:,.0f} tasks/s, load {os.getloadavg()[0]:.1f}"
                )
    _print(alone, watched)
    return judge(_bars(alone, watched), are_judged=not options.quick)


def _make_role(admin: psycopg.Connection) -> None:
    """The dashboard has a role of its own, by which its sessions are found."""
    if not admin.execute("select from pg_roles where rolname = %s", [ROLE]).rowcount:
        admin.execute(f"create role {ROLE} superuser login".encode())


def _round(place: Place, prefetch: Prefetch, count: int, *, is_watched: bool = False) -> Round:
    first_id = new_task_id()
    place.fill("horsies", count)
    place.admin.execute("vacuum (analyze) horsies.tasks")
    if not is_watched:
        with running_worker(place, prefetch, *NO_RECYCLING) as worker:
            _wait_until_done(place, worker)
        return Round(_rate(place, first_id, count))
    with open_dashboards(place) as dashboards:
        before, began = dashboards.cpu(), time.monotonic()
        with running_worker(place, prefetch, *NO_RECYCLING) as worker:
            _wait_until_done(place, worker)
        after, took_s = dashboards.cpu(), time.monotonic() - began
    dashboard, postgres, client = ((end - start) / took_s for start, end in zip(before, after, strict=True))
    if dashboards.viewers.problems:
        raise RuntimeError(dashboards.viewers.problems[0])
    ages_s = dashboards.viewers.ages_s(began, began + took_s)
    return Round(_rate(place, first_id, count), dashboard, postgres, client, ages_s, dashboards.viewers.events.total())


def _wait_until_done(place: Place, worker: Worker) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while place.admin.execute("select from horsies.tasks where queue_name = 'default' limit 1").rowcount:
        worker.insist()
        if time.monotonic() > deadline:
            raise TimeoutError(f"the backlog was not done within {TIMEOUT_S} s")
        time.sleep(SAMPLE_S)


def _rate(place: Place, first_id: str, count: int) -> float:
    """Tasks per second from the first start to the last end, by the database."""
    done, seconds = place.admin.execute(
        "select count(*), extract(epoch from max(finished_at) - min(started_at))::float8 from horsies.finished "
        "where id > %s::uuid and queue_name = 'default' and status = 'COMPLETED'",
        [first_id],
    ).fetchone() or (0, 0.0)
    if done != count:
        raise RuntimeError(f"{done} of {count} tasks are completed")
    return count / seconds


# -- the dashboard and its viewers


class Viewers:
    """Browsers without scripts that keep the streams of their pages open, in a thread."""

    def __init__(self, port: int, paths: Sequence[str]) -> None:
        self.events: Counter[str] = Counter()
        self.problems: list[str] = []
        self._arrivals: list[list[float]] = []
        self._port, self._paths = port, paths
        self._opened, self._stop = threading.Event(), asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._watch(),), name="viewers")

    def open(self) -> None:
        self._thread.start()
        self._opened.wait(TIMEOUT_S)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    def cpu_s(self) -> float:
        return _cpu_s(self._thread.native_id or 0, f"self/task/{self._thread.native_id}")

    def ages_s(self, since: float, until: float) -> list[float]:
        """How long each viewer of an overview waited from one update of the queues to the next."""
        ages = list[float]()
        for arrivals in self._arrivals:
            within = [moment for moment in arrivals if since <= moment <= until]
            ages += [later - earlier for earlier, later in pairwise(within)]
        return ages

    async def _watch(self) -> None:
        cookies = [new_cookie() for _ in range(0, len(self._paths), STREAMS_OF_SESSION)]
        waiting = [
            asyncio.create_task(self._view(path, cookies[number // STREAMS_OF_SESSION]))
            for number, path in enumerate(self._paths)
        ]
        ready = asyncio.create_task(self._all_opened())
        await self._stop.wait()
        for task in (*waiting, ready):
            task.cancel()
        for result in await asyncio.gather(*waiting, return_exceptions=True):
            if isinstance(result, Exception):
                self.problems.append(repr(result))

    async def _all_opened(self) -> None:
        while len(self._arrivals) < len(self._paths):  # noqa: ASYNC110 - each stream tells that it is open
            await asyncio.sleep(SAMPLE_S)
        self._opened.set()

    async def _view(self, path: str, cookie: str) -> None:
        """Load a page and read its stream for as long as it lasts."""
        text = (await self._get(path, cookie)).decode()
        stream = re.search(r'data-stream="([^"]*)"', text)
        if stream is None:
            raise RuntimeError(f"{path} has no stream")
        arrivals = list[float]()
        reader, writer = await self._request(html.unescape(stream[1]), cookie)
        try:
            await reader.readuntil(b"retry:")
            self._arrivals.append(arrivals)
            while line := await reader.readline():
                if line.startswith(b"event: "):
                    name = line[7:].decode().strip()
                    self.events[name] += 1
                    if name == WATCHED:
                        arrivals.append(time.monotonic())
        finally:
            writer.close()
        if not self._stop.is_set():
            self.problems.append(f"the stream of {path} has ended")

    async def _get(self, path: str, cookie: str) -> bytes:
        reader, writer = await self._request(path, cookie, "Connection: close\r\n")
        answer = await reader.read()
        writer.close()
        if b" 200 " not in answer[:20]:
            raise RuntimeError(f"{path}: {answer[:300]!r}")
        return answer

    async def _request(
        self, path: str, cookie: str, header: str = ""
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        own = f"Host: 127.0.0.1:{self._port}\r\nCookie: horsies_session_{self._port}={cookie}\r\n"
        writer.write(f"GET {path} HTTP/1.1\r\n{own}{header}\r\n".encode())
        await writer.drain()
        return reader, writer


@dataclass(slots=True)
class Dashboards:
    """A dashboard with its open pages."""

    process: subprocess.Popen[bytes]
    viewers: Viewers
    admin: psycopg.Connection
    _sessions: dict[int, float] = field(default_factory=dict[int, float])
    """The CPU time of each session of PostgreSQL when it was last seen."""
    _stop: threading.Event = field(default_factory=threading.Event)

    def cpu(self) -> tuple[float, float, float]:
        """Return the CPU seconds so far: of the process, of its sessions, and of the viewers."""
        self._look()
        return _cpu_s(self.process.pid), sum(self._sessions.values()), self.viewers.cpu_s()

    def _look(self) -> None:
        query = "select pid from pg_stat_activity where usename = %s"
        for (pid,) in self.admin.execute(query, [ROLE]).fetchall():
            self._sessions[pid] = max(_cpu_s(pid), self._sessions.get(pid, 0.0))

    def sample(self) -> None:
        """Sessions may end, so they are looked at all the time."""
        while not self._stop.wait(SESSIONS_S):
            self._look()

    def stop(self) -> None:
        self._stop.set()


def _cpu_s(pid: int, path: str | None = None) -> float:
    """Return the CPU time of a process; 0 if it is gone."""
    try:
        text = Path(f"/proc/{path or pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    user, system = text.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@contextmanager
def open_dashboards(place: Place) -> Generator[Dashboards]:
    """Run `horsies web` in a process of its own, and open the pages."""
    port, log = free_port(), place.new_folder() / "web.log"
    env = {**os.environ, DATABASE_URL: place.url.replace("//postgres@", f"//{ROLE}@"), PREFETCH: "0"}
    command = [sys.executable, "-m", "horsies.cli.main", "web", "serve", APP, "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=output, stderr=output, start_new_session=True)
    try:
        _wait_until_served(process, port, log)
        dashboards = Dashboards(process, Viewers(port, _paths(place.admin)), place.admin)
        dashboards.viewers.open()
        sampler = threading.Thread(target=dashboards.sample, name="sampler")
        sampler.start()
        try:
            yield dashboards
        finally:
            dashboards.stop()
            sampler.join()
            dashboards.viewers.close()
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except BaseException:
            process.kill()
            process.wait()
            raise


def _wait_until_served(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    f"the dashboard does not serve:\n{log.read_text(encoding='utf-8')[-2000:]}"
                ) from None
            time.sleep(SAMPLE_S)
        else:
            return


def _paths(admin: psycopg.Connection) -> list[str]:
    """The overview, and the other pages in equal parts."""
    (found,) = admin.execute("""
        select
            (select id::text from horsies.tasks where status = 'PENDING' and queue_name = 'queue_1' order by id limit 1),
            (select id::text from horsies.workflows where status = 'RUNNING' and id = root_id order by id desc limit 1)
    """).fetchall()
    task, workflow = found
    others = ["/tasks", f"/tasks/{task}", "/queues", "/workers", f"/workflows/{workflow}", "/schedules", "/errors"]
    return ["/"] * OVERVIEWS + [others[number % len(others)] for number in range(OTHERS)]


# -- the report


def _print(alone: Sequence[Round], watched: Sequence[Round]) -> None:
    print(
        f"{'':<14}{'tasks/s':>10}{'dashboard':>12}{'postgres':>11}{'together':>11}{'viewers':>10}{'events/round':>14}"
    )
    for name, rounds in (("without", alone), ("with", watched)):
        for each in rounds:
            shares = (
                each.dashboard_share,
                each.postgres_share,
                each.dashboard_share + each.postgres_share,
                each.client_share,
            )
            texts = "".join(f"{share:>{width}.3f}" for share, width in zip(shares, (12, 11, 11, 10), strict=True))
            print(f"{name:<14}{each.rate:>10,.0f}{texts}{each.events:>14,}")
    ages_s = sorted(age for each in watched for age in each.ages_s)
    if ages_s:
        print(
            f"the queues on an overview: updated after {median(ages_s):.2f} s as the median, {ages_s[int(len(ages_s) * 0.95)]:.2f} s as the 95th percentile"
        )
    print(
        "dashboard, postgres, viewers: CPU seconds per second; the viewers are on the same machine, but not part of the cost"
    )


def _bars(alone: Sequence[Round], watched: Sequence[Round]) -> Iterator[Bar]:
    ratio = median(each.rate for each in watched) / median(each.rate for each in alone)
    yield Bar("rate with 50 open dashboards, of that without", ratio, 1 - LIMIT_SHARE, ">=", "")
    cores = os.cpu_count() or 1
    share = median(each.dashboard_share + each.postgres_share for each in watched) / cores
    print(f"rate: {ratio:.3f} of that without; CPU time: {share:.1%} of {cores} cores")
    yield Bar("CPU time of the dashboard and its sessions, of all cores", share, LIMIT_SHARE, "<=", "")


if __name__ == "__main__":
    sys.exit(main())
