"""The sections of a run: one server with every fault; a pair that fails over; hosts that are cut off; one worker for the order."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg

from benchmarks.chaos import hosts
from benchmarks.chaos.check_section import check_section
from benchmarks.chaos.database import read_rows, unsettled, wait_until_settled
from benchmarks.chaos.environment import Environment
from benchmarks.chaos.faults import (
    HOST_FAULTS,
    ORDER,
    PAIR_FAULTS,
    PROCESS_FAULTS,
    SERVER_FAULTS,
    Fault,
    kill_child,
    kill_worker,
)
from benchmarks.chaos.fleet import ALL_ROUND, BUFFERED, CONCURRENT, Fleet, WorkerSpec
from benchmarks.chaos.history import History, Outcome, Sent
from benchmarks.chaos.notes import read_notes
from benchmarks.chaos.pair import scratch_pair
from benchmarks.chaos.plan import Account, OnProgress, Plan
from benchmarks.chaos.shop import make_shop
from benchmarks.chaos.trial import Trial
from horsies.db.broker import PostgresBroker
from horsies.model.config import PostgresConfig
from tests.fixtures.proxies import Proxy
from tests.fixtures.scratch_server import scratch_server

IN_ORDER = 400
SHARES = {"server": 0.65, "failover": 0.2, "hosts": 0.15}


def run_sections(plan: Plan, on_progress: Callable[[str, str], None]) -> Iterator[Account]:
    """Run the sections that the chosen faults need, until one is interrupted."""
    chosen = [name for name, kinds in SECTION_KINDS.items() if kinds & plan.kinds]
    whole = sum(SHARES.get(name, 0.0) for name in chosen) or 1.0
    for name in chosen:
        share = replace(plan, seconds=plan.seconds * SHARES.get(name, 0.0) / whole)
        began = time.monotonic()
        account = SECTIONS[name](share, lambda what, name=name: on_progress(name, what))
        account.seconds = time.monotonic() - began
        yield account
        if account.interrupted:
            return


def run_server(plan: Plan, on_progress: OnProgress) -> Account:
    """One server, reached through two proxies."""
    faults = _chosen(PROCESS_FAULTS | SERVER_FAULTS, plan)
    with ExitStack() as stack:
        server = stack.enter_context(scratch_server(settings=plan.settings))
        url = server.socket_url()
        PostgresBroker(PostgresConfig(database_url=url)).migrate()
        proxies = [stack.enter_context(closing(Proxy(url))) for _ in range(2)]
        specs = [
            WorkerSpec(proxies[0].url, ALL_ROUND, proxy=0),
            WorkerSpec(proxies[1].url, CONCURRENT, proxy=1),
            WorkerSpec(proxies[0].url, BUFFERED, prefetch="auto", proxy=0),
            WorkerSpec(proxies[1].url, BUFFERED, prefetch="20", proxy=1),
        ]
        env = _environment(stack, plan, "server", specs, lambda: url)
        env.server, env.proxies = server, proxies
        return Trial(plan, "server", env, on_progress).run([proxy.url for proxy in proxies], url, faults, plan.seconds)


def run_failover(plan: Plan, on_progress: OnProgress) -> Account:
    """A primary and its synchronous standby. The clients have both addresses."""
    faults = _chosen(PAIR_FAULTS, plan)
    with ExitStack() as stack:
        pair = stack.enter_context(scratch_pair(plan.settings))
        PostgresBroker(PostgresConfig(database_url=pair.url)).migrate()
        specs = [WorkerSpec(pair.url, ALL_ROUND), WorkerSpec(pair.url, CONCURRENT)]
        env = _environment(stack, plan, "failover", specs, pair.admin_url)
        env.pair = pair
        return Trial(plan, "failover", env, on_progress).run([pair.url], pair.url, faults, plan.seconds)


def run_hosts(plan: Plan, on_progress: OnProgress) -> Account:
    """Three hosts with a worker each."""
    if (reason := hosts.why_unavailable()) is not None:
        return Account("hosts", skipped=reason)
    faults = _chosen(HOST_FAULTS, plan)
    with ExitStack() as stack:
        there = stack.enter_context(hosts.scratch_hosts(3, plan.settings))
        url = there.server.socket_url()
        PostgresBroker(PostgresConfig(database_url=url)).migrate()
        specs = [WorkerSpec(there.url(host), ALL_ROUND, before=host.enter) for host in there.all]
        env = _environment(stack, plan, "hosts", specs, lambda: url)
        env.hosts = there
        return Trial(plan, "hosts", env, on_progress).run([url], url, faults, plan.seconds)


def run_order(plan: Plan, on_progress: OnProgress) -> Account:
    """One worker with one slot and a full queue, killed now and then. Retries would go to the end of the queue, so there are none."""
    account = Account(ORDER)
    with ExitStack() as stack:
        server = stack.enter_context(scratch_server(settings=plan.settings))
        url = server.socket_url()
        PostgresBroker(PostgresConfig(database_url=url)).migrate()
        specs = [WorkerSpec(url, ("--processes=1", "--max-tasks-per-child=0"))]
        env = _environment(stack, replace(plan, dead_after_s=2.0), ORDER, specs, lambda: url)
        sent = _send_in_order(url, env)
        env.fleet.start()
        try:
            _inject_in_order(env, url)
        except KeyboardInterrupt:
            account.interrupted = True
        wait_until_settled(url, plan.patience_s, lambda left: on_progress(f"{left} left to end"))
        env.fleet.stop()
        with psycopg.connect(url, autocommit=True) as sql:
            history = History(
                notes=tuple(read_notes(env.fleet.notes)),
                sent=tuple(sent),
                rows=tuple(read_rows(sql)),
                injections=tuple(env.injections),
                in_order=True,
            )
        check_section(account, history, env.fleet)
    return account


def _send_in_order(url: str, env: Environment) -> list[Sent]:
    shop = make_shop(url, dead_after_ms=2_000)
    with closing(shop.app):
        senders = [shop.once.with_options(priority=priority) for priority in (5, 50, 100)]
        return [
            Sent(n, Outcome.COMMITTED, time.time(), env.rng.choice(senders).send(n, 0.005).task_id)
            for n in range(IN_ORDER)
        ]


def _inject_in_order(env: Environment, url: str) -> None:
    """Kill a child or a worker after each fifth of the work."""
    with psycopg.connect(url, autocommit=True) as sql:
        for place, fault in enumerate((kill_child, kill_worker, kill_child, kill_worker), 1):
            while unsettled(sql) > IN_ORDER * (5 - place) // 5:
                time.sleep(0.02)
            fault(env)


def _environment(
    stack: ExitStack, plan: Plan, section: str, specs: Sequence[WorkerSpec], admin_url: Callable[[], str]
) -> Environment:
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="horsies-chaos-")))
    rng = plan.rng(section)
    fleet = Fleet(folder, specs, dead_after_ms=round(plan.dead_after_s * 1000), rng=rng)
    stack.enter_context(closing(fleet))
    return Environment(fleet, rng, plan.dead_after_s, admin_url, time.sleep)


def _chosen(faults: dict[str, Fault], plan: Plan) -> dict[str, Fault]:
    return {kind: fault for kind, fault in faults.items() if kind in plan.kinds}


SECTIONS: dict[str, Callable[[Plan, OnProgress], Account]] = {
    "server": run_server,
    "failover": run_failover,
    "hosts": run_hosts,
    ORDER: run_order,
}
SECTION_KINDS: dict[str, frozenset[str]] = {
    "server": frozenset(PROCESS_FAULTS | SERVER_FAULTS),
    "failover": frozenset(PAIR_FAULTS),
    "hosts": frozenset(HOST_FAULTS),
    ORDER: frozenset({ORDER}),
}
