"""Workers: whether they live, whether one of them is the keeper, and whether they agree with each other and with the app."""

from collections.abc import Iterator, Sequence

from horsies.db.statement import Op, Row, execute, load
from horsies.doctor.findings import NAMED, CheckContext, Finding, FindingCode
from horsies.model.validation import format_duration

SETTLED_S = 10.0  # by then a worker that has just started, or the next in line, has taken the lease

SQL = load(__file__)


def check_workers(case: CheckContext) -> Op[list[Finding]]:
    workers, lag, clashes = yield from execute(
        SQL["get_workers"](), SQL["get_maintenance_lag"](), SQL["get_task_clashes"](stale_after_s=case.stale_after_s)
    )
    stale = [row for row in workers if row[5] > case.stale_after_s]
    living = [row for row in workers if row[5] <= case.stale_after_s]
    found: list[Finding] = []
    if stale:
        named = ", ".join(
            f"{host} pid {pid} ({format_duration(silent)})" for _, host, pid, _, _, silent, *_ in stale[:NAMED]
        )
        seen = f"{len(stale)} workers are silent: {named}{', …' if len(stale) > NAMED else ''}"
        found.append(Finding(FindingCode.STALE_WORKERS, seen, {"worker_ids": [row[0] for row in stale]}))
    if not living:
        return [*found, Finding(FindingCode.NO_WORKERS, "no worker is alive")]
    return [
        *found,
        *_leader_missing(living, lag),
        *_versions_differ(living),
        *_queues_differ(case, living),
        *_tasks_clash(clashes),
    ]


def _leader_missing(living: Sequence[Row], lag: Sequence[Row]) -> Iterator[Finding]:
    oldest_s = max(row[6] for row in living)
    if not lag and oldest_s > SETTLED_S:
        yield Finding(
            FindingCode.LEADER_MISSING, f"{len(living)} workers are alive, and nobody holds the keeper's lease"
        )
    for (since_s,) in lag:
        if since_s > SETTLED_S and oldest_s > SETTLED_S:
            yield Finding(FindingCode.LEADER_MISSING, f"the keeper's lease ran out {format_duration(since_s)} ago")


def _versions_differ(living: Sequence[Row]) -> Iterator[Finding]:
    versions = sorted({row[4] for row in living})
    if len(versions) > 1:
        counts = {version: sum(row[4] == version for row in living) for version in versions}
        words = ", ".join(f"{count} of {version}" for version, count in counts.items())
        yield Finding(FindingCode.WORKER_VERSIONS_DIFFER, f"workers are alive: {words}", {"workers": counts})


def _queues_differ(case: CheckContext, living: Sequence[Row]) -> Iterator[Finding]:
    if case.queues is None:
        return
    ours, served = {queue.name for queue in case.queues}, {queue for row in living for queue in row[3]}
    if alone := sorted(ours - served):
        yield Finding(FindingCode.QUEUE_WITHOUT_WORKER, f"no worker serves {', '.join(alone)}", {"queues": alone})
    served_for_us = {queue for row in living if row[7] in (None, case.app, case.locator) for queue in row[3]}
    if unknown := sorted(served_for_us - ours):
        yield Finding(FindingCode.QUEUE_UNKNOWN, f"workers serve {', '.join(unknown)}", {"queues": unknown})


def _tasks_clash(clashes: Sequence[Row]) -> Iterator[Finding]:
    if clashes:
        named = ", ".join(f"{name} (of apps {', '.join(apps)})" for name, apps in clashes[:NAMED])
        seen = f"{len(clashes)} task names are in more than one app: {named}{', …' if len(clashes) > NAMED else ''}"
        yield Finding(FindingCode.TASK_NAME_CLASH, seen, {"tasks": {name: list(apps) for name, apps in clashes}})
