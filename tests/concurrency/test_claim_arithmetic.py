"""A worker claims exactly what the arithmetic of the specification allows, beside another that holds tasks, too."""

from collections import Counter
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import psycopg
import pytest

from tests.fixtures.budget import Budget, QueueRoom
from tests.fixtures.eventually import eventually
from tests.fixtures.workers import StartWorker, Worker
from tests.recovery.steps import CLUSTER, FORKED, insert_rows, settings

Counts = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Two queues, `urgent` before `low`. The numbers are tasks per queue; none of them ends."""

    processes: int
    concurrency: int = 1
    prefetch_buffer: int = 0
    cluster_wide_cap: int | None = None
    max_claim_per_worker: int = 0
    max_claim_batch: int = 0
    caps: Mapping[str, int | None] = field(default_factory=dict[str, int | None])
    others_run: Counts = field(default_factory=dict[str, int])
    others_hold: Counts = field(default_factory=dict[str, int])
    """CLAIMED by the other worker, not begun."""
    own: Counts = field(default_factory=dict[str, int])
    """What the worker has claimed before the rest is sent."""
    waiting: Counts

    @property
    def slots(self) -> int:
        return self.processes * self.concurrency

    def queues(self) -> list[dict[str, object]]:
        return [
            {"name": name, "priority": priority, "max_concurrency": self.caps.get(name)}
            for priority, name in enumerate(("urgent", "low"), 1)
        ]

    def after(self, held: Counts, waiting: Counts) -> Counter[str]:
        """What the worker holds when no further pass takes anything, by the specification."""
        taken, left = Counter(held), Counter(waiting)
        running = min(taken.total(), self.slots)
        budget = Budget(
            slots=self.slots,
            running=running,
            claimed=taken.total() - running,
            prefetch_buffer=self.prefetch_buffer,
            max_claim_per_worker=self.max_claim_per_worker,
            max_claim_batch=self.max_claim_batch,
            cluster_wide_cap=self.cluster_wide_cap,
        )
        elsewhere = sum(self.others_run.values()) + sum(self.others_hold.values())
        while more := +Counter(
            replace(budget, in_flight_everywhere=elsewhere + taken.total()).claims(self._rooms(taken), left)
        ):
            taken, left = taken + more, left - more
            running = min(taken.total(), self.slots)
            budget = replace(budget, running=running, claimed=taken.total() - running)
        return taken

    def _rooms(self, taken: Counts) -> list[QueueRoom]:
        """In hard-cap mode a queue counts what is CLAIMED, too. No case has a capped queue and a buffer that is not empty."""
        counted = [self.others_run, taken] + ([] if self.prefetch_buffer else [self.others_hold])
        return [
            QueueRoom(
                name=name, max_concurrency=self.caps.get(name), in_flight=sum(each.get(name, 0) for each in counted)
            )
            for name in ("urgent", "low")
        ]


PLENTY = {"urgent": 9, "low": 9}

CASES = {
    "hard: as many as there are processes": Case(processes=3, waiting=PLENTY),
    "hard: less what is running": Case(processes=4, own={"low": 1}, waiting=PLENTY),
    "hard: processes times concurrency": Case(processes=2, concurrency=3, own={"urgent": 1}, waiting=PLENTY),
    "hard: what one queue leaves goes to the next": Case(processes=4, waiting={"urgent": 1, "low": 9}),
    "soft: the buffer is added": Case(processes=2, prefetch_buffer=3, waiting=PLENTY),
    "soft: processes times concurrency, and the buffer": Case(
        processes=2, concurrency=2, prefetch_buffer=3, own={"low": 1}, waiting=PLENTY
    ),
    "soft: less what runs and waits": Case(processes=2, prefetch_buffer=5, own={"urgent": 4}, waiting=PLENTY),
    "cluster: the cap less what is in flight everywhere": Case(
        processes=4, cluster_wide_cap=6, others_run={"low": 2}, others_hold={"urgent": 1}, own={"low": 1}, waiting=PLENTY
    ),
    "cluster: the slots are less than the cap leaves": Case(
        processes=2, cluster_wide_cap=9, others_run={"low": 2}, waiting=PLENTY
    ),
    "hard: the ceiling counts what runs": Case(processes=4, max_claim_per_worker=3, own={"low": 1}, waiting=PLENTY),
    "soft: the ceiling counts what waits": Case(
        processes=2, prefetch_buffer=6, max_claim_per_worker=3, own={"low": 1}, waiting=PLENTY
    ),
    "queue: the cap less what is in flight in it": Case(
        processes=6,
        caps={"urgent": 4, "low": None},
        others_run={"urgent": 1, "low": 1},
        others_hold={"urgent": 1},
        waiting=PLENTY,
    ),
    "queue: its own tasks count, those of others do not": Case(
        processes=6, caps={"urgent": 3, "low": 2}, others_run={"low": 1}, own={"urgent": 1}, waiting=PLENTY
    ),
    "soft: a queue's cap counts what runs": Case(
        processes=3, prefetch_buffer=1, caps={"urgent": 2}, others_run={"urgent": 1}, others_hold={"urgent": 2},
        waiting={"urgent": 1, "low": 2},
    ),
    "batch: several passes take what one may not": Case(processes=5, max_claim_batch=2, waiting=PLENTY),
}  # fmt: skip


class Gates:
    """Async tasks that do not end before all may."""

    def __init__(self, sql: psycopg.Connection, folder: Path) -> None:
        self._sql = sql
        self._folder = folder

    def send(self, counts: Counts) -> None:
        """All at once, so that the first pass that sees one of them sees all."""
        args = {"begun": str(self._folder / "begun"), "until": str(self._folder / "open")}
        with self._sql.transaction():
            for queue, count in counts.items():
                insert_rows(self._sql, "gate_async", [args] * count, queue_name=queue)

    def held_by(self, worker: Worker) -> Counter[str]:
        query = (
            "select queue_name, count(*)::integer from horsies.tasks "
            "where claimed_by = (select id from horsies.workers where pid = %s) group by queue_name"
        )
        return Counter(dict(self._sql.execute(query, [worker.pid]).fetchall()))

    def wait_until_held_by(self, worker: Worker, expected: Counter[str]) -> None:
        eventually(
            lambda: self.held_by(worker) == expected,
            what=f"the worker holds {dict(expected)}",
            seen=lambda: dict(self.held_by(worker)),
        )

    def open(self) -> None:
        (self._folder / "open").touch()


@pytest.fixture
def gates(worker: StartWorker, sql: psycopg.Connection, tmp_path: Path) -> Generator[Gates]:
    """They are opened before the workers are asked to stop, which wait for them."""
    made = Gates(sql, tmp_path)
    yield made
    made.open()


@pytest.mark.promise("C18", "C20", "X4")
@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
def test_a_worker_claims_exactly_what_the_arithmetic_allows(worker: StartWorker, gates: Gates, case: Case) -> None:
    if case.others_run or case.others_hold:
        running, holding = sum(case.others_run.values()), sum(case.others_hold.values())
        env = settings(queues=Case(processes=1, waiting={}).queues(), prefetch_buffer=holding, claim_lease_ms=600_000)
        other = worker(CLUSTER, processes=running, options=FORKED, env=env)
        gates.send(case.others_run)
        gates.wait_until_held_by(other, Counter(case.others_run))
        gates.send(case.others_hold)
        gates.wait_until_held_by(other, Counter(case.others_run) + Counter(case.others_hold))
    one = start(worker, case)
    gates.send(case.own)
    gates.wait_until_held_by(one, case.after({}, case.own))
    gates.send(case.waiting)
    gates.wait_until_held_by(one, case.after(case.own, case.waiting))


def start(worker: StartWorker, case: Case) -> Worker:
    limits = {"prefetch_buffer": case.prefetch_buffer, "cluster_wide_cap": case.cluster_wide_cap}
    options = (
        f"--concurrency={case.concurrency}",
        f"--max-claim-per-worker={case.max_claim_per_worker}",
        f"--max-claim-batch={case.max_claim_batch}",
        *FORKED,
    )
    env = settings(queues=case.queues(), claim_lease_ms=600_000, **limits)
    return worker(CLUSTER, processes=case.processes, options=options, env=env)
