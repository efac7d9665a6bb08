"""The terminal part of a bulk action: confirmation, a progress bar, and Ctrl-C, which stops between two batches."""

import signal
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from types import FrameType

import click

from horsies.cli.options import confirm
from horsies.cli.output import show_json
from horsies.model.text import plural
from horsies.ops.api import Ops
from horsies.ops.bulk import BulkAction, BulkProgress


def run_bulk(
    ops: Ops, action: BulkAction, *, verb: str, words: Mapping[str, str], dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Run the action after confirmation, and print the count of each outcome, as `words` calls it."""
    total = ops.count_tasks(action.filters)
    tasks = plural(total, "task")
    done, is_complete = BulkProgress(0, {}), True
    if total and not dry_run:
        confirm(f"{verb} {tasks}?", yes=yes)
        done, is_complete = _run_with_progress(action, verb, total)
    if as_json:
        show_json({"matched": total, "dry_run": dry_run, "is_complete": is_complete, "outcomes": done.outcomes})
    elif dry_run or not total:
        click.echo(f"would {verb} {tasks}" if total else "no task matches")
    else:
        for name, count in sorted(done.outcomes.items(), key=lambda outcome: -outcome[1]):
            click.echo(f"{count}: {words[name]}")
    if not is_complete:
        raise click.ClickException(f"stopped by Ctrl-C after {done.selected} of {total}; run it again for the rest")


def _run_with_progress(action: BulkAction, verb: str, total: int) -> tuple[BulkProgress, bool]:
    """Return what was done, and whether that was all."""
    from rich.console import Console  # noqa: PLC0415 - a worker does not need it
    from rich.progress import Progress  # noqa: PLC0415

    done = BulkProgress(0, {})
    progress = Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
    bar = progress.add_task(verb, total=total)
    with progress, _deferred_interrupt() as is_interrupted:
        for done in action:
            progress.update(bar, completed=done.selected)
            if is_interrupted():
                return done, False
    return done, True


@contextmanager
def _deferred_interrupt() -> Generator[Callable[[], bool]]:
    """Record the first Ctrl-C instead of raising it, so that a batch is not cut off. The second one raises at once."""
    is_interrupted = False

    def on_sigint(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_interrupted
        if is_interrupted:
            raise KeyboardInterrupt
        is_interrupted = True

    previous = signal.signal(signal.SIGINT, on_sigint)
    try:
        yield lambda: is_interrupted
    finally:
        signal.signal(signal.SIGINT, previous)
