"""`horsies workers`: list, show and ping."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial

import click

from horsies.app import Horsies
from horsies.cli.options import json_option, on_database, parse_seconds, worker_named
from horsies.cli.output import show_json, show_table, shown
from horsies.model.validation import format_duration
from horsies.tasks.inspect import (
    WorkerState,
    WorkerSummary,
    get_heartbeats,
    get_worker_states,
    list_workers,
    request_heartbeat,
)

POLL_S = 0.02
ASK_AGAIN_S = 1.0  # one that is just starting, or reconnecting, has not heard


@click.group()
def workers() -> None:
    """Look at workers, and ask them whether they are well."""


@workers.command("list")
@json_option
@on_database()
def list_(target: Horsies, *, as_json: bool) -> None:
    """List the workers that are registered, oldest first.

    A worker registers when it starts, and is struck off when it stops, or some time after its heartbeat has stopped. Ages are told by the database's
    clock.

    \b
    horsies workers list --app shop:app
    """
    lines = target.broker.run(list_workers)
    if as_json:
        show_json({"workers": lines})
    else:
        show_workers(lines)


def show_workers(lines: Sequence[WorkerSummary]) -> None:
    headings = [
        "WORKER",
        "APP",
        "HOST",
        "PID",
        "SLOTS",
        "RUNNING",
        "CLAIMED",
        "HEARTBEAT",
        "UP SINCE",
        "MEMORY MB",
        "QUEUES",
    ]
    show_table(headings, map(_cells, lines), empty="no worker is registered")


def _cells(line: WorkerSummary) -> Sequence[object]:
    memory = None if line.memory_usage_mb is None else round(line.memory_usage_mb + (line.children_memory_mb or 0))
    return (
        line.id,
        line.app,
        line.hostname,
        line.pid,
        line.processes * line.concurrency,
        line.tasks_running,
        line.tasks_claimed,
        f"{format_duration(line.heartbeat_age_s)} ago",
        line.started_at,
        memory,
        line.queues,
    )


@workers.command()
@click.argument("worker_id", metavar="ID")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="How many snapshots.")
@json_option
@on_database()
def show(target: Horsies, *, worker_id: str, limit: int, as_json: bool) -> None:
    """Show one worker and its health over time, newest first; the beginning of its id is enough.

    Also of workers that have gone: snapshots are kept for a day.

    \b
    horsies workers show 36101082 --limit 100
    """
    found = worker_named(target, worker_id)
    line = next((line for line in target.broker.run(list_workers) if line.id == found), None)
    states = target.broker.run(partial(get_worker_states, found, limit=limit))
    if as_json:
        show_json({"id": found, "is_registered": line is not None, "worker": line, "states": states})
        return
    facts = asdict(line) if line else {"id": found, "state": "no longer registered"}
    for name, value in facts.items():
        click.echo(f"{name:<20}{shown(value)}")
    click.echo()
    headings = ["AT", "RUNNING", "CLAIMED", "MEMORY MB", "CHILDREN MB", "CPU %", "CHILDREN CPU %"]
    show_table(headings, map(_state_cells, states), empty="it has left no snapshot of its health yet")


def _state_cells(state: WorkerState) -> Sequence[object]:
    return (
        state.snapshot_at,
        state.tasks_running,
        state.tasks_claimed,
        state.memory_usage_mb,
        state.children_memory_mb,
        state.cpu_percent,
        state.children_cpu_percent,
    )


@dataclass(frozen=True, slots=True)
class PingReply:
    """How long a worker took, in milliseconds; None: it has not answered."""

    worker_id: str
    answered_ms: float | None


@workers.command()
@click.argument("worker_ids", metavar="[ID]...", nargs=-1)
@click.option(
    "--timeout", type=parse_seconds, default="10s", show_default=True, metavar="TIME", help="How long to wait."
)
@json_option
@on_database()
def ping(target: Horsies, *, worker_ids: Sequence[str], timeout: float, as_json: bool) -> None:
    """Ask workers for a sign of life: all that are registered, or these.

    A notification asks each of them for a heartbeat, at once; it is given by the worker's own loop, however busy its children are. A worker that does not hear
    notifications (behind a pooler, without listen_url) answers with its next heartbeat. Exit code 1: not all have answered.

    \b
    horsies workers ping --timeout 30s
    """
    named = [worker_named(target, beginning) for beginning in worker_ids]
    wanted = named or [line.id for line in target.broker.run(list_workers)]
    answers = _answers(target, wanted, timeout)
    if as_json:
        show_json({"workers": answers})
    else:
        rows = [(a.worker_id, "no answer" if a.answered_ms is None else f"{a.answered_ms:.0f} ms") for a in answers]
        show_table(["WORKER", "ANSWER"], rows, empty="no worker is registered")
    if not answers or any(answer.answered_ms is None for answer in answers):
        raise click.exceptions.Exit(1)


def _answers(target: Horsies, wanted: Sequence[str], timeout_s: float) -> list[PingReply]:
    """Looks, and does not listen: that works behind a pooler, too."""
    began = asked = time.monotonic()
    before = target.broker.run(partial(request_heartbeat, wanted))
    answered = dict[str, float]()
    while waited := [worker for worker in before if worker not in answered]:
        time.sleep(POLL_S)
        if is_time_to_ask := time.monotonic() - asked > ASK_AGAIN_S:
            asked = time.monotonic()
        now = target.broker.run(partial(request_heartbeat if is_time_to_ask else get_heartbeats, waited))
        elapsed_s = time.monotonic() - began
        answered |= {worker: elapsed_s * 1000 for worker in waited if worker in now and now[worker] != before[worker]}
        if elapsed_s > timeout_s:
            break
    return [PingReply(worker, answered.get(worker)) for worker in wanted]
