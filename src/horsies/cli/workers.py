"""`horsies workers`: list, show and ping."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from operator import attrgetter

import click

from horsies.app import Horsies
from horsies.cli.options import database_command, find_id, parse_seconds
from horsies.cli.output import show_json, show_table, to_text
from horsies.model.validation import format_duration
from horsies.tasks.inspect import WorkerSummary

POLL_S = 0.02
REQUEST_AGAIN_S = 1.0  # a worker that is starting or reconnecting has missed the first request


@click.group()
def workers() -> None:
    """Inspect workers, and check that they respond."""


@database_command(workers.command)
def list_(target: Horsies, *, as_json: bool) -> None:
    """List the registered workers, oldest first.

    A worker registers when it starts. It is removed when it stops, or some time after its last heartbeat. Ages use the database's clock.

    \b
    horsies workers list --app shop:app
    """
    registered = target.ops.list_workers()
    if as_json:
        show_json({"workers": registered})
    else:
        show_workers(registered)


def show_workers(registered: Sequence[WorkerSummary]) -> None:
    show_table(
        ["WORKER", "APP", "HOST", "PID", "SLOTS", "RUNNING", "CLAIMED", "HEARTBEAT", "UP SINCE", "MEMORY MB", "QUEUES"],
        [
            (
                worker.id, worker.app, worker.hostname, worker.pid, worker.processes * worker.concurrency,
                worker.tasks_running, worker.tasks_claimed, f"{format_duration(worker.heartbeat_age_s)} ago", worker.started_at,
                None if worker.memory_usage_mb is None else round(worker.memory_usage_mb + (worker.children_memory_mb or 0)),
                worker.queues,
            )
            for worker in registered
        ],
        empty="no worker is registered",
    )  # fmt: skip


@database_command(
    workers.command,
    click.argument("worker_id", metavar="ID"),
    click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="Number of snapshots."),
)
def show(target: Horsies, *, worker_id: str, limit: int, as_json: bool) -> None:
    """Show one worker and its health over time, newest first. A prefix of its id is enough.

    Also works for workers that are gone: snapshots are kept for a day.

    \b
    horsies workers show 36101082 --limit 100
    """
    full_id = find_id(target, "worker", worker_id)
    worker = next((worker for worker in target.ops.list_workers() if worker.id == full_id), None)
    states = target.ops.list_worker_states(full_id, limit=limit)
    if as_json:
        show_json({"id": full_id, "is_registered": worker is not None, "worker": worker, "states": states})
        return
    facts = asdict(worker) if worker else {"id": full_id, "state": "no longer registered"}
    for name, value in facts.items():
        click.echo(f"{name:<20}{to_text(value)}")
    click.echo()
    headings = ["AT", "RUNNING", "CLAIMED", "MEMORY MB", "CHILDREN MB", "CPU %", "CHILDREN CPU %"]
    memory, cpu = ("memory_usage_mb", "children_memory_mb"), ("cpu_percent", "children_cpu_percent")
    cells = attrgetter("snapshot_at", "tasks_running", "tasks_claimed", *memory, *cpu)
    show_table(headings, map(cells, states), empty="there is no snapshot of its health yet")


@database_command(
    workers.command,
    click.argument("worker_ids", metavar="[ID]...", nargs=-1),
    click.option("--timeout", type=parse_seconds, default="10s", show_default=True, metavar="TIME", help="How long to wait."),
)  # fmt: skip
def ping(target: Horsies, *, worker_ids: Sequence[str], timeout: float, as_json: bool) -> None:
    """Request a heartbeat from these workers, or from all that are registered.

    The request is a notification. The worker's event loop answers at once, even if all children are busy. A worker that does not receive
    notifications (behind a pooler, without listen_url) answers with its next regular heartbeat. Exit code 1: a worker has not answered.

    \b
    horsies workers ping --timeout 30s
    """
    pinged = [find_id(target, "worker", prefix) for prefix in worker_ids]
    ids = pinged or [worker.id for worker in target.ops.list_workers()]
    answered = _ping(target, ids, timeout)
    if as_json:
        show_json({"workers": [{"worker_id": worker, "answered_ms": answered.get(worker)} for worker in ids]})
    else:
        rows = [(worker, f"{answered[worker]:.0f} ms" if worker in answered else "no answer") for worker in ids]
        show_table(["WORKER", "ANSWER"], rows, empty="no worker is registered")
    if not ids or len(answered) < len(set(ids)):
        raise click.exceptions.Exit(1)


def _ping(target: Horsies, worker_ids: Sequence[str], timeout_s: float) -> dict[str, float]:
    """Return how many milliseconds each worker took that answered. Poll: LISTEN would not work behind a pooler."""
    started = requested = time.monotonic()
    before = target.ops.request_heartbeats(worker_ids)
    answered = dict[str, float]()
    while pending := [worker for worker in before if worker not in answered]:
        time.sleep(POLL_S)
        if is_request_due := time.monotonic() - requested > REQUEST_AGAIN_S:
            requested = time.monotonic()
        now = (target.ops.request_heartbeats if is_request_due else target.ops.get_heartbeats)(pending)
        elapsed_s = time.monotonic() - started
        answered |= {worker: elapsed_s * 1000 for worker in pending if worker in now and now[worker] != before[worker]}
        if elapsed_s > timeout_s:
            break
    return answered
