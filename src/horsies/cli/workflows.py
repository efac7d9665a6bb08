"""`horsies workflows`: list, show, pause, resume, cancel and retry."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

import click

from horsies.app import Horsies
from horsies.cli.options import confirm, database_command, dry_run_option, find_id, parse_time, to_absolute, yes_option
from horsies.cli.output import Column, cut, echo, show_facts, show_json, show_table, to_age, wide_option
from horsies.model.errors import NodeNotFoundError
from horsies.model.graph import WorkflowStatus
from horsies.model.result import TaskError
from horsies.model.text import plural
from horsies.model.validation import format_duration
from horsies.ops.api import Ops
from horsies.workflows.inspect import RunNode, RunTree, WorkflowRun
from horsies.workflows.render import NodePath, render_text

MAX_MESSAGE_CHARACTERS: Final = 100
STATUSES: Final = click.Choice([status.value for status in WorkflowStatus], case_sensitive=False)


@dataclass(frozen=True, slots=True)
class WorkflowAction:
    """What to do, and which statuses allow it. A run that is `already` in the status it leads to is left unchanged."""

    verb: Callable[[Ops, str], bool]
    done: str
    allowed: frozenset[WorkflowStatus]
    already: WorkflowStatus


PAUSE: Final = WorkflowAction(
    lambda ops, run_id: ops.pause_workflow(run_id), "paused", frozenset({WorkflowStatus.RUNNING}), WorkflowStatus.PAUSED
)
RESUME: Final = WorkflowAction(
    lambda ops, run_id: ops.resume_workflow(run_id),
    "resumed",
    frozenset({WorkflowStatus.PAUSED}),
    WorkflowStatus.RUNNING,
)
CANCEL: Final = WorkflowAction(
    lambda ops, run_id: ops.cancel_workflow(run_id),
    "cancelled",
    frozenset({WorkflowStatus.PENDING, WorkflowStatus.RUNNING, WorkflowStatus.PAUSED}),
    WorkflowStatus.CANCELLED,
)
RETRY: Final = WorkflowAction(
    lambda ops, run_id: ops.retry_workflow(run_id),
    "retried",
    frozenset({WorkflowStatus.FAILED, WorkflowStatus.CANCELLED, WorkflowStatus.PAUSED}),
    WorkflowStatus.RUNNING,
)


@click.group()
def workflows() -> None:
    """Inspect runs of workflows, and pause, resume, cancel or retry them."""


@database_command(
    workflows.command,
    click.option("--status", "statuses", type=STATUSES, multiple=True, help="In this status; may be repeated."),
    click.option("--name", help="Runs of this workflow."),
    click.option("--since", type=parse_time, metavar="WHEN", help="Started since: 2h, 7d, or a date and time."),
    click.option("--until", "--before", "until", type=parse_time, metavar="WHEN", help="Started before."),
    click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Number of runs."),
    click.option("--after", metavar="ID", help="Continue after this run, the last one of the previous page."),
    wide_option,
)  # fmt: skip
def list_(target: Horsies, *, limit: int, after: str | None, as_json: bool, **filters: Any) -> None:
    """List runs, newest first. Sub-workflows are part of their runs.

    \b
    horsies workflows list --status FAILED --since 2d --until 2h
    horsies workflows list --json --limit 1000 --after ID
    """
    after = after and find_id(target, "workflow", after)
    if after is not None and target.ops.get_workflow_summary(after) is None:
        raise NodeNotFoundError(f"there is no workflow {after}; give --after an id that was listed")
    now, statuses = target.ops.read_clock(), [WorkflowStatus(status) for status in filters["statuses"]]
    filters |= {"statuses": statuses, **{name: to_absolute(filters[name], now) for name in ("since", "until")}}
    found = target.ops.list_workflows(limit=limit, after=after, **filters)
    page = found.runs
    if as_json:
        show_json({"workflows": [_run_to_json(run) for run in page], "next_after": found.next_after})
        return
    columns = [
        Column("ID", is_id=True), Column("NAME", shrink=10), "STATUS", Column("STARTED", drop=4), Column("AGE", drop=3),
        Column("TOOK", drop=2), Column("LEFT", drop=1), Column("ERROR", shrink=16),
    ]  # fmt: skip
    rows = [
        (
            run.id, run.name, run.status, run.created_at, to_age(run.created_at, now), _took(run.started_at, run.finished_at),
            run.left, _error_text(run.error),
        )
        for run in page
    ]  # fmt: skip
    show_table(columns, rows, empty="no workflows")
    if found.next_after:
        click.echo(f"there are more: add --after {found.next_after}", err=True)


@database_command(workflows.command, click.argument("workflow_id", metavar="ID"), wide_option)
def show(target: Horsies, workflow_id: str, *, as_json: bool) -> None:
    """Show one run: its nodes with their statuses, durations and errors, including sub-workflows and maps.

    \b
    horsies workflows show 01a1dfe4-a132-7339-afb4-89377ae5e856
    """
    tree = target.ops.show_workflow(find_id(target, "workflow", workflow_id))
    if as_json:
        show_json(_tree_to_json(tree))
        return
    run = tree.run
    facts = {
        "id": run.id,
        "status": run.status,
        "started": run.started_at or run.created_at,
        "ended": run.finished_at,
        "took": _took(run.started_at, run.finished_at),
        "deadline": run.deadline,
        "error": _error_text(run.error),
    }
    show_facts({f"{fact}:": value for fact, value in facts.items() if value is not None})
    click.echo()
    if tree.is_map:
        items = [
            (node.node_id, node.status, node.task_id, _node_took(node), _error_text(node.error)) for node in tree.nodes
        ]
        columns = ["ITEM", "STATUS", Column("TASK", is_id=True), Column("TOOK", drop=1), Column("ERROR", shrink=16)]
        show_table(columns, items, empty="no items")
    else:
        echo(render_text(*target.ops.get_workflow_graph(run.id), dict(_notes(tree, ()))))


_ids_argument = click.argument("ids", metavar="ID...", nargs=-1, required=True)


@database_command(workflows.command, _ids_argument, dry_run_option)
def pause(target: Horsies, **options: Any) -> None:
    """Stop these runs from starting further nodes.

    Running tasks continue; tasks that wait in a queue are withdrawn. `resume` continues from there.

    \b
    horsies workflows pause 01a1dfe4-a132-7339-afb4-89377ae5e856
    """
    _apply_to_all(target, PAUSE, **options)


@database_command(workflows.command, _ids_argument, dry_run_option)
def resume(target: Horsies, **options: Any) -> None:
    """Continue paused runs, including their sub-workflows, regardless of what paused them.

    \b
    horsies workflows resume 01a1dfe4-a132-7339-afb4-89377ae5e856
    """
    _apply_to_all(target, RESUME, **options)


@database_command(workflows.command, yes_option, _ids_argument, dry_run_option)
def cancel(target: Horsies, ids: tuple[str, ...], *, yes: bool, dry_run: bool, as_json: bool) -> None:
    """End these runs: nodes that have not started never will, and running tasks are asked to stop.

    Asks for confirmation. `retry` runs again what was cut off.

    \b
    horsies workflows cancel 01a1dfe4-a132-7339-afb4-89377ae5e856 --dry-run
    """
    if not dry_run:
        confirm(f"cancel {plural(len(ids), 'workflow')}?", yes=yes)
    _apply_to_all(target, CANCEL, ids=ids, dry_run=dry_run, as_json=as_json)


@database_command(workflows.command, _ids_argument, dry_run_option)
def retry(target: Horsies, **options: Any) -> None:
    """Run again the nodes that failed or were skipped, in runs that are FAILED, CANCELLED or PAUSED.

    Results of completed nodes are kept. A sub-workflow cannot be retried alone.

    \b
    horsies workflows retry 01a1dfe4-a132-7339-afb4-89377ae5e856
    """
    _apply_to_all(target, RETRY, **options)


def _apply_to_all(target: Horsies, action: WorkflowAction, *, ids: Sequence[str], dry_run: bool, as_json: bool) -> None:
    full_ids = [find_id(target, "workflow", prefix) for prefix in ids]  # all of them, before anything is changed
    results = [_apply(target, action, workflow_id, dry_run=dry_run) for workflow_id in full_ids]
    if as_json:
        show_json({"workflows": results})
    else:
        for result in results:
            name = f" ({result['name']})" if result["name"] else ""
            echo(f"{result['id']}{name}: {result['words']}", err=result["outcome"] == "refused")
    sys.exit(1 if any(result["outcome"] == "refused" for result in results) else 0)


def _apply(target: Horsies, action: WorkflowAction, workflow_id: str, *, dry_run: bool) -> dict[str, str | None]:
    """Return a description of the run, and the outcome: `changed` (or would be), `unchanged`, or `refused`."""

    def result(outcome: str, words: str) -> dict[str, str | None]:
        known = (summary.run.id, summary.run.name, summary.run.status) if summary else (workflow_id, None, None)
        return dict(zip(("id", "name", "status", "outcome", "words"), (*known, outcome, words), strict=True))

    summary = target.ops.get_workflow_summary(workflow_id)
    if summary is None:
        return result("refused", "there is no such workflow")
    run = summary.run
    if action is RETRY and summary.root_id is not None:
        return result("refused", f"it is a part of workflow {summary.root_id}; retry that one")
    if run.status not in action.allowed and run.status is not action.already:
        return result("refused", f"is {run.status}, and cannot be {action.done}")
    if run.status not in action.allowed and not (action is RESUME and summary.has_paused_descendants):
        return result("unchanged", f"is {run.status} already")
    if dry_run:
        return result("changed", f"would be {action.done}")
    is_changed = action.verb(target.ops, workflow_id)
    unchanged = ("unchanged", "was changed by another process at the same time")
    return result(*(("changed", action.done) if is_changed else unchanged))


def _tree_to_json(tree: RunTree) -> dict[str, Any]:
    fields = ("node_id", "index", "kind", "status", "task_name", "task_id", "started_at", "finished_at")
    nodes = [
        {name: getattr(node, name) for name in fields}
        | {"error": _error_to_json(node.error), "items": node.items}
        | {"workflow": None if node.child is None else _tree_to_json(node.child)}
        for node in tree.nodes
    ]
    return {**_run_to_json(tree.run), "nodes": nodes}


def _run_to_json(run: WorkflowRun) -> dict[str, Any]:
    return {**asdict(run), "error": _error_to_json(run.error)}


def _error_to_json(error: TaskError | None) -> dict[str, str] | None:
    """Leave out the data of the error, which may contain secrets."""
    return None if error is None else {"error_code": error.error_code, "message": error.message}


def _notes(tree: RunTree, above: NodePath) -> Iterator[tuple[NodePath, str]]:
    """Yield the text beside each node of the tree: its duration, the items of a map, its error."""
    for node in tree.nodes:
        path = (*above, node.index)
        items = None
        if node.items is not None:
            counts = ", ".join(f"{count} {status}" for status, count in node.items.items())
            items = f"{sum(node.items.values())} items: {counts}"
        if parts := [part for part in (_node_took(node), items, _error_text(node.error)) if part]:
            yield path, "  ".join(parts)
        if node.child is not None:
            yield from _notes(node.child, path)


def _node_took(node: RunNode) -> str | None:
    return _took(node.child.run.started_at if node.child else node.started_at, node.finished_at)


def _took(started: datetime | None, finished: datetime | None) -> str | None:
    """Format a duration. For what still runs it is measured with this machine's clock, which is good enough for people."""
    if started is None:
        return None
    return format_duration(max(0.0, ((finished or datetime.now(started.tzinfo)) - started).total_seconds()))


def _error_text(error: TaskError | None) -> str | None:
    if error is None:
        return None
    text = " ".join(f"{error.error_code}: {error.message}".split()) if error.message else error.error_code
    return cut(text, MAX_MESSAGE_CHARACTERS)
