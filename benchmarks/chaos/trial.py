"""One section: load and faults together, then a wait until everything has ended, then the check."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing

import psycopg

from benchmarks.chaos.check_section import check_section
from benchmarks.chaos.database import read_flows, read_rows, wait_until_settled
from benchmarks.chaos.environment import Environment
from benchmarks.chaos.faults import Fault
from benchmarks.chaos.history import History
from benchmarks.chaos.load import Load
from benchmarks.chaos.notes import read_notes
from benchmarks.chaos.plan import Account, OnProgress, Plan
from benchmarks.chaos.shop import CAPS, make_shop

TICK_S = 0.2
PATIENT_S = 5.0
"""Below this, a busy machine alone may delay a worker for that long."""
REGISTERED = "select count(*) from horsies.workers where pid = any(%s)"


class Trial:
    """After Ctrl-C (`interrupted`) the faults stop, and what has happened so far is checked."""

    def __init__(self, plan: Plan, section: str, env: Environment, on_progress: OnProgress) -> None:
        self._plan = plan
        self._env = env
        self._on_progress = on_progress
        self._account = Account(section)
        self._began = time.monotonic()

    def run(self, urls: Sequence[str], direct_url: str, faults: Mapping[str, Fault], seconds: float) -> Account:
        """Run the section. Producers send through these URLs."""
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
            self._env.fleet.start()
            load.start()
            try:
                self._inject_faults(faults, seconds, load)
            except KeyboardInterrupt:
                self._account.interrupted = True
            self._show("stopping the producers", load)
            load.stop()
            self._settle()
            self._check(load)
        return self._account

    def _inject_faults(self, faults: Mapping[str, Fault], seconds: float, load: Load) -> None:
        self._env.rest = lambda duration: self._rest(duration, load)
        if self._plan.faults is not None:
            for kind in self._plan.faults:
                self._do(faults[kind])
            return
        deadline, remaining = time.monotonic() + seconds, list[str]()
        while time.monotonic() < deadline:
            remaining = remaining or self._env.rng.sample(
                sorted(faults), len(faults)
            )  # each of them once before any is repeated
            self._do(faults[remaining.pop()])

    def _do(self, fault: Fault) -> None:
        self._env.rest(self._env.rng.uniform(*self._plan.rest_s))
        self._env.fleet.replace_exited()
        fault(self._env)

    def _rest(self, seconds: float, load: Load) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._show(self._env.injections[-1].kind if self._env.injections else "", load)
            time.sleep(min(left, TICK_S))

    def _show(self, what: str, load: Load) -> None:
        seconds = time.monotonic() - self._began
        self._on_progress(f"{seconds:4.0f} s, {len(load.sent)} sent, {len(self._env.injections)} faults, {what}")

    def _settle(self) -> None:
        url = self._env.admin_url()
        wait_until_settled(url, self._plan.patience_s, lambda left: self._on_progress(f"{left} left to end"))
        self._env.fleet.replace_exited()
        self._check_registered(url)
        self._env.fleet.stop()

    def _check_registered(self, url: str) -> None:
        """Check that every live worker is registered: one that was declared dead has registered with a new id."""
        pids = [worker.pid for worker in self._env.fleet.live]
        deadline = time.monotonic() + self._plan.patience_s / 3
        with psycopg.connect(url, autocommit=True) as sql:
            while (row := sql.execute(REGISTERED, [pids]).fetchone()) != (len(pids),):
                if time.monotonic() > deadline:
                    self._account.problems.append(f"{len(pids)} workers are alive, and {row} are registered")
                    return
                time.sleep(TICK_S)

    def _check(self, load: Load) -> None:
        with psycopg.connect(self._env.admin_url(), autocommit=True) as sql:
            history = History(
                notes=tuple(read_notes(self._env.fleet.notes)),
                sent=tuple(load.sent),
                keyed=tuple(load.keyed),
                cancels=tuple(load.cancels),
                got=tuple(load.got),
                rows=tuple(read_rows(sql)),
                flows=tuple(read_flows(sql)),
                started_flows=tuple(load.flows),
                injections=tuple(self._env.injections),
                caps=CAPS,
                checks_crashes=self._plan.dead_after_s >= PATIENT_S,
            )
        check_section(self._account, history, self._env.fleet, load.errors)
