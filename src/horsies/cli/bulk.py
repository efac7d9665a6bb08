"""Act on many tasks in batches, with a progress bar on a terminal. Ctrl-C stops between two batches."""

import signal
import sys
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType

import click

from horsies.app import Horsies
from horsies.cli.options import confirm
from horsies.cli.output import show_json
from horsies.tasks.inspect import TaskFilter, TaskSummary, count_tasks, list_tasks

BATCH = 1_000


def run_in_batches(
    target: Horsies,
    task_filter: TaskFilter,
    act: Callable[[Sequence[TaskSummary]], Counter[str]],
    *,
    verb: str,
    words: Mapping[str, str],
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Call `act` on all matching tasks after confirmation, and print the count of each outcome, as `words` calls it."""
    from rich.console import Console  # noqa: PLC0415 - a worker does not need it
    from rich.progress import Progress  # noqa: PLC0415

    total = target.broker.run(partial(count_tasks, task_filter))
    tasks = "1 task" if total == 1 else f"{total} tasks"
    outcomes, is_complete, after = Counter[str](), True, None
    if total and not dry_run:
        confirm(f"{verb} {tasks}?", yes=yes)
        progress = Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
        bar = progress.add_task(verb, total=total)
        with progress, _deferred_interrupt() as is_interrupted:
            # Newest first. Each task comes once, even if `act` changes whether it matches.
            while is_complete and (
                batch := target.broker.run(partial(list_tasks, task_filter, limit=BATCH, after=after))
            ):
                outcomes += act(batch)
                after = batch[-1].id
                progress.advance(bar, len(batch))
                is_complete = not is_interrupted()
    if as_json:
        show_json({"matched": total, "dry_run": dry_run, "is_complete": is_complete, "outcomes": dict(outcomes)})
    elif dry_run or not total:
        click.echo(f"would {verb} {tasks}" if total else "no task matches")
    else:
        for name, count in outcomes.most_common():
            click.echo(f"{count}: {words[name]}")
    if not is_complete:
        raise click.ClickException(f"stopped by Ctrl-C after {outcomes.total()} of {total}; run it again for the rest")


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
