"""Claims of one task from a capped queue, after many tasks went through; with and without a held snapshot."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import count
from uuid import uuid4

from benchmarks.growth.entries import Entry, Sizes
from benchmarks.growth.ground import EMPTY, Ground
from benchmarks.growth.passage import Passage
from benchmarks.growth.scenes import fill_backlog, held_snapshot
from benchmarks.place import Place
from horsies.db.broker import PostgresBroker
from horsies.db.statement import Query, Rows, execute
from horsies.model.config import PostgresConfig
from horsies.model.status import TaskStatus
from horsies.model.task import Claim, Ending
from horsies.tasks.claim import (
    EPOCH,
    Caps,
    ClaimRequest,
    Lane,
    claim_tasks,
    get_in_flight_from,
    lock_caps,
)
from horsies.tasks.finish import finish_tasks

SLICE, CLAIMS = 1_000, 100
BAR = 1 / 3
"""Of the rate: a claim may take three times as long."""


def measure(ground: Ground, sizes: Sizes, show_progress: Callable[[str], None]) -> Entry:
    entry = Entry("capped", f"a capped claim, a snapshot held, {sizes.held:,} through", "default", BAR)
    for number in range(1, sizes.rounds + 1):
        for meanwhile, passages in ((nullcontext, entry.empty), (held_snapshot, entry.grown)):
            with ground.fresh(EMPTY) as place:
                passages.append(_run(place, sizes.held, meanwhile))
        show_progress(f"{entry.label}, round {number}/{sizes.rounds}: {entry.grown[-1].rate:,.0f} claims/s")
    return entry


def _run(place: Place, passed: int, meanwhile: Callable[[Place], AbstractContextManager[object]]) -> Passage:
    worker, lane, caps = str(uuid4()), Lane("default", 100, EPOCH), Caps(queues={"default": SLICE})
    with meanwhile(place), PostgresBroker(PostgresConfig(database_url=place.url)) as broker:

        def do(*queries: Query) -> list[Rows]:
            return broker.run(partial(execute, *queries))

        def claim(limit: int) -> list[Claim]:
            request = ClaimRequest(worker, TaskStatus.RUNNING, limit, 60_000, caps=caps)
            lock = lock_caps(caps.lock_keys(["default"]), "horsies")
            _, claimed, in_flight = do(lock, claim_tasks(request, [lane]), get_in_flight_from(caps))
            ((caps.in_flight.since,),) = in_flight
            return [Claim(*row) for row in claimed]

        fill_backlog(place, passed + CLAIMS)
        taken_s = 0.0
        for number in count():
            limit = SLICE if number * SLICE < passed else 1
            began = time.perf_counter()
            claims = claim(limit)
            taken_s += time.perf_counter() - began if limit == 1 else 0
            if not claims:
                return Passage(CLAIMS / taken_s, [], [])
            lane = Lane("default", 100, min(held.enqueued_at for held in claims))
            do(finish_tasks(worker, [Ending(held.id, held.claim_no, TaskStatus.COMPLETED, "1") for held in claims]))
    raise AssertionError("unreachable")
