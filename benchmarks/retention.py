"""`python -m benchmarks.retention`: how dropping a day of finished tasks delays concurrent claims and endings.

Four workers' conversations (finish, send and claim in one transaction, again and again) and one that looks tasks up go on all the time. How long they waited
for a table is what the server logs; it does not log waits below 10 ms. The longest batch is measured by the client, including all delays of the
machine; compare it with the one while nothing else happens. Exit code 1 when a bar is missed.
"""

import argparse
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar
from uuid import uuid4

import psycopg
from psycopg.errors import Diagnostic
from rich.console import Console
from rich.table import Table

from benchmarks.place import Place, open_place
from horsies.db import partitions
from horsies.db.dedicated import DedicatedConnection
from horsies.db.driver import execute_on
from horsies.db.partitions import PartitionChange
from horsies.db.statement import Op, Request, Statement
from horsies.embedded.binaries import find_binaries
from horsies.maintenance import retention
from horsies.maintenance.isolate import FailedRows
from horsies.model.config import PostgresConfig
from horsies.model.status import TaskStatus
from horsies.model.task import Claim, Ending
from horsies.tasks import handle
from horsies.tasks.claim import ClaimRequest, claim_tasks, lanes_from_start
from horsies.tasks.finish import finish_tasks

CONVERSATIONS, BATCH, CALM_S = 4, 4, 3.0
MAX_DROP_S, MAX_WAIT_S = 1.0, 0.1
KEEP, OLD = timedelta(days=7), 10
T = TypeVar("T")
SEND = Statement(
    "send",
    f"insert into {{schema}}.tasks (task_name, args) select 'note_start', '{{}}' from generate_series(1, {BATCH})",
)
BEGIN, COMMIT = Statement("begin", "begin isolation level read committed"), Statement("commit", "commit")

WAITED = re.compile(
    r"acquired \w+ on relation .* after (?P<ms>[\d.]+) ms"
)  # not those of NOTIFY, which belong to no table


@dataclass(frozen=True, slots=True)
class Span:
    """When something began, and when it ended."""

    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@dataclass(frozen=True, slots=True)
class Shown:
    what: str
    took_s: float
    batches: int
    longest_turn_s: float
    longest_wait_s: float
    longest_look_wait_s: float


@dataclass(slots=True)
class Traffic:
    """The concurrent load."""

    place: Place
    batches: list[Span] = field(default_factory=list[Span])
    waits: list[Span] = field(default_factory=list[Span])
    """The waits of batches for tables."""
    look_waits: list[Span] = field(default_factory=list[Span])
    _over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def flowing(self) -> Generator[None]:
        with ThreadPoolExecutor(CONVERSATIONS + 1) as threads:
            talks = [threads.submit(self._converse) for _ in range(CONVERSATIONS)] + [threads.submit(self._look)]
            try:
                yield
            finally:
                self._over.set()
            for talk in talks:
                talk.result()  # one that broke off has measured nothing

    def during(self, what: str, act: Callable[[], object]) -> Shown:
        began = time.perf_counter()
        act()
        ended = time.perf_counter()
        time.sleep(0.2)  # for those that were held up to the end of it
        batches, waits, look_waits = (
            [span.seconds for span in list(spans) if span.ended >= began and span.began <= ended]
            for spans in (self.batches, self.waits, self.look_waits)
        )
        longest = (max(spans, default=0.0) for spans in (batches, waits, look_waits))
        return Shown(what, ended - began, len(batches), *longest)

    def _converse(self) -> None:
        worker, endings = str(uuid4()), list[Ending]()
        wanted = ClaimRequest(worker, TaskStatus.RUNNING, BATCH, 60_000)
        with self._connected(self.waits) as connection:
            while not self._over.is_set():
                claim = claim_tasks(wanted, lanes_from_start(["default"]))
                began = time.perf_counter()
                *_, claimed, _ = execute_on(
                    connection, Request((BEGIN(), finish_tasks(worker, endings), SEND(), claim, COMMIT())), "horsies"
                )
                self.batches.append(Span(began, time.perf_counter()))
                endings = [
                    Ending(c.id, c.claim_no, TaskStatus.COMPLETED, "1") for c in (Claim(*row) for row in claimed)
                ]
                endings.sort(key=lambda ending: ending.id)

    def _look(self) -> None:
        with self._connected(self.look_waits) as connection:
            while not self._over.is_set():
                execute_on(connection, Request((handle.SQL["get_results_unpruned"](ids=[str(uuid4())]),)), "horsies")
                time.sleep(0.001)

    def _connected(self, waits: list[Span]) -> psycopg.Connection:
        """As ours are, but that every wait is noted."""

        def heed(notice: Diagnostic) -> None:
            if found := WAITED.search(notice.message_primary or ""):
                now = time.perf_counter()
                waits.append(Span(now - float(found["ms"]) / 1000, now))

        connection = psycopg.connect(self.place.url, autocommit=True, prepare_threshold=0)
        for setting in ("log_lock_waits = on", "deadlock_timeout = '10ms'", "client_min_messages = log"):
            connection.execute(f"set {setting}".encode())
        connection.add_notice_handler(heed)
        return connection


# -- what is measured


def fill_day(place: Place, days_ago: int, count: int) -> None:
    day = datetime.now(UTC).date() - timedelta(days=days_ago)
    table = f"horsies.finished_{day:%Y%m%d}"
    place.admin.execute(
        f"create table if not exists {table} partition of horsies.finished "
        f"for values from ('{day} 00:00+00') to ('{day + timedelta(days=1)} 00:00+00')".encode()
    )
    fill(place, table, count, f"{day} 12:00+00")


def fill(place: Place, table: str, count: int, moment: str) -> None:
    place.admin.execute(
        f"insert into {table} (id, task_name, queue_name, priority, status, args, result, sent_at, enqueued_at, attempts, claim_no, "
        "finished_at) select horsies.new_id(), 'note_start', 'default', 100, 'COMPLETED', '{\"n\": 1}', '1', now(), now(), 1, 1, %s "
        "from generate_series(1, %s)".encode(),
        [moment, count],
    )


def drop(place: Place) -> retention.RetentionResult:
    """Do it as the leader does."""
    return _run(place, retention.drop_old_partitions("horsies", KEEP, FailedRows()))


def _run(place: Place, op: Op[T]) -> T:
    link = DedicatedConnection(PostgresConfig(database_url=place.url), "benchmark")
    try:
        return link.run(op)
    finally:
        link.close()


def insist_on_drop(place: Place) -> None:
    """Repeat it, as the leader does: under load one attempt may not get its lock in time."""
    while drop(place).postponed:
        time.sleep(0.05)


@contextmanager
def open_dump(place: Place) -> Generator[None]:
    """Start a pg_dump whose output is not read: it has locked all tables, and keeps them locked."""
    command = [str(find_binaries().program("pg_dump")), "--data-only", f"--dbname={place.url}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as dump:
        held = "select from pg_locks join pg_stat_activity using (pid) where application_name = 'pg_dump' and relation = 'horsies.finished'::regclass"
        while not place.admin.execute(held.encode()).rowcount:
            time.sleep(0.01)
        try:
            yield
        finally:
            dump.kill()


def make_today(place: Place) -> None:
    """The current day, which all tasks are written to and of which the default partition holds as much as may be moved."""
    today = f"{datetime.now(UTC):%Y%m%d}"
    with place.admin.transaction():
        place.admin.execute("lock table horsies.finished in access exclusive mode")
        place.admin.execute(f"drop table horsies.finished_{today}".encode())
        fill(place, "horsies.finished_default", partitions.MOVE_AT_MOST - 1_000, f"{datetime.now(UTC)}")


def insist_on_day(place: Place) -> None:
    while PartitionChange.POSTPONED in _run(place, partitions.prepare_partitions("horsies")):
        time.sleep(0.05)


def measure(place: Place, count: int) -> Generator[Shown]:
    fill_day(place, OLD, count)
    began = time.perf_counter()
    insist_on_drop(place)
    yield Shown("drop, without load", time.perf_counter() - began, 0, 0.0, 0.0, 0.0)
    fill_day(place, OLD, count)
    traffic = Traffic(place)
    with traffic.flowing():
        time.sleep(1.0)
        yield traffic.during("nothing else happens", partial(time.sleep, CALM_S))
        yield traffic.during("drop", partial(insist_on_drop, place))
        fill_day(place, OLD, count)
        with open_dump(place):
            yield traffic.during("nothing else happens, pg_dump open", partial(time.sleep, CALM_S))
            yield traffic.during("attempts to drop, pg_dump open", lambda: [drop(place) for _ in range(10)])
        yield traffic.during("drop, pg_dump closed", partial(insist_on_drop, place))
        make_today(place)
        yield traffic.during("make today's day out of the default", partial(insist_on_day, place))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.retention", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="tasks in the day (default: 1000000)")
    count: int = parser.parse_args().rows
    with open_place() as place:
        shown = list(measure(place, count))
    table = Table("what", title=f"a day of {count} finished tasks", title_justify="left")
    for head in ("took ms", "batches", "longest batch ms", "a batch waited ms", "a read waited ms"):
        table.add_column(head, justify="right")
    for one in shown:
        waits = (
            f"{wait_s * 1000:.0f}" if wait_s else "<10" for wait_s in (one.longest_wait_s, one.longest_look_wait_s)
        )
        table.add_row(
            one.what, f"{one.took_s * 1000:.0f}", str(one.batches), f"{one.longest_turn_s * 1000:.0f}", *waits
        )
    Console(width=None if sys.stdout.isatty() else 130).print(table)
    is_quick = all(one.took_s <= MAX_DROP_S for one in shown if one.what.startswith("drop"))
    return 0 if is_quick and max(max(one.longest_wait_s, one.longest_look_wait_s) for one in shown) <= MAX_WAIT_S else 1


if __name__ == "__main__":
    sys.exit(main())
