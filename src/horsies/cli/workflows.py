"""`horsies workflows list` and `show`."""

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from functools import partial
from typing import Any

import click

from horsies.app import Horsies
from horsies.cli.ids import full_id
from horsies.cli.moments import Moment, absolute, moment
from horsies.cli.options import json_option, on_database
from horsies.cli.show import show_json, show_table, shown
from horsies.cli.workflow_verbs import VERBS
from horsies.model.durations import duration
from horsies.model.errors import NodeNotFoundError
from horsies.model.graph import WorkflowStatus
from horsies.model.result import TaskError
from horsies.tasks.list import read_clock
from horsies.workflows.browse import NodeOfRun, Run, RunTree, get_footing, get_run_tree, list_runs
from horsies.workflows.inspect import get_picture
from horsies.workflows.picture import Way, text_tree

LONGEST_MESSAGE = 100
STATUSES = click.Choice([status.value for status in WorkflowStatus], case_sensitive=False)


@click.group()
def workflows() -> None:
    """Look at runs of workflows, pause, resume, cancel and retry them."""


@workflows.command("list")
@click.option("--status", "statuses", type=STATUSES, multiple=True, help="Only those; may be given more than once.")
@click.option("--name", help="Only runs of this workflow.")
@click.option("--since", type=moment, metavar="WHEN", help="Only those started since: 2h, 7d, or a date and time.")
@click.option("--until", "--before", "until", type=moment, metavar="WHEN", help="The same, before.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many.")
@click.option("--after", type=full_id, metavar="ID", help="Go on after this one, the last of the page before.")
@json_option
@on_database()
def list_(
    target: Horsies,
    *,
    statuses: tuple[str, ...],
    name: str | None,
    since: Moment | None,
    until: Moment | None,
    limit: int,
    after: str | None,
    as_json: bool,
) -> None:
    """List runs that were started, newest first.

    \b
    horsies workflows list --status FAILED --since 2d --until 2h
    horsies workflows list --json --limit 1000 --after ID
    """
    if after is not None and target.broker.run(partial(get_footing, after)) is None:
        raise NodeNotFoundError(f"no workflow {after} is known; give --after an id that was listed")
    now = target.broker.run(read_clock)
    found = target.broker.run(
        partial(
            list_runs,
            limit=limit + 1,
            statuses=[WorkflowStatus(status.upper()) for status in statuses],
            name=name,
            since=absolute(since, now),
            until=absolute(until, now),
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
        click.echo(text_tree(*target.broker.run(partial(get_picture, run.id)), dict(_notes(tree, ()))))


def _plain(tree: RunTree) -> dict[str, Any]:
    nodes: list[dict[str, Any]] = []
    for node in tree.nodes:
        known: dict[str, Any] = {
            name: getattr(node, name)
            for name in ("node_id", "index", "kind", "status", "task_name", "task_id", "started_at", "finished_at")
        }
        known["error"] = _plain_error(node.error)
        known["items"] = node.items
        known["workflow"] = None if node.below is None else _plain(node.below)
        nodes.append(known)
    return {**_plain_run(tree.run), "nodes": nodes}


def _plain_run(run: Run) -> dict[str, Any]:
    return {**asdict(run), "error": _plain_error(run.error)}


def _plain_error(error: TaskError | None) -> dict[str, str] | None:
    """Without its data, which may hold secrets."""
    return None if error is None else {"error_code": error.error_code, "message": error.message}


def _notes(tree: RunTree, above: Way) -> Iterator[tuple[Way, str]]:
    for node in tree.nodes:
        way = (*above, node.index)
        words = [_node_took(node), _items(node), _words(node.error)]
        if said := [word for word in words if word]:
            yield way, "  ".join(said)
        if node.below is not None:
            yield from _notes(node.below, way)


def _items(node: NodeOfRun) -> str | None:
    if node.items is None:
        return None
    return f"{sum(node.items.values())} items: " + ", ".join(
        f"{count} {status}" for status, count in node.items.items()
    )


def _node_took(node: NodeOfRun) -> str | None:
    began = node.below.run.started_at if node.below else node.started_at
    return None if began is None else _between(began, node.finished_at)


def _took(run: Run) -> str | None:
    return None if run.started_at is None else _between(run.started_at, run.finished_at)


def _between(began: datetime, ended: datetime | None) -> str:
    """Of what still runs, how long so far: for a person's eyes, so this machine's clock will do."""
    return duration(max(0.0, ((ended or datetime.now(began.tzinfo)) - began).total_seconds()))


def _words(error: TaskError | None) -> str | None:
    if error is None:
        return None
    words = " ".join(f"{error.error_code}: {error.message}".split()) if error.message else error.error_code
    return words if len(words) <= LONGEST_MESSAGE else f"{words[: LONGEST_MESSAGE - 1]}…"


for verb in VERBS:
    workflows.add_command(verb)
