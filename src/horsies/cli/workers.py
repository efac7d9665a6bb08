"""`horsies workers`: list, show, ping and leave."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from operator import attrgetter

import click
from rich.text import Text

from horsies.app import Horsies
from horsies.cli.options import database_command, find_id, parse_seconds
from horsies.cli.output import (
    Column,
    counts_text,
    echo,
    show_facts,
    show_json,
    show_table,
    show_table_lines,
    table_lines,
    terminal_size,
    to_age,
    wide_option,
)
from horsies.model.validation import format_duration
from horsies.tasks.inspect import WorkerSummary
from horsies.tasks.workers import ChildState, DeadWorker

POLL_S = 0.02
REQUEST_AGAIN_S = 1.0  # a worker that is starting or reconnecting has missed the first request


@click.group()
def workers() -> None:
    """Inspect workers, check that they respond, and ask them to leave."""


@database_command(
    workers.command,
    click.option("--dead", is_flag=True, help="The workers that died in the last day, and what became of their tasks."),
    wide_option,
)
def list_(target: Horsies, *, dead: bool, as_json: bool) -> None:
    """List the registered workers, oldest first; with --dead, those that died, the newest first.

    A worker registers when it starts. It is removed when it stops, or some time after its last heartbeat. Ages use the database's clock.

    \b
    horsies workers list --app shop:app
    horsies workers list --dead
    """
    if dead:
        found = target.ops.list_dead_workers()
        lines = dead_worker_table(found, target.ops.read_clock(), terminal_size()[0])
    else:
        found = target.ops.list_workers()
        lines = worker_table(found, terminal_size()[0])
    if as_json:
        show_json({"dead_workers" if dead else "workers": found})
    else:
        show_table_lines(lines, empty="no worker has died in the last day" if dead else "no worker is registered")


def dead_worker_table(dead: Sequence[DeadWorker], now: datetime, width: int) -> list[Text]:
    columns = [
        Column("DEAD WORKER", is_id=True), Column("APP", drop=3, shrink=8), Column("HOST", drop=2, shrink=8), Column("PID", drop=4),
        Column("UP SINCE", drop=6), Column("LAST HEARTBEAT", drop=5), "DIED", "HELD", Column("ITS TASKS NOW", shrink=14),
    ]  # fmt: skip
    rows = [
        (
            worker.id, worker.app, worker.hostname, worker.pid, worker.started_at, worker.last_heartbeat_at,
            f"{to_age(worker.last_heartbeat_at, now)} ago", worker.tasks_held, counts_text(worker.outcomes) or None,
        )
        for worker in dead
    ]  # fmt: skip
    return table_lines(columns, rows, width)


def worker_table(registered: Sequence[WorkerSummary], width: int) -> list[Text]:
    columns = [
        Column("WORKER", is_id=True), Column("APP", drop=3, shrink=8), Column("HOST", drop=4, shrink=8), Column("PID", drop=6),
        Column("SLOTS", drop=7), "RUNNING", Column("CLAIMED", drop=9), "HEARTBEAT", Column("UP SINCE", drop=10),
        Column("MB", drop=5), Column("QUEUES", shrink=10), Column("STATE", drop=2),
    ]  # fmt: skip
    rows = [
        (
            worker.id, worker.app, worker.hostname, worker.pid, worker.processes * worker.concurrency,
            worker.tasks_running, worker.tasks_claimed, f"{format_duration(worker.heartbeat_age_s)} ago", worker.started_at,
            None if worker.memory_usage_mb is None else round(worker.memory_usage_mb + (worker.children_memory_mb or 0)),
            worker.queues, "leaving" if worker.leave_requested_at else None,
        )
        for worker in registered
    ]  # fmt: skip
    return table_lines(columns, rows, width)


@database_command(
    workers.command,
    click.argument("worker_id", metavar="ID"),
    click.option("--limit", type=click.IntRange(1, 10_000), default=10, show_default=True, help="Number of snapshots."),
    wide_option,
)
def show(target: Horsies, *, worker_id: str, limit: int, as_json: bool) -> None:
    """Show one worker: what each of its children runs, and its health over time, newest first. A prefix of its id is enough.

    Children are shown as of the worker's last heartbeat. This also works for workers that are gone: snapshots are kept for a day.

    \b
    horsies workers show 36101082 --limit 100
    """
    full_id = find_id(target, "worker", worker_id)
    worker = next((worker for worker in target.ops.list_workers() if worker.id == full_id), None)
    dead = next((worker for worker in target.ops.list_dead_workers() if worker.id == full_id), None)
    children, states = target.ops.list_children(full_id), target.ops.list_worker_states(full_id, limit=limit)
    if as_json:
        known = {"id": full_id, "is_registered": worker is not None, "worker": worker, "dead": dead}
        show_json(known | {"children": children, "states": states})
        return
    now = target.ops.read_clock()
    if worker is not None:
        show_facts(asdict(worker))
    elif dead is not None:
        show_facts({"state": "died"} | asdict(dead) | {"outcomes": counts_text(dead.outcomes)})
    else:
        show_facts({"id": full_id, "state": "no longer registered"})
    if worker:
        click.echo()
        _show_children(children, now)
    click.echo()
    headings = [
        "AT",
        "RUNNING",
        "CLAIMED",
        Column("MEMORY MB", drop=1),
        "CHILDREN MB",
        Column("CPU %", drop=2),
        "CHILDREN CPU %",
    ]
    memory, cpu = ("memory_usage_mb", "children_memory_mb"), ("cpu_percent", "children_cpu_percent")
    cells = attrgetter("snapshot_at", "tasks_running", "tasks_claimed", *memory, *cpu)
    show_table(headings, map(cells, states), empty="there is no snapshot of its health yet")


def _show_children(children: Sequence[ChildState], now: datetime) -> None:
    """Print a line for each task that runs, and for each child without one."""
    rows: list[Sequence[object]] = []
    for child in children:
        about = (
            child.pid,
            child.state,
            to_age(child.started_at, now),
            child.memory_mb and round(child.memory_mb),
            child.waiting,
        )
        rows += [(*about, task.name, to_age(task.since, now), task.id) for task in child.tasks] or [
            (*about, None, None, None)
        ]
        if child.tasks and child.running > len(child.tasks):
            rows.append((*about, f"{child.running - len(child.tasks)} more", None, None))
    columns = [
        "CHILD", Column("STATE", drop=4), Column("UP", drop=3), Column("MB", drop=2), Column("WAITING", drop=1),
        Column("RUNS", shrink=8), "FOR", Column("TASK ID", is_id=True),
    ]  # fmt: skip
    show_table(columns, rows, empty="its children are not known yet: they are stored with its heartbeats")


@database_command(workers.command, click.argument("worker_ids", metavar="ID...", nargs=-1, required=True))
def leave(target: Horsies, *, worker_ids: Sequence[str], as_json: bool) -> None:
    """Ask workers to claim no more tasks, finish those that run, and exit with 0, as at the first SIGTERM.

    They learn of it within a second, or with their next heartbeat. If a supervisor such as systemd or Kubernetes restarts them, another worker
    starts. Exit code 1: one of them is not registered.

    \b
    horsies workers leave 36101082
    """
    asked = target.ops.request_leave([find_id(target, "worker", prefix) for prefix in worker_ids])
    if as_json:
        show_json({"workers": [{"worker_id": worker, "is_asked": is_asked} for worker, is_asked in asked.items()]})
    else:
        for worker, is_asked in asked.items():
            echo(f"{worker}: {'asked to leave' if is_asked else 'not registered'}")
    if not all(asked.values()):
        raise click.exceptions.Exit(1)


@database_command(
    workers.command,
    click.argument("worker_ids", metavar="[ID]...", nargs=-1),
    click.option("--timeout", type=parse_seconds, default="10s", show_default=True, metavar="TIME", help="How long to wait."),
    wide_option,
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
        show_table([Column("WORKER", is_id=True), "ANSWER"], rows, empty="no worker is registered")
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
        ops = target.ops
        now = ops.request_heartbeats(pending, again=True) if is_request_due else ops.get_heartbeats(pending)
        elapsed_s = time.monotonic() - started
        answered |= {worker: elapsed_s * 1000 for worker in pending if worker in now and now[worker] != before[worker]}
        if elapsed_s > timeout_s:
            break
    return answered
