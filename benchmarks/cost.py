"""What one task costs from send to get, counted from outside: round trips on the wire, durable commits in the log.

A *round trip* is one ReadyForQuery that the server sent to a client. A *durable commit* is a transaction that wrote something besides
its commit record to the write-ahead log, so that COMMIT waited for the disk; a lone NOTIFY is none. Everything is
warm: a task has gone through, LISTEN is in force, the listeners' first self-tests are over. What beats whether or not there are tasks is
left out by name: the connections of the heartbeat and of maintenance, and the self-tests.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median_low

from benchmarks.graphs import chain
from benchmarks.names import name_of
from benchmarks.place import Place, new_tasks
from benchmarks.tasks import make_app
from benchmarks.wire import Event, Kind, Tap, tapped
from benchmarks.worker import Worker, running_worker
from horsies import Horsies, Task
from horsies.tasks.enqueue import enqueue

QUIET_S = 0.15
SELF_TESTS_S = 5.0
TIMEOUT_MS = 30_000
GROUP = 20
GROUP_WARM_UP = 2_000

_WRITERS = """
    select count(*)
    from (
        select xid
        from pg_get_wal_records_info(%s::pg_lsn, %s::pg_lsn)
        where xid::text <> '0'
        group by xid
        having bool_or(resource_manager = 'Transaction' and record_type = 'COMMIT') and count(*) > 1
    ) as writers
"""


@dataclass(frozen=True, slots=True)
class Cost:
    trips: list[str]
    """Who asked what, in order; one text per round trip."""
    statements: int
    durable_commits: int
    notifications: int

    @property
    def round_trips(self) -> int:
        return len(self.trips)

    def times(self, statement: str) -> int:
        return sum(trip.split().count(statement) for trip in self.trips)


def cost_of_one(place: Place, repeats: int) -> Cost:
    return _median_cost(place, repeats, lambda _, note_start: note_start.send(1).get(TIMEOUT_MS))


def cost_of_two_nodes(place: Place, repeats: int) -> Cost:
    """A workflow in which one node waits for another."""
    return _median_cost(
        place, repeats, lambda app, note_start: chain(app, note_start, 2).start().get(TIMEOUT_MS).unwrap()
    )


def _median_cost(place: Place, repeats: int, act: Callable[[Horsies, Task[[int], int]], object]) -> Cost:
    """The median of a few: the worker's regular look around may fall into one of them."""
    place.clear("horsies")
    with tapped(place.url) as tap, running_worker(place, 0, url=tap.url) as worker:
        app, note_start = make_app(tap.url, 0)

        def send_and_get() -> None:
            act(app, note_start)

        send_and_get()
        _wait_for_self_tests(tap, worker)
        costs = [_measure(place, tap, send_and_get) for _ in range(repeats)]
        app.close()
    middle = median_low(cost.round_trips for cost in costs)
    return next(cost for cost in costs if cost.round_trips == middle)


def cost_of_group(place: Place) -> Cost:
    """Twenty tasks sent in one statement to a warm worker with throughput settings."""
    place.clear("horsies")
    with tapped(place.url) as tap, running_worker(place, "auto", url=tap.url) as worker:
        app, note_start = make_app(tap.url, "auto")

        def send_and_get(count: int) -> None:
            app.broker.run(partial(enqueue, new_tasks(range(count))))
            while place.admin.execute("select from horsies.tasks limit 1").rowcount:
                worker.insist()
                time.sleep(0.005)

        note_start.send(1).get(TIMEOUT_MS)
        send_and_get(GROUP_WARM_UP)
        _wait_for_self_tests(tap, worker)
        cost = _measure(place, tap, partial(send_and_get, GROUP))
        app.close()
    return cost


def _wait_for_self_tests(tap: Tap, worker: Worker) -> None:
    """The producer and the worker each test their listener once, a second after it connects; then seldom."""
    deadline = time.monotonic() + SELF_TESTS_S
    while sum(event.text.endswith("_test") for event in tap.events if event.kind is Kind.RECEIVED) < 2:
        worker.insist()
        if time.monotonic() > deadline:
            return
        time.sleep(0.05)


def _measure(place: Place, tap: Tap, action: Callable[[], None]) -> Cost:
    while True:
        _wait_until_quiet(tap)
        place.admin.execute("create extension if not exists pg_walinspect")
        before, since = _log_position(place), len(tap.events)
        action()
        _wait_until_quiet(tap)
        after, events = _log_position(place), tap.events[since:]
        # Their commits would be counted as the task's.
        if not any(beat in event.who for event in events for beat in ("heartbeat", "maintenance")):
            return _cost(events, _durable_commits(place, before, after))


def _wait_until_quiet(tap: Tap) -> None:
    while tap.events and (left := tap.events[-1].at + QUIET_S - time.monotonic()) > 0:
        time.sleep(left)


def _cost(events: list[Event], durable_commits: int) -> Cost:
    trips = _trips(events)
    received = {event.text for event in events if event.kind is Kind.RECEIVED and not event.text.endswith("_test")}
    statements = sum(len(trip.split()) - 1 for trip in trips)
    return Cost(trips, statements, durable_commits, len(received))


def _trips(events: list[Event]) -> list[str]:
    """In the order in which they were begun."""
    trips: list[tuple[float, str]] = []
    asked: dict[str, list[Event]] = {}
    for event in events:
        if event.kind is Kind.STATEMENT:
            asked.setdefault(event.who, []).append(event)
        elif event.kind is Kind.ROUND_TRIP and (trip := asked.pop(event.who, [])):
            names = [name_of(statement.text) for statement in trip]
            purpose = event.who.removeprefix("horsies ").split(" #")[0]
            if names != ["notify"]:  # a listener's self-test
                trips.append((trip[0].at, f"{purpose}: {' '.join(names)}"))
    return [trip for _, trip in sorted(trips)]


def _log_position(place: Place) -> str:
    (position,) = place.admin.execute("select pg_current_wal_insert_lsn()::text").fetchone() or ("0/0",)
    return position


def _durable_commits(place: Place, before: str, after: str) -> int:
    place.admin.execute(
        "select pg_logical_emit_message(true, 'bench', '')"
    )  # its commit brings all before it to the disk
    (count,) = place.admin.execute(_WRITERS, [before, after]).fetchone() or (0,)
    return count
