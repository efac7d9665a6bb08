"""Workers: whether they live, whether one of them is the keeper, and whether they agree with each other and with the app."""

from collections.abc import Iterator, Sequence

from horsies.db.load import load
from horsies.db.op import Op, Row, ask
from horsies.doctor.case import Case
from horsies.doctor.codes import Code
from horsies.doctor.finding import Finding
from horsies.doctor.words import NAMED
from horsies.model.durations import duration

SETTLED_S = 10.0  # by then a worker that has just started, or the next in line, has taken the lease

SQL = load(__file__)


def check_workers(case: Case) -> Op[list[Finding]]:
    workers, lag, clashes = yield from ask(
        SQL["get_workers"](), SQL["get_maintenance_lag"](), SQL["get_task_clashes"](stale_after_s=case.stale_after_s)
    )
    stale = [row for row in workers if row[5] > case.stale_after_s]
    living = [row for row in workers if row[5] <= case.stale_after_s]
    found: list[Finding] = []
    if stale:
        named = ", ".join(f"{host} pid {pid} ({duration(silent)})" for _, host, pid, _, _, silent, *_ in stale[:NAMED])
        seen = f"{len(stale)} workers are silent: {named}{', …' if len(stale) > NAMED else ''}"
        found.append(Finding(Code.STALE_WORKERS, seen, {"worker_ids": [row[0] for row in stale]}))
    if not living:
        return [*found, Finding(Code.NO_WORKERS, "no worker is alive")]
    return [
        *found,
        *_keeper_missing(living, lag),
        *_versions_differ(living),
        *_queues_differ(case, living),
        *_tasks_clash(clashes),
    ]


def _keeper_missing(living: Sequence[Row], lag: Sequence[Row]) -> Iterator[Finding]:
    oldest_s = max(row[6] for row in living)
    if not lag and oldest_s > SETTLED_S:
        yield Finding(Code.KEEPER_MISSING, f"{len(living)} workers are alive, and nobody holds the keeper's lease")
    for (since_s,) in lag:
        if since_s > SETTLED_S and oldest_s > SETTLED_S:
            yield Finding(Code.KEEPER_MISSING, f"the keeper's lease ran out {duration(since_s)} ago")


def _versions_differ(living: Sequence[Row]) -> Iterator[Finding]:
    versions = sorted({row[4] for row in living})
    if len(versions) > 1:
        counts = {version: sum(row[4] == version for row in living) for version in versions}
        words = ", ".join(f"{count} of {version}" for version, count in counts.items())
        yield Finding(Code.WORKER_VERSIONS_DIFFER, f"workers are alive: {words}", {"workers": counts})


def _queues_differ(case: Case, living: Sequence[Row]) -> Iterator[Finding]:
    if case.queues is None:
        return
    ours, served = {queue.name for queue in case.queues}, {queue for row in living for queue in row[3]}
    if alone := sorted(ours - served):
        yield Finding(Code.QUEUE_WITHOUT_WORKER, f"no worker serves {', '.join(alone)}", {"queues": alone})
    served_for_us = {queue for row in living if row[7] in (None, case.app, case.locator) for queue in row[3]}
    if unknown := sorted(served_for_us - ours):
        yield Finding(Code.QUEUE_UNKNOWN, f"workers serve {', '.join(unknown)}", {"queues": unknown})


def _tasks_clash(clashes: Sequence[Row]) -> Iterator[Finding]:
    if clashes:
        named = ", ".join(f"{name} (of apps {', '.join(apps)})" for name, apps in clashes[:NAMED])
        seen = f"{len(clashes)} task names are in more than one app: {named}{', …' if len(clashes) > NAMED else ''}"
        yield Finding(Code.TASK_NAME_CLASH, seen, {"tasks": {name: list(apps) for name, apps in clashes}})
