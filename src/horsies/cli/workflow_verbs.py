"""`horsies workflows pause`, `resume`, `cancel` and `retry`."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import click

from horsies.app import Horsies
from horsies.cli.ids import full_id
from horsies.cli.options import confirm, dry_run_option, json_option, on_database, yes_option
from horsies.cli.show import show_json
from horsies.db.op import Op
from horsies.model.graph import WorkflowStatus
from horsies.workflows import control
from horsies.workflows.browse import Footing, get_footing

LIVE: Final = frozenset({WorkflowStatus.PENDING, WorkflowStatus.RUNNING, WorkflowStatus.PAUSED})


@dataclass(frozen=True, slots=True)
class Verb:
    """What it does to which runs; one that is `already` so is left alone without complaint."""

    do: Callable[[str], Op[bool]]
    done: str
    on: frozenset[WorkflowStatus]
    already: WorkflowStatus


PAUSE: Final = Verb(control.pause, "paused", frozenset({WorkflowStatus.RUNNING}), WorkflowStatus.PAUSED)
RESUME: Final = Verb(control.resume, "resumed", frozenset({WorkflowStatus.PAUSED}), WorkflowStatus.RUNNING)
CANCEL: Final = Verb(control.cancel, "cancelled", LIVE, WorkflowStatus.CANCELLED)
RETRY: Final = Verb(
    control.retry,
    "retried",
    frozenset({WorkflowStatus.FAILED, WorkflowStatus.CANCELLED, WorkflowStatus.PAUSED}),
    WorkflowStatus.RUNNING,
)


@dataclass(frozen=True, slots=True)
class Outcome:
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


def _apply(target: Horsies, verb: Verb, workflow_id: str, *, dry_run: bool) -> Outcome:
    footing = target.broker.run(partial(get_footing, workflow_id))
    if footing is None:
        return Outcome(workflow_id, None, None, "refused", "no such workflow is known")
    run = footing.run
    if hindrance := _hindrance(verb, footing):
        return Outcome(run.id, run.name, run.status, "refused", hindrance)
    if not _would_change(verb, footing):
        return Outcome(run.id, run.name, run.status, "unchanged", f"is {run.status} already")
    if dry_run:
        return Outcome(run.id, run.name, run.status, "changed", f"would be {verb.done}")
    if target.broker.run(partial(verb.do, workflow_id), again=partial(verb.do, workflow_id)):
        return Outcome(run.id, run.name, run.status, "changed", verb.done)
    return Outcome(run.id, run.name, run.status, "unchanged", "somebody else was faster")


def _hindrance(verb: Verb, footing: Footing) -> str | None:
    run = footing.run
    if verb is RETRY and footing.root_id is not None:
        return f"it is a part of workflow {footing.root_id}; retry that one"
    if run.status not in verb.on and run.status is not verb.already:
        return f"is {run.status}, and cannot be {verb.done}"
    return None


def _would_change(verb: Verb, footing: Footing) -> bool:
    return footing.run.status in verb.on or (verb is RESUME and footing.has_paused_parts)


def _tell(outcomes: list[Outcome], *, as_json: bool) -> None:
    if as_json:
        show_json({"workflows": outcomes})
    else:
        for outcome in outcomes:
            name = f" ({outcome.name})" if outcome.name else ""
            click.echo(f"{outcome.id}{name}: {outcome.words}", err=outcome.outcome == "refused")
    sys.exit(1 if any(outcome.outcome == "refused" for outcome in outcomes) else 0)
