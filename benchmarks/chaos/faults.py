"""The faults. Each one is injected, lasts for a time, and is then repaired, also after an interruption."""

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Final

import psutil
import psycopg

from benchmarks.chaos.environment import Environment
from benchmarks.chaos.fleet import Worker, pause, resume
from horsies.db.channels import Channel
from tests.fixtures.proxies import Proxy

HOG_LIMIT: Final = 500
FORGED: Final = 50
FROZEN_S: Final = 60.0


def kill_worker(env: Environment) -> None:
    _kill(env, "kill-worker", env.fleet.any_worker())


def kill_leader(env: Environment) -> None:
    """Kill the worker that holds the maintenance lease now."""
    with psycopg.connect(env.admin_url(), autocommit=True) as sql:
        row = sql.execute(
            "select pid from horsies.maintenance_lease join horsies.workers on workers.id = maintenance_lease.holder"
        ).fetchone()
    leader = None if row is None else env.fleet.with_pid(row[0])
    if leader is not None:
        _kill(env, "kill-leader", leader)


def _kill(env: Environment, kind: str, worker: Worker) -> None:
    with env.inject(kind, workers=[worker.name]):
        env.fleet.kill(worker)


def kill_child(env: Environment) -> None:
    """Kill a child, or the fork server with all its children. The worker must be ready: one that loses a child while it
    starts exits with an error.
    """
    worker = env.fleet.any_worker()
    children = worker.descendants()
    if not worker.is_ready or not children:
        return
    child = env.rng.choice(children)
    with suppress(psutil.NoSuchProcess):
        below = [process.pid for process in child.children(recursive=True)]
        with env.inject("kill-child", pids=[child.pid, *below]):
            child.kill()


def pause_worker(env: Environment) -> None:
    """Pause a worker for longer than `dead_after_ms`: it is declared dead, and continues. Alone, or with its children."""
    worker = env.fleet.any_worker()
    pids = worker.tree() if env.rng.random() < 0.5 else [worker.pid]
    with env.inject("pause", workers=[worker.name]):
        pause(pids)
        try:
            env.rest(env.dead_after_s + env.rng.uniform(1, 3))
        finally:
            resume(pids)


def leave(env: Environment) -> None:
    """Send SIGTERM, as in a deployment. No task may crash. A worker that is not ready may not handle the signal yet."""
    worker = env.fleet.any_worker()
    if worker.is_ready:
        with env.inject("leave"):
            env.fleet.leave(worker)


def freeze_child(env: Environment) -> None:
    """Stop one child with SIGSTOP. Its worker must notice, kill it and replace it: it is never resumed."""
    worker = env.fleet.any_worker()
    with suppress(psutil.NoSuchProcess):
        children = [child for child in worker.descendants() if not child.children()]  # not the fork server
        if worker.is_ready and children:
            _freeze(env, worker, env.rng.choice(children))


def _freeze(env: Environment, worker: Worker, child: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess), env.inject("freeze-child", pids=[child.pid]):
        pause([child.pid])
        deadline = time.monotonic() + FROZEN_S
        while child.is_running() and child.status() == psutil.STATUS_STOPPED:
            if time.monotonic() > deadline:
                env.fleet.problems.append(f"worker {worker.name} has not noticed its frozen child {child.pid}")
                child.kill()
            env.rest(0.2)


def forge(env: Environment) -> None:
    """Send forged and malformed notifications, by a role without privileges."""
    with env.inject("forge"), psycopg.connect(env.admin_url(), autocommit=True) as sql:
        workers = [str(worker) for (worker,) in sql.execute("select id from horsies.workers").fetchall()]
        tasks = [str(task) for (task,) in sql.execute("select id from horsies.tasks limit 100").fetchall()]
        sql.execute("do $$ begin create role unprivileged; exception when duplicate_object then null; end $$")
        sql.execute("set role unprivileged")
        for _ in range(FORGED):
            channel = env.rng.choice(list(Channel)).name_in("horsies")
            sql.execute("select pg_notify(%s, %s)", [channel, _forged(env, workers, tasks)])


def _forged(env: Environment, workers: list[str], tasks: list[str]) -> str:
    rng = env.rng
    number = str(rng.choice([0, -1, 7, 2**31, 2**63, -(2**63), 10**40]))
    worker, task = rng.choice(workers or ["x"]), rng.choice(tasks or ["y"])
    return rng.choice(
        [
            "",
            "*",
            "freed",
            f"later {number}",
            "later soon",
            f"{number} {number} bulk",
            f"{number} 1 flows",
            f"100 {number} bulk",
            f"{worker} cancel {task}",
            f"{worker} leave",
            f"{worker} ping {task}",
            task,
            "x" * 7_000,
        ]
    )


def restart(env: Environment) -> None:
    assert env.server is not None  # noqa: S101 - of the section with one server
    with env.inject("restart"):
        env.server.restart()


def crash_server(env: Environment) -> None:
    """Kill all its processes at once. The next start recovers from the WAL."""
    assert env.server is not None  # noqa: S101 - as above
    with env.inject("crash-server"):
        env.server.stop("immediate")
        try:
            env.rest(env.rng.uniform(0, 2))
        finally:
            env.server.start()


def freeze_server(env: Environment) -> None:
    assert env.server is not None  # noqa: S101 - as above
    pid = env.server.pid
    pids = [pid, *(process.pid for process in psutil.Process(pid).children(recursive=True))]
    with env.inject("freeze-server"):
        pause(pids)
        try:
            env.rest(env.rng.uniform(1, env.dead_after_s + 1))
        finally:
            resume(pids)


def cut(env: Environment) -> None:
    """Break and refuse connections: all of them, or those through one proxy."""
    _disturb(env, "cut", Proxy.cut, Proxy.heal)


def stall(env: Environment) -> None:
    """Pass no data, without reporting an error."""
    _disturb(env, "stall", Proxy.freeze, Proxy.thaw)


def _disturb(env: Environment, kind: str, inject: Callable[[Proxy], None], repair: Callable[[Proxy], None]) -> None:
    proxies = env.rng.choice([list(env.proxies), [env.rng.choice(list(env.proxies))]])
    alone = len(proxies) < len(env.proxies)
    there = [worker.name for worker in env.fleet.live if alone and env.proxies[worker.spec.proxy] in proxies]
    with env.inject(kind, workers=there), ExitStack() as stack:
        for proxy in proxies:
            inject(proxy)
            stack.callback(repair, proxy)
        env.rest(env.rng.choice([0.5, env.dead_after_s / 2, env.dead_after_s + 2]))


def slow(env: Environment) -> None:
    with env.inject("slow"), ExitStack() as stack:
        for proxy in env.proxies:
            proxy.slow(env.rng.uniform(0.01, 0.1))
            stack.callback(proxy.slow, 0.0)
        env.rest(env.dead_after_s / 2)


def hog(env: Environment) -> None:
    """Take every connection that is left. For less than `dead_after_ms`: a worker without a connection cannot send heartbeats."""
    with env.inject("hog"), ExitStack() as stack:
        with suppress(psycopg.OperationalError):
            for _ in range(HOG_LIMIT):
                stack.enter_context(psycopg.connect(env.admin_url(), autocommit=True))
        env.rest(env.dead_after_s / 2)


def fail_over(env: Environment) -> None:
    """Kill the primary, promote its standby, and create a new standby."""
    assert env.pair is not None  # noqa: S101 - of the section with a pair
    with env.inject("failover"):
        env.pair.fail_over()
    env.rest(env.rng.uniform(1, 3))
    env.pair.rejoin()


def cut_host(env: Environment) -> None:
    """Take the link of a host down for longer than `dead_after_ms`, and up again."""
    assert env.hosts is not None  # noqa: S101 - of the section with hosts
    host = env.rng.choice(env.hosts.all)
    there = [worker.name for worker in env.fleet.live if worker.spec.before == host.enter]
    with env.inject("cut-host", workers=there):
        host.down()
        try:
            env.rest(env.dead_after_s + env.rng.uniform(2, 4))
        finally:
            host.up()


Fault = Callable[[Environment], None]

PROCESS_FAULTS: Final[dict[str, Fault]] = {
    "kill-worker": kill_worker,
    "kill-child": kill_child,
    "kill-leader": kill_leader,
    "freeze-child": freeze_child,
    "forge": forge,
    "pause": pause_worker,
    "leave": leave,
}
SERVER_FAULTS: Final[dict[str, Fault]] = {
    "restart": restart,
    "crash-server": crash_server,
    "freeze-server": freeze_server,
    "cut": cut,
    "stall": stall,
    "slow": slow,
    "hog": hog,
}
PAIR_FAULTS: Final[dict[str, Fault]] = {"failover": fail_over}
HOST_FAULTS: Final[dict[str, Fault]] = {"cut-host": cut_host}
ORDER: Final = "order"
KINDS: Final = (*PROCESS_FAULTS, *SERVER_FAULTS, *PAIR_FAULTS, *HOST_FAULTS, ORDER)
