"""One section: load and faults at once, then peace until everything has ended, then judgement."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing

import psycopg

from benchmarks.chaos.faults import Fault
from benchmarks.chaos.field import Field
from benchmarks.chaos.history import History
from benchmarks.chaos.judge import judge
from benchmarks.chaos.ledger import read_flows, read_rows, wait_until_settled
from benchmarks.chaos.load import Load
from benchmarks.chaos.notes import read_notes
from benchmarks.chaos.plan import Account, Plan, Watch
from benchmarks.chaos.shop import CAPS, make_shop

TICK_S = 0.2
PATIENT_S = 5.0
"""With less patience, a busy machine alone may silence a worker for so long."""
REGISTERED = "select count(*) from horsies.workers where pid = any(%s)"


class Trial:
    """`interrupted` once somebody pressed Ctrl-C: the faults stop, and what has happened so far is judged."""

    def __init__(self, plan: Plan, section: str, field: Field, watch: Watch) -> None:
        self._plan = plan
        self._field = field
        self._watch = watch
        self._account = Account(section)
        self._began = time.monotonic()

    def run(self, urls: Sequence[str], direct_url: str, faults: Mapping[str, Fault], seconds: float) -> Account:
        """Producers send by way of these addresses."""
        shops = [make_shop(url, dead_after_ms=round(self._plan.dead_after_s * 1000)) for url in urls]
        with ExitStack() as stack:
            load = stack.enter_context(
                closing(
                    Load(
                        shops,
                        direct_url,
                        seed=self._plan.seed,
                        pause_s=self._plan.pause_s,
                        long_s=self._plan.dead_after_s,
                    )
                )
            )
            self._field.fleet.start()
            load.start()
            try:
                self._strike(faults, seconds, load)
            except KeyboardInterrupt:
                self._account.interrupted = True
            self._say("stopping the producers", load)
            load.stop()
            self._settle()
            self._judge(load)
        return self._account

    def _strike(self, faults: Mapping[str, Fault], seconds: float, load: Load) -> None:
        self._field.rest = lambda duration: self._rest(duration, load)
        if self._plan.faults is not None:
            for kind in self._plan.faults:
                self._do(faults[kind])
            return
        deadline, deck = time.monotonic() + seconds, list[str]()
        while time.monotonic() < deadline:
            deck = deck or self._field.rng.sample(sorted(faults), len(faults))  # each of them before any comes again
            self._do(faults[deck.pop()])

    def _do(self, fault: Fault) -> None:
        self._field.rest(self._field.rng.uniform(*self._plan.rest_s))
        self._field.fleet.tend()
        fault(self._field)

    def _rest(self, seconds: float, load: Load) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._say(self._field.blows[-1].kind if self._field.blows else "", load)
            time.sleep(min(left, TICK_S))

    def _say(self, what: str, load: Load) -> None:
        seconds = time.monotonic() - self._began
        self._watch(f"{seconds:4.0f} s, {len(load.sent)} sent, {len(self._field.blows)} faults, {what}")

    def _settle(self) -> None:
        url = self._field.admin_url()
        wait_until_settled(url, self._plan.patience_s, lambda left: self._watch(f"{left} left to end"))
        self._field.fleet.tend()
        self._insist_on_registered(url)
        self._field.fleet.stop()

    def _insist_on_registered(self, url: str) -> None:
        """Whoever was declared dead and is not has come back under a new name."""
        pids = [worker.pid for worker in self._field.fleet.live]
        deadline = time.monotonic() + self._plan.patience_s / 3
        with psycopg.connect(url, autocommit=True) as sql:
            while (row := sql.execute(REGISTERED, [pids]).fetchone()) != (len(pids),):
                if time.monotonic() > deadline:
                    self._account.problems.append(f"{len(pids)} workers live, and {row} are registered")
                    return
                time.sleep(TICK_S)

    def _judge(self, load: Load) -> None:
        with psycopg.connect(self._field.admin_url(), autocommit=True) as sql:
            history = History(
                notes=tuple(read_notes(self._field.fleet.notes)),
                sent=tuple(load.sent),
                keyed=tuple(load.keyed),
                cancels=tuple(load.cancels),
                got=tuple(load.got),
                rows=tuple(read_rows(sql)),
                flows=tuple(read_flows(sql)),
                started_flows=tuple(load.flows),
                blows=tuple(self._field.blows),
                caps=CAPS,
                judges_deaths=self._plan.dead_after_s >= PATIENT_S,
            )
        judge(self._account, history, self._field.fleet, load.errors)
