"""The sections of a run: one server under every fault; a pair that fails over; hosts that are cut off; one worker that must keep the order."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg

from benchmarks.chaos import hosts
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
from benchmarks.chaos.field import Field
from benchmarks.chaos.fleet import ALL_ROUND, BUFFERED, CROWDED, Fleet, Post
from benchmarks.chaos.history import History, Outcome, Sent
from benchmarks.chaos.judge import judge
from benchmarks.chaos.ledger import read_rows, unsettled, wait_until_settled
from benchmarks.chaos.notes import read_notes
from benchmarks.chaos.pair import scratch_pair
from benchmarks.chaos.plan import Account, Plan, Watch
from benchmarks.chaos.shop import make_shop
from benchmarks.chaos.trial import Trial
from horsies.db.broker import PostgresBroker
from horsies.model.config import PostgresConfig
from tests.fixtures.proxies import Proxy
from tests.fixtures.scratch_server import scratch_server

IN_ORDER = 400
SHARES = {"server": 0.65, "failover": 0.2, "hosts": 0.15}


def run_sections(plan: Plan, watch: Callable[[str, str], None]) -> Iterator[Account]:
    """Those that the chosen kinds of faults need, until one is interrupted."""
    chosen = [name for name, kinds in SECTION_KINDS.items() if kinds & plan.kinds]
    whole = sum(SHARES.get(name, 0.0) for name in chosen) or 1.0
    for name in chosen:
        share = replace(plan, seconds=plan.seconds * SHARES.get(name, 0.0) / whole)
        began = time.monotonic()
        account = SECTIONS[name](share, lambda what, name=name: watch(name, what))
        account.seconds = time.monotonic() - began
        yield account
        if account.interrupted:
            return


def run_server(plan: Plan, watch: Watch) -> Account:
    """One server, reached over two lines."""
    faults = _chosen(PROCESS_FAULTS | SERVER_FAULTS, plan)
    with ExitStack() as stack:
        server = stack.enter_context(scratch_server(settings=plan.settings))
        url = server.socket_url()
        PostgresBroker(PostgresConfig(database_url=url)).migrate()
        lines = [stack.enter_context(closing(Proxy(url))) for _ in range(2)]
        posts = [
            Post(lines[0].url, ALL_ROUND, line=0),
            Post(lines[1].url, CROWDED, line=1),
            Post(lines[0].url, BUFFERED, prefetch="auto", line=0),
            Post(lines[1].url, BUFFERED, prefetch="20", line=1),
        ]
        field = _field(stack, plan, "server", posts, lambda: url)
        field.server, field.lines = server, lines
        return Trial(plan, "server", field, watch).run([line.url for line in lines], url, faults, plan.seconds)


def run_failover(plan: Plan, watch: Watch) -> Account:
    """A primary and its synchronous standby; the clients know both addresses."""
    faults = _chosen(PAIR_FAULTS, plan)
    with ExitStack() as stack:
        pair = stack.enter_context(scratch_pair(plan.settings))
        PostgresBroker(PostgresConfig(database_url=pair.url)).migrate()
        posts = [Post(pair.url, ALL_ROUND), Post(pair.url, CROWDED)]
        field = _field(stack, plan, "failover", posts, pair.admin_url)
        field.pair = pair
        return Trial(plan, "failover", field, watch).run([pair.url], pair.url, faults, plan.seconds)


def run_hosts(plan: Plan, watch: Watch) -> Account:
    """Three hosts with a worker each."""
    if (reason := hosts.why_not()) is not None:
        return Account("hosts", skipped=reason)
    faults = _chosen(HOST_FAULTS, plan)
    with ExitStack() as stack:
        there = stack.enter_context(hosts.scratch_hosts(3, plan.settings))
        url = there.server.socket_url()
        PostgresBroker(PostgresConfig(database_url=url)).migrate()
        posts = [Post(there.url(host), ALL_ROUND, before=host.enter) for host in there.all]
        field = _field(stack, plan, "hosts", posts, lambda: url)
        field.hosts = there
        return Trial(plan, "hosts", field, watch).run([url], url, faults, plan.seconds)


def run_order(plan: Plan, watch: Watch) -> Account:
    """One worker with one slot finds everything waiting, and is killed now and then. Retries would go to the back, so nothing has any."""
    account = Account(ORDER)
    with ExitStack() as stack:
        server = stack.enter_context(scratch_server(settings=plan.settings))
        url = server.socket_url()
        PostgresBroker(PostgresConfig(database_url=url)).migrate()
        posts = [Post(url, ("--processes=1", "--max-tasks-per-child=0"))]
        field = _field(stack, replace(plan, dead_after_s=2.0), ORDER, posts, lambda: url)
        sent = _send_in_order(url, field)
        field.fleet.start()
        try:
            _strike_in_order(field, url)
        except KeyboardInterrupt:
            account.interrupted = True
        wait_until_settled(url, plan.patience_s, lambda left: watch(f"{left} left to end"))
        field.fleet.stop()
        with psycopg.connect(url, autocommit=True) as sql:
            history = History(
                notes=tuple(read_notes(field.fleet.notes)),
                sent=tuple(sent),
                rows=tuple(read_rows(sql)),
                blows=tuple(field.blows),
                in_order=True,
            )
        judge(account, history, field.fleet)
    return account


def _send_in_order(url: str, field: Field) -> list[Sent]:
    shop = make_shop(url, dead_after_ms=2_000)
    with closing(shop.app):
        senders = [shop.once.with_options(priority=priority) for priority in (5, 50, 100)]
        return [
            Sent(n, Outcome.COMMITTED, time.time(), field.rng.choice(senders).send(n, 0.005).task_id)
            for n in range(IN_ORDER)
        ]


def _strike_in_order(field: Field, url: str) -> None:
    """At each fifth of the work: a child, a worker, and so on."""
    with psycopg.connect(url, autocommit=True) as sql:
        for place, fault in enumerate((kill_child, kill_worker, kill_child, kill_worker), 1):
            while unsettled(sql) > IN_ORDER * (5 - place) // 5:
                time.sleep(0.02)
            fault(field)


def _field(stack: ExitStack, plan: Plan, section: str, posts: Sequence[Post], admin_url: Callable[[], str]) -> Field:
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="horsies-chaos-")))
    rng = plan.rng(section)
    fleet = Fleet(folder, posts, dead_after_ms=round(plan.dead_after_s * 1000), rng=rng)
    stack.enter_context(closing(fleet))
    return Field(fleet, rng, plan.dead_after_s, admin_url, time.sleep)


def _chosen(faults: dict[str, Fault], plan: Plan) -> dict[str, Fault]:
    return {kind: fault for kind, fault in faults.items() if kind in plan.kinds}


SECTIONS: dict[str, Callable[[Plan, Watch], Account]] = {
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
