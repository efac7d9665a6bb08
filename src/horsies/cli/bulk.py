"""Many tasks, a batch at a time: with a bar for those who watch, and an end between two batches for those who press Ctrl-C."""

import signal
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
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
    wanted: TaskFilter,
    act: Callable[[Sequence[TaskSummary]], Counter[str]],
    *,
    verb: str,
    words: Mapping[str, str],
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Do it to all that match, if that is really meant, and tell what became of how many; `words` says it for each outcome."""
    total = target.broker.run(partial(count_tasks, wanted))
    done, is_complete = Counter[str](), True
    if total and not dry_run:
        confirm(f"{verb} {_tasks(total)}?", yes=yes)
        done, is_complete = _in_batches(_pages(target, wanted), act, total=total, doing=verb)
    if as_json:
        show_json({"matched": total, "dry_run": dry_run, "is_complete": is_complete, "outcomes": dict(done)})
    elif dry_run or not total:
        click.echo(f"would {verb} {_tasks(total)}" if total else "no task matches")
    else:
        for name, count in done.most_common():
            click.echo(f"{count}: {words[name]}")
    if not is_complete:
        raise click.ClickException(f"stopped by Ctrl-C after {done.total()} of {total}; run it again for the rest")


def _tasks(count: int) -> str:
    return "1 task" if count == 1 else f"{count} tasks"


class BulkInterrupted(Exception):  # noqa: N818 - it says what happened
    """Ctrl-C, between two batches."""


def _pages(target: Horsies, wanted: TaskFilter) -> Generator[list[TaskSummary]]:
    """All that match, newest first; each is met once, whatever becomes of it meanwhile."""
    after = None
    while page := target.broker.run(partial(list_tasks, wanted, limit=BATCH, after=after)):
        after = page[-1].id
        yield page


def _in_batches(
    batches: Iterable[Sequence[TaskSummary]],
    act: Callable[[Sequence[TaskSummary]], Counter[str]],
    *,
    total: int,
    doing: str,
) -> tuple[Counter[str], bool]:
    """Act on each batch. What became of how many, and whether it came to the end."""
    done = Counter[str]()
    with _bar(total, doing) as advance, _interruptible() as insist:
        try:
            for batch in batches:
                done += act(batch)
                advance(len(batch))
                insist()
        except BulkInterrupted:
            return done, False
    return done, True


@contextmanager
def _bar(total: int, doing: str) -> Generator[Callable[[int], None]]:
    from rich.console import Console  # noqa: PLC0415 - a worker shows no bar
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task(doing, total=total)
        yield lambda count: progress.advance(bar, count)


@contextmanager
def _interruptible() -> Generator[Callable[[], None]]:
    """The first Ctrl-C is heard when a batch is done; the second one does not wait."""
    is_asked = False

    def ask(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_asked
        if is_asked:
            raise KeyboardInterrupt
        is_asked = True

    def insist() -> None:
        if is_asked:
            raise BulkInterrupted

    former = signal.signal(signal.SIGINT, ask)
    try:
        yield insist
    finally:
        signal.signal(signal.SIGINT, former)
