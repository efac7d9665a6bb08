"""The faults. Each does its harm, waits, and mends it, also when it is interrupted."""

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Final

import psutil
import psycopg

from benchmarks.chaos.field import Field
from benchmarks.chaos.fleet import Worker, pause, resume
from horsies.db.channels import Channel
from tests.fixtures.proxies import Proxy

HOG_LIMIT: Final = 500
FORGED: Final = 50
FROZEN_S: Final = 60.0


def kill_worker(field: Field) -> None:
    _kill(field, "kill-worker", field.fleet.any_worker())


def kill_keeper(field: Field) -> None:
    """Whoever holds the lease now."""
    with psycopg.connect(field.admin_url(), autocommit=True) as sql:
        row = sql.execute(
            "select pid from horsies.maintenance_lease join horsies.workers on workers.id = maintenance_lease.holder"
        ).fetchone()
    leader = None if row is None else field.fleet.with_pid(row[0])
    if leader is not None:
        _kill(field, "kill-keeper", leader)


def _kill(field: Field, kind: str, worker: Worker) -> None:
    with field.blow(kind, workers=[worker.name]):
        field.fleet.kill(worker)


def kill_child(field: Field) -> None:
    """Or the template that children are forked from, with all that come from it. Of a worker that is ready: one that loses a child
    while it starts refuses to, which is for whoever started it to see.
    """
    worker = field.fleet.any_worker()
    children = worker.descendants()
    if not worker.is_ready or not children:
        return
    child = field.rng.choice(children)
    with suppress(psutil.NoSuchProcess):
        below = [process.pid for process in child.children(recursive=True)]
        with field.blow("kill-child", pids=[child.pid, *below]):
            child.kill()


def pause_worker(field: Field) -> None:
    """Longer than the keeper's patience: it is declared dead, and comes back. Alone, or with its children, as a paused machine would."""
    worker = field.fleet.any_worker()
    pids = worker.tree() if field.rng.random() < 0.5 else [worker.pid]
    with field.blow("pause", workers=[worker.name]):
        pause(pids)
        try:
            field.rest(field.dead_after_s + field.rng.uniform(1, 3))
        finally:
            resume(pids)


def leave(field: Field) -> None:
    """A deployment: SIGTERM. Nothing may crash of it. One that is not ready yet may not even have heard of the signal."""
    worker = field.fleet.any_worker()
    if worker.is_ready:
        with field.blow("leave"):
            field.fleet.leave(worker)


def freeze_child(field: Field) -> None:
    """SIGSTOP of one child. Its worker must notice, kill it and replace it: nobody resumes it."""
    worker = field.fleet.any_worker()
    with suppress(psutil.NoSuchProcess):
        children = [child for child in worker.descendants() if not child.children()]  # not what they are forked from
        if worker.is_ready and children:
            _freeze(field, worker, field.rng.choice(children))


def _freeze(field: Field, worker: Worker, child: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess), field.blow("freeze-child", pids=[child.pid]):
        pause([child.pid])
        deadline = time.monotonic() + FROZEN_S
        while child.is_running() and child.status() == psutil.STATUS_STOPPED:
            if time.monotonic() > deadline:
                field.fleet.problems.append(f"worker {worker.name} has not noticed its frozen child {child.pid}")
                child.kill()
            field.rest(0.2)


def forge(field: Field) -> None:
    """Somebody without a privilege sends notifications that look like ours, and some that do not."""
    with field.blow("forge"), psycopg.connect(field.admin_url(), autocommit=True) as sql:
        workers = [str(worker) for (worker,) in sql.execute("select id from horsies.workers").fetchall()]
        tasks = [str(task) for (task,) in sql.execute("select id from horsies.tasks limit 100").fetchall()]
        sql.execute("do $$ begin create role nobody_special; exception when duplicate_object then null; end $$")
        sql.execute("set role nobody_special")
        for _ in range(FORGED):
            channel = field.rng.choice(list(Channel)).name_in("horsies")
            sql.execute("select pg_notify(%s, %s)", [channel, _forged(field, workers, tasks)])


def _forged(field: Field, workers: list[str], tasks: list[str]) -> str:
    rng = field.rng
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


def restart(field: Field) -> None:
    assert field.server is not None  # noqa: S101 - of the section with one server
    with field.blow("restart"):
        field.server.restart()


def crash_server(field: Field) -> None:
    """Every process of it dies at once; the next start recovers from its log."""
    assert field.server is not None  # noqa: S101 - as above
    with field.blow("crash-server"):
        field.server.stop("immediate")
        try:
            field.rest(field.rng.uniform(0, 2))
        finally:
            field.server.start()


def freeze_server(field: Field) -> None:
    assert field.server is not None  # noqa: S101 - as above
    pid = field.server.pid
    pids = [pid, *(process.pid for process in psutil.Process(pid).children(recursive=True))]
    with field.blow("freeze-server"):
        pause(pids)
        try:
            field.rest(field.rng.uniform(1, field.dead_after_s + 1))
        finally:
            resume(pids)


def cut(field: Field) -> None:
    """Connections break, and none can be made: for all, or for those on one line."""
    _disturb(field, "cut", Proxy.cut, Proxy.heal)


def stall(field: Field) -> None:
    """Nothing comes through, and nobody is told."""
    _disturb(field, "stall", Proxy.freeze, Proxy.thaw)


def _disturb(field: Field, kind: str, harm: Callable[[Proxy], None], mend: Callable[[Proxy], None]) -> None:
    lines = field.rng.choice([list(field.lines), [field.rng.choice(list(field.lines))]])
    alone = len(lines) < len(field.lines)
    there = [worker.name for worker in field.fleet.live if alone and field.lines[worker.post.line] in lines]
    with field.blow(kind, workers=there), ExitStack() as stack:
        for line in lines:
            harm(line)
            stack.callback(mend, line)
        field.rest(field.rng.choice([0.5, field.dead_after_s / 2, field.dead_after_s + 2]))


def slow(field: Field) -> None:
    with field.blow("slow"), ExitStack() as stack:
        for line in field.lines:
            line.slow(field.rng.uniform(0.01, 0.1))
            stack.callback(line.slow, 0.0)
        field.rest(field.dead_after_s / 2)


def hog(field: Field) -> None:
    """Somebody takes every connection that is left. Shorter than the keeper's patience: who has none left cannot show that it lives."""
    with field.blow("hog"), ExitStack() as stack:
        with suppress(psycopg.OperationalError):
            for _ in range(HOG_LIMIT):
                stack.enter_context(psycopg.connect(field.admin_url(), autocommit=True))
        field.rest(field.dead_after_s / 2)


def fail_over(field: Field) -> None:
    """The primary dies and its standby takes over; a new standby is made."""
    assert field.pair is not None  # noqa: S101 - of the section with a pair
    with field.blow("failover"):
        field.pair.fail_over()
    field.rest(field.rng.uniform(1, 3))
    field.pair.rejoin()


def cut_host(field: Field) -> None:
    """A host's link goes down for longer than the keeper's patience, and comes back."""
    assert field.hosts is not None  # noqa: S101 - of the section with hosts
    host = field.rng.choice(field.hosts.all)
    there = [worker.name for worker in field.fleet.live if worker.post.before == host.enter]
    with field.blow("cut-host", workers=there):
        host.down()
        try:
            field.rest(field.dead_after_s + field.rng.uniform(2, 4))
        finally:
            host.up()


Fault = Callable[[Field], None]

PROCESS_FAULTS: Final[dict[str, Fault]] = {
    "kill-worker": kill_worker,
    "kill-child": kill_child,
    "kill-keeper": kill_keeper,
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
