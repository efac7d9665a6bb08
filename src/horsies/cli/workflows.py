"""`horsies workflows list` and `show`."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

import click

from horsies.app import Horsies
from horsies.cli.options import (
    TimeParameter,
    confirm,
    dry_run_option,
    full_id,
    json_option,
    on_database,
    parse_time,
    to_absolute,
    yes_option,
)
from horsies.cli.output import show_json, show_table, shown
from horsies.db.statement import Op
from horsies.model.errors import NodeNotFoundError
from horsies.model.graph import WorkflowStatus
from horsies.model.result import TaskError
from horsies.model.validation import format_duration
from horsies.tasks.inspect import read_clock
from horsies.workflows import control
from horsies.workflows.inspect import (
    RunNode,
    RunSummary,
    RunTree,
    WorkflowRun,
    get_graph_view,
    get_run_summary,
    get_run_tree,
    list_runs,
)
from horsies.workflows.render import NodePath, render_text

# --------
# `horsies workflows pause`, `resume`, `cancel` and `retry`.

LIVE: Final = frozenset({WorkflowStatus.PENDING, WorkflowStatus.RUNNING, WorkflowStatus.PAUSED})


@dataclass(frozen=True, slots=True)
class WorkflowVerb:
    """What it does to which runs; one that is `already` so is left alone without complaint."""

    do: Callable[[str], Op[bool]]
    done: str
    on: frozenset[WorkflowStatus]
    already: WorkflowStatus


PAUSE: Final = WorkflowVerb(control.pause, "paused", frozenset({WorkflowStatus.RUNNING}), WorkflowStatus.PAUSED)
RESUME: Final = WorkflowVerb(control.resume, "resumed", frozenset({WorkflowStatus.PAUSED}), WorkflowStatus.RUNNING)
CANCEL: Final = WorkflowVerb(control.cancel, "cancelled", LIVE, WorkflowStatus.CANCELLED)
RETRY: Final = WorkflowVerb(
    control.retry,
    "retried",
    frozenset({WorkflowStatus.FAILED, WorkflowStatus.CANCELLED, WorkflowStatus.PAUSED}),
    WorkflowStatus.RUNNING,
)


@dataclass(frozen=True, slots=True)
class WorkflowVerbResult:
    """What became of one run: `changed` (or would be), `unchanged` because it is so already, or `refused`."""

    id: str
    name: str | None
    status: WorkflowStatus | None
    outcome: str
    words: str


ids_argument = click.argument("ids", metavar="ID...", type=full_id, nargs=-1, required=True)


@click.command()
@ids_argument
@dry_run_option
@json_option
@on_database()
def pause(target: Horsies, ids: tuple[str, ...], *, dry_run: bool, as_json: bool) -> None:
    """Let no further node of these runs begin.

    What runs goes on; what only waits in a queue is taken back. `resume` goes on from there.

    \b
    horsies workflows pause 01a1dfe4-a132-7339-afb4-89377ae5e856
    """
    _tell([_apply(target, PAUSE, one, dry_run=dry_run) for one in ids], as_json=as_json)


@click.command()
@ids_argument
@dry_run_option
@json_option
@on_database()
def resume(target: Horsies, ids: tuple[str, ...], *, dry_run: bool, as_json: bool) -> None:
    """Let paused runs go on, sub-workflows included, whoever or whatever has paused them.

    \b
    horsies workflows resume 01a1dfe4-a132-7339-afb4-89377ae5e856
    """
    _tell([_apply(target, RESUME, one, dry_run=dry_run) for one in ids], as_json=as_json)


@click.command()
@ids_argument
@yes_option
@dry_run_option
@json_option
@on_database()
def cancel(target: Horsies, ids: tuple[str, ...], *, yes: bool, dry_run: bool, as_json: bool) -> None:
    """End these runs: what has not begun never will, what runs is asked to stop.

    Asks first. `retry` runs again what was cut off.

    \b
    horsies workflows cancel 01a1dfe4-a132-7339-afb4-89377ae5e856 --dry-run
    """
    if not dry_run:
        confirm(f"cancel {len(ids)} workflow{'s' if len(ids) > 1 else ''}?", yes=yes)
    _tell([_apply(target, CANCEL, one, dry_run=dry_run) for one in ids], as_json=as_json)


@click.command()
@ids_argument
@dry_run_option
@json_option
@on_database()
def retry(target: Horsies, ids: tuple[str, ...], *, dry_run: bool, as_json: bool) -> None:
    """Run again what failed or was skipped in runs that are FAILED, CANCELLED or PAUSED.

    What has succeeded is kept. Of runs that were started, not of a sub-workflow alone.

    \b
    horsies workflows retry 01a1dfe4-a132-7339-afb4-89377ae5e856
    """
    _tell([_apply(target, RETRY, one, dry_run=dry_run) for one in ids], as_json=as_json)


VERBS: Final = (pause, resume, cancel, retry)


def _apply(target: Horsies, verb: WorkflowVerb, workflow_id: str, *, dry_run: bool) -> WorkflowVerbResult:
    footing = target.broker.run(partial(get_run_summary, workflow_id))
    if footing is None:
        return WorkflowVerbResult(workflow_id, None, None, "refused", "no such workflow is known")
    run = footing.run
    if hindrance := _hindrance(verb, footing):
        return WorkflowVerbResult(run.id, run.name, run.status, "refused", hindrance)
    if not _would_change(verb, footing):
        return WorkflowVerbResult(run.id, run.name, run.status, "unchanged", f"is {run.status} already")
    if dry_run:
        return WorkflowVerbResult(run.id, run.name, run.status, "changed", f"would be {verb.done}")
    if target.broker.run(partial(verb.do, workflow_id), again=partial(verb.do, workflow_id)):
        return WorkflowVerbResult(run.id, run.name, run.status, "changed", verb.done)
    return WorkflowVerbResult(run.id, run.name, run.status, "unchanged", "somebody else was faster")


def _hindrance(verb: WorkflowVerb, footing: RunSummary) -> str | None:
    run = footing.run
    if verb is RETRY and footing.root_id is not None:
        return f"it is a part of workflow {footing.root_id}; retry that one"
    if run.status not in verb.on and run.status is not verb.already:
        return f"is {run.status}, and cannot be {verb.done}"
    return None


def _would_change(verb: WorkflowVerb, footing: RunSummary) -> bool:
    return footing.run.status in verb.on or (verb is RESUME and footing.has_paused_descendants)


def _tell(outcomes: list[WorkflowVerbResult], *, as_json: bool) -> None:
    if as_json:
        show_json({"workflows": outcomes})
    else:
        for outcome in outcomes:
            name = f" ({outcome.name})" if outcome.name else ""
            click.echo(f"{outcome.id}{name}: {outcome.words}", err=outcome.outcome == "refused")
    sys.exit(1 if any(outcome.outcome == "refused" for outcome in outcomes) else 0)


LONGEST_MESSAGE = 100
STATUSES = click.Choice([status.value for status in WorkflowStatus], case_sensitive=False)


@click.group()
def workflows() -> None:
    """Look at runs of workflows, pause, resume, cancel and retry them."""


@workflows.command("list")
@click.option("--status", "statuses", type=STATUSES, multiple=True, help="Only those; may be given more than once.")
@click.option("--name", help="Only runs of this workflow.")
@click.option("--since", type=parse_time, metavar="WHEN", help="Only those started since: 2h, 7d, or a date and time.")
@click.option("--until", "--before", "until", type=parse_time, metavar="WHEN", help="The same, before.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many.")
@click.option("--after", type=full_id, metavar="ID", help="Go on after this one, the last of the page before.")
@json_option
@on_database()
def list_(
    target: Horsies,
    *,
    statuses: tuple[str, ...],
    name: str | None,
    since: TimeParameter | None,
    until: TimeParameter | None,
    limit: int,
    after: str | None,
    as_json: bool,
) -> None:
    """List runs that were started, newest first.

    \b
    horsies workflows list --status FAILED --since 2d --until 2h
    horsies workflows list --json --limit 1000 --after ID
    """
    if after is not None and target.broker.run(partial(get_run_summary, after)) is None:
        raise NodeNotFoundError(f"no workflow {after} is known; give --after an id that was listed")
    now = target.broker.run(read_clock)
    found = target.broker.run(
        partial(
            list_runs,
            limit=limit + 1,
            statuses=[WorkflowStatus(status.upper()) for status in statuses],
            name=name,
            since=to_absolute(since, now),
            until=to_absolute(until, now),
            after=after,
        )
    )
    page, is_more = found[:limit], len(found) > limit
    if as_json:
        show_json({"workflows": [_plain_run(run) for run in page], "next_after": page[-1].id if is_more else None})
        return
    show_table(
        ["ID", "NAME", "STATUS", "STARTED", "TOOK", "LEFT", "ERROR"],
        [(run.id, run.name, run.status, run.created_at, _took(run), run.left, _words(run.error)) for run in page],
        empty="no workflows",
    )
    if is_more:
        click.echo(f"there are more: add --after {page[-1].id}", err=True)


@workflows.command()
@click.argument("workflow_id", metavar="ID", type=full_id)
@json_option
@on_database()
def show(target: Horsies, workflow_id: str, *, as_json: bool) -> None:
    """Show one run: its nodes with their states, durations and errors, sub-workflows and maps included.

    \b
    horsies workflows show 01a1dfe4-a132-7339-afb4-89377ae5e856
    """
    tree = target.broker.run(partial(get_run_tree, workflow_id))
    if as_json:
        show_json(_plain(tree))
        return
    run = tree.run
    facts = {
        "id": run.id,
        "status": run.status,
        "started": run.started_at or run.created_at,
        "ended": run.finished_at,
        "took": _took(run),
        "deadline": run.deadline,
        "error": _words(run.error),
    }
    for fact, value in facts.items():
        if value is not None:
            click.echo(f"{fact + ':':10}{shown(value)}")
    click.echo()
    if tree.is_map:
        rows = [(node.node_id, node.status, node.task_id, _node_took(node), _words(node.error)) for node in tree.nodes]
        show_table(["ITEM", "STATUS", "TASK", "TOOK", "ERROR"], rows, empty="no items")
    else:
        click.echo(render_text(*target.broker.run(partial(get_graph_view, run.id)), dict(_notes(tree, ()))))


def _plain(tree: RunTree) -> dict[str, Any]:
    nodes: list[dict[str, Any]] = []
    for node in tree.nodes:
        known: dict[str, Any] = {
            name: getattr(node, name)
            for name in ("node_id", "index", "kind", "status", "task_name", "task_id", "started_at", "finished_at")
        }
        known["error"] = _plain_error(node.error)
        known["items"] = node.items
        known["workflow"] = None if node.child is None else _plain(node.child)
        nodes.append(known)
    return {**_plain_run(tree.run), "nodes": nodes}


def _plain_run(run: WorkflowRun) -> dict[str, Any]:
    return {**asdict(run), "error": _plain_error(run.error)}


def _plain_error(error: TaskError | None) -> dict[str, str] | None:
    """Without its data, which may hold secrets."""
    return None if error is None else {"error_code": error.error_code, "message": error.message}


def _notes(tree: RunTree, above: NodePath) -> Iterator[tuple[NodePath, str]]:
    for node in tree.nodes:
        way = (*above, node.index)
        words = [_node_took(node), _items(node), _words(node.error)]
        if said := [word for word in words if word]:
            yield way, "  ".join(said)
        if node.child is not None:
            yield from _notes(node.child, way)


def _items(node: RunNode) -> str | None:
    if node.items is None:
        return None
    return f"{sum(node.items.values())} items: " + ", ".join(
        f"{count} {status}" for status, count in node.items.items()
    )


def _node_took(node: RunNode) -> str | None:
    began = node.child.run.started_at if node.child else node.started_at
    return None if began is None else _between(began, node.finished_at)


def _took(run: WorkflowRun) -> str | None:
    return None if run.started_at is None else _between(run.started_at, run.finished_at)


def _between(began: datetime, ended: datetime | None) -> str:
    """Of what still runs, how long so far: for a person's eyes, so this machine's clock will do."""
    return format_duration(max(0.0, ((ended or datetime.now(began.tzinfo)) - began).total_seconds()))


def _words(error: TaskError | None) -> str | None:
    if error is None:
        return None
    words = " ".join(f"{error.error_code}: {error.message}".split()) if error.message else error.error_code
    return words if len(words) <= LONGEST_MESSAGE else f"{words[: LONGEST_MESSAGE - 1]}…"


for verb in VERBS:
    workflows.add_command(verb)
